"""`DFIVRegressor` among scikit-learn's tools; what its replicates take from the fit; input that cannot be."""

import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn")

import sklearn
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from closedform.estimators import DFIVRegressor, load
from closedform.iv import choice, effects, linear

from .iv_cases import SMALL, design

# ---- scikit-learn --------------------------------------------------------------------------------


def test_in_a_pipeline_and_a_search():
    X, y, Z, W = design()
    for options in (SMALL, {"features": "linear"}):
        plain = DFIVRegressor(**options).fit(StandardScaler().fit_transform(X), y, Z=Z).predict(X)
        line = make_pipeline(StandardScaler(), DFIVRegressor(**options)).fit(X, y, dfivregressor__Z=Z)
        assert np.allclose(line[-1].predict(X), plain)
        assert hasattr(line[-1].fit(X, y, Z=Z, W=W), "summary_")
    search = GridSearchCV(DFIVRegressor("linear"), {"rule": ["proximal", "ridge"]}, cv=2, error_score="raise")
    assert search.fit(X, y, Z=Z).best_params_ == {"rule": "proximal"}


def test_requests_of_metadata_outlive_a_fit():
    X, y, Z, W = design()
    with sklearn.config_context(enable_metadata_routing=True):
        model = DFIVRegressor(**SMALL).set_fit_request(Z=True, W=True).set_score_request(Z=True, W=True)
        before = str(model.get_metadata_routing())
        model.fit(X, y, Z=Z, W=W)
        assert str(model.get_metadata_routing()) == before
        search = GridSearchCV(model, {"lam_inner": [0.01, 1.0]}, cv=2, error_score="raise").fit(X, y, Z=Z, W=W)
        assert np.isfinite(search.best_score_)
        line = make_pipeline(StandardScaler(), DFIVRegressor("linear").set_fit_request(Z=True)).fit(X, y, Z=Z)
        assert np.isfinite(line.predict(X)).all()
        straight = DFIVRegressor("linear").set_fit_request(Z=True, W=True).set_score_request(Z=True, W=True)
        assert (cross_val_score(straight, X, y, params={"Z": Z, "W": W}, cv=2, error_score="raise") > 0.2).all()


def test_a_refit_leaves_nothing_and_takes_nothing_of_others():
    X, y, Z, W = design()
    model = DFIVRegressor(features="linear").fit(X, y, Z=Z, W=W).bootstrap(X, y, Z=Z, W=W, replicates=2)
    model.note = "of the user"
    model.set_params(**SMALL, features="deep").fit(X, y, Z=Z)
    assert model.note == "of the user"
    del model.note
    assert vars(model).keys() == vars(DFIVRegressor(**SMALL).fit(X, y, Z=Z)).keys()


def test_a_linear_score_given_the_instruments(tmp_path):
    X, y, Z, W = design()
    model = DFIVRegressor(features="linear").fit(X, y, Z=np.column_stack([W[:, 0], Z]), W=W)
    full = np.column_stack([Z, W, np.ones(200)])
    at = np.column_stack([full @ np.linalg.lstsq(full, X, rcond=None)[0], full[:, 1:]])
    fitted = at @ np.linalg.lstsq(at, y, rcond=None)[0]  # two-stage least squares, its second stage
    expected = 1 - np.square(y - fitted).sum() / np.square(y - y.mean()).sum()
    columns = {"Z": np.column_stack([W[:, 0], Z]), "W": W}
    assert model.score(X, y, **columns) == pytest.approx(expected)
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").score(X, y, **columns) == pytest.approx(expected)
    with pytest.raises(TypeError):
        model.score(X, y, Z, W)  # fit has Z before W, and an older score had W before Z


# ---- Replicates ----------------------------------------------------------------------------------


def test_replicates_take_the_layers_of_the_fit(monkeypatch, tmp_path):
    X, y, Z, _ = design()
    for at, ridge in ((-1, 0.0), (2, choice.RIDGES[2])):
        with monkeypatch.context() as patch:
            taken = choice.Contender.taking
            patch.setattr(choice.Contender, "taking", lambda trial, _, at=at, taken=taken: taken(trial, at))
            model = DFIVRegressor(**SMALL).fit(X, y, Z=Z)
        assert [member.ridge for member in model.members_] == [ridge, ridge]
        model.members_[0].first, model.members_[1].first = 1e-6, 1.0  # as if stage one had chosen these
        model.save(tmp_path / "model")
        again = load(tmp_path / "model").bootstrap(X, y, Z=Z, replicates=2)
        model.bootstrap(X, y, Z=Z, replicates=2)
        for a, b in zip(model.replicates_, again.replicates_):
            assert [(member.first, member.ridge) for member in a.members_] == [(1e-6, ridge), (1.0, ridge)]
            assert np.array_equal(a.predict(X), b.predict(X))


