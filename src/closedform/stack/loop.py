"""The loop of every training: steps, marks on the way, checkpoints, and an answer to Ctrl-C.

A training is a class that meets `Trainable`: a stack that is measured along the way (`stack.measuring`), the epochs of a
tabular estimator, the iterations of Algorithm 3, the steps of an equation's solver. It knows what a step is; `train` knows
when to look up. A run that was killed goes on from its last checkpoint, one stopped by Ctrl-C from where it stood; both end
with the bits of a run that was never stopped, since the order of the data depends on the seed and the step alone.
"""

from __future__ import annotations

import signal
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import archive

_CHUNK_S = 0.25  # how long a Ctrl-C or the progress bar waits for the next look
_FORMAT = 1


class Trainable(Protocol):
    """A training, step by step."""

    device: torch.device
    t: int  # steps taken
    total: int
    marks: Sequence[int] = ()  # the steps after which `mark` is called, from small to large

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.t >= self.total

    def advance(self, steps: int) -> None:
        """Take so many steps; never past a mark or the end."""
        ...

    def mark(self, seconds: float) -> None:
        """Measure, keep the best, drop what has diverged; `seconds` have passed since the start."""

    def state(self) -> dict[str, Tensor]:
        """Everything that steps and marks change, as tensors."""
        raise TypeError(f"{type(self).__name__} keeps no checkpoints")

    def notes(self) -> dict[str, Any]:
        """The same, of numbers and texts, as JSON has them."""
        return {"t": self.t}

    def restore(self, state: dict[str, Tensor], notes: dict[str, Any]) -> None:
        """The inverse of `state` and `notes`."""
        raise TypeError(f"{type(self).__name__} keeps no checkpoints")


def train(
    training: Trainable,
    *,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int, int], None] | None = None,
    agreed: Callable[[bool], bool] | None = None,
    every_step: bool = False,
) -> float:
    """Train to the end, and return the seconds that it took, those of the runs before a checkpoint among them.

    checkpoint: where the state is kept in between, for the caller to remove once the result is safe.
    progress: called with the step and the total a few times a second.
    agreed: whether to stop here; its argument is whether this process was asked to. Where several processes train one model
        they have to agree, and look at `every_step`.
    """
    before = 0.0 if checkpoint is None else checkpoint.resume(training)
    start, saved, chunk = time.perf_counter() - before, time.perf_counter(), 1
    marks = [*training.marks, training.total]
    with Stop(active=checkpoint is not None or agreed is not None) as stop:
        while not training.over:
            mark = marks[bisect_right(marks, training.t)]
            began, steps = time.perf_counter(), min(chunk, mark - training.t)
            training.advance(steps)
            if training.device.type == "cuda":
                torch.cuda.synchronize(training.device)
            if not every_step:
                chunk = max(1, min(4 * chunk, int(steps * _CHUNK_S / max(time.perf_counter() - began, 1e-6))))
            if training.t == mark:
                training.mark(time.perf_counter() - start)
            if progress is not None:
                progress(training.t, training.total)
            if stop.asked if agreed is None else agreed(stop.asked):
                if checkpoint is not None:
                    checkpoint.save(training, time.perf_counter() - start)
                raise KeyboardInterrupt
            if checkpoint is not None and time.perf_counter() - saved > checkpoint.every_s:
                checkpoint.save(training, time.perf_counter() - start)
                saved = time.perf_counter()
    return time.perf_counter() - start


class CheckpointError(ValueError):
    """A checkpoint from which a run cannot go on."""

    def __init__(self, path: Path, reason: object):
        super().__init__(f"the checkpoint {path} cannot be continued ({reason}); remove it to start afresh")


@dataclass
class Checkpoint:
    """The file that holds a training between two runs: an archive, written whole every `every_s` seconds.

    name: stored in the file; a checkpoint of another name is refused, as is a damaged one. With `or_anew` the training then
        starts anew instead.
    writes: whether this process writes it; all go on from it.
    """

    path: Path
    name: str = ""
    every_s: float = 60.0
    writes: bool = True
    or_anew: bool = False
    seconds: float = 0.0  # of the runs before this one, once `resume` has read them

    def save(self, training: Trainable, seconds: float) -> None:
        if self.writes:
            header = {"format": _FORMAT, "training": self.name, "seconds": seconds, "notes": training.notes()}
            archive.write(self.path, header, training.state())

    def resume(self, training: Trainable) -> float:
        """Bring the training to where the file has it, and return the seconds that it took; 0 where there is no file."""
        if not self.path.is_file():
            return 0.0
        try:
            header, tensors = self._read(training.device)
        except ValueError as bad:
            if self.or_anew:
                return 0.0
            raise CheckpointError(self.path, bad) from bad
        try:
            training.restore(tensors, header["notes"])
            self.seconds = float(header["seconds"])
        except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as bad:
            raise CheckpointError(self.path, bad) from bad
        return self.seconds

    def _read(self, device: torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
        header, tensors = archive.read(self.path, device)
        if header.get("format") != _FORMAT or "training" not in header:
            raise ValueError("it is not a checkpoint of this version of closedform")
        if header["training"] != self.name:
            raise ValueError(f"it belongs to {header['training']!r}, not to {self.name!r}")
        return header, tensors


class Stop:
    """Turns the first Ctrl-C (or polite kill) into a question asked between steps; the second one interrupts at once."""

    def __init__(self, active: bool = True) -> None:
        self.asked, self.active = False, active
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        if self.active and threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(kind) is not None:  # None: not set from Python, and could not be set back
                    self._before[kind] = signal.signal(kind, self._ask)
        return self

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *exc: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)
