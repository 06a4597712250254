"""The columns of a table as the inputs of a network: one class for each kind of column, and the `Preparation` of a table.

All of it is plain numbers and texts. The same preparation serves the estimators, which make it of a data frame, and
`closedform train` and `closedform predict`; `choosing` says what a column is taken for.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from . import cells, times
from .quantities import Spelling
from .reading import TableError

if TYPE_CHECKING:
    import pandas as pd

ABSENT = "(missing)"  # the value of a category where there is none


@dataclass
class NumberColumn:
    """A number. A missing one becomes the median, with a second input that says so if there were any in training. A text
    that stands for a number, such as "sold", is a missing one with an input of its own."""

    kind: ClassVar[str] = "number"
    name: str
    median: float
    gaps: bool = False
    spelling: Spelling | None = None  # None for numbers as Python writes them
    codes: list[str] = field(default_factory=list)  # texts in place of numbers

    @property
    def width(self) -> int:
        return 1 + self.gaps + len(self.codes)

    def inputs(self, values: pd.Series) -> np.ndarray:
        inputs = _filled(cells.numbers(self.name, values, spelling=self.spelling, codes=self.codes), self)
        if not self.codes:
            return inputs
        values = cells.cleaned(values)
        return np.column_stack([inputs, *((values == code).to_numpy(dtype=np.float64) for code in self.codes)])

    def description(self) -> str:
        parts = ["number"]
        if self.spelling is not None:
            parts.append(f"in {self.spelling.unit}" if self.spelling.unit else "written as text")
            parts += ["with a decimal comma"] * (self.spelling.decimal == ",")
        if self.codes:
            parts.append(f"or {', '.join(map(repr, self.codes))}")
        return ", ".join(parts + _gap_words(self.gaps))

    def check(self) -> None:
        _check_list_of_texts("codes", self.codes)
        _check_fill(self)
        if self.spelling is not None and (
            not isinstance(self.spelling.unit, str) or self.spelling.decimal not in (".", ",")
        ):
            raise ValueError(f"the spelling of {self.name!r} is {self.spelling}")


@dataclass
class BooleanColumn:
    """True or false, as 1 and 0."""

    kind: ClassVar[str] = "boolean"
    name: str
    median: float
    gaps: bool = False

    @property
    def width(self) -> int:
        return 1 + self.gaps

    def inputs(self, values: pd.Series) -> np.ndarray:
        return _filled(cells.booleans(self.name, values), self)

    def description(self) -> str:
        return ", ".join(["true or false", *_gap_words(self.gaps)])

    def check(self) -> None:
        _check_fill(self)


@dataclass
class TimeColumn:
    """A date or time, as those parts of the calendar that tell the times in training apart. The median is in years since
    2000, for missing times."""

    kind: ClassVar[str] = "time"
    name: str
    format: str
    parts: list[str]
    median: float
    gaps: bool = False
    codes: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        return sum(times.WIDTHS[part] for part in self.parts) + self.gaps

    def inputs(self, values: pd.Series) -> np.ndarray:
        values = cells.cleaned(values)
        parsed = times.parsed(values, self.format)
        lost = np.isnat(parsed) & values.notna().to_numpy() & ~values.isin(self.codes).to_numpy()
        if lost.any():
            row = int(np.argmax(lost))
            raise TableError(
                f"row {values.index[row]}, column {self.name!r}: expected a date or time such as those trained on "
                f"({self.format}), got {cells.short(values.iloc[row])}"
            )
        inputs = times.calendar(parsed, self.parts)
        inputs[np.isnat(parsed), 0] = self.median
        return np.column_stack([inputs, np.isnat(parsed)]) if self.gaps else inputs

    def description(self) -> str:
        words = "date or time: " + ", ".join(times.WORDS[part] for part in self.parts)
        if self.format in times.CLOCKS:
            words = "time of day"
        return ", ".join([words, *_gap_words(self.gaps)])

    def check(self) -> None:
        _check_list_of_texts("codes", self.codes)
        _check_list_of_texts("parts", self.parts)
        _check_fill(self)
        if not set(self.parts) <= set(times.WIDTHS) or self.parts[:1] != ["trend"] or self.format not in times.FORMATS:
            raise ValueError(f"the times of {self.name!r} have the format {self.format!r:.40} and parts {self.parts}")


@dataclass
class CategoryColumn:
    """One of some texts: an input for each frequent one. A rare or unknown one has zeros in all of them."""

    kind: ClassVar[str] = "category"
    name: str
    values: list[str]
    rare: int = 0  # how many other values there were in training

    @property
    def width(self) -> int:
        return len(self.values)

    def inputs(self, values: pd.Series) -> np.ndarray:
        import pandas as pd

        texts = cells.texts(values).fillna(ABSENT)
        places = pd.Index(self.values, dtype=object).get_indexer(pd.Index(texts, dtype=object))
        inputs = np.zeros((len(places), self.width))
        known = np.flatnonzero(places >= 0)
        inputs[known, places[known]] = 1.0
        return inputs

    def description(self) -> str:
        some = f"the {self.width} most frequent of {self.width + self.rare}" if self.rare else str(self.width)
        return f"category, {some} values"

    def check(self) -> None:
        _check_list_of_texts("values", self.values)
        if not self.values or self.values != sorted(set(self.values)) or not _is_count(self.rare):
            raise ValueError(f"the values of {self.name!r} must be different texts in their order")


@dataclass
class LeftOut:
    """A column that is not looked at, and why."""

    kind: ClassVar[str] = "left out"
    name: str
    reason: str

    @property
    def width(self) -> int:
        return 0

    def description(self) -> str:
        return f"left out: {self.reason}"

    def check(self) -> None:
        if not isinstance(self.reason, str):
            raise ValueError(f"the reason for leaving {self.name!r} out is no text")


Column = NumberColumn | BooleanColumn | TimeColumn | CategoryColumn | LeftOut
KINDS: dict[str, type[Column]] = {
    kind.kind: kind for kind in (NumberColumn, BooleanColumn, TimeColumn, CategoryColumn, LeftOut)
}

AnyColumn = TypeVar("AnyColumn", NumberColumn, BooleanColumn, TimeColumn, CategoryColumn, LeftOut)


@dataclass
class Preparation:
    """What each column of a table was taken for, and so how a table becomes an array of numbers.

    Columns are taken by their places, as scikit-learn does it, or `by_name`: then they may come in any order and among
    others, and those that are left out need not be there."""

    columns: list[Column]
    by_name: bool = False
    remarks: list[str] = field(default_factory=list)  # what a reader should know about the columns; not in files

    @property
    def used(self) -> list[str]:
        """The names of the columns that are looked at."""
        return [column.name for column in self.columns if not isinstance(column, LeftOut)]

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def blocks(self) -> list[tuple[str, slice]]:
        """Each used column's name, and the inputs that it becomes."""
        ends = np.cumsum([column.width for column in self.columns]).tolist()
        return [(c.name, slice(end - c.width, end)) for c, end in zip(self.columns, ends) if c.width]

    def transform(self, table: pd.DataFrame) -> np.ndarray:
        """The table as an array `(n, width)` of finite numbers; a `TableError` where a cell is not what it should be."""
        parts = []
        for place, column in enumerate(self.columns):
            if not isinstance(column, LeftOut):
                parts.append(column.inputs(table[column.name] if self.by_name else table.iloc[:, place]))
        return np.concatenate(parts, 1)

    def descriptions(self) -> dict[str, str]:
        """What each column was taken for, in words."""
        return {column.name: column.description() for column in self.columns}

    def summary(self) -> dict[str, list[str]]:
        """The names of the columns by what they were taken for, with a word where it is not plain."""
        groups = {
            "numbers": [_with(c.name, c.spelling.unit if c.spelling else "") for c in self._of(NumberColumn)],
            "true or false": [c.name for c in self._of(BooleanColumn)],
            "dates and times": [c.name for c in self._of(TimeColumn)],
            "categories": [_with(c.name, f"{c.width + c.rare} values") for c in self._of(CategoryColumn)],
            "left out": [c.name for c in self._of(LeftOut)],
        }
        return {kind: names for kind, names in groups.items() if names}

    def _of(self, kind: type[AnyColumn]) -> list[AnyColumn]:
        return [column for column in self.columns if isinstance(column, kind)]

    def to_json(self) -> dict[str, Any]:
        columns = [{"kind": column.kind, **asdict(column)} for column in self.columns]
        return {"columns": columns, "by_name": self.by_name}

    @staticmethod
    def from_json(body: Any) -> Preparation:
        """The inverse of `to_json`; a ValueError where it is no preparation."""
        if not isinstance(body, dict) or set(body) != {"columns", "by_name"} or not isinstance(body["by_name"], bool):
            raise ValueError(f"a preparation is columns and by_name, got {str(body)[:60]}")
        if not isinstance(body["columns"], list):
            raise ValueError(f"columns must be a list, got {str(body['columns'])[:60]}")
        preparation = Preparation([_column(entry) for entry in body["columns"]], body["by_name"])
        names = [column.name for column in preparation.columns]
        if not preparation.used or (preparation.by_name and len(set(names)) < len(names)):
            raise ValueError("no columns, or one of them twice")
        return preparation


