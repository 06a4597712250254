"""The solved layer: least squares on rows whose condition number is mostly past what float64 can square."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..solver import linalg
from ..solver.systems import Rows

# relative to the largest squared singular value's bound, the trace; 0 is the minimum-norm solution
BETAS = (0.0, 1e-28, 1e-26, 1e-24, 1e-22, 1e-20, 1e-18, 1e-16, 1e-14, 1e-12)


def compressed(A: Tensor, b: Tensor) -> Rows:
    """As many rows as there are columns, with the same least-squares solutions: `A = QR`, and the rows are `R` and `Q^T b`.
    An orthogonal change of rows keeps the condition number, which `A^T A` would square."""
    m = A.shape[1]
    R = torch.linalg.qr(torch.cat([A, b], 1), mode="r").R
    return Rows(R[:m, :m].contiguous(), R[:m, m:].contiguous())


def penalised(rows: Rows) -> Callable[[float], Tensor]:
    """The weights `(m,)` of smallest `|E - X w|^2 + beta trace(X^T X) |w|^2` as a function of beta, by singular values that
    are found once."""
    factor, trace = linalg.by_singular_values(rows.X), rows.X.square().sum()
    return lambda beta: factor(beta * trace)(rows).update[0]


def solved(rows: Rows, beta: float) -> Tensor:
    """The weights of one beta."""
    return penalised(rows)(beta)


class Choice(NamedTuple):
    weights: Tensor
    beta: float
    loss: float


def chosen(rows: Rows, judge: Callable[[Tensor], float], betas: tuple[float, ...] = BETAS) -> Choice:
    """The weights of the beta whose loss on other points is least; of two that are equal, the larger beta's."""
    best, weights_of = None, penalised(rows)
    for beta in betas:
        weights = weights_of(beta)
        loss = judge(weights)
        if best is None or loss <= best.loss or not best.loss < float("inf"):
            best = Choice(weights, beta, loss)
    assert best is not None
    return best
