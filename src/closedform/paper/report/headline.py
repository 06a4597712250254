"""The figure that comes first: the error of every method in every case, a dot and its interval over the seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import panels, spec, text

if TYPE_CHECKING:
    from .summary import BestSetting, Facet


def figure(facets: Sequence[Facet], experiment: spec.Experiment) -> panels.Figure | None:
    """The table of best settings as a picture: a place on the x axis for each value of the last of the columns `by` (such as
    the batch size), a panel for each value of the others. None where there is nothing to lay out so."""
    if not facets or not facets[0].names:
        return None
    column = next(c for c in reversed(experiment.by) if c != "method")
    cases = list(dict.fromkeys(facet.names[-1] for facet in facets))
    rows = list(dict.fromkeys(facet.names[:-1] for facet in facets))
    drawn = [method.key for method in _methods(facets)]
    what = text.name(experiment, column)
    sides = []
    for at, row in enumerate(rows):
        entries: dict[str, list[tuple[int, BestSetting]]] = {}
        for facet in facets:
            if facet.names[:-1] == row:
                for entry in facet.entries:
                    entries.setdefault(entry.method.key, []).append((cases.index(facet.names[-1]), entry))
        lines = tuple(_line(experiment, key, entries[key]) for key in drawn if key in entries)
        sides.append(panels.Panel(", ".join(row) or f"by {what}", 0, at, lines))
    values = [y for panel in sides for line in panel.lines for y in line.y if y is not None]
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    return panels.Figure(
        "headline",
        f"{experiment.label[:1].upper()}{experiment.label[1:]} by {what}",
        _caption(experiment),
        what,
        experiment.label,
        1,
        len(sides),
        tuple(sides),
        panels.styles(experiment, "method", drawn),
        (low, high),
        (low, high) if low > 0 else None,
        experiment.lower,
        tuple((float(at), case.removeprefix(f"{what} ")) for at, case in enumerate(cases)),
    )


def _methods(facets: Sequence[Facet]) -> list[spec.Method]:
    return list({entry.method.key: entry.method for facet in facets for entry in facet.entries}.values())


def _line(experiment: spec.Experiment, key: str, entries: Sequence[tuple[int, BestSetting]]) -> panels.Line:
    names = [text.name(experiment, column) for column in experiment.settings]
    finite = [entry.final if math.isfinite(entry.final) else None for _, entry in entries]
    half = [
        entry.half_width if math.isfinite(entry.half_width) and entry.half_width > 0 else None for _, entry in entries
    ]
    return panels.Line(
        f"method={key}",
        tuple(float(at) for at, _ in entries),
        tuple(finite),
        tuple(half),
        tuple(
            ", ".join(f"{name} {value}" for name, value in zip(names, entry.settings) if value != text.MISSING)
            for _, entry in entries
        ),
        max(entry.seeds for _, entry in entries),
        finite[-1] is None,
    )


def _caption(experiment: spec.Experiment) -> str:
    when = "over the last fifth of training" if experiment.late else "at the end of training"
    return (
        f"Each method at its best setting, {when}. A dot is the mean over the seeds, its line the 95 % interval; one seed "
        f"has no line. {'Lower' if experiment.lower else 'Higher'} is better. A triangle at the edge is a value beyond the "
        f"axis, a cross a method that diverged."
    )
