"""The paper's classification experiment: CIFAR-100 by a ResNet-18, its last layer learned or solved.

The set-up is the paper's where it says what it is: batch sizes 32 to 4096, SGD with Nesterov momentum 0.9 from a last layer
of zeros, 80/20 training and validation images, settings chosen by the validation accuracy over the last fifth of training.
The rest is the recipe that is usual for this network: weight decay on the backbone and on a learned head, a rate that rises
over a tenth of the steps and falls along a cosine, crops and mirror images, bfloat16. The loss is the mean over the samples
of the loss summed over the classes.

`cifar100_plan` says which runs there are. Each is a JSON file in the folder, so the whole can be done in many pieces and on
several machines; a machine that trains needs neither pandas nor what draws the report. `collect` makes the table of whatever
has run.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ... import __version__, workers
from ...files import claimed
from ...head import ClosedFormLinear
from ..data import cifar
from ..sweeps import grid, results
from ..sweeps.records import Records
from . import cifar100_plan as plan
from .cifar100_model import classifier
from .cifar100_report import SETTINGS, experiment
from .classifier import DeviceImages, OutOfTime

if TYPE_CHECKING:
    import pandas as pd

OPENING = (
    "CIFAR-100: images in 100 classes by a ResNet-18. Every method trains the same network; its last layer is learned\n"
    "(cross-entropy, l2), fixed (etf) or solved at every step (the others). Short runs choose the settings of each\n"
    "method by validation accuracy; the chosen ones are trained longer, with several seeds. Ctrl-C stops the work, and the\n"
    "same command continues it."
)
RUNS, CHECKPOINTS = "runs", "checkpoints"  # folders of the output folder
MARKS = {"search": 2, "final": 10}
DESIGN = ("init", "bias", "algorithm", "smoothing")
USUAL = {"init": "zeros", "bias": True, "algorithm": 1, "smoothing": 0.0}


def name(config: dict[str, Any]) -> str:
    """A configuration in a few words."""
    words = f"{config['optimizer']}, batch size {config['batch_size']}, {config['method']}, rate {config['lr']:g}"
    words += "".join(f", {key} {config[key]:g}" for key in SETTINGS[1:] if config[key] is not None)
    words += "".join(f", {key} {config[key]}" for key in DESIGN if config[key] != USUAL[key])
    return f"{words}, {config['epochs']} epochs, seed {config['seed']}"


# ---- One run -------------------------------------------------------------------------------------

_images = lru_cache(maxsize=1)(cifar.images)  # every seed splits the same ones


@lru_cache(maxsize=3)
def _data(seed: int, limit: int | None, source: Any, device: str) -> DeviceImages:
    return DeviceImages(cifar.load(seed, limit, source=source, read=_images), torch.device(device))


def train(
    config: dict[str, Any], *, device: str, folder: Path | None = None, deadline: float | None = None
) -> dict[str, Any]:
    """Train one configuration, and return what is noted of it: a row for every mark, and where it ran.

    folder: of the checkpoint. deadline: a time of `time.time`; then the run is put aside with an `OutOfTime`."""
    model = classifier(config, _data(config["seed"], config["limit"], config["source"], device))
    key = grid.digest(config)
    checkpoint = None if folder is None else folder / f"{key}.checkpoint"
    left = None if deadline is None else time.perf_counter() + deadline - time.time()
    with torch.backends.cudnn.flags(enabled=True, benchmark=device.startswith("cuda")):  # all batches are of one size
        rows = model.train(
            marks=MARKS[config["stage"]],
            probabilities=config["stage"] == "final",
            checkpoint=checkpoint,
            name=key,
            deadline=left,
        )
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return {
        "rows": rows,
        "rejected": int(model.head.rejected) if isinstance(model.head, ClosedFormLinear) else 0,
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "torch": torch.__version__,
        "closedform": __version__,
    }


def _work(config: dict[str, Any], device: str, folder: Path, deadline: float | None, parent: int) -> dict[str, Any]:
    """What a worker does."""
    workers.end_with(parent)
    torch.set_num_threads(1)
    return train(config, device=device, folder=folder, deadline=deadline)


# ---- All of them ---------------------------------------------------------------------------------


class Work:
    """The runs of some tasks in a folder: which is next, and what has come of them.

    deadline: a time of `time.time` after which nothing is started. A run that would not be finished by then, going by its
    like, is not started either.
    """

    def __init__(
        self,
        out: Path,
        tasks: list[plan.Task],
        scale: plan.Scale,
        device: str,
        deadline: float | None,
        say: Callable[[str], object],
    ):
        self.out, self.tasks, self.scale, self.device, self.deadline = out, tasks, scale, device, deadline
        self.say = say
        self.records = Records(out / RUNS)
        self.started: set[str] = set()
        self.failures: list[tuple[dict[str, Any], str]] = []

    def next(self) -> dict[str, Any] | None:
        """The first run that is wanted, fits into the time left and has not been started."""
        for config in plan.ordered(self.tasks, self.records, self.scale):
            if grid.digest(config) not in self.started and self._fits(config):
                self.started.add(grid.digest(config))
                return config
        return None

    def _fits(self, config: dict[str, Any]) -> bool:
        if self.deadline is None:
            return True
        left = self.deadline - time.time()
        alike = [
            record["rows"][-1]["wall_s"] / record["config"]["epochs"]
            for record in self.records
            if all(
                record["config"][key] == config[key] for key in ("optimizer", "batch_size", "method", "limit", "net")
            )
        ]
        return left > (1.1 * max(alike) * config["epochs"] if alike else 0)

    def take(self, config: dict[str, Any], result: Callable[[], dict[str, Any]]) -> None:
        """Note the result of a run, or why there is none."""
        try:
            noted = result()
        except OutOfTime:
            self.say(f"{name(config)}: put aside")
        except Exception as error:
            self.failures.append((config, traceback.format_exc()))
            self.say(f"{name(config)}: failed ({type(error).__name__}: {error})")
        else:
            self.records.add(config, **noted)
            last = noted["rows"][-1]
            seconds = f"{last['wall_s']:.0f} s"
            self.say(f"{name(config)}: validation {last['validation']:.4f}, test {last['test']:.4f}, {seconds}")

    def here(self) -> None:
        """One after another, in this process."""
        while (config := self.next()) is not None:
            self.take(
                config,
                lambda config=config: train(
                    config, device=self.device, folder=self.out / CHECKPOINTS, deadline=self.deadline
                ),
            )

    def at_once(self, count: int) -> None:
        """In so many processes."""
        pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
        at_work: dict[Future, dict[str, Any]] = {}
        try:
            while True:
                while len(at_work) < count and (config := self.next()) is not None:
                    job = (config, self.device, self.out / CHECKPOINTS, self.deadline, os.getpid())
                    at_work[pool.submit(_work, *job)] = config
                if not at_work:
                    break
                for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                    self.take(at_work.pop(future), future.result)
        finally:
            pool.shutdown(cancel_futures=True)


def run(
    out: Path,
    tasks: list[plan.Task],
    scale: plan.Scale,
    *,
    device: str = "cpu",
    at_once: int = 1,
    seconds: float | None = None,
    say: Callable[[str], object] = print,
) -> Records:
    """Do the runs of the tasks that are not done, most wanted first, and return all that have been done in the folder.

    at_once: how many processes share the device. A small batch does not fill a GPU.
    seconds: how long; what is under way then is put aside, and goes on in a later call on the same machine.
    """
    deadline = None if seconds is None else time.time() + seconds
    for size in {task.cell.batch_size for task in tasks}:
        training = (scale.limit or {"cifar100": cifar.TRAINING, "synthetic": cifar.SYNTHETIC}[scale.source]) * 8 // 10
        if size > training:
            raise ValueError(f"batch size {size} is larger than the training set of {training:,} images")
    with claimed(out):
        work = Work(out, tasks, scale, device, deadline, say)
        if at_once == 1:
            work.here()
        else:
            work.at_once(at_once)
    if work.failures:
        (config, error), *others = work.failures
        raise grid.SweepError(
            f"{1 + len(others)} runs failed, the first {name(config)}: {error.strip().splitlines()[-1]} (the others are "
            "saved, and another run tries only the failed ones)",
            work.failures,
        )
    return work.records


def progress(tasks: list[plan.Task], records: Records, scale: plan.Scale) -> list[str]:
    """A line for each task, most wanted first."""
    return [
        f"{task.cell.optimizer}, batch size {task.cell.batch_size}, {task.cell.method}, {task.study}: "
        f"{plan.state(task, records, scale)}"
        for task in tasks
    ]


# ---- The table -----------------------------------------------------------------------------------


def collect(out: Path) -> pd.DataFrame:
    """Write `results.parquet` and `experiment.json` from the runs that the folder has, and return the table."""
    table = table_of(Records(out / RUNS))
    if table.empty:
        raise ValueError(f"{out / RUNS} holds no runs that are finished")
    results.save(table, out)
    experiment(table).save(out)
    return table


def table_of(records: Records) -> pd.DataFrame:
    """A row for every mark of every run, with the studies that it belongs to."""
    import pandas as pd

    columns = ("rejected", "device", "torch", "closedform")
    frames = []
    for record in records:
        frame = pd.DataFrame(record["rows"]).assign(**record["config"], **{key: record[key] for key in columns})
        frames.append(frame.astype(dict.fromkeys((*SETTINGS, "limit"), "float64")))
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    measured = table.get("test_mean", math.nan)  # short runs alone have no probabilities
    return with_studies(table.assign(confidence=measured))


def with_studies(table: pd.DataFrame) -> pd.DataFrame:
    """A column `study` that says which comparison a row belongs to; a row that serves two stands in both. "methods" are the
    chosen settings, "settings" the short runs."""
    import pandas as pd

    final = table["stage"] == "final"
    usual = pd.concat([table[key] == value for key, value in USUAL.items()], axis=1).all(axis=1)
    chosen = table[final & usual]
    parts = [chosen.assign(study="methods"), table[~final].assign(study="settings")]
    cell = ["optimizer", "batch_size", "method", "seed", *SETTINGS]
    for study, column in (
        ("initialisation", "init"),
        ("bias", "bias"),
        ("algorithms", "algorithm"),
        ("smoothing", "smoothing"),
    ):
        varied = table[final & (table[column] != USUAL[column])]
        if len(varied):
            beside = chosen.merge(varied.groupby(cell, dropna=False).size().reset_index()[cell], on=cell)
            parts.append(pd.concat([beside, varied], ignore_index=True).assign(study=study))
    return pd.concat([part for part in parts if len(part)], ignore_index=True)
