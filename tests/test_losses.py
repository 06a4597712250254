"""Losses other than the squared one: the bound, the inner steps and their limit, and all that the head does with them."""

import copy
import math
import re
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch.nn import functional as F

import closedform as cf
from closedform import training
from closedform.solver import class_systems, reference, route, rules
from closedform.solver.batch import Batch

from . import cases
from .cases import bounded, shapes
from .helpers import backbone, columns, head, matrix, problem, relative

with_rules = cases.rules("ridge", "proximal", "vector", "ema", "information", "covariance")


def data(loss, n, d, o, scale=3.0, seed=0):
    """Features large enough for the loss to be far from quadratic, and targets that it takes: soft labels among them."""
    phi, y = problem(n, d, o, seed=seed)
    phi, y = scale * phi, 3 * y
    if isinstance(loss, cf.CrossEntropy):
        y = torch.softmax(3 * y, 1)
    if isinstance(loss, cf.Logistic):
        y = torch.sigmoid(3 * y)
    return phi, y


def objective(loss, phi, y, W, W_t, lam, bias=True):
    X = columns(phi, bias).T
    return loss.value(X @ W.T, y).sum() + (lam * (W - W_t).square()).sum()


def minimiser(loss, phi, y, W_t, lam, bias=True):
    """By torch's LBFGS, which knows nothing of bounds."""
    W = W_t.clone().requires_grad_()
    options = {"tolerance_grad": 1e-13, "tolerance_change": 0.0, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS([W], max_iter=500, max_eval=2000, history_size=50, **options)

    def closure():
        optimizer.zero_grad()
        value = objective(loss, phi, y, W, W_t, lam, bias)
        value.backward()
        return value

    for _ in range(3):
        optimizer.step(closure)
    return W.detach()


# ---- The losses themselves -----------------------------------------------------------------------

ALL = [
    cf.Squared(),
    cf.OneHotSquared(),
    cf.GeneralizedSquared(3.0, 2.0),
    cf.CrossEntropy(),
    cf.Logistic(),
    cf.Huber(0.3),
]
every = pytest.mark.parametrize("loss", ALL, ids=lambda loss: type(loss).__name__)


def valid_targets(loss, n, o):
    if loss.labels:
        return F.one_hot(torch.arange(n) % o, o).double()
    return torch.rand(n, o, dtype=torch.float64)


@every
def test_gradients_are_the_derivatives_of_the_values(loss):
    torch.manual_seed(0)
    z = (2 * torch.randn(7, 4, dtype=torch.float64)).requires_grad_()
    y = valid_targets(loss, 7, 4)
    (gradient,) = torch.autograd.grad(loss.value(z, y).sum(), z)
    assert relative(loss.gradient(z, y), gradient) < 1e-12
    assert relative(loss.working_target(z, y), z - gradient / loss.curvature) < 1e-12


@every
def test_curvatures_are_bounds_that_are_reached(loss):
    torch.manual_seed(0)
    largest = 0.0
    for number in range(40):
        z = 2 * torch.randn(3, dtype=torch.float64)
        if number == 0:
            z = torch.tensor([0.0, 0.0, -40.0], dtype=torch.float64)  # where softmax and sigmoid bend most
        y = valid_targets(loss, 1, 3)[0]
        if number == 1 and isinstance(loss, cf.Huber):
            z = y + 0.1
        hessian = torch.autograd.functional.hessian(lambda z, y=y: loss.value(z[None], y[None]).sum(), z)
        largest = max(largest, float(torch.linalg.eigvalsh(hessian)[-1]))
    assert loss.curvature * 0.999 < largest <= loss.curvature * (1 + 1e-9)


@pytest.mark.parametrize(
    ("loss", "torch_loss"),
    [
        (cf.Squared(), F.mse_loss),
        (cf.CrossEntropy(), F.cross_entropy),
        (cf.CrossEntropy(label_smoothing=0.1), lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1)),
        (cf.Logistic(), F.binary_cross_entropy_with_logits),
        (cf.Huber(0.3), lambda z, y: F.huber_loss(z, y, delta=0.3)),
    ],
)
def test_called_they_are_torchs(loss, torch_loss):
    torch.manual_seed(0)
    z = torch.randn(6, 4, dtype=torch.float64)
    y = torch.softmax(torch.randn(6, 4, dtype=torch.float64), 1)
    assert torch.allclose(loss(z, y), torch_loss(z, y), rtol=1e-12)
    if loss.labels:
        labels = torch.arange(6) % 4
        assert torch.allclose(loss(z, labels), torch_loss(z, labels), rtol=1e-6)
        grid = loss(z.reshape(2, 3, 4), labels.reshape(2, 3))
        assert torch.allclose(grid, loss(z, labels))


