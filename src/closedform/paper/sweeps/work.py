"""The runs of an experiment in a folder, a file each: which is next, and what has come of them.

Several processes may share a device, each with a run of its own. Under torchrun it is the other way round: all processes
work on one run, and the first of them says which and notes what comes of it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from ... import distributed, workers
from ...files import claimed
from ..pace import Pace
from .grid import SweepError, digest
from .records import Records

RUNS, CHECKPOINTS = "runs", "checkpoints"  # folders of the output folder
Config = dict[str, Any]


class OutOfTime(KeyboardInterrupt):
    """The deadline has come; the checkpoint is written. Like Ctrl-C it is no failure of the run."""

    code = 3  # what the command exits with


class Work:
    """The runs of an experiment in a folder.

    experiment: a module with `name(config)`, and `train(config, folder=, deadline=, progress=, **options)` that returns what
        is noted, and calls `progress(step, steps)` meanwhile.
    wanted: the runs that can be done now, by what has been done, most wanted first.
    alike: the settings that runs which take equally long for an epoch have in common.
    deadline: a time of `time.time` after which nothing is started. A run that would not be finished by then is not started
        either, going by the runs like it that this object has done from their beginning: other times, others shared the
        device.
    """

    def __init__(
        self,
        out: Path,
        experiment: ModuleType,
        wanted: Callable[[Records], list[Config]],
        *,
        alike: Sequence[str],
        deadline: float | None = None,
        say: Callable[[str], object] = print,
        **options: Any,
    ):
        self.out, self.experiment, self.wanted, self.alike = out, experiment, wanted, alike
        self.deadline, self.say, self.options = deadline, say, options
        self.records = Records(out / RUNS)
        self.started: dict[str, float] = {}  # when, by the digest
        self.failures: list[tuple[Config, str]] = []
        self._pace, self._epochs = Pace(say, "The runs that are known so far"), 0.0  # done since the start
        self._seconds: dict[tuple, float] = {}  # the most that an epoch of such a run has taken

    def next(self) -> Config | None:
        """The first run that is wanted, fits into the time left and has not been started."""
        for config in self.wanted(self.records):
            if digest(config) not in self.started and self._fits(config):
                self.started[digest(config)] = time.time()
                return config
        return None

    def _fits(self, config: Config) -> bool:
        if self.deadline is None:
            return True
        return self.deadline - time.time() > 1.1 * self._seconds.get(self._kind(config), 0.0) * config["epochs"]

    def _kind(self, config: Config) -> tuple:
        return tuple(config[key] for key in self.alike)

    def _tell(self, more: float = 0.0) -> None:
        """Say how long all this takes, when it can be told; `more` epochs of a run are done."""
        wanted = sum(config["epochs"] for config in self.wanted(self.records))
        self._pace.at(self._epochs + more, self._epochs + wanted)

    def take(self, config: Config, result: Callable[[], dict[str, Any]]) -> None:
        """Note the result of a run, or why there is none."""
        name = self.experiment.name(config)
        try:
            noted = result()
        except OutOfTime:
            self.say(f"{name}: put aside")
        except Exception as error:
            if distributed.active(None):
                raise  # the other processes wait for this one until torchrun ends them
            self.failures.append((config, traceback.format_exc()))
            self.say(f"{name}: failed ({type(error).__name__}: {error})")
        else:
            if distributed.place()[0] == 0:
                self.records.add(config, **noted)
            last = noted["rows"][-1]
            parts = [f"{part} {last[part]:.4f}" for part in ("validation", "test") if part in last]
            self.say(f"{name}: {', '.join(parts)}, {last['wall_s']:.0f} s")
            if last["wall_s"] <= time.time() - self.started[digest(config)]:  # else it has been put aside before
                kind, seconds = self._kind(config), last["wall_s"] / config["epochs"]
                self._seconds[kind] = max(seconds, self._seconds.get(kind, 0.0))
            self._epochs += config["epochs"]
            self._tell()

    def here(self) -> None:
        """One after another, in this process (and in the others of torchrun)."""
        while (config := _of_the_first(self.next)) is not None:
            shared = {"folder": self.out / CHECKPOINTS, "deadline": self.deadline, **self.options}
            progress = lambda t, total, epochs=config["epochs"]: self._tell(epochs * t / total)  # noqa: E731
            self.take(
                config,
                lambda config=config, shared=shared, progress=progress: self.experiment.train(
                    config, progress=progress, **shared
                ),
            )

    def at_once(self, count: int) -> None:
        """In so many processes."""
        pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
        at_work: dict[Future, Config] = {}
        shared = {"folder": self.out / CHECKPOINTS, "deadline": self.deadline, **self.options}
        try:
            while True:
                self._tell()
                while len(at_work) < count and (config := self.next()) is not None:
                    at_work[pool.submit(_work, self.experiment.__name__, config, shared, os.getpid())] = config
                if not at_work:
                    break
                for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                    self.take(at_work.pop(future), future.result)
        finally:
            pool.shutdown(cancel_futures=True)

    def do(self, at_once: int = 1) -> Records:
        """Everything that is wanted and fits; returns all that has been done in the folder."""
        if at_once > 1 and distributed.active(None):
            raise ValueError(f"several processes work on one run under torchrun: expected --at-once 1, got {at_once}")
        with claimed(self.out) if distributed.place()[0] == 0 else nullcontext():
            if at_once == 1:
                self.here()
            else:
                self.at_once(at_once)
        if self.failures:
            (config, error), *others = self.failures
            name, reason = self.experiment.name(config), error.strip().splitlines()[-1]
            raise SweepError(
                f"{1 + len(others)} runs failed, the first {name}: {reason} (the others are saved, and another run tries "
                "only the failed ones)",
                self.failures,
            )
        return self.records


def _of_the_first(value: Callable[[], Config | None]) -> Config | None:
    """What the first process of torchrun says, in all of them."""
    if not distributed.active(None):
        return value()
    said = [value() if distributed.place()[0] == 0 else None]
    dist.broadcast_object_list(said)
    return said[0]


def _work(experiment: str, config: Config, shared: dict[str, Any], parent: int) -> dict[str, Any]:
    """What a worker does."""
    workers.end_with(parent)
    torch.set_num_threads(1)
    try:
        return import_module(experiment).train(config, **shared)
    finally:
        gc.collect()  # a model of the last run must not stay on the device beside the next one
        torch.cuda.empty_cache()
