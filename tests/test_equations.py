"""Derivatives of features, and problems that are solved with them."""

import importlib
import itertools
import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from closedform.equations import (
    Box,
    Condition,
    Field,
    Problem,
    Sine,
    best_network,
    features,
    march,
    network,
    solve,
    towards,
)
from closedform.equations.fields import constant
from closedform.equations.jets import _nested, closure, partitions, split

from .helpers import relative
from .scripts import load

ROOT = Path(__file__).parents[1]
LINE, SQUARE = Box([0.0], [1.0]), Box([0.0, 0.0], [1.0, 1.0])
PI = math.pi


def points(n, D, seed=0):
    return torch.rand(n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_autograd(backbone, x, axes):
    """The slow way: one feature at a time, by reverse mode over and over."""
    x = x.clone().requires_grad_()
    columns = []
    for column in backbone(x).unbind(1):
        for axis in axes:
            (slope,) = torch.autograd.grad(column.sum(), x, create_graph=True)
            column = slope[:, axis]
        columns.append(column)
    return torch.stack(columns, 1)


class Residual(nn.Module):
    """A backbone that is no sequence."""

    def __init__(self, D, d):
        super().__init__()
        self.first, self.second = nn.Linear(D, d), nn.Linear(d, d)

    def forward(self, x):
        z = torch.tanh(self.first(x))
        return z + torch.sin(self.second(z)) * x[:, :1]


# ---- Derivatives -------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [nn.Tanh, Sine, nn.GELU, nn.SiLU, nn.Softplus])
@pytest.mark.parametrize(("D", "order"), [(1, 4), (2, 4), (3, 2), (5, 2)])
def test_derivatives_are_those_of_autograd(activation, D, order):
    torch.manual_seed(D)
    backbone = nn.Sequential(nn.Linear(D, 6), activation(), nn.Sequential(nn.Linear(6, 3), activation())).double()
    assert split(backbone)[0] is None
    x = points(4, D)
    u = features(backbone, x, order=order)
    for axes in itertools.combinations_with_replacement(range(D), order):
        assert relative(u.d(*axes), by_autograd(backbone, x, axes)) < 1e-11, axes
    assert relative(u.value, backbone(x)) < 1e-14


@pytest.mark.parametrize(("D", "order"), [(1, 4), (2, 4), (3, 2)])
def test_any_backbone(D, order):
    torch.manual_seed(0)
    backbone = Residual(D, 3).double()
    assert split(backbone) == (backbone, [])
    x = points(4, D)
    u = features(backbone, x, order=order)
    for axes in closure(itertools.combinations_with_replacement(range(D), order)):
        assert relative(u.d(*axes), by_autograd(backbone, x, axes)) < 1e-11, axes


@pytest.mark.parametrize("corners", [((0.0, 1.0),), ((0.0, 0.0), (1.0, 0.5))])
@pytest.mark.parametrize("hidden", [(), (5,)])
def test_derivatives_around_corners(corners, hidden):
    """The front of such a network is no linear layer, and the rest of it is."""
    backbone = network(SQUARE, 8, corners=corners, hidden=hidden)
    front, layers = split(backbone)
    assert list(front) == [backbone[0]]
    assert layers == list(backbone)[1:]
    x = 0.1 + 0.8 * points(5, 2)
    u = features(backbone, x, order=3)
    for axes in closure(itertools.combinations_with_replacement(range(2), 3)):
        assert relative(u.d(*axes), by_autograd(backbone, x, axes)) < 1e-11, axes


def test_a_sequence_that_does_more_than_its_layers_is_taken_as_it_is():
    class Doubled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    torch.manual_seed(0)
    hooked, layer = nn.Sequential(nn.Linear(1, 3), nn.Tanh()), nn.Linear(1, 3)
    for module in (hooked, layer):
        module.register_forward_hook(lambda module, inputs, output: output * inputs[0])
    for part in (Doubled(nn.Linear(1, 3), nn.Tanh()), hooked, nn.Sequential(layer, nn.Tanh())):
        backbone = nn.Sequential(part, nn.Linear(3, 2)).double()
        u, x = features(backbone, points(4, 1)), points(4, 1)
        assert relative(u.value, backbone(x)) < 1e-14
        assert relative(u.second(0, 0), by_autograd(backbone, x, (0, 0))) < 1e-11


def test_the_front_ends_behind_the_last_layer_that_is_not_known():
    torch.manual_seed(0)
    backbone = nn.Sequential(Residual(2, 3), nn.Tanh(), nn.Softmax(1), nn.Linear(3, 4), Sine()).double()
    front, layers = split(backbone)
    assert list(front) == list(backbone)[:3]
    assert layers == list(backbone)[3:]
    x = points(4, 2)
    u = features(backbone, x)
    for axes in closure(itertools.combinations_with_replacement(range(2), 2)):
        assert relative(u.d(*axes), by_autograd(backbone, x, axes)) < 1e-11, axes


def test_every_corner_has_units_of_its_own():
    corners = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]
    first = network(SQUARE, 60, corners=corners)[1]
    position, around = first.weight[:, :2].abs() > 0, (first.weight[:, 2:].view(60, 3, 3).abs() > 0).all(2)
    assert position.all(1).tolist() == [True] * 30 + [False] * 30
    assert around.sum(1).tolist() == [0] * 30 + [1] * 30
    assert around.sum(0).tolist() == [10] * 3


