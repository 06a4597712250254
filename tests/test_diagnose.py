"""The diagnostics measure what they say, leave everything as it was, and give advice where something is wrong."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import closedform as cf
from closedform import theory
from closedform.theory import critical_points as cp

from . import cases
from .diagnosis_cases import whole
from .helpers import backbone, batches, features, head, matrix, problem, relative


def extended(phi, bias):
    return nn.functional.pad(phi, (0, 1), value=1.0) if bias else phi


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n", "d"), [(40, 6), (12, 20), (40, 40)])
def test_loader_and_batch_agree_with_the_theory(n, d, bias):
    """By moments of many batches, or by the rows of one: the theory's own functions on all samples at once."""
    phi, y = problem(n, d, 3, condition=100.0)
    y = y + 2.0
    layer = head(d, 3, cf.Proximal(0.5), bias=bias)
    X, W = extended(phi, bias), matrix(layer)
    step, parts = theory.one_step(X, y, W), cp.split(X, y)
    total = (y - y.mean(0) if bias else y).square().sum()
    loader = cf.diagnose(layer, nn.Identity(), whole(phi, y))
    single = cf.diagnose_batch(layer, phi, y)
    singular = torch.linalg.svdvals(X)
    for d_, share in ((loader, 10 / n if n % 10 == 0 else (n / 2) / n), (single, 1.0)):
        assert (d_.samples, d_.features, d_.outputs, d_.bias) == (n, d, 3, bias)
        assert d_.rank == min(X.shape)
        assert relative(d_.eigenvalues[: d_.rank], share * singular[: d_.rank] ** 2) < 1e-9
        assert d_.gradient_share == pytest.approx(step.bound, rel=1e-8)
        assert d_.variation == pytest.approx(step.variation, rel=1e-8)
        assert float(d_.residual.sum()) == pytest.approx(1)
        assert d_.error == pytest.approx(float((y - X @ W.T).square().mean()), rel=1e-9)
        assert d_.best_error == pytest.approx(float(parts.unattainable.square().mean()), rel=1e-6, abs=1e-12)
        free = n - d_.rank
        if free > 0:
            ratio = (float(parts.unattainable.square().sum()) / free) / (float(total) / (n - int(bias)))
            assert d_.attainable == pytest.approx(max(0.0, 1 - ratio), abs=1e-9)
            assert d_.floor == pytest.approx(float(parts.unattainable.square().mean()) * n / free, rel=1e-6)
        else:
            assert math.isnan(d_.attainable)
            assert math.isnan(d_.floor)
        mean = float(share * phi.square().sum() / d)
        assert d_.lam_ratio == pytest.approx(0.5 / mean, rel=1e-9)
        assert d_.memory == pytest.approx(1 + 0.5 / mean, rel=1e-9)


def test_the_best_error_is_what_refit_reaches():
    net, (x, y) = backbone(width=6), batches(1, n=60)[0]
    layer = head(6, 2, cf.Proximal(3.0))
    loader = whole(x, y)
    best = cf.diagnose(layer, net, loader).best_error
    cf.refit_(layer, net, loader)
    after = cf.diagnose(layer, net, loader)
    assert after.error == pytest.approx(best, rel=1e-8)
    assert math.isnan(after.gradient_share)
    assert after.lag < 1e-8
    assert "nothing left to gain" in str(after)


def uneven(n, o=3):
    """Features of unequal scale, and targets that are partly linear in them."""
    g = torch.Generator().manual_seed(4)
    scale = torch.tensor([5.0, 2.0, 1.0, 0.5, 0.2, 0.1], dtype=torch.float64)
    phi = torch.randn(n, 6, generator=g, dtype=torch.float64) * scale
    W = torch.randn(o, 6, generator=g, dtype=torch.float64)
    return phi, phi @ W.T + 1 + 0.3 * torch.randn(n, o, generator=g, dtype=torch.float64)


rules = cases.rules(
    "far",
    "auto",
    "short vector",
    "per feature",
    "per sample",
    "schedule",
    "ridge",
    "ema",
    "kalman",
    "drifting information",
    "covariance",
)


@rules
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n", [50, 5])
def test_one_solve_goes_as_far_as_it_says(rule, bias, n):
    """`moved` is the share of the way to the batch's own solution, measured in its predictions along the residual, and
    `solve_share` what the solve takes off the error against what that solution does. After some solves, on a new batch."""
    phi, y = uneven(400)
    layer = cf.ClosedFormLinear(6, 3, bias, rule=rule, dtype=torch.float64)
    for i in range(6):
        layer.solve(phi[50 * i : 50 * i + 50], y[50 * i : 50 * i + 50])
    phi, y = phi[300 : 300 + n], y[300 : 300 + n]
    X = extended(phi, bias)
    before, best = X @ matrix(layer).T, X @ cp.best_layer(X, y).T
    diagnosis = cf.diagnose_batch(layer, phi, y)
    layer.solve(phi, y)
    after = X @ matrix(layer).T
    way = ((after - before) * (best - before)).sum() / (best - before).square().sum()
    assert diagnosis.moved == pytest.approx(float(way), rel=1e-7)
    gains = [(y - before).square().sum() - (y - end).square().sum() for end in (after, best)]
    assert diagnosis.solve_share == pytest.approx(float(gains[0] / gains[1]), rel=1e-7)
    assert (len(diagnosis.gains), diagnosis.held_out) == (1, False)


