"""The average effect: its interval, the sentence that says it, the curve, and the warning of weak instruments."""

import numpy as np
import pytest

pytest.importorskip("sklearn")
from closedform.iv import DFIVRegressor, load

QUICK = {"treatment": "linear", "lam_inner": 0.01, "max_iter": 10, "random_state": 0}


def line(n=1000, seed=0, strength=1.0, controls=False):
    rng = np.random.default_rng(seed)
    z, u, e = rng.standard_normal((3, n))
    x = strength * z + u
    W = rng.standard_normal((n, 2)) if controls else None
    return x[:, None], 2 * x + 3 * u + e, z[:, None], W


def test_the_interval_covers_and_is_about_as_long_as_that_of_two_stage_least_squares():
    hits, ratios = 0, []
    for seed in range(12):
        X, y, Z, _ = line(seed=seed)
        deep = DFIVRegressor(**QUICK).fit(X, y, Z=Z).average_effect(level=0.9)
        linear = DFIVRegressor("linear").fit(X, y, Z=Z).average_effect(level=0.9)
        assert (deep.interval, linear.interval) == ("asymptotic", "standard errors")
        hits += deep.low[0] < 2 < deep.high[0]
        ratios.append((deep.high - deep.low)[0] / (linear.high - linear.low)[0])
    assert hits >= 8  # of 12 at 90 %: fewer happen once in 200 times
    assert 0.8 < np.mean(ratios) < 1.5


@pytest.mark.parametrize("controls", [False, True])
def test_at_and_by(controls):
    X, y, Z, W = line(300, controls=controls)
    model = DFIVRegressor(**QUICK).fit(X, y, Z=Z, W=W)
    whole = model.average_effect()
    slopes = model.marginal_effect(X, W)
    assert np.allclose(whole.estimate, slopes.mean(0), rtol=1e-4)
    double = model.average_effect(by=2.0)
    assert np.allclose(double.estimate, 2 * whole.estimate, rtol=1e-3)
    assert np.allclose(double.high - double.low, 2 * (whole.high - whole.low), rtol=1e-2)
    at = model.average_effect(at=1.0, by=0.5)
    assert np.allclose(at.estimate, model.effect(1.0, 1.5, W).mean(), rtol=1e-3)
    with pytest.raises(ValueError, match="by must be a finite change"):
        model.average_effect(by=0)
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        model.average_effect(level=95)


def test_the_summary_begins_with_the_answer():
    X, y, Z, _ = line(300)
    for model in (DFIVRegressor(**QUICK), DFIVRegressor("linear")):
        summary = model.fit(X, y, Z=Z).summary()
        effect = model.average_effect()
        first = str(summary).splitlines()[0]
        assert first == summary.answer[0]
        assert all(f"{value:.4g}" in first for value in (*effect[0], *effect[1], *effect[2], summary.ordinary[0]))


def test_replicates_take_over(tmp_path):
    X, y, Z, _ = line(200)
    model = DFIVRegressor(**QUICK).fit(X, y, Z=Z)
    model.bootstrap(X, y, Z=Z, replicates=5)
    effect = model.average_effect()
    assert effect.interval == "bootstrap"
    assert effect.low[0] < effect.high[0]


@pytest.mark.parametrize("controls", [False, True])
@pytest.mark.parametrize("features", ["deep", "linear"])
def test_a_file_keeps_the_answer(features, controls, tmp_path):
    X, y, Z, W = line(200, controls=controls)
    model = DFIVRegressor(features, **QUICK).fit(X, y, Z=Z, W=W)
    saved = load(model.save(tmp_path / "fit.safetensors"))
    assert saved.summary().answer == model.summary().answer
    for options in ({}, {"level": 0.5, "by": 2.0}, {"at": 1.0}):
        before, after = model.average_effect(**options), saved.average_effect(**options)
        assert all(np.array_equal(one, two) for one, two in zip(before[:3], after[:3], strict=True))
        assert before.interval == after.interval
    private = load(model.save(tmp_path / "private.safetensors", rows=False))
    assert np.array_equal(private.predict(X, W), model.predict(X, W))
    with pytest.raises(ValueError, match="written without rows to average over: see effect"):
        private.average_effect()


