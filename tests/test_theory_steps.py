"""Theorem 5.3, and Propositions 3.1 and 4.1 with the remark on second derivatives."""

import pytest
import torch

from closedform import theory
from closedform.theory import critical_points as cp

from .helpers import backbone, batches, features, problem, relative


def loss(phi, Y, W):
    return float((Y - phi @ W.T).square().sum())


def layer(o, d, seed=3):
    return torch.randn(o, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("n", "d", "o"), [(30, 9, 1), (30, 9, 3), (9, 9, 2), (5, 9, 3), (1, 4, 2), (6, 1, 1)])
@pytest.mark.parametrize("condition", [1.0, 30.0, 1e3])
def test_the_bound_holds_and_is_attained(n, d, o, condition):
    phi, Y = problem(n, d, o, condition=condition)
    W = layer(o, d)
    step = theory.one_step(phi, Y, W)
    gained = loss(phi, Y, W) - loss(phi, Y, cp.best_layer(phi, Y))
    assert step.gain == pytest.approx(gained, rel=1e-6)

    def measured(rate):
        gradient = 2 * (phi @ W.T - Y).T @ phi
        return (loss(phi, Y, W) - loss(phi, Y, W - rate * gradient)) / gained

    assert measured(step.learning_rate) == pytest.approx(step.ratio, rel=1e-6)
    assert step.ratio == pytest.approx(step.bound, rel=1e-9)
    for factor in (0.1, 0.5, 0.9, 1.1, 1.5, 2.5):
        rate = factor * step.learning_rate
        assert measured(rate) < step.bound * (1 - 1e-4)
        assert measured(rate) == pytest.approx(step.ratio_at(rate), rel=1e-5)
    assert 0 < step.bound <= 1
    assert float(step.probability.sum()) == pytest.approx(1)


def test_the_bound_over_random_problems():
    """Whatever the spectrum, the rank and the rate."""
    for seed in range(200):
        g = torch.Generator().manual_seed(seed)
        n, d, o = (int(torch.randint(1, 15, (1,), generator=g)) for _ in range(3))
        rank = int(torch.randint(1, min(n, d) + 1, (1,), generator=g))
        phi = features(n, d, condition=float(10 ** (3 * torch.rand(1, generator=g))), rank=rank, seed=seed)
        Y, W = torch.randn(n, o, generator=g, dtype=torch.float64), layer(o, d, seed)
        step = theory.one_step(phi, Y, W)
        rate = float(3 * torch.rand(1, generator=g)) * step.learning_rate
        gradient = 2 * (phi @ W.T - Y).T @ phi
        ratio = (loss(phi, Y, W) - loss(phi, Y, W - rate * gradient)) / step.gain
        assert ratio <= step.bound * (1 + 1e-8)
        assert step.ratio == pytest.approx(step.bound, rel=1e-7)
        assert len(step.singular) == rank