@rules
def test_solves_are_judged_on_the_other_data(rule):
    """Every batch of the loader by itself: what a real solve on it gains elsewhere, against what the best layer gains."""
    phi, y = uneven(200)
    layer = head(6, 3, rule)
    layer.solve(phi[:50], y[:50])
    diagnosis = cf.diagnose(layer, nn.Identity(), whole(phi, y, 20))
    X = extended(phi, True)

    def loss(W, rows):
        return float((y[rows] - X[rows] @ W.T).square().mean())

    everything = torch.ones(200, dtype=torch.bool)
    full = loss(matrix(layer), everything) - loss(cp.best_layer(X, y), everything)
    for i, gain in enumerate(diagnosis.gains.tolist()):
        solved, others = copy.deepcopy(layer), everything.clone()
        others[20 * i : 20 * i + 20] = False
        solved.solve(phi[~others], y[~others])
        assert gain == pytest.approx((loss(matrix(layer), others) - loss(matrix(solved), others)) / full, rel=1e-6)
    assert len(diagnosis.gains) == 10
    assert diagnosis.held_out
    assert diagnosis.solve_share == pytest.approx(float(diagnosis.gains.mean()))
    assert (
        f"of a full solve's gain on unseen data (10 tried: median {float(diagnosis.gains.median()) * 100:.3g} %"
        in str(diagnosis)
    )


def test_what_a_solve_closes_in_each_direction():
    phi, y = uneven(50)
    layer = head(6, 3, cf.Ema(5.0, 0.7), bias=False)
    diagnosis = cf.diagnose_batch(layer, phi, y)
    U = torch.linalg.svd(phi, full_matrices=False)[0]
    before = (U.T @ (y - phi @ matrix(layer).T)).square().sum(1)
    layer.solve(phi, y)
    after = (U.T @ (y - phi @ matrix(layer).T)).square().sum(1)
    assert relative(diagnosis.closed, 1 - after / before) < 1e-8
    assert float((diagnosis.residual * diagnosis.closed).sum()) == pytest.approx(diagnosis.solve_share, rel=1e-8)


def test_the_training_batch_may_be_of_another_size():
    """Pieces of that many rows are solved on, and lambda is compared with that many rows."""
    phi, y = uneven(200)
    layer = head(6, 3, cf.Proximal(30.0))
    asked = cf.diagnose(layer, nn.Identity(), whole(phi, y, 30), batch_size=50)
    loader_sized = cf.diagnose(layer, nn.Identity(), whole(phi, y, 50))
    assert asked.batch_size == loader_sized.batch_size == 50
    assert relative(asked.gains, loader_sized.gains) < 1e-10
    assert asked.memory == pytest.approx(loader_sized.memory, rel=1e-12)
    small = cf.diagnose(layer, nn.Identity(), whole(phi, y, 30), batch_size=10)
    assert len(small.gains) == 20
    assert small.lam_ratio == pytest.approx(5 * loader_sized.lam_ratio, rel=1e-12)
    none = cf.diagnose(layer, nn.Identity(), whole(phi, y, 30), batch_size=500)
    assert math.isnan(none.solve_share)
    assert "no batch of 500 samples" in str(none)


def test_a_solve_that_would_be_rejected_moves_nothing():
    class Broken(cf.Proximal):
        def update(self, W, batch, memory, step):
            return super().update(W, batch, memory, step)._replace(ok=torch.tensor(False))

    phi, y = problem(50, 6, 1)
    diagnosis = cf.diagnose_batch(head(6, 1, Broken(1.0)), phi, y)
    assert (diagnosis.moved, diagnosis.solve_share) == (0.0, 0.0)


def test_a_full_solve_goes_all_the_way():
    """Without lambda, also where the features lack some directions."""
    phi, y = features(30, 6, rank=4), problem(30, 6, 2)[1]
    diagnosis = cf.diagnose_batch(head(6, 2, cf.Ridge(0.0), bias=False), phi, y)
    assert diagnosis.rank == 4
    assert diagnosis.moved == pytest.approx(1)
    assert diagnosis.solve_share == pytest.approx(1)


