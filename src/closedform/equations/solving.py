"""Solve a problem: the last layer in closed form at every step, the backbone by gradient steps on what is left.

At the minimum over the layer the gradient in the backbone is the same whether or not the layer follows (the envelope
theorem), so a step is: features and derivatives at fresh points, one least-squares solve, one backward with the layer fixed.
The end is a solve on many points, with the ridge penalty that does best on points of its own.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..solver.systems import Rows
from ..stack import loop
from ..stack.loop import Checkpoint, Trainable
from ..stack.optimizers import cosine
from ..stack.states import optimizer_state, prefixed, restore_optimizer, under
from . import system
from .checks import check_backbone, device_of, fingerprint, weights_digest
from .fitting import Fit, fit_layer
from .layer import chosen, compressed, solved
from .problem import PointBatch, Problem
from .progress import Progress, shown
from .solution import Solution

TRAINING_BETA = 1e-14  # relative: singular values below 1e-7 of the largest are damped, and the gradient is less noisy
FIRST_NEWTON_STEPS, NEWTON_STEPS = 10, 40  # before the first step of the backbone, and in the last solve
NO_TARGETS = 1e30  # above, zero is a solution too, and there is nothing to relate what is left over to
STUCK = 0.5  # a relative residual above which a nonlinear problem counts as not solved
LAST = 500_000  # the seeds of the last solve's points, apart from those of the steps


def solve(
    problem: Problem,
    backbone: nn.Module,
    *,
    steps: int = 300,
    points: int = 1024,
    final_points: int | None = None,
    lr: float = 2e-2,
    seed: int = 0,
    start: Callable[[Tensor], Tensor] | None = None,
    progress: Progress | bool = True,
    checkpoint: str | Path | None = None,
    every_s: float = 60.0,
    keep_checkpoint: bool = False,
) -> Solution:
    """Train the backbone in place for `steps` steps, then solve once on many points.

    steps: of Adam, whose rate falls from `lr` along a cosine. 0 is a solve alone, on the features as they are.
    points: for a step, of each condition that has a sampler (times its share).
    final_points: for the last solve; where None four for each weight, and at least `points`.
    start: a first guess of a nonlinear problem's functions, `(n, D) -> (n, unknowns)`; zero where None. It matters where
        there are several solutions, or where Newton's method stops at none.
    progress: True shows a bar in a terminal (where rich is installed), and elsewhere sends a line now and then to the logger
        `closedform.equations`; False shows nothing; a function is called after each step with the step, the number of
        steps, and the loss.
    checkpoint: a file that keeps the state every `every_s` seconds and on Ctrl-C; a run that was stopped goes on from it
        and ends with the same numbers. It is removed at the end, unless `keep_checkpoint`: the same call then takes the
        trained backbone from it. A file of another problem or backbone is refused; the backbone must be as it was at the
        start, or as a run that was stopped has left it.
    """
    if steps != int(steps) or steps < 0 or points < 1 or not lr > 0:
        raise ValueError(f"expected whole steps >= 0, points >= 1 and lr > 0, got {steps}, {points} and {lr}")
    width = problem.width(check_backbone(problem, backbone, trained=steps > 0) + 1)
    final_points = max(points, 4 * width) if final_points is None else final_points
    file = None
    if checkpoint is not None and steps:
        name = f"{steps} steps of {points} points, lr {lr:g}, seed {seed}, {fingerprint(problem, backbone)}"
        file = Checkpoint(Path(checkpoint), name, every_s)
    with shown(progress, steps) as show:
        training = Training(problem, backbone, steps, points, lr, seed, start, show)
        seconds = loop.train(training, checkpoint=file)
    if file is not None:  # the last solve may take long, too
        file.save(training, seconds)
    begin = time.perf_counter() - seconds
    solution = _finish(problem, backbone, training, final_points, seed, start)
    solution.seconds = time.perf_counter() - begin
    if file is not None and not keep_checkpoint:
        file.path.unlink(missing_ok=True)
    if not problem.linear and not (solution.relative_residual < STUCK or solution.relative_residual > NO_TARGETS):
        warnings.warn(
            f"Newton's method ended with {solution.relative_residual:.1g} of the targets left over; give it a first guess "
            "(start=) near the solution, or more features",
            stacklevel=2,
        )
    return solution


# ---- Training ----------------------------------------------------------------------------------------


class Known(NamedTuple):
    """A function that has been solved for. A nonlinear problem is linearised around it, at whatever points: the weights
    alone would mean another function once the backbone has taken a step."""

    backbone: nn.Module
    weights: Tensor

    @torch.no_grad()
    def at(self, problem: Problem, batches: list[PointBatch]) -> system.Around:
        return system.functions(problem, system.fields(problem, self.backbone, batches), batches, self.weights)


class Training(Trainable):
    """The steps of the backbone."""

    def __init__(
        self,
        problem: Problem,
        backbone: nn.Module,
        steps: int,
        points: int,
        lr: float,
        seed: int,
        guess: Callable[[Tensor], Tensor] | None,
        progress: Progress,
    ):
        self.problem, self.backbone, self.total, self.points = problem, backbone, steps, points
        self.lr, self.seed, self.guess, self.progress = lr, seed, guess, progress
        self.device = device_of(backbone)
        self.optimizer = torch.optim.Adam(backbone.parameters(), lr=lr) if steps else None
        self.begun_with = weights_digest(backbone.parameters())
        self.known: Known | None = None
        self.losses: list[float] = []
        self.t = 0

    def advance(self, steps: int) -> None:
        assert self.optimizer is not None
        for _ in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * cosine(self.t / self.total)
            batches = _draw(self.problem, self.backbone, self.points, _generator(self.seed, self.t))
            self.known, loss = _step(self.problem, self.backbone, self.optimizer, batches, self.known, self.guess)
            self.losses.append(loss)
            self.t += 1
            self.progress(self.t, self.total, loss)

    def state(self) -> dict[str, Tensor]:
        assert self.optimizer is not None
        state = prefixed("backbone", self.backbone.state_dict()) | prefixed("adam", optimizer_state(self.optimizer))
        if self.known is not None:
            state |= prefixed("known", self.known.backbone.state_dict()) | {"weights": self.known.weights}
        return state

    def notes(self) -> dict[str, Any]:
        return {"losses": self.losses, "begun_with": self.begun_with}

    def restore(self, state: dict[str, Tensor], notes: dict[str, Any]) -> None:
        assert self.optimizer is not None
        names = [name for name, _ in self.backbone.named_parameters()]
        stopped_with = weights_digest(under(state, "backbone")[name] for name in names)
        if self.begun_with not in (notes["begun_with"], stopped_with):
            raise ValueError("the backbone is neither as it was at the start nor as the run has left it")
        self.begun_with = notes["begun_with"]
        if "weights" in state:
            self.known = Known(copy.deepcopy(self.backbone), state["weights"])
            self.known.backbone.load_state_dict(under(state, "known"))
        self.backbone.load_state_dict(under(state, "backbone"))
        restore_optimizer(self.optimizer, under(state, "adam"))
        self.losses = notes["losses"]
        self.t = len(self.losses)


def _generator(seed: int, step: int) -> torch.Generator:
    """The points of a step depend on the seed and the step alone, so that a run can go on from any step."""
    return torch.Generator().manual_seed(seed * 1_000_003 + step)


def _draw(problem: Problem, backbone: nn.Module, n: int, generator: torch.Generator) -> list[PointBatch]:
    """Points where the backbone is. They are drawn on the CPU: so they are the same on every machine."""
    return [batch.to(device_of(backbone)) for batch in problem.draw(n, generator)]


def _start(
    problem: Problem, batches: list[PointBatch], known: Known | None, guess: Callable[[Tensor], Tensor] | None
) -> system.Around | None:
    """Where Newton's method starts from."""
    if problem.linear or (known is None and guess is None):
        return None
    if known is not None:
        return known.at(problem, batches)
    assert guess is not None
    return [problem.guessed_fields(at, guess, batch) for at, batch in enumerate(batches)]


