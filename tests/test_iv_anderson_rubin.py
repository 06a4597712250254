"""Anderson and Rubin's interval: the same as the test at every slope, and its use with several weak instruments."""

import warnings

import numpy as np
import pytest

from closedform.iv import DFIVRegressor, anderson_rubin, line, linear, load
from closedform.iv.effects import normal

SMALL = {"max_iter": 3, "hidden_layer_sizes": (8,), "n_features": (3, 4, 3), "random_state": 0}


def drawn(n, instruments, concentration, seed, controls=0, spread=True):
    """A slope of 1; ordinary least squares is far above it. The concentration is about `instruments * (F - 1)`."""
    rng = np.random.default_rng(seed)
    Z, W = rng.standard_normal((n, instruments)), rng.standard_normal((n, controls))
    u = rng.standard_normal(n)
    e = 0.8 * u + 0.6 * rng.standard_normal(n)
    if spread:
        e = e * (0.5 + np.abs(Z[:, 0]))
    x = np.sqrt(concentration / instruments / n) * Z.sum(1) + 0.3 * W.sum(1) + u
    return x[:, None], x + 0.5 * W.sum(1) + e, Z, W if controls else None


def ends(X, y, Z, W, level):
    return anderson_rubin.ends(anderson_rubin.moments(X, y, Z, W), linear.first_stage(X, Z, W).degrees[1], level)


def p_value(X, y, Z, W, slope):
    return linear.anderson_rubin(X, y, Z, W, slope, robust=True).p


@pytest.mark.parametrize("level", [0.8, 0.9, 0.99])
@pytest.mark.parametrize(("instruments", "controls"), [(1, 0), (1, 2), (2, 0), (4, 2), (8, 0)])
def test_the_ends_are_where_the_test_begins_to_reject(instruments, controls, level):
    rows = drawn(300, instruments, 60.0, [instruments, 7], controls)
    low, high = ends(*rows, level)
    assert p_value(*rows, low) == pytest.approx(1 - level)
    assert p_value(*rows, high) == pytest.approx(1 - level)
    beyond = np.geomspace(1e-3, 1e3, 60)
    assert max(p_value(*rows, slope) for slope in (*(low - beyond), *(high + beyond))) < 1 - level


@pytest.mark.parametrize("seed", range(30))
def test_all_slopes_that_pass_are_inside_whatever_the_strength(seed):
    """Sets of all kinds: bounded, of two parts, everything, nothing."""
    rows = drawn(60, 3, 4.0, seed)
    passing = [slope for slope in np.tan(np.linspace(-1.57, 1.57, 801)) if p_value(*rows, slope) >= 0.4]
    interval = ends(*rows, 0.6)
    if interval is None:
        assert passing == []
    elif np.isinf(interval).any():
        assert interval == (-np.inf, np.inf)
        assert p_value(*rows, 1e6) >= 0.4
        assert p_value(*rows, -1e6) >= 0.4
    else:
        assert max(p_value(*rows, slope) for slope in (1e6, -1e6)) < 0.4
        assert all(interval[0] <= slope <= interval[1] for slope in passing)
        assert [p_value(*rows, end) for end in interval] == pytest.approx([0.4, 0.4])


def test_the_draws_above_are_of_all_kinds():
    intervals = [ends(*drawn(60, 3, 4.0, seed), 0.6) for seed in range(30)]
    kinds = ["empty" if i is None else "everything" if np.isinf(i).any() else "bounded" for i in intervals]
    assert set(kinds) == {"empty", "everything", "bounded"}


@pytest.mark.parametrize("seed", range(5))
def test_one_instrument_has_a_formula_with_the_same_ends(seed):
    rows = drawn(200, 1, 40.0, seed, 2)
    numbers = anderson_rubin.moments(*rows)
    a, b = numbers[:, 0], numbers[:, 1]
    C, D, E = (numbers[:, k : k + 1] for k in (2, 3, 4))
    critical = linear.f_quantile(0.9, 1, 196)
    assert ends(*rows, 0.9) == pytest.approx(anderson_rubin._edges(a, b, C, D, E, critical))


def test_which_instruments_span_the_space_does_not_matter():
    X, y, Z, W = drawn(200, 4, 60.0, 0, 2)
    mixed = Z @ np.random.default_rng(1).standard_normal((4, 4)) + W[:, :1]
    assert ends(X, y, np.column_stack([mixed, mixed[:, 0]]), W, 0.9) == pytest.approx(ends(X, y, Z, W, 0.9))


