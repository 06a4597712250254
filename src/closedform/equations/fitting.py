"""The weights for features as they are: one solve, or Newton's method where a condition is not linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..solver import linalg
from . import system
from .fields import Field
from .layer import compressed
from .problem import Batch, Problem

Pick = Callable[[linalg.Rows, list[float]], Tensor]
_HALVINGS = 6
_CONVERGED = 1e-3  # a Newton step that takes less than this share off the loss is the last


class Fit(NamedTuple):
    """Weights `(m,)`, the scales of the conditions, and the compressed rows of `count` that they are the solution of."""

    weights: Tensor
    scales: list[float]
    rows: linalg.Rows
    count: int


def fit_layer(
    problem: Problem, at_points: Sequence[Field], batches: Sequence[Batch], start: Tensor | None, pick: Pick, most: int
) -> Fit:
    """Solve for the weights. Nonlinear problems take up to `most` steps of Newton's method from `start` (zero where None);
    a step that would increase the loss is halved.

    pick: makes weights of rows, given the scales of the conditions.
    """
    weights = start
    while True:
        balanced = system.assemble(problem, at_points, batches, weights)
        n, m = balanced.A.shape
        if n < m:
            raise ValueError(
                f"the conditions give {n} rows for {m} weights; take more points or a backbone with fewer features"
            )
        rows = compressed(balanced.A, balanced.b)
        target = pick(rows, balanced.scales)
        if problem.linear:
            return Fit(target, balanced.scales, rows, n)
        old = target.new_zeros(m) if weights is None else weights

        def loss(candidate: Tensor, scales: list[float] = balanced.scales) -> float:
            return float(system.loss(problem, at_points, batches, candidate, scales))

        before, after, weights = loss(old), loss(target), target
        for _ in range(_HALVINGS):
            if after <= before:
                break
            weights = (old + weights) / 2
            after = loss(weights)
        if not after <= before:
            return Fit(old, balanced.scales, rows, n)
        most -= 1
        if most == 0 or after > (1 - _CONVERGED) * before:
            return Fit(weights, balanced.scales, rows, n)