@pytest.mark.parametrize("corners", [(), ((0.0, 0.0),)])
def test_both_ways_give_the_same_gradient_in_the_parameters(corners):
    backbone = network(SQUARE, 7, hidden=(5,), corners=corners, seed=1)
    x, wanted = points(6, 2), closure([(0, 0), (0, 1), (1, 1)])
    for axes in wanted:
        gradients = []
        for table in (features(backbone, x, derivatives=wanted).table(), _nested(backbone, x, wanted)):
            backbone.zero_grad()
            table[axes].square().sum().backward()
            gradients.append(
                torch.cat(
                    [
                        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                        for p in backbone.parameters()
                    ]
                )
            )
        assert relative(*gradients) < 1e-11, axes


def test_closed_forms():
    x = points(8, 2)

    def wave(x):
        return torch.sin(2 * x[:, :1] + 3 * x[:, 1:])

    u = features(wave, x, order=4)
    assert relative(u.laplacian, -13 * wave(x)) < 1e-13
    assert relative(u.biharmonic, 169 * wave(x)) < 1e-13
    assert relative(u.second(0, 1), -6 * wave(x)) < 1e-13
    assert relative(u.gradient[1], 3 * torch.cos(2 * x[:, :1] + 3 * x[:, 1:])) < 1e-13
    assert relative(u.laplacian_in(1), u.d(1, 1)) < 1e-15
    assert relative(u.d(1, 0, 0, 1), u.d(0, 1, 0, 1)) == 0


def test_only_what_is_asked_for_is_computed():
    u = features(network(Box([0.0] * 5, [1.0] * 5), 4), points(3, 5), derivatives=[(0, 0), (3,)])
    assert set(u.table()) == {(), (0,), (3,), (0, 0)}
    with pytest.raises(ValueError, match=r"along \(1,\) was not computed"):
        u.dx(1)
    with pytest.raises(ValueError, match="must be 0 to 4"):
        u.dx(5)


def test_as_many_partitions_as_bell_says():
    for axes, count in (((0,), 1), ((0, 1), 2), ((0, 1, 2), 5), ((0, 1, 2, 3), 15), ((0, 0, 0, 0), 15)):
        assert sum(partitions(axes).values()) == count


def test_what_features_refuses():
    backbone = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh()).double()
    with pytest.raises(ValueError, match="batch statistics"):
        features(backbone, points(4, 2))
    assert features(backbone.eval(), points(4, 2)).laplacian.shape == (4, 3)
    with pytest.raises(ValueError, match="at most 4, got 5"):
        features(backbone, points(4, 2), order=5)
    with pytest.raises(ValueError, match=r"\(4,\)"):
        features(backbone, points(4, 2)[:, 0])


