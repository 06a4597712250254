"""The weights for features as they are: one solve, or Newton's method where a condition is not linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from ..solver.systems import Rows
from . import system
from .fields import Field
from .layer import compressed
from .problem import PointBatch, Problem

Pick = Callable[[Rows, list[float]], Tensor]
_HALVINGS = 6
_CONVERGED = 1e-3  # a Newton step that takes less than this share off the loss is the last


class Fit(NamedTuple):
    """Weights `(m,)`, the scales of the conditions, and the compressed rows that they are the solution of, of
    `counts` for each condition."""

    weights: Tensor
    scales: list[float]
    rows: Rows
    counts: list[int]


def fit_layer(
    problem: Problem,
    at_points: Sequence[Field],
    batches: Sequence[PointBatch],
    start: system.Around | None,
    pick: Pick,
    most: int,
) -> Fit:
    """Solve for the weights. Nonlinear problems take up to `most` steps of Newton's method from the functions `start` (zero
    where None); a step after the first that would increase the loss is halved, until it does not.

    pick: makes weights of rows, given the scales of the conditions.
    """
    around, fit = start, None
    for _ in range(1 if problem.linear else most):
        A, b, scales, counts = system.assemble(problem, at_points, batches, around)
        if A.shape[0] < A.shape[1]:
            raise ValueError(
                f"the conditions give {A.shape[0]} rows for {A.shape[1]} weights; take more points or a backbone with fewer "
                f"features"
            )
        if not bool(A.isfinite().all() and b.isfinite().all()):
            raise ValueError(
                "the rows of the conditions are not finite at the features as they are"
                + ("" if problem.linear else " and the solution so far; give Newton's method a first guess (start=)")
            )
        rows = compressed(A, b)
        weights = pick(rows, scales)
        if fit is not None:
            before = float(system.loss(problem, at_points, batches, fit.weights, scales))
            weights, after = _halved(problem, at_points, batches, scales, fit.weights, weights, before)
            if after > before:
                break
            if after > (1 - _CONVERGED) * before:
                return Fit(weights, scales, rows, counts)
        fit = Fit(weights, scales, rows, counts)
        around = system.functions(problem, at_points, batches, weights)
    assert fit is not None
    return fit


def _halved(
    problem: Problem,
    at_points: Sequence[Field],
    batches: Sequence[PointBatch],
    scales: list[float],
    old: Tensor,
    new: Tensor,
    before: float,
) -> tuple[Tensor, float]:
    """The step from old to new weights, halved while its loss is above the one before; with its loss."""
    after = float("inf")
    for _ in range(_HALVINGS):
        after = float(system.loss(problem, at_points, batches, new, scales))
        if after <= before:
            break
        new = (old + new) / 2
    return new, after
