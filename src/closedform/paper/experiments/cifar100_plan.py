"""Which runs of the CIFAR-100 experiment come next, most wanted first.

A cell is a method under an optimizer at a batch size. Every cell has the same two stages. In the first, `RUNS` short runs
with one seed choose its settings by validation accuracy: three rates around a start of its own; then, where the best is the
last of them, one beyond it, else another value of the method's other setting (a longer memory), or a rate in between where
there is none. In the second, the chosen setting is trained longer, with several seeds. Studies then change one thing about
it.

A run of the default rule has the rule's name in its configuration. So a run by an earlier default is another run: it does
not count here, and is done again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ...state import INITS
from ..sweeps.records import Records
from ..sweeps.results import LAST
from .cifar100_model import WEIGHT_DECAY, default_name
from .cifar100_report import METHODS, SETTINGS

BATCH_SIZES = (32, 128, 1024, 4096)
RUNS = 4  # that every cell has for its settings
SMOOTHING = 0.1
LADDERS: dict[str, tuple[float, ...]] = {
    "lam": (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6),
    "beta": (0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4),
    "ratio": (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3),
    "forget": (0.5, 0.9, 0.99, 0.999, 0.9999),
}


class Start(NamedTuple):
    """Where the search of a method begins at the four batch sizes: the rate under SGD, and its other setting."""

    rates: tuple[float, float, float, float]
    axis: str | None = None
    values: tuple[float, float, float, float] = (math.nan, math.nan, math.nan, math.nan)


# from runs of 30 epochs with the same recipe and one seed, at 128 and 1024; the others by analogy
STARTS = {
    "cross-entropy": Start((0.1, 0.4, 1.6, 1.6)),
    "l2": Start((0.01, 0.01, 0.02, 0.02)),
    "etf": Start((0.1, 0.4, 1.6, 1.6)),
    "ridge": Start((0.2, 0.2, 1.6, 3.2), "beta", (1.0, 100.0, 100.0, 1.0)),
    "proximal": Start((0.1, 0.3, 1.0, 1.6), "lam", (1e5, 1e4, 1e3, 1e3)),
    "generalized": Start((0.1, 0.3, 1.0, 1.6), "ratio", (100.0, 10.0, 1.0, 1.0)),
    "closed-form cross-entropy": Start((0.1, 0.1, 0.8, 1.6), "ratio", (10.0, 1.0, 0.1, 0.1)),
    "kalman": Start((0.1, 0.1, 1.0, 1.6), "forget", (0.999, 0.99, 0.99, 0.9)),
    "kalman cross-entropy": Start((0.1, 0.2, 1.6, 1.6), "forget", (0.99, 0.99, 0.9, 0.9)),
    "auto cross-entropy": Start((0.1, 0.2, 1.6, 1.6)),
}
RATES = {"adamw": 1e-3, "muon": 3e-3}  # where the search begins under these


@dataclass(frozen=True)
class Cell:
    optimizer: str
    batch_size: int
    method: str

    @property
    def axis(self) -> str | None:
        """The other setting besides the rate."""
        return STARTS[self.method].axis

    @property
    def start(self) -> Setting:
        start, column = STARTS[self.method], sum(self.batch_size >= size for size in BATCH_SIZES[1:])
        value = start.values[column] if start.axis else None
        return Setting(RATES.get(self.optimizer, start.rates[column]), value)


class Setting(NamedTuple):
    lr: float
    value: float | None  # of the cell's other setting


class PlannedTask(NamedTuple):
    """A cell, and what is asked of it: "methods", its two stages; or a study at the setting that they chose."""

    cell: Cell
    study: str = "methods"
    group: int = 0  # the tasks of a group are equally wanted; a lower one is wanted more


@dataclass(frozen=True)
class RunScale:
    """How much is trained, and on what."""

    epochs: int = 30
    search_epochs: int = 10
    seeds: int = 3
    limit: int | None = None
    source: str = "cifar100"
    net: str = "resnet18"
    precision: str = "bf16"
    warm_up: float = 0.1

    def config(self, cell: Cell, setting: Setting, stage: str, seed: int = 0, **changed: Any) -> dict[str, Any]:
        """The configuration of one run."""
        shared = {name: value for name, value in asdict(self).items() if name not in ("search_epochs", "seeds")}
        shared |= {"epochs": self.search_epochs if stage == "search" else self.epochs, "stage": stage, "seed": seed}
        settings = dict.fromkeys(SETTINGS) | {"lr": setting.lr} | ({cell.axis: setting.value} if cell.axis else {})
        design = {"init": "zeros", "bias": True, "algorithm": 1, "smoothing": 0.0}
        if (rule := default_name(cell.method)) is not None:
            shared["rule"] = rule
        return shared | asdict(cell) | {"weight_decay": WEIGHT_DECAY[cell.optimizer]} | settings | design | changed


# ---- What is wanted ------------------------------------------------------------------------------

_SOLVED = ("kalman cross-entropy", "auto cross-entropy")
_MAIN = ("cross-entropy", *_SOLVED, "proximal")
_MORE = ("closed-form cross-entropy", "kalman")
_REST = ("l2", "ridge", "generalized", "etf")


def _cells(optimizers: Iterable[str], sizes: Iterable[int], methods: Sequence[str]) -> list[Cell]:
    return [Cell(optimizer, size, method) for optimizer in optimizers for size in sizes for method in methods]


def tasks() -> list[PlannedTask]:
    """Everything, most wanted first."""
    cells = [
        _cells(["sgd"], (128, 1024), _MAIN),
        _cells(["sgd"], [4096], _MAIN),
        _cells(["adamw", "muon"], [128], ("cross-entropy", "kalman cross-entropy")),
        _cells(["sgd"], (128, 1024), _MORE),
        _cells(["adamw", "muon"], [128], ("auto cross-entropy", "proximal")),
        _cells(["sgd"], [32], _MAIN),
        _cells(["sgd"], (128, 1024), _REST),
    ]
    studies = {
        "smoothing": _cells(["sgd"], (128, 1024), ("cross-entropy", *_SOLVED)),
        "design": _cells(["sgd"], (128, 1024), ("proximal", "kalman cross-entropy")),
        "sweep": _cells(["sgd"], (128, 1024), ("proximal", "ridge", "kalman cross-entropy")),
    }
    last = _cells(["sgd"], (4096, 32), (*_MORE, *_REST)) + _cells(["adamw", "muon"], [128], (*_MORE, *_REST))
    wanted = [PlannedTask(cell, "methods", group) for group, some in enumerate(cells) for cell in some]
    wanted += [PlannedTask(cell, study, len(cells)) for study, some in studies.items() for cell in some]
    return wanted + [PlannedTask(cell, "methods", len(cells) + 1) for cell in last]


def chosen_tasks(
    optimizers: Sequence[str] | None, batch_sizes: Sequence[int] | None, methods: Sequence[str] | None, studies: bool
) -> list[PlannedTask]:
    """Those of `tasks` with one of these optimizers, batch sizes and methods. Batch sizes that the plan does not have get
    cells of their own."""
    known = {method.key for method in METHODS}
    if unknown := sorted(set(methods or ()) - known):
        raise ValueError(f"there is no method {unknown[0]!r}; expected {', '.join(method.key for method in METHODS)}")
    wanted = tasks()
    new = [size for size in batch_sizes or () if size not in BATCH_SIZES]
    wanted += [PlannedTask(cell) for cell in _cells(optimizers or ["sgd"], new, [method.key for method in METHODS])]
    return [
        task
        for task in wanted
        if (not optimizers or task.cell.optimizer in optimizers)
        and (not batch_sizes or task.cell.batch_size in batch_sizes)
        and (not methods or task.cell.method in methods)
        and (studies or task.study == "methods")
    ]


# ---- What comes next -----------------------------------------------------------------------------


def score(record: dict[str, Any]) -> float:
    """The mean validation accuracy over the last fifth of the training."""
    last = (1 - LAST) * record["rows"][-1]["step"]
    late = [row["validation"] for row in record["rows"] if row["step"] > last]
    return sum(late) / len(late)


def search(cell: Cell, known: Callable[[Setting], float | None]) -> tuple[list[Setting], list[Setting]]:
    """The settings that the search of a cell tries, as far as the known scores say, and those of them without a score."""
    lr, value = cell.start
    tried = [Setting(lr, value), Setting(lr / 2, value), Setting(lr * 2, value)]
    while True:
        scores = {setting: known(setting) for setting in tried}
        missing = [setting for setting, value in scores.items() if value is None]
        if missing or len(tried) == RUNS:
            return tried, missing
        tried.append(_further(cell, {s: value for s, value in scores.items() if value is not None}))


def best(scores: dict[Setting, float]) -> Setting:
    """The setting with the best score; of equals the lowest rate."""
    return max(scores, key=lambda setting: (scores[setting], -setting.lr))


def _further(cell: Cell, scores: dict[Setting, float]) -> Setting:
    """What is tried after three rates."""
    top = best(scores)
    beyond = {min(scores).lr: top.lr / 2, max(scores).lr: top.lr * 2}.get(top.lr)
    if beyond is not None:
        return top._replace(lr=beyond)
    if cell.axis is None:
        return top._replace(lr=float(f"{top.lr * 2**0.5:.3g}"))
    ladder = LADDERS[cell.axis]
    return top._replace(value=ladder[ladder.index(top.value) + 1])  # pyright: ignore[reportArgumentType]


def next_runs(task: PlannedTask, records: Records, scale: RunScale) -> list[dict[str, Any]]:
    """The runs of a task that can be done now; none when it is finished, or waits for the choice of its setting."""
    top, missing = _choice(task.cell, records, scale)
    if top is None:
        return [scale.config(task.cell, setting, "search") for setting in missing] if task.study == "methods" else []
    return [config for config in _at(task, top, scale) if records.get(config) is None]


def ordered(tasks: Iterable[PlannedTask], records: Records, scale: RunScale) -> list[dict[str, Any]]:
    """The runs of all tasks that can be done now, most wanted first: in a group the short ones, then a seed of every chosen
    setting, then another, so that whatever has run can be compared."""
    wanted = [
        ((task.group, config["stage"] == "final", config["seed"]), config)
        for task in tasks
        for config in next_runs(task, records, scale)
    ]
    return [config for _, config in sorted(wanted, key=lambda pair: pair[0])]


def _choice(cell: Cell, records: Records, scale: RunScale) -> tuple[Setting | None, list[Setting]]:
    """The setting that the search of a cell has chosen; before it has, None and what is to be tried next."""

    def known(setting: Setting) -> float | None:
        record = records.get(scale.config(cell, setting, "search"))
        return None if record is None else score(record)

    tried, missing = search(cell, known)
    scores = {setting: value for setting in tried if (value := known(setting)) is not None}
    return (None if missing else best(scores)), missing


def _at(task: PlannedTask, top: Setting, scale: RunScale) -> list[dict[str, Any]]:
    """The runs of a task at the chosen setting."""
    cell, seeds = task.cell, range(scale.seeds)
    if task.study == "methods":
        return [scale.config(cell, top, "final", seed) for seed in seeds]
    if task.study == "smoothing":
        return [scale.config(cell, top, "final", seed, smoothing=SMOOTHING) for seed in seeds]
    if task.study == "design":
        changes: list[dict[str, Any]] = [{"bias": False}, {"algorithm": 2}]
        changes += [{"init": init} for init in INITS if init != "zeros"]
        return [scale.config(cell, top, "final", **change) for change in changes]
    if task.study == "sweep":
        assert cell.axis is not None
        return [scale.config(cell, Setting(top.lr, value), "search") for value in LADDERS[cell.axis]]
    raise ValueError(f"there is no study {task.study!r}")


def state(task: PlannedTask, records: Records, scale: RunScale) -> str:
    """How far a task is, in a few words."""
    top, missing = _choice(task.cell, records, scale)
    if top is None:
        runs = f", {len(missing)} short run{'s' * (len(missing) != 1)} next" if task.study == "methods" else ""
        return f"settings not chosen{runs}"
    wanted, left = _at(task, top, scale), next_runs(task, records, scale)
    return f"{len(wanted) - len(left)} of {len(wanted)} runs" if left else "finished"