@every
def test_values_are_not_in_bfloat16(loss):
    torch.manual_seed(0)
    z, y = torch.randn(6, 4).bfloat16().requires_grad_(), valid_targets(loss, 6, 4).float()
    value = loss(z, y)
    value.backward()
    assert value.dtype == torch.float32
    assert z.grad.dtype == torch.bfloat16
    assert float(value.detach()) == pytest.approx(float(loss(z.detach().float(), y)), rel=1e-6)


# ---- The inner steps -----------------------------------------------------------------------------


@shapes
@bounded
@pytest.mark.parametrize("steps", [1, 4])
def test_proximal_steps_are_the_reference(make, steps, n, d, o, bias):
    loss = make(inner_steps=steps)
    phi, y = data(loss, n, d, o)
    layer = head(d, o, cf.Proximal(0.3), bias=bias, loss=loss)
    W_t = matrix(layer)
    iterates = reference.majorised(
        lambda f: loss.gradient(f.T, y).T, loss.curvature, columns(phi, bias), W_t, 0.3, inner_steps=steps
    )
    layer.solve(phi, y)
    assert relative(matrix(layer), iterates[-1]) < 1e-9


@shapes
@bounded
def test_ridge_steps_are_the_reference_from_zero(make, n, d, o, bias):
    loss = make(inner_steps=3)
    phi, y = data(loss, n, d, o)
    layer = head(d, o, cf.Ridge(0.3), bias=bias, loss=loss)
    zero = torch.zeros_like(matrix(layer))
    iterates = reference.majorised(lambda f: loss.gradient(f.T, y).T, loss.curvature, columns(phi, bias), zero, 0.3, 3)
    layer.solve(phi, y)
    assert relative(matrix(layer), iterates[-1]) < 1e-9


@bounded
@pytest.mark.parametrize("n", [5, 30])
@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_no_inner_step_increases_the_objective(make, n, lam, scale):
    d, o = 6, 3
    values = []
    for steps in range(1, 12):
        loss = make(inner_steps=steps)
        phi, y = data(loss, n, d, o, scale)
        layer = head(d, o, cf.Proximal(lam), loss=loss)
        W_t = matrix(layer)
        values = values or [float(objective(loss, phi, y, W_t, W_t, lam))]
        layer.solve(phi, y)
        values.append(float(objective(loss, phi, y, matrix(layer), W_t, lam)))
    assert all(after <= before + 1e-10 * abs(before) for before, after in zip(values, values[1:]))
    assert values[-1] < 0.999 * values[0]


@bounded
@pytest.mark.parametrize("n", [5, 30])
@pytest.mark.parametrize("bias", [True, False])
def test_many_inner_steps_reach_the_minimiser(make, n, bias):
    d, o, lam = 6, 3, 0.5
    loss = make(inner_steps=1500)
    phi, y = data(loss, n, d, o)
    layer = head(d, o, cf.Proximal(lam), bias=bias, loss=loss)
    W_t = matrix(layer)
    layer.solve(phi, y)
    assert relative(matrix(layer), minimiser(loss, phi, y, W_t, lam, bias)) < 1e-6


