"""What the nearest training rows leave over, as further features of the last layer.

Small networks are smooth, and tables often are not: the same house sold twice, the same patient measured again, a step that
trees find. So each training row keeps what the networks left over there, its residual `e`. A new row sees the mean of its
nearest rows' residuals,

    m(x) = sum_i w_i e_i / sum_i w_i,   w_i = weight_i / (d(x, x_i)^2 + floor^2)^(power / 2)

and the last layer adds a share of it to the prediction. That share is a least-squares problem in one number on rows that
were held out, whose neighbours are rows that the same members have trained on::

    share = sum w m (y - f) / sum w m^2

made smaller by what chance alone would give it and kept within 0 and 1, as in `shrinking`. Three ways to measure distance
are tried, each with two powers: all columns in units of their deviation; each by how much the predictions change when it is
shuffled; and by the square of that. The best is taken where the squared error on held-out rows falls by more than a per
cent and a standard error of that; elsewhere nothing is kept. Rows of equal inputs are one, with the mean of their residuals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.neighbors import KDTree
from torch import Tensor

from ..arrays import moments
from .conformal import CHUNK, HeldOut
from .loop import TrainingRows
from .shrinking import Line, share_of

COUNT = 32  # neighbours
POWERS = (2.0, 4.0)
EXPONENTS = (0, 1, 2)  # of how much a column counts, in distances
FLOOR = 0.1  # of the distance to the nearest row that is elsewhere, in the median
GAIN, SURE = 0.01, 1.0  # of the held-out squared error, and how many standard errors beyond it
LEAST = 20  # held-out rows to judge by
JUDGED = 2000  # as many are enough
NUMBERS = 1_000_000  # that are kept: they stand in the model's file, and a prediction may have to look at all
SHUFFLED, SHUFFLED_ROWS = 4000, 300  # rows predicted to see how much columns count: all together, and for one
LEAST_WEIGHT, LEAST_FLOOR = 1e-30, 1e-30


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The training rows as a prediction looks them up.

    rows: `(n, columns)`, float32, inputs drawn in, each once. residuals: `(n, o)`, float32, in the scaled units of the
    targets. weights: `(n,)`. scale: `(columns,)`, what a column is multiplied by before distances are taken.
    share: `(o,)`, how much of the mean counts. left: `(o,)`, the share of the squared error that is left with them.
    """

    rows: np.ndarray
    residuals: np.ndarray
    weights: np.ndarray
    scale: np.ndarray
    share: np.ndarray
    left: np.ndarray
    power: float
    floor: float

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "tree"}  # which can be built again

    @cached_property
    def tree(self) -> KDTree:
        return KDTree(_placed(self.rows, self.scale))

    def means(self, inputs: np.ndarray) -> np.ndarray:
        """`(n, o)`, for inputs drawn in."""
        index, distances = _nearest(self.tree, _placed(inputs, self.scale))
        return _mean(self.residuals, self.weights, index, distances, self.power, self.floor)


class _Fold(NamedTuple):
    """Rows that some members held out, and the others as these members see them."""

    rows: np.ndarray  # those held out, by number
    places: np.ndarray  # `(k, columns)`, inputs of the others, each once
    residuals: np.ndarray  # `(k, o)`
    weights: np.ndarray  # `(k,)`
    scales: list[np.ndarray]  # to try


class _Lookup(NamedTuple):
    """The neighbours of held-out rows: `which` of them, and into the fold's places."""

    which: np.ndarray
    index: np.ndarray
    distances: np.ndarray


