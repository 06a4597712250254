"""Every kind of lambda."""

import copy

import pytest
import torch

import closedform as cf
from closedform.solver import lambdas, reference

from .helpers import columns, head, matrix, problem, relative


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (lambdas.linear(4.0, 1.0, 3), [4.0, 3.0, 2.0, 1.0, 1.0]),
        (lambdas.cosine(4.0, 2.0, 2), [4.0, 3.0, 2.0, 2.0]),
        (lambdas.inverse_time(2.0, 0.5), [2.0, 3.0, 4.0, 5.0]),
        (lambda step: 1.0 + step, [1.0, 2.0, 3.0]),
    ],
)
@pytest.mark.parametrize("n", [4, 12])
def test_schedules(schedule, values, n):
    layer = head(6, 2, cf.Proximal(schedule))
    for t, lam in enumerate(values):
        phi, y = problem(n, 6, 2, seed=t)
        W_t = matrix(layer)
        layer.solve(phi, y)
        assert relative(matrix(layer), reference.proximal(columns(phi, True), y.T, W_t, lam)) < 1e-9


@pytest.mark.parametrize("n", [4, 12])
def test_per_sample_multiplies_by_the_batch_size(n):
    phi, y = problem(n, 6, 2)
    one, other = head(6, 2, cf.Proximal(cf.per_sample(0.5))), head(6, 2, cf.Proximal(0.5 * n))
    one.solve(phi, y)
    other.solve(phi, y)
    assert relative(matrix(one), matrix(other)) < 1e-12


def test_per_sample_takes_schedules_and_vectors():
    phi, y = problem(4, 6, 2)
    for lam in (lambda step: 0.5, torch.full((7,), 0.5)):
        layer, other = head(6, 2, cf.Proximal(cf.per_sample(lam))), head(6, 2, cf.Proximal(2.0))
        layer.solve(phi, y)
        other.solve(phi, y)
        assert relative(matrix(layer), matrix(other)) < 1e-12


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1e3, 1e6])
@pytest.mark.parametrize("n", [4, 12])
@pytest.mark.parametrize("rule", [cf.Proximal("auto"), cf.Ridge("auto"), cf.Kalman(0.9)])
def test_auto_does_not_see_the_scale_of_the_features(scale, n, rule):
    plain, scaled = (cf.ClosedFormLinear(6, 2, rule=rule, dtype=torch.float64) for _ in range(2))
    for seed in range(3):
        phi, y = problem(n, 6, 2, seed=seed)
        plain.solve(phi, y)
        scaled.solve(scale * phi, y)
    assert relative(scaled(scale * phi), plain(phi)) < 1e-8


def test_auto_is_ten_times_the_mean_diagonal():
    phi, y = problem(4, 6, 2)
    auto, explicit = head(6, 2, cf.Proximal("auto")), head(6, 2, None)
    mean = 10 * float(phi.square().sum()) / 6
    explicit.rule = cf.Proximal(lambda step: torch.tensor([mean] * 6 + [40.0], dtype=torch.float64))
    auto.solve(phi, y)
    explicit.solve(phi, y)
    assert relative(matrix(auto), matrix(explicit)) < 1e-12


def test_auto_survives_features_that_are_all_zero():
    layer = head(6, 2, cf.Proximal("auto"), bias=False)
    before = matrix(layer)
    layer.solve(torch.zeros(4, 6, dtype=torch.float64), problem(4, 6, 2)[1])
    assert int(layer.rejected) == 0
    assert torch.equal(matrix(layer), before)


def test_following_the_learning_rate():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, 0.1 + 0.3 * t) if t < 4 else 0.0)
    step = torch.zeros((), dtype=torch.long)
    lam, forget = lambdas.follow_lr(optimizer, 3.0), lambdas.follow_lr(optimizer, forget=0.9)
    assert lam.base == 0.5  # the base rate, not the first of the warm-up
    assert lam(step) == pytest.approx(30.0)
    assert forget(step) == pytest.approx(0.99)
    for _ in range(3):
        optimizer.step()
        warm_up.step()
    assert lam(step) == pytest.approx(3.0)
    assert forget(step) == pytest.approx(0.9)
    optimizer.step()
    warm_up.step()
    assert lam(step) == pytest.approx(3000.0)  # a rate of zero is floored
    assert forget(step) == pytest.approx(0.9999)


def test_a_rate_above_the_base_does_not_shorten_the_kalman_memory():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    forget = lambdas.follow_lr(optimizer, forget=0.9)
    optimizer.param_groups[0]["lr"] = 5.0
    assert forget(torch.zeros(())) == pytest.approx(0.9)


def test_a_copied_head_follows_the_same_optimizer():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    layer = head(6, 2, cf.Proximal(lambdas.follow_lr(optimizer, 3.0)))
    assert copy.deepcopy(layer).rule.lam is layer.rule.lam


def test_a_tensor_lambda_is_saved_with_the_head():
    lam = torch.arange(1.0, 8.0)
    layer, other = head(6, 2, cf.Proximal(lam)), head(6, 2, cf.Proximal(torch.ones(7)))
    lam.zero_()  # the head has its own copy
    other.load_state_dict(layer.state_dict())
    layer.solve(*problem(4, 6, 2))
    other.solve(*problem(4, 6, 2))
    assert int(layer.rejected) == 0
    assert torch.equal(matrix(layer), matrix(other))


def test_relative_of_ten_is_auto():
    phi, y = problem(4, 6, 2)
    auto, same, other = (
        head(6, 2, rule) for rule in (cf.Proximal("auto"), *(cf.Proximal(lambdas.relative(r)) for r in (10.0, 3.0)))
    )
    for layer in (auto, same, other):
        layer.solve(phi, y)
    assert torch.equal(matrix(auto), matrix(same))
    assert relative(matrix(auto), matrix(other)) > 1e-3


@pytest.mark.parametrize("rule", [cf.Proximal, cf.Ridge, lambda lam: cf.Kalman(0.9, lam=lam)])
def test_relative_per_feature_does_not_see_the_scale_of_any_feature(rule):
    scale = torch.tensor([1e-3, 1e3, 1.0, 0.1, 30.0, 5.0], dtype=torch.float64)
    lam = lambdas.relative(2.0, per_feature=True)
    plain, scaled = (head(6, 2, rule(lam)) for _ in range(2))
    for layer in (plain, scaled):
        layer.set_weights_(torch.zeros(2, 7))
    for seed in range(3):
        phi, y = problem(4, 6, 2, seed=seed)
        plain.solve(phi, y)
        scaled.solve(scale * phi, y)
    assert relative(scaled(scale * phi), plain(phi)) < 1e-10


def test_relative_takes_a_schedule_and_a_feature_that_is_zero():
    phi, y = problem(4, 6, 2)
    phi[:, 2] = 0
    lam = lambdas.relative(lambdas.linear(1.0, 3.0, 2), per_feature=True)
    layer, explicit = head(6, 2, cf.Proximal(lam)), head(6, 2, None)
    diagonal = phi.square().sum(0)
    diagonal[2] = diagonal.mean()
    explicit.rule = cf.Proximal(lambda step: (1.0 + step).clamp(max=3.0) * torch.cat([diagonal, torch.tensor([4.0])]))
    for _ in range(3):
        layer.solve(phi, y)
        explicit.solve(phi, y)
        assert relative(matrix(layer), matrix(explicit)) < 1e-12
