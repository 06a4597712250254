"""Deep feature instrumental variables against the published code: structural error and time on its own designs.

    python benchmarks/dfiv.py --search       # chooses every task's setting, on other draws and by outcomes alone
    python benchmarks/dfiv.py                # the settings so chosen, five seeds

The published code (full batch, 100 outer iterations, backpropagation through inverses) was run by itself on a machine of
this kind with one thread; its figures stand in `PUBLISHED`. Ours is Algorithm 3 in minibatches with proximal layers.

A setting is chosen on draws of other seeds. For sprites there are 100 points of the grid to choose by, as in the paper and
apart from the 488 that are reported. For demand there are none, so there it is the error of the *outcome given the
instruments* on 5,000 more rows: settings whose loss is within one standard error of the least (of the difference, row by
row) count as equal; of these a treatment that enters linearly goes first, then the strongest ridge, then the least loss. For
sprites the setting that this rule takes is measured too. Among what is chosen is which layers predict: those of training
(online), or re-estimated ones with one of several ridges. The largest task takes the setting of the one with half its rows.

What was not chosen so: networks, learning rates, T1, batch size and the range of the candidates were settled in trials that
looked at the structural error on draws of seeds 0 to 2, and a first rule (the least loss of outcomes) had been seen to fail
on sprites there. So the five test seeds are others; but the points of the test grid are the same for all seeds.

Seconds are the processor's, one thread, for training and re-estimation; data are made before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from closedform.data import demand, dsprites
from closedform.data.iv import Points, Sample
from closedform.iv import DFIV, Data, Rules, Split, evaluation, networks, reestimated, train
from closedform.lambdas import per_sample, relative
from common import RESULTS, save

SEEDS, SEARCH_SEEDS = range(10, 15), {True: (100, 101, 102), False: (100, 101)}  # of demand, and of sprites
VALIDATION = 5000
LONGER = 3  # halves of the iterations, with twice the rows
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of stage two, a sample, after standardisation


@dataclass(frozen=True)
class Task:
    name: str
    design: str  # demand, or the structural function of sprites
    n: int
    published: tuple[float, ...]  # test errors of the published code, a seed each
    published_s: float | None  # seconds of its 100 iterations
    like: int | None = None  # the task whose setting it takes, with more iterations


PUBLISHED = (
    Task("demand, n = 1000", "demand", 1000, (1689.0, 899.0, 924.0), None),
    Task("demand, n = 5000", "demand", 5000, (160.0, 196.0, 305.0), 16.0),
    Task("sprites, original f, n = 5000", "original", 5000, (1.96, 1.75, 3.02), 116.0),
    Task("sprites, the paper's f, n = 5000", "paper", 5000, (8.8, 6.9, 9.0), 116.0),
    Task("sprites, the paper's f, n = 10000", "paper", 10000, (6.4,), 390.0, like=3),
)


@dataclass(frozen=True)
class Setting:
    iterations: int
    batch: int
    lr: float
    lam_1: (
        float  # these three relative to the mean square of the features in a batch, see `closedform.lambdas.relative`
    )
    lam_2: float
    lam_12: float
    weight_decay: float
    T1: int
    covariate_steps: int
    treatment: str  # "linear" or "deep" features of the treatment, where it is a number
    ridge: float | None = None  # None: the layers of training


def candidates(task: Task, quick: bool) -> list[Setting]:
    """What the search compares: all of one task take about the same time."""
    if task.design == "demand":
        iterations = {1000: 40, 5000: 80}[task.n]
        base = Setting(iterations, 256, 1e-2, 10.0, 1.0, 1.0, 0.0, 2, 4, "linear")
        grid = [
            replace(base, lam_2=lam_2, treatment=treatment, weight_decay=decay)
            for lam_2 in (0.1, 1.0)
            for treatment in ("linear", "deep")
            for decay in (0.0, 1.0)
        ]
    else:
        base = Setting(200, 256, 1e-3, 10.0, 10.0, 1e-4, 0.1, 5, 0, "deep")
        grid = [replace(base, lam_1=lam, lam_2=lam, lam_12=lam_12) for lam in (10.0, 100.0) for lam_12 in (1e-4, 1e-2)]
    return [replace(s, iterations=8) for s in grid[:2]] if quick else grid


def draw(design: str, n: int, seed: int) -> Sample:
    return demand.sample(n, seed) if design == "demand" else dsprites.sample(n, seed, design)


def points(design: str) -> tuple[Points | None, Points]:
    """Points to choose by, where there are any, and points to report."""
    if design == "demand":
        return None, demand.grid()
    return dsprites.validation_and_test(dsprites.grid(design))


class Problem:
    """A sample standardised by its own moments, and other rows by the same."""

    def __init__(self, sample: Sample):
        self.mean_y, self.std_y = sample.y.mean(), sample.y.std()
        image = sample.X.shape[1] > 100
        self.X = (0.0, 1.0) if image else (sample.X.mean(0), sample.X.std(0))
        self.Z = sample.Z.mean(0), sample.Z.std(0)
        self.O = None if sample.O is None else (sample.O.mean(0), sample.O.std(0))
        self.data = self.scaled(sample)

    @staticmethod
    def _tensor(values: Any, moments: Any) -> torch.Tensor:
        return torch.as_tensor((values - moments[0]) / moments[1], dtype=torch.float32)

    def scaled(self, sample: Sample) -> Data:
        y = self._tensor(sample.y, (self.mean_y, self.std_y))[:, None]
        O = None if self.O is None else self._tensor(sample.O, self.O)  # noqa: E741
        return Data(self._tensor(sample.X, self.X), self._tensor(sample.Z, self.Z), y, O)

    def error(self, model: DFIV, layers: evaluation.Layers, at: Points) -> float:
        """Mean squared error of the structural function."""
        x = self._tensor(at.X, self.X)
        o = None if self.O is None else self._tensor(at.O, self.O)
        found = evaluation.predict(model, layers, x, o)
        return float(((found[:, 0].numpy() * self.std_y + self.mean_y - at.f) ** 2).mean())


def model_of(task: Task, setting: Setting, seed: int) -> DFIV:
    g = torch.Generator().manual_seed(seed)
    xi = None
    if task.design == "demand":
        linear = setting.treatment == "linear"
        psi = (torch.nn.Identity(), 1) if linear else networks.beside([1, 32, 4], g)
        phi, xi = networks.beside([3, 64, 64, 32], g), networks.beside([2, 64, 64, 64], g)
    else:
        psi = networks.pooled(dsprites.SIDE, 4, [128, 64], g)
        phi = networks.beside([3, 128, 64], g)
    parts = [psi, phi] + ([] if xi is None else [xi])
    return DFIV(
        *(net for net, _ in parts),
        widths=[width for _, width in parts],
        rules=Rules.proximal(relative(setting.lam_1), relative(setting.lam_2), relative(setting.lam_12)),
        lr=setting.lr,
        weight_decay=setting.weight_decay,
        T1=setting.T1,
        covariate_steps=setting.covariate_steps,
        order="solve",
        generator=g,
    )


def trained(task: Task, setting: Setting, problem: Problem, seed: int) -> tuple[DFIV, Split]:
    split = Split.halves(task.n, seed)
    model = model_of(task, setting, seed)
    train(
        model,
        problem.data,
        split,
        iterations=setting.iterations,
        batch_size=setting.batch,
        lr=setting.lr,
        seed=seed,
    )
    return model, split


def layers_of(setting: Setting, model: DFIV, problem: Problem, split: Split) -> evaluation.Layers:
    if setting.ridge is None:
        return evaluation.online(model)
    return reestimated(model, problem.data, split, evaluation.BETA_1, per_sample(setting.ridge))


def search(task: Task, quick: bool) -> list[dict]:
    """Every candidate with its validation losses; in the order of the outcome rule."""
    squares: dict[Setting, list[torch.Tensor]] = {}
    errors: dict[Setting, list[float]] = {}
    validation, _ = points(task.design)
    for seed in SEARCH_SEEDS[task.design == "demand"][: 1 if quick else None]:
        problem = Problem(draw(task.design, task.n, seed))
        held = problem.scaled(draw(task.design, VALIDATION, seed + 10_000))
        for setting in candidates(task, quick):
            model, split = trained(task, setting, problem, seed)
            for ridge in (None, *RIDGES):
                chosen = replace(setting, ridge=ridge)
                layers = layers_of(chosen, model, problem, split)
                squares.setdefault(chosen, []).append(evaluation.outcome_losses(model, layers, held) * problem.std_y**2)
                if validation is not None:
                    errors.setdefault(chosen, []).append(problem.error(model, layers, validation))
            print(f"{task.name}, seed {seed}: {setting}", flush=True)
    losses = {setting: torch.cat(parts) for setting, parts in squares.items()}
    rows = [
        {
            "setting": asdict(setting),
            "validation": float(loss.mean()),
            "as_good": good,
            "points": statistics.fmean(errors[setting]) if validation is not None else None,
        }
        for (setting, loss), good in zip(losses.items(), evaluation.as_good(list(losses.values())))
    ]
    return sorted(rows, key=_rank)


def _rank(row: dict) -> tuple:
    setting = row["setting"]
    if not row["as_good"]:
        return 1, 0, 0, row["validation"]
    return 0, setting["treatment"] != "linear", -(setting["ridge"] or 0.0), row["validation"]


def measured(task: Task, chosen_by: str, setting: Setting, quick: bool) -> dict:
    """Five seeds at one setting."""
    (_, test), rows = points(task.design), []
    for seed in SEEDS[: 1 if quick else None]:
        problem = Problem(draw(task.design, task.n, seed))
        before, wall = time.process_time(), time.perf_counter()
        model, split = trained(task, setting, problem, seed)
        layers = layers_of(setting, model, problem, split)
        cpu, wall = time.process_time() - before, time.perf_counter() - wall
        again = reestimated(model, problem.data, split, evaluation.BETA_1, per_sample(setting.ridge or 0.1))
        rows.append(
            {
                "seed": seed,
                "mse": problem.error(model, layers, test),
                "online_mse": problem.error(model, evaluation.online(model), test),
                "reestimated_mse": problem.error(model, again, test),
                "cpu_s": cpu,
                "wall_s": wall,
            }
        )
        print(f"{task.name}, seed {seed}: {rows[-1]}", flush=True)
    errors, seconds = [row["mse"] for row in rows], statistics.fmean(row["cpu_s"] for row in rows)
    return {
        "task": task.name,
        "n": task.n,
        "chosen_by": chosen_by,
        "setting": asdict(setting),
        "mse": statistics.fmean(errors),
        "mse_std": statistics.stdev(errors) if len(errors) > 1 else None,
        "published_mse": statistics.fmean(task.published),
        "published_seeds": list(task.published),
        "cpu_s": seconds,
        "published_s": task.published_s,
        "share_of_time": None if task.published_s is None else seconds / task.published_s,
        "seeds": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--search", action="store_true", help="choose the settings anew, and write dfiv_search-cpu.json"
    )
    parser.add_argument("--task", type=int, action="append", help="only these tasks, numbered from 0")
    parser.add_argument("--quick", action="store_true", help="one seed, few candidates, few iterations")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON files")
    args = parser.parse_args()
    args.device = "cpu"
    torch.set_num_threads(1)
    tasks = [PUBLISHED[k] for k in (args.task or ([1] if args.quick else range(len(PUBLISHED))))]
    path = args.out / "dfiv_search-cpu.json"
    known = {} if args.quick or not path.is_file() else {r["task"]: r for r in json.loads(path.read_text())["rows"]}
    question = "Which setting predicts the outcome given the instruments best, on other draws?"
    for task in tasks:
        if (args.search or args.quick) and task.like is None:
            found = search(task, args.quick)
            known[task.name] = {"task": task.name, "tried": len(found), "outcomes": found[0], "rows": found[:20]}
            if found[0]["points"] is not None:
                known[task.name]["points"] = min(found, key=lambda row: row["points"])
            save(args, "dfiv_search", question, list(known.values()))
    if args.search and not args.quick:
        return
    source = {task: task if task.like is None else PUBLISHED[task.like] for task in tasks}
    absent = [task.name for task in source.values() if task.name not in known]
    if absent:
        raise SystemExit(f"{path} has no setting for {absent[0]!r}: run with --search first")
    trained(
        tasks[0], replace(candidates(tasks[0], True)[0], iterations=1), Problem(draw(tasks[0].design, tasks[0].n, 0)), 0
    )  # imports
    rows = []
    for chosen_by in ("points", "outcomes"):
        for task in tasks:
            found = known[source[task].name]
            if chosen_by not in found or (chosen_by == "outcomes" and task.like is not None):
                continue
            setting = Setting(**found[chosen_by]["setting"])
            if task.like is not None:
                setting = replace(setting, iterations=LONGER * setting.iterations // 2)
            rows.append(measured(task, chosen_by, setting, args.quick))
            save(args, "dfiv", "Structural error and time against the published code of DFIV.", rows)


if __name__ == "__main__":
    main()
