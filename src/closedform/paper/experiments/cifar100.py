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
import sys
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data import cifar
from ..sweeps import grid, results
from ..sweeps.records import Records
from ..sweeps.work import RUNS, Work
from . import cifar100_plan as plan
from .batches import DeviceImages
from .cifar100_model import classifier, default_name
from .cifar100_report import SETTINGS, experiment
from .classifier import trained

if TYPE_CHECKING:
    import pandas as pd

OPENING = (
    "CIFAR-100: images in 100 classes by a ResNet-18. Every method trains the same network; its last layer is learned\n"
    "(cross-entropy, l2), fixed (etf) or solved at every step (the others). Short runs choose the settings of each\n"
    "method by validation accuracy; the chosen ones are trained longer, with several seeds. Ctrl-C stops the work, and the\n"
    "same command continues it."
)
MARKS = {"search": 2, "final": 10}
DESIGN = ("init", "bias", "algorithm", "smoothing")
USUAL = {"init": "zeros", "bias": True, "algorithm": 1, "smoothing": 0.0}


def name(config: dict[str, Any]) -> str:
    """A configuration in a few words."""
    words = f"{config['optimizer']}, batch size {config['batch_size']}, {config['method']}, rate {config['lr']:g}"
    words += "".join(f", {key} {config[key]:g}" for key in SETTINGS[1:] if config[key] is not None)
    words += "".join(f", {key} {config[key]}" for key in DESIGN if config[key] != USUAL[key])
    return f"{words}, {config['epochs']} epoch{'s' * (config['epochs'] > 1)}, seed {config['seed']}"


# ---- One run -------------------------------------------------------------------------------------

_images = lru_cache(maxsize=1)(cifar.images)  # every seed splits the same ones


@lru_cache(maxsize=3)
def _data(seed: int, limit: int | None, source: Any, device: str) -> DeviceImages:
    return DeviceImages(cifar.load(seed, limit, source=source, read=_images), torch.device(device))


def train(
    config: dict[str, Any],
    *,
    device: str,
    folder: Path | None = None,
    deadline: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train one configuration, see `classifier.trained`."""
    model = classifier(config, _data(config["seed"], config["limit"], config["source"], device))
    final = config["stage"] == "final"
    return trained(
        model,
        grid.digest(config),
        marks=MARKS[config["stage"]],
        probabilities=final,
        folder=folder,
        deadline=deadline,
        progress=progress,
    )


# ---- All of them ---------------------------------------------------------------------------------


def work(
    out: Path,
    tasks: list[plan.PlannedTask],
    scale: plan.RunScale,
    device: str,
    deadline: float | None,
    say: Callable[[str], object],
) -> Work:
    """The runs of some tasks in a folder."""
    return Work(
        out,
        sys.modules[__name__],
        lambda records: plan.ordered(tasks, records, scale),
        alike=("optimizer", "batch_size", "method", "limit", "net"),
        deadline=deadline,
        say=say,
        device=device,
    )


def run(
    out: Path,
    tasks: list[plan.PlannedTask],
    scale: plan.RunScale,
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
    return work(out, tasks, scale, device, deadline, say).do(at_once)


def progress(tasks: list[plan.PlannedTask], records: Records, scale: plan.RunScale) -> list[str]:
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
    for record in by_one_default(records):
        config = {"rule": ""} | record["config"]  # of old runs
        frame = pd.DataFrame(record["rows"]).assign(**config, **{key: record[key] for key in columns})
        frames.append(frame.astype(dict.fromkeys((*SETTINGS, "limit"), "float64")))
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    measured = table.get("test_mean", math.nan)  # short runs alone have no probabilities
    return with_studies(table.assign(confidence=measured))


def by_one_default(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All runs; but of a cell that several versions of the default rule have run, only those of one version: the one with
    the most runs at the chosen setting, then with the most short runs; of equals the present one."""
    stages: dict[plan.Cell, dict[str | None, list[str]]] = {}
    for record in records:
        config = record["config"]
        stages.setdefault(_cell(config), {}).setdefault(config.get("rule"), []).append(config["stage"])
    shown = {cell: _version(by_rule, default_name(cell.method)) for cell, by_rule in stages.items()}
    return [record for record in records if record["config"].get("rule") == shown[_cell(record["config"])]]


def _cell(config: dict[str, Any]) -> plan.Cell:
    return plan.Cell(config["optimizer"], config["batch_size"], config["method"])


def _version(stages: dict[str | None, list[str]], present: str | None) -> str | None:
    return max(stages, key=lambda rule: (stages[rule].count("final"), len(stages[rule]), rule == present))


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
