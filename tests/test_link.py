"""From least-squares outputs to probabilities."""

import numpy as np
import pytest
from scipy.special import softmax

from closedform.tabular.link import POWERS, SCALES, Link, fitted


def table(n, classes, seed=0):
    """Rows of true probabilities, some of them zero, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.5), n)
    p[p < 0.05] = 0
    p /= p.sum(1, keepdims=True)
    labels = np.array([rng.choice(classes, p=row) for row in p])
    return p, labels, np.ones(n)


def loss(p, labels):
    return -np.log(p[np.arange(len(p)), labels]).mean()


@pytest.mark.parametrize("link", [Link(), Link(0.003, 8.0, 0.0), Link(3.0, 0.3, 1e-2)])
def test_rows_add_up_to_one_in_the_order_of_the_outputs(link):
    outputs = np.random.default_rng(0).normal(0.3, 0.5, (200, 5))
    outputs[0] = -1e6
    outputs[1] = 1e6, -1e6, 0, 0, 0
    p = link.probabilities(outputs)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(1), 1)
    assert np.array_equal(p[1:].argmax(1), outputs[1:].argmax(1))
    assert (np.diff(np.take_along_axis(p, outputs.argsort(1), 1), axis=1) >= 0).all()


def test_outputs_that_are_probabilities_stay_so():
    p, labels, weights = table(4000, 6)
    link = fitted(p, labels, weights)
    assert np.abs(link.probabilities(p) - p).max() < 0.1
    assert loss(link.probabilities(p), labels) < loss(p.clip(1e-12), labels) + 0.02


def test_least_cross_entropy_of_a_fine_grid():
    p, labels, weights = table(600, 4, seed=1)
    outputs = 0.8 * p + 0.05 + 0.1 * np.random.default_rng(2).normal(size=p.shape)
    weights = np.random.default_rng(3).uniform(0.5, 2, len(p))

    def value(link):
        right = link.probabilities(outputs)[np.arange(len(p)), labels]
        return -(weights * np.log(right)).sum() / weights.sum()

    grid = [Link(scale, power, 1 / 600) for scale in np.geomspace(*SCALES, 40) for power in np.geomspace(*POWERS, 40)]
    assert value(fitted(outputs, labels, weights)) < min(value(link) for link in grid) + 1e-3


def test_better_than_any_temperature_with_many_classes():
    """A softmax gives classes that are out of the question a share each."""
    p, labels, weights = table(3000, 12, seed=4)
    outputs = p + 0.02 * np.random.default_rng(5).normal(size=p.shape)
    best = min(loss(softmax(outputs / t, 1), labels) for t in np.geomspace(0.01, 10, 60))
    assert loss(fitted(outputs, labels, weights).probabilities(outputs), labels) < 0.95 * best


def test_what_was_never_seen_is_not_impossible():
    outputs = np.tile([1.0, 0.0], (50, 1))
    link = fitted(outputs, np.zeros(50, int), np.ones(50))
    assert 1 / 200 < link.probabilities(outputs)[0, 1] < 1 / 40


def test_more_rows_than_are_needed():
    p, labels, weights = table(30_000, 3)
    few, many = fitted(p[:20_000], labels[:20_000], weights[:20_000]), fitted(p, labels, weights)
    assert many.floor == few.floor
    assert np.abs(many.probabilities(p[:100]) - few.probabilities(p[:100])).max() < 0.05