@bounded
@pytest.mark.parametrize("form", ["information", "covariance"])
@pytest.mark.parametrize("n", [5, 30])
def test_kalman_reaches_the_minimiser_against_its_memory(make, form, n):
    """`f + (W - W_t) A (W - W_t)^T` with A what the first batch left behind, which counts features c/2 times."""
    d, o = 6, 3
    loss = make(inner_steps=1500)
    layer = head(d, o, cf.Kalman(1.0, lam=0.5, form=form), loss=loss)
    first, second = data(loss, n, d, o), data(loss, n, d, o, seed=7)
    layer.solve(*first)
    W_t = matrix(layer)
    X = columns(first[0], True).T
    A = 0.5 * torch.eye(d + 1, dtype=torch.float64) + loss.curvature / 2 * X.T @ X
    kept = layer._memory()[form]
    assert relative(kept if form == "information" else torch.linalg.inv(kept), A) < 1e-8
    layer.solve(*second)
    W = matrix(layer).requires_grad_()
    Z = columns(second[0], True).T @ W.T
    value = loss.value(Z, second[1]).sum() + ((W - W_t) @ A * (W - W_t)).sum()
    (gradient,) = torch.autograd.grad(value, W)
    scale = float(((W - W_t).detach() @ A).norm())
    assert float(gradient.norm()) < 1e-6 * scale


@shapes
@bounded
@pytest.mark.parametrize("rule", [cf.Ridge(0.5), cf.Proximal(0.5)], ids=["ridge", "proximal"])
def test_at_the_minimiser_the_gradient_is_backpropagation_through_it(make, rule, n, d, o, bias):
    loss = make(inner_steps=400)
    net = backbone(width=d)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64)
    y = data(loss, n, d, o)[1]
    gradients = []
    for step in (training.algorithm1, training.backpropagate_through):
        model = copy.deepcopy(net)
        layer = head(d, o, rule, bias=bias, loss=loss)
        step(model, layer, torch.optim.SGD(model.parameters(), lr=0.0), x, y)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    if float(gradients[1].norm()) > 1e-12:  # with one class there is nothing to learn
        assert relative(gradients[0], gradients[1]) < 1e-6


def test_away_from_the_minimiser_it_is_not():
    """A check of the check: after one step the layer does not minimise the loss, and the gradients differ."""
    loss = cf.CrossEntropy()
    net, (x, y) = backbone(width=4), (torch.randn(9, 3, dtype=torch.float64), torch.arange(9) % 3)
    gradients = []
    for step in (training.algorithm1, training.backpropagate_through):
        model = copy.deepcopy(net)
        layer = head(4, 3, cf.Proximal(0.5), loss=loss)
        step(model, layer, torch.optim.SGD(model.parameters(), lr=0.0), x, y)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert relative(gradients[0], gradients[1]) > 1e-2


class Doubled(cf.Huber):
    """The same loss in other units."""

    curvature = 2.0

    def value(self, z, y):
        return 2 * super().value(z, y)

    def gradient(self, z, y):
        return 2 * super().gradient(z, y)


@pytest.mark.parametrize(
    ("lam", "doubled"),
    [(0.5, 1.0), ("auto", "auto"), (cf.per_sample(0.1), cf.per_sample(0.2))],
    ids=["number", "auto", "each"],
)
@pytest.mark.parametrize("n", [4, 20])
@pytest.mark.parametrize("rule", [cf.Proximal, lambda lam: cf.Kalman(0.9, lam=lam)])
def test_lambda_stands_beside_the_loss_as_it_is_written(lam, doubled, n, rule):
    one, other = head(6, 3, rule(lam), loss=cf.Huber(0.3, 4)), head(6, 3, rule(doubled), loss=Doubled(0.3, 4))
    for seed in range(2):
        batch = data(one.loss, n, 6, 3, seed=seed)
        one.solve(*batch)
        other.solve(*batch)
    assert relative(matrix(other), matrix(one)) < 1e-9


# ---- Batches, weights, micro-batches, the refit --------------------------------------------------


@bounded
@with_rules
@pytest.mark.parametrize("n", [2, 20])
def test_weight_two_is_the_row_twice(make, rule, n):
    loss = make(inner_steps=3)
    phi, y = data(loss, n, 6, 3)
    weight = 1 + torch.arange(n, dtype=torch.float64) % 2
    weighted, doubled = head(6, 3, rule, loss=loss), head(6, 3, rule, loss=loss)
    for _ in range(2):
        weighted.solve(phi, y, weight)
        doubled.solve(torch.cat([phi, phi[1::2]]), torch.cat([y, y[1::2]]))
    assert relative(matrix(weighted), matrix(doubled)) < 1e-9


