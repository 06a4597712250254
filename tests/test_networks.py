"""The networks without autograd against autograd, `torch.optim` and `ClosedFormLinear`; members that do not mix."""

import pytest
import torch

pytest.importorskip("sklearn")

import closedform as cf
from closedform.stack.loop import Checkpoint
from closedform.stack.networks import ACTIVATIONS
from closedform.stack.optimizers import Adam, cosine
from closedform.stack.periodic import PeriodicModule, PeriodicPerceptron
from closedform.tabular.loop import Epochs, Plan, TrainingRows, bounds, train
from closedform.tabular.modules import Modules
from closedform.tabular.networks import BETAS, Memory, Networks

CPU = torch.device("cpu")
RULES = {
    "proximal": Memory("proximal", ratio=3.0),
    "lambda": Memory("proximal", lam=7.0),
    "kalman": Memory("kalman", forget=0.9),
    "learned": Memory("learned"),
}


def networks(
    memory=RULES["proximal"], *, members=1, hidden=(7, 5), decay=(0.1,), activation="gelu", seed=0, columns=(0, 2)
):
    return Networks(
        PeriodicPerceptron(3, columns, 4, hidden, activation),
        2,
        members=members,
        memory=memory,
        weight_decay=[decay[k % len(decay)] for k in range(members)],
        seed=seed,
        learning_rate=0.01,
        device=CPU,
        dtype=torch.float64,
    )


def twin(memory, activation="gelu", decay=0.1, seed=0, columns=(0, 2)):
    fast = networks(memory, activation=activation, seed=seed, columns=columns)
    backbone = PeriodicModule(fast.network, [view[0].clone() for view in fast.params.views])
    return Modules(
        backbone,
        2,
        example=torch.zeros(2, 3, dtype=torch.float64),
        memory=memory,
        weight_decay=decay,
        learning_rate=0.01,
        seed=seed,
        device=CPU,
    )


def batches(count, n=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(n, 3, generator=g, dtype=torch.float64)
        weight = torch.rand(1, n, 1, generator=g, dtype=torch.float64) + 0.2
        yield x, torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1), weight


