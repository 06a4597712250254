"""Class probabilities: the paper's, and those of a fitted temperature."""

import math

import pytest
import torch
from torch.nn import functional as F

from closedform import probabilities
from closedform.solver import reference


def outputs(n=200, classes=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    f = 0.4 * F.one_hot(labels, classes) + 0.3 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return f, labels


def test_shifted_is_the_papers_formula():
    f, _ = outputs()
    p = probabilities.shifted(f)
    for row, confidence in zip(f, p):
        assert torch.allclose(confidence, reference.class_confidence(row))
    assert torch.allclose(p.sum(1), torch.ones(len(p), dtype=torch.float64))
    assert torch.equal(p.argmax(1), f.argmax(1))


def test_equal_outputs_have_equal_probabilities():
    assert torch.equal(probabilities.shifted(torch.full((2, 4), 3.0)), torch.full((2, 4), 0.25))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("soft", [False, True])
def test_the_temperature_minimises_the_cross_entropy(scale, soft):
    f, labels = outputs()
    y = 0.9 * F.one_hot(labels, 5).double() + 0.02 if soft else labels
    temperature = probabilities.fit_temperature(scale * f, y)

    def value(t):
        return float(F.cross_entropy(scale * f / t, y, label_smoothing=1 / 201))

    assert all(value(temperature) <= value(temperature * factor) for factor in (0.5, 0.99, 1.01, 2.0))
    best, _ = outputs()
    assert temperature == pytest.approx(scale * probabilities.fit_temperature(best, y), rel=1e-6)
    assert value(temperature) < math.log(5)


def test_calibrated_outputs_have_the_temperature_that_made_them():
    g = torch.Generator().manual_seed(0)
    f = torch.randn(20_000, 4, generator=g, dtype=torch.float64)
    labels = torch.multinomial(probabilities.tempered(f, 0.5), 1, generator=g)[:, 0]
    assert probabilities.fit_temperature(f, labels) == pytest.approx(0.5, rel=0.03)


def test_the_ends_of_the_range():
    _, labels = outputs()
    perfect = F.one_hot(labels, 5).double()
    assert float(probabilities.tempered(perfect, probabilities.fit_temperature(perfect, labels)).amax(1).mean()) > 0.99
    wrong = probabilities.tempered(-perfect, probabilities.fit_temperature(-perfect, labels))
    assert torch.allclose(wrong, torch.full_like(wrong, 0.2), atol=1e-3)
    assert probabilities.fit_temperature(torch.zeros(3, 2), torch.zeros(3).long()) == 1.0


@pytest.mark.parametrize(
    ("f", "y", "message"),
    [
        (torch.zeros(3), torch.zeros(3), r"got \(3,\) and \(3,\)"),
        (torch.zeros(0, 2), torch.zeros(0), "are needed"),
        (torch.zeros(3, 2), torch.zeros(4), r"got \(3, 2\) and \(4,\)"),
        (torch.full((3, 2), float("nan")), torch.zeros(3).long(), "NaN or infinite"),
    ],
)
def test_bad_outputs(f, y, message):
    with pytest.raises(ValueError, match=message):
        probabilities.fit_temperature(f, y)


def test_what_is_no_probability_is_not_hidden():
    assert probabilities.shifted(torch.tensor([[math.nan, 1.0]])).isnan().all()
    f = torch.randn(5, 3)
    for y in (torch.full((5,), 9), torch.full((5,), -1)):
        with pytest.raises(ValueError, match="labels must be 0 to 2, got"):
            probabilities.fit_temperature(f, y)
    for y in (torch.rand(5), torch.ones(5, dtype=torch.bool)):
        with pytest.raises(ValueError, match="whole-number labels"):
            probabilities.fit_temperature(f, y)
    with pytest.raises(ValueError, match="add up to 1"):
        probabilities.fit_temperature(f, torch.full((5, 3), 7.0))
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="expected a positive number"):
            probabilities.tempered(f, temperature)
