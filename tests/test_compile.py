"""torch.compile: the whole step in one graph, no recompilation, the same results. (`aot_eager` needs no compiler.)"""

import shutil

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.nn import functional as F

import closedform as cf

from . import cases
from .helpers import Model, backbone, batches, matrix, relative

rules = cases.rules(*cases.MODULE_RULES)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def count():
    return torch._dynamo.testing.CompileCounterWithBackend("aot_eager")


@rules
@pytest.mark.parametrize("n", [4, 12])
def test_a_step_is_one_graph_compiled_once_with_equal_results(rule, n):
    counter = count()
    nets = backbone(), backbone()
    heads = [cf.ClosedFormLinear(6, 2, rule=rule, dtype=torch.float64) for _ in range(2)]
    compiled = torch.compile(_loss, backend=counter, fullgraph=True)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in nets]
    for x, y in batches(8, n=n):
        for net, head, optimizer, run in zip(nets, heads, optimizers, (_loss, compiled)):
            loss = run(net, head, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert relative(matrix(heads[1]), matrix(heads[0])) < 1e-9
    assert counter.frame_count == 1
    assert int(heads[1].step) == 8
    assert all(relative(p, q) < 1e-9 for p, q in zip(nets[1].parameters(), nets[0].parameters()))
    assert not torch._dynamo.utils.counters["graph_break"]


def _loss(net, head, x, y):
    phi = net(x)
    head.solve(phi, y)
    return F.mse_loss(head(phi), y)


def test_observe_inside_a_compiled_model():
    counter = count()
    model, other = Model(cf.Proximal(1.0)), Model(cf.Proximal(1.0))
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for x, y in batches(5):
        model.fc.observe(y)
        other.fc.observe(y)
        assert relative(compiled(x), other(x)) < 1e-9
    assert int(model.fc.step) == 5
    assert counter.frame_count == 1


def test_under_autocast():
    counter = count()
    model = Model(cf.Proximal(1.0), torch.float32)

    @torch.compile(backend=counter, fullgraph=True)
    def step(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            phi = model.backbone(x)
            model.fc.solve(phi, y)
            return F.mse_loss(model.fc(phi).float(), y)

    for x, y in batches(4, dtype=torch.float32):
        step(x, y).backward()
    assert counter.frame_count == 1
    assert int(model.fc.step) == 4


def test_bad_values_are_rejected_and_counted():
    head = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(lam=1.0), dtype=torch.float64)
    solve = torch.compile(head.solve, backend="aot_eager", fullgraph=True)
    phi, y = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    solve(phi, y)
    before = {k: v.clone() for k, v in head.state_dict().items() if k != "attempts"}
    for bad_phi, bad_y in ((phi * float("nan"), y), (phi, y * float("inf")), (phi, y.clone().fill_(float("nan")))):
        solve(bad_phi, bad_y)
    assert int(head.rejected) == 3
    assert all(torch.equal(v, head.state_dict()[k]) for k, v in before.items())
    solve(phi, y)
    assert int(head.step) == 2


def test_a_tensor_learning_rate_is_followed_without_recompilation():
    net = nn.Linear(3, 6).double()
    rate = torch.tensor(0.1)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    counter = count()
    head = cf.ClosedFormLinear(6, 2, rule=cf.Proximal(cf.lambdas.follow_lr(optimizer, 1.0)), dtype=torch.float64)
    fixed = cf.ClosedFormLinear(6, 2, rule=cf.Proximal(4.0), dtype=torch.float64)
    solve = torch.compile(head.solve, backend=counter, fullgraph=True)
    phi, y = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    for value in (0.1, 0.05):
        rate.fill_(value)
        solve(phi, y)
    head.set_weights_(torch.zeros(2, 7))
    rate.fill_(0.025)
    solve(phi, y)
    fixed.solve(phi, y)
    assert relative(matrix(head), matrix(fixed)) < 1e-9
    assert counter.frame_count == 1


def test_batches_of_many_sizes_are_compiled_twice_at_most():
    counter = count()
    head = cf.ClosedFormLinear(6, 2, rule=cf.Proximal(1.0), dtype=torch.float64)
    other = cf.ClosedFormLinear(6, 2, rule=cf.Proximal(1.0), dtype=torch.float64)
    solve = torch.compile(head.solve, backend=counter, fullgraph=True)
    for n in range(20, 32):
        phi, y = torch.randn(n, 6, dtype=torch.float64), torch.randn(n, 2, dtype=torch.float64)
        solve(phi, y)
        other.solve(phi, y)
    assert counter.frame_count <= 2
    assert relative(matrix(head), matrix(other)) < 1e-9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # Inductor's own
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on the CPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inductor_on_the_cpu(dtype):
    """A master copy must survive a compiler that skips roundings."""
    heads = [cf.ClosedFormLinear(4, 1, bias=False, rule=cf.Proximal(1e3), dtype=dtype) for _ in range(2)]
    solve = torch.compile(heads[1].solve, fullgraph=True)
    phi, y = torch.eye(4, dtype=dtype), torch.ones(4, 1, dtype=dtype)
    for _ in range(300):
        heads[0].solve(phi, y)
        solve(phi, y)
    assert float(heads[1].weight.mean()) > 0.2
    assert torch.allclose(heads[0]._storage(), heads[1]._storage(), rtol=1e-5)


@pytest.mark.parametrize(
    ("rule", "overflow"),
    [
        (cf.Proximal(1e-12), "one row"),
        (cf.Kalman(0.9, lam=1e-12, form="covariance"), "one row"),
        (cf.Kalman(0.9, lam=1e-12, form="information"), "n > d"),
    ],
    ids=["proximal", "covariance", "information"],
)
def test_an_update_that_overflows_in_some_entries_changes_none(rule, overflow):
    batch = cases.OVERFLOWS[overflow]
    head = cf.ClosedFormLinear(*batch.shape, batch.bias, rule=rule)
    head.set_weights_(torch.full((head.out_features, head.features), 0.5))
    before = {name: tensor.clone() for name, tensor in head.state_dict().items() if name != "attempts"}

    @torch.compile(backend="aot_eager", fullgraph=True)
    def solve(phi, y):
        head.solve(phi, y)

    solve(batch.phi, batch.y)
    assert int(head.rejected) == 1
    assert all(torch.equal(tensor, head.state_dict()[name]) for name, tensor in before.items())
