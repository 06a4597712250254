"""The generalised squared loss: one shared factor against the paper's inversion for every class."""

import pytest
import torch
from torch.nn import functional as F

import closedform as cf
from closedform.solver import class_systems, reference, route

from . import cases
from .cases import shapes
from .helpers import backbone, columns, features, head, matrix, relative

weights = pytest.mark.parametrize("k", [0.2, 1.0, 5.0, 40.0])


def labelled(n, d, classes, seed=0, **kwargs):
    """Features and labels: some classes large, some (where there are enough of them) without a sample."""
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=g) ** 2 * classes).long()
    return 3 * features(n, d, seed=seed, **kwargs), labels


def one_hot(labels, classes):
    return F.one_hot(labels, classes).double().T


def small(layer, Phi, Y, k, m, W_t, lam):
    """The objective that the layer minimises."""
    return reference.generalized_loss(layer, Phi, Y, k, m) + lam * (layer - W_t).square().sum()


@shapes
@weights
@pytest.mark.parametrize("classes", [1, 4, 50])
def test_proximal_is_eq_32(n, d, o, bias, k, classes):
    phi, labels = labelled(n, d, classes)
    layer = head(d, classes, cf.Proximal(0.3), bias=bias, loss=cf.GeneralizedSquared(k, 2.5))
    W_t, Phi = matrix(layer), columns(phi, bias)
    layer.solve(phi, labels)
    assert relative(matrix(layer), reference.generalized(Phi, one_hot(labels, classes), k, 2.5, 0.3, W_t)) < 1e-9


@shapes
@weights
def test_ridge_is_eq_32(n, d, o, bias, k):
    phi, labels = labelled(n, d, 4)
    layer = head(d, 4, cf.Ridge(0.3), bias=bias, loss=cf.GeneralizedSquared(k, 2.5))
    layer.solve(phi, labels)
    assert relative(matrix(layer), reference.generalized(columns(phi, bias), one_hot(labels, 4), k, 2.5, 0.3)) < 1e-9


def test_the_reference_minimises_its_loss():
    phi, labels = labelled(12, 5, 3)
    Phi, Y = columns(phi, True), one_hot(labels, 3)
    W_t = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    W = reference.generalized(Phi, Y, 5.0, 2.5, 0.3, W_t).requires_grad_()
    (gradient,) = torch.autograd.grad(small(W, Phi, Y, 5.0, 2.5, W_t, 0.3), W)
    assert float(gradient.norm()) < 1e-10
    W = W.detach()
    value = cf.GeneralizedSquared(5.0, 2.5).value((W @ Phi).T, Y.T).sum()
    assert float(value) == pytest.approx(float(reference.generalized_loss(W, Phi, Y, 5.0, 2.5)), rel=1e-12)


@shapes
@weights
@pytest.mark.parametrize("rank", [1, 2, None])
def test_beta_zero_is_the_smallest_weighted_least_squares_solution(n, d, o, bias, k, rank):
    phi, labels = labelled(n, d, 3, rank=rank)
    layer = head(d, 3, cf.Ridge(0.0), bias=bias, loss=cf.GeneralizedSquared(k, 2.5))
    layer.solve(phi, labels)
    Phi, Y = columns(phi, bias), one_hot(labels, 3)
    for c in range(3):
        z = 1 + (k**0.5 - 1) * Y[c]
        assert torch.allclose(matrix(layer)[c], (z * 2.5 * Y[c]) @ torch.linalg.pinv(z * Phi), atol=1e-8)


