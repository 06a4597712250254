"""All or nothing: an update that cannot be stored in some of its entries changes none of them, and counts as rejected."""

import itertools

import pytest
import torch

import closedform as cf
from closedform.solver import guard
from closedform.solver.batch import Batch
from closedform.stack.heads import Heads

from .cases import OVERFLOWS, Overflow, overflows
from .helpers import matrix, problem

# a rejected solve is said once, which is tested in test_nothing_silent.py
pytestmark = pytest.mark.filterwarnings("ignore:.*solves of this head were rejected:UserWarning")


RULES = {
    "ridge": lambda case: cf.Ridge(case.lam),
    "proximal": lambda case: cf.Proximal(case.lam),
    "vector": lambda case: cf.Proximal(torch.full((case.phi.shape[1] + case.bias,), case.lam)),
    "ema": lambda case: cf.Ema(case.lam, momentum=0.1),
    "information": lambda case: cf.Kalman(0.9, lam=case.lam, form="information"),
    "covariance": lambda case: cf.Kalman(0.9, lam=case.lam, form="covariance"),
    "several memories": lambda case: cf.Auto(),
}
rules = pytest.mark.parametrize("name", RULES)
# a rule of several memories starts with a lambda relative to the features, which keeps the bias small enough
cases = pytest.mark.parametrize(
    ("name", "overflow"),
    [
        pytest.param(name, overflow, id=f"{name}-{which}")
        for name, (which, overflow) in itertools.product(RULES, OVERFLOWS.items())
        if name != "several memories" or not overflow.bias
    ],
)


def layer_for(overflow: Overflow, name, dtype=torch.float32):
    layer = cf.ClosedFormLinear(*overflow.shape, overflow.bias, rule=RULES[name](overflow), dtype=dtype)
    layer.set_weights_(torch.full((layer.out_features, layer.features), 0.5))
    return layer


def rejects(layer, act) -> None:
    """`act` leaves every number of the layer and its memory, and counts one rejected solve."""
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    act()
    after = layer.state_dict()
    assert int(after.pop("attempts")) == int(before.pop("attempts")) + 1
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name


def solution(overflow: Overflow):
    """The layer that the batch asks for, in float64."""
    phi, y = overflow.phi.double(), overflow.y.double()
    wide = cf.ClosedFormLinear(*overflow.shape, overflow.bias, rule=cf.Ridge(overflow.lam), dtype=torch.float64)
    wide.solve(phi, y)
    return matrix(wide)


@overflows
def test_the_cases_overflow_in_some_entries_only(overflow):
    W = solution(overflow)
    finite = torch.isfinite(W.float())
    assert torch.isfinite(W).all()
    assert finite.any()
    assert not finite.all()
    if overflow.bias:
        assert finite[:, :-1].all()


@cases
def test_a_layer_stays_as_it_was(overflow, name):
    layer = layer_for(overflow, name)
    rejects(layer, lambda: layer.solve(overflow.phi, overflow.y))
    assert int(layer.step) == 0


@overflows
@pytest.mark.parametrize("name", ["ridge", "proximal"])
def test_a_layer_with_sample_weights_stays_as_it_was(overflow, name):
    layer = layer_for(overflow, name)
    rejects(layer, lambda: layer.solve(overflow.phi, overflow.y, torch.ones(len(overflow.phi))))


