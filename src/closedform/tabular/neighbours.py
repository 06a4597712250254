"""What the nearest training rows leave over, as further features of the last layer.

Small networks are smooth, and tables often are not: the same house sold twice, the same patient measured again, a step that
trees find. So each training row keeps what the networks left over there, its residual `e`. A new row sees the mean of its
nearest rows' residuals,

    m(x) = sum_i w_i e_i / sum_i w_i,   w_i = weight_i / (d(x, x_i)^2 + floor^2)^(power / 2)

and the last layer adds a share of it to the prediction. That share is a least-squares problem in one number on rows that
were held out, whose neighbours are rows that the same members have trained on::

    share = sum w m (y - f) / sum w m^2

made smaller by what chance alone would give it and kept within 0 and 1, as in `shrinking`. Two ways to measure distance are
tried, each with two powers: all columns in units of their deviation, and each column by how much the predictions change when
it is shuffled. The best is taken where the squared error on held-out rows falls by more than a per cent and half a standard
error of that; elsewhere nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.neighbors import KDTree
from torch import Tensor

from ..arrays import moments
from .conformal import HeldOut
from .loop import TrainingRows

COUNT = 32  # neighbours
POWERS = (2.0, 4.0)
FLOOR = 0.1  # of the distance to the nearest row, in the median
GAIN, SURE = 0.01, 0.5  # of the held-out squared error, and how many standard errors beyond it
LEAST = 20  # held-out rows to judge by
JUDGED = 2000  # as many are enough
WORK = 1_000_000  # numbers that are kept: they stand in the model's file, and a prediction may have to look at all
SHUFFLED, SHUFFLED_ROWS = 20_000, 300  # rows predicted to see how much columns count: all together, and for one
CHUNK = 2048


@dataclass(frozen=True)
class Neighbours:
    """The training rows as a prediction looks them up.

    rows: `(n, columns)`, float32, inputs drawn in. residuals: `(n, o)`, float32, in the scaled units of the targets.
    weights: `(n,)`. scale: `(columns,)`, what a column is multiplied by before distances are taken.
    share: how much of the mean counts.
    """

    rows: np.ndarray
    residuals: np.ndarray
    weights: np.ndarray
    scale: np.ndarray
    power: float
    floor: float
    share: float

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "tree"}  # which can be built again

    @cached_property
    def tree(self) -> KDTree:
        return KDTree(_placed(self.rows, self.scale))

    def means(self, inputs: np.ndarray) -> np.ndarray:
        """`(n, o)`, for inputs drawn in."""
        index, distances = _nearest(self.tree, _placed(inputs, self.scale))
        return _mean(self.residuals, self.weights, index, distances, self.power, self.floor)


def judged(
    engine: Any, shares: np.ndarray, rows: TrainingRows, held: HeldOut, columns: int
) -> tuple[Neighbours | None, HeldOut]:
    """The neighbours, where they pay, and the held-out predictions with their part.

    columns: how many of the inputs are columns drawn in; they come first.
    """
    n, outputs = rows.y.shape
    if n * (columns + outputs) > WORK or len(held.outputs) < LEAST:
        return None, held
    trial = _Trial(engine, shares, rows, held, columns)
    best: tuple[float, tuple[np.ndarray, float, float, float]] | None = None
    some = np.unique(np.linspace(0, len(held.outputs) - 1, JUDGED).round().astype(int))
    for scale in trial.scales():
        near = trial.near(scale, some)
        floor = _floor(near)
        for power in POWERS:
            share, gain = _share(held, trial.means(near, some, power, floor), some)
            if gain > (GAIN if best is None else best[0]):
                best = gain, (scale, power, floor, share)
    if best is None:
        return None, held
    scale, power, floor, share = best[1]
    every = np.arange(len(held.outputs))
    means = trial.means(trial.near(scale, every), every, power, floor)
    kept = Neighbours(trial.x, trial.residuals, trial.weights, scale, power, floor, share)
    return kept, held._replace(outputs=held.outputs + share * torch.from_numpy(means))


class _Trial:
    """Held-out rows with the training rows that their members have seen."""

    def __init__(self, engine: Any, shares: np.ndarray, rows: TrainingRows, held: HeldOut, columns: int):
        assert rows.held is not None
        self.engine, self.shares, self.rows, self.columns = engine, torch.from_numpy(shares), rows, columns
        self.x = np.ascontiguousarray(rows.x[:, :columns].float().cpu().numpy())
        n = len(self.x)
        self.weights = np.ones(n) if rows.weight is None else rows.weight.double().cpu().numpy()
        masks = rows.held.cpu()
        self.folds, fold_of = torch.unique(masks, dim=0, return_inverse=True)
        counts = torch.stack([self._together(fold_of == fold) for fold in range(len(self.folds))])
        left = self._left_over(torch.cat([self.shares[None], counts]))
        self.residuals, self.left = left[0].astype(np.float32), left[1:]
        self.held_rows = torch.nonzero(masks.any(0)).ravel().numpy()

    def _together(self, members: Tensor) -> Tensor:
        """How much each of these members counts; equally, where all count nothing."""
        counts = self.shares * members
        counts = counts if counts.sum() > 0 else members.double()
        return counts / counts.sum()

    def _left_over(self, counts: Tensor) -> np.ndarray:
        """Targets less predictions by members that count so much, `(len(counts), n, o)`."""
        parts = []
        for low in range(0, len(self.x), CHUNK):
            part = slice(low, low + CHUNK)
            predicted = self._predicted(self.rows.x[part])
            parts.append(self.rows.y[part].double().cpu() - torch.einsum("fm,mno->fno", counts, predicted))
        return torch.cat(parts, 1).numpy()

    def _predicted(self, x: Tensor) -> Tensor:
        return self.engine.predictions(self.engine.features(x)).cpu()

    def scales(self) -> Iterator[np.ndarray]:
        """What to multiply the columns by: one over their deviation; and that times how much they count."""
        _, deviation = moments(self.x.astype(np.float64), self.weights)
        yield 1 / deviation
        counts = self._sensitivity()
        size = float(np.sqrt(np.square(counts).mean()))
        if size > 0 and np.isfinite(size):
            yield counts / size / deviation

    def _sensitivity(self) -> np.ndarray:
        """How much the predictions change when a column is shuffled: a root of a mean square, `(columns,)`."""
        n, count = len(self.x), max(1, min(SHUFFLED_ROWS, SHUFFLED // self.columns))
        x = self.rows.x[torch.from_numpy(np.unique(np.linspace(0, n - 1, count).round().astype(int)))]
        order = torch.from_numpy(np.random.RandomState(0).permutation(len(x)))

        def outputs(inputs: Tensor) -> Tensor:
            return torch.einsum("m,mno->no", self.shares, self._predicted(inputs))

        before, changes = outputs(x), np.zeros(self.columns)
        for column in range(self.columns):
            shuffled, same = x.clone(), slice(column, None, self.columns)  # the column drawn in, and plain behind it
            shuffled[:, same] = x[order, same]
            changes[column] = float((outputs(shuffled) - before).square().mean().sqrt())
        return changes

    def near(self, scale: np.ndarray, which: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each fold the places, among `which` of the held-out rows, of its own; their neighbours and the distances."""
        placed, near = _placed(self.x, scale), []
        for fold in self.folds.numpy():
            own = np.flatnonzero(fold[self.held_rows[which]])
            if len(own):
                seen = np.flatnonzero(~fold)
                index, distances = _nearest(KDTree(placed[seen]), placed[self.held_rows[which[own]]])
                near.append((own, seen[index], distances))
            else:
                near.append((own, np.zeros((0, 1), dtype=int), np.zeros((0, 1))))
        return near

    def means(
        self, near: list[tuple[np.ndarray, np.ndarray, np.ndarray]], which: np.ndarray, power: float, floor: float
    ) -> np.ndarray:
        means = np.zeros((len(which), self.residuals.shape[1]))
        for left, (own, index, distances) in zip(self.left, near):
            means[own] = _mean(left, self.weights, index, distances, power, floor)
        return means


