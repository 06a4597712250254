"""`probe` against scikit-learn's ridge with leave-one-out, and against leaving rows out one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import closedform as cf
from closedform.probing import folds

from .helpers import backbone, features, matrix, relative

BETAS = torch.logspace(-4, 4, 25).tolist()


def data(n: int, d: int, o: int, seed: int = 0):
    phi = features(n, d, condition=100.0, seed=seed) + 0.5
    noise = torch.randn(n, o, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    W = torch.randn(d, o, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    return phi, phi @ W + 0.3 * noise + 2.0


def pieces(phi, y, size=17):
    return [(phi[i : i + size], y[i : i + size]) for i in range(0, len(phi), size)]


@pytest.mark.parametrize(("n", "d", "o"), [(80, 12, 1), (80, 12, 3), (13, 12, 2), (12, 30, 2), (9, 9, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_ridge_cv(n, d, o, bias):
    linear_model = pytest.importorskip("sklearn.linear_model")
    phi, y = data(n, d, o)
    head = cf.probe(nn.Identity(), pieces(phi, y), BETAS, bias=bias)
    peer = linear_model.RidgeCV(alphas=np.array(BETAS), fit_intercept=bias, store_cv_results=True)
    peer.fit(phi.numpy(), y.numpy())
    assert np.isclose(head.path.beta, peer.alpha_)
    W = matrix(head)
    coefficients = torch.tensor(np.atleast_2d(peer.coef_))
    assert relative(W[:, :d], coefficients) < 1e-6
    if bias:
        assert torch.allclose(head.bias, torch.tensor(np.atleast_1d(peer.intercept_)), rtol=1e-6, atol=1e-9)
    scores = torch.tensor(peer.cv_results_).reshape(n, -1, len(BETAS)).mean((0, 1))
    assert torch.allclose(head.path.scores, scores, rtol=1e-6)
    assert int(head.path.scores.argmin()) == BETAS.index(min(BETAS, key=lambda b: abs(b - head.path.beta)))


@pytest.mark.filterwarnings("ignore:the best beta")
def test_classes_are_those_of_the_ridge_classifier():
    linear_model = pytest.importorskip("sklearn.linear_model")
    phi, z = data(90, 8, 3)
    y = (z / z.std() + 0.1 * torch.randn(z.shape, dtype=z.dtype)).argmax(1)
    head = cf.probe(nn.Identity(), pieces(phi, y), BETAS)
    peer = linear_model.RidgeClassifierCV(alphas=np.array(BETAS)).fit(phi.numpy(), y.numpy())
    assert np.isclose(head.path.beta, peer.alpha_)
    assert torch.equal(head.eval()(phi).argmax(1), torch.tensor(peer.predict(phi.numpy())))


@pytest.mark.filterwarnings("ignore:the best beta")
@pytest.mark.parametrize("n", [10, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_weighted_rows_left_out_one_by_one(n, bias):
    phi, y = data(n, 12, 2)
    weight = torch.rand(n, dtype=torch.float64) + 0.1
    head = cf.probe(nn.Identity(), [(phi, y, weight)], [0.01, 0.1, 1.0], bias=bias)
    for beta, score in zip(head.path.betas.tolist(), head.path.scores.tolist()):
        total = 0.0
        for i in range(n):
            rest = [j for j in range(n) if j != i]
            w = weight[rest, None]
            mean_x, mean_y = ((w * t[rest]).sum(0) / w.sum() * bias for t in (phi, y))
            X = phi[rest] - mean_x
            W = torch.linalg.solve(X.T @ (w * X) + beta * torch.eye(12), X.T @ (w * (y[rest] - mean_y)))
            total += float(weight[i] * (y[i] - mean_y - (phi[i] - mean_x) @ W).square().mean())
        assert score == pytest.approx(total / float(weight.sum()), rel=1e-8)


def test_a_validation_loader_chooses():
    phi, y = data(60, 12, 2)
    train, held_out = pieces(phi[:40], y[:40]), pieces(phi[40:], y[40:])
    head = cf.probe(nn.Identity(), train, BETAS, validation=held_out)
    assert head.path.by == "validation"
    chosen = F.mse_loss(head.eval()(phi[40:]), y[40:])
    assert float(head.path.scores.min()) == pytest.approx(float(chosen))
    for beta in (BETAS[3], BETAS[-3]):
        assert chosen <= F.mse_loss(cf.probe(nn.Identity(), train, [beta]).eval()(phi[40:]), y[40:]) + 1e-12


@pytest.mark.filterwarnings("ignore:the best beta")
@pytest.mark.parametrize("judge", ["folds", "validation"])
def test_cross_entropy_has_a_path_too(judge):
    phi, z = data(60, 6, 3)
    noise = torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(5))
    y = (z / z.std() + noise).argmax(1)
    loss, betas = cf.CrossEntropy(), [1e-3, 1e-2, 0.1, 1.0, 100.0]
    held_out = [(phi[40:], y[40:])] if judge == "validation" else None
    head = cf.probe(nn.Identity(), [(phi, y)], betas, loss=loss, validation=held_out, inner_steps=2000)
    W = matrix(head).clone().requires_grad_()
    objective = F.cross_entropy(F.pad(phi, (0, 1), value=1.0) @ W.T, y, reduction="sum")
    (grad,) = torch.autograd.grad(objective + head.path.beta * W.square().sum(), W)
    assert float(grad.abs().max()) < 1e-3
    if judge == "folds":
        expected = torch.zeros(len(betas), dtype=torch.float64)
        for fold in folds(60):
            train, rest = (phi[~fold], y[~fold]), (phi[fold], y[fold])
            for k, beta in enumerate(betas):
                layer = cf.ClosedFormLinear(6, 3, loss=loss, dtype=torch.float64)
                cf.refit_(layer, nn.Identity(), [train], beta=beta, inner_steps=2000)
                expected[k] += len(rest[1]) / 60 * float(loss(layer.eval()(rest[0]), rest[1]))
        assert torch.allclose(head.path.scores, expected, rtol=1e-3)


def test_the_backbone_runs_frozen_and_its_modes_come_back():
    net = nn.Sequential(backbone(), nn.Dropout(0.5))
    net[0].eval()
    x, y = torch.randn(50, 3, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    head = cf.probe(net, pieces(x, y), BETAS)
    assert net.training
    assert not net[0].training
    assert head.out_features == 1
    assert torch.equal(matrix(head), matrix(cf.probe(net, pieces(x, y), BETAS)))


def test_what_is_wrong_is_said():
    phi, y = data(20, 4, 1)
    with pytest.raises(ValueError, match="betas must be positive"):
        cf.probe(nn.Identity(), [(phi, y)], [0.0, 1.0])
    with pytest.raises(ValueError, match="the loader is empty"):
        cf.probe(nn.Identity(), [])
    with pytest.warns(UserWarning, match="largest of the grid"):
        cf.probe(nn.Identity(), [(phi, torch.randn(20, 1, dtype=torch.float64))], [1e-9, 1e-8, 1e-7])
