"""Propositions 3.1 and 4.1: no gradient through the solution is needed; and the algorithms built on that."""

import copy

import pytest
import torch
from torch.nn import functional as F

import closedform as cf
from closedform import training
from closedform.solver import reference

from .cases import RULES, shapes
from .helpers import backbone, batches, matrix, relative


@shapes
@pytest.mark.parametrize("rule", [cf.Ridge(0.3), cf.Proximal(0.3), cf.Proximal("auto"), cf.Proximal(torch.tensor(0.3))])
def test_gradient_equals_backpropagation_through_the_solution(n, d, o, bias, rule):
    net = backbone(width=d)
    x, y = batches(1, n=n, outputs=o)[0]
    gradients = []
    for step in (training.algorithm1, training.backpropagate_through):
        model = copy.deepcopy(net)
        head = cf.ClosedFormLinear(d, o, bias, rule=rule, init="he", dtype=torch.float64)
        head.set_weights_(torch.full((o, head.features), 0.1))
        step(model, head, torch.optim.SGD(model.parameters(), lr=0.0), x, y)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert relative(gradients[0], gradients[1]) < 1e-8


def test_beta_zero_too():
    net, (x, y) = backbone(width=4), batches(1, n=9)[0]
    gradients = []
    for step in (training.algorithm1, training.backpropagate_through):
        model = copy.deepcopy(net)
        head = cf.ClosedFormLinear(4, 2, rule=cf.Ridge(0.0), dtype=torch.float64)
        step(model, head, torch.optim.SGD(model.parameters(), lr=0.0), x, y)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert relative(gradients[0], gradients[1]) < 1e-8


def test_the_moving_average_is_outside_the_theorem():
    """A check of the checks: through a layer that does not minimise the loss, the gradient is another one."""
    net, (x, y) = backbone(width=4), batches(1, n=9)[0]
    head = cf.ClosedFormLinear(4, 2, rule=cf.Ema(0.3, 0.5), dtype=torch.float64)
    phi = net(x)
    head.solve(phi, y)
    envelope = torch.autograd.grad(F.mse_loss(head(phi), y), list(net.parameters()))
    X = torch.nn.functional.pad(net(x), (0, 1), value=1.0)
    W = 0.5 * torch.linalg.solve(X.T @ X + 0.3 * torch.eye(5, dtype=torch.float64), X.T @ y).T  # from W_t = 0
    assert relative(W, matrix(head)) < 1e-10
    through = torch.autograd.grad(F.mse_loss(X @ W.T, y), list(net.parameters()))
    assert relative(envelope[0], through[0]) > 1e-2


@pytest.mark.parametrize("n", [4, 20])
@pytest.mark.parametrize("name", ["algorithm1", "algorithm2"])
def test_one_loop_is_the_papers_pseudo_code(name, n):
    """A hundred steps of our loop against the printed algorithm, which handles two batches at a time."""
    stream = batches(100, n=n)
    theirs, ours = backbone(), backbone()
    start = torch.zeros(2, 7, dtype=torch.float64)
    printed = getattr(reference, name)(theirs, list(theirs.parameters()), stream, start, lam=2.0, lr=0.1)
    head = cf.ClosedFormLinear(6, 2, rule=cf.Proximal(2.0), dtype=torch.float64)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    steps = 0
    for (W, parameters), (x, y) in zip(printed, stream):
        getattr(training, name)(ours, head, optimizer, x, y)
        assert relative(matrix(head), W) < 1e-8
        assert all(relative(p, q) < 1e-8 for p, q in zip(ours.parameters(), parameters))
        steps += 1
    assert steps == 100


@pytest.mark.parametrize("name", sorted(training.STEPS))
def test_every_method_learns(name):
    """All have one signature, and all fit a small problem better than a constant does."""
    torch.manual_seed(0)
    net = backbone(width=16)
    labels = name == "cross_entropy"
    x = torch.randn(256, 3, dtype=torch.float64)
    clean = torch.stack([x[:, 0] * x[:, 1], torch.sin(2 * x[:, 2])], 1)
    y = clean.argmax(1) if labels else clean
    plain = name in ("l2", "cross_entropy")
    head = (
        torch.nn.Linear(16, 2).double()
        if plain
        else cf.ClosedFormLinear(16, 2, rule=RULES.get(name, cf.Proximal(10.0)), dtype=torch.float64)
    )
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=0.01)
    losses = [float(training.STEPS[name](net, head, optimizer, x, y)) for _ in range(150)]
    assert losses[-1] < 0.5 * losses[0]


def test_methods_refuse_the_wrong_rule():
    net, (x, y) = backbone(), batches(1)[0]
    head = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(), dtype=torch.float64)
    with pytest.raises(ValueError, match="needs a head with the rule Ridge"):
        training.ridge(net, head, torch.optim.SGD(net.parameters(), lr=0.1), x, y)