@pytest.mark.parametrize("condition", [1e6, 1e9, 1e12])
@pytest.mark.parametrize("n", [5, 30])
def test_ill_conditioned_features(condition, n):
    """Where a factor would be useless: the gradient of the objective vanishes all the same."""
    phi, labels = labelled(n, 9, 3, condition=condition)
    layer = head(9, 3, cf.Proximal(1e-10), loss=cf.GeneralizedSquared(5.0, 2.5))
    W_t, Phi, Y = matrix(layer), columns(phi, True), one_hot(labels, 3)
    before = small(W_t, Phi, Y, 5.0, 2.5, W_t, 1e-10)
    layer.solve(phi, labels)
    W = matrix(layer).requires_grad_()
    value = small(W, Phi, Y, 5.0, 2.5, W_t, 1e-10)
    (gradient,) = torch.autograd.grad(value, W)
    assert int(layer.rejected) == 0
    assert float(gradient.norm()) < 1e-9 * float(before)


rules = cases.rules(
    "ridge",
    "minimum norm",
    "proximal",
    "auto",
    "per sample",
    "tensor",
    "vector",
    "ema",
    "drifting information",
    "drifting covariance",
)


@rules
@pytest.mark.parametrize("n", [4, 20])
def test_k_and_m_of_one_are_the_squared_loss(rule, n):
    general, plain = head(6, 3, rule, loss=cf.GeneralizedSquared()), head(6, 3, rule)
    for seed in range(3):
        phi, labels = labelled(n, 6, 3, seed)
        general.solve(phi, labels)
        plain.solve(phi, F.one_hot(labels, 3).double())
    for key, value in plain.state_dict().items():
        assert relative(general.state_dict()[key].double(), value.double()) < 1e-9, key


@rules
@pytest.mark.parametrize("n", [4, 20])
def test_weight_two_is_the_row_twice(rule, n):
    phi, labels = labelled(n, 6, 3)
    weight = 1 + torch.arange(n, dtype=torch.float64) % 2
    weighted, doubled = (head(6, 3, rule, loss=cf.GeneralizedSquared(5.0, 2.5)) for _ in range(2))
    for _ in range(3):
        weighted.solve(phi, labels, weight)
        doubled.solve(torch.cat([phi, phi[1::2]]), torch.cat([labels, labels[1::2]]))
    assert relative(matrix(weighted), matrix(doubled)) < 1e-8


def test_a_vector_lambda_is_a_diagonal_penalty():
    phi, labels = labelled(20, 6, 3)
    lam = torch.logspace(-2, 2, 7, dtype=torch.float64)
    layer = head(6, 3, cf.Proximal(lam), loss=cf.GeneralizedSquared(5.0, 2.5))
    W_t = matrix(layer)
    layer.solve(phi, labels)
    assert (
        relative(matrix(layer), reference.generalized(columns(phi, True), one_hot(labels, 3), 5.0, 2.5, lam, W_t))
        < 1e-9
    )


@pytest.mark.parametrize("form", ["information", "covariance"])
@weights
@pytest.mark.parametrize("n", [4, 20])
def test_kalman_steps_are_exact_from_what_is_remembered(form, k, n):
    """Each step minimises the loss plus `|W - W_t|^2` in the matrix kept so far; what is kept counts class means."""
    layer = head(6, 3, cf.Kalman(0.9, lam=0.5, form=form), loss=cf.GeneralizedSquared(k, 2.5))
    A = 0.5 * torch.eye(7, dtype=torch.float64)
    for seed in range(4):
        phi, labels = labelled(n, 6, 3, seed)
        X, Y, W_t = columns(phi, True).T, one_hot(labels, 3), matrix(layer)
        A = A if seed == 0 else 0.9 * A
        layer.solve(phi, labels)
        W = matrix(layer)
        for c in range(3):
            weight = 1 + (k - 1) * Y[c]
            right = X.T @ (weight * (2.5 * Y[c] - X @ W_t[c]))
            exact = W_t[c] + torch.linalg.solve(A + X.T @ (weight[:, None] * X), right)
            assert relative(W[c], exact) < 1e-6  # a trace of the prior is given back, which the exact one does not have
        A = A + (1 + (k - 1) / 3) * X.T @ X
        kept = layer._memory()[form]
        assert relative(kept if form == "information" else torch.linalg.inv(kept), A) < 1e-6


