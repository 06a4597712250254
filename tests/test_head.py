"""The layer as a module: initialisation, observe, accumulate, copies, casts, saves and replacements."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import closedform as cf

from . import cases
from .helpers import Model, backbone, batches, head, matrix, problem, relative

rules = cases.rules(*cases.MODULE_RULES)


# ---- The layer is an nn.Linear -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "variance"), [("zeros", 0.0), ("lecun", 1 / 400), ("xavier", 2 / 700), ("he", 2 / 400)]
)
def test_initialisation(init, variance):
    torch.manual_seed(0)
    layer = cf.ClosedFormLinear(400, 300, init=init)
    assert float(layer.weight.var()) == pytest.approx(variance, rel=0.02)
    assert not layer.bias.any()


def test_it_is_a_linear_layer_without_gradients():
    layer = cf.ClosedFormLinear(6, 2)
    assert isinstance(layer, nn.Linear)
    assert not any(p.requires_grad for p in layer.parameters())
    x = torch.randn(3, 6)
    layer.set_weights_(torch.randn(2, 7))
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert "rule=Auto(" in repr(layer)


def test_optimizers_clipping_and_decay_leave_it_alone():
    model, (x, y) = Model(cf.Proximal(1.0)), batches(1)[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    model.fc.observe(y)
    F.mse_loss(model(x), y).backward()
    before = matrix(model.fc)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    assert torch.equal(matrix(model.fc), before)
    assert model.fc.weight.grad is None


def test_averaged_models_average_it():
    model = Model(cf.Proximal(1.0))
    average = torch.optim.swa_utils.AveragedModel(model)
    seen = []
    for x, y in batches(4):
        model.fc.observe(y)
        model(x)
        average.update_parameters(model)
        seen.append(matrix(model.fc))
    assert relative(matrix(average.module.fc), torch.stack(seen).mean(0)) < 1e-12


def test_solve_between_forward_and_backward_raises():
    net, (x, y) = backbone(), batches(1)[0]
    layer = head(6, 2, cf.Proximal(1.0))
    phi = net(x)
    loss = F.mse_loss(layer(phi), y)
    layer.solve(phi, y)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_export():
    layer = head(6, 2, cf.Proximal(1.0))
    layer.solve(*problem(4, 6, 2))
    plain = layer.to_linear()
    assert type(plain) is nn.Linear
    assert plain.weight.requires_grad
    x = problem(4, 6, 2)[0]
    assert torch.equal(plain(x), layer(x))
    before = matrix(plain)
    layer.solve(*problem(4, 6, 2, seed=1))
    assert torch.equal(matrix(plain), before)


# ---- observe -------------------------------------------------------------------------------------


def test_observe_is_solve():
    model, net, layer = Model(cf.Proximal(1.0)), backbone(), cf.ClosedFormLinear(6, 2, rule=cf.Proximal(1.0)).double()
    for x, y in batches(3):
        model.fc.observe(y)
        out = model(x)
        phi = net(x)
        layer.solve(phi, y)
        assert torch.equal(out, layer(phi))


def test_an_eval_forward_leaves_it_pending_and_a_second_observe_replaces_it():
    model, (x, y) = Model(cf.Ridge(1.0)), batches(1)[0]
    model.fc.observe(100 * y)
    model.fc.observe(y)
    model.eval()
    model(x)
    assert int(model.fc.step) == 0
    model.train()
    model(x)
    assert int(model.fc.step) == 1
    other = Model(cf.Ridge(1.0))
    other.fc.solve(other.backbone(x), y)
    assert torch.equal(matrix(model.fc), matrix(other.fc))
    model(x)
    assert int(model.fc.step) == 1
    model.fc.observe(y)
    model.fc.observe(None)
    model(x)
    assert int(model.fc.step) == 1


def test_a_size_mismatch_is_an_error_and_changes_nothing():
    model, (x, y) = Model(cf.Proximal(1.0)), batches(1)[0]
    model.fc.observe(y[:-1])
    with pytest.raises(ValueError, match=r"y must have shape \(5, 2\)"):
        model(x)
    assert int(model.fc.attempts) == 0
    model.fc.observe(y)
    model(x)
    assert int(model.fc.step) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_does_not_solve_twice(reentrant):
    first, second = Model(cf.Proximal(1.0)), Model(cf.Proximal(1.0))
    (x, y), (_, later) = batches(2)
    x.requires_grad_()
    first.fc.observe(y)
    F.mse_loss(first(x), y).backward()
    second.fc.observe(y)
    loss = F.mse_loss(checkpoint(second, x, use_reentrant=reentrant), y)
    second.fc.observe(later)  # even if the next targets are already there when the backward recomputes
    loss.backward()
    assert int(second.fc.attempts) == 1
    assert relative(matrix(first.fc), matrix(second.fc)) < 1e-13
    for p, q in zip(first.backbone.parameters(), second.backbone.parameters()):
        assert relative(p.grad, q.grad) < 1e-13


def test_observed_weights():
    model, (x, y) = Model(cf.Proximal(1.0)), batches(1)[0]
    weight = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    model.fc.observe(y, weight)
    model(x)
    other = Model(cf.Proximal(1.0))
    other.fc.solve(other.backbone(x), y, weight)
    assert torch.equal(matrix(model.fc), matrix(other.fc))


# ---- accumulate and commit -----------------------------------------------------------------------


@rules
@pytest.mark.parametrize("sizes", [(2, 2), (3, 4), (4, 4, 9), (1,), (30, 1)])
def test_accumulation_is_one_large_batch(rule, sizes):
    large, small = head(6, 2, rule), head(6, 2, rule)
    for seed in range(3):
        phi, y = problem(sum(sizes), 6, 2, seed=seed)
        large.solve(phi, y)
        for part, target in zip(phi.split(sizes), y.split(sizes)):
            small.accumulate(part, target)
        small.commit()
        assert relative(matrix(small), matrix(large)) < 1e-10


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4, 9)])
def test_accumulation_with_weights(sizes):
    phi, y = problem(sum(sizes), 6, 2)
    weight = torch.rand(sum(sizes), dtype=torch.float64)
    weight[: sizes[0]] = 1
    large, small = head(6, 2, cf.Proximal(0.5)), head(6, 2, cf.Proximal(0.5))
    large.solve(phi, y, weight)
    for i, (p, t, w) in enumerate(zip(phi.split(sizes), y.split(sizes), weight.split(sizes))):
        small.accumulate(p, t, None if i == 0 else w)
    small.commit()
    assert relative(matrix(small), matrix(large)) < 1e-10


def test_accumulated_gradients_are_those_of_the_large_batch():
    net, other = backbone(), backbone()
    (x, y) = batches(1, n=12)[0]
    first, second = head(6, 2, cf.Proximal(0.5)), head(6, 2, cf.Proximal(0.5))
    phi = net(x)
    first.solve(phi, y)
    F.mse_loss(first(phi), y).backward()
    parts = list(zip(x.split(4), y.split(4)))
    with torch.no_grad():
        for part, target in parts:
            second.accumulate(other(part), target)
    second.commit()
    for part, target in parts:
        (F.mse_loss(second(other(part)), target) / 3).backward()
    for p, q in zip(net.parameters(), other.parameters()):
        assert relative(p.grad, q.grad) < 1e-10


def test_accumulate_needs_a_commit_and_commit_something():
    layer = head(6, 2)
    with pytest.raises(ValueError, match="nothing was accumulated"):
        layer.commit()
    phi, y = problem(3, 6, 2)
    layer.accumulate(phi, y)
    with pytest.raises(ValueError, match="call commit"):
        layer.solve(phi, y)
    layer.commit()
    layer.solve(phi, y)


# ---- Saving, loading, copying, casting -----------------------------------------------------------


@rules
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_resume_is_bit_exact(rule, dtype):
    stream = batches(20, n=4, dtype=dtype)

    def run(model, optimizer, part):
        for x, y in part:
            model.fc.observe(y)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()

    straight = Model(rule, dtype)
    optimizer = torch.optim.SGD(straight.parameters(), lr=0.05, momentum=0.9)
    run(straight, optimizer, stream[:11])
    file = io.BytesIO()
    torch.save({"model": straight.state_dict(), "optimizer": optimizer.state_dict()}, file)
    run(straight, optimizer, stream[11:])
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = Model(rule, dtype)
    again = torch.optim.SGD(resumed.parameters(), lr=0.05, momentum=0.9)
    resumed.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    run(resumed, again, stream[11:])
    assert int(straight.fc.rejected) == 0
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@rules
def test_a_copy_goes_its_own_way(rule):
    layer = head(6, 2, rule)
    layer.solve(*problem(4, 6, 2))
    twin = copy.deepcopy(layer)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    twin.solve(*problem(4, 6, 2, seed=1))
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())
    layer.solve(*problem(4, 6, 2, seed=1))
    assert all(torch.equal(v, twin.state_dict()[k]) for k, v in layer.state_dict().items())


def test_states_pass_between_it_and_a_plain_layer():
    layer, plain = head(6, 2, cf.Kalman(0.9)), nn.Linear(6, 2).double()
    layer.solve(*problem(4, 6, 2))
    result = plain.load_state_dict(layer.state_dict(), strict=False)
    assert not result.missing_keys
    assert torch.equal(matrix(plain), matrix(layer))
    other = head(6, 2, cf.Kalman(0.9))
    other.solve(*problem(4, 6, 2, seed=1))
    assert other.load_state_dict(plain.state_dict()) is not None
    assert torch.equal(matrix(other), matrix(plain))
    assert int(other.step) == 0
    assert not other._memory()["information"].any()


def test_a_state_of_another_rule_is_an_error():
    with pytest.raises(RuntimeError, match="memory_information"):
        head(6, 2, cf.Proximal(1.0)).load_state_dict(head(6, 2, cf.Kalman()).state_dict())
    with pytest.raises(RuntimeError, match="memory_information"):
        head(6, 2, cf.Kalman()).load_state_dict(head(6, 2, cf.Proximal(1.0)).state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_low_precision_layer_learns_by_small_updates(dtype):
    """Steps far below the spacing of bfloat16 add up in the master; without it the layer would stand still."""
    phi, y = torch.eye(4, dtype=dtype), torch.full((4, 1), 1.0, dtype=dtype)
    layer = cf.ClosedFormLinear(4, 1, bias=False, rule=cf.Proximal(2e4), dtype=dtype)
    layer.set_weights_(torch.full((1, 4), 0.5))
    for _ in range(4000):
        layer.solve(phi, y)
    exact = 1 - 0.5 * (1 - 1 / (2e4 + 1)) ** 4000
    assert layer.weight.float() == pytest.approx(exact, rel=1e-2)
    assert layer(phi).dtype == dtype


def test_casting_down_and_up_loses_nothing():
    layer = head(6, 2, cf.Proximal(1.0), dtype=torch.float32)
    layer.solve(*(t.float() for t in problem(4, 6, 2)))
    before = matrix(layer)
    layer.to(torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16
    assert not torch.equal(matrix(layer), before)
    layer.float()
    assert layer.master is None
    assert torch.equal(matrix(layer), before)


def test_a_master_gives_way_to_weights_set_from_outside():
    layer = cf.ClosedFormLinear(4, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(3.0)
    assert torch.equal(layer._storage(), torch.full((1, 4), 3.0))


def test_low_and_full_precision_states_pass_between_layers():
    low, full = head(6, 2, dtype=torch.bfloat16), head(6, 2, dtype=torch.float32, seed=1)
    full.load_state_dict(low.state_dict())
    assert torch.equal(full._storage(), low._storage())
    low, full = head(6, 2, dtype=torch.bfloat16), head(6, 2, dtype=torch.float32, seed=1)
    low.load_state_dict(full.state_dict())
    assert torch.equal(low._storage(), full._storage())


def test_meta_construction():
    layer = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(), device="meta", init="lecun")
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    layer.solve(*(t.float() for t in problem(4, 6, 2)))
    assert int(layer.step) == 1


# ---- replace_last_linear -------------------------------------------------------------------------


def test_replacing_the_last_layer():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 4), nn.Identity())).double()
    model.eval()
    x = torch.randn(5, 3, dtype=torch.float64)
    before = model(x)
    layer = cf.replace_last_linear(model, rule=cf.Kalman(0.9))
    assert model[2][0] is layer
    assert type(model[0]) is nn.Linear
    assert isinstance(layer.rule, cf.Kalman)
    assert not layer.training
    assert torch.equal(model(x), before)
    zeros = cf.replace_last_linear(nn.Sequential(nn.Linear(3, 2, bias=False)), init="zeros")
    assert not zeros.weight.any()
    assert zeros.bias is None


def test_replacing_needs_a_layer_of_its_own():
    with pytest.raises(ValueError, match="no nn.Linear"):
        cf.replace_last_linear(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match="itself an nn.Linear"):
        cf.replace_last_linear(nn.Linear(2, 2))
    tied = nn.ModuleDict({"embedding": nn.Embedding(7, 3), "out": nn.Linear(3, 7)})
    tied["out"].weight = tied["embedding"].weight
    with pytest.raises(ValueError, match=r"shares its weight with embedding\.weight"):
        cf.replace_last_linear(tied)


def test_a_layer_that_cannot_be_replaced_is_named():
    """The projection inside nn.MultiheadAttention is never called as a module; a lazy, subclassed or hooked layer is not
    just its weights. None of these may silently make an earlier layer the head."""
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "attention": nn.MultiheadAttention(4, 1)})
    with pytest.raises(ValueError, match=r"attention.out_proj is a NonDynamicallyQuantizableLinear"):
        cf.replace_last_linear(model)
    assert cf.replace_last_linear(model, name="first") is model["first"]
    with pytest.raises(ValueError, match=r"1 is a LazyLinear"):
        cf.replace_last_linear(nn.Sequential(nn.Linear(3, 4), nn.LazyLinear(2)))
    hooked = nn.Sequential(nn.Linear(3, 4))
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="Linear with hooks"):
        cf.replace_last_linear(hooked)


def test_replacing_twice_changes_the_rule():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    first = cf.replace_last_linear(model, rule=cf.Kalman())
    second = cf.replace_last_linear(model, rule=cf.Ridge(1.0))
    assert type(model[0]) is nn.Linear
    assert model[2] is second
    assert torch.equal(first.weight, second.weight)


# ---- What a user may do in between -------------------------------------------------------------


def test_a_new_rule_starts_with_a_fresh_memory():
    layer = head(6, 2, cf.Proximal(torch.arange(1.0, 8.0)))
    layer.solve(*problem(4, 6, 2))
    layer.rule = cf.Kalman(0.9, lam=2.0)
    other = head(6, 2, cf.Kalman(0.9, lam=2.0))
    other.set_weights_(matrix(layer))
    for seed in range(3):
        layer.solve(*problem(4, 6, 2, seed=seed))
        other.solve(*problem(4, 6, 2, seed=seed))
    assert torch.equal(matrix(layer), matrix(other))
    assert set(layer.state_dict()) == set(other.state_dict())


def test_a_state_of_another_rule_taken_anyway_leaves_a_fresh_memory():
    old = head(6, 2, cf.Proximal(1.0))
    old.solve(*problem(4, 6, 2))
    new = head(6, 2, cf.Kalman(lam=1.0), seed=1)
    new.load_state_dict(old.state_dict(), strict=False)
    assert int(new.step) == 0
    new.solve(*problem(4, 6, 2, seed=1))
    assert int(new.rejected) == 0


def test_loading_nothing_for_the_head_leaves_its_memory():
    model = nn.Sequential(nn.Linear(3, 6), head(6, 2, cf.Kalman(lam=1.0), dtype=torch.float32))
    model[1].solve(*(t.float() for t in problem(4, 6, 2)))
    model.load_state_dict({"0.weight": torch.zeros(6, 3)}, strict=False)
    assert int(model[1].step) == 1


def test_accumulated_batches_are_copies_and_can_be_dropped():
    phi, y = problem(4, 6, 2)
    layer, other = head(6, 2, cf.Proximal(1.0)), head(6, 2, cf.Proximal(1.0))
    other.solve(phi, y)
    layer.accumulate(phi, y)
    phi.zero_()
    layer.commit()
    assert relative(matrix(layer), matrix(other)) < 1e-12
    layer.accumulate(phi, y)
    layer.discard()
    with pytest.raises(ValueError, match="nothing was accumulated"):
        layer.commit()
    layer.accumulate(phi, y)
    layer.observe(y)
    layer.reset_parameters()
    with pytest.raises(ValueError, match="nothing was accumulated"):
        layer.commit()


def test_a_commit_that_fails_keeps_what_was_accumulated():
    values = iter([-1.0, 1.0])
    layer, other = head(6, 2, cf.Proximal(lambda step: next(values))), head(6, 2, cf.Proximal(1.0))
    layer.accumulate(*problem(4, 6, 2))
    with pytest.raises(ValueError, match="lambda must be positive"):
        layer.commit()
    layer.commit()
    other.solve(*problem(4, 6, 2))
    assert relative(matrix(layer), matrix(other)) < 1e-12


def test_an_unfrozen_head_is_refused():
    model, (x, y) = Model(cf.Proximal(1.0)), batches(1)[0]
    model.requires_grad_(True)
    model.fc.observe(y)
    with pytest.raises(ValueError, match=r"head.requires_grad_\(False\)"):
        model(x)


@pytest.mark.parametrize("lam", [cf.lambdas.linear(1.0, 2.0, 3), cf.lambdas.cosine(1.0, 2.0, 3)])
def test_heads_with_schedules_pickle(lam):
    import pickle

    layer = head(6, 2, cf.Proximal(lam))
    assert pickle.loads(pickle.dumps(layer)).rule == layer.rule
    assert "lambda" not in repr(layer).split("rule=")[1].replace("lambdas", "")


def test_a_copy_shares_the_process_group():
    group = object()
    layer = cf.ClosedFormLinear(6, 2, process_group=False)
    layer._group.value = group  # what cannot be copied
    assert copy.deepcopy(layer).process_group is group


def test_resuming_with_a_followed_learning_rate_is_bit_exact():
    def make():
        net = backbone()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        rule = cf.Kalman(cf.lambdas.follow_lr(optimizer, forget=0.9), lam=1.0)
        return net, optimizer, schedule, cf.ClosedFormLinear(6, 2, rule=rule, dtype=torch.float64)

    def run(parts, stream):
        net, optimizer, schedule, layer = parts
        for x, y in stream:
            cf.training.algorithm1(net, layer, optimizer, x, y)
            schedule.step()

    stream = batches(12)
    straight, resumed = make(), make()
    run(straight, stream[:6])
    for new, old in zip(resumed, straight):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    run(straight, stream[6:])
    run(resumed, stream[6:])
    assert torch.equal(matrix(straight[3]), matrix(resumed[3]))


# ---- The master copy ---------------------------------------------------------------------------


def test_a_stale_master_is_not_loaded():
    layer = head(6, 2, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(3.0)
    for dtype in (torch.bfloat16, torch.float32):
        other = head(6, 2, dtype=dtype, seed=1)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other._storage()[:, :6], torch.full((2, 6), 3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loading_by_assignment_onto_nothing(dtype):
    """A model made on the meta device takes its weights from a state, this head's or a plain layer's."""
    full = head(6, 2, cf.Kalman(lam=1.0), dtype=dtype)
    full.solve(*(t.float() for t in problem(4, 6, 2)))
    for state in (full.state_dict(), full.to_linear().state_dict()):
        empty = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(lam=1.0), device="meta", dtype=dtype)
        empty.load_state_dict(copy.deepcopy(state), assign=True)
        assert torch.equal(empty.weight, full.weight)
        empty.solve(*(t.float() for t in problem(4, 6, 2, seed=1)))
        assert int(empty.rejected) == 0


def test_from_one_low_precision_to_the_other_keeps_the_master():
    layer = cf.ClosedFormLinear(1, 1, bias=False)
    layer.set_weights_(torch.tensor([[1.003]]))
    layer.bfloat16().half().float()
    assert float(layer.weight) == pytest.approx(1.003, rel=1e-6)


def test_a_half_precision_layer_never_overflows():
    layer = cf.ClosedFormLinear(2, 1, bias=False, rule=cf.Ridge(1e-12), dtype=torch.float16)
    layer.solve(1e-3 * torch.eye(2), torch.full((2, 1), 1e3))
    assert int(layer.rejected) == 1
    assert torch.isfinite(layer.weight).all()