# ---- Every kind of condition -------------------------------------------------------------------------


def sine(x, k=1.0):
    return torch.sin(k * PI * x[:, :1])


def error(solution, exact, D=1):
    x = points(500, D, seed=9)
    return relative(solution(x), exact(x))


def test_dirichlet_on_a_square():
    def exact(x):
        return sine(x) * torch.exp(x[:, 1:])

    problem = Problem(
        [
            Condition(SQUARE.inside, lambda u: u.laplacian, lambda x: (1 - PI**2) * exact(x)),
            Condition(SQUARE.faces(), lambda u: u.value, exact, share=0.25),
        ]
    )
    solution = solve(problem, network(SQUARE, 128, scale=4.0, activation=Sine), steps=0)
    assert error(solution, exact, 2) < 1e-7
    assert solution.relative_residual < 1e-5
    (u,) = solution.fields(points(20, 2), [(0, 0), (1, 1)])
    assert relative(u.laplacian, (1 - PI**2) * exact(points(20, 2))) < 1e-5
    assert "relative residual" in str(solution)


def test_robin_and_neumann():
    def exact(x):
        return torch.exp(x) + x

    ends = torch.tensor([[0.0], [1.0]])
    problem = Problem(
        [
            Condition(LINE.inside, lambda u: u.second(0, 0), torch.exp),
            Condition(ends[:1], lambda u: u.dx(0) + 2 * u.value, 4.0),
            Condition(ends[1:], lambda u: u.dx(0), math.e + 1),
        ]
    )
    assert error(solve(problem, network(LINE, 40, scale=2.0), steps=0), exact) < 1e-8


def test_periodic_and_integral():
    def exact(x):
        return torch.cos(2 * PI * x) + 3

    nodes = torch.linspace(0, 1, 101, dtype=torch.float64)[:-1, None]
    left = torch.zeros(1, 1)

    def across(x):
        return x + 1

    problem = Problem(
        [
            Condition(LINE.inside, lambda u: u.second(0, 0), lambda x: -4 * PI**2 * torch.cos(2 * PI * x)),
            Condition(left, lambda u: u.value - u.partner.value, partner=across, name="values"),
            Condition(left, lambda u: u.dx(0) - u.partner.dx(0), partner=across, name="slopes"),
            Condition(nodes, lambda u: u.value.mean(0, keepdim=True), 3.0, name="mean"),
        ]
    )
    solution = solve(problem, network(LINE, 60, scale=6.0), steps=0)
    assert error(solution, exact) < 1e-7
    assert solution.residuals["mean"] < 1e-8


def test_a_coefficient_that_varies():
    def operator(u):
        return (1 + u.x) * u.second(0, 0) + u.dx(0)

    problem = Problem(
        [
            Condition(LINE.inside, operator, 0.0),
            Condition(
                torch.tensor([[0.0], [1.0]]), lambda u: u.value, torch.tensor([0.0, math.log(2)], dtype=torch.float64)
            ),
        ]
    )
    assert error(solve(problem, network(LINE, 40, scale=2.0), steps=0), lambda x: torch.log(1 + x)) < 1e-9


def test_a_system():
    """u' = v, v' = -u."""
    start = torch.zeros(1, 1)
    problem = Problem(
        [
            Condition(LINE.inside, lambda u, v: u.dx(0) - v.value),
            Condition(LINE.inside, lambda u, v: v.dx(0) + u.value),
            Condition(start, lambda u, v: u.value, 0.0),
            Condition(start, lambda u, v: v.value, 1.0),
        ],
        unknowns=("u", "v"),
    )
    solution = solve(problem, network(LINE, 30), steps=0, points=256)
    assert solution.weights.shape == (2, 31)
    assert error(solution, lambda x: torch.cat([torch.sin(x), torch.cos(x)], 1)) < 1e-9


