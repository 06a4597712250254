"""`CrossEntropy` with class weights and ignored labels: torch's loss, and the solve of a weighted batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import closedform as cf

from .helpers import head, matrix, problem, relative

CLASSES = 4
WEIGHT = [0.5, 2.0, 0.0, 1.5]


def rows(n: int, ignored: bool = True):
    phi, z = problem(n, 6, CLASSES)
    y = torch.arange(n) % CLASSES
    y[::5] = -100 if ignored else 0
    return phi, z.clone(), y


def soft(n: int):
    return torch.softmax(torch.randn(n, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(3)), 1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_the_loss_is_torchs(weight, smoothing):
    _, z, y = rows(23)
    loss = cf.CrossEntropy(label_smoothing=smoothing, weight=weight)
    w = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    assert torch.allclose(loss(z, y), F.cross_entropy(z, y, w, label_smoothing=smoothing))
    assert torch.allclose(loss(z.view(23, 1, CLASSES), y[:, None]), loss(z, y))
    p = soft(23)
    assert torch.allclose(loss(z, p), F.cross_entropy(z, p, w, label_smoothing=smoothing))
    other = cf.CrossEntropy(ignore_index=1, weight=weight)
    y = y.clamp(min=0)
    assert torch.allclose(other(z, y), F.cross_entropy(z, y, w, ignore_index=1))


@pytest.mark.parametrize("rule", [cf.Ridge(0.3), cf.Proximal(0.3), cf.Kalman(0.9, lam=1.0)])
@pytest.mark.parametrize("n", [4, 40])
def test_ignored_rows_are_not_seen_and_class_weights_are_sample_weights(rule, n):
    phi, _, y = rows(n)
    layer, other = (head(6, CLASSES, rule, loss=cf.CrossEntropy(inner_steps=3, weight=w)) for w in (WEIGHT, None))
    keep = y >= 0
    weight = torch.tensor(WEIGHT, dtype=torch.float64)[y[keep]]
    layer.solve(phi, y)
    other.solve(phi[keep], y[keep], weight)
    assert relative(matrix(layer), matrix(other)) < 1e-10
    plain, fewer = (head(6, CLASSES, rule, loss=cf.CrossEntropy()) for _ in range(2))
    plain.solve(phi, y)
    fewer.solve(phi[keep], y[keep])
    assert relative(matrix(plain), matrix(fewer)) < 1e-10


@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_the_solve_finds_the_minimum_of_torchs_loss(labels):
    phi, _, y = rows(60)
    y = y if labels == "hard" else soft(60)
    lam = 0.5
    layer = head(6, CLASSES, cf.Ridge(lam), loss=cf.CrossEntropy(inner_steps=3000, weight=WEIGHT))
    layer.solve(phi, y)
    W = matrix(layer).clone().requires_grad_()
    X = F.pad(phi, (0, 1), value=1.0)
    loss = F.cross_entropy(X @ W.T, y, torch.tensor(WEIGHT, dtype=torch.float64), reduction="sum")
    (grad,) = torch.autograd.grad(loss + lam * W.square().sum(), W)
    assert float(grad.abs().max()) < 1e-6


def test_refit_takes_them_too():
    phi, _, y = rows(60)
    layers = [head(6, CLASSES, loss=cf.CrossEntropy(weight=WEIGHT)) for _ in range(2)]
    cf.refit_(layers[0], nn.Identity(), [(phi[:30], y[:30]), (phi[30:], y[30:])], beta=1.0)
    keep = y >= 0
    cf.refit_(layers[1], nn.Identity(), [(phi[keep], y[keep])], beta=1.0)
    assert relative(matrix(layers[0]), matrix(layers[1])) < 1e-10


def test_a_compiled_solve_ignores_and_weighs_alike():
    phi, _, y = rows(40)
    loss = cf.CrossEntropy(weight=WEIGHT)
    layer, compiled = (head(6, CLASSES, cf.Proximal(1.0), loss=loss) for _ in range(2))
    layer.solve(phi, y)
    torch.compile(compiled.solve, backend="aot_eager", fullgraph=True)(phi, y)
    assert relative(matrix(layer), matrix(compiled)) < 1e-10


def test_bad_weights_are_said():
    phi, _, y = rows(8)
    with pytest.raises(ValueError, match="weight has 3 values, but there are 4 classes"):
        head(6, CLASSES, loss=cf.CrossEntropy(weight=[1.0, 1.0, 1.0])).solve(phi, y)
    with pytest.raises(ValueError, match="zero or positive"):
        cf.CrossEntropy(weight=[1.0, -1.0])
    with pytest.raises(ValueError, match="ignore_index must be a whole number"):
        cf.CrossEntropy(ignore_index=0.5)
    with pytest.raises(ValueError, match="every label is -100"):
        head(6, CLASSES, loss=cf.CrossEntropy()).solve(phi, torch.full_like(y, -100))
    with pytest.raises(ValueError, match="labels must be 0 to 3, got 7"):
        cf.CrossEntropy()(torch.zeros(1, 4), torch.tensor([7]))
    assert cf.CrossEntropy(weight=torch.tensor([1.0, 2.0])) == cf.CrossEntropy(weight=[1.0, 2.0])
