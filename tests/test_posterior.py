"""Draws of the layer, outputs that are added later, and sums that forget."""

from __future__ import annotations

import pytest
import torch

import closedform as cf

from .helpers import columns, head, matrix, problem, relative

FORMS = ["information", "covariance"]


@pytest.mark.parametrize("form", FORMS)
def test_draws_have_the_posteriors_mean_and_covariance(form):
    layer = head(3, 2, cf.Kalman(1.0, lam=2.0, form=form))
    seen = []
    for seed in range(4):
        phi, y = problem(5, 3, 2, seed=seed)
        layer.solve(phi, y)
        seen.append(columns(phi, True).T)
    X = torch.cat(seen)
    P = torch.linalg.inv(X.T @ X + 2.0 * torch.eye(4))
    n = 200_000
    draws = layer.sample(n, torch.Generator().manual_seed(0))
    assert draws.shape == (n, 2, 4)
    away = (draws - matrix(layer)).reshape(n, 8)
    expected = torch.block_diag(*(float(s) * P for s in layer.memory_noise))
    scale = expected.diagonal().sqrt()
    error = (away.T @ away / n - expected) / (scale[:, None] * scale)
    assert float(error.abs().max()) < 5 * (2 / n) ** 0.5
    assert float((away.mean(0) / scale).abs().max()) < 5 / n**0.5
    # the spread of predictions is the part of the variance that the data have not settled
    phi = torch.randn(7, 3, dtype=torch.float64)
    spread = (draws @ columns(phi, True)).var(0).T
    assert torch.allclose(spread + layer.memory_noise, layer.variance(phi), rtol=0.02)


def test_draws_of_the_default_rule_spread_as_its_variance_says():
    layer = head(3, 2, cf.Auto((0.9, 0.95, 0.99), (0.0, 0.0, 0.0), (1.0, 2.0, 3.0), handicap=0.0))
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        phi, y = (torch.randn(8, k, dtype=torch.float64, generator=generator) for k in (3, 2))
        layer.solve(phi, y)
    weight = layer.memory_.weight
    assert float(weight.max()) < 0.9  # there is a mixture to draw from
    n = 200_000
    draws = layer.sample(n, torch.Generator().manual_seed(0))
    assert draws.shape == (n, 2, 4)
    phi = torch.randn(7, 3, dtype=torch.float64, generator=generator)
    predictions = draws @ columns(phi, True)
    noise = (weight[:, None] * layer.memory_noise).sum(0)
    assert torch.allclose(predictions.var(0).T + noise, layer.variance(phi), rtol=0.03)
    away = (predictions.mean(0).T - layer.eval()(phi)) / predictions.std(0).T
    assert float(away.abs().max()) < 5 / n**0.5
    # a layer that was set from outside takes its draws with it
    layer.set_weights_(matrix(layer) + 10.0)
    again = layer.sample(n, torch.Generator().manual_seed(0))
    assert torch.allclose(again, draws + 10.0)


def test_draws_need_a_posterior():
    for rule in (cf.Ridge(1.0), cf.Proximal(), cf.Ema()):
        with pytest.raises(ValueError, match="needs the rule Auto or Kalman"):
            head(3, 2, rule).sample(1)
    with pytest.raises(ValueError, match="up to 1024 features"):
        head(2000, 1).sample(1)
    with pytest.raises(ValueError, match="at least one solve"):
        head(3, 2, cf.Kalman()).sample(1)
    layer = head(3, 2, cf.Kalman())
    layer.solve(*problem(5, 3, 2))
    with pytest.raises(ValueError, match="got n=0"):
        layer.sample(0)
    with pytest.raises(ValueError, match="squared loss"):
        head(3, 2, cf.Kalman(), loss=cf.CrossEntropy()).sample(1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "rule", [cf.Kalman(0.9, lam=1.0), cf.Kalman(0.9, lam=1.0, form="covariance"), cf.Proximal(1.0), cf.Auto()]
)
def test_outputs_that_come_later_are_as_if_they_had_been_there(rule, dtype):
    kind = {"rule": rule, "loss": cf.OneHotSquared(), "dtype": dtype}
    grown, whole = cf.ClosedFormLinear(6, 2, **kind), cf.ClosedFormLinear(6, 5, **kind)
    for seed in range(6):
        if seed == 3:
            assert grown.grow(3) is grown
        phi = problem(8, 6, 1, seed=seed)[0]
        y = torch.arange(8) % (2 if seed < 3 else 5)
        grown.solve(phi, y)
        whole.solve(phi, y)
    assert grown.out_features == 5
    assert not grown.weight.requires_grad
    assert torch.equal(matrix(grown), matrix(whole)) or relative(matrix(grown), matrix(whole)) < 1e-10
    again = cf.ClosedFormLinear(6, 5, **kind)
    again.load_state_dict(grown.state_dict())
    assert int(again.step) == 6
    for name, tensor in grown._memory().items():
        assert torch.equal(again._memory()[name], tensor)
    if isinstance(rule, cf.Auto):
        assert torch.allclose(grown.memory_.weight, whole.memory_.weight, rtol=1e-8)
        assert torch.allclose(grown.memory_.error, whole.memory_.error, rtol=1e-8)


def test_the_default_rule_grows_too():
    layer, (phi, y) = head(6, 2), problem(9, 6, 5)
    layer.solve(phi, y[:, :2])
    noise = layer.memory_noise.clone()
    layer.grow(3)
    assert torch.equal(layer.memory_noise[..., :2], noise)
    assert torch.allclose(layer.memory_noise[..., 4], noise.mean(-1))
    layer.solve(phi, y)
    assert int(layer.step) == 2
    assert layer.eval()(phi).shape == (9, 5)


def test_growing_is_refused_where_it_would_lose_something():
    layer, (phi, y) = head(6, 2, cf.Proximal(1.0)), problem(4, 6, 2)
    layer.accumulate(phi, y)
    with pytest.raises(ValueError, match="targets waiting"):
        layer.grow(1)
    layer.discard()
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="one output or more"):
            layer.grow(bad)
    assert layer.out_features == 2


def test_statistics_forget_rows_and_survive_a_file(tmp_path):
    phi, y = problem(50, 6, 2)
    weight = torch.rand(50, dtype=torch.float64)
    whole, gone, rest = (cf.Statistics(6, 2) for _ in range(3))
    whole.add(phi, y, weight)
    gone.add(phi[:20], y[:20], weight[:20])
    rest.add(phi[20:], y[20:], weight[20:])
    path = whole.subtract(gone).save(tmp_path / "sums.safetensors")
    loaded = cf.Statistics.load(path)
    for each in (whole, loaded):
        assert relative(each.solve(0.1), rest.solve(0.1)) < 1e-9
        assert float(each.n) == pytest.approx(float(rest.n))
    with pytest.raises(ValueError, match="cannot forget"):
        rest.subtract(cf.Statistics(6, 2).add(phi, y))
    with pytest.raises(ValueError, match="do not go together"):
        rest.subtract(cf.Statistics(5, 2))
    counted = cf.Statistics(6, 2).add(phi, y)
    assert cf.Statistics.load(counted.save(path)).n == 50
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        cf.Statistics.load(path)
