"""How strongly rows of yes and no draw the weights of a layer to zero, by the evidence.

A layer that is fitted without a penalty to N rows of D features costs about `D / N` nats more on new rows than on its own,
for every parameter of a feature: `o - 1` among o classes. MacKay's evidence for a penalty `alpha / 2 |W|^2` asks for
as many parameters as the rows determine over `|W|^2`. Where a layer separates the labels these are few, though the penalty
itself is then weak; where labels are noise they are few since the penalty is strong. That count needs the eigenvalues of a
filter's matrix. Here all of them stand in for it, times the square of the share of the loss of a layer of zeros that the
filter's predictions have left of late::

    h = alpha / 2 = share^2 D (o - 1) / (2 |W|^2)   at most LARGEST times the mean diagonal of the batch's Gram matrix

in the units of a filter's matrix, which measures the loss itself. So it is more than the evidence where labels are noise,
and less where features tell them. The bias is neither drawn nor counted.

A filter forgets, so every step measures anew that the weights are zero, with the precision `(1 - gamma) h`: as rows would
that have a single feature and the target 0.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .systems import Moments

LARGEST = 10.0


def share(errors: Tensor, discount: float, step: Tensor, guess: float) -> Tensor:
    """The mean of discounted errors, of which the first step has none, over the mean loss of a layer of zeros: at most 1,
    and 1 where nothing is known."""
    t = (step - 1).clamp(min=1).to(errors.dtype)
    mean = errors * ((1 - discount) / (1 - discount**t) / guess)
    known = (mean - mean == 0) & (step > 1)
    return torch.where(known, mean.clamp(max=1.0), torch.ones_like(mean))


def precision(W: Tensor, bias: bool, parameters: Tensor, units: Tensor) -> Tensor:
    """h of every feature of several layers `W (K, o, D)`, `(K, D)`: none of the bias. parameters: those of a feature, as far
    as they count, `(K,)`."""
    features = W.shape[-1] - int(bias)
    norm, size = W[..., :features].square().sum((-2, -1)).unsqueeze(-1), LARGEST * units[:features]
    wanted = (features / 2 * parameters).unsqueeze(-1)
    h = torch.zeros_like(W[:, 0])
    h[:, :features] = torch.where(norm * size > wanted, wanted / norm, size)
    return h


def measured(system: Moments, W: Tensor, precision: Tensor) -> Moments:
    """The system with measurements of these precisions `(K, D)` that the weights `W (K, o, D)` are zero. Their share of `G`,
    which all layers have in common, is left to `held` of `filters.absorb`."""
    C = system.C - precision.unsqueeze(-1) * W.mT
    squares = system.ee + (precision.unsqueeze(-2) * W.square()).sum(-1)
    return replace(system, C=C, squares=squares, rows=None)
