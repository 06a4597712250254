"""Theorem 5.2: the kernels against quadrature and wide networks, the flow of the limit, and networks that approach it."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("scipy")

from closedform.theory import critical_points as cp
from closedform.theory import finite, flow, ntk

from .helpers import relative

ACTIVATION = pytest.mark.parametrize("activation", ["relu", "erf", "gelu"])


def inputs(n=8, d=3, seed=0):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True) * d**0.5


def targets(n=8, o=2, seed=1):
    return torch.randn(n, o, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@ACTIVATION
@pytest.mark.parametrize("scale", [0.2, 1.0, 4.0])
def test_the_dual_activations(activation, scale):
    """Closed forms against Gauss-Hermite quadrature in two dimensions."""
    S = scale * torch.tensor([[1.0, 0.4], [0.4, 2.0]], dtype=torch.float64)
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    z = torch.from_numpy(np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2))
    w = torch.from_numpy(np.outer(weights, weights).reshape(-1)) / (2 * math.pi)
    uv = (z @ torch.linalg.cholesky(S).T).requires_grad_()
    values = finite.ACTIVATIONS[activation](uv)
    slopes = torch.autograd.grad(values.sum(), uv)[0]
    values = values.detach()
    product, slope = ntk.DUALS[activation](S)
    tolerance = 2e-2 if activation == "relu" else 1e-8  # a kink is what quadrature is bad at
    assert float(product[0, 1]) == pytest.approx(float((w * values.prod(1)).sum()), rel=tolerance)
    assert float(slope[0, 1]) == pytest.approx(float((w * slopes.prod(1)).sum()), rel=tolerance)
    assert float(product[0, 1]) == pytest.approx(float(product[1, 0]), rel=1e-12)


@ACTIVATION
def test_the_kernels_are_those_of_wide_networks(activation):
    """Monte Carlo over initialisations; the mean of both kernels within a few standard errors."""
    x = inputs(4)
    k = ntk.kernels(x, depth=3, activation=activation)
    net = finite.FiniteNetwork((3, 400, 400, 400), activation)
    g = torch.Generator().manual_seed(0)
    nngp, tangent = [], []
    for _ in range(30):
        parameters = net.draw(g)
        phi = net.features(parameters, x)
        nngp.append(phi @ phi.T / phi.shape[1])
        tangent.append(net.tangent_kernel(parameters, x))
    for measured, limit in ((torch.stack(nngp), k.nngp), (torch.stack(tangent), k.ntk)):
        error = (measured.mean(0) - limit).abs()
        assert (error < 4 * measured.std(0) / 30**0.5 + 0.01 * limit.abs()).all()
        assert relative(measured.mean(0), limit) < 0.03


@ACTIVATION
def test_the_kernels_are_positive_definite(activation):
    """The theorem's assumption on distinct inputs, and the NTK exceeds the NNGP kernel."""
    k = ntk.kernels(inputs(), 3, activation)
    assert torch.linalg.eigvalsh(k.nngp)[0] > 1e-5
    assert torch.linalg.eigvalsh(k.ntk - k.nngp)[0] > 0


def test_features_have_the_nngp_covariance():
    k = ntk.kernels(inputs(4), 2).nngp
    phi = ntk.features(k, 40_000, torch.Generator().manual_seed(0))
    assert relative(phi @ phi.T / 40_000, k) < 0.02


@ACTIVATION
@pytest.mark.parametrize("d", [2, 3, 6])
def test_the_flow_reaches_the_targets(activation, d):
    """From random starts: what is attained never falls, all is attained in the end, and the conserved matrix is."""
    k, Y = ntk.kernels(inputs(), 3, activation), targets()
    phi = ntk.features(k.nngp, d, torch.Generator().manual_seed(d))
    path = flow.integrate(phi, Y, k.ntk, until=1000.0, points=40)
    assert path.attained[0] < 0.95
    assert (path.attained.diff() > -1e-9).all()
    assert 1 - path.attained[-1] < 1e-6
    assert path.drift < 1e-5
    assert len(path.t) == len(path.phi) == 41


def test_the_rate_is_four_times_the_trace():
    """Eq. 50 has 2 tr(AB); the derivative along the flow is twice that."""
    k, Y = ntk.kernels(inputs(), 2, "erf"), targets()
    phi = ntk.features(k.nngp, 3, torch.Generator().manual_seed(0))

    def attained(p):
        return cp.split(p, Y).attainable.square().sum()

    v = flow.velocity(phi, Y, k.ntk)
    numerical = float(attained(phi + 1e-5 * v) - attained(phi - 1e-5 * v)) / 2e-5
    perp, star = cp.split(phi, Y).unattainable, cp.split(phi, Y).attainable
    A = perp.T @ k.ntk @ perp
    B = star.T @ phi @ torch.linalg.matrix_power(phi.T @ phi, -2) @ phi.T @ star  # as the paper writes it
    assert numerical == pytest.approx(4 * float((A @ B).trace()), rel=1e-6)
    assert flow.rate(phi, Y, k.ntk) == pytest.approx(numerical, rel=1e-6)
    assert relative(v, -k.ntk @ cp.gradient(phi, Y)) < 1e-10  # eq. 46
    assert relative(flow.conserved(phi + 1e-6 * v, k.ntk), flow.conserved(phi, k.ntk)) < 1e-9
    assert relative(flow.conserved(phi + 1e-6 * k.ntk @ phi, k.ntk), flow.conserved(phi, k.ntk)) > 1e-7


