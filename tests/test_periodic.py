"""The written-out passes of perceptrons with waves against autograd and against the formula."""

import math

import pytest
import torch

from closedform.stack.networks import ACTIVATIONS
from closedform.stack.periodic import FREQUENCY, MIXED, SPEED, PeriodicModule, PeriodicPerceptron

CASES = [(4, (), 5), (4, (0, 1, 2, 3), 5), (5, (1, 4), 3), (1, (0,), 1)]


def models(inputs, columns, waves, activation="gelu", members=3, hidden=(7, 6), alone=0):
    network = PeriodicPerceptron(inputs, columns, waves, hidden, activation, alone)
    generator = torch.Generator().manual_seed(1)
    drawn = [network.drawn(generator) for _ in range(members)]
    return network, [torch.stack(column) for column in zip(*drawn)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("alone", [0, 2])
@pytest.mark.parametrize(("inputs", "columns", "waves"), CASES)
def test_passes_are_those_of_autograd(inputs, columns, waves, alone, activation):
    network, params = models(inputs, columns, waves, activation, alone=alone)
    x = torch.randn(9, inputs + alone, dtype=torch.float64)
    gradient = torch.randn(3, network.width, 9, dtype=torch.float64)
    phi, seen = network.forward(params, x[None])
    slow = [PeriodicModule(network, [p[m] for p in params]) for m in range(3)]
    expected = torch.stack([member(x).T for member in slow])
    torch.testing.assert_close(phi, expected.detach(), rtol=1e-12, atol=1e-12)
    out = [torch.full_like(p, float("nan")) for p in params]
    network.backward(params, seen, gradient, out)
    (expected * gradient).sum().backward()
    for k, got in enumerate(out):
        right = torch.stack([member.params[k].grad for member in slow])
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)


def test_numbers_for_the_last_layer_alone():
    network, params = models(3, (0,), 2, alone=2)
    x = torch.randn(1, 5, 5, dtype=torch.float64)
    phi, _ = network.forward(params, x)
    assert network.width == 6 + 2
    assert torch.equal(phi[:, 6:], x[:, :, 3:].mT.expand(3, -1, -1))
    other = x.clone()
    other[..., 3:] = 7.0
    assert torch.equal(network.forward(params, other)[0][:, :6], phi[:, :6])


def test_first_parameters_have_the_spread_that_is_promised():
    network, params = models(40, range(40), 30, members=2, hidden=(50, 50))
    frequency, phase, mix, beside, weight = params[:5]
    assert network.seen_inputs == 40 * (1 + MIXED)
    assert abs(float(frequency.std()) * SPEED / FREQUENCY - 1) < 0.1
    assert float(phase.abs().max()) * SPEED <= math.pi
    assert abs(float(mix.std()) * SPEED * 30**0.5 - 1) < 0.1
    for part in (beside, weight):
        assert abs(float(part.std()) * network.seen_inputs**0.5 - 1) < 0.1


def test_a_model_does_not_depend_on_how_many_follow():
    _, two = models(4, (0, 2), 3, members=2)
    _, three = models(4, (0, 2), 3, members=3)
    for a, b in zip(two, three):
        assert torch.equal(a, b[:2])