@pytest.mark.parametrize("form", ["information", "covariance"])
@pytest.mark.parametrize("drift", [0.0, 0.3])
@pytest.mark.parametrize("forget", [0.9, 1.0])
def test_the_memory_of_the_filter(forget, drift, form):
    """One feature that is 20 and then 2 all the time: what the filter holds is known exactly."""
    layer = cf.ClosedFormLinear(1, 1, False, rule=cf.Kalman(forget, drift, 3.0, form), dtype=torch.float64)
    phi, y = torch.full((5, 1), 2.0, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    a = 3.0
    assert cf.diagnose_batch(layer, phi, y).memory == pytest.approx(1 + 3 / 20)
    for t in range(12):
        scale = 10 if t < 6 else 1
        layer.solve(scale * phi, y)
        a = (a if t == 0 else forget * a / (1 + drift * forget * a)) + 20 * scale**2
    assert cf.diagnose_batch(layer, phi, y).memory == pytest.approx(a / 20, rel=1e-6)


def test_the_memory_of_the_other_rules():
    phi, y = problem(50, 6, 1)

    def memory(rule):
        return cf.diagnose_batch(head(6, 1, rule), phi, y).memory

    assert memory(cf.Ridge(1.0)) == 1
    assert memory(cf.Ema(1.0, 0.75)) == 4
    assert memory(cf.Proximal("auto")) == pytest.approx(11)
    assert memory(cf.Proximal(cf.per_sample(2.0))) == memory(cf.Proximal(100.0))
    assert memory(cf.Proximal(torch.full((6,), 7.0))) == memory(cf.Proximal(7.0))


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_random_numbers_go_on_as_if_nobody_had_looked(shuffle):
    phi, y = problem(40, 4, 1)
    loader = DataLoader(TensorDataset(phi, y), batch_size=10, shuffle=shuffle)
    layer, before = head(4, 1), torch.get_rng_state()
    assert cf.diagnose(layer, nn.Identity(), loader).samples == 40
    assert torch.equal(torch.get_rng_state(), before)
    next(iter(loader))
    assert not torch.equal(torch.get_rng_state(), before)  # which an unwatched loader does change


def test_nothing_is_changed():
    """Modes, weights, memory, hooks, the pending targets of a buried head: all as before."""
    net = nn.Sequential(backbone(width=6), nn.Dropout(0.5), head(6, 2, cf.Kalman())).train()
    layer = net[2]
    x, y = batches(1, n=30)[0]
    layer.solve(net[0](x), y)
    layer.observe(y)
    before = copy.deepcopy(net.state_dict())
    a, b = cf.diagnose(layer, net, whole(x, y)), cf.diagnose(layer, net[0], whole(x, y))
    assert a.error == pytest.approx(b.error, rel=1e-12)  # the whole model or its backbone; no dropout in either
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert all(module.training for module in net.modules())
    assert not layer._forward_pre_hooks
    assert layer._observed is not None
    with pytest.raises(ValueError, match="the loader is empty"):
        cf.diagnose(layer, net, [])


def test_only_the_first_batches():
    phi, y = problem(40, 4, 1)
    assert cf.diagnose(head(4, 1), nn.Identity(), whole(phi, y), batches=2).samples == 20


def test_sample_weights_count():
    phi, y = problem(40, 4, 1)
    layer, weight = head(4, 1), torch.ones(40, dtype=torch.float64)
    weight[20:] = 0
    weighted = cf.diagnose(layer, nn.Identity(), [(phi, y, weight)])
    assert weighted.error == pytest.approx(cf.diagnose_batch(layer, phi[:20], y[:20]).error, rel=1e-10)
    assert weighted.samples == 20


def test_samples_are_rows_whatever_they_weigh():
    """A common factor of all weights changes nothing but lambda, which is in units of the sum."""
    phi, y = uneven(80)
    layer = head(6, 3, cf.Proximal(cf.per_sample(2.0)))
    weight = 0.5 + torch.rand(80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain, light = (
        cf.diagnose(
            layer, nn.Identity(), [(phi[i : i + 20], y[i : i + 20], c * weight[i : i + 20]) for i in (0, 20, 40, 60)]
        )
        for c in (1.0, 1e-3)
    )
    assert light.samples == plain.samples == 80
    for key in ("batch_size", "error", "floor", "attainable", "lam_ratio", "memory", "solve_share", "gradient_share"):
        assert getattr(light, key) == pytest.approx(getattr(plain, key), rel=1e-6), key


def test_pure_noise_is_not_attainable():
    """In sample, 64 features explain half of 128 random targets; of new ones, nothing."""
    g = torch.Generator().manual_seed(0)
    shares, lags = [], []
    for _ in range(20):
        phi, y = (torch.randn(128, k, generator=g, dtype=torch.float64) for k in (64, 3))
        diagnosis = cf.diagnose_batch(cf.ClosedFormLinear(64, 3, dtype=torch.float64), phi, y)
        assert diagnosis.best_error < 0.7 * diagnosis.error
        shares.append(diagnosis.attainable)
        lags.append(diagnosis.lag)
    assert sum(shares) / 20 < 0.1
    assert sum(lags) / 20 < 0.1


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e6, 1e8])
@pytest.mark.parametrize("where", ["targets", "features"])
def test_a_large_mean_hides_nothing(mean, where):
    """Against centred data, with the head's bias moved along."""
    phi, y = uneven(200)
    W = matrix(head(6, 3))
    plain, moved = (cf.ClosedFormLinear(6, 3, dtype=torch.float64) for _ in range(2))
    plain.set_weights_(W)
    W[:, 6] += mean if where == "targets" else -mean * W[:, :6].sum(1)
    moved.set_weights_(W)
    far = (phi, y + mean) if where == "targets" else (phi + mean, y)
    a, b = (cf.diagnose(h, nn.Identity(), whole(*d)) for h, d in ((plain, (phi, y)), (moved, far)))
    for key in ("error", "best_error", "attainable", "lag"):
        assert getattr(b, key) == pytest.approx(getattr(a, key), rel=1e-4), key
    assert (b.dead, b.constant) == (0, 0)