def _column(entry: Any) -> Column:
    if not isinstance(entry, dict) or entry.get("kind") not in list(KINDS):
        raise ValueError(f"a column is one of {', '.join(KINDS)}, got {str(entry)[:60]}")
    kind = KINDS[entry["kind"]]
    settings = {name: value for name, value in entry.items() if name != "kind"}
    if set(settings) != {f.name for f in fields(kind)} or not isinstance(settings["name"], str):
        raise ValueError(f"a column of kind {kind.kind} with {', '.join(map(str, settings))}")
    if settings.get("spelling") is not None:
        settings["spelling"] = Spelling(**settings["spelling"])
    column = kind(**settings)
    column.check()
    return column


def _with(name: str, word: str) -> str:
    return f"{name} ({word})" if word else name


def _filled(numbers: np.ndarray, column: NumberColumn | BooleanColumn) -> np.ndarray:
    absent = np.isnan(numbers)
    filled = np.where(absent, column.median, numbers)
    return np.column_stack([filled, absent]) if column.gaps else filled[:, None]


def _gap_words(gaps: bool) -> list[str]:
    return ["some missing"] if gaps else []


def _check_fill(column: NumberColumn | BooleanColumn | TimeColumn) -> None:
    median = column.median
    if not isinstance(median, (int, float)) or isinstance(median, bool) or not math.isfinite(median):
        raise ValueError(f"the median of {column.name!r} must be a finite number, got {str(median)[:40]}")
    if not isinstance(column.gaps, bool):
        raise ValueError(f"gaps of {column.name!r} must be true or false, got {str(column.gaps)[:40]}")


def _check_list_of_texts(name: str, values: Any) -> None:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} must be a list of texts, got {str(values)[:40]}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