def test_an_estimate_outside_of_its_interval_is_told():
    of = list(np.linspace(0.0, 1.0, 40))
    with pytest.warns(UserWarning, match="outside of its own 95% interval at 100% of the points"):
        effects.banded(np.array([1.5]), of, lambda value: np.array([value]), 0.95)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, low, high = effects.banded(np.array([0.5]), of, lambda value: np.array([value]), 0.95)
    assert (low, high) == (pytest.approx(0.025), pytest.approx(0.975))


def test_rows_of_the_bootstrap_are_those_of_the_fit(tmp_path):
    X, y, Z, W = design()
    model = DFIVRegressor(features="linear").fit(X, y, Z=Z, W=W)
    model.save(tmp_path / "model")
    for same in (model, load(tmp_path / "model")):
        with pytest.raises(ValueError, match="not those of the fit, but 150, and the fit had 200"):
            same.bootstrap(X[:150], y[:150], Z=Z[:150], W=W[:150], replicates=2)
        with pytest.raises(ValueError, match="not those of the fit, but others"):
            same.bootstrap(X[::-1], y[::-1], Z=Z[::-1], W=W[::-1], replicates=2)
    with pytest.raises(ValueError, match="model is a file, or lies in one: expected a folder"):
        model.bootstrap(X, y, Z=Z, W=W, replicates=1, folder=tmp_path / "model")
    assert not hasattr(model, "replicates_")


def test_mean_slopes_have_intervals():
    X, y, Z, W = design()
    model = DFIVRegressor(features="linear").fit(X, y, Z=Z, W=W)
    mean, low, high = model.marginal_effect(X, W, level=0.95)
    assert np.allclose(mean, model.coef_)
    assert np.allclose(high - low, 2 * 1.959964 * model.std_error_)
    deep = DFIVRegressor(**SMALL).fit(X, y, Z=Z, W=W)
    with pytest.raises(ValueError, match="no replicates"):
        deep.marginal_effect(X, W, level=0.9)
    deep.bootstrap(X, y, Z=Z, W=W, replicates=3)
    mean, low, high = deep.marginal_effect(X, W, level=0.5)
    slopes = [model.marginal_effect(X, W).mean(0) for model in deep.replicates_]
    assert np.allclose(mean, deep.marginal_effect(X, W).mean(0))
    assert np.allclose([low, high], np.quantile(slopes, [0.25, 0.75], axis=0))


def test_one_row_of_controls_serves_all():
    X, y, Z, W = design()
    model = DFIVRegressor(**SMALL).fit(X, y, Z=Z, W=W)
    several = model.effect(np.zeros(5), np.arange(5.0), W[:1])
    assert np.allclose(several, model.effect(np.zeros(5), np.arange(5.0), np.repeat(W[:1], 5, 0)))
    with pytest.raises(ValueError, match="x0 and x1 have 5 rows and W 3"):
        model.effect(np.zeros(5), np.ones(5), W[:3])


# ---- Input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [SMALL, {"features": "linear"}])
def test_treatments_that_do_not_vary_by_themselves_are_refused(options):
    X, y, Z, W = design()
    Z = np.column_stack([Z, Z**2])
    for other in (W[:, :1], X * 2 + 1):
        with pytest.raises(ValueError, match="X has 2 treatments of which 1 vary independently"):
            DFIVRegressor(**options).fit(np.column_stack([X, other]), y, Z=Z, W=W)
    with pytest.raises(ValueError, match="X has 2 treatments of which 1 vary independently"):
        DFIVRegressor(**options).fit(np.column_stack([X, np.full(200, 0.1)]), y, Z=Z)


def test_strength_is_never_negative():
    X, _, Z, W = design()
    for degenerate in (W[:, :1], np.full((200, 1), 0.1), 3 * W[:, :1] - 1e3 * W[:, 1:]):
        strength = linear.first_stage(np.column_stack([X, degenerate]), Z, W)
        assert strength.F == 0
        assert strength.partial_r2[1] == 0
        assert 0 < strength.partial_r2[0] < 1
        assert strength.p == 1


def test_texts_are_told_with_their_column():
    pandas = pytest.importorskip("pandas")
    X, y, Z, W = design()
    table = pandas.DataFrame({"age": W[:, 0], "region": pandas.Categorical(["south", "north"] * 100)})
    with pytest.raises(ValueError, match="W holds 'south' in row 0 of column region: expected numbers"):
        DFIVRegressor(features="linear").fit(X, y, Z=Z, W=table)
    words = np.array([["low"]] * 200)
    for part in ("X", "Z"):
        with pytest.raises(ValueError, match=f"{part} holds .*'low'.* in row 0 of column 0"):
            DFIVRegressor(features="linear").fit(**{"X": X, "y": y, "Z": Z} | {part: words})
    with pytest.raises(ValueError, match="y holds 'a' in row 3"):
        DFIVRegressor(features="linear").fit(X, [*y[:3], "a", *y[4:]], Z=Z)
