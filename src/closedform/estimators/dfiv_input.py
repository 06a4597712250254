"""The input of `DFIVRegressor`: four parts as arrays, or a sentence that says what is wrong with which."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

from .prepare import numpy


def names(X: Any) -> list[str]:
    columns = getattr(X, "columns", None)
    if columns is not None:
        return [str(name) for name in columns]
    shape = np.shape(numpy(X))
    return [f"x{k}" for k in range(shape[1] if len(shape) == 2 else 1)]


def scaled(values: np.ndarray, by: tuple[np.ndarray, np.ndarray]) -> Tensor:
    return torch.as_tensor((values - by[0]) / by[1], dtype=torch.float32)


def matrix(values: Any, name: str) -> np.ndarray:
    values = numpy(values)
    if np.ndim(values) == 1 and name != "y":
        raise ValueError(
            f"{name} has shape {np.shape(values)}; expected (n, columns), so {name}.reshape(-1, 1) or a column"
        )
    return check_array(values, dtype="float64", input_name=name, estimator="DFIVRegressor")


def checked(
    X: Any, y: Any, Z: Any, W: Any, fitted: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """The four parts as arrays, or a ValueError that says what is wrong with which."""
    if Z is None:
        raise ValueError(
            "Z is missing: expected instruments (n, m), without which nothing tells cause from confounding"
        )
    X, Z = matrix(X, "X"), matrix(Z, "Z")
    W = None if W is None else matrix(W, "W")
    y = np.asarray(numpy(y))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(f"y has shape {y.shape}; expected one outcome, (n,)")
    y = check_array(y, dtype="float64", ensure_2d=False, input_name="y", estimator="DFIVRegressor")
    lengths = {"X": len(X), "y": len(y), "Z": len(Z)} | ({} if W is None else {"W": len(W)})
    if len(set(lengths.values())) > 1:
        raise ValueError("rows differ: " + ", ".join(f"{name} has {n}" for name, n in lengths.items()))
    if fitted:
        return X, y, Z, W
    for name, values, what in (("X", X, "treatment"), ("Z", Z, "instrument")):
        constant = np.flatnonzero(np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(0))
        if len(constant) and (name == "Z" or len(constant) == values.shape[1]):
            raise ValueError(f"column {constant[0]} of {name} is constant: expected every {what} to vary")
    if np.ptp(y) == 0:
        raise ValueError("y is constant: there is nothing to explain")
    return X, y, Z, W


def excluded(Z: np.ndarray, W: np.ndarray | None) -> np.ndarray:
    """The columns of Z that are not columns of W."""
    if W is None:
        return Z
    own = [k for k in range(Z.shape[1]) if not any(np.array_equal(Z[:, k], W[:, j]) for j in range(W.shape[1]))]
    if not own:
        raise ValueError("Z has only columns of W: expected at least one instrument that is not a control")
    return Z[:, own]


class Ticker:
    """Progress on stderr."""

    def __init__(self, total: int):
        self.total, self.done, self.start, self.told = total, 0, time.perf_counter(), 0.0

    def __call__(self) -> None:
        self.done += 1
        now = time.perf_counter()
        if now - self.told > 0.2 or self.done == self.total:
            self.told = now
            bar = "#" * (30 * self.done // self.total)
            text = f"\riteration {self.done}/{self.total} [{bar:.<30}] {now - self.start:.1f} s "
            print(text, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)
