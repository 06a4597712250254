"""A stacked Fourier neural operator is the same one trained alone, and pieces of its Gram products are its Gram products."""

import pytest
import torch

import closedform as cf
from closedform import training
from closedform.paper.models.fno import FNO1d, SpectralConv1d
from closedform.solver import route
from closedform.solver.batch import Batch, extend
from closedform.stack.models import Candidate, Stack, _generator
from closedform.stack.networks import network

from .helpers import relative
from .operator_cases import METHODS, POINTS, SEEDS, STEPS, WIDTH, backbone, fields, stack


def alone(candidate, own, layer, x, y, seed, optimizer, batch_size):
    """The same model with the package's own head and torch's optimizer."""
    params = list(own.parameters()) + (list(layer.parameters()) if candidate.rule is None else [])
    if optimizer == "sgd":
        opt = torch.optim.SGD(params, lr=candidate.lr, momentum=0.9, nesterov=True)
    else:
        opt = torch.optim.Adam(params, lr=candidate.lr)
    head, step = layer, training.l2
    if candidate.rule is not None:
        head, step = cf.ClosedFormLinear(WIDTH, 1, rule=candidate.rule, dtype=layer.weight.dtype), training.algorithm1
        head.set_weights_(torch.cat([layer.weight, layer.bias[:, None]], 1).detach())
    per_epoch = len(x) // batch_size
    for t in range(STEPS):
        if t % per_epoch == 0:
            order = torch.randperm(len(x), generator=_generator(seed, t // per_epoch))
        index = order[t % per_epoch * batch_size :][:batch_size]
        step(own, head, opt, x[index], y[index])
    return own, head


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("points", [POINTS, 2])  # 2: fewer rows than features, and fewer modes than the operator has
def test_equals_training_alone(optimizer, points, dtype):
    candidates = list(METHODS.values())
    if optimizer == "adam":
        candidates = [Candidate(c.lr / 10, c.rule, c.init) for c in candidates]
    models = stack(candidates, optimizer=optimizer, dtype=dtype, points=points)
    X, Y = fields(points=points, dtype=dtype)
    before = {(s, k): models.module(s, k) for s in range(2) for k in range(len(candidates))}
    models.advance(STEPS)
    tolerance = 1e-8 if dtype == torch.float64 else 5e-3
    for (s, k), (own, layer) in before.items():
        start = {name: p.clone() for name, p in own.named_parameters()}
        own, head = alone(candidates[k], own, layer, X[s], Y[s], SEEDS[s], optimizer, 3)
        stacked, linear = models.module(s, k)
        for name, p in own.named_parameters():
            assert relative(stacked.get_parameter(name), p) < tolerance, (k, name)
        assert relative(own.lift.weight, start["lift.weight"]) > 100 * tolerance or dtype == torch.float32
        assert relative(linear.weight, head.weight) < tolerance, k


@pytest.mark.parametrize("modes", [1, 2, 5, 12])
@pytest.mark.parametrize("points", [2, 3, 8, 9, 22, 23, 24, 25, 64])
def test_a_spectral_convolution_is_that_of_fast_transforms(points, modes):
    torch.manual_seed(points)
    layer = SpectralConv1d(3, modes).double()
    x = torch.randn(2, points, 3, dtype=torch.float64)
    kept = min(modes, points // 2 + 1)
    spectrum = torch.fft.rfft(x, dim=1, norm="forward")[:, :kept]
    mixed = torch.einsum("bki,kio->bko", spectrum, torch.view_as_complex(layer.weight.detach())[:kept])
    expected = torch.fft.irfft(mixed, points, dim=1, norm="forward")
    assert relative(layer(x), expected) < 1e-12
    half = layer(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert relative(half.double(), expected) < 0.05


@pytest.mark.parametrize("modes", [1, 2, 5, 12])
def test_features_are_the_operators_on_any_grid(modes):
    own = backbone(1, modes)
    known = network([own])
    for points in range(2, 2 * modes + 5):
        x = torch.randn(1, 3, points, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(points))
        features, _ = known.forward([p.unsqueeze(0) for p in own.parameters()], x)
        assert relative(features, own(x[0]).flatten(0, 1).T.unsqueeze(0)) < 1e-12, points


def test_is_measured_on_another_grid():
    models = stack(list(METHODS.values()))
    models.advance(4)
    X, Y = fields(points=5 * POINTS)
    errors = models.evaluate(X, Y)
    for k in range(len(METHODS)):
        own, layer = models.module(1, k)
        expected = torch.nn.functional.mse_loss(layer(own(X[1])), Y[1]).item()
        assert errors[1, k].item() == pytest.approx(expected, rel=1e-9)


def test_a_restored_stack_goes_on_as_if_nothing_had_happened():
    candidates = list(METHODS.values())
    whole, first, resumed = (stack(candidates, optimizer="adam") for _ in range(3))
    whole.advance(STEPS)
    first.advance(5)
    resumed.restore({name: tensor.clone() for name, tensor in first.state().items()})
    resumed.advance(STEPS - 5)
    assert all(torch.equal(a, b) for a, b in zip(whole.state().values(), resumed.state().values()))
    first.keep([4, 0, 6])
    first.advance(STEPS - 5)
    X, Y = fields()
    assert relative(first.evaluate(X, Y), whole.evaluate(X, Y)[:, [4, 0, 6]]) < 1e-9


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("piece", [1, 7, 59, 60, 61])
@pytest.mark.parametrize(("n", "d", "o"), [(60, 5, 1), (60, 1, 3), (3, 7, 2), (1, 1, 1)])
def test_moments_in_pieces_are_the_moments(n, d, o, piece, bias, monkeypatch):
    monkeypatch.setattr(route, "piece", lambda models, features, device: piece)
    g = torch.Generator().manual_seed(n)
    phi, y = (torch.randn(4, k, n, generator=g, dtype=torch.float64).mT for k in (d, o))
    W = torch.randn(4, o, d + bias, generator=g, dtype=torch.float64)
    moments = Batch(phi, y, bias=bias).moments(W)
    X = torch.cat([phi, torch.ones(4, n, 1)], 2) if bias else phi
    E = y - X @ W.mT
    assert relative(moments.G, X.mT @ X) < 1e-12
    assert relative(moments.C, X.mT @ E) < 1e-12
    assert relative(moments.ee, E.square().sum(1)) < 1e-12
    assert torch.equal(extend(phi, bias)[..., : d + bias], X)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"expected fields X \(S, samples, points, 1\), got \(2, 10, 12, 2\)"):
        stack([Candidate(0.1)]).feed(torch.zeros(2, 10, 12, 2), torch.zeros(2, 10, 12, 1))
    with pytest.raises(ValueError, match=r"expected X \(2, N, ..., f\)"):
        stack([Candidate(0.1)]).feed(torch.zeros(2, 10, 12, 1), torch.zeros(2, 10, 11, 1))
    with pytest.raises(ValueError, match="or a backbone with `stacked\\(\\)`, got ReLU"):
        Stack([torch.nn.ReLU()], [Candidate(0.1)], 1, batch_size=1, total=1)
    with pytest.raises(ValueError, match="the same sizes"):
        Stack([FNO1d(4, 2), FNO1d(4, 3)], [Candidate(0.1)], 1, batch_size=1, total=1)
