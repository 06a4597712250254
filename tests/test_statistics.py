"""Streaming statistics and the refit."""

import pytest
import torch
from torch import nn

import closedform as cf
from closedform.solver import reference

from .helpers import Model, backbone, batches, columns, head, matrix, problem, relative


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n", [4, 40])
def test_they_solve_like_the_whole(n, bias):
    phi, y = problem(n, 6, 2)
    stream = cf.Statistics(6, 2, bias)
    for part, target in zip(phi.split(3), y.split(3)):
        stream.add(part, target)
    assert relative(stream.solve(0.3), reference.ridge(columns(phi, bias), y.T, 0.3)) < 1e-9
    assert stream.n == n


def test_merge_and_decay_and_weights():
    phi, y = problem(10, 6, 2)
    first, second = cf.Statistics(6, 2).add(phi[:5], y[:5]), cf.Statistics(6, 2).add(phi[5:], y[5:])
    weight = torch.cat([torch.full((5,), 0.25), torch.ones(5)]).double()
    direct = cf.Statistics(6, 2).add(phi, y, weight)
    assert relative(first.decay(0.25).merge(second).solve(0.1), direct.solve(0.1)) < 1e-10
    assert float(first.n) == float(direct.n)


def test_beta_zero_on_a_deficient_problem_is_the_smallest_solution():
    phi, y = problem(4, 6, 2)
    W = cf.Statistics(6, 2, bias=False).add(phi, y).solve(0.0)
    assert relative(W, y.T @ torch.linalg.pinv(phi.T)) < 1e-6


def test_they_must_fit_together():
    with pytest.raises(ValueError, match="cannot be merged"):
        cf.Statistics(6, 2).merge(cf.Statistics(5, 2))
    with pytest.raises(ValueError, match="6 features"):
        cf.Statistics(6, 2).add(torch.zeros(3, 5), torch.zeros(3, 2))


@pytest.mark.parametrize("beta", [0.0, 0.1, cf.per_sample(0.01), "auto"])
def test_refit_is_ridge_on_the_whole_set(beta):
    net, layer = backbone(), head(6, 2, cf.Kalman(0.9))
    data = batches(9)
    memory = {k: v.clone() for k, v in layer._memory().items()}
    assert cf.refit_(layer, net, data, beta) is layer
    phi, y = torch.cat([net(x) for x, _ in data]), torch.cat([t for _, t in data])
    other = head(6, 2, cf.Ridge(beta))
    other.solve(phi, y)
    assert relative(matrix(layer), matrix(other)) < 1e-7
    assert all(torch.equal(v, memory[k]) for k, v in layer._memory().items())


def test_refit_uses_the_features_of_prediction_time():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).double()
    net[2].eval()  # frozen by the user, and to stay so
    for x, _ in batches(5):
        net(x)
    layer, data = head(6, 2), batches(9)
    running = net[1].running_mean.clone()
    cf.refit_(layer, net, data, beta=0.1)
    assert net.training
    assert net[1].training
    assert not net[2].training
    assert torch.equal(net[1].running_mean, running)
    net.eval()
    phi, y = torch.cat([net(x) for x, _ in data]), torch.cat([t for _, t in data])
    assert relative(matrix(layer), reference.ridge(columns(phi, True), y.T, 0.1)) < 1e-9


def test_refit_with_weights_and_a_grid():
    net, layer, other = backbone(), head(6, 2), head(6, 2, cf.Ridge(0.1))
    x, y = batches(1, n=12)[0]
    weight = torch.rand(12, dtype=torch.float64)
    cf.refit_(layer, net, [(x.reshape(3, 4, 3), y.reshape(3, 4, 2), weight.reshape(3, 4))], beta=0.1)
    other.solve(net(x), y, weight)
    assert relative(matrix(layer), matrix(other)) < 1e-9


def test_refit_of_a_low_precision_head():
    net, layer = backbone(dtype=torch.float32), cf.ClosedFormLinear(6, 2, dtype=torch.bfloat16)
    cf.refit_(layer, net, batches(9, dtype=torch.float32), beta=0.1)
    assert torch.equal(layer.weight, layer.master[:, :6].bfloat16())


def test_refit_of_a_head_inside_the_model():
    data = batches(9)
    model, other = Model(cf.Kalman()), Model(cf.Kalman())
    cf.refit_(model.fc, model, data, beta=0.1)
    cf.refit_(other.fc, other.backbone, data, beta=0.1)
    assert relative(matrix(model.fc), matrix(other.fc)) < 1e-12
    assert not model.fc._forward_pre_hooks


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("stance", [True, False], ids=["set_stance", "before torch 2.6"])
@pytest.mark.parametrize("compiled", ["whole", "part", "in place"])
def test_refit_of_a_compiled_model_that_has_predicted(compiled, stance, monkeypatch):
    """Its code was made without the hook by which the features are read, and is not made anew for it."""
    if not stance:
        monkeypatch.delattr(torch.compiler, "set_stance", raising=False)
    torch._dynamo.reset()
    data, layer, theirs = batches(9), head(6, 2), head(6, 2)
    net = nn.Sequential(backbone(), layer)
    model = net if compiled == "in place" else torch.compile(net, backend="eager")
    if compiled == "in place":
        net.compile(backend="eager")
    model = Outer(model) if compiled == "part" else model
    model.eval()
    with torch.no_grad():
        before = model(data[0][0])
    cf.refit_(layer, model, data, beta=0.1)
    cf.refit_(theirs, backbone(), data, beta=0.1)
    assert torch.equal(matrix(layer), matrix(theirs))
    frames = torch._dynamo.utils.counters["frames"]["total"]
    assert not layer._forward_pre_hooks
    with torch.no_grad():
        after = model(data[0][0])
    assert relative(after, theirs(backbone()(data[0][0]))) < 1e-12
    assert relative(after, before) > 0.1
    assert torch._dynamo.utils.counters["frames"]["total"] == frames  # still compiled, and not anew
