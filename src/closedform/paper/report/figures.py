"""The page's figures as static SVG pictures, for documents."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...files import atomic
from . import panels

POINTS = 25  # of a line: more cannot be seen at this size, and make the files large
WIDTH, HEIGHT = 2.6, 2.1  # of a panel, inches

RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "closedform",  # the same picture is the same file
    "font.sans-serif": ["DejaVu Sans"],  # others by name are not everywhere; a browser falls back to its own
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa3ad",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e9ecef",
    "xtick.color": "#59626d",
    "ytick.color": "#59626d",
    "lines.linewidth": 1.4,
}


def static(folder: Path, out_folder: Path) -> list[Path]:
    """Write `1-curves.svg`, `2-sensitivity.svg` and so on, one for each figure of the report, in its order."""
    table, experiment = panels.read(Path(folder))
    import matplotlib

    out_folder = Path(out_folder)
    out_folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, figure in enumerate(panels.figures(table, experiment), 1):
        path = out_folder / f"{number}-{figure.kind}.svg"
        with matplotlib.rc_context(RC):
            save(_draw(figure, experiment.log), path)
        paths.append(path)
    return paths


def save(drawn: Any, path: Path) -> None:
    """Write a picture as a small SVG file, the same for the same picture."""
    buffer = io.StringIO()
    drawn.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    # indentation, digits that cannot be seen and a line for each point would be more than half of the file
    picture = re.sub(r' d="[^"]*"', lambda path: _compact(path[0]), re.sub(r"\n +", "\n", buffer.getvalue()))
    with atomic(path) as file:
        file.write(picture.encode())


def _compact(path: str) -> str:
    """
    >>> _compact("M 43.4291 -330.6 \\nL 49.52 -285.317 \\nz\\n")
    'M43.4 -330.6L49.5 -285.3z'
    """
    rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path)
    return re.sub(r"\s*\n", "", re.sub(r"([MLQCz]) ", r"\1", rounded))


def _draw(figure: panels.Figure, log: bool) -> Any:
    from matplotlib.figure import Figure

    size = ((WIDTH if figure.columns > 2 else 3.4) * figure.columns + 0.4, HEIGHT * figure.rows + 0.9)
    drawn = Figure(figsize=size, layout="constrained")
    if not figure.panels:
        drawn.text(0.5, 0.5, "no runs", ha="center", va="center")
        return drawn
    grid = drawn.subplots(figure.rows, figure.columns, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    styles = {style.key: style for style in figure.styles}
    for panel in figure.panels:
        axes = grid[panel.row][panel.column]
        axes.set_visible(True)
        _panel(axes, figure, panel, styles, log and figure.log is not None)
        axes.tick_params(length=3)
        axes.tick_params(axis="y", left=panel.column == 0, labelleft=panel.column == 0)
    drawn.supxlabel(figure.x_label, fontsize=9)
    drawn.supylabel(figure.y_label, fontsize=9)
    if figure.styles:
        # handles of their own: the first panel may lack a method
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], color=style.light, dashes=_dash(style), label=style.label) for style in figure.styles]
        drawn.legend(
            handles=handles, loc="outside upper center", ncols=max(1, int(size[0] / 1.6)), frameon=False, handlelength=3
        )
    return drawn


def _panel(axes: Any, figure: panels.Figure, panel: panels.Panel, styles: dict[str, panels.Style], log: bool) -> None:
    sensitivity = figure.kind == "sensitivity"
    if log:
        axes.set_yscale("log")
    axes.set_ylim(*(figure.log if log and figure.log else figure.linear))
    axes.set_title(panel.title)
    for line in panel.lines:
        style = styles[line.key]
        shown = [at for at in _thinned(len(line.x)) if line.y[at] is not None]
        x, y = [line.x[at] for at in shown], [line.y[at] or 0.0 for at in shown]
        half = [line.half_width[at] or 0.0 for at in shown]
        axes.plot(
            x, y, color=style.light, dashes=_dash(style), marker="o" if sensitivity or len(x) == 1 else None, ms=3
        )
        if any(half):
            # a logarithmic axis has no place for what is not positive
            floor = axes.get_ylim()[0] / 2 if log else -float("inf")
            low = [max(mean - width, floor) for mean, width in zip(y, half)]
            high = [mean + width for mean, width in zip(y, half)]
            axes.fill_between(x, low, high, color=style.light, alpha=0.15, linewidth=0)
    _ticks(axes, figure, log)
    remarks = [(word, [styles[line.key].label for line in panel.lines if is_so(line)])
               for word, is_so in (("diverged", lambda line: line.diverged), ("off scale", figure.off_scale))]  # fmt: skip
    note = "\n".join(f"{', '.join(names)}: {word}" for word, names in remarks if names)
    if note and not sensitivity:
        axes.text(0.98, 0.97, note, transform=axes.transAxes, ha="right", va="top", fontsize=8)


def _ticks(axes: Any, figure: panels.Figure, log: bool) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    if figure.kind == "sensitivity":
        axes.set_xscale("log")
        places = [place for place, _ in figure.ticks]
        apart = (places[-1] / places[0]) ** (1 / 6.5)  # no more than a few labels fit
        shown: list[tuple[float, str]] = []
        for place, label in figure.ticks:
            if not shown or place >= shown[-1][0] * apart * 0.999:
                shown.append((place, label))
        axes.set_xticks([place for place, _ in shown], [label for _, label in shown])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if log and figure.log:
        low, high = figure.log
        if high / low < 3:
            axes.yaxis.set_major_locator(MaxNLocator(5))
        else:
            axes.yaxis.set_major_locator(
                LogLocator(
                    subs=(1, 2, 3, 5)
                    if high / low < 12
                    else (1, 2, 5)
                    if high / low < 160
                    else (1, 3)
                    if high / low < 1000
                    else (1,)
                )
            )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())


def _dash(style: panels.Style) -> Any:
    # the page's lengths are pixels of lines 1.75 wide; matplotlib's are in widths of the line
    return [length / 1.75 for length in style.dash] or (None, None)


def _thinned(count: int) -> Sequence[int]:
    """Evenly spaced places, the first and the last among them.

    >>> len(_thinned(56)), _thinned(56)[-1], list(_thinned(3))
    (25, 55, [0, 1, 2])
    """
    if count <= POINTS:
        return range(count)
    return [round(at * (count - 1) / (POINTS - 1)) for at in range(POINTS)]
