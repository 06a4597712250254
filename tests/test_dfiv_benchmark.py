"""The benchmark against the published code of DFIV: what its search may see, and the page."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

from .scripts import ROOT, load

sys.path.insert(0, str(ROOT / "benchmarks"))
import dfiv_search
import dfiv_tasks

SMALL = dfiv_tasks.BY_NAME["demand, n = 1000"]
PAGE = (ROOT / "docs" / "iv.md").read_text()


def test_folds_are_rows_of_the_draw_and_disjoint():
    sample = dfiv_tasks.draw("demand", 1000, 200)
    folds = [dfiv_search.held_out(sample, 200, fold) for fold in range(dfiv_search.FOLDS)]
    for rest, held in folds:
        assert (len(rest.y), len(held.y)) == (850, 150)
        np.testing.assert_array_equal(np.sort(np.concatenate([rest.y, held.y])), np.sort(sample.y))
    together = np.concatenate([held.y for _, held in folds])
    assert len(np.unique(together)) == 450


def test_the_search_does_not_know_the_structural_function(monkeypatch):
    """Other values of f, and other points to report, change nothing."""
    setting = dfiv_search.candidates("demand")[0]
    config = dfiv_search.config(SMALL, setting, 200, 0)
    rows = dfiv_search.one(config)
    sample = replace(dfiv_tasks.draw("demand", 1000, 200), f=np.full(1000, np.nan))
    monkeypatch.setattr(dfiv_search, "draw", lambda *_: sample)
    monkeypatch.setattr(dfiv_search, "points", lambda _: (None, None))
    for row, other in zip(rows, dfiv_search.one(config)):
        assert row["beta"] == other["beta"]
        assert row["points"] is None
        np.testing.assert_array_equal(row["losses"], other["losses"])
    assert len(rows) == 1 + len(dfiv_search.RIDGES)
    assert np.isfinite(rows[0]["losses"]).all()


def test_a_run_that_diverges_is_the_worst_and_no_error():
    setting = replace(dfiv_search.candidates("demand")[0], lr=1e30)
    assert all(np.isinf(row["losses"]).all() for row in dfiv_search.one(dfiv_search.config(SMALL, setting, 200, 0)))


@pytest.mark.parametrize("family", ["sprites", "demand"])
def test_the_sample_is_of_the_space_and_fits_the_time(family):
    settings = dfiv_search.candidates(family)
    assert len(set(settings)) == len(settings) == dfiv_search.COUNT[family]
    space = {**dfiv_search.SPACE, **dfiv_search.OWN[family]}
    for name, values in space.items():
        taken = {getattr(setting, name) for setting in settings}
        assert taken == set(values), name  # every value is tried
    for task in dfiv_tasks.TASKS:
        if task.demand == (family == "demand"):
            for setting in settings:
                count = dfiv_tasks.iterations(task, setting)
                an_iteration, ending = (dfiv_tasks._price(part) for part in dfiv_tasks.work(task, setting))
                assert count == 1 or count * an_iteration + ending <= dfiv_tasks.SHARE * task.limit_s
                if setting.order == "step":
                    assert dfiv_tasks.iterations(task, replace(setting, order="solve")) >= count


def test_limits_are_a_tenth_of_the_published_time():
    for task in dfiv_tasks.TASKS:
        assert task.published_s is None or task.limit_s == pytest.approx(task.published_s / 10)


def _row(loss: float, as_good: bool, **setting) -> dict:
    return {"setting": asdict(replace(dfiv_search._EXAMPLE, **setting)), "outcomes": loss, "as_good": as_good}


def test_the_rule_of_outcomes():
    least, linear, strong, worse = (
        _row(1.0, True, psi="16-2"), _row(1.1, True, ridge=0.1), _row(1.2, True, ridge=1.0), _row(0.9, False),
    )  # fmt: skip
    assert sorted([worse, least, linear, strong], key=dfiv_search._rank) == [strong, linear, least, worse]


def test_a_search_resumes_to_the_same_choice(tmp_path):
    first = dfiv_search.search([SMALL], tmp_path, 1, quick=True)
    for path in sorted(tmp_path.glob("*.parquet"))[::2]:
        path.unlink()
    assert dfiv_search.search([SMALL], tmp_path, 1, quick=True) == first
    (row,) = first
    assert row["held_out_rows"] == 300
    assert "points" not in row


def test_sprites_are_chosen_by_the_points_and_by_outcomes(tmp_path, monkeypatch):
    small = dfiv_tasks.Task("small sprites", "paper", 200, (1.0,), None, 0.2)
    monkeypatch.setitem(dfiv_search.BY_NAME, small.name, small)
    validation, _ = dfiv_tasks.points("paper")
    monkeypatch.setattr(dfiv_search, "points", lambda design: (validation if design == "paper" else None, None))
    sprites, other = dfiv_search.search([small, SMALL], tmp_path, 1, quick=True)
    errors = [row["points"] for row in sprites["points"]]
    assert errors == sorted(errors)
    assert all(np.isfinite(errors))
    assert sprites["outcomes"][0]["as_good"]
    assert {row["setting"]["pool"] for row in sprites["points"]} <= {2, 4}
    assert sprites["survivors"] == len(sprites["outcomes"]) == len(sprites["points"]) == 3
    assert "points" not in other


@pytest.mark.parametrize("name", ["dfiv", "dfiv_estimator", "dfiv_settings", "dfiv_defaults"])
def test_the_page_has_the_tables(name):
    assert getattr(load("benchmarks/tables.py"), name)() in PAGE
