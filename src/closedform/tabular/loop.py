"""The epochs of an estimator's training: batches, held-out errors, the best state of each member, and where it stands.

Every order of rows is a function of the seed and the epoch, so a run that was stopped between two epochs goes on as if it
had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ..stack.optimizers import cosine

SMOOTH = 0.6  # of the held-out error's past: an epoch's own value is noisy


class Engine(Protocol):
    """`networks.Networks` or `modules.Modules`."""

    members: int
    device: torch.device
    dtype: torch.dtype

    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, factor: float) -> tuple[Tensor, Tensor]: ...
    def features(self, x: Tensor) -> Tensor: ...
    def layer(self, shares: Tensor) -> tuple[Tensor, Tensor]: ...
    def predictions(self, phi: Tensor) -> Tensor: ...
    def variance(self, phi: Tensor, shares: Tensor) -> Tensor: ...
    def state(self) -> dict[str, Tensor]: ...
    def restore(self, state: dict[str, Tensor]) -> None: ...
    def weights(self) -> dict[str, Tensor]: ...
    def forget_optimizer(self) -> None: ...


@dataclass
class TrainingRows:
    """Standardised inputs `x (n, f)` and targets `y (n, o)`, weights `(n,)` of mean 1, and which rows each member holds
    out, `(members, n)`."""

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    held: Tensor | None = None


@dataclass
class Plan:
    batch_size: int
    epochs: int
    seed: int
    patience: int | None = None  # epochs without a better held-out error of any member


@dataclass
class Record:
    """Where training stands after `epoch` epochs."""

    epoch: int = 0
    loss: list[float] = field(default_factory=list)
    held: list[list[float]] = field(default_factory=list)  # of each member, a mean over rows and outputs
    smooth: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    best_epoch: list[int] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict)  # the weights of each member at its best

    def finished(self, plan: Plan) -> bool:
        if self.epoch >= plan.epochs:
            return True
        return plan.patience is not None and bool(self.best) and self.epoch - 1 - max(self.best_epoch) >= plan.patience


def bounds(n: int, batch_size: int) -> list[tuple[int, int]]:
    """Batches of nearly equal size, none much smaller than the others.

    >>> bounds(10, 4)
    [(0, 5), (5, 10)]
    """
    count = max(1, round(n / batch_size))
    edges = [i * n // count for i in range(count + 1)]
    return list(zip(edges, edges[1:]))


def train(
    engine: Engine, rows: TrainingRows, plan: Plan, record: Record, on_epoch: Callable[[Record], None] | None = None
) -> Record:
    """Train from where `record` stands to the end of the plan; the engine is then at each member's best."""
    n, o = rows.y.shape
    batches = bounds(n, plan.batch_size)
    total = len(batches) * plan.epochs
    while not record.finished(plan):
        generator = torch.Generator().manual_seed((plan.seed * 1_000_003 + record.epoch) % 2**63)
        order = torch.randperm(n, generator=generator).to(rows.x.device)
        x, y = rows.x[order], rows.y[order]
        weight, outside = _weights(rows, order)
        loss = torch.zeros(engine.members, dtype=torch.float64, device=rows.x.device)
        missed = torch.zeros_like(loss)
        for k, (low, high) in enumerate(batches):
            factor = cosine((record.epoch * len(batches) + k) / total)
            part = None if weight is None else weight[:, low:high]
            error, before = engine.step(x[low:high], y[low:high], part, factor)
            loss += error
            if outside is not None:
                missed += (before.square() * outside[:, low:high]).sum((1, 2))
        _note(engine, record, loss, missed, weight, outside, n, o)
        if on_epoch is not None:
            on_epoch(record)
    if record.kept:
        for name, tensor in engine.weights().items():
            tensor.copy_(record.kept[name])
    return record


def _weights(rows: TrainingRows, order: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """`(members or 1, n, 1)`: the weights that each member trains with, and those of the rows that it holds out."""
    base = None if rows.weight is None else rows.weight[order][None, :, None]
    if rows.held is None:
        return base, None
    held = rows.held[:, order, None].to(rows.x.dtype)
    return (1 - held, held) if base is None else (base * (1 - held), base * held)


def _note(
    engine: Engine,
    record: Record,
    loss: Tensor,
    missed: Tensor,
    weight: Tensor | None,
    outside: Tensor | None,
    n: int,
    o: int,
) -> None:
    used = float(n) if weight is None else weight.sum((1, 2)).double()
    error = float((loss / (used * o)).mean())
    record.loss.append(error if math.isfinite(error) else math.inf)
    if outside is not None:
        now = (missed / (outside.sum((1, 2)).double() * o)).nan_to_num(nan=math.inf, posinf=math.inf).tolist()
        first = not record.held
        record.held.append(now)
        # an infinite epoch must not stay in the mean for ever
        mixed = [SMOOTH * a + (1 - SMOOTH) * b if math.isfinite(a) else b for a, b in zip(record.smooth or now, now)]
        record.smooth = mixed
        better = [first or new < old for new, old in zip(mixed, record.best or mixed)]
        record.best = [new if b else old for b, new, old in zip(better, mixed, record.best or mixed)]
        record.best_epoch = [record.epoch if b else e for b, e in zip(better, record.best_epoch or [0] * len(better))]
        _keep(engine, record, better)
    record.epoch += 1


def _keep(engine: Engine, record: Record, better: list[bool]) -> None:
    current = engine.weights()
    if not record.kept:
        record.kept = {name: tensor.clone() for name, tensor in current.items()}
        return
    if engine.members == 1:
        if better[0]:
            for name, tensor in current.items():
                record.kept[name].copy_(tensor)
        return
    for member, improved in enumerate(better):
        if improved:
            for name, tensor in current.items():
                record.kept[name][member].copy_(tensor[member])
