"""Scaling of inputs: the quantiles by their definition, weights as repeated rows, sizes at the ends of floats."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from closedform.tabular import ClosedFormRegressor
from closedform.tabular.scaling import BEYOND, FAR, MOST_COLUMNS, as_lines, centre_and_scale, scaled, straight, wavy


def slow(column, weight):
    """The least value up to which a share of the weight lies, by going through the rows."""
    pairs = sorted(zip(column.tolist(), weight.tolist()))

    def quantile(share):
        upto = 0.0
        for value, w in pairs:
            upto += w
            if upto >= share * sum(weight) - 1e-9:
                return value
        raise AssertionError

    return quantile(0.5), quantile(0.75) - quantile(0.25)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_centre_and_scale_are_those_of_the_definition(n):
    rng = np.random.default_rng(n)
    X, weight = rng.lognormal(size=(n, 3)), rng.integers(1, 5, n).astype(float)
    centre, scale = centre_and_scale(X, weight)
    for k in range(3):
        middle, distance = slow(X[:, k], weight)
        assert centre[k] == middle
        if distance > 0:
            assert scale[k] == distance
    repeated = np.repeat(X, weight.astype(int), 0)
    np.testing.assert_array_equal(centre_and_scale(repeated, np.ones(len(repeated))), (centre, scale))


def test_equal_quartiles_take_the_range_and_a_constant_takes_one():
    X = np.zeros((100, 2))
    X[:5, 0] = 8.0
    assert centre_and_scale(X, np.ones(100))[1].tolist() == [4.0, 1.0]


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
def test_the_unit_does_not_matter(size):
    X = np.random.default_rng(0).normal(size=(50, 2))
    expected = scaled(X, *centre_and_scale(X, np.ones(50)))
    with np.errstate(all="raise", under="ignore"):
        got = scaled(X * size, *centre_and_scale(X * size, np.ones(50)))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    far = scaled(np.array([[1e308, -1e308]]), *centre_and_scale(X * size, np.ones(50)))
    assert np.abs(far).max() <= FAR * np.arcsinh(1e100)


def test_columns_with_waves_have_more_than_two_values():
    X = np.zeros((1500, 3))
    X[:, 1] = np.arange(1500) % 2
    X[1200, 2], X[1300, 2] = 1.0, 2.0  # not among the first rows
    assert wavy(X).tolist() == [False, False, True]
    assert not wavy(np.random.default_rng(0).normal(size=(5, MOST_COLUMNS + 1))).any()


def test_predictions_level_off_far_outside():
    X = np.random.default_rng(0).uniform(0, 1, (300, 1))
    model = ClosedFormRegressor(random_state=0, max_iter=20).fit(X, 3 * X[:, 0])
    near, far, farther = model.predict([[0.5], [1e3], [1e9]])
    assert abs(near - 1.5) < 0.05
    assert abs(farther - far) < 0.05


@pytest.mark.parametrize(("effort", "epochs"), [(0.1, 6), (1.0, 55), (1e-9, 1)])
def test_effort_scales_the_epochs(effort, epochs):
    X = np.random.default_rng(0).normal(size=(40, 2))
    assert ClosedFormRegressor(effort=effort, random_state=0).fit(X, X[:, 0]).n_iter_ == epochs


def line_of(X, y, weight=None):
    weight = np.ones(len(X)) if weight is None else weight
    return straight(X, y[:, None], weight, scaled(X, *centre_and_scale(X, weight)))


def long_tails(n=300, seed=0):
    rng = np.random.default_rng(seed)
    return np.exp(1.5 * rng.normal(size=(n, 3))), rng


def test_the_last_layer_sees_plain_columns_where_the_truth_is_a_line_in_them():
    X, rng = long_tails()
    y = X @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=len(X))
    line = line_of(X, y)
    seen = as_lines(X, line)
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(seen.std(0), 1, rtol=1e-12)
    np.testing.assert_allclose(as_lines(1e9 * X, line).max(0), BEYOND * np.abs(seen).max(0))
    assert not line_of(X, np.log(X) @ [1.0, -2.0, 0.5])[2].any()


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_neither_units_nor_the_way_of_counting_rows_change_what_the_last_layer_sees(size):
    X, rng = long_tails(60)
    y, weight = X.sum(1) + 0.1 * rng.normal(size=60), rng.integers(1, 4, 60).astype(float)
    line = line_of(X * size, y, weight)
    assert line[2].all()
    np.testing.assert_allclose(as_lines(X * size, line), as_lines(X, line_of(X, y, weight)), rtol=1e-9, atol=1e-12)


def test_a_line_in_columns_with_long_tails_is_learned():
    X, rng = long_tails(1200, seed=2)
    y = X @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=len(X))
    inside = (X[700:] < X[:700].max(0)).all(1)
    model = ClosedFormRegressor(random_state=0, max_iter=15).fit(X[:700], y[:700])
    assert model.features(X).shape[1] == model.engine_.members * (48 + 3)
    error = np.sqrt(np.mean((model.predict(X[700:]) - y[700:])[inside] ** 2))
    assert error < 0.05 * y.std()


@pytest.mark.parametrize("n", [1, 2])
def test_few_rows_see_the_columns_drawn_in(n):
    assert not line_of(np.arange(2.0 * n).reshape(n, 2), np.arange(float(n)))[2].any()


def test_a_column_of_mostly_zeros_is_scaled_by_the_others():
    g = np.random.default_rng(0)
    few = np.where(g.uniform(size=400) < 0.1, g.uniform(1, 3, 400), 0.0)
    few[:2] = 1e6, -5.0
    centre, scale = centre_and_scale(few[:, None], np.ones(400))
    assert centre == 0
    assert 1 < scale < 3
    weight = np.where(few == 0, 2.0, 1.0)  # a weight of two is a row given twice
    twice = np.r_[few, few[few == 0]]
    assert centre_and_scale(few[:, None], weight) == centre_and_scale(twice[:, None], np.ones(len(twice)))
    rare = (few > 0).astype(float)
    assert centre_and_scale(rare[:, None], np.ones(400))[1] == 0.5


def test_what_is_only_rounding_is_no_unit():
    for small, large in ((1e-17, 20.0), (1e-9, 8.0)):
        column = np.r_[np.zeros(90), np.full(6, small), np.linspace(5, large, 4)]
        assert centre_and_scale(column[:, None], np.ones(100))[1] > 1