def judged(
    engine: Any,
    shares: np.ndarray,
    rows: TrainingRows,
    held: HeldOut,
    columns: int,
    line: Line | None,
    *,
    jointly: bool,
) -> tuple[Neighbours | None, HeldOut]:
    """The neighbours, where they pay, and the held-out predictions with their part.

    columns: how many of the inputs are columns drawn in; they come first.
    line: what the members' layers will be drawn to; the engine has not been yet.
    jointly: whether all outputs have one share, as classes must.
    """
    n, outputs = rows.y.shape
    if n * (columns + outputs) > NUMBERS or len(held.outputs) < LEAST:
        return None, held
    trial = _Trial(engine, shares, rows, columns, line)
    some = np.unique(np.linspace(0, len(held.outputs) - 1, JUDGED).round().astype(int))
    best_gain, best = GAIN, None
    for metric in range(len(EXPONENTS)):
        lookups = trial.lookups(metric, some)
        floor = _floor(lookups)
        for power in POWERS:
            share, gain = _share(held, trial.means(lookups, power, floor, len(some)), some, jointly)
            if gain > best_gain:
                best_gain, best = gain, (metric, power, floor, share)
    if best is None:
        return None, held
    metric, power, floor, share = best
    every = np.arange(len(held.outputs))
    means = trial.means(trial.lookups(metric, every), power, floor, len(every))
    near = held._replace(outputs=held.outputs + torch.from_numpy(share * means))
    before, after = (
        (each.weights[:, None] * (each.targets - each.outputs).square()).sum(0).numpy() for each in (held, near)
    )
    left = np.divide(after, before, out=np.ones_like(before), where=before > 0).clip(1e-6, 1)
    whole = trial.fold(np.ones(len(shares), dtype=bool), None)
    kept = (whole.places, whole.residuals.astype(np.float32), whole.weights, whole.scales[metric])
    return Neighbours(*kept, share=share, left=left, power=power, floor=floor), near


