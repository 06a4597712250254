"""The value of a policy from logged transitions: `PolicyEvaluator` and its baselines on three tasks with noise.

`run(out, quick)` measures what `policy.json` in the folder does not have yet, and draws two figures from it: the median
relative error of the mean value against the noise, and values with their intervals against the truth.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...extras import require
from ...files import atomic
from ...iv import PolicyEvaluator
from ...iv.policy_training import APART
from ...solver.lambdas import relative
from ...solver.rules import Ridge
from ..data.policy import TASKS, Log, logged, truth
from . import policy_baselines as baselines

DISCOUNT = 0.99
NOISES = (0.0, 0.2, 0.5)
TRANSITIONS, STEPS, LEARNED_STEPS, BATCH = 10_000, 600, 2000, 256
HIDDEN = (64, 64)
EPISODES = {"catch": 20_000, "cartpole": 400, "mountain car": 400}  # of the truth
LEVEL = 0.9
MEMBERS = 3
AVERAGED = f"learned FQE, mean of {MEMBERS}"
OURS = ("iv", "lstd", "fqe")
COLOURS = {
    "iv": "#d62728", "lstd": "#ff7f0e", "fqe": "#2ca02c", "learned FQE": "#1f77b4", "Bellman residual": "#9467bd",
    "LSTD, random features": "#7f7f7f", "iv, ridge": "#e377c2", AVERAGED: "#17becf",
}  # fmt: skip

Estimate = dict[str, float]


def _evaluated(log: Log, seed: int, **settings: Any) -> Estimate:
    settings |= {"members": MEMBERS, "batch_size": BATCH, "hidden_layer_sizes": HIDDEN, "random_state": seed}
    model = PolicyEvaluator(DISCOUNT, **settings)
    model.fit(*log[:6], episode=log.episode)
    low, high = model.interval(log.starts, log.start_actions, level=LEVEL)
    value = float(model.value(log.starts, log.start_actions).mean())
    return {"value": value, "low": low, "high": high, "gradient_steps": model.gradient_steps_}


def _learned(log: Log, seed: int, refresh: int | None, steps: int, members: int = 1) -> Estimate:
    values = [
        baselines.learned(
            log, DISCOUNT, refresh=refresh, steps=steps, batch_size=BATCH, hidden=HIDDEN, seed=seed + k * APART
        )
        for k in range(members)
    ]  # fmt: skip
    return {"value": statistics.fmean(values), "gradient_steps": members * steps}


def methods(quick: bool) -> dict[str, Callable[[Log, int], Estimate]]:
    steps, learned = (200, 600) if quick else (STEPS, LEARNED_STEPS)
    own = {
        method: lambda log, seed, method=method: _evaluated(log, seed, method=method, max_iter=steps)
        for method in OURS
    }  # fmt: skip
    return own | {
        "iv, ridge": lambda log, seed: _evaluated(
            log, seed, method="iv", max_iter=steps, rule=Ridge(relative(0.1))
        ),
        "learned FQE": lambda log, seed: _learned(log, seed, 10, learned),
        "Bellman residual": lambda log, seed: _learned(log, seed, None, learned),
        "LSTD, random features": lambda log, seed: {
            "value": baselines.random_features(log, DISCOUNT, features=32, hidden=HIDDEN, seed=seed),
            "gradient_steps": 0,
        },
        AVERAGED: lambda log, seed: _learned(log, seed, 10, learned, MEMBERS),
    }  # fmt: skip


def measured(quick: bool, seeds: int, done: list[dict], first_seed: int = 0) -> Iterator[dict]:
    """A row for each task, noise, seed and method that is not among those `done`."""
    keys = {(row["task"], row["noise"], row["seed"], row["method"]) for row in done}
    truths = {(row["task"], row["noise"]): (row["truth"], row["truth_error"]) for row in done}
    transitions = 3000 if quick else TRANSITIONS
    for seed in range(first_seed, first_seed + seeds):
        for task in TASKS.values():
            for noise in (0.0, 0.5) if quick else NOISES:
                left = {n: m for n, m in methods(quick).items() if (task.name, noise, seed, n) not in keys}
                if not left:
                    continue
                if (task.name, noise) not in truths:
                    episodes = EPISODES[task.name] // (10 if quick else 1)
                    truths[task.name, noise] = truth(task, noise, DISCOUNT, episodes)
                log = logged(task, noise, transitions, seed)
                for name, method in left.items():
                    before = time.process_time()
                    estimate = method(log, seed)
                    value, error = truths[task.name, noise]
                    yield {
                        "task": task.name, "noise": noise, "seed": seed, "method": name, "truth": value,
                        "truth_error": error, "transitions": transitions, "cpu_s": time.process_time() - before,
                        **estimate,
                    }  # fmt: skip


def on_shared_seeds(rows: list[dict], names: Sequence[str]) -> list[dict]:
    """The rows of these methods, of the seeds that all of them have in every cell."""
    seeds = [
        {row["seed"] for row in rows if (row["task"], row["noise"], row["method"]) == (task, noise, name)}
        for name in names
        for task, noise in {(row["task"], row["noise"]) for row in rows}
    ]  # fmt: skip
    shared = set.intersection(*seeds)
    return [row for row in rows if row["method"] in names and row["seed"] in shared]


def complete(rows: list[dict]) -> list[dict]:
    """The rows of the methods that have as many runs as any."""
    runs = Counter(row["method"] for row in rows)
    return [row for row in rows if runs[row["method"]] == max(runs.values())]


def errors(rows: list[dict]) -> dict[tuple[str, float, str], float]:
    """The median over seeds of the relative error of the mean value, by task, noise and method."""
    cells: dict[tuple[str, float, str], list[float]] = {}
    for row in rows:
        error = abs(row["value"] - row["truth"]) / abs(row["truth"])
        cells.setdefault((row["task"], row["noise"], row["method"]), []).append(error)
    return {cell: statistics.median(values) for cell, values in cells.items()}


def table(rows: list[dict]) -> str:
    """The medians as a table in Markdown."""
    medians = errors(rows)
    names = [name for name in COLOURS if any(cell[2] == name for cell in medians)]
    lines = ["| task | noise | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for task, noise in dict.fromkeys((cell[0], cell[1]) for cell in sorted(medians)):
        cells = [f"{medians[task, noise, name]:.3f}" for name in names]
        lines.append(f"| {task} | {noise:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(out: Path, quick: bool, say: Callable[[str], object], seeds: int | None = None) -> list[Path]:
    """Measure what is missing in the folder, and draw. Stopped at any time, the same call goes on."""
    require("closedform paper policy", "benchmarks", "bsuite")
    path = out / ("policy-quick.json" if quick else "policy.json")
    rows: list[dict] = json.loads(path.read_text())["rows"] if path.is_file() else []
    out.mkdir(parents=True, exist_ok=True)
    for row in measured(quick, seeds or (1 if quick else 10), rows):
        rows.append(row)
        with atomic(path) as file:
            file.write(json.dumps({"rows": rows}, indent=1).encode())
        say(f"{row['task']}, noise {row['noise']:g}, {row['method']}: {row['value']:.3f}, truth {row['truth']:.3f}")
    say(table(rows))
    return [path, *figures(rows, out)]


# ---- Figures -------------------------------------------------------------------------------------


def figures(rows: list[dict], out: Path) -> list[Path]:
    require("the figures of closedform paper policy", "experiments", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    out.mkdir(parents=True, exist_ok=True)
    return [_errors(rows, out / "error"), _intervals(rows, out / "values")]


def _saved(figure: Any, path: Path, top: float = 1.0) -> Path:
    """Drawn below `top`, a share of the height."""
    import matplotlib.pyplot as plt

    figure.tight_layout(rect=(0, 0, 1, top))
    figure.savefig(path.with_suffix(".svg"))
    plt.close(figure)
    return path.with_suffix(".svg")


def _errors(rows: list[dict], path: Path) -> Path:
    import matplotlib.pyplot as plt

    medians = errors(complete(rows))
    figure, axes = plt.subplots(1, len(TASKS), figsize=(11, 3.6))
    for axis, task in zip(axes, TASKS):
        for name, colour in COLOURS.items():
            points = sorted((noise, value) for (t, noise, n), value in medians.items() if (t, n) == (task, name))
            if points:
                own = name in OURS
                style = {"linewidth": 2.2 if own else 1.2, "linestyle": "-" if own else "--", "marker": "o"}
                axis.plot(*zip(*points), color=colour, label=name, markersize=4, **style)
        axis.set(yscale="log", title=task, xlabel="noise of transitions and rewards")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("median relative error of the value")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncol=7, fontsize=8, frameon=False)
    return _saved(figure, path, top=0.93)


def _intervals(rows: list[dict], path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TASKS), figsize=(11, 3.6))
    for axis, task in zip(axes, TASKS):
        cells = sorted({(row["noise"], row["truth"]) for row in rows if row["task"] == task})
        for at, (noise, value) in enumerate(cells):
            axis.plot([at - 0.4, at + 0.4], [value, value], color="black", linewidth=1.5, label=None if at else "truth")
            for k, name in enumerate(OURS[:2]):
                own = [row for row in rows if (row["task"], row["noise"], row["method"]) == (task, noise, name)]
                places = at + (k - 0.5) * 0.4 + np.linspace(-0.18, 0.18, len(own) + 2)[1:-1]
                values = [row["value"] for row in own]
                ends = [[row["value"] - row["low"] for row in own], [row["high"] - row["value"] for row in own]]
                axis.errorbar(
                    places, values, np.maximum(ends, 0.0), fmt="o", markersize=3, linewidth=1.2, color=COLOURS[name],
                    label=None if at else f"{name}, 90 % interval",
                )  # fmt: skip
        axis.set_xticks(range(len(cells)), [f"{noise:g}" for noise, _ in cells])
        axis.set(title=task, xlabel="noise")
        axis.grid(alpha=0.3, axis="y")
    axes[0].set_ylabel("mean value of the starts")
    axes[0].legend(fontsize=8)
    return _saved(figure, path)
