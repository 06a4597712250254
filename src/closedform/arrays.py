"""Arrays that estimators take: tensors as numpy, means and deviations of columns, one thread for small products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_numpy(values: Any) -> Any:
    """Tensors as arrays; everything else as it is."""
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()  # numpy has no bfloat16


def moments(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and standard deviation of each column; 1 in place of a deviation that is only rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = _moments(values, weight)
    # squares of very large or small numbers leave the range of floats
    size = np.abs(values).max(0)
    lost = (size > 0) & (~np.isfinite(scale) | ~np.isfinite(mean) | (scale == 0)) & (values != values[0]).any(0)
    if lost.any():
        unit = np.where(lost, 2.0 ** np.floor(np.log2(np.where(size > 0, size, 1.0))), 1.0)
        rescaled = _moments(values / unit, weight)
        mean, scale = np.where(lost, rescaled[0] * unit, mean), np.where(lost, rescaled[1] * unit, scale)
    constant = scale <= 10 * np.finfo(np.float64).eps * np.maximum(size, np.finfo(np.float64).tiny)
    return mean, np.where(constant, 1.0, scale)


def _moments(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = weight.sum()
    # in two passes and about the first row: a column of 1e9 and a column of 1e-9 are both fine
    shift = values[0]
    mean = shift + (weight @ (values - shift)) / total
    centred = values - mean
    return mean, np.sqrt((weight @ np.square(centred)) / total)


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
