"""What the columns of a table are taken for, and what becomes of them: numbers, dates, categories, and what is between."""

import datetime
import json
import math
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("pandas")

import pandas as pd

from closedform.tabular import cells, choosing, quantities, times
from closedform.tabular.columns import Preparation
from closedform.tabular.quantities import Spelling
from closedform.tabular.reading import TableError

from .table_cases import everyday

# ---- Numbers as people write them ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected", "spelling"),
    [
        (["94.7 m²", "80 m2", "7m^2"], [94.7, 80, 7], Spelling("m²")),
        (["$1,200", "$950", "-$3.50", "$1.2M"], [1200, 950, -3.5, 1.2e6], Spelling("$")),
        (["45 %", "7.5%", "100"], [45, 7.5, 100], Spelling("%")),
        (["1.234,50 €", "0,25 €", "12 €"], [1234.5, 0.25, 12], Spelling("€", ",")),
        (["1,500", "2,500"], [1500, 2500], Spelling()),
        (["1,500", "2,50"], [1.5, 2.5], Spelling("", ",")),  # one comma is decimal, so all are
        (["12 sq ft", "9 sq ft"], [12, 9], Spelling("sq ft")),
        (["0,25", "1,5", "2"], [0.25, 1.5, 2], Spelling("", ",")),
        (["1.234.567", "1.200"], [1234567, 1200], Spelling("", ",")),
        (["1,234.5", "1,200"], [1234.5, 1200], Spelling()),
        (["1,234.5", "1.234,5"], None, None),
        (["12 500", "1 000"], [12500, 1000], Spelling()),
        (["1'000.5", "999"], [1000.5, 999], Spelling()),
        (["1e3 kg", "2.5e-3 kg"], [1000, 0.0025], Spelling("kg")),
        (["1 bedroom", "3 bedrooms"], [1, 3], Spelling("bedroom")),
        (["EUR 1,200", "EUR 3"], [1200, 3], Spelling("EUR")),
        (["(1,200)", "300"], [-1200, 300], Spelling()),
        (["60 km/h", "100 km/h"], [60, 100], Spelling("km/h")),
        (["21.5 °C", "-3 °C", "\u22124 °C"], [21.5, -3, -4], Spelling("°C")),
        (["5 km", "300 m"], None, None),
        (["3 kB", "4 MB"], None, None),
    ],
)
def test_quantities(texts, expected, spelling):
    assert quantities.spelling(texts) == spelling
    if expected is not None:
        assert [quantities.number(text, spelling) for text in texts] == expected
        assert all(map(quantities.is_quantity, texts))
    else:
        column = pd.DataFrame({"a": texts * 5, "b": range(5 * len(texts))})
        assert not all(c.kind == "number" for c in choosing.choose(column).columns)


@pytest.mark.parametrize(
    "text", ["A12", "10-19", "1.2.3", "north", "3rd of May", "12:30", "2024-01-31", "1,2,3", "", "$", "+"]
)
def test_what_is_no_quantity(text):
    assert not quantities.is_quantity(text)
    assert math.isnan(quantities.number(text, Spelling()))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([f"{k}.5 m²" for k in range(40)], "number"),
        ([f"${k},200" for k in range(1, 41)], "number"),
        ([f"{k} %" for k in range(40)], "number"),
        ([f"{k},5" for k in range(40)], "number"),
        ([f"{k}" for k in range(30)] + ["sold"] * 10, "number"),
        ([f"{k}" for k in range(30)] + ["sold"] * 5 + ["on request"] * 5, "number"),
        ([f"{k % 7} {'km' if k % 2 else 'm'}" for k in range(40)], "category"),
        ([f"{k % 7}" if k % 3 else "abcdefghijklmnop"[k % 16] for k in range(60)], "category"),
        ([f"{k % 2}-9" if k % 3 else "17" for k in range(40)], "category"),
    ],
)
def test_text_that_is_nearly_numbers_is_never_silently_a_category(values, kind):
    table = pd.DataFrame({"a": values, "b": np.linspace(0, 1, len(values))})
    preparation = choosing.choose(table)
    assert preparation.columns[0].kind == kind
    assert len(preparation.remarks) >= 1
    assert all(remark.startswith("column 'a'") for remark in preparation.remarks)


def test_a_word_among_numbers_has_an_input_of_its_own():
    table = pd.DataFrame({"a": [str(k) for k in range(30)] + ["sold"] * 10})
    preparation = choosing.choose(table)
    inputs = preparation.transform(table)
    assert np.array_equal(inputs[:30], np.column_stack([np.arange(30), np.zeros((30, 2))]))
    assert np.array_equal(inputs[30:], np.tile([14.5, 1.0, 1.0], (10, 1)))
    assert preparation.transform(pd.DataFrame({"a": [None, "3"]})).tolist() == [[14.5, 1, 0], [3, 0, 0]]
    with pytest.raises(TableError, match="row 0, column 'a': expected a number, got 'lost'"):
        preparation.transform(pd.DataFrame({"a": ["lost"]}))