def test_an_inverse_problem_with_linear_coefficients():
    x = points(6, 1)

    def exact(x):
        return 2 * sine(x) - 0.5 * sine(x, 2)

    def operator(u, a, b):
        return u.second(0, 0) + PI**2 * a.value * sine(u.x) + 4 * PI**2 * b.value * sine(u.x, 2)

    problem = Problem(
        [
            Condition(LINE.inside, operator),
            Condition(torch.tensor([[0.0], [1.0]]), lambda u, a, b: u.value),
            Condition(x, lambda u, a, b: u.value, exact(x), name="data"),
        ],
        coefficients=("a", "b"),
    )
    solution = solve(problem, network(LINE, 60, scale=6.0), steps=0)
    assert solution.coefficients["a"] == pytest.approx(2, abs=1e-6)
    assert solution.coefficients["b"] == pytest.approx(-0.5, abs=1e-6)


def test_conditions_are_balanced_and_weights_multiply():
    """Units of an equation change nothing; a weight makes a condition that contradicts another win."""
    wanted = torch.tensor([[0.0]])

    def solved(factor, weight):
        problem = Problem(
            [
                Condition(LINE.inside, lambda u: factor * u.second(0, 0), 0.0),
                Condition(wanted, lambda u: u.value, 1.0, name="one"),
                Condition(wanted, lambda u: u.value, 3.0, weight=weight, name="three"),
            ]
        )
        return float(solve(problem, network(LINE, 20), steps=0)(wanted))

    assert solved(1.0, 1.0) == pytest.approx(2, abs=1e-6)
    assert solved(1e6, 1.0) == pytest.approx(2, abs=1e-6)
    assert solved(1.0, 1e3) == pytest.approx(3, abs=1e-4)


# ---- What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conditions", "sentence"),
    [
        ([Condition(LINE.inside, lambda u: u.value**2)], "not linear.*linear=False"),
        ([Condition(LINE.inside, lambda u: u.value * u.dx(0))], "not linear"),
        ([Condition(LINE.inside, lambda u: u.value + 1)], "not zero for u = 0"),
        ([Condition(LINE.inside, lambda u: 3.0)], "returns float"),
        ([Condition(LINE.inside, lambda u: u.value[:, 0])], r"returns \(64,\)"),
        ([Condition(LINE.inside, lambda u: u.dx(1))], "must be 0 to 0"),
        ([Condition(LINE.inside, lambda u: u.partner.value)], "no map to partners"),
        ([Condition(LINE.inside, lambda u: u.value, torch.zeros(4))], "has a sampler"),
        ([Condition(torch.zeros(4, 1), lambda u: u.value, torch.zeros(3))], "gives 4 rows"),
        ([Condition(torch.zeros(4), lambda u: u.value)], r"got \(4,\)"),
        ([Condition(LINE.inside, lambda u: u.value), Condition(SQUARE.inside, lambda u: u.value)], "dimension 2"),
        ([], "needs conditions"),
    ],
)
def test_problems_that_are_refused(conditions, sentence):
    with pytest.raises(ValueError, match=sentence):
        Problem(conditions)


def test_backbones_that_are_refused():
    problem = Problem([Condition(LINE.inside, lambda u: u.value, 1.0)])
    with pytest.raises(ValueError, match=r"backbone\.double"):
        solve(problem, network(LINE, 8).float(), steps=0)
    with pytest.raises(ValueError, match="points of dimension 1"):
        solve(problem, network(SQUARE, 8), steps=0)
    with pytest.raises(ValueError, match="16 rows for 33 weights"):
        solve(problem, network(LINE, 32), steps=0, final_points=16)
    with pytest.raises(ValueError, match="16 rows for 33 weights"):
        solve(problem, network(LINE, 32), steps=2, points=16)
    with pytest.raises(ValueError, match="steps >= 0"):
        solve(problem, network(LINE, 8), steps=-1)


# ---- Training ----------------------------------------------------------------------------------------


def layer_problem(eps=0.05):
    def exact(x):
        return (torch.exp((x - 1) / eps) - math.exp(-1 / eps)) / (1 - math.exp(-1 / eps))

    ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    conditions = [
        Condition(LINE.inside, lambda u: u.dx(0) - eps * u.second(0, 0)),
        Condition(ends, lambda u: u.value, exact(ends)),
    ]
    return Problem(conditions), exact


