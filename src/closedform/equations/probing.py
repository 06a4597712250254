"""What an operator takes and whether it is linear, seen by trying it on functions with random entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .fields import Axes, Field, Lazy, combined, constant
from .jets import closure

if TYPE_CHECKING:
    from .problem import Condition, PointBatch, Problem

_TOLERANCE = 1e-8  # of a test of linearity, relative: rounding is at 1e-15


def probe(problem: Problem, condition: Condition, batch: PointBatch) -> tuple[list[Axes], list[Axes]]:
    """The derivatives that an operator takes, at the points and at their partners; a ValueError where it is not linear
    though it should be, or where the target does not fit it."""
    asked: tuple[set[Axes], set[Axes]] = (set(), set())
    u, v = (trial(problem, batch, seed, asked) for seed in (0, 1))
    of_u = problem.apply(condition, u)
    if of_u.shape[1] != 1:
        raise ValueError(
            f"the operator of {condition.name!r} gives {of_u.shape[1]} columns for one function; expected one (coefficients "
            f"that vary have the shape (n, 1), as u.x[:, :1] has; several equations are several conditions)"
        )
    if condition.linear:
        _check_linear(problem, condition, u, v)
    if isinstance(batch.target, Tensor) and batch.target.shape != (len(of_u), 1):
        raise ValueError(
            f"the target of {condition.name!r} has the shape {tuple(batch.target.shape)}, but its operator gives "
            f"{len(of_u)} rows of one value"
        )
    return closure(asked[0]), closure(asked[1]) if asked[1] else []


def trial(problem: Problem, batch: PointBatch, seed: int, asked: tuple[set[Axes], set[Axes]]) -> list[Field]:
    """Functions and coefficients to try an operator on; `asked` gets the derivatives that it takes."""
    functions = [_random(batch, asked, seed=2 * k + seed) for k in range(len(problem.unknowns))]
    return functions + [constant(batch.x, 1.5 + k + seed, batch.partner) for k in range(len(problem.coefficients))]


def _check_linear(problem: Problem, condition: Condition, u: list[Field], v: list[Field]) -> None:
    of_u, of_v = problem.apply(condition, u), problem.apply(condition, v)
    size = float(of_u.abs().max() + of_v.abs().max())
    at_zero = problem.apply(condition, [combined(a, a, 1.0, -1.0) for a in u])
    if float(at_zero.abs().max()) > _TOLERANCE * size:
        raise ValueError(
            f"the operator of {condition.name!r} is not zero for u = 0; what does not depend on u belongs in the target"
        )
    if not size < float("inf"):
        raise ValueError(f"the operator of {condition.name!r} gives numbers that are not finite")
    for c in (1.0, 1e6, 1e-6):  # a small term that is not linear shows where u is large
        together = problem.apply(condition, [combined(a, b, 2 * c, -3 * c) for a, b in zip(u, v)])
        gap = float((together - c * (2 * of_u - 3 * of_v)).abs().max())
        if not gap <= _TOLERANCE * c * size:
            raise ValueError(
                f"the operator of {condition.name!r} is not linear: L({2 * c:g} u - {3 * c:g} v) and {2 * c:g} L(u) - "
                f"{3 * c:g} L(v) differ by {gap:.1e}; with linear=False it is solved by Newton's method"
            )


def _random(batch: PointBatch, asked: tuple[set[Axes], set[Axes]], seed: int) -> Field:
    """A function whose entries are random, and which notes the derivatives that are asked for."""

    def table(x: Tensor, notes: set[Axes], salt: int) -> Lazy:
        def entry(axes: Axes) -> Tensor:
            notes.add(axes)
            generator = torch.Generator().manual_seed(hash((seed, salt, axes)) % 2**31)
            return torch.randn(len(x), 1, generator=generator, dtype=torch.float64)

        return Lazy(entry)

    partner = None if batch.partner is None else Field(batch.partner, table(batch.partner, asked[1], 1))
    return Field(batch.x, table(batch.x, asked[0], 0), partner)
