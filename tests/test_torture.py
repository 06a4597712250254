"""float32 under torture: ten thousand random problems, most of them nasty."""

import pytest
import torch

import closedform as cf
from closedform.solver import reference

from .cases import nasty
from .helpers import columns, matrix


def check(phi, y, lam, bias, kind):
    d, o = phi.shape[1], y.shape[1]
    rule = {
        "ridge": cf.Ridge(lam),
        "proximal": cf.Proximal(lam),
        "information": cf.Kalman(0.99, lam=lam, form="information"),
        "covariance": cf.Kalman(0.99, lam=lam, form="covariance"),
    }[kind]
    layer = cf.ClosedFormLinear(d, o, bias, rule=rule, init="zeros" if kind == "ridge" else "lecun")
    W_t, Phi, Y = matrix(layer), columns(phi, bias), y.double().T
    layer.solve(phi, y)
    assert torch.isfinite(matrix(layer)).all()
    assert all(torch.isfinite(tensor).all() for tensor in layer.state_dict().values())
    top = float(torch.linalg.svdvals(Phi)[0]) ** 2
    if lam < 1e-6 * top:
        return 0
    anchor = torch.zeros_like(W_t) if kind == "ridge" else W_t
    best = reference.proximal_loss(reference.proximal_svd(Phi, Y, anchor, lam), Phi, Y, anchor, lam)
    ours = reference.proximal_loss(matrix(layer), Phi, Y, anchor, lam)
    assert ours <= best * (1 + 1e-3) + 1e-10 * (Y**2).sum()
    return 1


@pytest.mark.parametrize("kind", ["ridge", "proximal", "information", "covariance"])
def test_ten_thousand_nasty_problems(kind):
    g = torch.Generator().manual_seed(7)
    torch.manual_seed(7)
    judged = sum(check(*nasty(g), kind) for _ in range(3400))
    assert judged > 1000


@pytest.mark.parametrize(
    "rule", [cf.Ridge(1e-8), cf.Ridge(0.0), cf.Proximal(1e-8), cf.Kalman(0.9, lam=1e-8), cf.Ema(0.0)]
)
@pytest.mark.parametrize("scale", [1e-18, 1e18])
def test_extreme_scales_leave_the_layer_finite(rule, scale):
    g = torch.Generator().manual_seed(0)
    layer = cf.ClosedFormLinear(6, 2, rule=rule)
    for _ in range(5):
        layer.solve(torch.randn(4, 6, generator=g) * scale, torch.randn(4, 2, generator=g))
    assert all(torch.isfinite(tensor).all() for tensor in layer.state_dict().values())


def test_a_long_run_on_nasty_batches_stays_finite_under_kalman():
    """Forgetting with dead, duplicate and huge features: variances must not wind up, nor the filter lock itself out."""
    g = torch.Generator().manual_seed(0)
    for form in ("information", "covariance"):
        layer = cf.ClosedFormLinear(8, 1, rule=cf.Kalman(0.9, lam=1e-3, form=form))
        W = torch.randn(8, generator=g)
        for _ in range(2000):
            phi = 100 * torch.randn(4, 8, generator=g)
            phi[:, 0] = 0
            phi[:, 1] = phi[:, 2]
            y = phi @ W[:, None] + 3
            layer.solve(phi, y)
        assert int(layer.rejected) == 0
        assert torch.allclose(layer(phi), y, rtol=1e-3, atol=1e-2), form
        assert torch.isfinite(layer.variance(phi)).all()


@pytest.mark.parametrize("form", ["information", "covariance"])
@pytest.mark.parametrize(("gamma", "n", "d", "rank"), [(0.99, 32, 64, 16), (0.9, 16, 100, 10), (0.9, 120, 100, 10)])
def test_directions_that_no_batch_shows_do_not_wind_up(form, gamma, n, d, rank):
    """Features of low rank: forgetting must neither burst the layer nor lock the filter."""
    g = torch.Generator().manual_seed(0)
    mix = torch.randn(rank, d, generator=g)
    layer = cf.ClosedFormLinear(d, 1, rule=cf.Kalman(gamma, form=form))
    truth = torch.randn(d, 1, generator=g)
    size = []
    for _ in range(2500 if d == 64 else 600):
        phi = torch.randn(n, rank, generator=g) @ mix
        layer.solve(phi, phi @ truth + 0.1 * torch.randn(n, 1, generator=g))
        size.append(float(layer.weight.norm()))
    assert int(layer.rejected) == 0
    assert size[-1] < 20 * size[50]
    moved = phi + 1e-3 * torch.randn(phi.shape, generator=g)
    assert float((layer(moved) - phi @ truth).square().mean()) < 0.1