def test_a_unit_that_was_not_trained_on_is_an_error():
    preparation = choosing.choose(pd.DataFrame({"a": ["5 km", "7 km", "9 km"]}))
    assert preparation.transform(pd.DataFrame({"a": ["6 KM", "6", None]}))[:, 0].tolist() == [6, 6, 7]
    with pytest.raises(TableError, match="expected a number in km, got '300 m'"):
        preparation.transform(pd.DataFrame({"a": ["6 km", "300 m"]}))


# ---- Dates and times -----------------------------------------------------------------------------

DAYS = pd.date_range("2021-03-28", periods=500, freq="D")


@pytest.mark.parametrize(
    "form",
    ["%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d %b %Y", "%B %d, %Y", "%d-%b-%y", "%Y%m%d",
     "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S+02:00", "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p"],
)  # fmt: skip
def test_dates_as_people_write_them(form):
    table = pd.DataFrame({"day": DAYS.strftime(form)})
    column = choosing.choose(table).columns[0]
    assert column.kind == "time"
    shift = pd.Timedelta(hours=2 if "+02" in form else 0)  # a time with a zone is taken in UTC
    expected = times.calendar((DAYS - shift).to_numpy().astype("datetime64[us]"), column.parts)
    np.testing.assert_array_equal(column.inputs(table["day"]), expected)


@pytest.mark.parametrize(
    "values",
    [
        pd.Series(DAYS),
        pd.Series(DAYS.tz_localize("Europe/Berlin")).dt.tz_convert("UTC"),
        pd.Series([d.date() for d in DAYS], dtype=object),
        pd.Series([d.to_pydatetime() for d in DAYS], dtype=object),
        pd.Series(DAYS.to_period("D")),
        pd.Series(DAYS.strftime("%Y%m%d").astype(int)),
        pd.Series(DAYS.strftime("%Y%m%d").astype(float)),
    ],
)
def test_dates_as_pandas_has_them(values):
    column = choosing.choose(pd.DataFrame({"day": values})).columns[0]
    assert column.kind == "time"
    assert column.parts[:4] == ["trend", "weekday", "month", "season"]
    if str(values.dtype) != "datetime64[us, UTC]":
        np.testing.assert_array_equal(
            column.inputs(values), times.calendar(DAYS.to_numpy().astype("datetime64[us]"), column.parts)
        )


def test_the_calendar_against_pythons():
    """A slow reference: every time by itself, with the standard library."""
    moments = [
        datetime.datetime(1999, 12, 31, 23, 59),
        datetime.datetime(2000, 2, 29),
        datetime.datetime(2024, 7, 4, 6),
    ]
    parts = ["trend", "weekday", "month", "season", "hour"]
    rows = times.calendar(np.array(moments, dtype="datetime64[us]"), parts)
    for row, moment in zip(rows, moments):
        passed = (moment - datetime.datetime(2000, 1, 1)).total_seconds() / 86400
        hour = (moment.hour + moment.minute / 60) / 24
        year = (moment.timetuple().tm_yday - 1 + hour) / 365.2425
        waves = lambda p: [f(2 * math.pi * k * p) for k in (1, 2) for f in (math.sin, math.cos)]  # noqa: E731
        expected = [passed / 365.2425, *np.eye(7)[moment.weekday()], *np.eye(12)[moment.month - 1]]
        np.testing.assert_allclose(row, [*expected, *waves(year), *waves(hour)], atol=1e-12)


@pytest.mark.parametrize(
    ("days", "parts"),
    [
        (pd.date_range("2024-01-01", periods=10), ["trend"]),
        (pd.date_range("2024-01-01", periods=60), ["trend", "weekday"]),
        (pd.date_range("2015-01-01", periods=60, freq="MS"), ["trend", "month", "season"]),
        (pd.date_range("2024-01-01", periods=60, freq="h"), ["trend", "hour"]),
        (pd.date_range("2022-01-01", periods=800), ["trend", "weekday", "month", "season"]),
    ],
)
def test_only_parts_that_tell_times_apart(days, parts):
    assert choosing.choose(pd.DataFrame({"day": days})).columns[0].parts == parts


def test_which_comes_first_day_or_month():
    def remarks(form, days):
        preparation = choosing.choose(pd.DataFrame({"day": days.strftime(form)}))
        return preparation.columns[0].format, preparation.remarks

    assert remarks("%d/%m/%Y", DAYS) == ("%d/%m/%Y", [])  # some day is past the twelfth
    form, said = remarks("%d/%m/%Y", pd.DatetimeIndex([f"2024-{m:02}-05" for m in range(1, 13)]))
    assert form == "%m/%d/%Y"
    assert said == ["column 'day' holds dates such as '05/01/2024': the month is taken to come first"]


def test_missing_times_and_words_for_them():
    texts = [*DAYS.strftime("%Y-%m-%d")[:30], None, "unknown", "unknown"]
    table = pd.DataFrame({"day": texts})
    preparation = choosing.choose(table)
    assert preparation.columns[0].codes == ["unknown"]
    inputs = preparation.transform(table)
    assert np.isfinite(inputs).all()
    assert inputs[:, -1].tolist() == [0.0] * 30 + [1.0] * 3
    assert (inputs[30:, 1:-1] == 0).all()
    with pytest.raises(TableError, match="row 0, column 'day': expected a date or time"):
        preparation.transform(pd.DataFrame({"day": ["someday"]}))