@pytest.mark.parametrize(
    "loss",
    [cf.CrossEntropy(4), cf.Logistic(4), cf.Huber(0.3, 4), cf.GeneralizedSquared(5.0, 2.0), cf.OneHotSquared(0.1)],
    ids=lambda loss: type(loss).__name__,
)
@with_rules
@pytest.mark.parametrize("n", [4, 20])
def test_micro_batches_are_one_batch(loss, rule, n):
    phi, y = data(loss, n, 6, 3)
    if loss.labels:
        y = torch.arange(n) % 3
    whole, parts = head(6, 3, rule, loss=loss), head(6, 3, rule, loss=loss)
    for _ in range(2):
        whole.solve(phi, y)
        for piece, target in zip(phi.split(3), y.split(3)):
            parts.accumulate(piece, target)
        parts.commit()
    assert relative(matrix(parts), matrix(whole)) < 1e-9


@bounded
def test_moments_are_taken_in_pieces(make, monkeypatch):
    loss = make(inner_steps=3)
    phi, y = data(loss, 50, 5, 3)
    whole, pieces = head(5, 3, cf.Proximal(0.5), loss=loss), head(5, 3, cf.Proximal(0.5), loss=loss)
    whole.solve(phi, y)
    monkeypatch.setattr("closedform.solver.route.CHUNK", 7)
    pieces.solve(phi, y)
    assert relative(matrix(pieces), matrix(whole)) < 1e-11


@bounded
@pytest.mark.parametrize("weighted", [False, True])
def test_refit_minimises_the_loss_on_the_whole_set(make, weighted):
    loss, net = make(), backbone()
    layer = head(6, 3, cf.Kalman(0.9), loss=loss)
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = data(loss, 40, 6, 3)[1]
    weight = 1 + torch.arange(40, dtype=torch.float64) % 2 if weighted else None
    batches = list(zip(x.split(7), y.split(7), *([weight.split(7)] if weighted else [])))
    memory = {key: value.clone() for key, value in layer._memory().items()}
    cf.refit_(layer, net, batches, beta=0.5, inner_steps=1500)
    phi = net(x).detach()
    if weighted:
        phi, y = torch.cat([phi, phi[1::2]]), torch.cat([y, y[1::2]])
    assert relative(matrix(layer), minimiser(loss, phi, y, torch.zeros(3, 7, dtype=torch.float64), 0.5)) < 1e-6
    assert all(torch.equal(value, memory[key]) for key, value in layer._memory().items())


def test_refit_never_increases_the_loss_and_takes_labels():
    net, layer = backbone(), head(6, 3, loss=cf.CrossEntropy())
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(40) % 3
    values = [float(layer.loss(layer(net(x)), labels).detach())]
    for _ in range(5):
        cf.refit_(layer, net, [(x, labels)], inner_steps=2)
        values.append(float(layer.loss(layer(net(x)), labels).detach()))
    assert all(b < a for a, b in zip(values, values[1:]))
    with pytest.raises(ValueError, match="inner_steps must be 1 or more, got 0"):
        cf.refit_(layer, net, [(x, labels)], inner_steps=0)


# ---- Labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [cf.OneHotSquared(), cf.CrossEntropy(2), cf.GeneralizedSquared(5.0, 2.0)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("how", ["solve", "observe", "accumulate"])
def test_labels_are_one_hot_rows(loss, dtype, how):
    phi, labels = problem(12, 6, 3)[0], (torch.arange(12) % 3).to(dtype)
    one, other = head(6, 3, cf.Proximal(0.5), loss=loss), head(6, 3, cf.Proximal(0.5), loss=loss)
    other.solve(phi, F.one_hot(labels.long(), 3).double())
    if how == "solve":
        one.solve(phi.reshape(3, 4, 6), labels.reshape(3, 4))
    elif how == "observe":
        one.observe(labels)
        one(phi)
    else:
        one.accumulate(phi, labels)
        one.commit()
    assert relative(matrix(one), matrix(other)) < 1e-12


@pytest.mark.parametrize("make", [lambda s: cf.OneHotSquared(s), lambda s: cf.CrossEntropy(3, s)])
def test_label_smoothing(make):
    phi, labels = problem(12, 6, 3)[0], torch.arange(12) % 3
    one, other = head(6, 3, cf.Proximal(0.5), loss=make(0.3)), head(6, 3, cf.Proximal(0.5), loss=make(0.0))
    one.solve(phi, labels)
    other.solve(phi, 0.7 * F.one_hot(labels, 3).double() + 0.1)
    assert relative(matrix(one), matrix(other)) < 1e-7  # the targets are float32


