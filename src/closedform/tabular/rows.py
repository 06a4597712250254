"""Rows of a table before training: equal ones merged, some of them held out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MOST = 200_000  # rows that `spread` makes


def merged(X: np.ndarray, Y: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Equal rows as one row with the sum of their weights, those of weight zero left out, in an order of their own.

    So a weight of two is exactly a row that occurs twice, and the order of the rows does not matter.

    >>> X, Y, w = merged(np.array([[1.0], [2.0], [1.0]]), np.array([[5.0], [6.0], [5.0]]), None)
    >>> X.ravel().tolist(), w.tolist()
    ([1.0, 2.0], [2.0, 1.0])
    """
    if weight is None:
        weight = np.ones(len(X))
    used = weight > 0
    if not used.all():
        X, Y, weight = X[used], Y[used], weight[used]
    table = np.ascontiguousarray(np.concatenate([X, Y], 1, dtype=np.float64) + 0.0)  # -0.0 becomes 0.0
    rows = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    _, index, inverse = np.unique(rows, return_index=True, return_inverse=True)
    # by value and not by bytes, so that the order means something; ties cannot be
    first = np.lexsort(table[index].T[::-1])
    return X[index[first]], Y[index[first]], np.bincount(inverse, weights=weight)[first]


def spread(X: np.ndarray, Y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merged rows, of which those that share their inputs with another class are repeated, about as often as their weight
    says: held out as a whole, a class would be missing where it belongs.

    >>> X, Y, w = spread(np.array([[1.0], [1.0], [2.0]]), np.array([[0.0], [1.0], [1.0]]), np.array([3.0, 1.0, 9.0]))
    >>> X.ravel().tolist(), Y.ravel().tolist(), w.tolist()
    ([1.0, 1.0, 1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 9.0])
    """
    same = np.concatenate([[False], (X[1:] == X[:-1]).all(1), [False]])  # equal inputs are neighbours
    mixed = same[:-1] | same[1:]
    if not mixed.any():
        return X, Y, weight
    often = np.where(mixed, weight, 1.0)
    often *= min(1.0, MOST / often[mixed].sum())  # large weights must not make a table larger than memory
    times = np.where(mixed, np.maximum(1, np.rint(often)), 1).astype(np.int64)
    return np.repeat(X, times, 0), np.repeat(Y, times, 0), np.repeat(weight / times, times)


def folds(n: int, members: int, levels: int, fraction: float, seed: int) -> Tensor | None:
    """Which rows each member holds out, `(members, n)`: the first `levels` members the same share, the next ones the next.

    Members of different levels are compared by their errors on these rows, and an error depends on the rows more than on
    the member. None where there are too few rows to hold some out.
    """
    count = int(fraction * n)
    if count < 1 or n - count < 2:
        return None
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    held = torch.zeros(members, n, dtype=torch.bool)
    for member in range(members):
        held[member, order[(torch.arange(count) + member // levels * count) % n]] = True
    return held