def test_repeated_singular_values():
    """Equal values: one gradient step is as good as the closed form. Two groups: P is summed over each."""
    phi, Y = features(8, 4, condition=1.0), problem(8, 4, 2)[1]
    step = theory.one_step(phi, Y, layer(2, 4))
    assert step.bound == pytest.approx(1, abs=1e-12)
    assert step.ratio == pytest.approx(1, abs=1e-12)
    U, _, V = torch.linalg.svd(features(8, 4, condition=3.0), full_matrices=False)
    W = layer(2, 4)
    S = torch.tensor([2.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    grouped = theory.one_step(U * S @ V, Y, W)
    mass = (U.T @ (Y - U * S @ V @ W.T)).square().sum(1)
    p = float(mass[:2].sum() / mass.sum())
    mean, mean_square = 4 * p + (1 - p), 16 * p + (1 - p)
    assert grouped.bound == pytest.approx(mean**2 / mean_square, rel=1e-10)
    assert grouped.variation == pytest.approx((mean_square / mean**2 - 1) ** 0.5, rel=1e-10)
    rotated = torch.linalg.qr(layer(4, 4))[0]  # other singular vectors of the same matrix do not matter
    assert theory.one_step(U * S @ V @ rotated, Y, W @ rotated).bound == pytest.approx(grouped.bound, rel=1e-10)


def test_a_spread_spectrum_makes_the_gradient_step_worse():
    Y, W = problem(20, 6, 1)[1], layer(1, 6)
    bounds = [theory.one_step(features(20, 6, condition=c), Y, W).bound for c in (1.0, 5.0, 100.0)]
    assert bounds[0] > bounds[1] > bounds[2]


def test_nothing_left_to_gain():
    phi, Y = problem(9, 3, 2)
    with pytest.raises(ValueError, match="nothing to compare"):
        theory.one_step(phi, Y, cp.best_layer(phi, Y))
    with pytest.raises(ValueError, match=r"phi \(n, d\)"):
        theory.one_step(phi, Y, layer(3, 2))


def test_no_features_no_comparison():
    for n in (0, 4):
        with pytest.raises(ValueError, match="nothing to compare"):
            theory.one_step(torch.zeros(n, 3), torch.ones(n, 1), torch.ones(1, 3))
    with pytest.raises(ValueError, match="finite"):
        theory.one_step(torch.full((4, 3), float("nan")), torch.ones(4, 1), torch.ones(1, 3))


def test_a_layer_solved_in_float32_is_the_best_one():
    """To its own precision: what is left is rounding, and has no ratio."""
    for seed in range(20):
        phi, Y = (t.float() for t in problem(12, 5, 2, seed=seed))
        W = torch.linalg.lstsq(phi, Y).solution.T
        with pytest.raises(ValueError, match="nothing to compare"):
            theory.one_step(phi, Y, W)
        assert theory.one_step(phi, Y, 0.99 * W).ratio > 0


@pytest.mark.parametrize("unit", [1e-150, 1e-100, 1e100, 1e150])
def test_units_do_not_matter(unit):
    phi, Y = problem(9, 4, 2, condition=30.0)
    W = layer(2, 4)
    plain, far = theory.one_step(phi, Y, W), theory.one_step(unit * phi, Y, W / unit)
    for key in ("ratio", "bound", "variation", "gain"):
        assert getattr(far, key) == pytest.approx(getattr(plain, key), rel=1e-9), key


def test_features_of_a_graph_are_taken_as_they_are(recwarn):
    phi, Y = problem(9, 4, 2)
    W = layer(2, 4)
    assert theory.one_step(phi.clone().requires_grad_(), Y, W).ratio == theory.one_step(phi, Y, W).ratio
    assert len(recwarn) == 0


# ---- Propositions 3.1 and 4.1 --------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 20])
@pytest.mark.parametrize("proximal", [False, True])
def test_no_gradient_through_the_solution_is_needed(n, proximal):
    net, (x, Y) = backbone(width=6), batches(1, n=n)[0]
    W_t = layer(2, 6) if proximal else None
    gap = theory.envelope_gap(net, x, Y, 0.7, W_t)
    assert gap.gap < 1e-12
    assert gap.through.norm() > 1e-3
    assert gap.through.shape == (sum(p.numel() for p in net.parameters()),)
    assert theory.envelope_gap(net, x, Y, 0.7, W_t, off=0.3).gap > 1e-2  # only at the minimiser


def test_the_gap_needs_parameters():
    net, (x, Y) = backbone().requires_grad_(False), batches(1)[0]
    with pytest.raises(ValueError, match="no parameters"):
        theory.envelope_gap(net, x, Y, 1.0)


class Half(torch.nn.Module):
    """A backbone with parameters that its features do not depend on, and statistics that a forward changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.idle = torch.nn.Linear(3, 4).double(), torch.nn.Linear(3, 4).double()
        self.norm = torch.nn.BatchNorm1d(4).double()

    def forward(self, x):
        return self.norm(self.used(x))


def test_idle_parameters_and_statistics():
    net, (x, Y) = Half(), batches(1, n=20)[0]
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    envelope = theory.envelope_gap(net, x, Y, 0.5)
    assert envelope.gap < 1e-12
    assert envelope.through.numel() == sum(p.numel() for p in net.parameters())
    assert int((envelope.through == 0).sum()) >= 16
    assert all(torch.equal(before[name], buffer) for name, buffer in net.named_buffers())
    net(x)
    assert int(net.norm.num_batches_tracked) == 1  # which a plain forward does change


def test_targets_that_are_zero_have_no_gap():
    net, (x, Y) = backbone(), batches(1)[0]
    assert theory.envelope_gap(net, x, 0 * Y, 1.0).gap == 0


def test_a_backbone_in_float32():
    net, (x, Y) = backbone(dtype=torch.float32), batches(1, n=20, dtype=torch.float32)[0]
    envelope = theory.envelope_gap(net, x, Y, 1.0, layer(2, 6))
    assert envelope.through.dtype == torch.float64
    assert envelope.gap < 1e-6


def test_bad_arguments_of_the_gap():
    net, (x, Y) = backbone(), batches(1)[0]
    for lam in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="lam must be zero or positive"):
            theory.envelope_gap(net, x, Y, lam)
    with pytest.raises(ValueError, match=r"Y must be \(n, o\)"):
        theory.envelope_gap(net, x, Y[:, 0], 1.0)
    with pytest.raises(ValueError, match=r"W_t must have shape \(2, 6\)"):
        theory.envelope_gap(net, x, Y, 1.0, layer(6, 2))
    with pytest.raises(ValueError, match="beta"):
        theory.hessians(*problem(4, 2, 1), -1.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gap_on_a_device():
    net, (x, Y) = backbone(), batches(1, n=20)[0]
    assert theory.envelope_gap(net.cuda(), x.cuda(), Y.cuda(), 0.7).gap < 1e-12
    assert theory.envelope_gap(net, x.cuda(), Y, 0.7, layer(2, 6)).gap < 1e-12


def test_hessians_are_float64():
    phi, Y = problem(4, 2, 1)
    true, held = theory.hessians(phi.float(), Y.float(), 0.5)
    assert true.dtype == held.dtype == torch.float64
    assert relative(true, theory.hessians(phi.float().double(), Y.float().double(), 0.5)[0]) < 1e-14


def test_second_derivatives_differ():
    """At features orthogonal to the targets: held zero, true negative. Elsewhere the true one is the Schur complement."""
    Y = problem(4, 2, 1)[1]
    true, held = theory.hessians(cp.orthogonal(Y, 2), Y, 0.5)
    assert held.norm() < 1e-12
    w = torch.linalg.eigvalsh(true)
    assert w[0] < -0.1 * Y.square().sum()
    assert w[-1] < 1e-12  # a maximum
    phi, Y = problem(5, 2, 2)
    true, held = theory.hessians(phi, Y, 0.5)
    W = cp.best_layer(phi, Y, 0.5)
    cross = torch.autograd.functional.hessian(
        lambda p, w: (Y - p @ w.T).square().sum() + 0.5 * w.square().sum(), (phi, W)
    )
    mixed, inner = cross[0][1].reshape(10, 4), cross[1][1].reshape(4, 4)
    assert relative(true, held - mixed @ torch.linalg.solve(inner, mixed.T)) < 1e-10
    assert torch.linalg.eigvalsh(held)[0] > -1e-10
    assert torch.linalg.eigvalsh(true)[0] < -1e-3
