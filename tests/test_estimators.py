"""The scikit-learn estimators: every check of scikit-learn's own, and what those do not look at."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

import joblib
import pandas as pd
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import closedform as cf
from closedform.arrays import moments
from closedform.estimators import ClosedFormClassifier, ClosedFormRegressor
from closedform.tabular.rows import folds, merged

from .table_cases import FAST, classes, table

# ---- scikit-learn's own checks -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ClosedFormRegressor, ClosedFormClassifier])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning", "ignore::DeprecationWarning")
def test_every_check_of_scikit_learn(kind):
    """None is excused. One skips itself unless an environment variable is set before scipy is imported: see the next test,
    which also takes the defaults; here the fits are short."""
    results = check_estimator(kind(max_iter=12, members=4), on_fail="raise")
    assert len(results) > 50
    other = {r["check_name"]: r["status"] for r in results if r["status"] != "passed"}
    assert other in ({}, {"check_array_api_input": "skipped"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression", ["ClosedFormRegressor()", "ClosedFormClassifier()", "ClosedFormRegressor(rule='kalman')",
             "ClosedFormRegressor(rule='learned')", "ClosedFormRegressor(early_stopping=False, members=1)"]
)  # fmt: skip
def test_every_check_with_the_array_api_on(expression):
    code = (
        "from closedform.estimators import *\nfrom sklearn.utils.estimator_checks import check_estimator\n"
        f"print({{r['status'] for r in check_estimator({expression}, on_fail='raise')}})"
    )
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert completed.stdout.strip() == "{'passed'}"


# ---- Predictions ---------------------------------------------------------------------------------


def test_it_learns_what_a_linear_model_cannot():
    X, y = table(400)
    model = ClosedFormRegressor(random_state=0).fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) > 0.97


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("rule", ["proximal", "kalman", "learned", cf.Ridge(beta=10.0)])
def test_a_prediction_is_the_last_layer_on_the_features(outputs, rule):
    X, y = table()
    Y = np.stack([y, -2 * y + 5, X[:, 0]], 1)[:, :outputs]
    Y = Y.ravel() if outputs == 1 else Y
    model = ClosedFormRegressor(rule=rule, **FAST).fit(X, Y)
    assert model.predict(X).shape == Y.shape
    np.testing.assert_allclose(model.features(X) @ model.coef_.T + model.intercept_, model.predict(X), rtol=1e-12)
    features = model.features(X).shape[1]
    assert model.coef_.shape == ((features,) if outputs == 1 else (outputs, features))


def test_units_do_not_matter():
    """Targets and inputs in other units give the same predictions in those units."""
    X, y = table()
    one = ClosedFormRegressor(**FAST).fit(X, y).predict(X)
    other = ClosedFormRegressor(**FAST).fit(X * 1024, y * 2**-20).predict(X * 1024) * 2**20
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    X, y = table()
    a, b, c = (ClosedFormRegressor(max_iter=5, random_state=s).fit(X, y).predict(X) for s in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_the_number_of_threads_does_not_matter():
    X, y = table()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        a = ClosedFormRegressor(max_iter=3, random_state=0).fit(X, y).predict(X)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    b = ClosedFormRegressor(max_iter=3, random_state=0).fit(X, y).predict(X)
    np.testing.assert_allclose(a, b, rtol=1e-4)


def test_arrays_frames_and_tensors_are_the_same():
    X, y = table()
    expected = ClosedFormRegressor(max_iter=3, random_state=0).fit(X, y).predict(X)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    model = ClosedFormRegressor(max_iter=3, random_state=0).fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    np.testing.assert_allclose(model.predict(frame), expected, rtol=1e-4)
    tensors = ClosedFormRegressor(max_iter=3, random_state=0).fit(torch.tensor(X), torch.tensor(y))
    np.testing.assert_allclose(tensors.predict(torch.tensor(X)), expected, rtol=1e-4)


def test_a_weight_is_a_repetition_also_in_many_batches():
    X, y = table(150)
    weight = np.random.default_rng(0).integers(0, 3, 150)
    a = ClosedFormRegressor(**FAST).fit(X, y, sample_weight=weight)
    b = ClosedFormRegressor(**FAST).fit(X.repeat(weight, 0)[::-1], y.repeat(weight)[::-1])
    assert np.array_equal(a.predict(X), b.predict(X))
    assert not np.allclose(a.predict(X), ClosedFormRegressor(**FAST).fit(X, y).predict(X))


def test_standard_deviations_of_the_kalman_rule():
    """Larger far from the data; near it, about as large as the noise."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 2))
    y = np.sin(3 * X[:, 0]) + 0.3 * rng.normal(size=600)
    model = ClosedFormRegressor(rule="kalman", max_iter=40, random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, model.predict(X))
    assert std.shape == y.shape
    assert 0.2 < std.mean() < 0.45
    _, far = model.predict(10 * X, return_std=True)
    assert far.mean() > 1.5 * std.mean()
    with pytest.raises(ValueError, match='return_std needs rule="kalman".*proximal'):
        ClosedFormRegressor(**FAST).fit(X, y).predict(X, return_std=True)


