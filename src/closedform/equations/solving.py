"""Solve a problem: the last layer in closed form at every step, the backbone by gradient steps on what is left.

At the minimum over the layer the gradient in the backbone is the same whether or not the layer follows (the envelope
theorem), so a step is: features and derivatives at fresh points, one least-squares solve, one backward with the layer fixed.
The end is a solve on many points, with the ridge penalty that does best on points of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..files import atomic
from ..solver import linalg
from ..stack.loop import Stop
from . import system
from .fitting import Fit, fit_layer
from .layer import chosen, compressed, solved
from .problem import Batch, Problem
from .solution import Solution

TRAINING_BETA = 1e-20  # relative, so singular values below 1e-10 of the largest are damped
FIRST_NEWTON_STEPS, NEWTON_STEPS = 10, 30  # before the first step of the backbone, and in the last solve
LAST = 500_000  # the seeds of the last solve's points, apart from those of the steps
Progress = Callable[[int, int, float], None]


def solve(
    problem: Problem,
    backbone: nn.Module,
    *,
    steps: int = 300,
    points: int = 1024,
    final_points: int | None = None,
    lr: float = 3e-3,
    seed: int = 0,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    every_s: float = 60.0,
) -> Solution:
    """Train the backbone in place for `steps` steps, then solve once on many points.

    steps: of Adam, whose rate falls from `lr` along a cosine. 0 is a solve alone, on the features as they are.
    points: for a step, of each condition that has a sampler (times its share).
    final_points: for the last solve; where None four for each weight, and at least `points`.
    progress: called after each step with the step, the number of steps, and the loss.
    checkpoint: a file that keeps the state every `every_s` seconds and on Ctrl-C; a run that was stopped goes on from it
        and ends with the same numbers. It is removed at the end.
    """
    start = time.perf_counter()
    _check(problem, backbone)
    state = _train(
        problem, backbone, steps, points, lr, seed, progress, None if checkpoint is None else Path(checkpoint), every_s
    )
    trained = time.perf_counter()
    solution = _finish(problem, backbone, state, points, final_points, seed)
    solution.seconds = state.seconds + time.perf_counter() - trained
    if checkpoint is not None:
        Path(checkpoint).unlink(missing_ok=True)
    return solution


def _check(problem: Problem, backbone: nn.Module) -> None:
    tensors = list(backbone.parameters())
    if any(tensor.dtype != torch.float64 for tensor in tensors):
        raise ValueError(f"the backbone has {tensors[0].dtype} parameters, and equations need backbone.double()")
    device = tensors[0].device if tensors else torch.device("cpu")
    try:
        phi = backbone(torch.zeros(2, problem.dimension, dtype=torch.float64, device=device))
    except RuntimeError as wrong:
        raise ValueError(f"the backbone does not take points of dimension {problem.dimension}: {wrong}") from wrong
    if phi.ndim != 2 or len(phi) != 2:
        raise ValueError(f"the backbone makes {tuple(phi.shape)} of 2 points, and (2, features) is expected")


# ---- Training ----------------------------------------------------------------------------------------


class State(NamedTuple):
    """What training leaves besides the backbone."""

    weights: Tensor | None
    losses: list[float]
    seconds: float


def _train(
    problem: Problem,
    backbone: nn.Module,
    steps: int,
    points: int,
    lr: float,
    seed: int,
    progress: Progress | None,
    checkpoint: Path | None,
    every_s: float,
) -> State:
    if steps == 0:
        return State(None, [], 0.0)
    optimizer = torch.optim.Adam(backbone.parameters(), lr=lr)
    state = State(None, [], 0.0)
    name = f"{steps} steps of {points} points, lr {lr:g}, seed {seed}"
    if checkpoint is not None and checkpoint.is_file():
        state = _resume(checkpoint, backbone, optimizer, name)
    weights, losses = state.weights, state.losses
    begin = time.perf_counter() - state.seconds
    saved = time.perf_counter()
    with Stop() as stop:
        for step in range(len(losses), steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
            generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
            weights, loss = _step(problem, backbone, optimizer, problem.draw(points, generator), weights)
            losses.append(loss)
            if progress is not None:
                progress(step + 1, steps, loss)
            due = time.perf_counter() - saved > every_s
            if checkpoint is not None and (stop.asked or due):
                _save(checkpoint, backbone, optimizer, name, State(weights, losses, time.perf_counter() - begin))
                saved = time.perf_counter()
            if stop.asked:
                raise KeyboardInterrupt
    return State(weights, losses, time.perf_counter() - begin)


def _step(
    problem: Problem,
    backbone: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[Batch],
    weights: Tensor | None,
) -> tuple[Tensor, float]:
    at_points = system.fields(problem, backbone, batches)
    with torch.no_grad():
        most = FIRST_NEWTON_STEPS if weights is None else 1
        fit = fit_layer(problem, at_points, batches, weights, lambda rows, scales: solved(rows, TRAINING_BETA), most)
    loss = system.loss(problem, at_points, batches, fit.weights, fit.scales)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return fit.weights, float(loss.detach())


# ---- The last solve ----------------------------------------------------------------------------------


@torch.no_grad()
def _finish(
    problem: Problem, backbone: nn.Module, state: State, points: int, final_points: int | None, seed: int
) -> Solution:
    """Solve on many points, choose beta on others, and measure on a third set."""
    draws = [torch.Generator().manual_seed(seed * 1_000_003 + LAST + k) for k in range(3)]
    width = problem.width(problem.features(backbone, 0, problem.draw(1, draws[2])[0]))
    n = max(points, 4 * width) if final_points is None else final_points
    batches, other, fresh = (problem.draw(count, draw) for count, draw in zip((n, n // 2, n // 2), draws))
    at_points, at_other, at_fresh = (system.fields(problem, backbone, part) for part in (batches, other, fresh))
    beta = 0.0

    def pick(rows: linalg.Rows, scales: list[float]) -> Tensor:
        nonlocal beta
        choice = chosen(rows, lambda weights: float(system.loss(problem, at_other, other, weights, scales)))
        beta = choice.beta
        return choice.weights

    fit = fit_layer(problem, at_points, batches, state.weights, pick, NEWTON_STEPS)
    left = system.loss(problem, at_fresh, fresh, fit.weights, fit.scales)
    functions, d = len(problem.unknowns), at_fresh[0].value.shape[1]
    numbers = fit.weights[functions * d :].tolist()
    return Solution(
        problem,
        backbone,
        fit.weights[: functions * d].reshape(functions, d),
        dict(zip(problem.coefficients, numbers)),
        {
            condition.name: float(problem.residual(at, u, fit.weights, batch).square().mean().sqrt())
            for at, (condition, u, batch) in enumerate(zip(problem.conditions, at_fresh, fresh))
        },
        math.sqrt(float(left) / max(float(system.target_size(problem, at_fresh, fresh, fit.scales)), 1e-300)),
        _spread(problem, fit, beta, at_fresh[0].value),
        beta,
        fit.count,
        state.losses,
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
    return float((u - v).norm() / u.norm())


# ---- Checkpoints -------------------------------------------------------------------------------------


def _save(path: Path, backbone: nn.Module, optimizer: torch.optim.Optimizer, name: str, state: State) -> None:
    body = {"name": name, "backbone": backbone.state_dict(), "optimizer": optimizer.state_dict(), **state._asdict()}
    with atomic(path) as file:
        torch.save(body, file)


def _resume(path: Path, backbone: nn.Module, optimizer: torch.optim.Optimizer, name: str) -> State:
    try:
        body = torch.load(path, weights_only=True)
        if body["name"] != name:
            raise ValueError(f"it belongs to {body['name']!r}, and this is {name!r}")
        backbone.load_state_dict(body["backbone"])
        optimizer.load_state_dict(body["optimizer"])
        return State(body["weights"], body["losses"], body["seconds"])
    except Exception as wrong:
        raise ValueError(f"the checkpoint {path} cannot be continued ({wrong}); remove it to start afresh") from wrong
