"""Numbers of a table as networks want them: about zero, of about one unit, and not far out."""

from __future__ import annotations

import numpy as np
import torch

from ..arrays import moments
from ..solver.path import RidgePath

FAR = 3.0  # from here on a scaled number grows as its logarithm does
MOST_WAVES = 16  # cosines of one column
ALL_WAVES = 640  # of all columns together, which bounds the time of a step
LEAST_WAVES = 4
MOST_COLUMNS = 256  # with waves; tables with more have none
# Of `straight`: the betas of its ridge over the weight of all rows; by how much the plain columns must be better; how far
# they may go, in the farthest number trained on; and how many rows it looks at, and what rows times columns squared may be
BETAS = (1e-6, 1e-4, 1e-2, 1.0)
MARGIN = 0.98
BEYOND = 10.0
ROWS, LEAST_ROWS, WORK = 20_000, 200, 4_000_000_000


def centre_and_scale(X: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weighted median of each column and the distance of its quartiles. Where these are equal, as in a column of mostly
    zeros, how far the other numbers are from the median, in the median; of two values half the range; and 1 for a constant.
    Unlike mean and deviation they do not see how far the farthest rows are.

    >>> centre_and_scale(np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [1e9, 5.0]]), np.ones(5))
    (array([2., 5.]), array([2., 1.]))
    >>> centre_and_scale(np.r_[np.zeros(10), 3.0, 4.0, 1e9][:, None], np.ones(13))[1]
    array([4.])
    """
    low, centre, high = _quantiles(X, weight, (0.25, 0.5, 0.75))
    with np.errstate(over="ignore"):
        spread, half = high - low, X.max(0) / 2 - X.min(0) / 2
    least = np.maximum(1e-9 * np.abs(centre), 1e-15 * half)  # differences that are only rounding
    scale = np.where(spread > least, spread, np.where(half > least, half, 1.0))
    for column in np.flatnonzero((spread <= least) & (half > least)):
        with np.errstate(over="ignore"):
            distances = np.abs(X[:, column] - centre[column])
        away = distances > 1e-9 * max(abs(centre[column]), half[column])
        if len(np.unique(X[away, column])) > 1:
            scale[column] = _quantiles(distances[away, None], weight[away], (0.5,))[0].item()
    return centre, np.where(np.isfinite(scale), scale, np.finfo(np.float64).max / 4)


def _quantiles(X: np.ndarray, weight: np.ndarray, shares: tuple[float, ...]) -> list[np.ndarray]:
    """Of each column, numbers that occur: up to each lies at least such a share of the weight."""
    order = np.argsort(X, 0, kind="stable")
    ordered = np.take_along_axis(X, order, 0)
    upto = np.cumsum(weight[order], 0) / weight.sum()
    places = [(upto < share - 1e-12).sum(0)[None].clip(max=len(X) - 1) for share in shares]
    return [np.take_along_axis(ordered, place, 0)[0] for place in places]


def scaled(X: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """`FAR asinh(v / FAR)` of `v = (X - centre) / scale`: nearly `v` where that is small, and far out its logarithm.

    >>> scaled(np.array([[2.0], [3.0], [1e3], [1e6]]), np.array([2.0]), np.array([1.0])).round(1).ravel().tolist()
    [0.0, 1.0, 19.5, 40.2]
    """
    with np.errstate(over="ignore"):
        v = np.clip((X / scale - centre / scale) / FAR, -1e100, 1e100)
    return FAR * np.arcsinh(v)


def straight(X: np.ndarray, Y: np.ndarray, weight: np.ndarray, drawn_in: np.ndarray) -> np.ndarray:
    """How the last layer sees the columns: `(3, columns)`, a centre, a scale and how far from zero the scaled number may be.

    A line in a column with a long tail is no line in the column drawn in, and the other way round. So the targets are
    regressed on both, and the one with the lower leave-one-out error stays. Where that is the column drawn in, the last
    row is zero.
    """
    weight = weight / weight.max()  # their unit means nothing, and a ridge of very large or small ones has no digits
    centre, scale = moments(X, weight)
    with np.errstate(over="ignore", invalid="ignore"):
        plain = X / scale - centre / scale
    reach = BEYOND * np.abs(plain).max(0)
    kept = _some(*X.shape)
    betas = torch.tensor(BETAS, dtype=torch.float64) * weight[kept].sum()
    targets, weights = torch.from_numpy(Y[kept]), torch.from_numpy(weight[kept])
    if not np.isfinite(plain).all():
        return np.stack([centre, scale, np.zeros_like(reach)])
    errors = [
        float(RidgePath(torch.from_numpy(inputs[kept]), targets, weights).leave_one_out(betas).min())
        for inputs in (plain, drawn_in)
    ]
    better = errors[0] < MARGIN * errors[1]
    return np.stack([centre, scale, reach if better else np.zeros_like(reach)])


def _some(n: int, columns: int) -> np.ndarray:
    """Rows to judge by, so many that it takes a second at most."""
    count = min(n, ROWS, max(LEAST_ROWS, WORK // columns**2))
    return np.linspace(0, n - 1, count).round().astype(int)


def as_lines(X: np.ndarray, line: np.ndarray) -> np.ndarray:
    """The columns as `straight` says the last layer sees them."""
    centre, scale, reach = line
    with np.errstate(over="ignore"):
        return np.clip(X / scale - centre / scale, -reach, reach)


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
