"""Training rows that a prediction looks up: against the formula in its docstring, where they pay, and in files."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from closedform.archive import read, write
from closedform.tabular import ClosedFormClassifier, ClosedFormRegressor, load, neighbours
from closedform.tabular.conformal import HeldOut
from closedform.tabular.neighbours import COUNT, Neighbours

from .table_cases import command


def checkered(n: int, seed: int = 0, cells: int = 9, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """A level for each cell of a grid, which networks of a few waves are slow to learn."""
    rng = np.random.default_rng(seed)
    levels = np.random.default_rng(7).normal(size=(cells, cells))
    X = rng.uniform(0, cells, (n, 2))
    return X, levels[X[:, 0].astype(int), X[:, 1].astype(int)] + noise * rng.normal(size=n)


@pytest.fixture(scope="module")
def fitted() -> ClosedFormRegressor:
    X, y = checkered(900)
    return ClosedFormRegressor(random_state=0, max_iter=20).fit(X, y)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 90),
    columns=st.integers(1, 5),
    outputs=st.integers(1, 3),
    power=st.sampled_from([2.0, 4.0]),
    seed=st.integers(0, 999),
)
def test_means_are_those_of_the_formula(n, columns, outputs, power, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 4, (n, columns)).astype(np.float32) + rng.choice([0.0, 0.25], (n, columns)).astype(
        np.float32
    )
    near = Neighbours(
        rows,
        rng.normal(size=(n, outputs)).astype(np.float32),
        rng.uniform(0.5, 3, n),
        rng.uniform(0.1, 2, columns),
        share=np.full(outputs, 0.7),
        left=np.ones(outputs),
        power=power,
        floor=0.05,
    )
    x = rng.normal(1.5, 1, (7, columns))  # no two rows at one distance, so that the nearest are the same for both
    got = near.means(x)
    for at, row in enumerate(x.astype(np.float32).astype(np.float64)):
        distances = np.sqrt(np.square((row - rows) * near.scale).sum(1))
        order = np.argsort(distances)[:COUNT]
        count = near.weights[order] / (distances[order] ** 2 + 0.05**2) ** (power / 2)
        if n > COUNT and np.diff(np.sort(distances)[COUNT - 1 : COUNT + 1])[0] < 1e-9:
            continue  # equal rows at the edge: either may be taken
        assert_allclose(got[at], count @ near.residuals[order] / count.sum(), rtol=1e-9, atol=1e-12)


def test_a_row_that_was_trained_on_is_at_its_own_place():
    rows = np.array([[0.1], [0.7], [3.3]], dtype=np.float32)
    near = Neighbours(rows, np.eye(3, dtype=np.float32), np.ones(3), np.ones(1), np.ones(3), np.ones(3), 4.0, 1e-6)
    assert_allclose(near.means(np.array([[0.1], [0.7], [3.3]])), np.eye(3), atol=1e-12)


def test_they_lower_the_error_where_near_rows_have_much_in_common(fitted):
    X, y = checkered(600, seed=1)
    without = ClosedFormRegressor(random_state=0, max_iter=20, neighbours=False).fit(*checkered(900))
    assert fitted.neighbours_ is not None
    assert without.neighbours_ is None
    errors = [np.mean((model.predict(X) - y) ** 2) for model in (fitted, without)]
    assert errors[0] < 0.9 * errors[1]
    ends = fitted.predict_interval(X)
    assert 0.85 < np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])) < 0.96


def test_columns_of_noise_do_not_choose_the_distance():
    kept = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        model = ClosedFormRegressor(random_state=0, max_iter=6).fit(rng.normal(size=(200, 200)), rng.normal(size=200))
        kept += model.neighbours_ is not None
    assert kept <= 2


def test_many_rows_at_one_place_are_one_with_their_mean():
    rng = np.random.default_rng(0)
    levels = rng.normal(size=60)
    place = rng.integers(0, 60, 6000)  # a hundred rows each, more than neighbours are looked up
    X, y = place[:, None].astype(float), levels[place] + rng.normal(size=6000)
    model = ClosedFormRegressor(random_state=0, max_iter=4, waves=0).fit(X, y)
    assert model.neighbours_ is not None
    assert len(model.neighbours_.rows) == 60
    assert np.mean((model.predict(np.arange(60.0)[:, None]) - levels) ** 2) < 0.05


def test_rows_of_hardly_any_weight_are_saved_too(tmp_path):
    X, y = checkered(900)
    weight = np.where(np.arange(900) % 20 == 0, 1e-60, 1.0)
    model = ClosedFormRegressor(random_state=0, max_iter=20).fit(X, y, weight)
    assert model.neighbours_ is not None
    assert np.array_equal(load(model.save(tmp_path / "model.safetensors")).predict(X), model.predict(X))


@pytest.mark.parametrize("truth", ["noise", "line"])
def test_nothing_is_kept_where_they_do_not_pay(truth):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = rng.normal(size=400) + (X.sum(1) if truth == "line" else 0)
    assert ClosedFormRegressor(random_state=0, max_iter=10).fit(X, y).neighbours_ is None


def test_a_classifier_has_better_probabilities_with_them():
    X, y = checkered(900)
    X_test, y_test = checkered(600, seed=1)
    losses = []
    for kept in (True, False):
        model = ClosedFormClassifier(random_state=0, max_iter=20, neighbours=kept).fit(X, y > 0)
        p = model.predict_proba(X_test)
        assert_allclose(p.sum(1), 1)
        losses.append(-np.log(p[np.arange(len(p)), (y_test > 0).astype(int)]).mean())
        assert (model.neighbours_ is not None) == kept
    assert losses[0] < losses[1]


def test_a_prediction_is_the_last_layer_on_the_features(fitted):
    X, _ = checkered(50, seed=2)
    assert fitted.features(X).shape[1] == len(fitted.coef_)
    assert_allclose(fitted.features(X) @ fitted.coef_ + fitted.intercept_, fitted.predict(X), rtol=1e-12)
    assert_allclose(fitted.predict(X[:1]), fitted.predict(X)[:1], rtol=1e-12)


def test_several_targets_each_have_their_own_mean():
    X, y = checkered(900)
    model = ClosedFormRegressor(random_state=0, max_iter=20).fit(X, np.stack([y, 10 + 5 * y], 1))
    assert model.neighbours_ is not None
    assert model.neighbours_.residuals.shape == (900, 2)
    first, second = model.predict(X).T
    assert np.corrcoef(first, second)[0, 1] > 0.99
    noise = np.random.default_rng(1).normal(size=(900, 2))
    mixed = ClosedFormRegressor(random_state=0, max_iter=20).fit(X, np.c_[y, noise])
    assert mixed.neighbours_ is not None
    assert mixed.neighbours_.share[0] > 0.5
    assert mixed.neighbours_.share[1:].max() < 0.2


def test_a_weight_of_two_is_a_row_given_twice():
    X, y = checkered(300)
    weight = np.where(np.arange(300) < 100, 2.0, 1.0)
    weighted = ClosedFormRegressor(random_state=0, max_iter=8).fit(X, y, weight)
    twice = ClosedFormRegressor(random_state=0, max_iter=8).fit(np.r_[X, X[:100]], np.r_[y, y[:100]])
    assert weighted.neighbours_ is not None
    assert_allclose(weighted.predict(X), twice.predict(X), rtol=1e-10)


def test_standard_deviations_are_of_the_error_that_is_left():
    X, y = checkered(900)
    model = ClosedFormRegressor(random_state=0, max_iter=20, rule="kalman", hidden_layer_sizes=(16,)).fit(X, y)
    X_test, y_test = checkered(600, seed=1)
    mean, deviation = model.predict(X_test, return_std=True)
    assert model.neighbours_ is not None
    assert 0.7 < np.sqrt(np.mean((mean - y_test) ** 2) / np.mean(deviation**2)) < 1.2


def test_partial_fit_forgets_them(fitted):
    model = pickle.loads(pickle.dumps(fitted))
    X, y = checkered(100, seed=3)
    model.partial_fit(X, y)
    assert model.neighbours_ is None
    assert_allclose(model.features(X) @ model.coef_ + model.intercept_, model.predict(X), rtol=1e-12)


def test_too_large_a_table_keeps_none(monkeypatch):
    monkeypatch.setattr(neighbours, "NUMBERS", 900 * 3 - 1)
    assert ClosedFormRegressor(random_state=0, max_iter=3).fit(*checkered(900)).neighbours_ is None


def test_files_and_pickles_give_the_same_bits(fitted, tmp_path):
    X, _ = checkered(200, seed=4)
    fitted.predict(X)  # the tree is built, and not saved
    copy = pickle.loads(pickle.dumps(fitted))
    assert "tree" not in vars(copy.neighbours_)
    for model in (load(fitted.save(tmp_path / "model.safetensors")), copy):
        assert np.array_equal(model.predict(X), fitted.predict(X))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda header, tensors: tensors.pop("neighbours.rows"), "neighbours.rows"),
        (lambda header, tensors: header["neighbours"].pop("floor"), "power, floor"),
        (lambda header, tensors: header["neighbours"].update(floor=1e-200), "positive floor"),
        (lambda header, tensors: header["neighbours"].update(power="4"), "a power of 2 or 4"),
        (lambda header, tensors: tensors["neighbours.weights"].neg_(), "weights of neighbours is out of its range"),
        (lambda header, tensors: tensors["neighbours.share"].fill_(1.5), "share of neighbours is out of its range"),
        (lambda header, tensors: tensors["neighbours.scale"].fill_(-1.0), "scale of neighbours is out of its range"),
        (lambda header, tensors: tensors["neighbours.residuals"].fill_(float("nan")), "finite"),
        (lambda header, tensors: tensors.update({"neighbours.scale": torch.ones(5, dtype=torch.float64)}), "shape"),
        (lambda header, tensors: tensors.update({"neighbours.more": torch.ones(1)}), "not one that this version knows"),
        (lambda header, tensors: header.pop("neighbours"), "not one that this version knows"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(fitted, tmp_path, change, said):
    header, tensors = read(fitted.save(tmp_path / "model.safetensors"))
    change(header, tensors)
    with pytest.raises(ValueError, match=said):
        load(write(tmp_path / "changed.safetensors", header, tensors))


def test_the_share_is_the_least_squares_one():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5000, 1))
    targets = torch.from_numpy(0.4 * means + 0.1 * rng.normal(size=(5000, 1)))
    held = HeldOut(torch.zeros_like(targets), targets, torch.ones(5000, dtype=torch.float64), torch.zeros_like(targets))
    for jointly in (True, False):
        share, gain = neighbours._share(held, means, np.arange(5000), jointly)
        assert share == pytest.approx([0.4], abs=0.01)
        assert gain == pytest.approx(1 - 0.01 / 0.17, abs=0.04)
        assert neighbours._share(held, -means, np.arange(5000), jointly) == ([0.0], 0.0)


def test_the_command_says_that_training_rows_are_kept(tmp_path):
    X, y = checkered(1500)
    path = tmp_path / "cells.csv"
    pd.DataFrame({"east": X[:, 0], "north": X[:, 1], "level": y}).to_csv(path, index=False)
    options = ["--target", "level", "--importance", "none", "--epochs", 20]
    code, said = command("train", path, *options)
    assert code == 0
    assert "The model keeps 1,200 training rows" in said
    assert "keeps 1,200 training rows" in (tmp_path / "cells-model" / "report.html").read_text()
    assert load(tmp_path / "cells-model").neighbours_ is not None
    code, said = command("train", path, *options, "--no-neighbours")
    assert code == 0
    assert "keeps" not in said
    assert load(tmp_path / "cells-model").neighbours_ is None


def test_a_fold_is_judged_by_its_own_members_and_line(monkeypatch):
    calls = []
    judged = neighbours.judged
    monkeypatch.setattr(
        neighbours, "judged", lambda *a, **k: calls.append(neighbours._Trial(*a[:3], *a[4:6])) or judged(*a, **k)
    )
    X, y = checkered(300)
    monkeypatch.setattr("closedform.tabular.shrinking.share_of", lambda left, move, weight: 0.4)
    ClosedFormRegressor(random_state=0, max_iter=4).fit(X, y)
    trial = calls[0]
    engine, rows, line = trial.engine, trial.rows, trial.line
    engine.draw_to(line.whole, -line.share / (1 - line.share))  # as it was before it was drawn to the line of all rows
    masks = rows.held.numpy()
    predicted = engine.predictions(engine.features(rows.x)).numpy()
    inputs = engine.network.parts(rows.x)[1].double().numpy()
    assert len(trial.folds) == 2
    assert line.share == 0.4
    for fold, layer in zip(trial.folds, line.without):
        held = np.zeros(300, dtype=bool)
        held[fold.rows] = True
        own = (masks == held).all(1)
        together = np.tensordot(trial.shares[own] / trial.shares[own].sum(), predicted[own], 1)
        straight = inputs @ layer.numpy()[:, :-1].T + layer.numpy()[:, -1]
        left = rows.y.double().numpy() - (1 - line.share) * together - line.share * straight
        order = np.lexsort(trial.x[~held].T[::-1])  # no two rows are at one place here
        assert 0 < own.sum() < len(own)
        assert_allclose(fold.places, trial.x[~held][order])
        assert_allclose(fold.residuals, left[~held][order], atol=1e-5)
