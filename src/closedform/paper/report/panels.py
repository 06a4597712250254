"""What the figures show: panels of lines, computed from the table once, for the page and for the static pictures alike.

Every line is drawn at its best setting, chosen by the column `select` (see `closedform.paper.sweeps.results`), never by the
metric that it shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import extras
from ..sweeps import results
from . import colours, ranges, spec, text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Style:
    """How one value of the column `colour` looks, in the legend and in every panel."""

    key: str  # such as "method=l2"
    label: str
    light: str  # its colour on a white page
    dark: str  # and on a dark one
    dash: tuple[float, ...]
    ours: bool = False


@dataclass(frozen=True)
class Line:
    """Means over seeds, with half the width of their 95 % intervals; None where a mean is not finite or has no interval."""

    key: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    half_width: tuple[float | None, ...]
    settings: tuple[str, ...]  # one for the line, or one for each point
    seeds: int
    diverged: bool  # whether the last value is not finite
    reach: ranges.Reach | None = None  # what of it should be in sight; None: it asks for nothing


@dataclass(frozen=True)
class Panel:
    title: str
    row: int
    column: int
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Figure:
    kind: str
    title: str
    caption: str
    x_label: str
    y_label: str
    rows: int
    columns: int
    panels: tuple[Panel, ...]
    styles: tuple[Style, ...]
    linear: tuple[float, float]  # the range of the y axis
    log: tuple[float, float] | None  # and of a logarithmic one; None where values are not positive
    lower: bool  # whether less is better
    ticks: tuple[tuple[float, str], ...] = ()  # of the x axis, where it has its own

    def off_scale(self, line: Line) -> bool:
        """Whether a line ends, finite, where no axis of this figure reaches."""
        last = line.y[-1]
        low, high = self.log or self.linear
        return last is not None and not min(low, self.linear[0]) <= last <= max(high, self.linear[1])


def read(folder: Path) -> tuple[pd.DataFrame, spec.Experiment]:
    """Both files of a results folder, checked against each other."""
    extras.require("closedform.paper.report", "experiments", "pandas", "pyarrow", "jinja2", "matplotlib")
    experiment, table = spec.load(folder), results.load(folder)
    path = folder / results.TABLE
    metrics = _unique([experiment.metric, experiment.select, *_curve_metrics(experiment)])
    needed = _unique([*configuration(experiment), "seed", "step", *metrics])
    absent = [column for column in needed if column not in table.columns]
    if absent:
        raise ValueError(
            f"{path} lacks {'column' if len(absent) == 1 else 'columns'} {text.listed([repr(c) for c in absent])}, "
            f"which {spec.SPEC} asks for; it has {', '.join(map(str, table.columns))}"
        )
    for column in (*metrics, "step"):
        if table[column].dtype.kind not in "fiu":
            raise ValueError(f"{path}: column {column!r} holds {table[column].dtype}, expected numbers")
    if table.empty:
        raise ValueError(f"{path} has no rows")
    twice = table.duplicated([*configuration(experiment), "seed", "step"])
    if twice.any():
        first = table.loc[twice.idxmax(), [*configuration(experiment), "seed", "step"]].to_dict()
        raise ValueError(
            f"{path} has {int(twice.sum())} second rows for the same model and step, such as {first}: `settings` in "
            f"{spec.SPEC} may lack a column that distinguishes the models"
        )
    # infinite is the worst there is, so that no choice falls on a model that diverged
    worst = math.inf if experiment.lower else -math.inf
    return table.assign(**{c: table[c].astype(float).fillna(worst).replace(-worst, worst) for c in metrics}), experiment


def _curve_metrics(experiment: spec.Experiment) -> list[str]:
    return [figure.metric for figure in experiment.figures if isinstance(figure, spec.Curves)]


def configuration(experiment: spec.Experiment) -> list[str]:
    """The columns that distinguish models (besides the seed)."""
    drawn = [
        column
        for figure in experiment.figures
        for column in (
            figure.colour,
            figure.columns,
            figure.rows if isinstance(figure, spec.Curves) else figure.x,
            *figure.where,
        )
    ]
    return _unique(["method", *experiment.by, *experiment.settings, *drawn, *experiment.where])


def where(table: pd.DataFrame, wanted: dict[str, list]) -> pd.DataFrame:
    for column, values in wanted.items():
        keep = table[column].isin([value for value in values if value is not None])
        table = table.loc[keep | table[column].isna() if None in values else keep]
    return table


def each(table: pd.DataFrame) -> Iterator[Any]:
    """The rows, one after the other, by the names of their columns."""
    for _, row in table.iterrows():
        yield row


def order(experiment: spec.Experiment, column: str, values: Iterable[Any], wanted: dict[str, list]) -> list[Any]:
    """The distinct values as they should stand: methods and `where` as they are listed, numbers by size, words by letter."""
    listed = [method.key for method in experiment.methods] if column == "method" else wanted.get(column, [])

    def rank(value: Any) -> tuple:
        at = listed.index(value) if value in listed else len(listed)
        return (at, isinstance(value, str), value)

    return sorted({value for value in values if not text.missing(value)}, key=rank)


def figures(table: pd.DataFrame, experiment: spec.Experiment) -> list[Figure]:
    return [
        _curves(table, experiment, figure)
        if isinstance(figure, spec.Curves)
        else _sensitivity(table, experiment, figure)
        for figure in experiment.figures
    ]


def finished(table: pd.DataFrame, experiment: spec.Experiment) -> pd.DataFrame:
    """The trained models, with what they are chosen by and what is shown of them (`results.finished`)."""
    model_columns = configuration(experiment)
    return results.finished(
        table, model_columns, select=experiment.select, metric=experiment.metric, late=experiment.late
    )


def drawn(table: pd.DataFrame, experiment: spec.Experiment, figure: spec.Curves) -> pd.DataFrame:
    """The models whose curves the figure shows: the best setting of each line."""
    model_columns = configuration(experiment)
    by = _unique([figure.rows, figure.columns, figure.colour])
    runs = finished(where(table, figure.where), experiment)
    return results.best(
        runs,
        by,
        [column for column in model_columns if column not in by],
        lower=experiment.lower,
        failed=experiment.failed,
    )


def _curves(table: pd.DataFrame, experiment: spec.Experiment, figure: spec.Curves) -> Figure:
    table = where(table, figure.where)
    model_columns = configuration(experiment)
    by = _unique([figure.rows, figure.columns, figure.colour])
    chosen_by = [column for column in model_columns if column not in by]
    lines_by_facet: dict[tuple, list[tuple[Any, Line]]] = {}
    chosen = drawn(table, experiment, figure)
    said = _differing(experiment, chosen, chosen_by)
    for row in each(chosen):
        if any(text.missing(row[column]) for column in by):
            continue
        curve = results.curve(results.rows_of(table, row, model_columns), figure.metric or experiment.metric)
        line = _line(
            f"{figure.colour}={text.value(row[figure.colour])}",
            curve["step"],
            curve["mean"],
            curve["half_width"],
            (text.setting(experiment, said, row),),
            int(row["seeds"]),
        )
        lines_by_facet.setdefault(_facet(row, figure.rows, figure.columns), []).append((row[figure.colour], line))
    panels, rows, columns, styles = _arrange(lines_by_facet, experiment, figure, figure.rows)
    panels, (linear, log) = _with_reaches(panels, ranges.of_curves(panels, styles, experiment.lower))
    label = figure.label or experiment.label
    return Figure("curves", figure.title, figure.caption, text.name(experiment, "step"), label,
                  rows, columns, panels, styles, linear, log, experiment.lower)  # fmt: skip


def _sensitivity(table: pd.DataFrame, experiment: spec.Experiment, figure: spec.Sensitivity) -> Figure:
    import pandas as pd

    table = where(table, figure.where)
    table = table.assign(**{figure.x: pd.to_numeric(table[figure.x], errors="coerce")}).dropna(subset=[figure.x])
    model_columns = configuration(experiment)
    by = _unique([figure.columns, figure.colour, figure.x])
    chosen_by = [column for column in model_columns if column not in by]
    runs = finished(table, experiment)
    chosen = results.best(runs, by, chosen_by, lower=experiment.lower, failed=experiment.failed)
    said = _differing(experiment, chosen, chosen_by)
    ticks = _log_places(sorted(set(chosen[figure.x].astype(float))))
    lines_by_facet: dict[tuple, list[tuple[Any, Line]]] = {}
    for _, rows in chosen.groupby(_unique([figure.columns, figure.colour]), sort=False, observed=True):
        rows, row = rows.sort_values(figure.x), rows.iloc[0]
        line = _line(
            f"{figure.colour}={text.value(row[figure.colour])}",
            [ticks[float(x)] for x in rows[figure.x]],
            rows["final"],
            rows["half_width"],
            tuple(text.setting(experiment, said, chosen_row) for chosen_row in each(rows)),
            int(rows["seeds"].max()),
        )
        lines_by_facet.setdefault(_facet(row, None, figure.columns), []).append((row[figure.colour], line))
    panels, count, columns, styles = _arrange(lines_by_facet, experiment, figure, None)
    panels, (linear, log) = _with_reaches(panels, ranges.of_sensitivities(panels, experiment.lower))
    return Figure("sensitivity", figure.title, figure.caption, text.name(experiment, figure.x), experiment.label,
                  count, columns, panels, styles, linear, log, experiment.lower,
                  tuple((place, text.value(x)) for x, place in ticks.items()))  # fmt: skip


def _differing(experiment: spec.Experiment, chosen: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """The columns worth a word beside a value: the tuned ones, and others that are not the same in the whole figure."""
    return [c for c in columns if c in experiment.settings or chosen[c].nunique(dropna=False) > 1]


def _line(key: str, x: Any, y: Any, half_width: Any, settings: tuple[str, ...], seeds: int) -> Line:
    y = [float(value) for value in y]
    return Line(key, tuple(float(value) for value in x), tuple(_finite(y)), tuple(_finite(half_width)), settings, seeds,
                not math.isfinite(y[-1]))  # fmt: skip


def _facet(row: Any, rows: str | None, columns: str | None) -> tuple:
    return (row[rows] if rows else None, row[columns] if columns else None)


def _arrange(
    lines_by_facet: dict[tuple, list[tuple[Any, Line]]],
    experiment: spec.Experiment,
    figure: spec.Curves | spec.Sensitivity,
    rows: str | None,
) -> tuple[tuple[Panel, ...], int, int, tuple[Style, ...]]:
    """Panels by row and column, their lines in the legend's order, and that legend."""
    down = order(experiment, rows, (facet[0] for facet in lines_by_facet), figure.where) if rows else [None]
    across = (
        order(experiment, figure.columns, (f[1] for f in lines_by_facet), figure.where) if figure.columns else [None]
    )
    drawn = order(experiment, figure.colour, (v for lines in lines_by_facet.values() for v, _ in lines), figure.where)
    panels = []
    for (row, column), lines in lines_by_facet.items():
        names = [text.named(experiment, name, at) for name, at in ((rows, row), (figure.columns, column)) if name]
        ordered = tuple(line for _, line in sorted(lines, key=lambda pair: drawn.index(pair[0])))
        panels.append(Panel(", ".join(names) or figure.title, down.index(row), across.index(column), ordered))
    panels.sort(key=lambda panel: (panel.row, panel.column))
    return tuple(panels), len(down), len(across), styles(experiment, figure.colour, drawn)