def _step(
    problem: Problem,
    backbone: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[PointBatch],
    known: Known | None,
    guess: Callable[[Tensor], Tensor] | None,
) -> tuple[Known | None, float]:
    at_points = system.fields(problem, backbone, batches)
    with torch.no_grad():
        start = _start(problem, batches, known, guess)
        most = FIRST_NEWTON_STEPS if known is None else 1
        fit = fit_layer(problem, at_points, batches, start, lambda rows, scales: solved(rows, TRAINING_BETA), most)
    loss = system.loss(problem, at_points, batches, fit.weights, fit.scales)
    if not problem.linear:
        known = Known(copy.deepcopy(backbone), fit.weights)
    value = float(loss.detach())
    if 0 < value < float("inf"):  # nothing is left to improve, or no direction is known
        optimizer.zero_grad()
        loss.log().backward()  # of its logarithm: the loss may be 1e-20, and the epsilon of Adam is absolute
        optimizer.step()
    return known, value


# ---- The last solve ----------------------------------------------------------------------------------


@torch.no_grad()
def _finish(
    problem: Problem,
    backbone: nn.Module,
    trained: Training,
    n: int,
    seed: int,
    guess: Callable[[Tensor], Tensor] | None,
) -> Solution:
    """Solve on many points, choose beta on others, and measure on a third set."""
    draws = [_generator(seed, LAST + k) for k in range(3)]
    batches, other, fresh = (_draw(problem, backbone, count, draw) for count, draw in zip((n, n // 2, n // 2), draws))
    at_points, at_other, at_fresh = (system.fields(problem, backbone, part) for part in (batches, other, fresh))
    beta = 0.0

    def pick(rows: Rows, scales: list[float]) -> Tensor:
        nonlocal beta
        choice = chosen(rows, lambda weights: float(system.loss(problem, at_other, other, weights, scales)))
        beta = choice.beta
        return choice.weights

    start = _start(problem, batches, trained.known, guess)
    if not problem.linear:  # to the end with one penalty, or the steps would follow its choice and not the equation
        fit = fit_layer(problem, at_points, batches, start, lambda rows, scales: solved(rows, 0.0), NEWTON_STEPS)
        start = system.functions(problem, at_points, batches, fit.weights)
    fit = fit_layer(problem, at_points, batches, start, pick, 1)
    left = system.loss(problem, at_fresh, fresh, fit.weights, fit.scales)
    functions, d = len(problem.unknowns), at_fresh[0].value.shape[1]
    numbers = fit.weights[functions * d :].tolist()
    return Solution(
        problem,
        copy.deepcopy(backbone),  # whoever trains it further does not change this solution
        fit.weights[: functions * d].reshape(functions, d),
        dict(zip(problem.coefficients, numbers)),
        {
            condition.name: float(problem.residual(at, u, fit.weights, batch).square().mean().sqrt())
            for at, (condition, u, batch) in enumerate(zip(problem.conditions, at_fresh, fresh))
        },
        {
            condition.name: condition.weight / (scale * math.sqrt(count))
            for condition, scale, count in zip(problem.conditions, fit.scales, fit.counts)
        },
        math.sqrt(float(left) / max(float(system.target_size(problem, at_fresh, fresh, fit.scales)), 1e-300)),
        _spread(problem, fit, beta, torch.cat([u.value for u in at_fresh])),
        beta,
        sum(fit.counts),
        trained.losses,
        0.0,
    )


def _spread(problem: Problem, fit: Fit, beta: float, phi: Tensor) -> float:
    """How far the solution moves when every eighth feature is left out."""
    functions, d = len(problem.unknowns), phi.shape[1]
    column = torch.arange(len(fit.weights))
    kept = (column >= functions * d) | (column % d % 8 != 7) | (column % d == d - 1)
    part = torch.zeros_like(fit.weights)
    part[kept] = solved(compressed(fit.rows.X[:, kept], fit.rows.E), beta)
    u, v = (phi @ weights[: functions * d].reshape(functions, d).T for weights in (fit.weights, part))
    return float((u - v).norm() / u.norm().clamp(min=1e-300))