def test_standard_deviations_stay_honest_where_layers_are_drawn_to_the_ridge():
    """Networks that learn noise see too little of it in their own residuals; held-out rows set it right."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 20))
    y = X.sum(1) + rng.normal(size=1200)
    model = ClosedFormRegressor(rule="kalman", random_state=0).fit(X[:200], y[:200])
    assert model.linear_share_ > 0.5
    mean, std = model.predict(X[200:], return_std=True)
    error = np.sqrt(np.mean((mean - y[200:]) ** 2))
    assert 0.7 * error < std.mean() < 1.4 * error  # before: 0.4 of it


def test_a_line_is_drawn_to_the_ridge_and_a_curve_is_not():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    noise = rng.normal(size=200)
    assert ClosedFormRegressor(**FAST).fit(X, X.sum(1) + noise).linear_share_ > 0.5
    assert ClosedFormRegressor(**FAST).fit(X, np.sin(3 * X[:, 0]) + 0.1 * noise).linear_share_ < 0.2
    assert ClosedFormRegressor(early_stopping=False, **FAST).fit(X, X.sum(1) + noise).linear_share_ == 0
    assert ClosedFormRegressor(**FAST).partial_fit(X, X.sum(1)).linear_share_ == 0


@pytest.mark.parametrize("unit", [1e-200, 1e-9, 1e9, 1e200])
def test_the_unit_of_the_weights_means_nothing(unit):
    X, y = table(80)
    weight = np.random.default_rng(0).uniform(size=80)
    a = ClosedFormRegressor(**FAST).fit(X, y, sample_weight=weight)
    b = ClosedFormRegressor(**FAST).fit(X, y, sample_weight=weight * unit)
    np.testing.assert_allclose(b.predict(X), a.predict(X), rtol=0, atol=0.05 * y.std())


def test_weights_that_no_float_can_add_up_are_refused():
    X, y = table(80)
    with pytest.raises(ValueError, match="adds up to more than a float holds"):
        ClosedFormRegressor(**FAST).fit(X, y, sample_weight=np.full(80, 1e308))


def test_early_stopping_keeps_noise_out():
    """Pure noise: with held-out rows the prediction stays near the mean."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 10)), rng.normal(size=300)
    kept = ClosedFormRegressor(random_state=0).fit(X, y)
    to_the_end = ClosedFormRegressor(random_state=0, early_stopping=False).fit(X, y)
    assert np.std(kept.predict(X[:1] + rng.normal(size=(500, 10)))) < np.std(
        to_the_end.predict(X[:1] + rng.normal(size=(500, 10)))
    )
    assert to_the_end.validation_curve_ == []
    assert len(kept.validation_curve_) == len(kept.loss_curve_) == kept.n_iter_


def test_few_rows_and_constant_columns():
    for n in (1, 2, 3, 7):
        X, y = table(n)
        X[:, 1] = 3.0
        assert np.isfinite(ClosedFormRegressor(max_iter=3).fit(X, y).predict(X)).all()
    constant = ClosedFormRegressor(**FAST).fit(X, np.full(7, 4.0))
    np.testing.assert_allclose(constant.predict(X), 4.0)


# ---- Continuing ----------------------------------------------------------------------------------


def test_partial_fit_learns_from_a_stream():
    X, y = table(4000)
    model = ClosedFormRegressor(random_state=0)
    for low in range(0, 3600, 400):
        model.partial_fit(X[low : low + 400], y[low : low + 400])
    early = ClosedFormRegressor(random_state=0).partial_fit(X[:400], y[:400])
    assert model.n_iter_ == 9
    assert model.score(X[3600:], y[3600:]) > max(0.8, early.score(X[3600:], y[3600:]))


