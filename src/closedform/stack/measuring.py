"""A stack trained to its end: measured along the way, and rebuilt without what has diverged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from . import loop
from .loop import Checkpoint, Trainable
from .models import Stack
from .states import prefixed, under

DROP = 1 / 8  # of the models must have diverged before the stack is rebuilt without them


class EvaluationSet(NamedTuple):
    """Inputs `(S, N, f)` and targets `(S, N, o)` of every seed, which models are measured on."""

    X: Tensor
    Y: Tensor


@dataclass
class History:
    """What was measured: for every mark the step, the seconds since the start, and errors `(S, K)` by name. `alive` are the
    candidates that the stack has at the end, in the order in which it counts them."""

    steps: list[int] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    errors: dict[str, list[Tensor]] = field(default_factory=dict)
    alive: list[int] = field(default_factory=list)

    def add(self, step: int, wall_s: float, errors: dict[str, Tensor]) -> None:
        self.steps.append(step)
        self.wall_s.append(wall_s)
        for name, values in errors.items():
            unknown = torch.full_like(values, float("nan"))
            self.errors.setdefault(name, [unknown] * (len(self.steps) - 1)).append(values)


def marks(total: int, count: int = 50) -> list[int]:
    """The steps at which to measure: `count` equal shares of the training, and the first share halved four times."""
    shares = [2.0**-k for k in range(4, 0, -1)] + list(range(1, count + 1))
    return sorted({max(1, round(total * share / count)) for share in shares})


class Measurable(Protocol):
    """Models side by side, as `train` asks for them."""

    device: torch.device
    t: int
    total: int

    @property
    def candidates(self) -> Sequence[object]: ...
    def advance(self, steps: int) -> None: ...
    def average_loss(self, steps: int) -> Tensor: ...
    def keep(self, candidates: Sequence[int]) -> None: ...
    def state(self) -> dict[str, Tensor]: ...
    def restore(self, state: dict[str, Tensor]) -> None: ...


Models = TypeVar("Models", bound=Measurable)


def on(data: dict[str, EvaluationSet]) -> Callable[[Stack], dict[str, Tensor]]:
    """What measures a stack's errors on these data sets."""
    there: dict[str, EvaluationSet] = {}

    def errors(stack: Stack) -> dict[str, Tensor]:
        if not there:  # moved once
            there.update({key: EvaluationSet(X.to(stack.device), Y.to(stack.device)) for key, (X, Y) in data.items()})
        return {key: stack.evaluate(*part) for key, part in there.items()}

    return errors


def train(
    stack: Models,
    measure: Callable[[Models], dict[str, Tensor]],
    *,
    at: Sequence[int] | None = None,
    at_end: Callable[[Models], dict[str, Tensor]] | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int, int], None] | None = None,
    agreed: Callable[[bool], bool] | None = None,
    every_step: bool = False,
) -> History:
    """Train `stack`, which has been fed, for `stack.total` steps.

    measure: tells the stack's errors `(S, K)` by name, see `on`; the error on the training batches is called "train".
    at: the steps to measure at; `marks(stack.total)` where not given.
    at_end: tells more errors, after the last step alone; they are NaN at the other marks.
    The rest is as in `loop.train`.
    """
    training = MeasuredTraining(stack, measure, marks(stack.total) if at is None else sorted(at), at_end)
    loop.train(training, checkpoint=checkpoint, progress=progress, agreed=agreed, every_step=every_step)
    training.history.alive = [] if training.diverged else training.alive
    return training.history


class MeasuredTraining(Trainable, Generic[Models]):
    """A stack with what was measured of it."""

    def __init__(
        self,
        stack: Models,
        measure: Callable[[Models], dict[str, Tensor]],
        at: Sequence[int],
        at_end: Callable[[Models], dict[str, Tensor]] | None,
    ):
        self.stack, self.measure, self.at_end = stack, measure, at_end
        self.device, self.t, self.total = stack.device, stack.t, stack.total
        self.marks = [*at, self.total]
        self.history = History()
        self.alive = list(range(len(stack.candidates)))
        self.count, self.diverged = len(self.alive), False

    @property
    def over(self) -> bool:
        return self.t >= self.total or self.diverged

    def advance(self, steps: int) -> None:
        self.stack.advance(steps)
        self.t = self.stack.t

    def mark(self, seconds: float) -> None:
        history = self.history
        errors = self.measure(self.stack)
        sound = _sound(list(errors.values()))
        errors["train"] = self.stack.average_loss(self.t - (history.steps[-1] if history.steps else 0))
        if self.at_end is not None and (self.t == self.total or not sound):
            errors |= self.at_end(self.stack)
        history.add(self.t, seconds, {name: self._spread(values) for name, values in errors.items()})
        self._drop(sound)

    def _spread(self, values: Tensor) -> Tensor:
        """Errors of the models still there as errors of all; the others are infinite."""
        full = torch.full((values.shape[0], self.count), float("inf"), dtype=values.dtype)
        full[:, self.alive] = values
        return full

    def _drop(self, sound: list[int]) -> None:
        """Rebuild the stack without the candidates that have diverged for every seed, once there are enough of them."""
        if sound and len(self.alive) - len(sound) < max(1, DROP * len(self.alive)):
            return
        if not sound:
            self.diverged = True
            return
        self.stack.keep(sound)
        self.alive = [self.alive[k] for k in sound]

    def state(self) -> dict[str, Tensor]:
        errors = {name: torch.stack(values) for name, values in self.history.errors.items()}
        return prefixed("stack", self.stack.state()) | prefixed("errors", errors)

    def notes(self) -> dict[str, Any]:
        history = self.history
        return {
            "alive": self.alive,
            "diverged": self.diverged,
            "steps": history.steps,
            "wall_s": history.wall_s,
        }

    def restore(self, state: dict[str, Tensor], notes: dict[str, Any]) -> None:
        if len(notes["alive"]) < self.count:
            self.stack.keep(notes["alive"])
        self.stack.restore(under(state, "stack"))
        self.t, self.alive, self.diverged = self.stack.t, notes["alive"], notes["diverged"]
        errors = {name: list(values.cpu()) for name, values in under(state, "errors").items()}
        self.history = History(notes["steps"], notes["wall_s"], errors)


def _sound(errors: list[Tensor]) -> list[int]:
    """The candidates that have a finite error of every kind, for some seed."""
    finite = torch.stack([torch.isfinite(values).any(0) for values in errors]).all(0)
    return finite.nonzero()[:, 0].tolist()
