"""From a table to the tensors that training takes: rows merged, inputs and targets standardised, rows held out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


def numpy(values: Any) -> Any:
    """Tensors as arrays; everything else as it is."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def merged(X: np.ndarray, Y: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Equal rows as one row with the sum of their weights, those of weight zero left out, in an order of their own.

    So a weight of two is exactly a row given twice, and the order in which rows are given does not matter.

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


def moments(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and standard deviation of each column; 1 in place of a deviation that is only rounding."""
    total = weight.sum()
    # in two passes and about the first row: a column of 1e9 and a column of 1e-9 are both fine
    shift = values[0]
    mean = shift + (weight @ (values - shift)) / total
    centred = values - mean
    scale = np.sqrt((weight @ np.square(centred)) / total)
    size = np.abs(values).max(0)
    constant = scale <= 10 * np.finfo(np.float64).eps * np.maximum(size, np.finfo(np.float64).tiny)
    return mean, np.where(constant | ~np.isfinite(scale), 1.0, scale)


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


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """These products are too small to share between threads, which would wait for each other most of the time; and one
    thread gives the same bits on every machine of a kind."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