@pytest.mark.parametrize("columns", [(), (0, 2)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_the_written_out_step_is_the_one_of_autograd(rule, activation, columns):
    memory = RULES[rule]
    fast, slow = networks(memory, activation=activation, columns=columns), twin(memory, activation, columns=columns)
    if rule == "learned":
        fast.head[0, :, :-1].copy_(slow.head.weight.detach())
    x = torch.randn(20, 3, dtype=torch.float64)
    for t, (xb, y, weight) in enumerate(batches(40)):
        part = weight if t % 2 else None
        (a, before), (b, expected) = fast.step(xb, y, part, cosine(t / 40)), slow.step(xb, y, part, cosine(t / 40))
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(before, expected, rtol=1e-6, atol=1e-8)
    one = torch.ones(1, dtype=torch.float64)
    for net in (fast, slow):
        W, b = net.layer(one)
        net.predicted = net.features(x) @ W.T + b
    torch.testing.assert_close(fast.predicted, slow.predicted, rtol=1e-6, atol=1e-8)
    if rule == "kalman":
        torch.testing.assert_close(
            fast.variance(fast.features(x), one), slow.variance(slow.features(x), one), rtol=1e-5, atol=1e-9
        )


def test_adam_is_torchs():
    g = torch.Generator().manual_seed(0)
    ours, theirs = torch.ones(5, dtype=torch.float64), torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
    adam = Adam(*BETAS)
    state, reference = adam.state(ours), torch.optim.Adam([theirs], lr=1.0, betas=BETAS)
    for t in range(20):
        gradient = torch.randn(5, generator=g, dtype=torch.float64) * 1e-6
        theirs.grad = gradient.clone()
        reference.param_groups[0]["lr"] = 0.1 / (t + 1)
        adam.update_(ours, gradient, state, 0.1 / (t + 1), t)
        reference.step()
    torch.testing.assert_close(ours, theirs.detach())


def flat(net):
    """The parameters, a row a member."""
    return torch.cat([view.flatten(1) for view in net.params.views], 1)


@pytest.mark.parametrize("rule", RULES)
def test_members_do_not_mix(rule):
    """A member is the same whatever the others' decay and weights are."""
    together = networks(RULES[rule], members=3, decay=(0.0, 0.1, 0.5))
    other = networks(RULES[rule], members=3, decay=(0.9, 0.1, 0.9))
    masks = torch.ones(3, 12, 1, dtype=torch.float64)
    masks[0, :3] = masks[2, 5:9] = 0
    ones = torch.ones(3, 12, 1, dtype=torch.float64)
    ones[1] = masks[1]
    for x, y, weight in batches(10):
        together.step(x, y, weight * masks, 1.0)
        other.step(x, y, weight * ones, 1.0)
    torch.testing.assert_close(flat(together)[1], flat(other)[1], rtol=1e-12, atol=0)
    assert not torch.allclose(flat(together)[0], flat(other)[0])


@pytest.mark.parametrize("rule", RULES)
def test_a_row_that_is_held_out_takes_no_part(rule):
    first, second = networks(RULES[rule]), networks(RULES[rule])
    mask = torch.ones(1, 12, 1, dtype=torch.float64)
    mask[0, :4] = 0
    for x, y, weight in batches(10):
        first.step(x, y, weight * mask, 1.0)
        changed = y.clone()
        changed[:4] = 1e3
        second.step(x, changed, weight * mask, 1.0)
    torch.testing.assert_close(flat(first), flat(second), rtol=0, atol=0)
    torch.testing.assert_close(first.head, second.head, rtol=0, atol=0)


def test_the_held_out_error_is_from_before_the_batch_was_taken_in():
    net = networks()
    x, y, _ = next(iter(batches(1)))
    W, b = net.layer(torch.ones(1, dtype=torch.float64))
    expected = y - (net.features(x) @ W.T + b)
    _, before = net.step(x, y, None, 1.0)
    torch.testing.assert_close(before[0], expected)


def test_float32_is_enough_for_a_relative_lambda():
    """The bound on the condition number that lets the solve stay in float32: compared with float64 on bad features."""
    memory = Memory("proximal", ratio=0.2)
    net = Networks(
        PeriodicPerceptron(3, (), 0, (40,), "relu"), 1, members=1, memory=memory, weight_decay=[0.0], seed=0,
        learning_rate=0.0, device=CPU,
    )  # fmt: skip
    twin = Networks(**{**net.config, "dtype": torch.float64})
    twin.params.flat.copy_(net.params.flat)
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        x = torch.randn(64, 3, generator=g, dtype=torch.float64) * torch.tensor([1e3, 1.0, 1e-3], dtype=torch.float64)
        y = x[:, :1] / 1e3 + x[:, 1:2]
        net.step(x.float(), y.float(), None, 1.0)
        twin.step(x.float().double(), y.float().double(), None, 1.0)
    W, b = net.layer(torch.ones(1))
    V, c = twin.layer(torch.ones(1))
    phi = twin.features(x)
    assert float(((phi @ W.T + b) - (phi @ V.T + c)).norm() / (phi @ V.T + c).norm()) < 1e-3


def test_a_solve_that_fails_leaves_the_head():
    net = networks()
    x, y, _ = next(iter(batches(1)))
    net.step(x, y, None, 1.0)
    before = net.head.clone()
    net.step(x, y * float("nan"), None, 0.0)
    assert torch.equal(net.head, before)


@pytest.mark.parametrize("rule", RULES)
def test_training_goes_on_from_any_step_to_the_bit(rule, tmp_path):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(50, 3, generator=g, dtype=torch.float64)
    y = torch.stack([x[:, 0].sin(), x[:, 1]], 1)
    held = torch.zeros(2, 50, dtype=torch.bool)
    held[0, :8] = held[1, 8:16] = True
    rows, plan = TrainingRows(x, y, None, held), Plan(batch_size=16, epochs=7, seed=5)

    whole = networks(RULES[rule], members=2)
    record = train(Epochs(whole, rows, plan))
    for steps in (2, 8, 9):  # in the first epoch, in a later one, and at its end
        checkpoint = Checkpoint(tmp_path / str(steps))
        stopped = Epochs(networks(RULES[rule], members=2), rows, plan)
        for _ in range(steps):
            stopped.advance(1)
            if stopped.t in stopped.marks:
                stopped.mark(0.0)
        checkpoint.save(stopped, 0.0)
        fresh = networks(RULES[rule], members=2, seed=99)
        again = train(Epochs(fresh, rows, plan), checkpoint)
        for name, tensor in whole.weights().items():
            assert torch.equal(tensor, fresh.weights()[name]), name
        assert again.loss == record.loss
        assert again.held == record.held


def test_each_member_ends_at_its_own_best_epoch():
    """The weights after training are those of the epochs that the record names."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(40, 3, generator=g, dtype=torch.float64)
    y = torch.randn(40, 2, generator=g, dtype=torch.float64)  # noise: the held-out error soon rises
    held = torch.zeros(2, 40, dtype=torch.bool)
    held[0, :10] = held[1, 10:20] = True
    net, history = networks(members=2), []
    rows = TrainingRows(x, y, None, held)
    record = train(Epochs(net, rows, Plan(10, 30, 0), lambda record: history.append(flat(net))))
    assert max(record.best_epoch) < 25
    for member, epoch in enumerate(record.best_epoch):
        assert torch.equal(flat(net)[member], history[epoch][member])


def test_patience_stops():
    x = torch.zeros(40, 3, dtype=torch.float64)
    y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    held = torch.zeros(1, 40, dtype=torch.bool)
    held[0, :10] = True
    record = train(Epochs(networks(), TrainingRows(x, y, None, held), Plan(10, 500, 0, patience=5)))
    assert record.epoch == max(record.best_epoch) + 6 < 500


def test_batches_cover_every_row_once():
    for n in (1, 5, 31, 33, 100, 257):
        cut = bounds(n, 32)
        assert [a for a, _ in cut[1:]] == [b for _, b in cut[:-1]]
        assert cut[0][0] == 0
        assert cut[-1][1] == n
        assert min(b - a for a, b in cut) > 0


def test_any_rule_object_reaches_the_head():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).double()
    engine = Modules(
        module, 2, example=torch.zeros(2, 3), memory=cf.Ridge(beta=0.5), weight_decay=0.0, learning_rate=0.01, seed=0,
        device=CPU,
    )  # fmt: skip
    x, y, _ = next(iter(batches(1)))
    phi = module(x).detach()
    engine.step(x, y, None, 1.0)
    expected = cf.ClosedFormLinear(4, 2, rule=cf.Ridge(beta=0.5), dtype=torch.float64)
    expected.solve(phi, y)
    torch.testing.assert_close(engine.head.weight, expected.weight)
