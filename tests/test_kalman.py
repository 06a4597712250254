"""The filter: both forms, forgetting, drift, and the paper's proximal step inside it."""

import pytest
import torch

import closedform as cf
from closedform.solver import reference

from .helpers import columns, head, matrix, problem, relative


def stream(count, n, d, o, seed=0):
    g = torch.Generator().manual_seed(seed)
    W = torch.randn(o, d, generator=g, dtype=torch.float64)
    for _ in range(count):
        phi = torch.randn(n, d, generator=g, dtype=torch.float64)
        yield phi, phi @ W.T + 0.3 + 0.1 * torch.randn(n, o, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("n", [3, 12])
@pytest.mark.parametrize(("gamma", "q"), [(1.0, 0.0), (0.95, 0.0), (1.0, 0.01), (0.9, 0.02)])
@pytest.mark.parametrize("form", ["information", "covariance"])
def test_it_is_the_textbook_filter_on_all_weights(n, gamma, q, form):
    d, o, lam = 4, 2, 0.7
    layer = head(d, o, cf.Kalman(gamma, q, lam, form=form))
    mean, covariance = matrix(layer), torch.eye(o * (d + 1), dtype=torch.float64) / lam
    for t, (phi, y) in enumerate(stream(20, n, d, o)):
        layer.solve(phi, y)
        mean, covariance = reference.kalman(mean, covariance, columns(phi, True), y.T, gamma, q, first=t == 0)
        assert relative(matrix(layer), mean) < 1e-9
    # the covariance of all weights is one small matrix, once for each output
    P = layer._memory()[form] if form == "covariance" else torch.linalg.inv(layer._memory()[form]).contiguous()
    assert relative(torch.kron(torch.eye(o, dtype=torch.float64), P), covariance) < 1e-8


@pytest.mark.parametrize("n", [3, 12])
@pytest.mark.parametrize(("gamma", "q"), [(1.0, 0.0), (0.99, 0.0), (0.999, 1e-3), (0.9, 0.1)])
def test_the_two_forms_agree_for_a_thousand_steps(n, gamma, q):
    first = head(8, 2, cf.Kalman(gamma, q, 10.0, form="information"))
    second = head(8, 2, cf.Kalman(gamma, q, 10.0, form="covariance"))
    for phi, y in stream(1000, n, 8, 2):
        first.solve(phi, y)
        second.solve(phi, y)
        assert relative(matrix(first), matrix(second)) < 1e-8
    probe = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert relative(first.variance(probe), second.variance(probe)) < 1e-6


@pytest.mark.parametrize("n", [3, 12])
@pytest.mark.parametrize("form", ["information", "covariance"])
def test_proximal_is_the_filter_with_its_covariance_set_back(n, form):
    proximal, kalman = head(6, 2, cf.Proximal(3.0)), head(6, 2, cf.Kalman(0.9, 0.1, 3.0, form=form))
    for phi, y in stream(30, n, 6, 2):
        proximal.solve(phi, y)
        kalman.rule = kalman.rule  # a fresh memory: P = I / lam in place of the predict
        kalman.solve(phi, y)
        assert relative(matrix(kalman), matrix(proximal)) < 1e-10


def test_without_forgetting_it_is_ridge_on_everything_seen():
    layer = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(forget=1.0, lam=2.0), dtype=torch.float64)
    seen = list(stream(15, 4, 6, 2))
    for phi, y in seen:
        layer.solve(phi, y)
    phi, y = torch.cat([p for p, _ in seen]), torch.cat([t for _, t in seen])
    assert relative(matrix(layer), reference.ridge(columns(phi, True), y.T, 2.0)) < 1e-9


@pytest.mark.parametrize("form", ["information", "covariance"])
def test_variance_is_calibrated(form):
    """Standardised errors on unseen data have unit variance, for each output with its own noise."""
    g = torch.Generator().manual_seed(3)
    W = torch.randn(2, 10, generator=g, dtype=torch.float64)
    noise = torch.tensor([0.1, 2.0], dtype=torch.float64)
    layer = cf.ClosedFormLinear(10, 2, rule=cf.Kalman(1.0, lam=1e-3, form=form), dtype=torch.float64)
    draw = lambda n: torch.randn(n, 10, generator=g, dtype=torch.float64)  # noqa: E731
    for _ in range(60):
        phi = draw(5)
        layer.solve(phi, phi @ W.T + noise * torch.randn(5, 2, generator=g, dtype=torch.float64))
    phi = draw(4000)
    error = phi @ W.T + noise * torch.randn(4000, 2, generator=g, dtype=torch.float64) - layer(phi)
    z = error / layer.variance(phi).sqrt()
    assert torch.allclose(z.square().mean(0), torch.ones(2, dtype=torch.float64), atol=0.25)


@pytest.mark.parametrize("rule", [cf.Kalman(), cf.Kalman(1.0), cf.Kalman(0.999)])
def test_a_wrong_prior_is_not_taken_for_noise_for_long(rule):
    g = torch.Generator().manual_seed(3)
    W = 3 * torch.randn(1, 10, generator=g, dtype=torch.float64)
    layer = cf.ClosedFormLinear(10, 1, rule=rule, dtype=torch.float64)
    for _ in range(400):
        phi = torch.randn(32, 10, generator=g, dtype=torch.float64)
        layer.solve(phi, phi @ W.T + 0.5 * torch.randn(32, 1, generator=g, dtype=torch.float64))
    assert float(layer.variance(phi).mean()) == pytest.approx(0.25, rel=0.5)


def test_variance_of_a_batched_input_has_the_shape_of_the_output():
    layer = head(6, 3, cf.Kalman())
    layer.solve(*problem(4, 6, 3))
    assert layer.variance(torch.zeros(2, 5, 6)).shape == (2, 5, 3)


def test_memory_is_precise_whatever_the_layer_is():
    layer = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(), dtype=torch.bfloat16)
    assert layer._memory()["information"].dtype == torch.float64
    layer.half()
    assert layer._memory()["information"].dtype == torch.float64


def test_forms_by_size():
    assert "information" in cf.Kalman().memory(512, 1)
    assert "covariance" in cf.Kalman().memory(513, 1)
