"""Small charts as SVG text: points, lines, bars. Colours come from the page's style, so that they follow its theme."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 520, 340, 84, 46, 12, 16


class Axis:
    """From values to places; `log` where the values are positive and span much."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False):
        if low == high:
            low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """
        >>> Axis(0.0, 10.0, 0, 1).ticks()
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            decades = [10.0**k for k in range(first, last + 1)]
            if len(decades) >= 2:
                return decades
            return [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5) if self._inside(m * 10.0**k)]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(m for m in (1, 2, 2.5, 5, 10) if (self.high - self.low) / (step * m) <= 6)
        count = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [k * step for k in count]

    def _inside(self, value: float) -> bool:
        return self.low <= value <= self.high


def number(value: float) -> str:
    """Three digits, and all before the point, unless a number is very small or large.

    >>> number(0.5), number(51860.5), number(1234567.0), number(0.0), number(-1e-5)
    ('0.5', '51,860', '1.23e+06', '0', '-1e-05')
    """
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    shown = f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def share(value: float) -> str:
    """R² or an accuracy, as far as it is one.

    >>> share(0.98765), share(float("nan")), share(-1e-9)
    ('0.988', 'none', '0.000')
    """
    return f"{round(value, 3) + 0.0:.3f}" if math.isfinite(value) else "none"  # no -0.000


def _frame(x: Axis, y: Axis, x_label: str, y_label: str, marks: str, described: str) -> str:
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(described, quote=True)}">']
    for value in y.ticks():
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for value in x.ticks():
        parts.append(f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number(value)}</text>')
    parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y.start}" y2="{y.start}"/>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{html.escape(y_label)}</text>'
    )
    return "".join(parts) + marks + "</svg>"


def _axes(xs: Sequence[float], ys: Sequence[float], *, log: bool = False) -> tuple[Axis, Axis]:
    low, high = (min(ys), max(ys)) if log else _padded(ys)
    return Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT), Axis(low, high, HEIGHT - BOTTOM, TOP, log=log)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return low - 0.03 * (high - low), high + 0.03 * (high - low)


def lines(series: dict[str, Sequence[float]], x_label: str, y_label: str) -> str:
    """Curves against 1, 2, ...; each has a class `s0`, `s1`, ... and its name at its end."""
    finite = [v for values in series.values() for v in values if math.isfinite(v)]
    log = min(finite) > 0
    x, y = _axes([1, max(2, *(len(v) for v in series.values()))], finite, log=log)
    marks = ""
    for k, (name, values) in enumerate(series.items()):
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values, 1) if math.isfinite(v))
        marks += f'<polyline class="s{k}" points="{points}"><title>{html.escape(name)}</title></polyline>'
    ends = ", ".join(f"{name} {number(values[-1])}" for name, values in series.items())
    return _frame(x, y, x_label, y_label, marks, f"{y_label} against {x_label}, at the end: {ends}")


def points(xs: Sequence[float], ys: Sequence[float], x_label: str, y_label: str, *, line: str) -> str:
    """A scatter plot; `line` is "diagonal" or "zero", where perfect points would lie."""
    span = [*xs, *ys] if line == "diagonal" else list(ys)
    x, y = _axes(_padded(xs), span)
    if line == "diagonal":
        x = Axis(y.low, y.high, LEFT, WIDTH - RIGHT)
        ideal = (y.low, y.low), (y.high, y.high)
    else:
        ideal = (x.low, 0.0), (x.high, 0.0)
    (a, b), (c, d) = ideal
    marks = f'<line class="ideal" x1="{x(a):.1f}" y1="{y(b):.1f}" x2="{x(c):.1f}" y2="{y(d):.1f}"/><g class="points">'
    marks += "".join(f'<circle cx="{x(u):.1f}" cy="{y(v):.1f}" r="2.4"/>' for u, v in zip(xs, ys)) + "</g>"
    return _frame(x, y, x_label, y_label, marks, f"{y_label} against {x_label}, {len(xs)} points")


def bars(entries: Sequence[tuple[str, float, float]], label: str) -> str:
    """Horizontal bars with their deviation, names at the left."""
    high = max(max(value + spread for _, value, spread in entries), 1e-300)
    low = min(0.0, min(value - spread for _, value, spread in entries))
    left, step = 170, 24
    height = step * len(entries) + 44
    x = Axis(low, high, left, WIDTH - RIGHT)
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label, quote=True)}">']
    for value in x.ticks():
        place = f"{x(value):.1f}"
        parts.append(f'<line class="grid" x1="{place}" x2="{place}" y1="4" y2="{height - 40}"/>')
        parts.append(f'<text x="{place}" y="{height - 24}" text-anchor="middle">{number(value)}</text>')
    for k, (name, value, spread) in enumerate(entries):
        top = 6 + k * step
        a, b = sorted((x(0.0), x(value)))
        shown = html.escape(name if len(name) <= 24 else name[:23] + "…")
        parts.append(f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{shown}</text>')
        parts.append(
            f'<rect class="bar" x="{a:.1f}" y="{top + 3}" width="{max(b - a, 0.5):.1f}" height="{step - 10}"/>'
        )
        middle = top + step / 2 - 2
        parts.append(
            f'<line class="spread" x1="{x(max(value - spread, low)):.1f}" x2="{x(value + spread):.1f}" '
            f'y1="{middle}" y2="{middle}"/>'
        )
    parts.append(
        f'<text x="{(left + WIDTH) / 2}" y="{height - 6}" text-anchor="middle">{html.escape(label)}</text></svg>'
    )
    return "".join(parts)
