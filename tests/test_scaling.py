"""Scaling of inputs: the quantiles by their definition, weights as repeated rows, sizes at the ends of floats."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from closedform.tabular import ClosedFormRegressor
from closedform.tabular.scaling import FAR, MOST_COLUMNS, centre_and_scale, scaled, wavy


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
    assert np.abs(scaled(np.array([[1e308, -1e308]]), *centre_and_scale(X * size, np.ones(50)))).max() <= FAR


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
