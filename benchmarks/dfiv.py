"""Deep feature instrumental variables against the published code: structural error and time on its own designs.

    python benchmarks/dfiv.py --search --workers 12    # chooses every task's setting, see dfiv_search.py
    python benchmarks/dfiv.py                          # the settings so chosen, five seeds; one thread, on an idle machine
    python benchmarks/dfiv.py --estimator              # `DFIVRegressor` as it is, on the same draws
    python benchmarks/dfiv.py --defaults --workers 12  # fresh batches and the order of solve and step, at the best settings

The published code (full batch, 100 outer iterations, backpropagation through inverses) was run by itself on a machine of
this kind with one thread; its figures stand in dfiv_tasks.py. Ours is Algorithm 3 in minibatches with proximal layers.
Settings come from `dfiv_search-cpu.json`, which draws of other seeds made; the draws that are measured were used for nothing
else. Seconds are for training and re-estimation, of the processor and by the clock; data are made before.

The original f of sprites has a matrix of the published code: with `CLOSEDFORM_DATA` a folder that has it, and else another.
`--search` and `--defaults` keep what is finished in `--runs`; stopped at any time, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dfiv_search
from closedform.estimators import DFIVRegressor
from closedform.iv import DFIV, Layers, Split, evaluation, networks, reestimated
from closedform.paper.data import dsprites, store
from closedform.paper.sweeps import grid
from closedform.solver.lambdas import per_sample
from common import RESULTS, save
from dfiv_tasks import (
    BY_NAME,
    TASKS,
    Problem,
    Setting,
    Task,
    draw,
    iterations,
    layers_of,
    matrix_digest,
    points,
    trained,
    work,
)

SEEDS, QUICK_SEEDS = range(50, 55), range(1)  # a quick look must not show what is measured
DEFAULTS_SEEDS = (40, 41, 42)
DEFAULTS_TASKS = {"sprites, the paper's f, n = 5000": "points", "demand, n = 5000": "outcomes"}
DEFAULTS_SETTINGS = 4  # the best of the search with more than one inner step


# ---- Measuring -----------------------------------------------------------------------------------


def timed(function: Callable, *args: Any, **options: Any) -> tuple[Any, dict[str, float]]:
    load, cpu, wall = os.getloadavg()[0], time.process_time(), time.perf_counter()
    result = function(*args, **options)
    return result, {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall, "load": load}


def fitted(task: Task, setting: Setting, problem: Problem, seed: int) -> tuple[DFIV, Split, Layers]:
    model, split = trained(task, setting, problem, seed)
    return model, split, layers_of(setting, model, problem, split)


def measured(task: Task, chosen_by: str, setting: Setting, quick: bool) -> dict:
    """Five seeds at one setting."""
    (_, test), rows = points(task.design), []
    for seed in QUICK_SEEDS if quick else SEEDS:
        problem = Problem(draw(task.design, task.n, seed))
        (model, split, layers), times = timed(fitted, task, setting, problem, seed)
        again = reestimated(model, problem.data, split, evaluation.BETA_1, per_sample(setting.ridge or 0.1))
        rows.append(
            {
                "seed": seed,
                "mse": problem.error(model, layers, test),
                "online_mse": problem.error(model, evaluation.online(model), test),
                "reestimated_mse": problem.error(model, again, test),
                **times,
            }
        )
        print(f"{task.name}, by {chosen_by}, seed {seed}: {rows[-1]}", flush=True)
    choice = {"chosen_by": chosen_by, "setting": asdict(setting), "iterations": iterations(task, setting)}
    return choice | summarised(task, rows)


def summarised(task: Task, rows: list[dict]) -> dict:
    errors, seconds = [row["mse"] for row in rows], statistics.fmean(row["cpu_s"] for row in rows)
    return {
        "task": task.name,
        "n": task.n,
        "mse": statistics.fmean(errors),
        "mse_std": statistics.stdev(errors) if len(errors) > 1 else None,
        "published_mse": statistics.fmean(task.published),
        "published_seeds": list(task.published),
        "cpu_s": seconds,
        "published_s": task.published_s,
        "limit_s": task.limit_s,
        "share_of_time": None if task.published_s is None else seconds / task.published_s,
        "seeds": rows,
    }


def estimator(task: Task, quick: bool) -> dict:
    """`DFIVRegressor` with its defaults, which chooses by itself; images through a small network on averaged pixels."""
    (_, test), rows = points(task.design), []
    for seed in QUICK_SEEDS if quick else SEEDS:
        sample = draw(task.design, task.n, seed)
        backbone = None
        if not task.demand:
            backbone, _ = networks.pooled(dsprites.SIDE, 4, [128, 64], torch.Generator().manual_seed(seed))
        model = DFIVRegressor(backbone=backbone, random_state=seed)
        _, times = timed(model.fit, sample.X, sample.y, Z=sample.Z, W=sample.O)
        predicted = model.predict(test.X, test.O)
        rows.append(
            {"seed": seed, "mse": float(np.square(predicted - test.f).mean()), "used": model.summary().used, **times}
        )
        print(f"{task.name}, DFIVRegressor, seed {seed}: {rows[-1]}", flush=True)
    return {"chosen_by": "itself"} | summarised(task, rows)


# ---- Defaults ------------------------------------------------------------------------------------


def combination(config: dict[str, Any]) -> list[dict]:
    """A setting with one of the four combinations; as many iterations as fit the same time."""
    torch.set_num_threads(1)
    options = dict(config)
    task, seed = BY_NAME[options.pop("task")], options.pop("seed")
    del options["place"]  # of the setting in the search
    setting = Setting(**options)
    problem = Problem(draw(task.design, task.n, seed))
    before = time.process_time()
    model, split = trained(task, setting, problem, seed)
    layers, seconds = layers_of(setting, model, problem, split), time.process_time() - before
    error = problem.error(model, layers, points(task.design)[1])
    return [{"mse": error, "iterations": iterations(task, setting), "cpu_s": seconds}]


def defaults(known: dict[str, dict], folder: Path, workers: int, quick: bool) -> list[dict]:
    chosen = {name: rule for name, rule in DEFAULTS_TASKS.items() if name in known}
    if quick:
        chosen = dict.fromkeys(known, "outcomes")
    configs = []
    for name, rule in chosen.items():
        settings = [Setting(**row["setting"]) for row in known[name][rule]]
        settings = [setting for setting in settings if setting.T1 > 1][: 1 if quick else DEFAULTS_SETTINGS]
        for place, setting in enumerate(settings):
            for seed in QUICK_SEEDS if quick else DEFAULTS_SEEDS:
                for way in grid.product(fresh=[True, False], order=["solve", "step"]):
                    configs.append({"task": name, "seed": seed, "place": place, **asdict(setting), **way})

    def progress(done: int, total: int, at: dict) -> None:
        print(f"{done}/{total}: {at['task']}", flush=True)

    table = grid.run(combination, configs, folder, jobs=workers, progress=progress, version=str(dfiv_search.PROTOCOL))
    rows = table.to_dict("records")
    combinations = []
    for name in chosen:
        own = [row for row in rows if row["task"] == name]
        for way in grid.product(fresh=[True, False], order=["solve", "step"]):
            runs = [row for row in own if row["fresh"] == way["fresh"] and row["order"] == way["order"]]
            keys = ("place", "seed", "T1", "mse", "iterations", "cpu_s")
            combinations.append({"task": name, **way, "runs": [{key: row[key] for key in keys} for row in runs]})
    return combinations


# ---- The model of the cost -----------------------------------------------------------------------


def calibrate() -> None:
    """Prints `COSTS` of dfiv_tasks.py: least squares, none negative, of relative errors over the sample of the search."""
    from scipy.optimize import nnls

    amounts, seconds, names = [], [], []
    for task in (TASKS[1], TASKS[3], TASKS[4]):
        problem = Problem(draw(task.design, task.n, 0))
        settings = dfiv_search.candidates(dfiv_search.family(task))
        for setting in random.Random(0).sample(settings, 24):
            trained(task, setting, problem, 0, 1)  # what happens once
            count = 10 if task.demand else 5
            best = min(timed(trained, task, setting, problem, 0, count)[1]["cpu_s"] for _ in range(3))
            amounts.append(work(task, setting)[0])
            seconds.append(best / count)
            names.append((task.name, setting))
    A, b = np.array(amounts), np.array(seconds)
    costs, _ = nnls(A / b[:, None], np.ones(len(b)))
    ratios = b / (A @ costs)
    for at in np.argsort(ratios)[[0, 1, -4, -3, -2, -1]]:
        print(f"measured / modelled {ratios[at]:.2f}: {names[at]}")
    print("COSTS = (" + ", ".join(f"{cost:.2g}" for cost in costs) + ")")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--search", action="store_true", help="choose the settings anew: writes dfiv_search-cpu.json")
    parser.add_argument("--estimator", action="store_true", help="DFIVRegressor: writes dfiv_estimator-cpu.json")
    parser.add_argument("--defaults", action="store_true", help="fresh and order: writes dfiv_defaults-cpu.json")
    parser.add_argument("--calibrate", action="store_true", help="print the constants of the model of the cost")
    parser.add_argument("--task", type=int, action="append", help="only these tasks, numbered from 0")
    parser.add_argument("--workers", type=int, default=1, help="processes of --search and --defaults")
    parser.add_argument("--quick", action="store_true", help="all four, the smallest task, one seed, few candidates")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument(
        "--runs", type=Path, help="folder of finished runs, runs/dfiv unless told; with --quick in --out"
    )
    args = parser.parse_args()
    args.device = "cpu"
    torch.set_num_threads(1)
    if args.calibrate:
        calibrate()
        return
    runs = args.runs or (args.out / "runs" if args.quick else Path("runs/dfiv"))
    tasks = [TASKS[k] for k in (args.task or ([4] if args.quick else range(len(TASKS))))]
    asked = [name for name in ("search", "defaults", "estimator") if getattr(args, name) or args.quick]
    if not asked or args.quick:
        asked.append("measure")
    path = args.out / "dfiv_search-cpu.json"
    if "search" in asked:
        if any(task.design == "original" for task in tasks) and store.data_file(dsprites.MATRIX) is None:
            raise SystemExit(f"the original f needs {dsprites.MATRIX} in the folder that CLOSEDFORM_DATA names")
        kept = _known(path, args.quick)
        kept |= {row["task"]: row for row in dfiv_search.search(tasks, runs / "search", args.workers, args.quick)}
        save(
            args, "dfiv_search", "Which settings do validation points or held-out outcomes choose?", list(kept.values())
        )
    known = _known(path if path.is_file() else RESULTS / path.name, False)
    if "defaults" in asked:
        rows = defaults(known, runs / "defaults", args.workers, args.quick)
        save(args, "dfiv_defaults", "Fresh stage-one batches or one, solve or step first, in the same time.", rows)
    if "estimator" in asked:
        warm(tasks[0])
        rows = [estimator(task, args.quick) for task in tasks if "loose" not in task.name]
        save(args, "dfiv_estimator", "Structural error and time of DFIVRegressor as it is.", rows)
    if "measure" in asked:
        absent = [task.name for task in tasks if task.name not in known]
        if absent:
            raise SystemExit(f"{path} has no setting of this protocol for {absent[0]!r}: run with --search first")
        warm(tasks[0])
        rows = []
        for chosen_by in ("points", "outcomes"):
            for task in tasks:
                if chosen_by in known[task.name]:
                    setting = Setting(**known[task.name][chosen_by][0]["setting"])
                    rows.append(measured(task, chosen_by, setting, args.quick))
                    save(args, "dfiv", "Structural error and time against the published code of DFIV.", rows)


def warm(task: Task) -> None:
    """What a first run takes more than others."""
    setting = dfiv_search.candidates(dfiv_search.family(task))[0]
    problem = Problem(draw(task.design, task.n, 0))
    model, split = trained(task, setting, problem, 0, 2)
    layers_of(replace(setting, ridge=1.0), model, problem, split)


def _known(path: Path, anew: bool) -> dict[str, dict]:
    """What the search has chosen, by task; with another matrix of the original f it does not count."""
    if anew or not path.is_file():
        return {}
    rows = json.loads(path.read_text())["rows"]
    return {
        row["task"]: row
        for row in rows
        if row.get("protocol") == dfiv_search.PROTOCOL and row["matrix"] in (None, matrix_digest())
    }


if __name__ == "__main__":
    main()
