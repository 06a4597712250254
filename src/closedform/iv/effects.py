"""The treatments that `effect` compares, and percentile intervals from replicates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from ..arrays import as_numpy

OUTSIDE = 0.2  # share of points where an estimate may lie outside of its own interval without a warning
FEW = 20  # with fewer replicates than these there is no warning


def treatments(value: Any, p: int, name: str) -> np.ndarray:
    """Rows of p treatments `(rows, p)` from a number, a row or rows; of a single treatment also from `(n,)`, a row each."""
    try:
        value = np.asarray(as_numpy(value), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, a row or rows of treatments, got {value!r:.80}") from None
    if not np.isfinite(value).all():
        raise ValueError(f"{name} holds NaN or infinity; expected finite treatments")
    if value.ndim == 1 and p == 1:
        value = value[:, None]
    try:
        return np.broadcast_to(value, (value.shape[0] if value.ndim == 2 else 1, p))
    except ValueError:
        raise ValueError(f"{name} has shape {value.shape}; expected {p} treatments, for one row or several") from None


def pair(ends: dict[str, Any], p: int, rows: int = 1) -> list[np.ndarray]:
    """Both ends, by their names, with as many rows as the longer has, or `rows` of the controls."""
    (one, first), (two, second) = ((name, treatments(value, p, name)) for name, value in ends.items())
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        raise ValueError(f"{one} has {len(first)} rows and {two} {len(second)}; expected as many, or one")
    count = max(len(first), len(second))
    if 1 not in (count, rows) and count != rows:
        raise ValueError(f"{one} and {two} have {count} rows and W {rows}; expected as many, or one")
    return [np.broadcast_to(end, (max(count, rows), p)) for end in (first, second)]


def normal(level: float) -> float:
    """Standard errors to either side."""
    check_level(level)
    return NormalDist().inv_cdf((1 + level) / 2)


def check_level(level: Any) -> None:
    if not isinstance(level, (int, float, np.number)) or not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level!r}")


def banded(
    estimate: np.ndarray, replicates: Sequence[Any], statistic: Callable[[Any], np.ndarray], level: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An estimate with the percentile interval of its replicates; a warning where the estimate often lies outside."""
    check_level(level)
    values = np.stack([statistic(model) for model in replicates])
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    share = float(np.mean((estimate < low) | (estimate > high)))
    if level >= 0.9 and len(values) >= FEW and share > OUTSIDE:
        warnings.warn(
            f"the estimate lies outside of its own {level:.0%} interval at {share:.0%} of the points: the replicates as a "
            "whole differ from it, so do not trust the interval",
            stacklevel=4,
        )
    return estimate, low, high
