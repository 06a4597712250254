"""The epochs of an estimator's training: batches, held-out errors, the best state of each member, and where it stands.

The loop itself is that of `stack.loop`. Every order of rows is a function of the seed and the epoch, so a run that was
stopped goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ..stack import loop
from ..stack.loop import Checkpoint, Trainable
from ..stack.optimizers import cosine
from ..stack.states import prefixed, under

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

    def held_out(self, now: list[float]) -> list[bool]:
        """Note the held-out errors of this epoch; which members were never better."""
        first = not self.held
        self.held.append(now)
        # an infinite epoch must not stay in the mean for ever
        mixed = [SMOOTH * a + (1 - SMOOTH) * b if math.isfinite(a) else b for a, b in zip(self.smooth or now, now)]
        self.smooth = mixed
        better = [first or new < old for new, old in zip(mixed, self.best or mixed)]
        self.best = [new if b else old for b, new, old in zip(better, mixed, self.best or mixed)]
        self.best_epoch = [self.epoch if b else e for b, e in zip(better, self.best_epoch or [0] * len(better))]
        return better


def bounds(n: int, batch_size: int) -> list[tuple[int, int]]:
    """Batches of nearly equal size, none much smaller than the others.

    >>> bounds(10, 4)
    [(0, 5), (5, 10)]
    """
    count = max(1, round(n / batch_size))
    edges = [i * n // count for i in range(count + 1)]
    return list(zip(edges, edges[1:]))


class Epochs(Trainable):
    """The training of an engine: a step is a batch, and after every epoch the held-out errors are noted, the best state of
    each member is kept, and patience may end it.

    after: called after every epoch.
    """

    def __init__(
        self, engine: Engine, rows: TrainingRows, plan: Plan, after: Callable[[Record], None] | None = None
    ) -> None:
        self.engine, self.rows, self.plan, self.after = engine, rows, plan, after
        self.record = Record()
        self.device, self.t = engine.device, 0
        self.batches = bounds(len(rows.y), plan.batch_size)
        self.marks = range(len(self.batches), len(self.batches) * plan.epochs + 1, len(self.batches))
        self.total = len(self.batches) * plan.epochs
        self._loss = torch.zeros(engine.members, dtype=torch.float64, device=rows.x.device)
        self._missed = torch.zeros_like(self._loss)
        self._shuffled = -1  # the epoch whose order the rows are in

    @property
    def over(self) -> bool:
        return self.record.finished(self.plan)

    def _shuffle(self, epoch: int) -> None:
        rows = self.rows
        generator = torch.Generator().manual_seed((self.plan.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(len(rows.y), generator=generator).to(rows.x.device)
        self._x, self._y = rows.x[order], rows.y[order]
        self._weight, self._outside = _weights(rows, order)
        self._shuffled = epoch

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            epoch, k = divmod(self.t, len(self.batches))
            if epoch != self._shuffled:
                self._shuffle(epoch)
            low, high = self.batches[k]
            weight = None if self._weight is None else self._weight[:, low:high]
            factor = cosine(self.t / self.total)
            error, before = self.engine.step(self._x[low:high], self._y[low:high], weight, factor)
            self._loss += error
            if self._outside is not None:
                self._missed += (before.square() * self._outside[:, low:high]).sum((1, 2))
            self.t += 1

    def mark(self, seconds: float) -> None:
        record, (n, o) = self.record, self.rows.y.shape
        used = float(n) if self._weight is None else self._weight.sum((1, 2)).double()
        error = float((self._loss / (used * o)).mean())
        record.loss.append(error if math.isfinite(error) else math.inf)
        if self._outside is not None:
            held = self._missed / (self._outside.sum((1, 2)).double() * o)
            _keep(self.engine, record, record.held_out(held.nan_to_num(nan=math.inf, posinf=math.inf).tolist()))
        record.epoch += 1
        self._loss.zero_()
        self._missed.zero_()
        if self.after is not None:
            self.after(record)

    def state(self) -> dict[str, Tensor]:
        sums = {"loss": self._loss, "missed": self._missed}
        return sums | prefixed("engine", self.engine.state()) | prefixed("kept", self.record.kept)

    def notes(self) -> dict[str, Any]:
        return {"t": self.t, "record": {k: v for k, v in vars(self.record).items() if k != "kept"}}

    def restore(self, state: dict[str, Tensor], notes: dict[str, Any]) -> None:
        record = Record(**notes["record"], kept=under(state, "kept"))
        self.engine.restore(under(state, "engine"))
        self._loss.copy_(state["loss"])
        self._missed.copy_(state["missed"])
        self.t, self.record = notes["t"], record


def train(training: Epochs, checkpoint: Checkpoint | None = None) -> Record:
    """Train to the end; the engine is then at each member's best."""
    loop.train(training, checkpoint=checkpoint)
    record = training.record
    if record.kept:
        for name, tensor in training.engine.weights().items():
            tensor.copy_(record.kept[name])
    return record


def _weights(rows: TrainingRows, order: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """`(members or 1, n, 1)`: the weights that each member trains with, and those of the rows that it holds out."""
    base = None if rows.weight is None else rows.weight[order][None, :, None]
    if rows.held is None:
        return base, None
    held = rows.held[:, order, None].to(rows.x.dtype)
    return (1 - held, held) if base is None else (base * (1 - held), base * held)


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
