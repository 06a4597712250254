"""The line among the candidates: the same as slow references, intervals that hold with weak instruments, and its use."""

import warnings

import numpy as np
import pytest
import torch

from closedform.iv import Data, DFIVRegressor, anderson_rubin, line, linear, load

SMALL = {"max_iter": 3, "hidden_layer_sizes": (8,), "n_features": (3, 4, 3), "random_state": 0}


def drawn(n, instruments, strength, seed, controls=0):
    """A slope of 1; ordinary least squares is far above it."""
    rng = np.random.default_rng(seed)
    Z, W = rng.standard_normal((n, instruments)), rng.standard_normal((n, controls))
    u = rng.standard_normal(n)
    e = (0.8 * u + 0.6 * rng.standard_normal(n)) * (0.5 + np.abs(Z[:, 0]))
    x = strength * Z.sum(1) + 0.3 * W.sum(1) + u
    return x[:, None], x + 0.5 * W.sum(1) + e, Z, W if controls else None


def slow_hful(X, y, Z, controls):
    """The sums of Hausman et al. (2012), row by row."""
    n = len(X)
    known = linear.with_ones(controls, n)
    A, full = np.column_stack([X, known]), np.column_stack([Z, known])
    P = full @ np.linalg.inv(full.T @ full) @ full.T
    off = P - np.diag(np.diag(P))
    both = np.column_stack([y, A])
    least = np.linalg.eigvals(np.linalg.inv(both.T @ both) @ both.T @ off @ both).real.min()
    alpha = (least - (1 - least) / n) / (1 - (1 - least) / n)
    H = A.T @ off @ A - alpha * A.T @ A
    b = np.linalg.solve(H, A.T @ off @ y - alpha * A.T @ y)
    e = y - A @ b
    V = A - np.outer(e, A.T @ e / (e @ e))
    middle = np.zeros_like(H)
    for i in range(n):
        others = [k for k in range(n) if k != i]
        for j in others:
            middle += P[i, j] ** 2 * e[i] * e[j] * np.outer(V[i], V[j])
        # sum over j and k, both other than i: the rows that a row's error is multiplied with
        own = P[i, others] @ V[others]
        middle += e[i] ** 2 * np.outer(own, own)
    return b, np.linalg.inv(H) @ middle @ np.linalg.inv(H)


@pytest.mark.parametrize("controls", [0, 2])
def test_more_instruments_than_treatments_are_the_sums_by_hand(controls):
    X, y, Z, W = drawn(60, 4, 0.5, 0, controls)
    b, covariance = slow_hful(X, y, Z, W)
    fit = line.fitted(X, y, Z, W)
    assert np.allclose([*fit.coef, *fit.controls, fit.intercept], b)
    assert np.allclose(fit.covariance, covariance)


def test_collinear_controls_change_nothing():
    X, y, Z, W = drawn(80, 4, 0.5, 1, 2)
    fit, again = line.fitted(X, y, Z, W), line.fitted(X, y, Z, np.column_stack([W, W.sum(1) + 1]))
    assert np.allclose(fit.coef, again.coef)
    assert np.allclose(fit.std_error, again.std_error)


def interval(X, y, Z, W, level):
    """As the estimator makes it of a line."""
    fit = line.fitted(X, y, Z, W)
    moments = anderson_rubin.moments(X, y, Z, W) if anderson_rubin.needed(X, Z, W, fit.first_stage) else None
    return line.slope_interval(fit.coef[0], fit.std_error[0], moments, fit.first_stage.degrees[1], level)


def test_one_instrument_is_two_stage_least_squares():
    X, y, Z, W = drawn(300, 1, 0.3, 2, 2)
    assert line.fitted(X, y, Z, W).coef == pytest.approx(linear.two_stage(X, y, Z, W).coef)


@pytest.mark.parametrize(("instruments", "strength"), [(1, 0.2), (1, 1.0), (8, 0.2), (8, 1.0)])
def test_intervals_cover_with_weak_and_with_strong_instruments(instruments, strength):
    """A strength of 0.2 with 250 rows is a first-stage F of about 11."""
    hits = 0
    for seed in range(200):
        X, y, Z, W = drawn(250, instruments, strength, [instruments, seed])
        low, high, kind = interval(X, y, Z, W, 0.9)
        assert kind == ("Anderson-Rubin" if instruments == 1 else "standard errors")
        hits += low <= 1 <= high
    assert 168 <= hits <= 196  # of 200 at 90 %: 180 expected, four deviations down


