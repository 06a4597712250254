"""What a user can get wrong with equations: one sentence each, and no wrong solution without a word."""

import math

import pytest
import torch
from torch import nn

from closedform.equations import Box, Condition, Problem, Sine, march, network, solve
from closedform.stack.loop import CheckpointError

from .helpers import relative

LINE, SQUARE = Box([0.0], [1.0]), Box([0.0, 0.0], [1.0, 1.0])
ENDS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def value(u):
    return u.value


def second(u):
    return u.second(0, 0)


def decay(rate=1.0, start=1.0, **options):
    """u' = -rate u."""
    return Problem(
        [Condition(LINE.inside, lambda u: u.dx(0) + rate * u.value), Condition(ENDS[:1], value, start)], **options
    )


def poisson(inside_first=True):
    conditions = [
        Condition(SQUARE.inside, lambda u: u.laplacian, lambda x: -torch.sin(math.pi * x).prod(1, keepdim=True)),
        Condition(SQUARE.faces(), value),
    ]
    return Problem(conditions if inside_first else conditions[::-1])


# ---- Problems ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (lambda: Condition(LINE.inside, value, weight=0.0), "weight and a share that are positive"),
        (lambda: Condition(LINE.inside, value, weight=math.nan), "weight and a share that are positive"),
        (lambda: Condition(LINE.inside, value, share=math.inf), "weight and a share that are positive"),
        (lambda: Condition(LINE.inside, value, share=-1.0), "weight and a share that are positive"),
        (lambda: Problem(Condition(LINE.inside, value)), "a list of conditions"),
        (lambda: decay(coefficients="nu"), r"as in \('nu',\)"),
        (lambda: decay(unknowns="u"), "a sequence of names"),
        (lambda: Problem([Condition(LINE.inside, lambda u, v: u.value)]), "fails for 1 unknowns and 0 coefficients"),
        (lambda: Problem([Condition(LINE.inside, lambda u: u.x[:, 0] * u.dx(0))]), "64 columns for one function"),
        (lambda: Problem([Condition(SQUARE.inside, lambda u: torch.cat(u.gradient, 1))]), "2 columns for one function"),
        (lambda: Problem([Condition(LINE.inside, value, math.nan)]), "target of 'condition 0' must be finite"),
        (lambda: Problem([Condition(LINE.inside, value, lambda x: x / 0)]), "target of 'condition 0' must be finite"),
        (lambda: Problem([Condition(ENDS * math.inf, value)]), "points of 'condition 0' must be finite"),
        (lambda: Problem([Condition(ENDS, value, None)]), "must be a tensor, got NoneType"),
        (lambda: Problem([Condition(ENDS[:0], value)]), r"n > 0, got \(0, 1\)"),
        (lambda: Problem([Condition(ENDS, value, partner=lambda x: x[:1])]), r"partners of .* shape \(1, 1\)"),
        (lambda: Problem([Condition(LINE.inside, lambda u: u.value * math.nan)]), "not finite"),
        (lambda: Problem([Condition(LINE.inside, lambda u: second(u) - 1e-11 * u.value**3)]), "is not linear"),
        (lambda: Box(0, 1), "two corners, each a sequence"),
        (lambda: SQUARE.face(5, 0), "an axis of 0 to 1"),
        (lambda: SQUARE.where(lambda x: x[:, :1] > 0)(4, torch.Generator()), "a truth value for each"),
        (lambda: network(SQUARE, 8, scale=[1.0, 2.0, 3.0]), "one value or 2"),
        (lambda: network(SQUARE, 0), "at least one unit"),
    ],
)
def test_problems_and_networks_that_are_refused(state, sentence):
    with pytest.raises(ValueError, match=sentence):
        state()


def test_lists_and_arrays_are_points_and_targets_too():
    problem = Problem([Condition(LINE.inside, second), Condition([[0.0], [1.0]], value, ENDS.numpy()[:, 0])])
    solution = solve(problem, network(LINE, 8), steps=0, progress=False)
    x = torch.rand(7, 1, dtype=torch.float64)
    assert relative(solution(x.numpy()), x) < 1e-6
    with pytest.raises(ValueError, match=r"\(n, 1\), got \(7, 2\)"):
        solution(torch.rand(7, 2))


# ---- Backbones ---------------------------------------------------------------------------------------


class Made(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Wide(nn.Module):
    def forward(self, x):
        return x[:, 3:]


def sequence(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), *layers).double()


def frozen():
    return network(LINE, 8).requires_grad_(False)