def test_the_curve_with_its_band():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y, Z, _ = line(200)
    model = DFIVRegressor(**QUICK).fit(X, y, Z=Z)
    labels = [text.get_text() for text in model.plot_effect().get_legend().get_texts()]
    assert labels == [f"95% band, {model.average_effect().interval}", "estimate"]
    axis = model.bootstrap(X, y, Z=Z, replicates=3).plot_effect(points=7)
    grid, curve = axis.lines[0].get_data()
    slope = np.polyfit(grid, curve, 1)[0]
    assert np.isclose(slope, model.average_effect().estimate[0], rtol=1e-3)
    assert len(axis.collections) == 1
    with pytest.raises(ValueError, match="treatment is 1; expected the number of a column of X, from 0 to 0"):
        model.plot_effect(1)
    for wrong in ({"treatment": "x0"}, {"points": 0}, {"level": 1.5}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} (is|must be)"):
            model.plot_effect(**wrong)
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("treatment", ["line", "linear", "sieve", "deep"])
def test_a_band_without_replicates_is_that_of_the_effect_between_its_points(treatment):
    """Two points around their mean: each band is half of that of the move between them."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y, Z, W = line(200, controls=True)
    settings = {"features": "linear"} if treatment == "line" else QUICK | {"treatment": treatment}
    model = DFIVRegressor(**settings).fit(X, y, Z=Z, W=W)
    axis = model.plot_effect(points=2, level=0.9)
    grid, curve = axis.lines[0].get_data()
    move = model.average_effect(at=grid[0], by=grid[1] - grid[0], level=0.9)
    assert np.isclose(curve[1] - curve[0], move.estimate[0])
    band = axis.collections[0].get_paths()[0].vertices
    at_end = band[np.isclose(band[:, 0], grid[1]), 1]
    assert np.isclose(at_end.max() - at_end.min(), (move.high - move.low)[0] / 2)
    assert move.interval in axis.get_legend().get_texts()[0].get_text()
    matplotlib.pyplot.close("all")


def test_a_band_that_is_everything_is_told_and_not_drawn():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y, Z, _ = line(200, strength=0.0)
    with pytest.warns(UserWarning, match="weak instruments"):
        model = DFIVRegressor(**QUICK | {"treatment": "auto"}).fit(X, y, Z=Z)
    assert np.isinf(model.average_effect().high).all()
    axis = model.plot_effect()
    assert "Anderson-Rubin: everything, not drawn" in axis.get_legend().get_texts()[0].get_text()
    assert np.isfinite(axis.get_ylim()).all()
    matplotlib.pyplot.close("all")


def test_at_and_by_are_checked():
    X, y, Z, _ = line(200)
    model = DFIVRegressor("linear").fit(X, y, Z=Z)
    with pytest.warns(UserWarning, match="at has 1000 for x0, and the rows of the fit go from .* extrapolated"):
        model.average_effect(at=1000)
    with pytest.raises(ValueError, match="at has 2 rows; expected one treatment"):
        model.average_effect(at=[0, 1])
    for by in ("a", [1, 2], True, 0, np.inf):
        with pytest.raises(ValueError, match="by must be a finite change"):
            model.average_effect(by=by)


def test_treatments_that_no_linear_model_identifies_are_warned_of_in_fit():
    X, y, Z, _ = line(200)
    with pytest.warns(UserWarning, match="the instruments do not identify a linear model"):
        DFIVRegressor(**QUICK).fit(np.column_stack([X[:, :1], X[:, :1] ** 2]), y, Z=Z[:, :1])


@pytest.mark.parametrize("features", ["deep", "linear"])
def test_weak_instruments_are_warned_of_in_fit(features):
    X, y, Z, _ = line(200, strength=0.02)
    with pytest.warns(UserWarning, match="weak instruments: the first-stage F"):
        DFIVRegressor(features, **QUICK).fit(X, y, Z=Z)


def test_the_sieve_takes_a_bend():
    rng = np.random.default_rng(0)
    z, u, e = rng.standard_normal((3, 1500))
    x = z + u / 2
    model = DFIVRegressor(treatment="sieve", random_state=0, max_iter=30)
    model.fit(x[:, None], np.square(x) + 2 * u + e / 10, Z=z[:, None])
    at = np.linspace(-1.5, 1.5, 31)
    assert np.square(model.predict(at[:, None]) - np.square(at)).mean() < 0.1 * np.square(at).var()


@pytest.mark.parametrize("members", [1, 2])
def test_what_the_instruments_move_has_a_standard_error(members):
    X, y, Z, _ = line(400)
    summary = DFIVRegressor(**QUICK, members=members).fit(X, y, Z=Z).summary()
    assert (
        abs(summary.identified - 0.5) < 4 * summary.identified_error
    )  # of the treatment's variance half is the instrument's
    assert 0.01 < summary.identified_error < 0.1