@cases
def test_accumulated_batches_that_overflow_are_rejected_together(overflow, name):
    layer = layer_for(overflow, name)
    half = -(-len(overflow.phi) // 2)

    def act():
        for phi, y in zip(overflow.phi.split(half), overflow.y.split(half)):
            layer.accumulate(phi, y)
        layer.commit()

    rejects(layer, act)


@overflows
def test_a_forward_that_solves_predicts_with_the_old_layer(overflow):
    layer = layer_for(overflow, "proximal")
    expected = layer(overflow.phi)

    def act():
        layer.observe(overflow.y)
        torch.testing.assert_close(layer(overflow.phi), expected)

    rejects(layer, act)


@pytest.mark.parametrize(
    ("dtype", "phi", "y"),
    [
        (torch.float64, (1e-5, 1e-30), 1e305),
        (torch.bfloat16, (1e-5, 1e-30), 1e35),
        (torch.float16, (1e-2, 1e-5), 6e4),  # whose largest number is 65,504
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [1, 3])
@rules
def test_a_number_that_overflows_as_it_is_stored_is_not_finite(dtype, phi, y, rows, name):
    batch = Overflow(torch.tensor([phi] * rows, dtype=dtype), torch.full((rows, 1), y, dtype=dtype), lam=1e-9)
    layer = layer_for(batch, name, dtype)
    rejects(layer, lambda: layer.solve(batch.phi, batch.y))


# ---- Models side by side -----------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("name", ["ridge", "proximal", "ema", "information", "covariance"])
def test_models_of_a_stack_that_overflow_stay_and_the_others_go_on(name, n, exact):
    bad = Overflow(torch.tensor([[1e-5, 1e-30]] * n), torch.full((n, 1), 1e35))
    good = [tuple(tensor.float() for tensor in problem(n, 2, 1, seed=seed)) for seed in range(2)]
    phi = torch.stack([good[0][0], bad.phi, good[1][0], bad.phi])
    y = torch.stack([good[0][1], bad.y, good[1][1], bad.y])
    heads = Heads(torch.full((4, 1, 2), 0.5), RULES[name](bad), bias=False, exact=exact)
    memory = {key: tensor.clone() for key, tensor in heads.memory.items()}
    heads.solve(phi, y)
    assert heads.rejected.tolist() == [0, 1, 0, 1]
    assert torch.equal(heads.W[1::2], torch.full((2, 1, 2), 0.5))
    for key, tensor in memory.items():
        assert torch.equal(heads.memory[key][1::2], tensor[1::2]), key
    for k in (0, 2):
        alone = Heads(torch.full((1, 1, 2), 0.5), RULES[name](bad), bias=False, exact=exact)
        alone.solve(phi[k : k + 1], y[k : k + 1])
        torch.testing.assert_close(heads.W[k : k + 1], alone.W)
        assert not torch.equal(heads.W[k], torch.full((1, 2), 0.5))


def test_a_filter_of_a_stack_comes_back_after_a_first_batch_that_overflowed():
    heads = Heads(torch.full((2, 1, 2), 0.5), cf.Kalman(0.9, lam=1e-12, form="information"), bias=False)
    good, bad = problem(3, 2, 1)[0].float(), Overflow(torch.tensor([[1e-5, 1e-30]] * 3), torch.full((3, 1), 1e35))
    heads.solve(torch.stack([good, bad.phi]), torch.stack([good.sum(1, keepdim=True), bad.y]))
    for _ in range(10):
        heads.solve(torch.stack([good, good]), good.sum(1, keepdim=True).expand(2, 3, 1))
    assert heads.rejected.tolist() == [0, 1]
    torch.testing.assert_close(heads.W, torch.ones(2, 1, 2), rtol=1e-3, atol=1e-3)


def test_a_filter_of_a_stack_that_fails_starts_anew():
    heads = Heads(torch.full((2, 1, 2), 0.5), cf.Kalman(0.9, lam=1e-3, form="information"), bias=False)
    phi = problem(3, 2, 1)[0].float().expand(2, 3, 2)
    y = phi.sum(2, keepdim=True)
    for t in range(12):
        heads.solve(phi, y)
        if t == 1:
            heads.memory["information"][1].mul_(-1e3)
    assert heads.rejected.tolist() == [0, 1]


# ---- The function itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e39])
@pytest.mark.parametrize("where", ["layer", "memory"])
def test_one_number_that_is_not_finite_is_enough(bad, where):
    W, memory = torch.ones(2, 3, dtype=torch.float64), {"a": torch.ones(4, dtype=torch.float64)}
    ok = torch.ones((), dtype=torch.bool)
    assert guard.accepted(ok, W, memory, torch.float32)
    assert not guard.accepted(~ok, W, memory, torch.float32)
    (W if where == "layer" else memory["a"]).view(-1)[1] = bad
    kept = where == "memory" and bad == 1e39  # the memory is stored in float64
    assert bool(guard.accepted(ok, W, memory, torch.float32)) == kept


def test_finite_numbers_of_both_ends_of_float32_are_accepted():
    W = torch.tensor([[3e38, 3e38, 3e38, -1e-38]], dtype=torch.float64)
    assert guard.accepted(torch.ones((), dtype=torch.bool), W, {}, torch.float32)


@pytest.mark.parametrize("where", ["phi", "y"])
@pytest.mark.parametrize("rule", [cf.Ridge(0.1), cf.Kalman(0.9, lam=0.1), cf.Kalman(0.9, lam=0.1, form="covariance")])
def test_a_batch_that_is_not_finite_is_rejected_where_nobody_can_look(rule, where):
    """Without the check of the values that eager use on the CPU has."""
    layer = cf.ClosedFormLinear(3, 2, rule=rule)
    phi, y = torch.eye(3), torch.ones(3, 2)
    layer.solve(phi, y)
    (phi if where == "phi" else y)[1] = float("nan")
    rejects(layer, lambda: layer._take(Batch(phi, y, bias=True)))


@rules
def test_without_a_look_at_numbers_the_same_is_written(name, monkeypatch):
    """As on a device, where the host never looks; with a batch among them that some rules reject."""
    overflow = next(iter(OVERFLOWS.values()))
    d = overflow.phi.shape[1]
    g = torch.Generator().manual_seed(0)
    batches = [(torch.randn(5, d, generator=g), torch.randn(5, overflow.y.shape[1], generator=g)) for _ in range(3)]
    states = []
    for looks in (True, False):
        layer = layer_for(overflow, name)
        with monkeypatch.context() as patched:
            if not looks:
                patched.setattr(guard.route, "may_branch", lambda tensor: False)
            for phi, y in (*batches, (overflow.phi, overflow.y), batches[0]):
                layer.solve(phi, y)
        states.append(layer.state_dict())
    assert int(states[0]["attempts"]) == 5
    for key, tensor in states[0].items():
        torch.testing.assert_close(states[1][key], tensor, rtol=1e-6, atol=1e-12)
