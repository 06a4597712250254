"""The noise that the Kalman rule reports, as held-out rows have it.

The filter estimates it from the residuals of rows that are trained on, which are too small for networks that learn some of
the noise; and layers that were drawn to the ridge regression agree more than before, but do not err less by as much. So the
noise of all members is multiplied by one factor an output, which makes the mean variance on held-out rows their squared
error. It is never less than 1: the epochs were chosen on the same rows, so that these flatter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .conformal import CHUNK, HeldOut
from .loop import TrainingRows
from .networks import Networks

PRIOR = 4.0  # rows that count for the filter's own estimate


def factor(engine: Networks, shares: Tensor, rows: TrainingRows, held: HeldOut) -> Tensor:
    """One an output, `(o,)`; 1 where the filter reports enough of it, or none at all."""
    assert rows.held is not None
    x, weight = rows.x[rows.held.any(0)], held.weights[:, None]
    own, between = (torch.zeros(held.targets.shape[1], dtype=torch.float64) for _ in range(2))
    for low in range(0, len(x), CHUNK):
        part = slice(low, low + CHUNK)
        for total, variance in zip((own, between), engine.variances(engine.features(x[part]), shares)):
            total += (weight[part] * variance.cpu()).sum(0)
    errors = ((weight * held.distances().square()).sum(0) - between).clamp(min=0)
    seen = weight.sum()
    mixed = (errors / own * seen + PRIOR) / (seen + PRIOR)
    return torch.where(own > 0, mixed, torch.ones_like(own)).clamp(min=1)