def test_training_the_backbone_helps_where_there_is_a_layer():
    problem, exact = layer_problem(eps=0.02)
    before = error(solve(problem, network(LINE, 16, scale=4.0), steps=0), exact)
    seen = []
    backbone = network(LINE, 16, scale=4.0)
    solution = solve(problem, backbone, steps=150, points=128, lr=0.05, progress=lambda *step: seen.append(step))
    assert error(solution, exact) < 0.3 * before
    assert [step for step, _, _ in seen] == list(range(1, 151))
    assert solution.losses == [loss for _, _, loss in seen]
    assert solution.losses[-1] < 0.1 * solution.losses[0]


@pytest.mark.parametrize("linear", [True, False])
def test_a_run_that_was_stopped_ends_with_the_same_numbers(tmp_path, linear):
    problem, _ = layer_problem()
    if not linear:
        conditions = [Condition(LINE.inside, lambda u: u.second(0, 0) - u.value**3, -1.0, linear=False)]
        problem = Problem([*conditions, problem.conditions[1]])
    options = {"steps": 12, "points": 64, "checkpoint": tmp_path / "run.pt", "every_s": 0.0}
    whole = solve(problem, network(LINE, 10), **{**options, "checkpoint": None})

    class KilledError(Exception):
        pass

    def kill(step, *rest):
        if step == 7:
            raise KilledError

    with pytest.raises(KilledError):
        solve(problem, network(LINE, 10), **options, progress=kill)
    assert options["checkpoint"].is_file()
    with pytest.raises(ValueError, match="remove it to start afresh"):
        solve(problem, network(LINE, 10), **{**options, "steps": 13})
    steps = []
    resumed = solve(problem, network(LINE, 10), **options, progress=lambda step, *rest: steps.append(step))
    assert 1 < steps[0] <= 7  # from the last look up before the seventh step, which was not saved
    assert torch.equal(resumed.weights, whole.weights)
    assert resumed.losses == whole.losses
    assert not options["checkpoint"].exists()


def test_progress_is_lines_of_a_log_a_bar_or_nothing(monkeypatch, caplog, capsys):
    from closedform.equations import progress

    problem, _ = layer_problem()

    def run(**options):
        caplog.clear()
        solve(problem, network(LINE, 10), steps=5, points=64, **options)
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level("INFO", logger="closedform.equations"):
        assert len(run()) == 1, "five steps take less than ten seconds, so there is the last line alone"
        monkeypatch.setattr(progress, "EVERY_S", 0.0)
        lines = run()
        assert len(lines) == 5
        assert lines[-1].startswith("step 5 of 5, loss ")
        assert lines[-1].endswith("about 0 s left")
        assert run(progress=False) == []
        assert capsys.readouterr().err == ""
        pytest.importorskip("rich")
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        assert run() == []
    assert "5/5" in capsys.readouterr().err


def test_an_equation_whose_solution_is_zero():
    problem = Problem(
        [Condition(LINE.inside, lambda u: u.second(0, 0)), Condition(torch.zeros(1, 1), lambda u: u.value)]
    )
    backbone = network(LINE, 8)
    solution = solve(problem, backbone, steps=3, points=32)
    assert solution.losses == [0.0] * 3
    assert solution.relative_residual == solution.spread == 0
    assert bool((solution(points(5, 1)) == 0).all())
    assert all(bool(p.isfinite().all()) for p in backbone.parameters())


def test_a_network_is_found():
    """Along x the solution varies eight times as fast as along y."""

    def exact(x):
        return torch.sin(16 * x[:, :1]) * torch.cos(2 * x[:, 1:])

    problem = Problem(
        [
            Condition(SQUARE.inside, lambda u: u.laplacian, lambda x: -260 * exact(x)),
            Condition(SQUARE.faces(), lambda u: u.value, exact, share=0.25),
        ]
    )
    chosen = best_network(problem, SQUARE, 96, trial_features=96)
    plain = error(solve(problem, network(SQUARE, 96), steps=0), exact, 2)
    assert error(solve(problem, chosen, steps=0), exact, 2) < 1e-2 * plain


