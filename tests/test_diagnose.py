"""The diagnostics measure what they say, leave everything as it was, and give advice where something is wrong."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import closedform as cf
from closedform import theory
from closedform.theory import critical_points as cp

from .helpers import backbone, batches, features, head, matrix, problem, relative


def whole(phi, y, size=10):
    return [(phi[i : i + size], y[i : i + size]) for i in range(0, len(phi), size)]


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
    loader = cf.diagnose(nn.Identity(), layer, whole(phi, y))
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
        assert d_.attainable == pytest.approx(1 - float(parts.unattainable.square().sum() / total), abs=1e-9)
        mean = float(share * phi.square().sum() / d)
        assert d_.lam_ratio == pytest.approx(0.5 / mean, rel=1e-9)
        assert d_.memory == pytest.approx(1 + 0.5 / mean, rel=1e-9)


def test_the_best_error_is_what_refit_reaches():
    net, (x, y) = backbone(width=6), batches(1, n=60)[0]
    layer = head(6, 2, cf.Proximal(3.0))
    loader = whole(x, y)
    best = cf.diagnose(net, layer, loader).best_error
    cf.refit_(layer, net, loader)
    after = cf.diagnose(net, layer, loader)
    assert after.error == pytest.approx(best, rel=1e-8)
    assert math.isnan(after.gradient_share)
    assert after.lag < 1e-8
    assert "nothing left to gain" in str(after)


def test_one_solve_goes_as_far_as_it_says():
    """`moved` is the share of the way to the batch's own solution, measured in its predictions along the residual."""
    phi, y = problem(50, 6, 1, condition=20.0)
    layer = head(6, 1, cf.Proximal(0.2), bias=False)
    before, best = phi @ matrix(layer).T, phi @ cp.best_layer(phi, y).T
    found = cf.diagnose_batch(layer, phi, y)
    layer.solve(phi, y)
    after = phi @ matrix(layer).T
    way = ((after - before) * (best - before)).sum() / (best - before).square().sum()
    assert found.moved == pytest.approx(float(way), rel=1e-9)
    gains = [(y - before).square().sum() - (y - end).square().sum() for end in (after, best)]
    assert found.solve_share == pytest.approx(float(gains[0] / gains[1]), rel=1e-9)


def test_a_full_solve_goes_all_the_way():
    """Without lambda, also where the features lack some directions."""
    phi, y = features(30, 6, rank=4), problem(30, 6, 2)[1]
    found = cf.diagnose_batch(head(6, 2, cf.Ridge(0.0), bias=False), phi, y)
    assert found.rank == 4
    assert found.moved == pytest.approx(1)
    assert found.solve_share == pytest.approx(1)