def _placed(inputs: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Where rows are, in float64 and from float32: a row that was trained on is at its own place exactly."""
    return inputs.astype(np.float32).astype(np.float64) * scale


def _nearest(tree: KDTree, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distances, index = tree.query(places, min(COUNT, len(tree.data)))
    return index, distances


def _mean(
    residuals: np.ndarray, weights: np.ndarray, index: np.ndarray, distances: np.ndarray, power: float, floor: float
) -> np.ndarray:
    count = weights[index] / (np.square(distances) + floor**2) ** (power / 2)
    count /= count.sum(1, keepdims=True)
    return np.einsum("nk,nko->no", count, residuals[index].astype(np.float64))


def _floor(near: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> float:
    """A tenth of the distance to the nearest row; where most rows have one at their own place, of that to the farthest."""
    for place in (0, -1):
        middle = float(np.median(np.concatenate([distances[:, place] for _, _, distances in near])))
        if middle > 0:
            return FLOOR * middle
    return 1.0


def _share(held: HeldOut, means: np.ndarray, which: np.ndarray) -> tuple[float, float]:
    """How much of the means to add, and by how much of itself the squared error falls, less what may be chance."""
    weight = held.weights.numpy()[which, None]
    left = (held.targets - held.outputs).numpy()[which]
    squares, total = (weight * np.square(means)).sum(), (weight * np.square(left)).sum()
    if not (squares > 0 and total > 0 and np.isfinite(squares + total)):
        return 0.0, 0.0
    best = (weight * means * left).sum() / squares
    if best <= 0:
        return 0.0, 0.0
    noise = (weight * np.square(left - best * means)).sum() / weight.sum() / left.shape[1]
    share = float(np.clip(best * max(0.0, 1 - noise / (best**2 * squares)), 0, 1))
    falls = (weight * (np.square(left) - np.square(left - share * means))).sum(1)
    return share, float((falls.sum() - SURE * np.sqrt(len(falls)) * falls.std()) / total)
