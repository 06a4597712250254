"""Intervals and prediction sets: coverage on data of known noise, the quantile by its definition, files, errors."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from closedform.tabular import ClosedFormClassifier, ClosedFormRegressor, load
from closedform.tabular.base import Estimator
from closedform.tabular.conformal import held_out, reach, table
from closedform.tabular.loop import TrainingRows


def problem(n, seed, outputs=1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    y = np.stack([np.sin(3 * X[:, k]) + 0.3 * rng.standard_normal(n) for k in range(outputs)], 1)
    return X, y[:, 0] if outputs == 1 else y


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("k", [9, 40, 1000])
def test_the_quantile_is_that_of_the_definition(alpha, k):
    distances = np.random.default_rng(k).gamma(1.0, size=(k, 2))
    place = int(np.ceil((1 - alpha) * (k + 1)))
    if place > k:
        with pytest.warns(UserWarning, match="too few"):
            quantile = reach(table(distances, np.ones(k)), alpha)
        place = k
    else:
        quantile = reach(table(distances, np.ones(k)), alpha)
    np.testing.assert_allclose(quantile, np.sort(distances, 0)[place - 1])


def test_a_weight_of_two_is_a_row_twice_in_the_limit():
    """Weights of mean one count as rows: the same quantile as of the rows written out."""
    rng = np.random.default_rng(0)
    distances, often = rng.gamma(1.0, size=(4000, 1)), rng.integers(1, 4, 4000)
    weighted = reach(table(distances, often.astype(float)), 0.1)
    np.testing.assert_allclose(
        weighted, reach(table(np.repeat(distances, often, 0), np.ones(often.sum())), 0.1), rtol=1e-2
    )


@pytest.mark.parametrize("members", [1, "auto"])
def test_a_held_out_row_is_predicted_by_the_members_that_held_it_out(members, monkeypatch):
    """Row by row and member by member, with weights; some rows are held out by nobody."""
    kept = []
    calibrate = Estimator._calibrate
    monkeypatch.setattr(Estimator, "_calibrate", lambda self, rows: (kept.append(rows), calibrate(self, rows))[1])
    X, y = problem(2100, 0)  # more than are predicted at a time
    weight = np.random.default_rng(1).integers(1, 4, len(X)).astype(float)
    model = ClosedFormRegressor(random_state=0, max_iter=2, members=members).fit(X, y, sample_weight=weight)
    rows = kept[0]
    each = model.engine_.predictions(model.engine_.features(rows.x.double())).numpy()[:, :, 0]
    some = [row for row in range(len(rows.x)) if rows.held[:, row].any()]
    assert 0 < len(some) < len(X) / 2
    expected = []
    for row in some:
        held = rows.held[:, row].numpy()
        expected.append(np.average(each[held, row], weights=model.shares_[held]))
    got = held_out(model.engine_, model.shares_, rows)
    np.testing.assert_allclose(got.outputs[:, 0], expected, rtol=1e-9)
    np.testing.assert_array_equal(got.targets, rows.y[some].double())
    np.testing.assert_array_equal(got.weights, rows.weight[some].double())
    assert len(model.distances_) == len(some)


def test_intervals_cover_and_know_the_noise():
    X, y = problem(1500, 0)
    model = ClosedFormRegressor(random_state=0, max_iter=30).fit(X, y)
    new, truth = problem(4000, 1)
    for alpha in (0.1, 0.3):
        ends = model.predict_interval(new, alpha)
        assert ends.shape == (4000, 2)
        covered = np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
        assert abs(covered - (1 - alpha)) < 0.05
    np.testing.assert_allclose(model.predict_interval(new).mean(1), model.predict(new))
    width = float(np.diff(model.predict_interval(new), axis=1).mean())
    assert width < 1.2 * 2 * 1.645 * 0.3  # of the noise alone


def test_several_outputs_have_intervals_of_their_own(tmp_path):
    X, y = problem(300, 0, outputs=2)
    model = ClosedFormRegressor(random_state=0, max_iter=5).fit(X, y * [1, 10])
    ends = model.predict_interval(X[:7])
    assert ends.shape == (7, 2, 2)
    widths = ends[0, :, 1] - ends[0, :, 0]
    assert widths[1] > 5 * widths[0]
    again = load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict_interval(X[:7]), ends)


def test_sets_hold_the_class(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    y = np.array(["a", "b", "c"])[np.clip(np.round(X[:, 0] + 1 + 0.4 * rng.standard_normal(3000)), 0, 2).astype(int)]
    model = ClosedFormClassifier(random_state=0, max_iter=15).fit(X[:1000], y[:1000])
    chosen = model.predict_set(X[1000:], 0.1)
    assert chosen.shape == (2000, 3)
    right = chosen[np.arange(2000), np.searchsorted(model.classes_, y[1000:])].mean()
    assert abs(right - 0.9) < 0.04
    assert chosen.any(1).all()
    assert 1.0 <= chosen.sum(1).mean() < 2
    again = load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict_set(X), model.predict_set(X))


def test_clear_errors():
    X, y = problem(60, 0)
    model = ClosedFormRegressor(random_state=0, max_iter=2).fit(X, y)
    for alpha in (0, 1, -0.1, "0.1", True, None):
        with pytest.raises(ValueError, match="alpha must be a number between 0 and 1"):
            model.predict_interval(X, alpha)
    with pytest.raises(ValueError, match="early_stopping=True"):
        ClosedFormRegressor(random_state=0, max_iter=2, early_stopping=False).fit(X, y).predict_interval(X)
    model.partial_fit(X, y)
    with pytest.raises(ValueError, match="partial_fit holds none out"):
        model.predict_interval(X)


class FakeEngine:
    """Members whose predictions are the truth and noise of their own."""

    def __init__(self, noise):
        self.noise = noise

    def features(self, x):
        return x

    def predictions(self, x):
        at = x[:, 0].long()
        return self.noise[:, at, None]


def test_distances_are_those_of_all_members():
    """Four of eight members predict a held-out row: their mean has a quarter of a member's variance, all an eighth."""
    g = torch.Generator().manual_seed(0)
    n, members, target_noise = 40_000, 8, 0.5
    noise = torch.randn(members, n, generator=g, dtype=torch.float64)
    y = target_noise * torch.randn(n, 1, generator=g, dtype=torch.float64)
    held = torch.zeros(members, n, dtype=torch.bool)
    held[:4, : n // 2] = held[4:, n // 2 :] = True
    rows = TrainingRows(torch.arange(n, dtype=torch.float64)[:, None], y, None, held)
    predictions = held_out(FakeEngine(noise), np.full(members, 1 / members), rows)
    assert len(predictions.weights) == n
    raw = (predictions.targets - predictions.outputs).square().mean()
    assert float(raw) == pytest.approx(target_noise**2 + 1 / 4, rel=0.03)
    assert float(predictions.distances().square().mean()) == pytest.approx(target_noise**2 + 1 / 8, rel=0.03)


def test_one_set_of_members_has_nothing_to_spare():
    g = torch.Generator().manual_seed(0)
    held = torch.zeros(3, 100, dtype=torch.bool)
    held[:, :20] = True
    rows = TrainingRows(torch.arange(100, dtype=torch.float64)[:, None], torch.ones(100, 1), None, held)
    shares = np.array([0.5, 0.3, 0.2])
    predictions = held_out(FakeEngine(torch.randn(3, 100, generator=g, dtype=torch.float64)), shares, rows)
    assert len(predictions.weights) == 20
    torch.testing.assert_close(predictions.distances(), (predictions.targets - predictions.outputs).abs())