def _with_reaches(
    panels: Sequence[Panel], reaches: list[list[ranges.Reach | None]]
) -> tuple[tuple[Panel, ...], ranges.Axes]:
    """The panels whose lines know their reach, and the axes that have room for all of them."""
    reaching = tuple(
        replace(panel, lines=tuple(replace(line, reach=reach) for line, reach in zip(panel.lines, row)))
        for panel, row in zip(panels, reaches)
    )
    return reaching, ranges.joined(reach for row in reaches for reach in row if reach is not None)


def styles(experiment: spec.Experiment, column: str, drawn: Sequence[Any]) -> tuple[Style, ...]:
    styles = []
    if column == "method":
        described = [method.key for method in experiment.methods]
        known = [*described, *(key for key in drawn if key not in described)]
        palette = list(colours.PALETTE)
    else:
        known = list(drawn)
        palette = colours.ordered(len(known))
    for at, value in enumerate(known):
        if value not in drawn:
            continue
        method = experiment.method(value) if column == "method" else None
        colour = (method and method.colour) or palette[at % len(palette)]
        dash = colours.DASHES[at % len(colours.DASHES)]
        if method is not None and method.dashed is not None:
            dash = colours.DASHES[int(method.dashed)]
        styles.append(
            Style(
                f"{column}={text.value(value)}",
                text.named(experiment, column, value),
                colours.on_light(colour),
                colours.on_dark(colour),
                dash,
                bool(method and method.ours),
            )
        )
    return tuple(styles)


def _log_places(values: list[float]) -> dict[float, float]:
    """Where values stand on a logarithmic axis: zero, which has no place there, one step left of the least positive one."""
    positive = [value for value in values if value > 0]
    if not positive:
        return {value: 1.0 for value in values if value == 0}
    step = positive[1] / positive[0] if len(positive) > 1 else 10.0
    return {value: value if value > 0 else positive[0] / step for value in values if value >= 0}


def _finite(values: Iterable[float]) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _unique(columns: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(column for column in columns if column))
