"""All conditions of a problem as one least-squares problem for the weights of the last layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .fields import Field
from .nonlinear import linearised
from .problem import PointBatch, Problem

Around = Sequence[Sequence[Field]]  # for every condition, the functions and coefficients at its points


class System(NamedTuple):
    """Rows `A (n, m)` and targets `b (n, 1)`, balanced; `scales` is what each condition's rows were multiplied by, and
    `counts` how many there are."""

    A: Tensor
    b: Tensor
    scales: list[float]
    counts: list[int]


def fields(problem: Problem, backbone: Callable[[Tensor], Tensor], batches: Sequence[PointBatch]) -> list[Field]:
    """The features at the points of every condition."""
    return [problem.features(backbone, at, batch) for at, batch in enumerate(batches)]


def functions(problem: Problem, at_points: Sequence[Field], batches: Sequence[PointBatch], weights: Tensor) -> Around:
    """What these weights make of the features, at the points of every condition."""
    return [problem.solved_fields(u, weights, batch) for u, batch in zip(at_points, batches)]


def assemble(
    problem: Problem, at_points: Sequence[Field], batches: Sequence[PointBatch], around: Around | None = None
) -> System:
    """The rows of all conditions. Each condition's rows are divided by the root of the sum of their squares, so that a
    condition with large derivatives, or with many points, weighs as much as another.

    around: the solution so far, where conditions that are not linear are linearised; zero where None.
    """
    rows, targets, scales = [], [], []
    for at, (u, batch) in enumerate(zip(at_points, batches)):
        u = u.detached()
        if problem.conditions[at].linear:
            A = problem.rows(at, u, batch)
            b = A.new_zeros(len(A), 1) + batch.target
        else:
            A, b = linearised(problem, at, u, problem.zero(batch) if around is None else around[at], batch)
        size = float(A.norm())
        scale = problem.conditions[at].weight / (size if size > 0 else 1.0)
        rows.append(scale * A)
        targets.append(scale * b)
        scales.append(scale)
    return System(torch.cat(rows), torch.cat(targets), scales, [len(part) for part in rows])


def loss(
    problem: Problem,
    at_points: Sequence[Field],
    batches: Sequence[PointBatch],
    weights: Tensor,
    scales: Sequence[float],
) -> Tensor:
    """The sum of the squared residuals of these weights, each condition's times its scale."""
    parts = [
        (scale * problem.residual(at, u, weights, batch)).square().sum()
        for at, (u, batch, scale) in enumerate(zip(at_points, batches, scales))
    ]
    return torch.stack(parts).sum()


def target_size(
    problem: Problem, at_points: Sequence[Field], batches: Sequence[PointBatch], scales: Sequence[float]
) -> Tensor:
    """The loss of the zero function: what the residuals are measured against."""
    u = at_points[0]
    return loss(problem, at_points, batches, u.x.new_zeros(problem.width(u.value.shape[1])), scales)
