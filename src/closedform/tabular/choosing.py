"""What each column of a table is taken for: a number, true or false, a date or time, a category, or nothing.

The type of a column decides where it has one. Texts are looked at: they are numbers, dates or categories, and what is not
plain is said in a remark.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from . import cells, quantities, times
from .columns import ABSENT, BooleanColumn, CategoryColumn, Column, LeftOut, NumberColumn, Preparation, TimeColumn
from .quantities import Spelling
from .reading import TableError, is_number

if TYPE_CHECKING:
    import pandas as pd

MOST = 64  # values of a category that get an input; rarer ones share the absence of all
LEAST = 2  # rows that a value must have
NEARLY = 0.9  # the share of numbers from which on a text among them is taken for a mistake
PARTLY = 0.25  # and from which on they are mentioned
CODES = 10  # different texts that may stand in place of numbers or times
SAMPLE = 2000  # texts of a long column that are looked at first
ROWS_OF_IDS = 20  # fewer different whole numbers prove nothing
ID_NAME = re.compile(
    r"(?i:(?:^|[\W_])(?:id|ids|uid|uuid|guid|key|index|idx|nr|no|row)$)|(?<=[a-z])(?:Id|ID|Key|Nr|No)$"
)
DAY_NUMBERS = 19000101, 21001231  # 20240131 is a day


def choose(
    table: pd.DataFrame,
    *,
    rows: np.ndarray | None = None,
    categorical: Collection[str] = (),
    ignored: Collection[str] = (),
    hint: str = "",
    by_name: bool = False,
) -> Preparation:
    """The preparation of a table, with its remarks. The whole table says what a column is, so that a mistake in any row is
    an error; medians, frequent values and parts of the calendar come from `rows`, those to train on. `hint` ends an error
    about a column, with its name in place of `{}`."""
    rows = np.arange(len(table)) if rows is None else rows
    preparation = Preparation([], by_name)
    for place, name in enumerate(map(str, table.columns)):
        if name in ignored:
            preparation.columns.append(LeftOut(name, "as you asked"))
            continue
        chooser = _Chooser(name, table.iloc[:, place], rows, hint.format(name))
        column = chooser.as_category() if name in categorical else chooser.column()
        preparation.columns.append(column)
        preparation.remarks += [f"column {name!r} {remark}" for remark in chooser.remarks]
        if isinstance(column, LeftOut):
            preparation.remarks.append(f"column {name!r} is left out: {column.reason}")
    if not preparation.used:
        reasons = [f"{name!r} is {words}" for name, words in preparation.descriptions().items()]
        more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        raise TableError(f"no column is left to predict from: {', '.join(reasons[:3])}{more}")
    return preparation


def written_numbers(values: pd.Series) -> tuple[bool, Spelling | None]:
    """Whether a column, such as the target, is one of numbers or nearly so, and how they are written."""
    chooser = _Chooser("", values, np.arange(len(values)), "")
    if not cells.holds_texts(chooser.values):
        import pandas as pd

        return bool(pd.api.types.is_numeric_dtype(chooser.values)), None
    present = chooser.values.dropna()
    spelling, good = chooser.numbers_among(present)
    return bool(len(present)) and float(good.mean()) >= NEARLY, spelling


class _Chooser:
    """One column, and what is remarked about it."""

    def __init__(self, name: str, values: pd.Series, rows: np.ndarray, hint: str):
        self.name, self.rows, self.hint = name, rows, hint
        self.type = values.dtype
        self.values = cells.cleaned(values)
        self.remarks: list[str] = []

    def column(self) -> Column:
        import pandas as pd

        values = self.values
        if values.isna().all():
            return LeftOut(self.name, "all its values are missing")
        if isinstance(self.type, pd.CategoricalDtype):
            return self.as_category()
        if isinstance(self.type, pd.PeriodDtype) or pd.api.types.is_datetime64_any_dtype(values):
            return self.as_time(times.ISO, [])
        if pd.api.types.is_complex_dtype(values):
            raise TableError(f"column {self.name!r} holds complex numbers; expected real ones")
        inferred = pd.api.types.infer_dtype(values, skipna=True)
        if inferred == "boolean":
            return self.as_boolean()
        if inferred in ("date", "datetime", "datetime64"):
            return self.as_time(times.ISO, [])
        if not cells.holds_texts(values) or inferred in ("integer", "floating", "mixed-integer-float", "decimal"):
            return self.as_day_number() or self.as_number(None, [])
        return self.of_texts(inferred)

    def of_texts(self, inferred: str) -> Column:
        present = self.values.dropna()
        if inferred != "string":
            bad = next((v for v in present if isinstance(v, (list, dict, set, tuple, np.ndarray))), None)
            if bad is not None:
                raise TableError(f"column {self.name!r} holds {type(bad).__name__}; expected one number or text a row")
            present = cells.texts(present)
        some = present.iloc[:: len(present) // SAMPLE + 1]  # what is not near to numbers or times in some, is in none
        column = None
        if set(some.str.lower()) <= set(cells.TRUTHS) and set(present.str.lower()) <= set(cells.TRUTHS):
            return self.as_boolean()
        if np.mean([quantities.is_quantity(text) for text in some]) >= PARTLY / 2:
            column = self.as_day_number() or self.number_among_texts(present)
        return column or self.time_among_texts(present, some) or self.as_category()

    # ---- Numbers ---------------------------------------------------------------------------------

    def numbers_among(self, present: pd.Series) -> tuple[Spelling | None, np.ndarray]:
        """How the numbers of the texts are written, and which of them are numbers."""
        plain = ~np.isnan(cells.parsed(present, None))
        others = [text for text in present[~plain].unique() if isinstance(text, str)]
        if not any(map(quantities.is_quantity, others)):
            return None, plain
        spelling = quantities.spelling(list(filter(quantities.is_quantity, cells.texts(present).unique())))
        return spelling, plain if spelling is None else ~np.isnan(cells.parsed(present, spelling))

    def number_among_texts(self, present: pd.Series) -> Column | None:
        spelling, good = self.numbers_among(present)
        share = float(good.mean())
        codes = self.codes(present, good)
        if share >= 0.5 and codes is not None:
            if spelling is not None:
                unit = f", in {spelling.unit}" if spelling.unit else ""
                comma = " with a decimal comma" if spelling.decimal == "," else ""
                example = next(t for t in present if not is_number(t) and t not in codes)
                self.remarks.append(f"holds texts such as {cells.short(example)}: taken as numbers{comma}{unit}")
            if codes:
                listed = ", ".join(map(repr, codes))
                each = "have inputs of their own" if len(codes) > 1 else "has an input of its own"
                self.remarks.append(f"is one of numbers, in which {listed} {each}")
            return self.as_number(spelling, codes)
        if share >= NEARLY:
            return self.as_number(spelling, [])  # which names the row that is none
        near = cells.mapped(present, quantities.is_quantity).to_numpy(dtype=bool)
        if near.mean() >= PARTLY:
            units = quantities.units(present.unique().tolist())
            odd = present[~near]
            if len(units) > 1 and near.mean() >= NEARLY:
                reason = f"numbers with different units ({', '.join(map(repr, units[:3]))})"
            elif len(odd):
                reason = f"numbers, but also texts such as {cells.short(odd.iloc[0])}"
            else:
                reason = "numbers in different spellings"
            self.remarks.append(f"holds {reason}: taken as categories; write one number a cell to have numbers")
        return None

    def codes(self, present: pd.Series, good: np.ndarray) -> list[str] | None:
        """The texts that are no numbers or times, where they are few words that come again and again, such as "sold"; None
        where they are not."""
        counts = present[~good].value_counts()
        if len(counts) > CODES or (counts < LEAST).any():
            return None
        return sorted(map(str, counts.index))

    def as_number(self, spelling: Spelling | None, codes: list[str]) -> Column:
        everything = cells.numbers(self.name, self.values, spelling=spelling, codes=codes, hint=self.hint)
        numbers = everything[self.rows]
        known = numbers[~np.isnan(numbers)]
        reason = self.says_nothing(known, len(numbers))
        if reason:
            return LeftOut(self.name, reason)
        if spelling is None and not codes:
            self.remark_on_ids(everything[~np.isnan(everything)])
        return NumberColumn(self.name, float(np.median(known)), len(known) < len(numbers), spelling, codes)

    def as_day_number(self) -> Column | None:
        """Days such as 20240131, if all numbers are: hardly one of thirty numbers is such a day by chance."""
        numbers = cells.parsed(self.values, None)
        numbers = np.unique(numbers[~np.isnan(numbers)])
        low, high = DAY_NUMBERS
        if len(numbers) < 5 or numbers[0] < low or numbers[-1] > high or (numbers % 1 != 0).any():
            return None
        if np.isnat(times.parsed_texts([f"{number:.0f}" for number in numbers], "%Y%m%d")).any():
            return None
        self.remarks.append(f"holds numbers such as {numbers[0]:.0f}: taken as days of a calendar")
        return self.as_time("%Y%m%d", [])

    def as_boolean(self) -> Column:
        truths = cells.booleans(self.name, self.values)[self.rows]
        known = truths[~np.isnan(truths)]
        reason = self.says_nothing(known, len(truths))
        if reason:
            return LeftOut(self.name, reason)
        return BooleanColumn(self.name, float(np.median(known) > 0.5), len(known) < len(truths))

    def says_nothing(self, known: np.ndarray, count: int) -> str:
        """Why a column is of no use, if it is of none; where values are missing, that they are may be of use."""
        if not len(known):
            return "all its values are missing in the rows to train on"
        if len(known) == count and (known == known[0]).all():
            return "all its values are equal"
        return ""

    def remark_on_ids(self, known: np.ndarray) -> None:
        different = np.unique(known)
        if len(different) < ROWS_OF_IDS or (different % 1 != 0).any():
            return
        counts_on = len(different) == len(known) and different[-1] - different[0] == len(different) - 1
        if counts_on or ID_NAME.search(self.name):
            why = "counts the rows" if counts_on else "has the name of an identifier"
            self.remarks.append(f"{why} and is taken as a number: leave it out unless its size means something")

    # ---- Times and categories --------------------------------------------------------------------

    def time_among_texts(self, present: pd.Series, some: pd.Series) -> Column | None:
        shares = {}
        for form in times.formats(some.unique().tolist()):
            if (~np.isnat(times.parsed(some, form))).mean() >= 0.4:
                shares[form] = float((~np.isnat(times.parsed(present, form))).mean())
        best = max(shares.values(), default=0.0)
        if best < 0.5:
            return None
        forms = [form for form, share in shares.items() if share == best]
        form = forms[0]
        good = ~np.isnat(times.parsed(present, form))
        codes = self.codes(present, good)
        if codes is None and best < NEARLY:
            self.remarks.append(
                f"holds dates, but also texts such as {cells.short(present[~good].iloc[0])}: taken as categories"
            )
            return None
        if "%m" in form and any(other != form and sorted(other) == sorted(form) for other in forms):
            first = "month" if form.index("%m") < form.index("%d") else "day"
            self.remarks.append(
                f"holds dates such as {cells.short(present.iloc[0])}: the {first} is taken to come first"
            )
        if codes:
            self.remarks.append(f"is one of dates: {', '.join(map(repr, codes))} taken as missing")
        return self.as_time(form, codes or [])

    def as_time(self, form: str, codes: list[str]) -> Column:
        column = TimeColumn(self.name, form, ["trend"], 0.0, codes=codes)
        column.inputs(self.values)  # an error for a cell that is no time
        taken = times.parsed(self.values, form)[self.rows]
        known = taken[~np.isnat(taken)]
        reason = self.says_nothing(known, len(taken))
        if reason:
            return LeftOut(self.name, reason)
        parts = times.parts_of(known) or ["trend"]
        median = float(np.median(times.days(known)) / times.YEAR)
        return TimeColumn(self.name, form, parts, median, len(known) < len(taken), codes)

    def as_category(self) -> Column:
        counts = cells.texts(self.values).fillna(ABSENT).iloc[self.rows].value_counts()
        frequent = counts[counts >= LEAST]
        if len(counts) == 1:
            return LeftOut(self.name, "all its values are equal")
        if len(frequent) < 2:
            return LeftOut(self.name, "nearly all its values are different, as those of an identifier or free text")
        values = sorted(frequent.index[:MOST].tolist())
        return CategoryColumn(self.name, values, len(set(counts.index) - {ABSENT, *values}))