def mixed():
    backbone = network(LINE, 8, hidden=(4,))
    backbone[2].float()
    return backbone


@pytest.mark.parametrize(
    ("backbone", "steps", "sentence"),
    [
        (lambda: torch.sin, 0, "must be an nn.Module"),
        (mixed, 0, "has torch.float32 parameters"),
        (frozen, 2, "no parameters to train"),
        (lambda: network(LINE, 8), 1.5, "whole steps"),
        (lambda: sequence(nn.Dropout(0.5), nn.Tanh()), 0, "dropout"),
        (lambda: sequence(nn.Tanh(), nn.LayerNorm(8), nn.Tanh()), 0, "forward and reverse mode"),
        (lambda: sequence(nn.GLU()), 0, "no derivatives by forward mode"),
        (lambda: sequence(nn.ReLU()), 0, "is zero for all features"),
        (Wide, 0, r"got \(2, 0\)"),
        (lambda: Made(lambda x: (x, x)), 0, "got tuple"),
        (lambda: Made(lambda x: torch.log(x - 0.5)), 0, "features are not finite"),
        (lambda: Made(lambda x: torch.sqrt((x - 0.5).relu())), 0, "derivatives .* are not finite"),
        (lambda: sequence(nn.BatchNorm1d(8), nn.Tanh()), 0, "batch statistics"),
    ],
)
def test_backbones_that_are_refused(backbone, steps, sentence):
    problem = Problem([Condition(LINE.inside, second, 1.0), Condition(ENDS, value)])
    with pytest.raises(ValueError, match=sentence):
        solve(problem, backbone(), steps=steps, progress=False)


@pytest.mark.parametrize("norm", [lambda: nn.GroupNorm(2, 8), lambda: nn.BatchNorm1d(8).eval(), lambda: nn.Softmax(1)])
def test_layers_whose_derivatives_are_right_are_taken(norm):
    problem = Problem([Condition(LINE.inside, second, 1.0), Condition(ENDS, value)])
    torch.manual_seed(0)
    backbone = nn.Sequential(network(LINE, 8, scale=2.0), norm(), nn.Linear(8, 24), nn.Tanh()).double()
    x = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    assert (
        relative(solve(problem, backbone, steps=0, progress=False)(x), x * (x - 1) / 2) < 1e-3
    )  # a wrong derivative gives 1


# ---- Solutions ---------------------------------------------------------------------------------------


def test_newton_that_has_not_arrived_is_told():
    """u'' + 20 exp(u) = 0 between two zeros has no solution; the square root of u has no slope at 0."""
    bratu = Problem(
        [Condition(LINE.inside, lambda u: second(u) + 20 * torch.exp(u.value), linear=False), Condition(ENDS, value)]
    )
    with pytest.warns(UserWarning, match="first guess"):
        solve(bratu, network(LINE, 16, scale=2.0), steps=0, progress=False)
    root = Problem(
        [Condition(LINE.inside, lambda u: u.dx(0) - u.value.sqrt(), linear=False), Condition(ENDS[:1], value)]
    )
    with pytest.raises(ValueError, match="first guess"):
        solve(root, network(LINE, 16), steps=0, progress=False)


def test_the_spread_does_not_depend_on_the_order_of_the_conditions():
    backbone = network(SQUARE, 96, scale=2.0)
    first, second = (solve(poisson(order), backbone, steps=0, progress=False).spread for order in (True, False))
    assert 1 / 30 < first / second < 30


def test_a_solution_stays_when_its_backbone_is_trained_further():
    backbone, x = network(LINE, 12), torch.rand(5, 1)
    solution = solve(decay(), backbone, steps=0, progress=False)
    before = solution(x)
    solve(decay(), backbone, steps=3, points=64, progress=False)
    assert bool((solution(x) == before).all())


def test_conditions_that_are_zero_for_a_while_are_taken():
    """A mask that few points meet, and an operator whose slope at zero is zero."""
    masked = Condition(
        LINE.inside, lambda u: (u.x > 0.97) * (u.value - u.partner.value), partner=lambda x: x, share=0.05
    )
    with pytest.raises(ValueError, match="is zero for all features"):  # for any points
        solve(Problem([*decay().conditions, masked]), network(LINE, 8), steps=0, progress=False)
    masked = Condition(LINE.inside, lambda u: (u.x > 0.9) * (u.dx(0) + u.value), share=0.05)
    solution = solve(Problem([*decay().conditions, masked]), network(LINE, 12), steps=8, points=64, progress=False)
    x = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    assert relative(solution(x), torch.exp(-x)) < 1e-6
    slope = Problem(
        [Condition(LINE.inside, lambda u: u.dx(0) ** 2, 1.0, linear=False), Condition(ENDS, value, [0.0, 1.0])]
    )
    assert relative(solve(slope, network(LINE, 12), steps=0, progress=False)(x), x) < 1e-6


