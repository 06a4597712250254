"""The rows of an instrumental-variable problem, their two disjoint halves, and the iterations over batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..stack import loop
from ..stack.loop import Checkpoint, Trainable
from ..stack.modules import stackable
from ..stack.optimizers import cosine
from .algorithm import DFIV


@dataclass(frozen=True)
class Data:
    """Treatments `X (n, p)`, instruments `Z (n, m)`, outcomes `y (n, o)` and covariates `O (n, q)` or None, as the networks
    take them. Where covariates are instruments for themselves, Z holds them too."""

    X: Tensor
    Z: Tensor
    y: Tensor
    O: Tensor | None = None  # noqa: E741

    def __post_init__(self) -> None:
        counts = {name: len(value) for name, value in vars(self).items() if value is not None}
        if len(set(counts.values())) != 1:
            raise ValueError(f"every part needs the same number of rows, got {counts}")
        if self.y.ndim != 2:
            raise ValueError(f"y must be (n, outputs), got shape {tuple(self.y.shape)}")

    def rows(self, index: Tensor) -> Data:
        """Some of the rows."""
        return Data(self.X[index], self.Z[index], self.y[index], None if self.O is None else self.O[index])


@dataclass(frozen=True)
class Split:
    """Rows of stage one and of stage two. They must not overlap: a stage-one layer that has seen a row's treatment predicts
    its confounded part too, and stage two becomes ordinary least squares."""

    first: Tensor
    second: Tensor

    def __post_init__(self) -> None:
        if not len(self.first) or not len(self.second):
            raise ValueError(f"both stages need rows, got {len(self.first)} and {len(self.second)}")
        for name, rows in (("first", self.first), ("second", self.second)):
            if int(rows.min()) < 0:
                raise ValueError(
                    f"{name} has the row {int(rows.min())}; expected rows from 0 on, counted from the front"
                )
        shared = set(self.first.tolist()) & set(self.second.tolist())
        if shared:
            raise ValueError(
                f"stage one and stage two share {len(shared)} rows (such as row {min(shared)}); expected disjoint rows, "
                "since with shared ones the estimate turns into ordinary least squares"
            )

    @staticmethod
    def halves(n: int, seed: int = 0, fraction: float = 0.5) -> Split:
        """A random split with `fraction` of the rows in stage one."""
        count = round(n * fraction)
        if not 0 < count < n:
            raise ValueError(f"{n} rows cannot be split with the fraction {fraction}")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        return Split(order[:count], order[count:])


def batches(rows: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Batches of the rows without end, no row twice an epoch; each order is a function of the seed and the epoch. What is
    left over at the end of an epoch, less than a batch, sits that epoch out."""
    size = min(size, len(rows))
    count = len(rows) // size
    epoch = 0
    while True:
        if count == 1 and size == len(rows):
            yield rows
            continue
        generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
        order = rows[torch.randperm(len(rows), generator=generator)]
        for k in range(count):
            yield order[k * size : (k + 1) * size]
        epoch += 1


def train(
    model: DFIV,
    data: Data,
    split: Split,
    *,
    iterations: int,
    batch_size: int,
    lr: float,
    fresh: bool = False,
    decay: bool = True,
    seed: int = 0,
    after: Callable[[int], object] | None = None,
    checkpoint: Checkpoint | None = None,
) -> DFIV:
    """Iterations of Algorithm 3. Returns the model.

    batch_size: of both stages.
    fresh: whether each of the T1 inner steps has a stage-one batch of its own; the paper draws one for all, which in the
        same time was better on sprites and as good on demand (docs/iv.md).
    decay: whether the learning rate falls along half a cosine.
    after: called with the number of iterations taken.
    checkpoint: see `stack.loop`; a run that was stopped ends with the same bits.
    """
    training = TwoStages(model, data, [split], iterations, batch_size, lr, fresh=fresh, decay=decay, seeds=[seed])
    training.after = after
    loop.train(training, checkpoint=checkpoint)
    return model


