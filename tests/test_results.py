"""The best setting of a table of results."""

import math

import pandas as pd
import pytest

from closedform.paper.sweeps import results


def table(rows):
    """Rows of (lr, seed, step, validation, test)."""
    return pd.DataFrame(rows, columns=["lr", "seed", "step", "validation", "test"])


def chosen(rows, **options):
    runs = results.finished(table(rows), ["lr"], select="validation", metric="test")
    return results.best(runs, [], ["lr"], **options).iloc[0]


def test_settings_are_compared_over_the_last_fifth_of_the_training():
    steady = [(0.1, 0, step, 1.0, 7.0) for step in (10, 50, 90, 100)]
    lucky = [(0.2, 0, 10, 0.0, 8.0), (0.2, 0, 50, 0.0, 8.0), (0.2, 0, 90, 9.0, 8.0), (0.2, 0, 100, 0.5, 8.0)]
    best = chosen(steady + lucky)
    assert (best["lr"], best["score"], best["final"]) == (0.1, 1.0, 7.0)
    assert chosen(steady + lucky, lower=False)["lr"] == 0.2


def test_the_choice_is_made_by_validation_and_over_the_seeds():
    rows = [(0.1, seed, 1, 2.0, 9.0) for seed in range(3)]
    rows += [(0.2, seed, 1, value, 1.0) for seed, value in enumerate((1.0, 1.0, 9.0))]
    best = chosen(rows)
    assert (best["lr"], best["seeds"]) == (0.1, 3)


def test_more_seeds_count_more_unless_one_of_them_diverged():
    one = [(0.1, 0, 1, 1.0, 1.0)]
    three = [(0.2, seed, 1, 2.0, 2.0) for seed in range(3)]
    assert chosen(one + three)["lr"] == 0.2
    three[2] = (0.2, 2, 1, math.inf, math.inf)
    assert chosen(one + three)["lr"] == 0.1
    assert chosen([(0.1, 0, 1, math.nan, math.nan), *three[:2]])["lr"] == 0.2


def test_a_setting_that_failed_is_chosen_only_where_there_is_no_other():
    one = [(0.1, 0, 1, 1.0, 1.0)]
    three = [(0.2, seed, 1, value, 2.0) for seed, value in enumerate((0.5, 9.0, 9.0))]
    assert chosen(one + three)["lr"] == 0.2
    assert chosen(one + three, failed=5.0)["lr"] == 0.1
    assert chosen(three, failed=5.0)["lr"] == 0.2
    assert chosen(one + three, failed=0.9)["lr"] == 0.2, "all have failed"
    assert chosen(one + three, failed=2.0, lower=False)["lr"] == 0.2


def test_a_missing_value_is_a_value():
    rows = pd.DataFrame({"lam": [math.nan, 1.0], "seed": 0, "step": 1, "validation": [1.0, 2.0], "test": [1.0, 2.0]})
    runs = results.finished(rows, ["lam"], select="validation", metric="test")
    best = results.best(runs, [], ["lam"]).iloc[0]
    assert math.isnan(best["lam"])
    assert len(results.rows_of(rows, best, ["lam"])) == 1


def test_intervals_are_students():
    assert math.isnan(results.half_width([1.0]))
    assert results.half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / math.sqrt(3))
    assert results.half_width([1.0, math.inf]) == math.inf
    assert results.half_width([float(i % 2) for i in range(100)]) == pytest.approx(1.96 * 0.5025 / 10, rel=1e-3)


def test_a_table_is_read_back_and_a_broken_one_named(tmp_path):
    rows = table([(0.1, 0, 1, 1.0, math.inf)])
    results.save(rows, tmp_path)
    pd.testing.assert_frame_equal(results.load(tmp_path), rows)
    (tmp_path / results.TABLE).write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="cannot be read as a Parquet table"):
        results.load(tmp_path)