def test_one_hot_squared_is_squared():
    phi, labels = problem(12, 6, 3)[0], torch.arange(12) % 3
    one, other = head(6, 3, cf.Kalman(0.9), loss=cf.OneHotSquared()), head(6, 3, cf.Kalman(0.9))
    one.solve(phi, labels)
    other.solve(phi, F.one_hot(labels, 3).double())
    assert torch.equal(matrix(one), matrix(other))


def test_a_layer_learns_the_classes_of_a_small_problem():
    """Arg-max prediction, every loss of classes, through the same training step."""
    torch.manual_seed(0)
    x = torch.randn(256, 3, dtype=torch.float64)
    labels = (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] > 0).long()
    for loss in (cf.OneHotSquared(), cf.GeneralizedSquared(3.0, 2.0), cf.CrossEntropy(2)):
        net = backbone(width=16)
        layer = cf.ClosedFormLinear(16, 4, rule=cf.Proximal(1.0), loss=loss, dtype=torch.float64)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
        for _ in range(150):
            training.algorithm1(net, layer, optimizer, x, labels)
        assert float((layer(net(x)).argmax(1) == labels).double().mean()) > 0.9, loss


nan = float("nan")
LABELS = torch.arange(4) % 3
CASES = {
    "too large": (cf.CrossEntropy(), LABELS + 1, "labels must be 0 to 2, got 3"),
    "negative": (cf.OneHotSquared(), LABELS - 100, "labels must be 0 to 2, got -100"),
    "not one-hot": (cf.GeneralizedSquared(2.0), torch.full((4, 3), 1 / 3), "one-hot rows; row 0 of 4 is not"),
    "no class": (cf.GeneralizedSquared(2.0), torch.zeros(4, 3), "one-hot rows; row 0 of 4 is not"),
    "no probabilities": (cf.CrossEntropy(), torch.ones(4, 3), "rows of probabilities that add up to 1; row 0"),
    "negative probability": (cf.CrossEntropy(), torch.tensor([[2.0, -1, 0]] * 4), "rows of probabilities"),
    "out of range": (cf.Logistic(), torch.full((4, 3), 2.0), "0, 1 or in between; row 0 of 4 is not"),
    "nan": (cf.CrossEntropy(), torch.full((4, 3), nan), "rows of probabilities"),
    "float labels": (cf.CrossEntropy(), LABELS.double(), r"y must have shape \(4, 3\)"),
    "labels of several": (cf.Logistic(), LABELS, r"y must have shape \(4, 3\)"),
    "complex": (cf.CrossEntropy(), torch.zeros(4, 3, dtype=torch.complex64), "real numbers"),
    "huber nan": (cf.Huber(), torch.full((4, 3), nan), "y has NaN"),
}


@pytest.mark.parametrize(("loss", "y", "message"), CASES.values(), ids=list(CASES))
def test_bad_targets(loss, y, message):
    layer = head(6, 3, cf.Kalman(0.9), loss=loss)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        layer.solve(problem(4, 6, 3)[0], y)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("float labels", "labels of several", "complex")]
)
def test_where_no_look_is_allowed_bad_targets_are_rejected_and_counted(name, monkeypatch):
    """As on a GPU: what cannot be seen becomes NaN, and the guard of the solve notices."""
    loss, y, _ = CASES[name]
    layer = head(6, 3, cf.Proximal(0.5), loss=loss)
    before = matrix(layer)
    for module in ("losses", "route"):
        monkeypatch.setattr(f"closedform.solver.{module}.may_branch", lambda tensor: False)
    layer.solve(problem(4, 6, 3)[0], y)
    assert int(layer.rejected) == 1
    assert torch.equal(matrix(layer), before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cf.CrossEntropy(0), "inner_steps must be a whole number of 1 or more, got 0"),
        (lambda: cf.Logistic(1.5), "inner_steps"),
        (lambda: cf.Huber(1.0, 0), "inner_steps"),
        (lambda: cf.Huber(0.0), "delta must be positive and finite, got 0.0"),
        (lambda: cf.GeneralizedSquared(k=0.0), "k must be positive and finite, got 0.0"),
        (lambda: cf.GeneralizedSquared(m=nan), "m must be positive and finite"),
        (lambda: cf.CrossEntropy(1, 1.0), r"label_smoothing must be in \[0, 1\), got 1.0"),
        (lambda: cf.OneHotSquared(-0.1), "label_smoothing"),
        (lambda: cf.ClosedFormLinear(3, 2, loss=F.mse_loss), "loss must be a closedform loss"),
        (lambda: cf.ClosedFormLinear(3, 2, loss=cf.CrossEntropy), "loss must be a closedform loss"),
    ],
)
def test_bad_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_variance_is_that_of_the_squared_loss():
    layer = head(6, 3, cf.Kalman(0.9), loss=cf.CrossEntropy())
    layer.solve(problem(4, 6, 3)[0], LABELS)
    with pytest.raises(ValueError, match="variance needs the squared loss, .* this head has CrossEntropy"):
        layer.variance(problem(4, 6, 3)[0])


