"""What is done to a table before the network: scikit-learn's transformers, chosen by column, and the same again from JSON.

Missing numbers become the median, with a column that says so; texts become one column for each frequent value. A
`Preparation` holds all of it as plain numbers and texts; `transformer` builds the scikit-learn object from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import reading
from .reading import TableError

if TYPE_CHECKING:
    import pandas as pd

MOST = 64  # values of a category that get a column; rarer ones share the absence of all
LEAST = 2  # rows that a value must have
ABSENT = "(missing)"


@dataclass
class Preparation:
    """Columns of numbers with their medians and whether values were missing; categories with their frequent values."""

    numbers: list[str]
    medians: list[float]
    gaps: list[bool]
    categories: list[str]
    values: list[list[str]]

    @property
    def columns(self) -> list[str]:
        return [*self.numbers, *self.categories]


def find(
    path: Path, table: pd.DataFrame, columns: Sequence[str], categorical: Sequence[str], rows: np.ndarray
) -> tuple[Preparation, list[str]]:
    """The preparation of a table's columns, and remarks about those left out. The whole table says whether a column holds
    numbers, so that a mistake in any row is an error; medians and frequent values come from `rows`, those to train on."""
    preparation = Preparation([], [], [], [], [])
    remarks = []
    for column in columns:
        values = table[column]
        if values.isna().all():
            raise TableError(f"{path}: column {column!r}: all {len(values)} rows are missing; expected some values")
        if column not in categorical and reading.is_numeric(values):
            hint = f"; --categorical {column} takes the column as texts"
            numbers = reading.numbers(path, column, values, hint=hint).iloc[rows]
            if numbers.isna().all():
                remarks.append(f"column {column!r} is left out: all its values are missing in the rows to train on")
                continue
            preparation.numbers.append(column)
            preparation.medians.append(float(numbers.median()))
            preparation.gaps.append(bool(numbers.isna().any()))
            continue
        if column not in categorical:
            reading.check_spelling(path, column, values, hint=f"; --categorical {column} takes the column as texts")
        counts = reading.texts(values).fillna(ABSENT).iloc[rows].value_counts()
        frequent = sorted(counts[counts >= LEAST].index[:MOST].tolist())
        if len(frequent) < 2 and len(counts) > 1:
            remarks.append(f"column {column!r} is left out: nearly all its values are different")
        elif len(counts) == 1:
            remarks.append(f"column {column!r} is left out: all its values are equal")
        else:
            preparation.categories.append(column)
            preparation.values.append(frequent)
    if not preparation.columns:
        raise TableError(f"{path}: no column is left to predict from")
    return preparation, remarks


def check(preparation: Preparation) -> None:
    """Raise a ValueError unless it is what `find` makes."""
    p = preparation
    for name, kind in (
        ("numbers", str),
        ("medians", (int, float)),
        ("gaps", bool),
        ("categories", str),
        ("values", list),
    ):
        entries = getattr(p, name)
        if not isinstance(entries, list) or not all(isinstance(entry, kind) for entry in entries):
            raise ValueError(f"{name} must be a list, got {str(entries)[:40]}")
    if not len(p.numbers) == len(p.medians) == len(p.gaps) or len(p.categories) != len(p.values):
        raise ValueError("the lists of its columns are not of one length")
    if not p.columns or len(set(p.columns)) < len(p.columns):
        raise ValueError("no columns, or one of them twice")
    if not np.isfinite(np.array(p.medians, dtype=np.float64)).all():
        raise ValueError("a median is not finite")
    for column, values in zip(p.categories, p.values):
        texts = all(isinstance(value, str) for value in values)
        if not values or not texts or values != sorted(set(values)):
            raise ValueError(f"the values of {column!r} must be different texts in their order")


def frame(path: Path, table: pd.DataFrame, preparation: Preparation) -> pd.DataFrame:
    """The columns that the transformer takes, checked: numbers as float64, categories as texts."""
    import pandas as pd

    parts: dict[str, Any] = {c: reading.numbers(path, c, table[c]) for c in preparation.numbers}
    parts |= {c: reading.texts(table[c]).fillna(ABSENT) for c in preparation.categories}
    return pd.DataFrame(parts, index=table.index)


def transformer(preparation: Preparation) -> Any:
    """The fitted scikit-learn transformer. It is fitted on two rows that lead to the known medians and categories, so
    that no private attribute has to be set."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    p = preparation
    steps = []
    rows: dict[str, Any] = {}
    if p.numbers:
        steps.append(("numbers", SimpleImputer(strategy="median", add_indicator=True), p.numbers))
        rows |= {c: [m, np.nan if gap else m] for c, m, gap in zip(p.numbers, p.medians, p.gaps)}
    if p.categories:
        known: Any = [np.array(v, dtype=object) for v in p.values]
        encoder = OneHotEncoder(categories=known, handle_unknown="ignore", sparse_output=False)
        steps.append(("categories", encoder, p.categories))
        rows |= {c: [v[0], v[-1]] for c, v in zip(p.categories, p.values)}
    return ColumnTransformer(steps, verbose_feature_names_out=False).fit(pd.DataFrame(rows))
