"""Cells of a column as texts, numbers and booleans; what is wrong with one, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from . import quantities
from .quantities import Spelling
from .reading import TableError, is_missing

if TYPE_CHECKING:
    import pandas as pd

TRUTHS = {"true": 1.0, "false": 0.0}  # in any case
LARGEST = 1e150  # of a number, so that its square is one
WHOLE = re.compile(r"[-+]?\d+\.0*")
DAY = 86400.0


def holds_texts(values: pd.Series) -> bool:
    """Whether a column may hold texts: pandas has a type for them, or they are objects among others."""
    import pandas as pd

    return bool(pd.api.types.is_object_dtype(values) or pd.api.types.is_string_dtype(values))


def mapped(values: pd.Series, function: Callable[[Any], Any]) -> pd.Series:
    """The function of every value, None for missing ones; called once for each different text."""
    import pandas as pd

    if pd.api.types.infer_dtype(values, skipna=True) == "string":
        codes, unique = pd.factorize(values)
        results = np.empty(len(unique) + 1, dtype=object)
        results[:-1] = [function(value) for value in unique]
        return pd.Series(results[codes], index=values.index, dtype=object)
    # not by their different values: True and 1 are equal and are two texts
    absent = values.isna().to_numpy()
    results = [None if gone else function(value) for value, gone in zip(values, absent)]
    return pd.Series(results, index=values.index, dtype=object)


def cleaned(values: pd.Series) -> pd.Series:
    """Texts without blanks around them, and None for those that mean a missing value; all else as it is."""
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)
    if not holds_texts(values):
        return values

    def clean(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        return None if is_missing(text) else text

    return mapped(values, clean)


def texts(values: pd.Series) -> pd.Series:
    """The column as texts, None for missing values; a whole number has no decimal point, however it was stored."""

    def text(value: Any) -> str | None:
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            return str(int(value))
        shown = str(value).strip()
        if is_missing(shown):
            return None
        return shown.partition(".")[0] if WHOLE.fullmatch(shown) else shown

    return mapped(values, text)


def parsed(values: pd.Series, spelling: Spelling | None) -> np.ndarray:
    """Cleaned cells as float64: NaN for missing values and for all that is no number in this spelling. A length of time is
    a number of days."""
    import pandas as pd

    if pd.api.types.is_timedelta64_dtype(values):
        return np.asarray(values.dt.total_seconds(), dtype=np.float64) / DAY
    if pd.api.types.is_numeric_dtype(values):
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    if not holds_texts(values):  # dates and the like
        return np.full(len(values), np.nan)
    if spelling is None:
        return np.asarray(pd.to_numeric(values, errors="coerce"), dtype=np.float64)

    def number(value: Any) -> float:
        if isinstance(value, str):
            return quantities.number(value, spelling)
        return float(np.asarray(pd.to_numeric(pd.Series([value], dtype=object), errors="coerce"))[0])

    return np.asarray(mapped(values, number), dtype=np.float64)


def numbers(
    column: str, values: pd.Series, *, spelling: Spelling | None = None, codes: Collection[str] = (), hint: str = ""
) -> np.ndarray:
    """The column as float64 with NaN for missing values and for `codes`, or a `TableError` that names the first row that
    is no number."""
    values = cleaned(values)
    converted = parsed(values, spelling)
    absent = (values.isna() | values.isin(list(codes))).to_numpy() if codes else values.isna().to_numpy()
    unit = f" in {spelling.unit}" if spelling is not None and spelling.unit else ""
    _raise_where(np.isnan(converted) & ~absent, column, values, f"a number{unit}", hint)
    _raise_where(np.isinf(converted), column, values, "a finite number", "")
    _raise_where(np.abs(converted) > LARGEST, column, values, f"a number up to {LARGEST:g} in size", "")
    return converted


def booleans(column: str, values: pd.Series) -> np.ndarray:
    """1 for what is true, 0 for what is not, NaN for missing values; `True`, `true` and 1 are the same."""
    import pandas as pd

    values = cleaned(values)
    if pd.api.types.is_numeric_dtype(values):
        converted = values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        converted = np.asarray(mapped(values, lambda value: TRUTHS.get(text_of(value), np.nan)), dtype=np.float64)
    wrong = ~np.isin(converted, (0.0, 1.0)) & values.notna().to_numpy()
    _raise_where(wrong, column, values, "true or false", "")
    return converted


def text_of(value: Any) -> str:
    """A truth as a text: 1 and 1.0 are true as well.

    >>> text_of(True), text_of("TRUE"), text_of(0), text_of("no")
    ('true', 'true', 'false', 'no')
    """
    return {"1": "true", "0": "false", "1.0": "true", "0.0": "false"}.get(str(value), str(value).lower())


def _raise_where(wrong: np.ndarray, column: str, values: pd.Series, expected: str, hint: str) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        raise TableError(
            f"row {values.index[at]}, column {column!r}: expected {expected}, got {short(values.iloc[at])}{hint}"
        )


def short(value: Any) -> str:
    """A value as it is shown in a sentence."""
    shown = repr(value.item() if isinstance(value, np.generic) else value)
    return shown if len(shown) <= 40 else shown[:37] + "...'"