def test_what_sums_of_products_cannot_carry_is_said():
    y = problem(200, 12, 1)[1]
    for condition, words in ((1e4, None), (3e6, "near rounding level"), (1e9, "too weak for sums of products")):
        diagnosis = cf.diagnose(
            head(12, 1, bias=False), nn.Identity(), whole(features(200, 12, condition=condition), y)
        )
        assert (diagnosis.lost > 0) == (condition == 1e9)
        for text in ("near rounding level", "too weak for sums of products"):
            assert (text in str(diagnosis)) == (text == words), condition
    broken = features(200, 12)
    broken[:, :3], broken[:, 3:5] = 0, 0.7
    for bias in (True, False):
        assert cf.diagnose(head(12, 1, bias=bias), nn.Identity(), whole(broken, y)).lost == 0


@pytest.mark.parametrize(
    "batch",
    [
        lambda x, y: {"x": x, "y": y},
        lambda x, y: x,
        lambda x, y: (x,),
        lambda x, y: (x, y.numpy()),
        lambda x, y: ((x, x), y),
        lambda x, y: (x, y, 1.0),
        lambda x, y: (x, y, x[:, 0], x),
    ],
)
def test_batches_of_another_form(batch):
    x, y = problem(40, 4, 1)
    with pytest.raises(ValueError, match=r"a batch must be \(x, y\) or \(x, y, sample_weight\)"):
        cf.diagnose(head(4, 1), nn.Identity(), [batch(x, y)])


def test_other_bad_arguments():
    x, y = problem(40, 4, 1)
    for name in ("batches", "batch_size"):
        for value in (0, -1):
            with pytest.raises(ValueError, match=f"{name} must be at least 1"):
                cf.diagnose(head(4, 1), nn.Identity(), [(x, y)], **{name: value})
    assert cf.diagnose(head(4, 1), nn.Identity(), [(x, y, None)]).samples == 40


def test_a_wide_layer_needs_no_square_matrix():
    """A batch of few rows is diagnosed by its rows: at 50 000 features a D x D matrix would take 20 GB."""
    phi, y = features(8, 50_000), problem(8, 2, 2)[1]
    layer = cf.ClosedFormLinear(50_000, 2, rule=cf.Proximal("auto"), dtype=torch.float64)
    diagnosis = cf.diagnose_batch(layer, phi, y)
    assert diagnosis.lam_ratio == pytest.approx(10)


def test_a_plain_layer_is_diagnosed_too():
    phi, y = problem(60, 5, 2)
    plain = nn.Linear(5, 2).double()
    result = cf.diagnose_batch(plain, phi, y)
    assert result.rule is None
    assert math.isnan(result.lam)
    assert 0 < result.gradient_share <= 1
    assert "nn.Linear" in str(result)


def test_the_order_is_that_of_refit():
    net, layer = nn.Sequential(nn.Linear(3, 4)), head(4, 1)
    for call in (cf.diagnose, cf.refit_):
        with pytest.raises(ValueError, match=r"\(head, model, loader\).*got Sequential and ClosedFormLinear"):
            call(net, layer, [])


def test_the_default_rule_says_how_long_it_remembers():
    net, layer = backbone(), cf.ClosedFormLinear(6, 2, dtype=torch.float64)
    data = batches(12)
    for x, y in data:
        layer.solve(net(x).detach(), y)
    diagnosis = cf.diagnose(layer, net, data)
    assert diagnosis.memory == pytest.approx(layer.memory_.length)
    assert "memory" in str(diagnosis)
