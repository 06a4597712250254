"""The column to predict: whether it is a number or a class, and which rows are kept to test on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from . import cells, quantities
from .choosing import NEARLY, written_numbers
from .reading import TableError

if TYPE_CHECKING:
    import pandas as pd

    from .quantities import Spelling

TEST = 0.2
FEW = 10  # different whole numbers up to which a target is taken for classes
HINT = "; --task classification takes it as classes"


@dataclass
class Target:
    """The rows that have a target, the target itself, and what it is."""

    table: pd.DataFrame
    y: np.ndarray
    task: str  # "regression" or "classification"
    remarks: list[str] = field(default_factory=list)


def read(table: pd.DataFrame, name: str, task: str, categorical: Collection[str]) -> Target:
    """The target of a table; `task` may be "auto"."""
    remarks = []
    values = cells.cleaned(table[name])
    missing = values.isna()
    if missing.all():
        raise TableError(f"column {name!r}: all {len(table)} rows are missing; expected a target")
    if missing.any():
        count = int(missing.sum())
        remarks.append(f"{count} row{'s' * (count > 1)} without {name!r} {'are' if count > 1 else 'is'} left out")
        table, values = table.loc[~missing], values.loc[~missing]
    numeric, spelling = (False, None) if name in categorical else written_numbers(values)
    if task == "auto":
        if not numeric and name not in categorical:
            _check_spelling(name, values)
        task = "classification"
        if numeric:
            numbers = cells.numbers(name, values, spelling=spelling, hint=HINT)
            few = len(np.unique(numbers)) <= min(FEW, len(numbers) // 2)
            task = "classification" if few and (numbers == numbers.round()).all() else "regression"
        remarks.append(f"{name!r} is taken as a {task} target; --task chooses another")
    if task == "regression":
        y = _numbers(name, values, spelling, remarks)
    else:
        y = _classes(name, values)
    if len(y) < 4:
        raise TableError(f"{len(y)} row{'s' * (len(y) != 1)} with a target; expected at least 4 to train and test on")
    return Target(table, y, task, remarks)


def _numbers(name: str, values: pd.Series, spelling: Spelling | None, remarks: list[str]) -> np.ndarray:
    y = cells.numbers(name, values, spelling=spelling, hint=HINT)
    if np.ptp(y) == 0:
        raise TableError(f"column {name!r}: every row is {y[0]:g}; there is nothing to predict")
    if spelling is not None:
        unit = f", in {spelling.unit}" if spelling.unit else ""
        remarks.append(f"{name!r} holds texts such as {cells.short(values.iloc[0])}: taken as numbers{unit}")
    return y


def _classes(name: str, values: pd.Series) -> np.ndarray:
    y = cells.texts(values).to_numpy().astype(str)
    labels = np.unique(y)
    if len(labels) < 2:
        raise TableError(f"column {name!r}: every row is {labels.tolist()[0]!r}; expected at least two classes")
    if len(labels) > max(2, len(y) // 2):
        raise TableError(f"column {name!r}: {len(labels)} classes in {len(y)} rows are too many")
    return y


def _check_spelling(name: str, values: pd.Series) -> None:
    """Raise where a target that is none of numbers would be one if they were written in one way."""
    near = cells.mapped(cells.texts(values), quantities.is_quantity).to_numpy(dtype=bool)
    if near.mean() >= NEARLY:
        raise TableError(
            f"column {name!r}: values such as {cells.short(values.iloc[0])} look like numbers in several units or "
            f"spellings; expected one{HINT}"
        )


def split(y: np.ndarray, seed: int, task: str) -> tuple[np.ndarray, np.ndarray]:
    """The places of the rows to train on and of those to test on."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(y))
    alone = np.zeros(len(y), dtype=bool)
    stratify = None
    size = max(1, round(TEST * len(y)))
    if task == "classification":
        _classes, place, counts = np.unique(y, return_inverse=True, return_counts=True)
        alone = counts[place] == 1  # a class of one row is there to train on, not to test
        several = int((counts > 1).sum())
        rest = rows[~alone]
        size = min(size, len(rest) - 1)
        stratify = y[rest] if several <= min(size, len(rest) - size) else None
    first, second = train_test_split(rows[~alone], test_size=size, random_state=seed, stratify=stratify)
    return np.sort(np.concatenate([first, rows[alone]])), np.sort(second)
