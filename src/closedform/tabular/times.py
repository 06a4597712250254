"""Dates and times of a column: how they are written, and what of the calendar they become.

A time becomes a trend (years as one number), its day of the week and its month (a column each), its place in the year and
its hour (both as sines and cosines, so that December is beside January and 23:59 beside 0:00).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .cells import holds_texts, mapped

if TYPE_CHECKING:
    import pandas as pd

ISO = "ISO8601"
DATES = (
    "%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%d-%m-%Y", "%m-%d-%Y",
    "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y", "%d-%b-%Y", "%d-%b-%y", "%b %Y", "%B %Y",
    "%b-%Y", "%b-%y", "%Y%m%d",
)  # fmt: skip
CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
FORMATS = (ISO, *DATES, *(f"{date} {clock}" for date in DATES for clock in CLOCKS), *CLOCKS)
SOME = 20  # texts that are looked at to find a format
ORIGIN = np.datetime64("2000-01-01", "us")
YEAR = 365.2425  # days
WIDTHS = {"trend": 1, "weekday": 7, "month": 12, "season": 4, "hour": 4}  # how many inputs a part becomes
WORDS = {
    "trend": "a trend in years",
    "weekday": "day of the week",
    "month": "month",
    "season": "place in the year",
    "hour": "hour",
}


def formats(texts: Sequence[str]) -> list[str]:
    """The formats in which one of the first of these texts is a date or time; a plain number is none.

    >>> formats(["unknown", "3.4.2024"]), formats(["20240403"]), formats(["03/04/2024 17:05"])
    (['%d.%m.%Y'], [], ['%m/%d/%Y %H:%M', '%d/%m/%Y %H:%M'])
    """
    some = [text for text in texts[:SOME] if any(c.isdigit() for c in text) and not text.isdigit()]
    return [form for form in FORMATS if any(_reads(text, form) for text in some)]


def _reads(text: str, form: str) -> bool:
    if form == ISO:
        head = text[:5].replace("/", "-")
        return len(text) >= 7 and head[:4].isdigit() and head[4] == "-" and not np.isnat(parsed_texts([text], ISO)[0])
    try:
        datetime.datetime.strptime(text, form)
    except ValueError:
        return False
    return True


def parsed_texts(texts: Sequence[str], form: str) -> np.ndarray:
    """Times of these texts as numpy has them, NaT for all that is none in this format. A time with a zone is taken in
    UTC."""
    import pandas as pd

    times = pd.to_datetime(pd.Series(list(texts), dtype=object), format=form, errors="coerce", utc=True)
    return times.dt.tz_localize(None).to_numpy().astype("datetime64[us]")


def parsed(values: pd.Series, form: str) -> np.ndarray:
    """Cleaned cells as times; NaT for missing values and for all that is no time in this format (or in ISO's, which is how
    a table in Python and one from a file agree)."""
    import pandas as pd

    if isinstance(values.dtype, pd.PeriodDtype):
        values = values.dt.to_timestamp()
    if isinstance(values.dtype, pd.DatetimeTZDtype):
        values = values.dt.tz_convert("UTC").dt.tz_localize(None)
    if pd.api.types.is_datetime64_any_dtype(values):
        return values.to_numpy().astype("datetime64[us]")
    if not holds_texts(values):
        values = values.astype(object)
    codes, different = pd.factorize(mapped(values, _text))
    different = np.asarray(different)
    times = parsed_texts(different.tolist(), form)
    lost = np.isnat(times)
    if lost.any() and form != ISO:
        times[lost] = parsed_texts(different[lost].tolist(), ISO)
    return np.append(times, np.datetime64("NaT", "us"))[codes]  # -1 is a missing value


def _text(value: object) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.0f}"  # 20240131.0, where other rows are missing
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    return str(value)


def days(times: np.ndarray) -> np.ndarray:
    """Days since the first of January 2000, NaN for NaT.

    >>> days(np.array(["2000-01-02T12:00", "NaT"], dtype="datetime64[us]")).tolist()
    [1.5, nan]
    """
    passed = (times - ORIGIN).astype("timedelta64[us]")
    return np.where(np.isnat(passed), np.nan, passed.astype(np.int64) / 86400e6)


def parts_of(times: np.ndarray) -> list[str]:
    """The parts of the calendar that can tell these times apart: no day of the week in two weeks or where every time is of
    the same day of its month, no season in less than a year, no hour where all have the same."""
    times = times[~np.isnat(times)]
    day = days(times)
    if not len(day) or np.ptp(day) == 0:
        return []
    span = np.ptp(day)
    parts = ["trend"]
    if span >= 14 and len(np.unique(_day_of_month(times))) > 1:
        parts.append("weekday")
    if span >= YEAR:
        parts += ["month", "season"]
    if np.ptp(day % 1) > 0:
        parts.append("hour")
    return parts


def _day_of_month(times: np.ndarray) -> np.ndarray:
    return (times.astype("datetime64[D]") - times.astype("datetime64[M]")).astype(np.int64)


def calendar(times: np.ndarray, parts: Sequence[str]) -> np.ndarray:
    """The parts as columns, `(n, inputs)`; NaN in the trend and zeros in the others for NaT.

    >>> calendar(np.array(["2000-01-03T06:00"], dtype="datetime64[us]"), ["weekday", "hour"]).round(6).tolist()
    [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, -1.0]]
    """
    day = days(times)
    absent = np.isnan(day)
    filled = np.where(absent, 0.0, day)
    known = np.where(absent, ORIGIN, times)
    month = known.astype("datetime64[M]").astype(np.int64) % 12
    in_year = (known.astype("datetime64[D]") - known.astype("datetime64[Y]")).astype(np.int64) + filled % 1
    blocks = {
        "trend": lambda: day[:, None] / YEAR,
        "weekday": lambda: np.eye(7)[(np.floor(filled).astype(np.int64) + 5) % 7],  # 2000 began on a Saturday
        "month": lambda: np.eye(12)[month],
        "season": lambda: _waves(in_year / YEAR),
        "hour": lambda: _waves(filled % 1),
    }
    columns = []
    for part in parts:
        block = blocks[part]()
        if part != "trend":
            block = np.where(absent[:, None], 0.0, block)
        columns.append(block)
    return np.concatenate(columns, 1)


def _waves(phase: np.ndarray) -> np.ndarray:
    """Two harmonics of a phase from 0 to 1, `(n, 4)`."""
    angles = 2 * np.pi * phase[:, None] * np.array([1, 2])
    return np.stack([np.sin(angles), np.cos(angles)], 2).reshape(len(phase), 4)
