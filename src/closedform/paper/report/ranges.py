"""How far the axes of a figure reach: what each line asks for, and the axis that has room for the lines in sight.

A line asks for a range of its own (its `reach`), so that the axes of the page follow what is shown.
`page.js` joins the reaches as `joined` does here; a test in a browser compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .panels import Panel, Style


class Reach(NamedTuple):
    """The part of a line that should be in sight."""

    low: float
    high: float
    linear_low: float  # on a linear axis, where the first fall would squeeze all that follows
    linear_high: float


class Axes(NamedTuple):
    linear: tuple[float, float]
    log: tuple[float, float] | None  # None where values are not positive


def joined(reaches: Iterable[Reach]) -> Axes:
    """One axis for all lines, with a little room around them.

    >>> joined([Reach(1.0, 10.0, 1.0, 8.0), Reach(2.0, 30.0, 2.0, 9.0)])
    Axes(linear=(0.0, 9.4), log=(0.9, 33.0))
    """
    wanted = list(reaches)
    if not wanted:
        return Axes((0.0, 1.0), (0.1, 1.0))
    low, high = min(one.linear_low for one in wanted), max(one.linear_high for one in wanted)
    pad = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    linear = (0.0 if 0 <= low < 0.4 * high else low - pad, high + pad)
    low, high = min(one.low for one in wanted), max(one.high for one in wanted)
    return Axes(linear, (0.9 * low, 1.1 * high) if low > 0 else None)


def of_curves(panels: Sequence[Panel], styles: Sequence[Style], lower: bool) -> list[list[Reach | None]]:
    """The reach of every line of every panel: up to a little above its end or, if that is more, where most lines are after a
    tenth of the training; what is far worse than the first method was at the start says nothing about the rest. A line
    that diverged asks for nothing, unless all did."""
    starts, early = [], []
    for panel in panels:
        firsts = {line.key: present(line.y)[0] for line in panel.lines if present(line.y)}
        if not firsts:
            continue
        sound = {line.key for line in panel.lines if not line.diverged}
        baseline = styles[0].key
        starts.append(firsts[baseline] if baseline in firsts and baseline in sound else median(firsts.values()))
        tenth = [values[len(values) // 10] for values in (present(s.y) for s in panel.lines if s.key in sound)]
        early += [median(tenth)] if tenth else []
    every = [value for panel in panels for line in panel.lines for value in present(line.y)]
    if not every:
        return [[None for _ in panel.lines] for panel in panels]
    best = min(every) if lower else max(every)
    start = max(starts) if lower else min(starts)
    margin = (max(early) if lower else min(early)) if early else start
    linear_edge = margin + 0.5 * abs(margin - best) * (1 if lower else -1)
    all_diverged = all(line.diverged for panel in panels for line in panel.lines)

    def reach(line) -> Reach | None:
        values = present(line.y)
        if not values or (line.diverged and not all_diverged):
            return None
        edge = start + 0.5 * (start - best)
        if lower and best > 0:
            edge = 3 * start if all_diverged else min(3 * start, 1.4 * max([values[-1], *early]))
        return _clipped(values, edge, linear_edge, lower)

    return [[reach(line) for line in panel.lines] for panel in panels]


def of_sensitivities(panels: Sequence[Panel], lower: bool) -> list[list[Reach | None]]:
    """All of a line's good settings are in sight; hopeless ones may leave the axis."""
    every = [value for panel in panels for line in panel.lines for value in present(line.y)]
    if not every:
        return [[None for _ in panel.lines] for panel in panels]
    best = min(every) if lower else max(every)

    def reach(line) -> Reach | None:
        values = present(line.y)
        if not values:
            return None
        own = min(values) if lower else max(values)
        edge = (
            4 * own if lower and best > 0 else own + (own - best) + (max(every) - min(every)) * (0.1 if lower else -0.1)
        )
        ends = [
            y + (half if lower else -half)
            for y, half in zip(line.y, line.half_width)
            if y is not None and half is not None
        ]
        return _clipped([*values, *ends], edge, edge, lower)

    return [[reach(line) for line in panel.lines] for panel in panels]


def _clipped(values: Sequence[float], edge: float, linear_edge: float, lower: bool) -> Reach | None:
    """From the best value to the worst or to the edge, whichever comes first; None for a line beyond the edge."""
    if (min(values) > edge) if lower else (max(values) < edge):
        return None

    def clip(at: float) -> tuple[float, float]:
        low, high = (min(values), min(max(values), at)) if lower else (max(min(values), at), max(values))
        return low, max(high, low)

    return Reach(*clip(edge), *clip(min(edge, linear_edge) if lower else max(edge, linear_edge)))


def present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
