"""`DFIVRegressor`: two-stage least squares where features are linear, curves elsewhere, intervals, files, errors."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.base import clone

from closedform.estimators import DFIVRegressor, load
from closedform.iv import fitting, linear
from closedform.iv.bootstrap import digest
from closedform.iv.inputs import Observations
from closedform.paper.data import iv

SMALL = {"max_iter": 15, "n_features": (4, 8, 4), "hidden_layer_sizes": (16,), "random_state": 0}

# fits of designs with weak instruments warn, which tests/test_dfiv_average.py is about
pytestmark = pytest.mark.filterwarnings("ignore:.*weak instruments")


def design(n=400, seed=0, controls=False):
    """A confounded line: y = 2 x + w + 3 u, where regression finds a steeper one."""
    rng = np.random.default_rng(seed)
    z, u, e = rng.standard_normal((3, n))
    W = rng.standard_normal((n, 2)) if controls else None
    w = 0 if W is None else W[:, 0]
    x = z + 0.8 * u + w
    return x[:, None], 2 * x + w + 3 * u + 0.3 * e, z[:, None], W


@pytest.fixture(scope="module")
def fitted():
    X, y, Z, W = design(controls=True)
    return DFIVRegressor(**SMALL, treatment="deep").fit(X, y, Z=Z, W=W), (X, y, Z, W)


@pytest.mark.parametrize(("name", "published"), [("card", 0.1315), ("mroz", 0.0614)])
def test_linear_features_are_two_stage_least_squares(name, published):
    """Against the figures of the textbooks, and against linearmodels where it is installed."""
    try:
        c = iv.model(name)
    except ImportError as missing:
        pytest.skip(str(missing))
    model = DFIVRegressor(features="linear").fit(c.X, c.y, Z=c.Z, W=c.W)
    assert round(float(model.coef_[0]), 4) == published
    try:
        from linearmodels.iv import IV2SLS
    except ImportError:
        return
    other = IV2SLS(c.y, c.W.assign(const=1.0), c.X, c.Z).fit(cov_type="robust")
    ours = [*model.coef_, *model.control_coef_, model.intercept_]
    theirs = other.params[[*c.X.columns, *c.W.columns, "const"]].to_numpy()
    assert np.allclose(ours, theirs, rtol=1e-7, atol=1e-10)
    assert np.allclose(model.std_error_, other.std_errors[c.X.columns], rtol=1e-6)
    assert np.allclose(model.predict(c.X, c.W), c.y - other.resids, rtol=1e-7)


def test_controls_repeated_in_z_change_nothing():
    X, y, Z, W = design(controls=True)
    for options in ({"features": "linear"}, SMALL | {"max_iter": 3, "members": 1, "treatment": "linear"}):
        plain = DFIVRegressor(**options).fit(X, y, Z=Z, W=W)
        repeated = DFIVRegressor(**options).fit(X, y, Z=np.column_stack([W, Z]), W=W)
        np.testing.assert_allclose(plain.predict(X, W), repeated.predict(X, W), rtol=1e-4, atol=1e-4)


def test_a_deep_fit_undoes_the_confounding(fitted):
    model, (X, y, Z, W) = fitted
    ordinary = np.polyfit(X[:, 0], y, 1)[0]
    slope = model.marginal_effect(X, W).mean()
    assert abs(slope - 2) < 0.35 < ordinary - 2
    assert 0.3 < model.score(X, y, W=W, Z=Z) < 1
    assert model.score(X, 2 * X[:, 0] + W[:, 0], W=W) > 0.9  # the structural function itself


def test_effects_are_differences_and_slopes_derivatives(fitted):
    model, (X, _, _, W) = fitted
    change = model.effect(0.0, 1.0, W)
    assert np.allclose(change, model.predict(np.ones_like(X), W) - model.predict(np.zeros_like(X), W))
    h = 1e-2
    numeric = (model.predict(X + h, W) - model.predict(X - h, W)) / (2 * h)
    assert np.allclose(model.marginal_effect(X, W)[:, 0], numeric, atol=5e-3)
    straight = DFIVRegressor(features="linear").fit(*design()[:2], Z=design()[2])
    value, low, high = straight.effect([0.0], [3.0], level=0.95)
    assert np.allclose(value, 3 * straight.coef_)
    assert np.allclose(high - low, 2 * 1.959964 * 3 * straight.std_error_)


def test_several_treatments_and_instruments():
    rng = np.random.default_rng(0)
    Z, U = rng.standard_normal((600, 3)), rng.standard_normal((600, 2))
    X = Z[:, :2] + 0.5 * Z[:, 2:] + U
    y = X @ [1.0, -1.0] + U @ [2.0, 2.0]
    model = DFIVRegressor(**SMALL | {"max_iter": 25}).fit(X, y, Z=Z)
    assert np.allclose(model.marginal_effect(X).mean(0), [1, -1], atol=0.4)
    assert model.effect([0.0, 0.0], [1.0, 0.0]).shape == (1,)
    assert "x1" in str(model.summary())


@pytest.mark.parametrize("rule", ["kalman", "ridge"])
def test_other_rules(rule):
    X, y, Z, _ = design()
    model = DFIVRegressor(**SMALL, rule=rule, treatment="linear").fit(X, y, Z=Z)
    assert abs(model.marginal_effect(X).mean() - 2) < 0.4


def test_a_backbone_of_ones_own(tmp_path):
    X, y, Z, _ = design()
    net = torch.nn.Sequential(torch.nn.Linear(1, 6), torch.nn.Tanh())
    before = [p.clone() for p in net.parameters()]
    model = DFIVRegressor(**SMALL, backbone=net).fit(X, y, Z=Z)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"load\(path, backbone=...\)"):
        load(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model", backbone=net).predict(X), model.predict(X))
    with pytest.raises(ValueError, match="backbone must give features"):
        DFIVRegressor(**SMALL, backbone=torch.nn.Flatten(0)).fit(X, y, Z=Z)


def test_a_fit_is_a_function_of_its_seed_and_can_be_saved(fitted, tmp_path):
    model, (X, y, Z, W) = fitted
    again = clone(model).fit(X, y, Z=Z, W=W)
    assert np.array_equal(again.predict(X, W), model.predict(X, W))
    other = clone(model).set_params(random_state=1).fit(X, y, Z=Z, W=W)
    assert not np.array_equal(other.predict(X, W), model.predict(X, W))
    model.save(tmp_path / "model")
    read = load(tmp_path / "model")
    assert np.array_equal(read.predict(X, W), model.predict(X, W))
    assert str(read.summary()) == str(model.summary())
    assert read.score(X, y, W=W, Z=Z) == model.score(X, y, W=W, Z=Z)
    straight = DFIVRegressor(features="linear").fit(X, y, Z=Z, W=W)
    straight.save(tmp_path / "linear")
    assert np.array_equal(load(tmp_path / "linear").predict(X, W), straight.predict(X, W))


def test_the_bootstrap_goes_on_where_it_was(tmp_path):
    X, y, Z, _ = design(200)
    model = DFIVRegressor(**SMALL | {"max_iter": 4}, members=1, treatment="linear").fit(X, y, Z=Z)
    with pytest.raises(ValueError, match="call bootstrap"):
        model.interval(X)
    model.bootstrap(X, y, Z=Z, replicates=2, folder=tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 2
    assert files[0].name.startswith(digest(model, Observations(X, y, Z, None)))
    times = [file.stat().st_mtime_ns for file in files]
    files[1].write_bytes(b"damaged")
    kept = model.predict(X)
    model.bootstrap(X, y, Z=Z, replicates=4, folder=tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    assert files[0].stat().st_mtime_ns == times[0]
    whole = clone(model).fit(X, y, Z=Z).bootstrap(X, y, Z=Z, replicates=4)
    for a, b in zip(model.replicates_, whole.replicates_):
        assert np.array_equal(a.predict(X), b.predict(X))
    low, high = model.interval(X, level=0.9)
    assert (low <= high).all()
    assert np.array_equal(model.predict(X), kept)
    value, low, high = model.effect(0.0, 1.0, level=0.9)
    assert low < high
    assert value.shape == (1,)
    with pytest.raises(ValueError, match="X has 2 treatments; the fit had 1"):
        model.bootstrap(np.column_stack([X, X]), y, Z=Z)
    with pytest.raises(ValueError, match="Z has 2 instruments; the fit had 1"):
        model.bootstrap(X, y, Z=np.column_stack([Z, Z**2]))


@pytest.mark.slow
def test_the_bootstrap_is_the_same_in_several_processes():
    X, y, Z, _ = design(200)
    model = DFIVRegressor(**SMALL | {"max_iter": 4}, members=1, treatment="linear").fit(X, y, Z=Z)
    alone = model.bootstrap(X, y, Z=Z, replicates=3).replicates_
    together = model.bootstrap(X, y, Z=Z, replicates=3, n_jobs=2).replicates_
    for a, b in zip(alone, together):
        np.testing.assert_allclose(a.predict(X), b.predict(X), rtol=1e-4, atol=1e-4)


def test_copies_of_a_row_stay_in_one_stage(monkeypatch):
    """Otherwise the bootstrap would share rows between the stages."""
    X, y, Z, _ = design(200)
    drawn = np.random.default_rng(0).integers(200, size=200)
    seen, diagnosed = [], fitting.diagnosed

    def spy(summary, trained, tried, data, splits, held, values):
        seen.extend([splits[0].first, splits[0].second, held])
        return diagnosed(summary, trained, tried, data, splits, held, values)

    monkeypatch.setattr(fitting, "diagnosed", spy)
    model = DFIVRegressor(**SMALL | {"max_iter": 1})
    fitting.attributes(model, Observations(X[drawn], y[drawn], Z[drawn], None), names=["x"], groups=drawn)
    first, second, held = ({int(drawn[row]) for row in rows.tolist()} for rows in seen)
    assert not first & second
    assert not first & held
    assert not second & held
    assert sum(len(rows) for rows in seen) == 200


def test_the_summary_says_what_is_weak():
    rng = np.random.default_rng(0)
    n = 300
    z, u = rng.integers(0, 2, n).astype(float), rng.standard_normal(n)
    x = 0.05 * z + u
    y = x + u + rng.standard_normal(n)
    summary = DFIVRegressor(**SMALL).fit(x[:, None], y, Z=z[:, None]).summary()
    assert any("weak instruments" in text for text in summary.warnings)
    assert any("only 2 different values" in text for text in summary.warnings)
    assert "E[g(X)|Z] = 0" in str(summary)
    assert summary.first_stage_f == pytest.approx(linear.first_stage(x[:, None], z[:, None]).F)
    strong = DFIVRegressor(features="linear").fit(*design()[:2], Z=design()[2]).summary()
    assert strong.first_stage_f > 100
    assert not strong.warnings


def test_progress_is_shown(capsys):
    X, y, Z, _ = design(100)
    DFIVRegressor(**SMALL | {"max_iter": 2}, treatment="linear", verbose=True).fit(X, y, Z=Z)
    assert "iteration 4/4" in capsys.readouterr().err  # one candidate, and a second member


def broken(**changes):
    X, y, Z, W = design(100, controls=True)
    parts = {"X": X, "y": y, "Z": Z, "W": W}
    return parts | changes


X0, Y0, Z0, W0 = design(100, controls=True)
NAN = Z0.copy()
NAN[3] = np.nan
BAD = {
    "no instruments": ({"Z": None}, "Z is missing"),
    "constant instrument": ({"Z": np.ones((100, 1))}, "column 0 of Z is constant"),
    "constant treatment": ({"X": np.ones((100, 1))}, "column 0 of X is constant"),
    "constant outcome": ({"y": np.ones(100)}, "y is constant"),
    "NaN": ({"Z": NAN}, "Z contains NaN in row 3 of column 0 .1 such values in all."),
    "instrument from controls": ({"Z": 2 * W0[:, :1] + 1}, "Z is a linear function of W"),
    "many instruments": ({"Z": np.random.default_rng(0).standard_normal((100, 120))}, "no more degrees of freedom"),
    "lengths": ({"Z": Z0[:90]}, "rows differ: X has 100, y has 100, Z has 90"),
    "flat": ({"X": X0[:, 0]}, "X has shape .100,.; expected .n, columns."),
    "outcomes": ({"y": np.stack([Y0, Y0], 1)}, "y has shape"),
    "controls only": ({"Z": W0}, "Z has only columns of W"),
    "few instruments": ({"X": np.column_stack([X0, X0**2]), "W": None}, "at least as many instruments as treatments"),
    "no variation beyond controls": ({"X": W0[:, :1]}, "vary independently"),
    "few rows": ({k: v[:40] for k, v in {"X": X0, "y": Y0, "Z": Z0, "W": W0}.items()}, "at least 60 different rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_a_sentence(case):
    changes, message = BAD[case]
    linear_only = case in ("few instruments", "no variation beyond controls")
    model = DFIVRegressor(**({"features": "linear"} if linear_only else SMALL))
    parts = broken(**changes)
    with pytest.raises(ValueError, match=message):
        model.fit(parts["X"], parts["y"], Z=parts["Z"], W=parts["W"])
    assert not hasattr(model, "summary_")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "cubic"}, 'features must be one of "deep", "linear"'),
        ({"rule": "ema"}, "rule must be one of"),
        ({"members": 3}, "members must be 1 or even"),
        ({"max_iter": 0}, 'max_iter must be "auto" or a positive integer'),
        ({"max_iter": True}, 'max_iter must be "auto" or a positive integer, got True'),
        ({"rule": "ridge", "lam_inner": 5.0}, "has no lambda inside"),
        ({"validation_fraction": 0.01}, "holds out 1 and leaves 99: expected at least 5"),
        ({"learning_rate": 1e6, "max_iter": 10, "random_state": 0}, "training diverged"),
        ({"n_features": (1, 2)}, "three positive integers"),
        ({"validation_fraction": 1.0}, "validation_fraction must be between"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"backbone": "resnet"}, "backbone must be"),
    ],
)
def test_bad_settings_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        DFIVRegressor(**options).fit(X0, Y0, Z=Z0)


def test_bad_predictions_are_told(fitted):
    model, (X, y, Z, W) = fitted
    with pytest.raises(ValueError, match="W is not given, and the fit had 2 controls"):
        model.predict(X)
    with pytest.raises(ValueError, match="X has 2 treatments; the fit had 1"):
        model.predict(np.column_stack([X, X]), W)
    with pytest.raises(ValueError, match="W has shape"):
        model.predict(X, W[:10])
    with pytest.raises(ValueError, match="x1 has shape"):
        model.effect(0.0, np.zeros((400, 3)), W)
    kept = model.predict(X, W)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, np.where(y > 0, np.nan, y), Z=Z, W=W)
    assert np.array_equal(model.predict(X, W), kept)