class _Trial:
    """Held-out rows with the training rows that their members have seen. Nothing that judges a row has seen its target: not
    the residuals of its neighbours, not how much a column counts, not the line."""

    def __init__(self, engine: Any, shares: np.ndarray, rows: TrainingRows, columns: int, line: Line | None):
        assert rows.held is not None
        self.engine, self.shares, self.rows, self.columns, self.line = engine, shares, rows, columns, line
        self.x = np.ascontiguousarray(rows.x[:, :columns].float().cpu().numpy())
        weights = np.ones(len(self.x)) if rows.weight is None else rows.weight.double().cpu().numpy()
        self.weights = np.maximum(weights, LEAST_WEIGHT)
        self.places, self.place_of = np.unique(self.x, axis=0, return_inverse=True)
        self.place_of = self.place_of.ravel()
        masks = rows.held.cpu()
        self.held_rows = torch.nonzero(masks.any(0)).ravel().numpy()
        folds, fold_of = torch.unique(masks, dim=0, return_inverse=True)
        self.folds = [self.fold((fold_of == k).numpy(), fold.numpy(), k) for k, fold in enumerate(folds)]

    def fold(self, members: np.ndarray, without: np.ndarray | None, number: int = 0) -> _Fold:
        """As these members see the rows, `without` those that they held out."""
        counts = self.shares * members
        counts = counts if counts.sum() > 0 else members.astype(np.float64)
        together = torch.from_numpy(counts / counts.sum())
        layer = None
        if self.line is not None:
            layer = self.line.whole if without is None else self.line.without[number]
        seen = np.ones(len(self.x), dtype=bool) if without is None else ~without
        left = self._left_over(together, layer)
        weights = np.bincount(self.place_of[seen], self.weights[seen], len(self.places))
        sums = np.zeros((len(self.places), left.shape[1]))
        np.add.at(sums, self.place_of[seen], self.weights[seen, None] * left[seen])
        there = weights > 0
        residuals = sums[there] / weights[there, None]
        rows = np.zeros(0, dtype=int) if without is None else np.flatnonzero(without)
        return _Fold(rows, self.places[there], residuals, weights[there], self._scales(together, layer))

    def _outputs(self, x: Tensor, together: Tensor, layer: Tensor | None) -> Tensor:
        """What members that count so much predict, drawn to the line."""
        outputs = torch.einsum("m,mno->no", together, self.engine.predictions(self.engine.features(x)).cpu())
        if layer is None or self.line is None:
            return outputs
        inputs = self.engine.network.parts(x)[1].double()
        straight = inputs @ layer[:, :-1].T + layer[:, -1]
        return torch.lerp(outputs, straight.cpu(), self.line.share)

    def _left_over(self, together: Tensor, layer: Tensor | None) -> np.ndarray:
        """Targets less predictions, `(n, o)`."""
        parts = []
        for low in range(0, len(self.x), CHUNK):
            part = slice(low, low + CHUNK)
            y = self.rows.y[part].double().cpu()
            parts.append(y - self._outputs(self.rows.x[part], together, layer))
        return torch.cat(parts).numpy()

    def _scales(self, together: Tensor, layer: Tensor | None) -> list[np.ndarray]:
        """What to multiply the columns by: how much each counts, to each of `EXPONENTS`, over its deviation."""
        _, deviation = moments(self.x.astype(np.float64), self.weights)
        counts = self._sensitivity(together, layer)
        size = float(np.sqrt(np.square(counts).mean()))
        counts = counts / size if size > 0 and np.isfinite(size) else np.ones_like(counts)
        return [counts**exponent / deviation for exponent in EXPONENTS]

    def _sensitivity(self, together: Tensor, layer: Tensor | None) -> np.ndarray:
        """How much the predictions change when a column is shuffled: a root of a mean square, `(columns,)`."""
        n, count = len(self.x), max(2, min(SHUFFLED_ROWS, SHUFFLED // self.columns))
        x = self.rows.x[torch.from_numpy(np.unique(np.linspace(0, n - 1, count).round().astype(int)))]
        other = x[torch.from_numpy(np.random.RandomState(0).permutation(len(x)))]
        before, changes = self._outputs(x, together, layer), []
        at_once = max(1, CHUNK // len(x))
        for low in range(0, self.columns, at_once):
            columns = range(low, min(low + at_once, self.columns))
            shuffled = x.repeat(len(columns), 1, 1)
            for k, column in enumerate(columns):
                same = slice(column, None, self.columns)  # the column drawn in, and plain behind it
                shuffled[k, :, same] = other[:, same]
            after = self._outputs(shuffled.flatten(0, 1), together, layer).unflatten(0, (len(columns), len(x)))
            changes.append((after - before).square().mean((1, 2)).sqrt())
        return torch.cat(changes).numpy()

    def lookups(self, metric: int, which: np.ndarray) -> list[_Lookup]:
        """For each fold its rows among `which` of the held-out ones, and their neighbours."""
        lookups = []
        for fold in self.folds:
            own = np.flatnonzero(np.isin(self.held_rows[which], fold.rows))
            tree = KDTree(_placed(fold.places, fold.scales[metric]))
            asked = _placed(self.x[self.held_rows[which[own]]], fold.scales[metric])
            lookups.append(_Lookup(own, *(_nearest(tree, asked) if len(own) else (np.zeros((0, 1), dtype=int),) * 2)))
        return lookups

    def means(self, lookups: list[_Lookup], power: float, floor: float, count: int) -> np.ndarray:
        """`(count, o)`; of a row that several folds held out, the mean over these."""
        means, folds = np.zeros((count, self.folds[0].residuals.shape[1])), np.zeros((count, 1))
        for fold, (own, index, distances) in zip(self.folds, lookups):
            means[own] += _mean(fold.residuals, fold.weights, index, distances, power, floor)
            folds[own] += 1
        return means / np.maximum(folds, 1)


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
    means = np.zeros((len(index), residuals.shape[1]))
    for k in range(index.shape[1]):  # all at once would be COUNT times the memory
        means += count[:, k, None] * residuals[index[:, k]]
    return means


def _floor(lookups: list[_Lookup]) -> float:
    """A tenth of the distance to the nearest row that is elsewhere, in the median; 1 where there is none."""
    nearest = np.concatenate([np.where(d > 0, d, np.inf).min(1) for _, _, d in lookups])
    elsewhere = nearest[np.isfinite(nearest)]
    return max(FLOOR * float(np.median(elsewhere)), LEAST_FLOOR) if len(elsewhere) else 1.0


def _share(held: HeldOut, means: np.ndarray, which: np.ndarray, jointly: bool) -> tuple[np.ndarray, float]:
    """How much of the means to add, `(o,)`, and by how much of itself the squared error falls, less what may be chance."""
    weight = held.weights[which, None]
    left, move = (held.targets - held.outputs)[which], torch.from_numpy(means)
    outputs = [slice(None)] if jointly else [slice(k, k + 1) for k in range(left.shape[1])]
    share = torch.zeros(left.shape[1], dtype=torch.float64)
    for one in outputs:
        share[one] = share_of(left[:, one], move[:, one], weight)
    total = (weight * left.square()).sum()
    falls = (weight * (left.square() - (left - share * move).square())).sum(1)
    gain = (falls.sum() - SURE * len(falls) ** 0.5 * falls.std(correction=0)) / total
    return share.numpy(), float(gain.nan_to_num(nan=0.0))
