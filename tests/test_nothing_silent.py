"""What would go wrong without a word is said: a layer that nobody solves, a solve in the wrong place, lost solves."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import closedform as cf

from .helpers import backbone, batches, head, problem


def fresh(kind: type = cf.ClosedFormLinear) -> nn.Module:
    return kind(6, 2, dtype=torch.float64)


@pytest.mark.filterwarnings("error")
def test_a_layer_that_nobody_solves_says_so_once():
    net, layer, (x, _) = backbone(), fresh(), batches(1)[0]
    layer.eval()(net(x))
    layer.train()
    with torch.no_grad():
        layer(net(x))
    layer(torch.randn(3, 6, dtype=torch.float64))  # no gradient goes through it
    with pytest.warns(UserWarning, match=r"nobody has solved it or given it targets.*head.solve"):
        layer(net(x))
    layer(net(x))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("way", ["solve", "observe", "accumulate", "set_weights_", "load_state_dict", "deepcopy"])
def test_a_layer_that_was_shown_targets_says_nothing(way):
    net, layer, (x, y) = backbone(), fresh(), batches(1)[0]
    phi = net(x)
    if way == "set_weights_":
        layer.set_weights_(torch.zeros(2, 7))
    elif way in ("load_state_dict", "deepcopy"):
        other = fresh()
        other.solve(phi, y)
        if way == "deepcopy":
            layer = copy.deepcopy(other)
        else:
            layer.load_state_dict(other.state_dict())
    else:
        getattr(layer, way)(*((y,) if way == "observe" else (phi, y)))
    layer(phi)


def test_the_field_layer_says_it_too():
    layer, phi = cf.ClosedFormConv1x1(6, 2), torch.randn(1, 6, 3, 3, requires_grad=True)
    with pytest.warns(UserWarning, match="ClosedFormConv1x1 is in training"):
        layer(phi)


@pytest.mark.filterwarnings("error")
def test_algorithm_2_solves_after_its_first_forward():
    net, layer, (x, y) = backbone(), fresh(), batches(1)[0]
    cf.training.algorithm2(net, layer, torch.optim.SGD(net.parameters(), 0.1), x, y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_solve_between_forward_and_backward_is_said_in_plain_words(dtype):
    layer, (phi, y) = head(6, 2, cf.Proximal(1.0)), problem(4, 6, 2)
    phi = phi.to(dtype).requires_grad_()
    loss = layer(phi).square().sum()
    layer.solve(phi, y)
    with pytest.raises(RuntimeError, match=r"solved between a forward and its backward.*before head\(phi\)"):
        loss.backward()
    (grad,) = torch.autograd.grad(layer(phi).sum(), phi, create_graph=True)
    assert torch.allclose(grad, layer.weight.to(dtype).sum(0).expand(4, 6))


def test_rejected_solves_are_said_once_with_their_count():
    layer = cf.ClosedFormLinear(2, 1, bias=False, rule=cf.Ridge(1e-12))
    good, bad = (torch.eye(2), torch.ones(2, 1)), (torch.full((1, 2), 1e-5), torch.full((1, 1), 1e38))
    layer.solve(*good)
    with pytest.warns(UserWarning, match=r"1 of 2 solves.*learning rate.*targets scaled"):
        layer.solve(*bad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.solve(*bad)
    assert int(layer.rejected) == 2


def test_features_that_blew_up_say_what_to_try():
    layer, (phi, y) = head(6, 2, cf.Proximal(1.0)), problem(4, 6, 2)
    broken = torch.full_like(phi, float("nan"))
    with pytest.raises(ValueError, match=r"row 0 of 4\)$"):
        layer.solve(broken, y)  # nothing has run yet: the input is at fault
    layer.solve(phi, y)
    with pytest.raises(ValueError, match=r"NaN.*diverged.*0 of 1 solves.*learning rate"):
        layer.solve(broken, y)


@pytest.mark.parametrize("way", ["silence", "rejection", "probe"])
def test_a_warning_names_the_users_line(way):
    net, layer, (x, y) = backbone(), fresh(), batches(1)[0]
    bad = torch.full((1, 2), 1e-5), torch.full((1, 1), 1e38)
    call, words = {
        "silence": (lambda: nn.Sequential(net, layer)(x), "is in training"),
        "rejection": (
            lambda: cf.ClosedFormLinear(2, 1, bias=False, rule=cf.Ridge(1e-12)).solve(*bad),
            "1 of 1 solves",
        ),
        "probe": (lambda: cf.probe(net, [(x, y)], betas=[1e9, 1e10, 1e11]), "of the grid"),
    }[way]
    with pytest.warns(UserWarning, match=words) as said:
        call()
    assert [warning.filename for warning in said] == [__file__]


@pytest.mark.parametrize("way", ["weight_norm", "old weight_norm", "spectral_norm", "prune"])
def test_a_parametrised_head_is_refused(way):
    layer, (phi, y) = head(6, 2, cf.Ridge(1.0)), problem(4, 6, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        {
            "weight_norm": lambda: parametrizations.weight_norm(layer),
            "old weight_norm": lambda: nn.utils.weight_norm(layer),
            "spectral_norm": lambda: parametrizations.spectral_norm(layer),
            "prune": lambda: prune.l1_unstructured(layer, "weight", 0.5),
        }[way]()
    for call in (lambda: layer.solve(phi, y), lambda: layer.observe(y), lambda: layer.accumulate(phi, y)):
        with pytest.raises(ValueError, match="computed from other tensors"):
            call()
    assert int(layer.attempts) == 0


SHARDED = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
import closedform as cf
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
kind = {"device_mesh": mesh, "device_id": torch.device("cpu")}
def net(group=None):
    torch.manual_seed(0)
    head = cf.ClosedFormLinear(8, 1, rule=cf.Ridge(0.1), process_group=group)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), head).double()
def steps(model, head, part):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    draw = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(32, 4, dtype=torch.float64, generator=draw)[part]
        head.observe(x.sum(1, keepdim=True))
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return head.weight.detach()
own = slice(16 * rank, 16 * rank + 16)
for shard in (lambda m: fully_shard(m, mesh=mesh), lambda m: FullyShardedDataParallel(m, use_orig_params=True, **kind)):
    model = net()
    head = model[2]
    model = shard(model) or model
    try:
        steps(model, head, own)
    except ValueError as bad:
        assert "sharded over processes" in str(bad), bad
    else:
        raise SystemExit("the solve was lost in silence")
plain = net(False)
expected = steps(plain, plain[2], slice(None))
for shard in (
    lambda m: fully_shard(m, mesh=mesh, ignored_params=set(m[2].parameters())),
    lambda m: FullyShardedDataParallel(m, ignored_states=[m[2]], **kind),
):
    model = net()
    head = model[2]
    model = shard(model) or model
    assert torch.allclose(steps(model, head, own), expected, rtol=1e-9, atol=1e-12)
    assert int(head.step) == 5
dist.destroy_process_group()
"""


def test_a_sharded_head_is_refused_and_a_whole_one_in_a_sharded_model_is_solved(tmp_path):
    """On two processes: a model that is sharded around its head ends with the weights of one process on all rows."""
    command = [sys.executable, "-W", "ignore", "-c", SHARDED, str(tmp_path / "meeting")]
    ranks = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        for process in ranks:
            error = process.communicate(timeout=300)[1]
            assert process.returncode == 0, error[-2000:]
    finally:
        for process in ranks:
            process.kill()


def test_the_gradient_of_a_watched_layer_is_that_of_a_plain_one():
    layer, (phi, y) = head(6, 2, cf.Proximal(1.0)), problem(4, 6, 2)
    layer.solve(phi, y)
    grads = []
    for module in (layer, layer.to_linear().requires_grad_(False)):
        leaf = phi.clone().requires_grad_()
        F.mse_loss(module(leaf), y).backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)