@shapes
@weights
@pytest.mark.parametrize("dense", [True, False])
def test_the_iteration_without_a_look_at_values_is_the_direct_solve(n, d, o, bias, k, dense, monkeypatch):
    """What runs on a GPU: sums by a product with one-hot labels, or by segments of the sorted rows."""
    phi, labels = labelled(n, d, 5)
    layers = [head(d, 5, cf.Proximal(0.3), bias=bias, loss=cf.GeneralizedSquared(k, 2.5)) for _ in range(2)]
    layers[0].solve(phi, labels)
    monkeypatch.setattr(route, "may_branch", lambda tensor: False)
    monkeypatch.setattr(class_systems, "_DENSE", 5 if dense else 4)
    layers[1].solve(phi, labels)
    assert int(layers[1].step) == 1
    assert relative(matrix(layers[1]), matrix(layers[0])) < 1e-9


@pytest.mark.parametrize("k", [0.01, 0.5, 2.0, 100.0, 1e4])
def test_the_iteration_has_enough_steps_for_the_worst_spectrum(k):
    """Rows without a penalty fill the whole range of eigenvalues between 1 and k."""
    S = torch.linalg.qr(features(60, 20, seed=3))[0]
    label = torch.cat([torch.zeros(40), torch.ones(20)]).long()
    B = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    solution = class_systems._iterated(S, B, label, k - 1)
    for c in range(2):
        rows = S[label == c]
        exact = torch.linalg.solve(torch.eye(20, dtype=torch.float64) + (k - 1) * rows.T @ rows, B[:, c])
        assert relative(solution[:, c], exact) < 1e-9
    assert relative(class_systems._direct(S, B, label, k - 1), solution) < 1e-9


def test_refit_is_exact():
    net, layer = backbone(), head(6, 3, cf.Kalman(0.9), loss=cf.GeneralizedSquared(5.0, 2.5))
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(40) % 3
    cf.refit_(layer, net, zip(x.split(7), labels.split(7)), beta=0.5)
    Phi = columns(net(x), True)
    assert relative(matrix(layer), reference.generalized(Phi, one_hot(labels, 3), 5.0, 2.5, 0.5)) < 1e-9


@shapes
@pytest.mark.parametrize("rule", [cf.Ridge(0.3), cf.Proximal(0.3)], ids=["ridge", "proximal"])
def test_the_gradient_is_backpropagation_through_the_solution(n, d, o, bias, rule):
    """Through the paper's own formula, with its inversions."""
    net = backbone(width=d)
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(n) % 3
    layer = head(d, 3, rule, bias=bias, loss=cf.GeneralizedSquared(5.0, 2.5))
    W_t = matrix(layer) if isinstance(rule, cf.Proximal) else torch.zeros_like(matrix(layer))
    phi = net(x)
    layer.solve(phi, labels)
    Y = one_hot(labels, 3)
    envelope = torch.autograd.grad(layer.loss.value(layer(phi), Y.T).sum(), list(net.parameters()))
    Phi = net(x).T
    Phi = reference.with_bias(Phi) if bias else Phi
    W = reference.generalized(Phi, Y, 5.0, 2.5, 0.3, W_t)
    through = torch.autograd.grad(small(W, Phi, Y, 5.0, 2.5, W_t, 0.3), list(net.parameters()))
    for one, other in zip(envelope, through):
        assert relative(one, other) < 1e-8


def test_float32_features_are_solved_in_float64():
    phi, labels = labelled(40, 6, 3)
    exact, rough = (
        head(6, 3, cf.Ridge(0.3), loss=cf.GeneralizedSquared(5.0), dtype=t) for t in (torch.float64, torch.float32)
    )
    exact.solve(phi.float().double(), labels)
    rough.solve(phi.float(), labels)
    assert relative(matrix(rough), matrix(exact)) < 1e-6
