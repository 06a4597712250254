"""A stacked model is the same model trained alone."""

import copy

import pytest
import torch
from torch import nn

import closedform as cf
from closedform import training
from closedform.solver import elimination, lambdas
from closedform.stack.models import Candidate, Stack, _generator
from closedform.stack.networks import mlp

from .helpers import relative
from .stack_cases import CANDIDATES, OUTPUTS, ROWS, STEPS, WIDTH, data, stack


def alone(candidate, backbone, layer, x, y, seed, optimizer, batch_size, algorithm=1, reduction="mean", steps=STEPS):
    """The same model with the package's own head, torch's optimizer and torch's schedule."""
    backbone = copy.deepcopy(backbone)
    weights = torch.cat([layer.weight, layer.bias[:, None]], 1) if layer.bias is not None else layer.weight
    lr = candidate.lr * (OUTPUTS if reduction == "sum" and optimizer == "sgd" else 1)
    params = list(backbone.parameters()) + (list(layer.parameters()) if candidate.rule is None else [])
    kinds = {
        "sgd": lambda: torch.optim.SGD(params, lr=lr, momentum=0.9, nesterov=True),
        "adam": lambda: torch.optim.Adam(params, lr=lr),
    }
    opt = kinds[optimizer]()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS) if candidate.cosine else None
    head, step = layer, training.l2
    if candidate.rule is not None:
        rule = candidate.rule
        if candidate.follow and isinstance(rule, cf.Kalman):
            rule = cf.Kalman(lambdas.follow_lr(opt, forget=rule.forget), lam=rule.lam)
        elif candidate.follow:
            rule = cf.Proximal(lambdas.follow_lr(opt, rule.lam))
        head = cf.ClosedFormLinear(WIDTH, OUTPUTS, bias=layer.bias is not None, rule=rule, dtype=weights.dtype)
        head.set_weights_(weights.detach())
        step = training.algorithm1 if algorithm == 1 else training.algorithm2
    per_epoch = len(x) // batch_size
    for t in range(steps):
        if t % per_epoch == 0:
            order = torch.randperm(len(x), generator=_generator(seed, t // per_epoch))
        index = order[t % per_epoch * batch_size :][:batch_size]
        step(backbone, head, opt, x[index], y[index])
        if schedule is not None:
            schedule.step()
    return backbone, head


def compare(models, candidates, before, optimizer, tolerance, **options):
    X, Y = data(len(models.seeds), dtype=before[0, 0][1].weight.dtype)
    for (s, k), (backbone, layer) in before.items():
        own, head = alone(candidates[k], backbone, layer, X[s], Y[s], models.seeds[s], optimizer, **options)
        stacked, linear = models.module(s, k)
        for name, p in own.named_parameters():
            assert relative(stacked.get_parameter(name), p) < tolerance, (k, name)
        assert relative(linear.weight, head.weight) < tolerance, k


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [8, 30])
def test_equals_training_alone(optimizer, batch_size):
    candidates = list(CANDIDATES.values())
    if optimizer == "adam":
        candidates = [Candidate(c.lr / 10, c.rule, c.init, c.cosine, c.follow) for c in candidates]
    models = stack(candidates, batch_size=batch_size, optimizer=optimizer)
    before = {(s, k): models.module(s, k) for s in range(2) for k in range(len(candidates))}
    models.advance(STEPS)
    compare(models, candidates, before, optimizer, 1e-7, batch_size=batch_size)


@pytest.mark.parametrize("options", [{"algorithm": 2}, {"reduction": "sum"}])
def test_equals_training_alone_in_its_variants(options):
    candidates = [CANDIDATES[name] for name in ("l2", "proximal", "ridge", "kalman")]
    models = stack(candidates, **options)
    before = {(s, k): models.module(s, k) for s in range(2) for k in range(4)}
    models.advance(STEPS)
    compare(models, candidates, before, "sgd", 1e-7, batch_size=8, **options)


def test_equals_training_alone_without_a_bias():
    candidates = [CANDIDATES[name] for name in ("l2", "auto", "proximal", "kalman")]
    models = stack(candidates, bias=False)
    before = {(s, k): models.module(s, k) for s in range(2) for k in range(4)}
    assert before[0, 0][1].bias is None
    models.advance(STEPS)
    compare(models, candidates, before, "sgd", 1e-7, batch_size=8)


def test_equals_training_alone_in_float32():
    candidates = list(CANDIDATES.values())
    models = stack(candidates, dtype=torch.float32)
    before = {(s, k): models.module(s, k) for s in range(2) for k in range(len(candidates))}
    models.advance(STEPS)
    compare(models, candidates, before, "sgd", 5e-3, batch_size=8)


def test_a_model_that_diverges_disturbs_no_other():
    good = [CANDIDATES[name] for name in ("l2", "proximal", "kalman", "ridge")]
    bad = [Candidate(1e30, c.rule) for c in good]
    mixed = stack([c for pair in zip(bad, good) for c in pair], dtype=torch.float32)
    clean = stack(good, dtype=torch.float32)
    mixed.advance(50)
    clean.advance(50)
    X, Y = data(dtype=torch.float32)
    errors = mixed.evaluate(X, Y)
    assert torch.isinf(errors[:, 0::2]).all()
    assert relative(errors[:, 1::2], clean.evaluate(X, Y)) < 1e-3
    assert torch.isinf(mixed.average_loss(50)[:, 0]).all()


def test_dropping_models_leaves_the_others_as_they_were():
    candidates = list(CANDIDATES.values())
    whole, cut = stack(candidates), stack(candidates)
    kept = [11, 2, 0, 10, 4, 5]
    whole.advance(60)
    cut.advance(25)
    cut.keep(kept)
    cut.advance(35)
    X, Y = data()
    assert relative(cut.evaluate(X, Y), whole.evaluate(X, Y)[:, kept]) < 1e-9


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_restored_stack_goes_on_as_if_nothing_had_happened(optimizer):
    candidates = list(CANDIDATES.values())
    whole, resumed = stack(candidates, optimizer=optimizer), stack(candidates, optimizer=optimizer)
    first = stack(candidates, optimizer=optimizer)
    whole.advance(60)
    first.advance(37)
    resumed.restore({name: tensor.clone() for name, tensor in first.state().items()})
    resumed.advance(23)
    assert all(torch.equal(a, b) for a, b in zip(whole.state().values(), resumed.state().values()))
    with pytest.raises(ValueError, match="of other models"):
        stack(candidates[:3], optimizer=optimizer).restore(first.state())


def test_evaluate_is_the_mean_squared_error_of_the_module():
    models = stack(list(CANDIDATES.values()))
    models.advance(5)
    X, Y = data()
    errors = models.evaluate(X, Y)
    for k in range(len(CANDIDATES)):
        backbone, layer = models.module(1, k)
        assert errors[1, k].item() == pytest.approx(
            nn.functional.mse_loss(layer(backbone(X[1])), Y[1]).item(), rel=1e-9
        )


def test_the_training_loss_is_averaged_over_the_steps():
    models = stack([CANDIDATES["l2"]], seeds=(0,), batch_size=ROWS)
    X, Y = data(1)
    start = models.evaluate(X, Y)
    models.advance(1)
    assert relative(models.average_loss(1), start) < 1e-9
    models.advance(1)
    assert models.average_loss(1) < start


def test_the_last_layers_are_drawn_apart_from_the_backbones():
    backbone = mlp([40, 30], generator=torch.Generator().manual_seed(7))
    models = Stack([backbone], [Candidate(0.1, init="lecun")], 20, batch_size=1, total=1, seeds=[7])
    _, layer = models.module(0, 0)
    numbers = torch.stack([layer.weight.flatten(), backbone[0].weight.flatten()[: layer.weight.numel()]])
    assert torch.corrcoef(numbers)[0, 1].abs() < 0.15
    assert layer.weight.std().item() == pytest.approx(30**-0.5, rel=0.1)


@pytest.mark.parametrize("m", [3, 32, 50, 96])
@pytest.mark.parametrize("condition", [1e1, 1e6])
def test_block_elimination_solves(m, condition):
    g = torch.Generator().manual_seed(m)
    Q = torch.linalg.qr(torch.randn(4, m, m, generator=g, dtype=torch.float64)).Q
    K = Q * torch.logspace(0, torch.tensor(condition).log10(), m, dtype=torch.float64) @ Q.mT
    B = torch.randn(4, m, 5, generator=g, dtype=torch.float64)
    for solve in (elimination.eliminate,):
        X, ok = solve(K, B)
        assert ok.all()
        assert relative(X, torch.linalg.solve(K, B)) < 1e-13 * condition
    K[1] = -K[1]
    for solve in (elimination.eliminate,):
        assert solve(K, B)[1].tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Candidate(0.0), "positive learning rate"),
        (lambda: Candidate(0.1, init="ones"), "init must be one of"),
        (lambda: Candidate(0.1, follow=True), "needs a rule"),
        (lambda: Candidate(0.1, cf.Proximal(lambda t: 1.0)), "no function of the step"),
        (lambda: Candidate(0.1, cf.Kalman(lambda t: 0.9)), "no function of the step"),
        (lambda: Candidate(0.1, cf.Kalman(0.9, drift=0.1)), "no drift"),
        (lambda: Candidate(0.1, cf.Ridge(0.0)), "positive lambda or beta"),
        (lambda: stack([]), "needs models"),
        (lambda: stack([Candidate(0.1)], seeds=(0,)).feed(*data(2)), "expected X"),
        (lambda: stack([Candidate(0.1)], batch_size=91), "at least the batch size"),
        (lambda: stack([Candidate(0.1)]).advance(STEPS + 1), "past the end of the training"),
        (lambda: stack([Candidate(0.1, cf.Proximal(torch.ones(5)))]), "one value a feature, got 5 for 13"),
        (lambda: Stack([mlp([2, 3])], [Candidate(0.1)], 1, batch_size=1, total=1).advance(1), "call feed"),
        (
            lambda: Stack([mlp([2, 3]), mlp([2, 4])], [Candidate(0.1)], 1, batch_size=1, total=1),
            "backbones of a stack have the same sizes",
        ),
        (
            lambda: Stack([nn.Sequential(nn.Linear(2, 2))], [Candidate(0.1)], 1, batch_size=1, total=1),
            "followed by the same one of",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