def test_partial_fit_of_classes():
    X, y = classes(1200)
    model = ClosedFormClassifier(random_state=0)
    with pytest.raises(ValueError, match="classes must be passed"):
        model.partial_fit(X[:100], y[:100])
    model.partial_fit(X[:100][y[:100] == "red"], y[:100][y[:100] == "red"], classes=["red", "green", "blue"])
    for low in range(0, 1000, 100):
        model.partial_fit(X[low : low + 100], y[low : low + 100])
    assert model.score(X[1000:], y[1000:]) > 0.8
    with pytest.raises(ValueError, match="'pink'"):
        model.partial_fit(X[:3], np.array(["red", "pink", "blue"]))


def test_warm_start_goes_on():
    X, y = table()
    model = ClosedFormRegressor(warm_start=True, **FAST).fit(X, y)
    first = model.loss_curve_[0]
    model.fit(X, y)
    assert model.loss_curve_[0] < first / 2
    cold = ClosedFormRegressor(**FAST).fit(X, y).fit(X, y)
    assert cold.loss_curve_[0] == first


def test_warm_start_takes_the_settings_of_today():
    X, y = table(100)
    model = ClosedFormRegressor(warm_start=True, max_iter=2, neighbours=False, random_state=0).fit(X, y)
    before = model.predict(X)
    model.set_params(learning_rate=1e-12).fit(X, y)
    features = model.features(X)
    assert np.array_equal(model.set_params(max_iter=1).fit(X, y).features(X).round(6), features.round(6))
    after = model.predict(X)
    assert not np.array_equal(after, before)
    with pytest.raises(ValueError, match="hidden_layer_sizes, waves, members, rule or backbone no longer describe"):
        model.set_params(hidden_layer_sizes=(8,)).fit(X, y)
    assert np.array_equal(model.predict(X), after)


@pytest.mark.parametrize(("first", "second"), [("auto", 0), (0, 4), (4, 8)])
def test_warm_start_with_other_waves_says_so(first, second):
    X, y = table(100)
    model = ClosedFormRegressor(waves=first, warm_start=True, max_iter=2, random_state=0).fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="waves, members, rule or backbone no longer describe"):
        model.set_params(waves=second).fit(X, y)
    assert np.array_equal(model.predict(X), before)
    model.set_params(waves=first).fit(X, y)
    assert not np.array_equal(model.predict(X), before)


def test_a_target_of_texts_is_shown_as_it_is():
    with pytest.raises(ValueError, match="y must be numbers, got values such as 'a'$"):
        ClosedFormRegressor().fit(np.arange(9.0)[:, None], ["a"] * 9)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("backbone", [None, torch.nn.Linear(4, 8)])
def test_stopped_in_the_middle_of_an_epoch_the_model_is_as_it_was(method, backbone, monkeypatch):
    X, y = table(200)
    model = ClosedFormRegressor(warm_start=True, max_iter=2, random_state=0, backbone=backbone).fit(X, y)
    before = model.predict(X)
    kind, calls = type(model.engine_), []
    step = kind.step

    def stopped(self, *args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return step(self, *args)

    monkeypatch.setattr(kind, "step", stopped)
    with pytest.raises(KeyboardInterrupt):
        getattr(model, method)(X, y + 100)
    assert np.array_equal(model.predict(X), before)


# ---- Backbones -----------------------------------------------------------------------------------


def test_any_module_can_be_the_backbone():
    X, y = table(400)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.BatchNorm1d(32), torch.nn.SiLU(), torch.nn.Dropout(0.05))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = ClosedFormRegressor(backbone=net, learning_rate=0.01, max_iter=60, random_state=0).fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) > 0.7
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert model.coef_.shape == (32,)
    bad = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Unflatten(1, (2, 3)))
    with pytest.raises(ValueError, match=r"the backbone must map \(n, 4\) to features"):
        ClosedFormRegressor(backbone=bad).fit(X, y)
    with pytest.raises(ValueError, match=r"the backbone must map \(n, 4\) .* fails on 2 such rows: mat1 and mat2"):
        ClosedFormRegressor(backbone=torch.nn.Linear(7, 3)).fit(X, y)


def test_a_seed_fixes_what_a_backbone_draws():
    X, y = table(80)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.3))
    state = torch.get_rng_state()
    fits = [ClosedFormRegressor(backbone=net, max_iter=3, random_state=seed).fit(X, y) for seed in (0, 0, 1)]
    first, second, other = (fit.predict(X) for fit in fits)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