def test_fewer_features_than_the_rank_of_the_targets():
    """Outside the theorem: the best that d directions can do, which is Eckart and Young's."""
    k, Y = ntk.kernels(inputs(), 3, "erf"), targets(o=3)
    S = torch.linalg.svdvals(Y) ** 2
    for d in (1, 2):
        phi = ntk.features(k.nngp, d, torch.Generator().manual_seed(0))
        attained = flow.integrate(phi, Y, k.ntk, until=3000.0, points=10).attained[-1]
        assert float(attained) == pytest.approx(float(S[:d].sum() / S.sum()), abs=1e-5)


def test_bad_critical_points_are_left():
    """At them the flow stands still; a little beside them it leaves, later the closer it starts."""
    k, Y = ntk.kernels(inputs(), 3, "erf"), targets()
    starts = {"orthogonal": cp.orthogonal(Y, 3), "saddle": cp.saddle(Y, 3, held=1)}
    noise = ntk.features(k.nngp, 3, torch.Generator().manual_seed(0))
    for bad in starts.values():
        assert flow.velocity(bad, Y, k.ntk).norm() < 1e-10
        share = cp.split(bad, Y).share
        half = []
        for size in (1e-2, 1e-4):
            path = flow.integrate(bad + size * noise, Y, k.ntk, until=2000.0, points=200)
            assert path.attained[0] < share + 0.01
            assert path.attained[-1] > 1 - 1e-6
            half.append(float(path.t[int((path.attained > (1 + share) / 2).nonzero()[0])]))
        assert half[1] > half[0]


def test_more_features_than_samples():
    """n < d: everything is attained from the start, and nothing moves."""
    k, Y = ntk.kernels(inputs(), 3, "erf"), targets()
    phi = ntk.features(k.nngp, 12, torch.Generator().manual_seed(0))
    assert cp.split(phi, Y).share == pytest.approx(1)
    assert flow.velocity(phi, Y, k.ntk).norm() < 1e-8 * phi.norm()


def test_networks_approach_the_limit():
    """Ten times closer for a hundred times the width, about."""
    x, Y = inputs(), targets(o=1)
    K, t = ntk.kernels(x, 2, "erf").ntk, flow.times(3.0, 8, 0.01)

    def distance(width):
        net = finite.FiniteNetwork((3, width, 2), "erf")
        return sum(
            math.log(finite.distance_to_limit(net, net.draw(torch.Generator().manual_seed(seed)), x, Y, K, t))
            for seed in range(6)
        )

    decades = (distance(32) - distance(3200)) / 6 / math.log(10)
    assert 0.6 < decades < 1.6


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least one layer"):
        ntk.kernels(inputs(), 0)
    with pytest.raises(ValueError, match="relu, erf, gelu"):
        ntk.kernels(inputs(), 2, "sine")
    with pytest.raises(ValueError, match=r"K \(n, n\)"):
        flow.integrate(torch.zeros(4, 2), torch.zeros(4, 1), torch.eye(3), 1.0)


def test_the_flow_is_float64():
    k, Y = ntk.kernels(inputs(), 3, "erf"), targets()
    phi = ntk.features(k.nngp, 3, torch.Generator().manual_seed(0)).float()
    assert flow.velocity(phi, Y.float(), k.ntk.float()).dtype == torch.float64
    assert flow.rate(phi, Y, k.ntk) == flow.rate(phi.double(), Y, k.ntk)
    assert torch.equal(flow.conserved(phi, k.ntk), flow.conserved(phi.double(), k.ntk))
    for function in (flow.velocity, flow.rate):
        with pytest.raises(ValueError, match=r"K \(n, n\)"):
            function(phi, Y[:5], k.ntk)
    with pytest.raises(ValueError, match=r"x must be \(n, inputs\)"):
        ntk.kernels(torch.randn(5), 2)


def test_of_no_targets_nothing_is_missing():
    k = ntk.kernels(inputs(), 3, "erf")
    phi = ntk.features(k.nngp, 3, torch.Generator().manual_seed(0))
    path = flow.integrate(phi, torch.zeros(8, 1), k.ntk, 1.0, points=3)
    assert path.missing.tolist() == [0.0] * 4
    assert relative(path.phi[-1], phi) < 1e-12


def test_a_missing_scipy_is_named():
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        "import torch; from closedform.theory import flow\n"
        "flow.integrate(torch.ones(2, 1), torch.ones(2, 1), torch.eye(2), 1.0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'closedform[theory]'" in result.stderr
