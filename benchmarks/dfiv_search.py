"""How the settings of the DFIV benchmark are chosen: a random sample of one wide space, without a look at the test points.

A configuration trains on 85 % of the rows of a task, and the rest of the same n rows are held out. What may choose:

* points: the mean error on 100 points of the grid of sprites, as in the paper and apart from the 488 that are reported;
* outcomes: the error of the outcome given the instruments on the held-out rows, by the rule of `DFIVRegressor`: settings
  whose loss is within one standard error of the least (of the difference, row by row) count as equal; of these a treatment
  that enters linearly goes first, then the strongest ridge, then the least loss.

Every configuration runs on one draw; the best `SURVIVORS` by either rule run on two more draws (demand: on three folds of
each), and the choice is made among them, over all draws. What predicts is chosen along with the rest: the layers of
training, or re-estimated ones with one of several ridges. No structural error is computed here but on the 100 points.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from closedform.iv import DFIV, evaluation
from closedform.paper.data.iv import IVSample
from closedform.paper.sweeps import grid
from dfiv_tasks import (
    BY_NAME,
    HELD_OUT,
    Problem,
    Setting,
    Task,
    draw,
    iterations,
    layers_of,
    matrix_digest,
    points,
    trained,
)

PROTOCOL = 1
SAMPLE_SEED, SEEDS, FOLDS = 20, (200, 201, 202), 3  # folds of demand, whose runs are short
COUNT = {"sprites": 40, "demand": 120}
SURVIVORS = {"sprites": 6, "demand": 10}  # by either rule
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of stage two, a sample, after standardisation

SPACE: dict[str, tuple] = {
    "batch": (64, 128, 256, 512),
    "lr": (3e-4, 1e-3, 3e-3, 1e-2),
    "lam_1": (0.1, 1.0, 10.0, 100.0, 1000.0),
    "lam_2": (0.1, 1.0, 10.0, 100.0, 1000.0),
    "lam_12": (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    "weight_decay": (0.0, 0.1, 1.0),
    "T1": (1, 2, 5, 10, 20),
    "fresh": (True, False),
    "order": ("solve", "step"),
}
OWN: dict[str, dict[str, tuple]] = {
    "sprites": {
        "psi": ("64-32", "128-32", "128-64", "256-64", "128-128-64"),
        "phi": ("64-32", "128-64", "64-64-32", "128-128-64"),
        "pool": (2, 4),
    },
    "demand": {
        "psi": ("linear", "linear", "linear", "16-2", "32-4", "32-32-8"),  # half of them linear
        "phi": ("64-32", "64-64-32", "128-64"),
        "xi": ("64-16", "64-32", "64-64-32", "64-64-48"),
        "covariate_steps": (0, 1, 4, 8),
    },
}


def family(task: Task) -> str:
    return "demand" if task.demand else "sprites"


def candidates(family: str) -> list[Setting]:
    """The sample; `random` gives the same on every machine."""
    chance, settings = random.Random(SAMPLE_SEED), []
    while len(settings) < COUNT[family]:
        drawn = {name: values[int(chance.random() * len(values))] for name, values in {**SPACE, **OWN[family]}.items()}
        setting = Setting(**drawn)
        if setting.T1 == 1:
            setting = replace(setting, fresh=True)  # the same
        if setting not in settings:
            settings.append(setting)
    return settings


# ---- One run -------------------------------------------------------------------------------------


def held_out(sample: IVSample, seed: int, fold: int) -> tuple[IVSample, IVSample]:
    """The rows of a draw without those of a fold, and these."""
    n = len(sample.y)
    count = round(HELD_OUT * n)
    order = np.random.default_rng([seed, 1]).permutation(n)
    inside = np.zeros(n, dtype=bool)
    inside[order[fold * count : (fold + 1) * count]] = True

    def rows(which: np.ndarray) -> IVSample:
        O = None if sample.O is None else sample.O[which]  # noqa: E741
        return IVSample(sample.X[which], sample.Z[which], sample.y[which], O, sample.f[which])

    return rows(~inside), rows(inside)


def one(config: dict[str, Any]) -> list[dict]:
    """A configuration on a draw and a fold: a row for each of the layers that may predict."""
    torch.set_num_threads(1)
    options = dict(config)
    task, seed, fold = BY_NAME[options.pop("task")], options.pop("seed"), options.pop("fold")
    setting = Setting(**options)
    rest, held = held_out(draw(task.design, task.n, seed), seed, fold)
    problem = Problem(rest)
    held = problem.scaled(held)
    before = time.process_time()
    model, split = trained(task, setting, problem, seed + 1000 * fold)
    seconds = time.process_time() - before
    validation, _ = points(task.design)
    finite = _finite(model, problem)
    rows = []
    for ridge in (0.0, *RIDGES):
        row = {"beta": ridge, "cpu_s": seconds, "losses": np.full(len(held.y), np.inf, dtype=np.float32)}
        row["points"] = None if validation is None else float("inf")
        if finite:
            layers = layers_of(replace(setting, ridge=ridge), model, problem, split)
            losses = evaluation.outcome_losses(model, layers, held) * problem.std_y**2
            row["losses"] = losses.nan_to_num(nan=torch.inf).numpy().astype(np.float32)
            if validation is not None:
                row["points"] = float(np.nan_to_num(problem.error(model, layers, validation), nan=np.inf))
        rows.append(row)
    return rows


def _finite(model: DFIV, problem: Problem) -> bool:
    """Whether training did not diverge."""
    data = problem.data
    parts = [(net, part) for net, part in zip(model.modules(), (data.X, data.Z, data.O)) if part is not None]
    squares = [evaluation.outputs(net, part).square().mean() for net, part in parts]
    squares += [layer.W.square().mean() for layer in (model.first, model.second)]
    return all(bool(torch.isfinite(value)) for value in squares)


# ---- The search ----------------------------------------------------------------------------------


def config(task: Task, setting: Setting, seed: int, fold: int) -> dict[str, Any]:
    options = {"task": task.name, "seed": seed, "fold": fold, **asdict(setting)}
    del options["ridge"]
    return options


def later(task: Task, quick: bool) -> list[tuple[int, int]]:
    """Draws and folds of the second round."""
    if quick:
        return [(SEEDS[1], 0)]
    folds = range(FOLDS if task.demand else 1)
    return [(seed, fold) for seed in SEEDS for fold in folds if (seed, fold) != (SEEDS[0], 0)]


def search(tasks: Iterable[Task], folder: Path, workers: int, quick: bool = False) -> list[dict]:
    """What was chosen for every task, and the survivors it was chosen from."""
    tasks, version = list(tasks), f"{PROTOCOL} {matrix_digest()}"
    settings = {task: candidates(family(task))[: 3 if quick else None] for task in tasks}
    started = time.perf_counter()

    def runs(configs: list[dict[str, Any]]) -> Any:
        def progress(done: int, total: int, at: dict) -> None:
            print(f"{done}/{total} after {time.perf_counter() - started:.0f} s: {at['task']}", flush=True)

        return grid.run(one, configs, folder, jobs=workers, progress=progress, version=version)

    first = [config(task, setting, SEEDS[0], 0) for task in tasks for setting in settings[task]]
    survivors = {task: _best(task, settings[task], _results(runs(first), task)) for task in tasks}
    second = [config(task, s, *at) for task in tasks for at in later(task, quick) for s in survivors[task]]
    runs(second)
    table = grid.finished([*first, *second], folder, version=version)
    return [_chosen(task, len(settings[task]), survivors[task], _results(table, task), quick) for task in tasks]


Results = dict[Setting, list[dict]]  # of a setting with its ridge, a run each


def _results(table: Any, task: Task) -> Results:
    by_setting: Results = {}
    names = [name for name in Setting.__dataclass_fields__ if name != "ridge"]
    for row in table[table["task"] == task.name].to_dict("records"):
        own = {name: type(getattr(_EXAMPLE, name))(row[name]) for name in names}
        setting = Setting(**own, ridge=float(row["beta"]))
        by_setting.setdefault(setting, []).append(row)
    return by_setting


_EXAMPLE = Setting(64, 1e-3, 1.0, 1.0, 1.0, 0.0, 1, True, "solve", "linear", "64-32")


def _loss(rows: list[dict]) -> float:
    return statistics.fmean(float(np.mean(np.asarray(row["losses"], dtype=np.float64))) for row in rows)


def _points(rows: list[dict]) -> float:
    return statistics.fmean(float(row["points"]) for row in rows)


def _best(task: Task, settings: list[Setting], results: Results) -> list[Setting]:
    """The best by either rule, in the order of the sample."""
    kept: set[Setting] = set()
    for rule in (_loss,) if task.demand else (_loss, _points):
        by = {s: min(rule(results[replace(s, ridge=ridge)]) for ridge in (0.0, *RIDGES)) for s in settings}
        kept |= set(sorted(settings, key=by.__getitem__)[: SURVIVORS[family(task)]])
    return [setting for setting in settings if setting in kept]


def _chosen(task: Task, tried: int, survivors: list[Setting], results: Results, quick: bool) -> dict:
    runs = 1 + len(later(task, quick))
    among = {s: rows for s, rows in results.items() if replace(s, ridge=0.0) in survivors}
    assert all(len(rows) == runs for rows in among.values())
    losses = [
        torch.from_numpy(np.concatenate([np.asarray(row["losses"], dtype=np.float64) for row in rows]))
        for rows in among.values()
    ]
    entries = [
        {
            "setting": asdict(setting),
            "iterations": iterations(task, setting),
            "outcomes": _loss(rows),
            "as_good": good,
            "points": None if task.demand else _points(rows),
        }
        for (setting, rows), good in zip(among.items(), evaluation.as_good(losses))
    ]
    by = {"outcomes": sorted(entries, key=_rank)}
    if not task.demand:
        by["points"] = sorted(entries, key=lambda row: row["points"])
    return {
        "task": task.name,
        "protocol": PROTOCOL,
        "matrix": matrix_digest() if task.design == "original" else None,
        "tried": tried,
        "survivors": len(survivors),
        "runs_of_a_survivor": runs,
        "held_out_rows": len(losses[0]),
        "as_good": sum(row["as_good"] for row in entries),
        **{rule: _distinct(rows) for rule, rows in by.items()},
    }


def _distinct(rows: list[dict]) -> list[dict]:
    """The best of every survivor, in order: the first is what is chosen."""
    best: dict[Setting, dict] = {}
    for row in rows:
        best.setdefault(replace(Setting(**row["setting"]), ridge=0.0), row)
    return list(best.values())


def _rank(row: dict) -> tuple:
    setting = row["setting"]
    if not row["as_good"]:
        return 1, 0, 0, row["outcomes"]
    return 0, setting["psi"] != "linear", -setting["ridge"], row["outcomes"]
