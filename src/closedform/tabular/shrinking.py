"""The members' layers drawn towards the ridge regression on the inputs, as far as held-out rows say that it pays.

Where there is little to learn beyond a line, networks learn some of the noise. A last layer that sees the inputs contains
the ridge regression: zero for the features, and its coefficients for the inputs. Between a member's layer and that one, the
point of least squared error on rows that neither has seen is a least-squares problem in one number, the share `a`::

    a = sum w d (y - f) / sum w d^2,   d = ridge - f,   f the members' prediction

made smaller by what chance alone would give it (the positive-part rule of James and Stein), and kept within 0 and 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..solver.path import RidgePath
from .conformal import HeldOut
from .loop import TrainingRows

BETAS = [10.0**k for k in range(-6, 3)]  # over the weight of all rows, for inputs of about one unit
LARGEST = 1500  # of rows and columns the fewer; a decomposition of more takes too long


class Line(NamedTuple):
    """The ridge regression on all rows, `whole (o, f + 1)`; that `without` the rows of each fold, in the order of
    `torch.unique`; and the share of the way that layers are drawn to it."""

    whole: Tensor
    without: list[Tensor]
    share: float


def drawn(held: HeldOut, rows: TrainingRows, inputs: Tensor) -> tuple[HeldOut, Line]:
    """The held-out predictions after all layers were drawn to the ridge regression, and that.

    inputs: `(n, f)`, what the last layer sees of the rows beside the features.
    """
    assert rows.held is not None
    folds = torch.unique(rows.held, dim=0)
    without = torch.full(rows.y.shape, float("nan"), dtype=torch.float64, device=rows.y.device)
    layers = [ridge(rows, inputs, ~fold) for fold in folds]
    for fold, layer in zip(folds, layers):
        without[fold] = inputs[fold].double() @ layer[:, :-1].T + layer[:, -1]
    others = without[rows.held.any(0)].cpu()
    share = share_of(held.targets - held.outputs, others - held.outputs, held.weights[:, None])
    moved = held._replace(
        outputs=torch.lerp(held.outputs, others, share),
        spare=held.spare * (1 - share) ** 2,
    )
    return moved, Line(ridge(rows, inputs, torch.ones_like(folds[0])), layers, share)


def ridge(rows: TrainingRows, inputs: Tensor, used: Tensor) -> Tensor:
    """The layer of least leave-one-out error on the rows that are used."""
    weight = torch.ones(len(used), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    weight = weight.to(inputs.device)[used]
    path = RidgePath(inputs[used], rows.y[used], weight)
    betas = torch.tensor(BETAS, dtype=torch.float64, device=inputs.device) * weight.sum()
    errors = path.leave_one_out(betas).nan_to_num(nan=torch.inf)
    return path.layer(float(betas[errors.argmin()]))


def share_of(left: Tensor, move: Tensor, weight: Tensor) -> float:
    """How much of the `move (n, o)` to add where so much is `left (n, o)`, on rows of some weight `(n, 1)`."""
    squares = (weight * move.square()).sum()
    if not squares > 0:
        return 0.0
    best = (weight * move * left).sum() / squares
    noise = (weight * (left - best * move).square()).sum() / weight.sum() / left.shape[1]
    sure = (1 - noise / (best.square() * squares)).clamp(min=0)
    return abs(float((best * sure).clamp(0, 1).nan_to_num(nan=0.0)))  # of -0.0 too
