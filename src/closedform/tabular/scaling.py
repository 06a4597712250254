"""Numbers of a table as networks want them: about zero, of about one unit, and never far out."""

from __future__ import annotations

import numpy as np

FAR = 3.0  # no scaled number is farther from zero than this
MOST_WAVES = 16  # cosines of one column
ALL_WAVES = 640  # of all columns together, which bounds the time of a step
LEAST_WAVES = 4
MOST_COLUMNS = 256  # with waves; tables with more have none


def centre_and_scale(X: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weighted median of each column and the distance of its quartiles; half the range where the quartiles are equal,
    and 1 for a constant. Unlike mean and deviation they do not see how far the farthest rows are.

    >>> centre_and_scale(np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [1e9, 5.0]]), np.ones(5))
    (array([2., 5.]), array([2., 1.]))
    """
    order = np.argsort(X, 0, kind="stable")
    ordered = np.take_along_axis(X, order, 0)
    total = weight.sum()
    shares = np.cumsum(weight[order], 0) / total

    def quantile(share: float) -> np.ndarray:
        return np.take_along_axis(ordered, (shares < share - 1e-12).sum(0)[None].clip(max=len(X) - 1), 0)[0]

    low, centre, high = (quantile(share) for share in (0.25, 0.5, 0.75))
    with np.errstate(over="ignore"):
        spread, half = high - low, ordered[-1] / 2 - ordered[0] / 2
    least = 1e-9 * np.abs(centre)  # differences that are only rounding
    scale = np.where(spread > least, spread, np.where(half > least, half, 1.0))
    return centre, np.where(np.isfinite(scale), scale, np.finfo(np.float64).max / 4)


def scaled(X: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """`v / sqrt(1 + (v / FAR)^2)` of `v = (X - centre) / scale`: nearly `v` where that is small, and within `FAR` of zero.

    >>> scaled(np.array([[2.0], [3.0], [1e300]]), np.array([2.0]), np.array([1.0])).round(2).ravel().tolist()
    [0.0, 0.95, 3.0]
    """
    with np.errstate(over="ignore"):
        v = np.clip((X / scale - centre / scale) / FAR, -1e100, 1e100)
    return FAR * v / np.sqrt(1 + v * v)


def wavy(X: np.ndarray) -> np.ndarray:
    """Which columns get waves, as a mask: those with more than two values, since a function of two values is a line. None
    where they are too many."""
    mask = np.array([len(np.unique(column[:1000])) > 2 or len(np.unique(column)) > 2 for column in X.T])
    return mask if mask.sum() <= MOST_COLUMNS else np.zeros_like(mask)


def waves(columns: int) -> int:
    """How many each of these columns gets.

    >>> waves(8), waves(100), waves(256)
    (16, 6, 4)
    """
    return max(LEAST_WAVES, min(MOST_WAVES, ALL_WAVES // max(columns, 1)))