def test_units_do_not_matter():
    X, y, Z, W = drawn(300, 8, 60.0, [8, 7])
    low, high = ends(X, y, Z, W, 0.9)
    assert ends(1e6 * X, 1e-3 * y, 1e4 * Z, W, 0.9) == pytest.approx((1e-9 * low, 1e-9 * high), rel=1e-6, abs=0)


def test_errors_that_the_treatment_explains_are_no_part_of_the_set():
    """At a slope of 5 the instruments explain all of y - x t: rounding must not pass for a large variance."""
    rng = np.random.default_rng(0)
    Z, u = rng.standard_normal((500, 5)), rng.standard_normal(500)
    x = Z.sum(1) + u
    low, high = ends(x[:, None], 2 * x + 3 * u, Z, None, 0.9)
    assert 1.5 < low < high < 2.5


@pytest.mark.parametrize(("level", "a", "b"), [(0.5, 1, 5), (0.9, 7, 100), (0.999, 30, 2000)])
def test_quantiles_are_the_inverse_of_tails(level, a, b):
    assert linear.f_tail(linear.f_quantile(level, a, b), a, b) == pytest.approx(1 - level)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(("instruments", "concentration"), [(5, 1.0), (5, 5.0), (10, 2.0), (10, 5.0)])
def test_several_very_weak_instruments(instruments, concentration, spread):
    """At 90 %: standard errors alone are too short, the interval of the estimator is not."""
    hits, too_short, inverted = 0, 0, 0
    for seed in range(300):
        X, y, Z, _ = drawn(300, instruments, concentration, [instruments, seed], spread=spread)
        fit = line.fitted(X, y, Z)
        weak = anderson_rubin.needed(X, Z, None, fit.first_stage)
        moments = anderson_rubin.moments(X, y, Z, None) if weak else None
        low, high, _ = line.slope_interval(fit.coef[0], fit.std_error[0], moments, fit.first_stage.degrees[1], 0.9)
        inverted += weak
        assert low <= fit.coef[0] <= high
        hits += low <= 1 <= high
        too_short += abs(fit.coef[0] - 1) > normal(0.9) * fit.std_error[0]
    assert hits >= 0.88 * 300
    assert too_short > 0.15 * 300
    assert inverted > 0.95 * 300


def test_strong_instruments_and_several_treatments_have_standard_errors():
    def needed(X, Z):
        return anderson_rubin.needed(X, Z, None, linear.first_stage(X, Z, None))

    X, _, Z, _ = drawn(300, 5, 3.0, 0)
    assert needed(X, Z)
    assert not needed(np.column_stack([X, X**2]), Z)
    alone = np.eye(300)[:, :1]  # an instrument that singles out a row leaves no residual to know its variance by
    assert not needed(X, np.column_stack([Z, alone]))
    assert not needed(drawn(300, 5, 300.0, 0)[0], Z)
    assert needed(drawn(300, 1, 300.0, 0)[0], Z[:, :1])


@pytest.fixture(scope="module")
def unbounded():
    X, y, Z, _ = drawn(400, 5, 0.5, 1)
    with pytest.warns(UserWarning, match="weak instruments"):
        return DFIVRegressor(**SMALL).fit(X, y, Z=Z)


def test_an_interval_without_bounds_is_told(unbounded, tmp_path):
    effect = unbounded.average_effect(level=0.95)
    assert (effect.low[0], effect.high[0], effect.interval) == (-np.inf, np.inf, "Anderson-Rubin")
    first = str(unbounded.summary()).splitlines()[0]
    assert "95% interval -inf to inf, Anderson-Rubin: the instruments are too weak to bound the effect" in first
    assert unbounded.average_effect(level=0.01).high[0] < np.inf
    unbounded.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for level in (0.01, 0.95):
        assert again.average_effect(level=level) == unbounded.average_effect(level=level)


def test_instruments_that_contradict_each_other_are_told():
    """Each would give another slope."""
    rng = np.random.default_rng(0)
    Z, (u, e) = rng.standard_normal((400, 4)), rng.standard_normal((2, 400))
    x = 0.12 * Z.sum(1) + u
    X, y = x[:, None], 0.3 * Z @ np.array([1.0, -1.0, 1.0, -1.0]) + u + e
    assert anderson_rubin.needed(X, Z, None, linear.first_stage(X, Z, None))
    assert ends(X, y, Z, None, 0.95) is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = DFIVRegressor(**SMALL).fit(X, y, Z=Z)
    assert any("the instruments contradict each other" in str(warning.message) for warning in caught)
    effect = model.average_effect()
    assert effect.interval == "standard errors"
    assert effect.high[0] - effect.estimate[0] == pytest.approx(normal(0.95) * model.std_error_[0])