# ---- Classifier ----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3])
def test_classes_and_probabilities(k):
    X, y = classes(500, k=k)
    model = ClosedFormClassifier(random_state=0, max_iter=40).fit(X[:400], y[:400])
    p = model.predict_proba(X[400:])
    np.testing.assert_allclose(p.sum(1), 1)
    assert np.array_equal(model.classes_[p.argmax(1)], model.predict(X[400:]))
    assert model.score(X[400:], y[400:]) > 0.85
    flat = log_loss(y[400:], np.full_like(p, 1 / k), labels=model.classes_)
    assert log_loss(y[400:], p, labels=model.classes_) < 0.6 * flat


def test_the_link_makes_probabilities_honest():
    """Coin flips get probabilities near one half, certain classes near one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    coin = ClosedFormClassifier(random_state=0, max_iter=30).fit(X, rng.integers(0, 2, 600))
    sure = ClosedFormClassifier(random_state=0, max_iter=30).fit(X, (X[:, 0] > 0).astype(int))
    assert sure.predict_proba(X).max(1).mean() > 0.95
    assert coin.predict_proba(rng.normal(size=(600, 3))).max(1).mean() < 0.65


# ---- In scikit-learn's company -------------------------------------------------------------------


def test_pipeline_search_and_cross_validation():
    X, y = table(120)
    pipe = make_pipeline(StandardScaler(), ClosedFormRegressor(max_iter=4, members=2, random_state=0))
    assert len(cross_val_score(pipe, X, y, cv=3)) == 3
    grid = {"closedformregressor__lam": ["auto", 1.0], "closedformregressor__rule": ["proximal", "kalman"]}
    search = GridSearchCV(pipe, grid, cv=2).fit(X, y)
    assert len(search.cv_results_["params"]) == 4
    copy = clone(search.best_estimator_)
    assert not hasattr(copy[-1], "coef_")


@pytest.mark.parametrize("rule", ["proximal", "kalman", cf.Kalman(forget=0.95)])
def test_pickles_and_joblib(rule, tmp_path):
    X, y = table(100)
    model = ClosedFormRegressor(rule=rule, **FAST).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        assert np.array_equal(copy.predict(X), model.predict(X))
        a, b = copy.partial_fit(X, y).predict(X), pickle.loads(pickle.dumps(model)).partial_fit(X, y).predict(X)
        assert np.array_equal(a, b)


# ---- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("hidden_layer_sizes", (), "hidden_layer_sizes"),
        ("hidden_layer_sizes", 64, "hidden_layer_sizes"),
        ("hidden_layer_sizes", (64, 0), "hidden_layer_sizes"),
        ("activation", "sine", "activation must be one of gelu"),
        ("rule", "ridge", "rule must be"),
        ("lam", 0.0, 'lam must be "auto" or a positive number, got 0.0'),
        ("lam", "automatic", "lam must be"),
        ("members", 0, "members must be"),
        ("weight_decay", -1.0, "weight_decay must be"),
        ("learning_rate", float("inf"), "learning_rate must be"),
        ("batch_size", 2.5, "batch_size must be"),
        ("max_iter", 0, "max_iter must be"),
        ("validation_fraction", 1.0, "validation_fraction must be"),
        ("n_iter_no_change", 0, "n_iter_no_change must be"),
        ("early_stopping", "no", "early_stopping must be True or False"),
        ("backbone", "resnet", "backbone must be a torch.nn.Module"),
        ("device", "abacus", 'device must be "auto", "cpu" or, where there is such a GPU, "cuda", got .abacus'),
    ],
)
def test_a_bad_parameter_is_named(parameter, value, message):
    X, y = table(30)
    model = ClosedFormRegressor(**{parameter: value})
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert not hasattr(model, "n_features_in_")


def test_bad_data_leaves_a_fitted_model_as_it_was():
    X, y = table(60)
    model = ClosedFormRegressor(max_iter=2, random_state=0, warm_start=True).fit(X, y)
    before = model.predict(X)
    model.warm_start = False
    with pytest.raises(ValueError, match="NaN"):  # a new fit may have other columns, but not if it fails
        model.fit(X[:, :3], np.where(y > 1e3, np.nan, y))
    assert np.array_equal(model.predict(X), before)
    model.backbone = torch.nn.Linear(99, 2)  # fails after the rows were looked at
    with pytest.raises(ValueError, match="shapes"):
        model.fit(X[:, :3], y)
    model.backbone = None
    assert np.array_equal(model.predict(X), before)
    model.warm_start = True
    for bad_X, bad_y, weight, message in (
        (X[:, :3], y, None, "3 features"),
        (np.where(X > 5, np.nan, X), y, None, "NaN"),
        (X, y[:-1], None, "inconsistent"),
        (X, np.stack([y, y], 1), None, "1 outputs as in the first fit, got 2"),
        (X, y, np.zeros(60), "zero"),
        (X, y, -np.ones(60), "[Nn]egative"),
        (X, np.array(["a"] * 60), None, "y must be numbers"),
    ):
        for method in (model.fit, model.partial_fit):
            with pytest.raises(ValueError, match=message):
                method(bad_X, bad_y, sample_weight=weight)
            assert np.array_equal(model.predict(X), before)


def test_the_missing_extra_is_named():
    code = "import sys; sys.modules['sklearn'] = None; import closedform.estimators"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "closedform.estimators needs sklearn: pip install 'closedform[sklearn]'" in completed.stderr


# ---- The parts -----------------------------------------------------------------------------------


def test_moments_of_columns_of_any_size():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 4)) * [1e-9, 1, 1e9, 0] + [1e-3, 1e8, 0, 0.1]
    weight = rng.integers(1, 4, 500).astype(float)
    mean, scale = moments(values, weight)
    repeated = values.repeat(weight.astype(int), 0)
    np.testing.assert_allclose(mean, repeated.mean(0), rtol=1e-12, atol=1e-7)
    np.testing.assert_allclose(scale[:3], repeated.std(0)[:3], rtol=1e-6)
    assert scale[3] == 1


def test_levels_share_their_held_out_rows():
    held = folds(100, 8, 4, 0.12, seed=0)
    assert held.sum(1).tolist() == [12] * 8
    assert torch.equal(held[0], held[3])
    assert not (held[0] & held[4]).any()
    assert folds(5, 8, 4, 0.12, seed=0) is None


def test_merging_leaves_the_sums_alone():
    rng = np.random.default_rng(0)
    X, Y = rng.integers(0, 3, (200, 2)).astype(float), rng.integers(0, 2, (200, 1)).astype(float)
    weight = rng.integers(0, 3, 200).astype(float)
    a, b, w = merged(X, Y, weight)
    assert len(np.unique(np.hstack([a, b]), axis=0)) == len(a) <= 18
    np.testing.assert_allclose(w @ (a * b), weight @ (X * Y))
    assert w.sum() == weight.sum()


def test_classes_on_discrete_columns_are_not_torn_apart():
    """Equal inputs with both classes: a merged row that is held out as a whole leaves only the other class to learn."""
    g = np.random.default_rng(0)
    X = g.integers(0, 3, (1600, 3)).astype(float)
    y = (X[:, 0] - X[:, 1] + g.logistic(size=len(X)) > 0).astype(int)
    model = ClosedFormClassifier(**FAST).fit(X[:600], y[:600])
    assert model._rows_fitted > 560  # decides the plan and the levels; about 54 are different
    logistic = LogisticRegression().fit(X[:600], y[:600])
    own, other = (log_loss(y[600:], m.predict_proba(X[600:])) for m in (model, logistic))
    assert own < other + 0.03
    weights = np.unique(np.c_[X[:600], y[:600]], axis=0, return_counts=True)
    same = ClosedFormClassifier(**FAST).fit(weights[0][:, :3], weights[0][:, 3], sample_weight=weights[1])
    np.testing.assert_array_equal(same.predict_proba(X), model.predict_proba(X))  # a weight is still a repetition


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_numbers_whose_squares_leave_the_range_of_floats(size):
    X, y = table()
    model = ClosedFormRegressor(**FAST).fit(X * size, y * size)
    plain = ClosedFormRegressor(**FAST).fit(X, y)
    np.testing.assert_allclose(model.predict(X * size) / size, plain.predict(X), rtol=1e-3, atol=1e-3)


def test_tensors_of_bfloat16():
    X, y = table()
    short = torch.from_numpy(X).bfloat16()
    model = ClosedFormRegressor(**FAST).fit(short, torch.from_numpy(y))
    np.testing.assert_array_equal(
        model.predict(short), ClosedFormRegressor(**FAST).fit(short.float(), y).predict(short.float())
    )


@pytest.mark.parametrize(("classes", "width"), [(2, 64), (9, 64), (10, 192)])
def test_many_classes_have_wider_networks_on_large_tables(classes, width):
    assert ClosedFormClassifier()._hidden(5000, classes) == [width] * 3
    assert ClosedFormClassifier()._hidden(4000, classes) == [48] * 3
    assert ClosedFormClassifier(hidden_layer_sizes=(7,))._hidden(5000, classes) == [7]
    assert ClosedFormRegressor()._hidden(5000, classes) == [64] * 3