# ---- Precision and compilers ---------------------------------------------------------------------


@bounded
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_and_autocast(make, dtype):
    loss = make(inner_steps=3)
    phi, y = data(loss, 20, 6, 3)
    exact, rough = head(6, 3, cf.Proximal(0.5), loss=loss), head(6, 3, cf.Proximal(0.5), loss=loss, dtype=dtype)
    rough.set_weights_(matrix(exact))
    phi = phi.to(dtype)
    y = y.to(dtype)
    exact.solve(phi.double(), y.double())
    with torch.autocast("cpu", torch.bfloat16):
        rough.solve(phi, y)
        value = loss(rough(phi), y)
    assert torch.isfinite(value)
    assert relative(rough._storage(), matrix(exact)) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize(
    "loss", [cf.CrossEntropy(3), cf.Logistic(3), cf.Huber(0.3, 3), cf.GeneralizedSquared(5.0, 2.0), cf.OneHotSquared()]
)
@with_rules
@pytest.mark.parametrize("n", [4, 12])
def test_a_compiled_solve_is_one_graph_with_equal_results(loss, rule, n):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    one, other = head(6, 3, rule, loss=loss), head(6, 3, rule, loss=loss)
    solve = torch.compile(other.solve, backend=counter, fullgraph=True)
    for seed in range(3):
        phi, y = data(loss, n, 6, 3, seed=seed)
        y = (torch.arange(n) + seed) % 3 if loss.labels else y
        one.solve(phi, y)
        solve(phi, y)
        assert relative(matrix(other), matrix(one)) < 1e-9
    assert counter.frame_count == 1


@bounded
def test_rules_solve_without_a_head(make):
    """The functions below the head are differentiable in the targets."""
    loss = make(inner_steps=3)
    phi, y = data(loss, 5, 4, 3)
    W = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def solved(y):
        batch = Batch(phi, y, loss=loss)
        return rules.fit(batch, W, batch.system(W), 0.5).update

    assert torch.autograd.gradcheck(solved, y.requires_grad_())


# ---- A loss of one's own, and what is wrong with it ----------------------------------------------


@dataclass(frozen=True)
class Own(cf.losses.Loss):
    inner_steps: int = 1
    curvature: float = 2.0
    labels = True

    def value(self, z, y):
        return (z - y).square()

    def gradient(self, z, y):
        return 2 * (z - y)