@pytest.mark.parametrize("drift", [0.0, 0.3])
@pytest.mark.parametrize("forget", [0.9, 1.0])
def test_the_memory_of_the_filter(forget, drift):
    """One feature that is always 2: what the filter holds is known exactly."""
    layer = cf.ClosedFormLinear(1, 1, False, rule=cf.Kalman(forget, drift, lam=3.0), dtype=torch.float64)
    phi, y = torch.full((5, 1), 2.0, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    for _ in range(30):
        layer.solve(phi, y)
    held = float(layer._memory()["information"])
    assert cf.diagnose_batch(layer, phi, y).memory == pytest.approx(held / 20, rel=1e-6)


def test_the_memory_of_the_other_rules():
    phi, y = problem(50, 6, 1)

    def memory(rule):
        return cf.diagnose_batch(head(6, 1, rule), phi, y).memory

    assert memory(cf.Ridge(1.0)) == 1
    assert memory(cf.Ema(1.0, 0.75)) == 4
    assert memory(cf.Proximal("auto")) == pytest.approx(11)
    assert memory(cf.Proximal(cf.per_sample(2.0))) == memory(cf.Proximal(100.0))
    assert memory(cf.Proximal(torch.full((6,), 7.0))) == memory(cf.Proximal(7.0))


def test_nothing_is_changed():
    """Modes, weights, memory, hooks, the pending targets of a buried head: all as before."""
    net = nn.Sequential(backbone(width=6), nn.Dropout(0.5), head(6, 2, cf.Kalman())).train()
    layer = net[2]
    x, y = batches(1, n=30)[0]
    layer.solve(net[0](x), y)
    layer.observe(y)
    before = copy.deepcopy(net.state_dict())
    a, b = cf.diagnose(net, layer, whole(x, y)), cf.diagnose(net[0], layer, whole(x, y))
    assert a.error == pytest.approx(b.error, rel=1e-12)  # the whole model or its backbone; no dropout in either
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert all(module.training for module in net.modules())
    assert not layer._forward_pre_hooks
    assert layer._observed is not None
    with pytest.raises(ValueError, match="the loader is empty"):
        cf.diagnose(net, layer, [])


def test_only_the_first_batches():
    phi, y = problem(40, 4, 1)
    assert cf.diagnose(nn.Identity(), head(4, 1), whole(phi, y), batches=2).samples == 20


def test_sample_weights_count():
    phi, y = problem(40, 4, 1)
    layer, weight = head(4, 1), torch.ones(40, dtype=torch.float64)
    weight[20:] = 0
    weighted = cf.diagnose(nn.Identity(), layer, [(phi, y, weight)])
    assert weighted.error == pytest.approx(cf.diagnose_batch(layer, phi[:20], y[:20]).error, rel=1e-10)


def test_a_plain_layer_is_diagnosed_too():
    phi, y = problem(60, 5, 2)
    plain = nn.Linear(5, 2).double()
    result = cf.diagnose_batch(plain, phi, y)
    assert result.rule is None
    assert math.isnan(result.lam)
    assert 0 < result.gradient_share <= 1
    assert "nn.Linear" in str(result)


# ---- Advice: each sentence appears where it should, and not on a healthy run ---------------------


def healthy(n=400, d=20):
    phi, y = problem(n, d, 2, condition=30.0)
    y = cp.split(phi, y).attainable + 0.1 * y
    layer = head(d, 2, cf.Kalman(lam=1e-3))
    for _ in range(40):
        layer.solve(phi, y)
    return phi, y, layer


def said(diagnosis, words):
    return sum(words in text for text in diagnosis.advice)


def test_a_healthy_run_needs_no_advice():
    phi, y, layer = healthy()
    result = cf.diagnose_batch(layer, phi, y)
    assert [text for text in result.advice if "Solving pays" not in text] == []
    layer = head(20, 2, cf.Ridge(0.0))
    layer.solve(phi, y)
    assert cf.diagnose_batch(layer, phi, y).advice == []
    assert "Nothing stands out" in str(cf.diagnose_batch(layer, phi, y))


def test_advice_on_lambda():
    phi, y, layer = healthy()
    mean = float(phi.square().sum() / 20)
    layer.rule = cf.Proximal(1e5 * mean)
    frozen = cf.diagnose_batch(layer, phi, y)
    assert said(frozen, "lambda is 1e5 times the Gram of a batch: the head hardly moves") == 1
    assert said(frozen, f"lambda = {10 * mean:.3g} here") == 1
    layer.rule = cf.Proximal(0.01 * mean)
    assert said(cf.diagnose_batch(layer, phi[:15], y[:15]), "every solve fits its own batch") == 1
    assert said(cf.diagnose_batch(layer, phi, y), "every solve fits its own batch") == 0
    layer.rule = cf.Ridge(100 * mean)
    assert said(cf.diagnose_batch(layer, phi, y), "beta is 100 times") == 1


def test_advice_on_the_features():
    phi, y, layer = healthy()
    assert said(cf.diagnose_batch(layer, phi[:10], y[:10]), "10 samples are no more than the 21 features") == 1
    broken = phi.clone()
    broken[:, :3] = 0
    broken[:, 3:6] = 0.7
    result = cf.diagnose_batch(layer, broken, y)
    assert (result.dead, result.constant) == (3, 3)
    assert said(result, "3 of 20 features are zero") == 1
    assert said(result, "3 of 20 features are constant") == 1
    few = cf.diagnose(nn.Identity(), layer, whole(broken, y))
    assert (few.dead, few.constant) == (3, 3)
    flat = head(20, 2, cf.Proximal("auto"), bias=False)
    one = torch.randn(400, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ phi[:1]
    assert said(cf.diagnose_batch(flat, one, y), "they have collapsed") == 1
    noise = torch.randn(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert said(cf.diagnose_batch(layer, phi, noise), "No last layer can express more than") == 1


def test_advice_on_the_head():
    phi, y, layer = healthy()
    assert said(cf.diagnose_batch(head(20, 2, cf.Proximal("auto")), phi, y), "not been solved yet") == 1
    behind = head(20, 2, cf.Proximal("auto"))
    assert said(cf.diagnose_batch(behind, phi, y), "a longer memory") == 1
    assert said(cf.diagnose_batch(head(20, 2, cf.Proximal(1e9)), phi, y), "lets it follow") == 1
    layer.attempts += 2
    assert said(cf.diagnose_batch(layer, phi, y), "2 of 42 solves were rejected") == 1


def test_advice_on_the_gradient_step():
    layer = cf.ClosedFormLinear(20, 50, False, dtype=torch.float64)
    y = torch.randn(200, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for condition, steep, flat in ((1e5, 1, 0), (1.0, 0, 1)):
        result = cf.diagnose_batch(layer, features(200, 20, condition=condition), y)
        assert said(result, "Solving pays here") == steep
        assert said(result, "a flat spectrum") == flat


# ---- As a callback -------------------------------------------------------------------------------


def test_the_callback(tmp_path):
    phi, y, layer = healthy()
    watch = cf.Diagnostics(layer, every=4)
    made = [watch(phi, y) is not None for _ in range(9)]
    assert made == [True, False, False, False] * 2 + [True]
    assert [step for step, _ in watch.history] == [0, 4, 8]
    assert watch.plot(tmp_path / "history.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="every"):
        cf.Diagnostics(layer, every=0)
    with pytest.raises(ValueError, match="nothing was diagnosed"):
        cf.Diagnostics(layer).plot(tmp_path / "none.png")


@pytest.mark.parametrize("rule", [cf.Ridge(0.0), cf.Ridge(2.0), cf.Proximal("auto"), cf.Ema(1.0), cf.Kalman(), None])
def test_every_rule_has_a_page_and_a_picture(rule, tmp_path):
    phi, y = problem(60, 5, 2)
    layer = nn.Linear(5, 2).double() if rule is None else head(5, 2, rule)
    if rule is not None:
        layer.solve(phi, y)
    result = cf.diagnose_batch(layer, phi, y)
    assert all(len(line) <= 110 for line in str(result).splitlines())
    assert result.plot(tmp_path / "head.png").stat().st_size > 5000


def test_features_that_are_all_zero(tmp_path):
    layer = head(4, 2, cf.Proximal("auto"), bias=False)
    result = cf.diagnose_batch(layer, torch.zeros(9, 4), torch.randn(9, 2))
    assert (result.rank, result.dead, result.effective_rank) == (0, 4, 0.0)
    assert result.attainable == 0
    assert "all zero" in str(result)
    assert result.plot(tmp_path / "zero.png").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("n", [8, 60])
@pytest.mark.parametrize("rule", [cf.Proximal("auto"), cf.Kalman()])
def test_on_a_device(n, rule):
    phi, y = problem(n, 12, 2)
    layers = [head(12, 2, rule), head(12, 2, rule).cuda()]
    for layer, place in zip(layers, ("cpu", "cuda")):
        layer.solve(phi.to(place), y.to(place))
    a, b = cf.diagnose_batch(layers[0], phi, y), cf.diagnose_batch(layers[1], phi.cuda(), y.cuda())
    c = cf.diagnose(nn.Identity(), layers[1], [(phi, y)])
    for other in (b, c):
        assert other.gradient_share == pytest.approx(a.gradient_share, rel=1e-6)
        assert other.error == pytest.approx(a.error, rel=1e-6)
        assert other.memory == pytest.approx(a.memory, rel=1e-6)
        assert str(other).splitlines()[3:5] == str(a).splitlines()[3:5]


def test_importing_draws_in_neither_scipy_nor_matplotlib():
    code = "import sys, closedform, closedform.theory; assert not {'scipy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_losses_are_refused_and_labels_of_the_squared_one_taken():
    phi, labels = (
        torch.randn(30, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        torch.arange(30) % 3,
    )
    one = cf.ClosedFormLinear(6, 3, loss=cf.OneHotSquared(), dtype=torch.float64)
    rows = torch.nn.functional.one_hot(labels, 3).double()
    assert cf.diagnose_batch(one, phi, labels).error == pytest.approx(cf.diagnose_batch(one, phi, rows).error)
    other = cf.ClosedFormLinear(6, 3, loss=cf.CrossEntropy(), dtype=torch.float64)
    with pytest.raises(ValueError, match="a diagnosis is about the squared loss; this head has CrossEntropy"):
        cf.diagnose_batch(other, phi, labels)