def test_a_corner_is_named():
    """`r^(1/2) sin(angle / 2)` in the upper half of a square: the condition changes its kind at the origin, where the slope
    is not bounded."""
    half = Box([-1.0, 0.0], [1.0, 1.0])

    def exact(x):
        r = x.norm(dim=1, keepdim=True)
        return ((r - x[:, :1]) / 2).clamp(min=0).sqrt()

    def below(start):
        def along(n, generator):
            x = torch.rand(n, 1, generator=generator, dtype=torch.float64) + start
            return torch.cat([x, torch.zeros_like(x)], 1)

        return along

    def problem(draw, distance):
        sides = [Condition(half.face(0, end), lambda u: u.value, exact, share=0.2) for end in (0, 1)]
        return Problem(
            [
                Condition(draw(half.inside), lambda u: distance(u.x) ** 2 * u.laplacian),
                Condition(draw(below(0.0)), lambda u: u.value, share=0.2),
                Condition(draw(below(-1.0)), lambda u: distance(u.x) * u.dx(1), share=0.2),
                Condition(half.face(1, 1), lambda u: u.value, exact, share=0.2),
                *sides,
            ]
        )

    def measured(solution):
        x = half.inside(4000, torch.Generator().manual_seed(9))
        return relative(solution(x), exact(x))

    corner = (0.0, 0.0)
    plain = problem(lambda sampler: sampler, lambda x: torch.ones_like(x[:, :1]))
    named = problem(lambda sampler: towards(sampler, corner), lambda x: x.norm(dim=1, keepdim=True))
    unnamed = measured(solve(plain, best_network(plain, half, 192, trial_features=96), steps=0))
    assert unnamed > 1e-3
    solution = solve(named, best_network(named, half, 192, corners=[corner], trial_features=96), steps=0)
    assert measured(solution) < 1e-2 * unnamed


def test_slabs_of_time():
    """u' = -u + cos t over a long time, with an initial value that each slab hands on."""

    def exact(x):
        return (torch.cos(x) + torch.sin(x)) / 2 + torch.exp(-x) / 2

    def build(begin, end, before):
        slab, now = Box([begin], [end]), torch.tensor([[begin]], dtype=torch.float64)
        start = 1.0 if before is None else before(now)
        conditions = [
            Condition(slab.inside, lambda u: u.dx(0) + u.value, torch.cos),
            Condition(now, lambda u: u.value, start),
        ]
        return Problem(conditions), network(slab, 24)

    solution = march([0.0, 2.0, 4.0, 6.0, 8.0], build, steps=0, points=128)
    x = 8 * points(200, 1)
    assert relative(solution(x), exact(x)) < 1e-8
    assert solution(x).shape == (200, 1)
    with pytest.raises(ValueError, match="times that increase"):
        march([0.0, 2.0, 1.0], build)


# ---- Nonlinear ---------------------------------------------------------------------------------------


def test_newton_on_allen_cahn():
    """A standing front: eps^2 u'' = u^3 - u has the solution tanh(x / (sqrt(2) eps))."""
    eps, box = 0.3, Box([-1.0], [1.0])

    def exact(x):
        return torch.tanh((x - 0.1) / (math.sqrt(2) * eps))

    ends = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    problem = Problem(
        [
            Condition(box.inside, lambda u: eps**2 * u.second(0, 0) - u.value**3 + u.value, linear=False),
            Condition(ends, lambda u: u.value, exact(ends)),
        ]
    )
    solution = solve(problem, network(box, 60, scale=4.0), steps=0, start=lambda x: x)
    x = 2 * points(300, 1) - 1
    assert relative(solution(x), exact(x)) < 1e-6