def train_side_by_side(
    models: Sequence[DFIV],
    data: Data,
    splits: Sequence[Split],
    *,
    seeds: Sequence[int],
    iterations: int,
    batch_size: int,
    lr: float,
    fresh: bool = False,
    after: Callable[[int], object] | None = None,
) -> None:
    """`train` of several models of one shape, each with a split and a seed of its own, as one: equal to rounding."""
    stack = DFIV.beside(models)
    training = TwoStages(stack, data, splits, iterations, batch_size, lr, fresh=fresh, decay=True, seeds=seeds)
    training.after = after
    loop.train(training)
    stack.take_out(models)


def can_stand_side_by_side(models: Sequence[DFIV], splits: Sequence[Split], batch_size: int) -> bool:
    """Whether networks and batches allow it."""
    sizes = {(min(batch_size, len(split.first)), min(batch_size, len(split.second))) for split in splits}
    return len(sizes) == 1 and all(stackable(net) for model in models for net in model.modules())


class HasRate(Protocol):
    """What `Iterations` asks of a model."""

    def set_lr(self, lr: float) -> None: ...


Learner = TypeVar("Learner", bound=HasRate)


class Iterations(Trainable, Generic[Learner]):
    """A training by iterations, each on the next batches, at a rate that falls along half a cosine where `decay`.

    draw: takes the next batches, and returns the step on them.
    """

    def __init__(
        self, model: Learner, draw: Callable[[], Callable[[], None]], iterations: int, lr: float, decay: bool = True
    ):
        self.model, self.draw, self.total, self.lr, self.decay = model, draw, iterations, lr, decay
        self.device, self.t = torch.device("cpu"), 0
        self.after: Callable[[int], object] | None = None

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            step = self.draw()
            self.model.set_lr(self.lr * (cosine(self.t / self.total) if self.decay else 1.0))
            step()
            self.t += 1
            if self.after is not None:
                self.after(self.t)


class TwoStages(Iterations[DFIV]):
    """Those of Algorithm 3, with a batch of each stage; of models side by side each has a split and a seed of its own."""

    def __init__(
        self,
        model: DFIV,
        data: Data,
        splits: Sequence[Split],
        iterations: int,
        batch_size: int,
        lr: float,
        *,
        fresh: bool,
        decay: bool,
        seeds: Sequence[int],
    ):
        if iterations < 1 or batch_size < 1:
            raise ValueError(f"expected iterations and batch_size from 1 on, got {iterations} and {batch_size}")
        last = max(int(rows.max()) for split in splits for rows in (split.first, split.second))
        if last >= len(data.y):
            raise ValueError(
                f"the split has row {last}, and the data has {len(data.y)} rows: expected a split of these"
            )
        super().__init__(model, self._draw, iterations, lr, decay)
        self.data = data
        self._first = [batches(split.first, batch_size, 2 * seed) for split, seed in zip(splits, seeds)]
        self._second = [batches(split.second, batch_size, 2 * seed + 1) for split, seed in zip(splits, seeds)]
        whole = all(batch_size >= len(split.first) for split in splits)
        # of a stage that is one batch no rows are copied at every step
        rows = together([split.first for split in splits]) if whole else None
        self._whole = None if rows is None else (data.X[rows], data.Z[rows])
        self._draws = model.T1 if fresh and not whole else 1

    def _draw(self) -> Callable[[], None]:
        data = self.data
        parts = [together([next(drawn) for drawn in self._first]) for _ in range(self._draws)]
        rows = together([next(drawn) for drawn in self._second])

        def step() -> None:
            one = [self._whole] if self._whole is not None else [(data.X[part], data.Z[part]) for part in parts]
            self.model.step(one, (data.Z[rows], data.y[rows], None if data.O is None else data.O[rows]))

        return step

    def state(self) -> dict[str, Tensor]:
        return self.model.state()

    def restore(self, state: dict[str, Tensor], notes: dict[str, Any]) -> None:
        self.model.restore(state)
        self.t = notes["t"]
        for _ in range(self.t):
            self._draw()  # the batches that were taken


def together(rows: Sequence[Tensor]) -> Tensor:
    """The rows of one model, `(n,)`, or of several, `(M, n)`."""
    return rows[0] if len(rows) == 1 else torch.stack(list(rows))
