"""Newton's method: the rows of a condition that is not linear, at the solution so far.

A nonlinear operator `F(u, u_x, u_xx, ...)` acts at each point by itself, so its derivative in the direction of the features
is known from its derivatives in its arguments, which autograd gives for all points at once::

    F(u) + sum_a  dF/du_a (phi_a dW^T)  =  target
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .fields import Axes, Field, Lazy
from .problem import PointBatch, Problem


def linearised(
    problem: Problem, at: int, u: Field, around: Sequence[Field], batch: PointBatch
) -> tuple[Tensor, Tensor]:
    """The rows `(n, m)` and targets `(n, 1)` whose least-squares solution is Newton's next function.

    around: the functions and coefficients so far at these points, which need not be made of the features `u`.
    """
    condition = problem.conditions[at]
    leaves: list[dict[tuple[bool, Axes], Tensor]] = [{} for _ in around]
    with torch.enable_grad():
        value = problem.apply(condition, [_leaf(field, entries) for field, entries in zip(around, leaves)])
        if len(value) != len(batch.x):
            raise ValueError(f"{condition.name!r} is not linear, so its operator must give one row a point")
        flat = [(k, *key) for k, entries in enumerate(leaves) for key in entries]
        slopes = torch.autograd.grad(
            value.sum(), [leaves[k][partner, axes] for k, partner, axes in flat], allow_unused=True
        )
    n, d, functions = len(batch.x), u.value.shape[1], len(problem.unknowns)
    blocks = [u.x.new_zeros(n, d if k < functions else 1) for k in range(len(around))]
    target = batch.target - value.detach()
    for (k, partner, axes), slope in zip(flat, slopes):
        if slope is None:
            continue
        if k < functions:
            blocks[k] += slope * (u.partner if partner else u).d(*axes)
        elif not axes:
            blocks[k] += slope
        target = target + slope * leaves[k][partner, axes].detach()
    return torch.cat(blocks, 1), target


def _leaf(field: Field, entries: dict[tuple[bool, Axes], Tensor], partner: bool = False) -> Field:
    """The same function, whose entries are noted and can be differentiated in."""

    def entry(axes: Axes) -> Tensor:
        key = (partner, axes)
        if key not in entries:
            entries[key] = field.d(*axes).detach().clone().requires_grad_()
        return entries[key]

    there = _leaf(field.partner, entries, partner=True) if field.has_partner else None
    return Field(field.x, Lazy(entry), there)
