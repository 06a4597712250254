"""Names and numbers as a reader sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .spec import Experiment

NAMES = {"lam": "λ", "beta": "β"}
MISSING = "\N{EN DASH}"


def name(experiment: Experiment, column: str) -> str:
    return experiment.names.get(column) or NAMES.get(column) or column.replace("_", " ")


def missing(value: object) -> bool:
    return value is None or value != value  # NaN, also pandas's, is not itself


def value(cell: Any) -> str:
    """
    >>> value(32.0), value(1e-3), value(0.99999), value("sgd"), value(float("nan")), value(True)
    ('32', '0.001', '0.99999', 'sgd', '\\u2013', 'yes')
    """
    if missing(cell):
        return MISSING
    if isinstance(cell, str):
        return cell
    if cell in (True, False) and type(cell).__name__.startswith("bool"):
        return "yes" if cell else "no"
    try:
        number_ = float(cell)
    except (TypeError, ValueError):
        return str(cell)
    if number_.is_integer() and abs(number_) < 1e7:
        return str(int(number_))
    short = f"{number_:.4g}"
    return f"{number_:g}" if float(short) == 1 else short  # a long memory is not an endless one


def number(x: float) -> str:
    """
    >>> number(0.0123456), number(123456.0), number(2.5e7), number(0.0), number(float("inf"))
    ('0.01235', '123456', '2.5e+07', '0', 'diverged')
    """
    if not math.isfinite(x):
        return "diverged"
    return f"{x:.0f}" if 1e4 <= abs(x) < 1e6 else f"{x:.4g}"


def interval(mean: float, half_width: float | None) -> str:
    """The mean with as many digits as its interval warrants.

    >>> interval(0.0123456, 0.00034), interval(12.3456, 4.0), interval(0.5, None), interval(2e7, 3e6)
    ('0.01235 ± 0.00034', '12.3 ± 4.0', '0.5', '2e+07 ± 3e+06')
    """
    if half_width is None or not math.isfinite(half_width) or not math.isfinite(mean) or half_width == 0:
        return number(mean)
    if abs(mean) >= 1e6 or 0 < abs(mean) < 1e-4:
        return f"{mean:.3g} ± {half_width:.2g}"
    decimals = max(0, 1 - math.floor(math.log10(half_width)))
    if decimals > 6:
        return f"{number(mean)} ± {half_width:.1g}"
    return f"{mean:.{decimals}f} ± {half_width:.{decimals}f}"


def named(experiment: Experiment, column: str, cell: Any) -> str:
    """A value with the name of its column, such as "batch size 32"; a word, such as "adam", speaks for itself."""
    if column == "method":
        return experiment.method(cell).label
    return cell if isinstance(cell, str) else f"{name(experiment, column)} {value(cell)}"


def setting(experiment: Experiment, columns: Sequence[str], row: Any) -> str:
    """The chosen values, such as "lr 0.01, λ 0.1"; a setting that the method does not have is left out."""
    return ", ".join(named(experiment, column, row[column]) for column in columns if not missing(row[column]))


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
