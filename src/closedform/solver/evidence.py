"""How strongly rows of yes and no draw the weights of a layer to zero, by the evidence.

A layer that is fitted without a penalty to N rows of D features and o outputs costs about `D o / N` nats more on new rows
than on its own. The penalty that makes the rows most likely (MacKay's evidence) needs no tuning: it is `alpha / 2 |W|^2`
with alpha as many parameters as the rows determine over `|W|^2`. These are all `D o` where labels are noise, and few where a
layer separates them. The share of the loss of a layer of zeros that a filter's predictions have left of late, squared,
stands for the part of them in between::

    h = alpha / 2 = share^2 D o / (2 |W|^2)         at most LARGEST times the mean diagonal of the batch's Gram matrix

in the units of a filter's matrix, which measures the loss itself. The bias is neither drawn nor counted.

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


def precision(W: Tensor, bias: bool, share: Tensor, units: Tensor) -> Tensor:
    """h of every feature of several layers `W (K, o, D)`, `(K, D)`: none of the bias."""
    o, features = W.shape[-2], W.shape[-1] - int(bias)
    norm, size = W[..., :features].square().sum((-2, -1)).unsqueeze(-1), LARGEST * units[:features]
    wanted = (features * o / 2 * share.square()).unsqueeze(-1)
    h = torch.zeros_like(W[:, 0])
    h[:, :features] = torch.where(norm * size > wanted, wanted / norm, size)
    return h


def measured(system: Moments, W: Tensor, precision: Tensor) -> Moments:
    """The system with measurements of these precisions `(K, D)` that the weights `W (K, o, D)` are zero. Their share of `G`,
    which all layers have in common, is left to `held` of `filters.absorb`."""
    C = system.C - precision.unsqueeze(-1) * W.mT
    squares = system.ee + (precision.unsqueeze(-2) * W.square()).sum(-1)
    return replace(system, C=C, squares=squares, rows=None)