def test_the_derivatives_of_every_condition_and_of_partners_are_looked_at():
    backbone = sequence(nn.Tanh(), nn.LayerNorm(8), nn.Tanh())
    plain = Condition(LINE.inside, value)
    for bad in (
        Condition(ENDS, second),
        Condition(ENDS, lambda u: u.value - u.partner.second(0, 0), partner=lambda x: 1 - x),
    ):
        with pytest.raises(ValueError, match="forward and reverse mode"):
            solve(Problem([plain, bad]), backbone, steps=0, progress=False)


def test_one_number_is_a_target_whatever_its_type():
    solutions = [
        solve(
            Problem([decay().conditions[0], Condition(ENDS[:1], value, one)]), network(LINE, 8), steps=0, progress=False
        )
        for one in (2, torch.tensor(2.0), ENDS.numpy().sum() * 2)
    ]
    assert len({float(solution.weights.sum()) for solution in solutions}) == 1


# ---- Checkpoints -------------------------------------------------------------------------------------


class KilledError(Exception):
    pass


def killer(at):
    def progress(step, total, loss):
        if step == at:
            raise KilledError

    return progress


@pytest.mark.parametrize(
    "other",
    [
        (decay(50.0), network(LINE, 10, scale=2.0)),
        (decay(start=2.0), network(LINE, 10, scale=2.0)),
        (decay(), network(LINE, 10, scale=8.0)),
        (decay(), network(LINE, 10, scale=2.0, activation=Sine)),
    ],
)
def test_a_checkpoint_of_another_problem_or_backbone_is_refused(tmp_path, other):
    options = {"steps": 9, "points": 32, "checkpoint": tmp_path / "state", "every_s": 0.0}
    with pytest.raises(KilledError):
        solve(decay(), network(LINE, 10, scale=2.0), progress=killer(7), **options)
    with pytest.raises(CheckpointError, match="belongs to|neither as it was at the start"):
        solve(*other, progress=False, **options)
    solve(decay(), network(LINE, 10, scale=2.0), progress=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_the_same_call_goes_on_with_the_backbone_that_it_has_left(tmp_path, monkeypatch):
    """Ctrl-C in a notebook, then the same cell again; and a last solve that fails after a long training."""
    from closedform.equations import solving

    options = {"steps": 6, "points": 32, "checkpoint": tmp_path / "state"}
    fresh, backbone = network(LINE, 10), network(LINE, 10)
    whole = solve(decay(), fresh, progress=False, **options)
    monkeypatch.setattr(solving, "_finish", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        solve(decay(), backbone, progress=False, **options)
    monkeypatch.undo()
    solution = solve(decay(), backbone, progress=killer(1), **options)  # no step is left to take
    assert bool((solution.weights == whole.weights).all())


def test_a_march_goes_on_in_the_slab_where_it_was_stopped(tmp_path):
    steps_taken = []

    def build(begin, end, before):
        box = Box([begin], [end])
        start = 1.0 if before is None else before
        problem = Problem(
            [
                Condition(box.inside, lambda u: u.dx(0) + u.value),
                Condition(torch.tensor([[begin]], dtype=torch.float64), value, start),
            ]
        )
        return problem, network(box, 8, scale=2.0)

    def counted(at=None):
        def progress(step, total, loss):
            steps_taken.append(step)
            if len(steps_taken) == at:
                raise KilledError

        return progress

    times, options = [0.0, 1.0, 2.0, 3.0], {"steps": 6, "points": 32, "every_s": 0.0}
    x = torch.linspace(0, 3, 11, dtype=torch.float64)[:, None]
    whole = march(times, build, progress=False, **options)
    with pytest.raises(KilledError):
        march(times, build, progress=counted(at=16), checkpoint=tmp_path / "state", **options)
    steps_taken.clear()
    again = march(times, build, progress=counted(), checkpoint=tmp_path / "state", **options)
    assert len(steps_taken) <= 6  # the first two slabs are not trained again
    assert bool((again(x) == whole(x)).all())
    assert list(tmp_path.iterdir()) == []
