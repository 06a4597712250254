"""Intervals and sets from the rows that members held out: split conformal prediction without a refit.

Each of those rows is predicted by the members that did not train on it. How far off they are, sorted, is all that is kept:
a new row is covered with probability `1 - alpha` when the interval reaches as far as the `(1 - alpha)(k + 1)`-th of `k` such
distances (Vovk et al.; Lei et al. 2018). Two things differ from the textbook. On small tables half of the members predict a
held-out row and all of them a new one, whose mean varies less: the distances are made smaller by what the members' own
variance says. And the epoch of each member was chosen on the same rows, which makes the distances a little too small.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .loop import TrainingRows

CHUNK = 2048  # rows predicted at a time
MOST = 20_000  # distances that are kept
LEAST_LEFT = 0.5  # of the squared error, whatever the members' variance says


class HeldOut(NamedTuple):
    """Rows that somebody held out, in the scaled units of the targets.

    outputs, targets: `(k, o)`, the first from the members that held a row out, together.
    weights: `(k,)`.
    spare: `(k, o)`, by how much the variance of a prediction falls when all members take part, as they do for a new row.
    """

    outputs: Tensor
    targets: Tensor
    weights: Tensor
    spare: Tensor

    def distances(self) -> Tensor:
        """How far off predictions by all members are, as far as those by some can tell: the distances times one factor an
        output, the root of the share of the squared error that averaging over more members leaves."""
        weight = self.weights[:, None]
        squares = (weight * (self.targets - self.outputs).square()).sum(0)
        left = 1 - (weight * self.spare).sum(0) / squares.clamp(min=torch.finfo(torch.float64).tiny)
        return (self.targets - self.outputs).abs() * left.clamp(LEAST_LEFT, 1).sqrt()


def held_out(engine: Any, shares: np.ndarray, rows: TrainingRows) -> HeldOut:
    """What the members that held a row out predict for it."""
    assert rows.held is not None
    share = torch.from_numpy(shares)[:, None]
    alone = share.square().sum()  # the variance of all members' mean, over that of one
    outputs, targets, weights, spare = [], [], [], []
    for low in range(0, len(rows.x), CHUNK):
        part = slice(low, low + CHUNK)
        held = rows.held[:, part].cpu()
        some = held.any(0)
        counts = (share * held)[:, some]
        # where all members that held a row out count nothing, they count equally
        counts = torch.where(counts.sum(0) > 0, counts, held[:, some].double())
        place = some.to(rows.x.device)
        predicted = engine.predictions(engine.features(rows.x[part][place])).cpu()
        counts = (counts / counts.sum(0)).unsqueeze(2)
        mean = (counts * predicted).sum(0)
        together = counts.square().sum(0)
        # between members that are not the same, unbiased; nothing where there is one
        between = (counts * (predicted - mean).square()).sum(0) / (1 - together).clamp(min=1e-9)
        spare.append(between * (together - alone).clamp(min=0))
        outputs.append(mean)
        targets.append(rows.y[part][place].double().cpu())
        weights.append(
            torch.ones(int(some.sum()), dtype=torch.float64)
            if rows.weight is None
            else rows.weight[part][place].double().cpu()
        )
    return HeldOut(torch.cat(outputs), torch.cat(targets), torch.cat(weights), torch.cat(spare))


def table(distances: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Distances `(k, o)` and weights `(k,)` as `(k, o, 2)`: each output's distances in order, with the weight up to each."""
    order = np.argsort(distances, 0, kind="stable")
    ordered = np.take_along_axis(distances, order, 0)
    upto = np.cumsum(weights[order] / weights.mean(), 0)
    if len(ordered) > MOST:
        kept = np.linspace(0, len(ordered) - 1, MOST).round().astype(int)
        ordered, upto = ordered[kept], upto[kept]
    return np.stack([ordered, upto], 2)


def reach(kept: np.ndarray, alpha: float) -> np.ndarray:
    """How far intervals reach, one number an output, from a `table`.

    >>> kept = table(np.arange(1.0, 20.0)[:, None], np.ones(19))
    >>> reach(kept, 0.1).tolist(), reach(kept, 0.5).tolist()
    ([18.0], [10.0])
    """
    total = kept[-1, :, 1]
    wanted = (1 - alpha) * (total + 1) * (1 - 1e-12)
    if (wanted > total).any():
        warnings.warn(
            f"{total[0]:.0f} rows were held out, too few for intervals of {1 - alpha:.3g}: these reach as far as the"
            f" farthest of them and cover about {total[0] / (total[0] + 1):.3g}",
            stacklevel=3,
        )
    place = (kept[:, :, 1] < wanted).sum(0).clip(max=len(kept) - 1)
    return np.take_along_axis(kept[:, :, 0], place[None], 0)[0]


def check_alpha(alpha: Any) -> float:
    if isinstance(alpha, (bool, np.bool_)) or not isinstance(alpha, (int, float, np.number)) or not 0 < alpha < 1:
        raise ValueError(f"alpha must be a number between 0 and 1, the share that may lie outside, got {alpha!r}")
    return float(alpha)