def test_losses_are_those_of_a_line_fitted_to_the_other_rows():
    X, y, Z, W = drawn(200, 3, 0.5, 3, 2)
    parts = (X, np.column_stack([Z, W]), y[:, None], W)
    rival = line.Rival.of(Data(*(torch.from_numpy(part) for part in parts)))
    rows, out = torch.arange(150), torch.arange(150, 200)
    fit = line.fitted(X[:150], y[:150], Z[:150], W[:150])
    x = np.column_stack([Z, W, np.ones(200)])[150:] @ fit.stage_one
    expected = np.square(y[150:] - x @ fit.coef - W[150:] @ fit.controls - fit.intercept)
    assert np.allclose(rival.losses(rows, out), expected)
    folds = [torch.arange(150) % 3 == k for k in range(3)]
    crossed = rival.crossed(out, rows, folds)
    assert np.allclose(crossed[folds[1]], rival.losses(torch.cat([out, rows[~folds[1]]]), rows[folds[1]]))
    few = line.Rival(X, y, np.zeros((200, 1)), None)
    assert few.losses(rows, out).isinf().all()


@pytest.fixture(scope="module")
def weak():
    X, y, Z, W = drawn(600, 1, 0.25, 5, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DFIVRegressor(**SMALL).fit(X, y, Z=Z, W=W), (X, y, Z, W)


def test_a_line_that_is_as_good_is_two_stage_least_squares_on_all_rows(weak):
    model, (X, y, Z, W) = weak
    straight = DFIVRegressor("linear").fit(X, y, Z=Z, W=W)
    assert model.coef_ == pytest.approx(straight.coef_)
    assert np.allclose(model.predict(X, W), straight.predict(X, W))
    effect = model.average_effect(level=0.9)
    assert effect.interval == "Anderson-Rubin"
    assert (effect.low[0], effect.high[0]) == pytest.approx(interval(X, y, Z, W, 0.9)[:2])
    assert "line: held-out loss" in str(model.summary())


def test_intervals_of_effects_are_those_of_the_slope(weak):
    model, (X, _, _, W) = weak
    slope = model.average_effect(level=0.9)
    change, low, high = model.effect(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 2.0]), W[:3], level=0.9)
    assert low == pytest.approx([2 * slope.low[0], 0, -slope.high[0]])
    assert high == pytest.approx([2 * slope.high[0], 0, -slope.low[0]])
    assert change == pytest.approx([2 * slope.estimate[0], 0, -slope.estimate[0]])
    mean, low, high = model.marginal_effect(X, W, level=0.9)
    assert [mean[0], low[0], high[0]] == pytest.approx([slope.estimate[0], slope.low[0], slope.high[0]])


def test_a_line_is_kept_in_files_and_in_replicates(weak, tmp_path):
    model, (X, y, Z, W) = weak
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert np.array_equal(again.predict(X, W), model.predict(X, W))
    assert again.average_effect()[1:] == model.average_effect()[1:]
    again.bootstrap(X, y, Z=Z, W=W, replicates=2)
    assert all(replicate.summary().used.startswith("line") for replicate in again.replicates_)
    assert again.average_effect().interval == "bootstrap"


def test_a_weak_instrument_leaves_the_line_whatever_curves_of_the_controls_say():
    """Curves of the controls move the treatment, and pass for instruments where they do not belong to the outcome."""
    rng = np.random.default_rng(0)
    W, (z, u, e) = rng.standard_normal((800, 2)), rng.standard_normal((3, 800))
    x = 0.15 * z + u + 2 * np.sin(2 * W[:, 0])
    y = x + 3 * np.sin(2 * W[:, 0]) + 2 * u + e
    settings = SMALL | {"max_iter": 60, "n_features": (3, 16, 8), "hidden_layer_sizes": (32,)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DFIVRegressor(**settings).fit(x[:, None], y, Z=z[:, None], W=W)
        learned = DFIVRegressor(**settings, treatment="linear").fit(x[:, None], y, Z=z[:, None], W=W)
    assert learned.summary().identified < 0.1
    assert model.summary().used.startswith("line")
    assert any("so the line is taken" in text for text in model.summary().warnings)
    effect = model.average_effect(level=0.95)
    assert effect.low[0] < 1 < effect.high[0]