def test_a_loss_of_classes_of_ones_own_takes_labels():
    phi, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    heads = [cf.ClosedFormLinear(4, 3, rule=cf.Ridge(0.1), loss=loss).double() for loss in (Own(), cf.OneHotSquared())]
    for layer in heads:
        layer.solve(phi, y)
    torch.testing.assert_close(heads[0].weight, heads[1].weight)
    assert float(Own()(heads[0](phi), y)) == pytest.approx(float(cf.OneHotSquared()(heads[1](phi), y)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Own(inner_steps=0), "inner_steps must be a whole number of 1 or more, got 0"),
        (Own(inner_steps=1.5), "inner_steps must be a whole number of 1 or more, got 1.5"),
        (Own(curvature=-1.0), "curvature of a loss must be positive and finite, got -1.0"),
        (Own(curvature=math.nan), "curvature of a loss must be positive and finite, got nan"),
    ],
)
def test_a_bound_that_is_none_is_refused(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        cf.ClosedFormLinear(4, 3, loss=wrong)


def test_a_gradient_of_another_shape_is_refused():
    class Summed(Own):
        def gradient(self, z, y):
            return 2 * (z - y).sum(0)

    layer = cf.ClosedFormLinear(4, 3, rule=cf.Ridge(0.1), loss=Summed())
    before = layer.weight.clone()
    with pytest.raises(ValueError, match=r"Summed.gradient gave shape \(3,\); expected that of the outputs, \(20, 3\)"):
        layer.solve(torch.randn(20, 4), torch.arange(20) % 3)
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("loss", [cf.Squared(), cf.Huber(), cf.CrossEntropy(), cf.Logistic(), Own()])
def test_a_loss_does_not_broadcast(loss):
    with pytest.raises(ValueError, match=r"y must have the outputs' shape \(50, 1\).*; got \(50,\)"):
        loss(torch.randn(50, 1), torch.rand(50))
    with pytest.raises(ValueError, match=r"got \(49, 1\)"):
        loss(torch.randn(50, 1), torch.rand(49, 1))


def test_numpys_whole_numbers_are_whole():
    assert cf.CrossEntropy(np.int64(3)).inner_steps == 3


def test_a_k_that_would_iterate_for_ever_is_refused_where_it_iterates():
    S, label = torch.randn(6, 4, dtype=torch.float64) / 9, torch.arange(6) % 2
    with pytest.raises(ValueError, match="k is 1e.12; expected 1e-4 to 1e4"):
        class_systems._iterated(S, torch.randn(4, 2, dtype=torch.float64), label, 1e12 - 1)
    assert class_systems.iterations(1e4) <= class_systems._MOST
    assert class_systems.iterations(1e-4) <= class_systems._MOST


@pytest.mark.parametrize("n", [5, 60])
@pytest.mark.parametrize("loss", [cf.CrossEntropy(inner_steps=3), cf.Squared(), cf.Huber(inner_steps=2)])
def test_many_outputs_in_blocks_are_as_all_at_once(n, loss, monkeypatch):
    phi, y = problem(n, 6, 4)
    y = y.argmax(1) if loss.labels else y
    weight = torch.rand(n, dtype=torch.float64)
    layers = [head(6, 4, cf.Proximal(0.5), loss=loss) for _ in range(2)]
    kept = y.clone()
    layers[0].solve(phi, y, weight)
    monkeypatch.setitem(route._BLOCK_BYTES, "cpu", 8 * 4 * 6 * 2)  # two rows at a time
    layers[1].solve(phi, y, weight)
    assert relative(matrix(layers[0]), matrix(layers[1])) < 1e-12
    assert torch.equal(y, kept)


def test_layers_side_by_side_have_their_residuals_in_blocks_too(monkeypatch):
    phi, y = problem(60, 6, 40)
    layers = [head(6, 40, cf.Auto(), loss=cf.CrossEntropy()) for _ in range(2)]
    layers[0].solve(phi, y.argmax(1))
    monkeypatch.setitem(route._BLOCK_BYTES, "cpu", 8 * 40 * 6 * 25)  # 25 rows at a time
    layers[1].solve(phi, y.argmax(1))
    assert relative(matrix(layers[0]), matrix(layers[1])) < 1e-12


@pytest.mark.parametrize(("n", "d"), [(2048, 256), (1024, 1024)])
def test_a_vocabulary_takes_a_few_times_the_memory_of_its_logits(n, d):
    """Peak memory of a solve for 20,000 classes, by moments and by rows: 12 times the logits when all was made at once. What
    does not grow with the rows is the old and the new layer in float64, and blocks of 64 MB."""
    code = f"""
import resource, torch, closedform as cf
phi, y = torch.randn({n}, {d}), torch.randint(20000, ({n},))
cf.ClosedFormLinear({d}, 2, rule=cf.Proximal(), loss=cf.CrossEntropy()).solve(phi, y % 2)
head = cf.ClosedFormLinear({d}, 20000, rule=cf.Proximal(), loss=cf.CrossEntropy())
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
head.solve(phi, y)
print((peak() - before - 2 * 8 * 20000 * ({d} + 1) - 2**26) / (4 * {n} * 20000))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert float(run.stdout) < 3
