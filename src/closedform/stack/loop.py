"""Train a stack to its end: measure along the way, drop what has diverged, survive being stopped.

A checkpoint is written now and then, by atomic rename, and read without unpickling anything but tensors. A run that was
killed goes on from its last checkpoint, one stopped by Ctrl-C from where it stood; both end with the bits of a run that was
never stopped, since the order of the data depends on the seed and the epoch alone.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ..files import CheckpointError, load_checkpoint, save_checkpoint
from .models import Stack

DROP = 1 / 8  # of the models must have diverged before the stack is rebuilt without them
_CHUNK_S = 0.25  # how long a Ctrl-C or the progress bar waits for the next look


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


class Trainable(Protocol):
    """What `train` asks of a stack."""

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


Kind = TypeVar("Kind", bound=Trainable)


def on(data: dict[str, EvaluationSet]) -> Callable[[Stack], dict[str, Tensor]]:
    """What measures a stack's errors on these data sets."""
    there: dict[str, EvaluationSet] = {}

    def errors(stack: Stack) -> dict[str, Tensor]:
        if not there:  # moved once
            there.update({key: EvaluationSet(X.to(stack.device), Y.to(stack.device)) for key, (X, Y) in data.items()})
        return {key: stack.evaluate(*part) for key, part in there.items()}

    return errors


def train(
    stack: Kind,
    measure: Callable[[Kind], dict[str, Tensor]],
    *,
    at: Sequence[int] | None = None,
    at_end: Callable[[Kind], dict[str, Tensor]] | None = None,
    checkpoint: Path | None = None,
    every_s: float = 60.0,
    name: str = "",
    progress: Callable[[int, int], None] | None = None,
    agreed: Callable[[bool], bool] | None = None,
    writes: bool = True,
) -> History:
    """Train `stack`, which has been fed, for `stack.total` steps.

    measure: tells the stack's errors `(S, K)` by name, see `on`; the error on the training batches is called "train".
    at: the steps to measure at; `marks(stack.total)` where not given.
    at_end: tells more errors, after the last step alone; they are NaN at the other marks.
    checkpoint: the file that holds the state in between, for the caller to remove once the result is safe. `name` is stored
        in it, and a checkpoint of another name is refused.
    progress: called with the step and the total a few times a second.
    agreed: where several processes train one stack, tells whether any of them is to stop, at every step. One of them
        `writes` the checkpoint, and all go on from it.
    """
    at = marks(stack.total) if at is None else sorted(at)
    history = History()
    alive = list(range(len(stack.candidates)))
    K, spent = len(alive), 0.0
    if checkpoint is not None and checkpoint.is_file():
        history, alive, spent = _resume(checkpoint, stack, name)
    start, saved, chunk = time.perf_counter() - spent, time.perf_counter(), 1
    last = history.steps[-1] if history.steps else 0

    def save() -> None:
        if checkpoint is not None and writes:
            _save(checkpoint, stack, name, history, alive, time.perf_counter() - start)

    with Stop() as stop:
        while stack.t < stack.total:
            mark = next(step for step in [*at, stack.total] if step > stack.t)
            before, steps = time.perf_counter(), min(chunk, mark - stack.t)
            stack.advance(steps)
            if stack.device.type == "cuda":
                torch.cuda.synchronize(stack.device)
            if agreed is None:
                chunk = max(1, min(4 * chunk, int(steps * _CHUNK_S / max(time.perf_counter() - before, 1e-6))))
            if stack.t == mark:
                errors = measure(stack)
                sound = _sound(list(errors.values()))
                errors["train"] = stack.average_loss(stack.t - last)
                if at_end is not None and (stack.t == stack.total or not sound):
                    errors |= at_end(stack)
                last = stack.t
                history.add(last, time.perf_counter() - start, {k: _spread(v, alive, K) for k, v in errors.items()})
                alive = _drop(stack, alive, sound)
            if progress is not None:
                progress(stack.t, stack.total)
            if not alive:
                break
            if stop.asked if agreed is None else agreed(stop.asked):
                save()
                raise KeyboardInterrupt
            if time.perf_counter() - saved > every_s:
                save()
                saved = time.perf_counter()
    history.alive = alive
    return history


def _spread(values: Tensor, alive: list[int], K: int) -> Tensor:
    """Errors of the models still there as errors of all; the others are infinite."""
    full = torch.full((values.shape[0], K), float("inf"), dtype=values.dtype)
    full[:, alive] = values
    return full


def _sound(errors: list[Tensor]) -> list[int]:
    """The candidates that have a finite error of every kind, for some seed."""
    finite = torch.stack([torch.isfinite(values).any(0) for values in errors]).all(0)
    return finite.nonzero()[:, 0].tolist()


def _drop(stack: Trainable, alive: list[int], kept: list[int]) -> list[int]:
    """Rebuild the stack without the candidates that have diverged for every seed, once there are enough of them."""
    if kept and len(alive) - len(kept) < max(1, DROP * len(alive)):
        return alive
    if kept:
        stack.keep(kept)
    return [alive[k] for k in kept]


def _save(path: Path, stack: Trainable, name: str, history: History, alive: list[int], wall_s: float) -> None:
    body = {
        "alive": alive,
        "wall_s": wall_s,
        "steps": history.steps,
        "walls": history.wall_s,
        "errors": {key: torch.stack(values) for key, values in history.errors.items()},
        "stack": stack.state(),
    }
    save_checkpoint(path, name, body)


def _resume(path: Path, stack: Trainable, name: str) -> tuple[History, list[int], float]:
    body = load_checkpoint(path, name, stack.device)
    try:
        if len(body["alive"]) < len(stack.candidates):
            stack.keep(body["alive"])
        stack.restore(body["stack"])
        errors = {key: list(values.cpu()) for key, values in body["errors"].items()}
        return History(body["steps"], body["walls"], errors), body["alive"], body["wall_s"]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as bad:
        raise CheckpointError(path, str(bad)) from bad


class Stop:
    """Turns the first Ctrl-C (or polite kill) into a question asked between steps; the second one interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Stop:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._before[kind] = signal.signal(kind, self._ask)
        return self

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *exc: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)