def test_newton_finds_a_coefficient_that_multiplies_the_unknown():
    """c u'' = -sin(pi x) with c unknown, and measurements."""
    c, x = 0.3, points(5, 1)
    problem = Problem(
        [
            Condition(LINE.inside, lambda u, c: c.value * u.second(0, 0), lambda x: -sine(x), linear=False),
            Condition(torch.tensor([[0.0], [1.0]]), lambda u, c: u.value),
            Condition(x, lambda u, c: u.value, sine(x) / (c * PI**2), name="data"),
        ],
        coefficients=("c",),
    )
    solution = solve(problem, network(LINE, 40, scale=3.0), steps=0)
    assert solution.coefficients["c"] == pytest.approx(c, abs=1e-6)


def test_rows_of_a_linear_operator_are_the_same_by_newton():
    from closedform.equations.nonlinear import linearised

    def operator(u, v):
        return u.laplacian - 3 * v.dx(0) + u.x[:, :1] * v.value

    linear, newton = (
        Problem([Condition(SQUARE.inside, operator, 2.0, linear=kind)], unknowns=("u", "v")) for kind in (True, False)
    )
    (batch,) = linear.draw(20, torch.Generator().manual_seed(0))
    with torch.no_grad():
        u = linear.features(network(SQUARE, 6), 0, batch)
        around = linear.solved_fields(u, torch.randn(14, dtype=torch.float64), batch)
        A, b = linearised(newton, 0, u, around, batch)
    assert relative(A, linear.rows(0, u, batch)) < 1e-14
    assert float((b - 2).abs().max()) < 1e-12


def test_fields_of_other_shapes_are_not_made_up():
    field = Field(points(3, 1), {(): torch.ones(3, 1)})
    with pytest.raises(ValueError, match="not computed"):
        field.laplacian  # noqa: B018


# ---- Domains -----------------------------------------------------------------------------------------


def test_boxes():
    generator = torch.Generator().manual_seed(0)
    edge = SQUARE.faces()(40, generator)
    assert edge.shape == (40, 2)
    assert bool(((edge == 0) | (edge == 1)).any(1).all())
    assert bool((SQUARE.face(1, 0)(9, generator)[:, 1] == 0).all())
    corner = SQUARE.where(lambda x: x.sum(1) < 0.5)(100, generator)
    assert corner.shape == (100, 2)
    assert float(corner.sum(1).max()) < 0.5
    with pytest.raises(ValueError, match="holds at none"):
        SQUARE.where(lambda x: x[:, 0] > 2)(5, generator)
    with pytest.raises(ValueError, match="a lower and a higher corner"):
        Box([0.0, 1.0], [1.0, 1.0])


def test_points_towards_a_corner():
    generator, corner = torch.Generator().manual_seed(0), torch.tensor([1.0, 0.0], dtype=torch.float64)
    x = towards(SQUARE.faces(1), corner.tolist(), decades=3)(4000, generator)
    distance = (x - corner).norm(dim=1)
    assert x.shape == (4000, 2)
    assert bool(((x >= 0) & (x <= 1)).all())
    for decade in (1, 2):  # a third of a half to each
        near = (distance < 10.0**-decade) & (distance > 10.0 ** -(decade + 1))
        assert 0.1 < float(near.double().mean()) < 0.25
    away = towards(SQUARE.inside, (0.5, 0.5))(4096, generator) - 0.5
    near = away[away.norm(dim=1) < 1e-2]
    for signs in itertools.product((-1, 1), repeat=2):  # from all sides, though evenly spread points have an order
        assert 0.2 < float((near.sign() == torch.tensor(signs)).all(1).double().mean()) < 0.3
    with pytest.raises(ValueError, match="1 coordinates, but the sampler's have 2"):
        towards(SQUARE.inside, [0.0])(4, generator)
    for arguments in ((SQUARE.inside, [0.0, 0.0], 0), (SQUARE.inside, 0.0), (x, [0.0, 0.0])):
        with pytest.raises(ValueError, match="a sampler, a point and a positive number of decades"):
            towards(*arguments)
    for corners in ([(0.0,)], (0.0, 0.0)):
        with pytest.raises(ValueError, match="a list of points with 2 coordinates"):
            network(SQUARE, 8, corners=corners)
    with pytest.raises(ValueError, match="two a corner"):
        network(SQUARE, 3, corners=[(0.0, 0.0), (1.0, 0.0)])