# ---- All kinds together --------------------------------------------------------------------------


def test_what_each_column_is_taken_for():
    preparation = choosing.choose(everyday())
    assert preparation.descriptions() == {
        "area": "number, in m²",
        "cost": "number, in $",
        "share": "number, in %",
        "rooms": "number, some missing",
        "lift": "true or false",
        "garden": "true or false, some missing",
        "sold": "date or time: a trend in years, day of the week, month, place in the year",
        "seen": "date or time: a trend in years, day of the week, hour",
        "district": "category, 3 values",
        "grade": "category, 4 values",
        "number": "number",
        "agent_id": "number",
        "note": "left out: nearly all its values are different, as those of an identifier or free text",
        "empty": "left out: all its values are missing",
        "same": "left out: all its values are equal",
    }
    assert [name for name in everyday().columns if f"column {name!r}" not in " ".join(preparation.remarks)] == [
        "rooms", "lift", "garden", "sold", "seen", "district", "grade"
    ]  # fmt: skip
    assert sum(map(len, preparation.summary().values())) == len(everyday().columns)


def test_a_preparation_comes_back_from_json_and_takes_what_it_has_not_seen():
    table = everyday()
    before = choosing.choose(table)
    again = Preparation.from_json(json.loads(json.dumps(before.to_json(), allow_nan=False)))
    assert again.to_json() == before.to_json()
    inputs = before.transform(table)
    assert inputs.shape == (len(table), before.width)
    assert np.isfinite(inputs).all()
    assert np.array_equal(again.transform(table), inputs)
    new = table.iloc[:3].copy()
    new["district"], new["grade"] = "the moon", pd.Categorical(["new"] * 3)
    nothing = pd.DataFrame({name: [None] * 3 for name in table.columns})
    assert np.isfinite(again.transform(new)).all()
    assert np.isfinite(again.transform(nothing)).all()
    blocks = dict(before.blocks())
    assert (again.transform(new)[:, blocks["district"]] == 0).all()


def test_a_row_is_prepared_alike_alone_and_among_others():
    table = everyday(60)
    preparation = choosing.choose(table)
    inputs = preparation.transform(table)
    rows = [preparation.transform(table.iloc[[k]]) for k in range(len(table))]
    assert np.array_equal(np.concatenate(rows), inputs)
    order = np.random.default_rng(0).permutation(len(table))
    assert np.array_equal(preparation.transform(table.iloc[order]), inputs[order])


def test_texts_of_a_file_and_types_in_python_are_the_same(tmp_path):
    """Prepared from a data frame or from the texts of its CSV file, a table becomes the same inputs."""
    from closedform.tabular import reading

    typed = everyday()
    typed.to_csv(tmp_path / "t.csv", index=False)
    written = reading.whole(tmp_path / "t.csv")
    from_texts, from_types = choosing.choose(written, categorical=["grade"]), choosing.choose(typed)
    assert from_texts.descriptions() == from_types.descriptions()
    np.testing.assert_allclose(from_texts.transform(written), from_types.transform(typed), rtol=1e-12)
    np.testing.assert_allclose(from_types.transform(written), from_types.transform(typed), rtol=1e-12)
    np.testing.assert_allclose(from_texts.transform(typed), from_types.transform(typed), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "values", "remarked"),
    [
        ("row", range(100), True),
        ("order", [*range(50, 100), *range(50)], True),
        ("customer_id", [k % 40 * 7 for k in range(100)], True),
        ("customerId", [k % 40 * 7 for k in range(100)], True),
        ("valid", [k % 40 * 7 for k in range(100)], False),
        ("monkey", [k % 40 * 7 for k in range(100)], False),
        ("rooms", [k % 7 for k in range(100)], False),
        ("piano", np.arange(100) ** 2, False),
    ],
)
def test_identifiers_are_remarked_on(name, values, remarked):
    table = pd.DataFrame({name: list(values), "x": np.linspace(0, 1, 100)})
    assert bool(choosing.choose(table).remarks) == remarked


def test_mixed_cells():
    """True and 1 are equal in Python and are two texts; a list is none."""
    texts = cells.texts(pd.Series([True, 1, 1.0, "1.0", " x ", None, float("nan"), np.float64(2)], dtype=object))
    assert texts.tolist() == ["True", "1", "1", "1", "x", None, None, "2"]
    with pytest.raises(TableError, match="column 'a' holds list; expected one number or text a row"):
        choosing.choose(pd.DataFrame({"a": [[1], [2]]}))
    with pytest.raises(TableError, match="column 'a' holds complex numbers"):
        choosing.choose(pd.DataFrame({"a": [1j, 2j]}))
    with pytest.raises(TableError, match="no column is left"):
        choosing.choose(pd.DataFrame({"a": [None, None], "b": [1, 1]}))


def test_nothing_is_said_by_other_libraries():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        preparation = choosing.choose(everyday())
        preparation.transform(everyday(7, seed=1))
