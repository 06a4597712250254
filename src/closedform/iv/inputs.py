"""The input of `DFIVRegressor`: four parts as arrays, or a sentence that says what is wrong with which."""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

from ..arrays import as_numpy
from . import linear


class Observations(NamedTuple):
    """The rows of a fit, checked: treatments `X (n, p)`, outcomes `y (n,)`, instruments `Z (n, m)`, controls `(n, q)`."""

    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    controls: np.ndarray | None


def names(X: Any, letter: str = "x") -> list[str]:
    columns = getattr(X, "columns", None)
    if columns is not None:
        return [str(name) for name in columns]
    shape = np.shape(as_numpy(X))
    return [f"{letter}{k}" for k in range(shape[1] if len(shape) == 2 else 1)]


def columns(values: Any) -> list[str] | None:
    """The names of a table's columns, None for an array."""
    labels = getattr(values, "columns", None)
    return None if labels is None else [str(name) for name in labels]


def check_columns(values: Any, name: str, fitted: dict[str, list[str] | None]) -> None:
    """Columns by name must be those of the fit, in its order: arrays are taken by position."""
    labels, known = columns(values), fitted.get(name)
    if labels is not None and known is not None and labels != known:
        raise ValueError(
            f"the columns of {name} are {', '.join(labels)}; expected those of the fit, {', '.join(known)}"
        )


def scaled(values: np.ndarray, by: tuple[np.ndarray, np.ndarray]) -> Tensor:
    return torch.as_tensor((values - by[0]) / by[1], dtype=torch.float32)


def matrix(values: Any, name: str) -> np.ndarray:
    values = as_numpy(values)
    if np.ndim(values) == 1 and name != "y":
        raise ValueError(
            f"{name} has shape {np.shape(values)}; expected (n, columns), so {name}.reshape(-1, 1) or a column"
        )
    _check_numbers(values, name)
    return check_array(values, dtype="float64", input_name=name, estimator="DFIVRegressor")


def _check_numbers(values: Any, name: str) -> None:
    """Say where a text, NaN or infinity is; what is no table at all is left to `check_array`."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        _check_texts(values, name)
        return
    bad = np.argwhere(~np.isfinite(array))
    if not len(bad):
        return
    what = "NaN" if np.isnan(array[tuple(bad[0])]) else "infinity"
    column = "" if array.ndim < 2 else f" of column {(columns(values) or range(array.shape[1]))[bad[0][1]]}"
    raise ValueError(
        f"{name} contains {what} in row {bad[0][0]}{column} ({len(bad)} such values in all): expected finite numbers"
    )


def _check_texts(values: Any, name: str) -> None:
    try:
        array = np.asarray(values, dtype=object)
    except ValueError:  # rows of different lengths
        return
    if array.ndim not in (1, 2):
        return
    for (row, *place), value in np.ndenumerate(array):
        try:
            float(value)
        except (TypeError, ValueError):
            column = "" if not place else f" of column {(columns(values) or range(array.shape[1]))[place[0]]}"
            raise ValueError(
                f"{name} holds {value!r:.40} in row {row}{column}: expected numbers (a category as a column of 0 and 1 for "
                "each of its values but one)"
            ) from None


def outcome(y: Any) -> np.ndarray:
    """Outcomes `(n,)`."""
    y = np.asarray(as_numpy(y))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(f"y has shape {y.shape}; expected one outcome, (n,)")
    _check_numbers(y, "y")
    return check_array(y, dtype="float64", ensure_2d=False, input_name="y", estimator="DFIVRegressor")


def mark(rows: Observations) -> str:
    """Twenty hexadecimal digits that name the rows of a fit."""
    digest = hashlib.sha256()
    for part in rows:
        if part is not None:
            digest.update(repr(part.shape).encode() + np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:20]


def check_beyond(own: np.ndarray, controls: np.ndarray | None) -> None:
    """The excluded instruments must vary beyond the controls, and leave degrees of freedom."""
    n, known = len(own), linear.with_ones(controls, len(own))
    base, full = linear.rank(known), linear.rank(np.column_stack([own, known]))
    if full == base:
        raise ValueError(
            "Z is a linear function of W (and a constant): expected an instrument that varies beyond the controls"
        )
    if full >= n:
        raise ValueError(
            f"{n} rows have no more degrees of freedom than the {full} instruments, controls and intercept: expected more "
            "rows or fewer instruments"
        )


def checked(X: Any, y: Any, Z: Any, controls: Any, fitted: bool = False) -> Observations:
    """The four parts as arrays, or a ValueError that says what is wrong with which."""
    if Z is None:
        raise ValueError(
            "Z is missing: expected instruments (n, m), without which nothing tells cause from confounding"
        )
    X, Z = matrix(X, "X"), matrix(Z, "Z")
    controls = None if controls is None else matrix(controls, "W")
    y = outcome(y)
    lengths = {"X": len(X), "y": len(y), "Z": len(Z)} | ({} if controls is None else {"W": len(controls)})
    if len(set(lengths.values())) > 1:
        raise ValueError("rows differ: " + ", ".join(f"{name} has {n}" for name, n in lengths.items()))
    if fitted:
        return Observations(X, y, Z, controls)
    for name, values, what in (("X", X, "treatment"), ("Z", Z, "instrument")):
        constant = np.flatnonzero(np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(0))
        if len(constant) and (name == "Z" or len(constant) == values.shape[1]):
            raise ValueError(f"column {constant[0]} of {name} is constant: expected every {what} to vary")
    if np.ptp(y) == 0:
        raise ValueError("y is constant: there is nothing to explain")
    return Observations(X, y, Z, controls)


def excluded(Z: np.ndarray, controls: np.ndarray | None) -> list[int]:
    """Which columns of Z are not controls."""
    if controls is None:
        return list(range(Z.shape[1]))
    own = [k for k, column in enumerate(Z.T) if not any(np.array_equal(column, control) for control in controls.T)]
    if not own:
        raise ValueError("Z has only columns of W: expected at least one instrument that is not a control")
    return own


class Ticker:
    """Progress on stderr."""

    def __init__(self, total: int, what: str = "iteration"):
        self.what, self.total, self.done, self.start, self.shown = what, total, 0, time.perf_counter(), 0.0

    def __call__(self) -> None:
        self.done += 1
        now = time.perf_counter()
        if now - self.shown > 0.2 or self.done == self.total:
            self.shown = now
            bar = "#" * (30 * self.done // self.total)
            text = f"\r{self.what} {self.done}/{self.total} [{bar:.<30}] {now - self.start:.1f} s "
            print(text, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)