def test_one_set_of_singular_values_serves_every_penalty():
    from closedform.equations.layer import compressed, penalised

    generator = torch.Generator().manual_seed(3)
    A = torch.randn(60, 20, generator=generator, dtype=torch.float64) * torch.logspace(0, -5, 20, dtype=torch.float64)
    b = torch.randn(60, 1, generator=generator, dtype=torch.float64)
    rows = compressed(A, b)
    assert relative(rows.X.T @ rows.X, A.T @ A) < 1e-13
    weights_of = penalised(rows)
    for beta in (0.0, 1e-12, 1e-8, 1e-2):
        penalty = (beta * float(A.square().sum())) ** 0.5 * torch.eye(20, dtype=torch.float64)
        augmented, target = torch.cat([A, penalty]), torch.cat([b, torch.zeros(20, 1, dtype=torch.float64)])
        exact = torch.linalg.lstsq(augmented, target, driver="gelsd").solution
        assert relative(A @ weights_of(beta), (A @ exact)[:, 0]) < 1e-9


# ---- The page and the benchmark ----------------------------------------------------------------------


def test_the_page_has_the_committed_results():
    page, tables = (ROOT / "docs" / "differential.md").read_text(encoding="utf-8"), load("benchmarks/tables.py")
    assert tables.equations() in page
    assert tables.equations_estimates() in page


def test_the_page_runs():
    page = (ROOT / "docs" / "differential.md").read_text(encoding="utf-8")
    space, residuals = {}, []
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block.replace("features=512", "features=128"), space)  # the page is ours
        residuals.append(space["solution"].relative_residual)
    assert residuals[0] < 1e-2  # a smooth solution
    x = space["inside"](2**14, torch.Generator().manual_seed(1))

    def off(solution):  # from the known integral, over an area of 3
        return abs(3 * float(solution(x).mean()) / 0.2140758 - 1)

    blind = best_network(space["problem"], space["box"], features=128)
    assert off(space["solution"]) < 0.3 * off(solve(space["problem"], blind, steps=0))


def test_the_problems_of_the_benchmark_have_the_solutions_that_it_says(monkeypatch):
    """The residual of every condition at the known solution is rounding, or the integral's for Burgers' equation."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name, build in importlib.import_module("equations_problems").CASES.items():
        case = build()
        for at, batch in enumerate(case.problem.draw(20, torch.Generator().manual_seed(3))):
            fields = case.problem.guessed_fields(at, case.exact, batch)
            numbers = [constant(batch.x, value) for value in case.coefficients]
            arguments = fields[: len(case.problem.unknowns)] + numbers
            value = case.problem.apply(case.problem.conditions[at], arguments)
            size = max(1.0, float(torch.as_tensor(batch.target).abs().max()))
            assert float((value - batch.target).abs().max()) < 1e-7 * size, (name, at)


def test_the_benchmark_goes_on_where_it_was_stopped_and_keeps_one_version(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = load("benchmarks/equations.py")
    compared = []

    def compare(name, quick):
        if len(compared) == 2:
            raise KeyboardInterrupt
        compared.append(name)
        return {"problem": name, "title": name, **dict.fromkeys(("trained", "learned", "deepxde", "spectral"))} | {
            "solved": {"error": float(len(compared))}
        }

    monkeypatch.setattr(benchmark, "compare", compare)
    arguments = ["--quick", "--out", str(tmp_path / "rows.json")]
    with pytest.raises(KeyboardInterrupt):
        benchmark.main(arguments)
    assert compared == list(benchmark.QUICK[:2])
    compared.clear()
    benchmark.main(arguments)
    assert compared == list(benchmark.QUICK[2:])
    compared.clear()
    monkeypatch.setattr(benchmark, "STEPS", 7)
    with pytest.raises(KeyboardInterrupt):
        benchmark.main(arguments)
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {row["problem"] for row in rows} == set(benchmark.QUICK[:2]), "rows of other settings are gone"
    assert {row["made_by"] for row in rows} == {benchmark.version(True)}
