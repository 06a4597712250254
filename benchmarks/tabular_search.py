"""What was tried for the defaults of the estimators: one change at a time, on validation rows only.

    CLOSEDFORM_DATA=... python benchmarks/tabular_search.py [--variants kalman ...] [--problems yacht ...] [--quick]

The problems are the training rows of split 0 of the nine UCI tables (at most 500 of them), 500 molecules of QM9 with 12
targets, and five made ones: Friedman's first and second, steps, a plane with much noise, and a table with gaps, whose few
rows without an important value dominate the error. A fifth of the rows is for validation; no test row is looked at. A row
of the result is the validation RMSE of each problem, and the seconds of the processor for all of them.

What is no parameter of the estimator (the optimizer, the schedule, the memories of the levels) is exchanged in its modules.
Stopped at any time, the same command goes on after the last problem that was finished.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from sklearn.datasets import make_friedman1, make_friedman2

from closedform.estimators import ClosedFormRegressor
from closedform.paper.data import qm9, tabular
from closedform.tabular import base, loop, networks, settings
from common import RESULTS, Kept

ROWS = 500


class Momentum(networks.Adam):
    """Gradient descent with momentum, in the place of Adam."""

    def step(self, rate: float) -> None:
        self.first.mul_(0.9).add_(self.gradient)
        self.parameter.add_(self.first, alpha=-rate)


def step_down(done: float) -> float:
    """A tenth after half of training, a hundredth after three quarters."""
    return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01


def levels(*rows: float) -> list:
    """These memories of the last layer in the place of the four of the default, with the same decays."""
    decays = [decay for decay, _ in settings.LEVELS]
    return [(settings, "LEVELS", tuple(zip(decays, (rows * 4)[:4])))]


def decays(*values: float) -> list:
    rows = [rows for _, rows in settings.LEVELS]
    return [(settings, "LEVELS", tuple(zip((values * 4)[:4], rows)))]


# what is given to the estimator, and what is exchanged: a module, a name in it, and another value
VARIANTS: dict[str, tuple[dict[str, Any], list]] = {
    "default": ({}, []),
    "rule: learned last layer": ({"rule": "learned"}, []),
    "rule: kalman": ({"rule": "kalman"}, []),
    "lambda 0.1 for all": ({"lam": 0.1}, []),
    "lambda 10 for all": ({"lam": 10.0}, []),
    "lambda 1000 for all": ({"lam": 1000.0}, []),
    "memory: 1 row in every level": ({}, levels(1.0)),
    "memory: 16 rows in every level": ({}, levels(16.0)),
    "memory: 1, 4, 16, 64 rows": ({}, levels(1.0, 4.0, 16.0, 64.0)),
    "memory: does not follow the rate": ({}, [(networks, "FLOOR", 1.0)]),
    "optimizer: momentum, rate 0.1": ({"learning_rate": 0.1}, [(networks, "Adam", Momentum)]),
    "optimizer: momentum, rate 0.3": ({"learning_rate": 0.3}, [(networks, "Adam", Momentum)]),
    "optimizer: Adam's betas 0.9, 0.999": ({}, [(networks, "BETAS", (0.9, 0.999))]),
    "rate 0.003": ({"learning_rate": 0.003}, []),
    "rate 0.03": ({"learning_rate": 0.03}, []),
    "schedule: constant": ({}, [(loop, "cosine", lambda done: 1.0)]),
    "schedule: linear": ({}, [(loop, "cosine", lambda done: 1.0 - done)]),
    "schedule: in steps": ({}, [(loop, "cosine", step_down)]),
    "width: two layers of 48": ({"hidden_layer_sizes": (48, 48)}, []),
    "width: three of 24": ({"hidden_layer_sizes": (24, 24, 24)}, []),
    "width: three of 96": ({"hidden_layer_sizes": (96, 96, 96)}, []),
    "relu": ({"activation": "relu"}, []),
    "silu": ({"activation": "silu"}, []),
    "tanh": ({"activation": "tanh"}, []),
    "members: one": ({"members": 1}, []),
    "members: four": ({"members": 4}, []),
    "members count equally": ({}, [(base, "SHARPNESS", 0.0)]),
    "decay: none": ({}, decays(0.0)),
    "decay: 0.2 in every level": ({}, decays(0.2)),
    "stopping: no rows held out": ({"early_stopping": False}, []),
    "stopping: a fifth held out": ({"validation_fraction": 0.2}, []),
    "stopping: after 10 epochs without gain": ({"n_iter_no_change": 10}, []),
    "30 epochs": ({"max_iter": 30}, []),
    "100 epochs": ({"max_iter": 100}, []),
    "batches of 16": ({"batch_size": 16}, []),
    "batches of 128": ({"batch_size": 128}, []),
}


def steps() -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(0)
    x = g.normal(size=(ROWS, 12))
    y = np.sign(x[:, 0]) * np.where(x[:, 1] > 0.5, 1.0, 0.3) + np.abs(x[:, 2]) + 0.3 * g.normal(size=ROWS)
    return x, y


def plane() -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(0)
    x = g.normal(size=(400, 20))
    return x, x @ g.normal(size=20) + 2 * g.normal(size=400)


def gaps() -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(0)
    x = np.column_stack([g.uniform(20, 200, 800), g.integers(1, 7, 800), g.integers(1900, 2020, 800)]).astype(float)
    y = 3 * x[:, 0] + 10 * x[:, 1] + 30 * np.sin(x[:, 2] / 10) + g.normal(0, 8, 800)
    missing = g.random(800) < 0.05
    x[missing, 0] = np.median(x[:, 0])
    return np.column_stack([x, missing]), y


def molecules() -> tuple[np.ndarray, np.ndarray]:
    split = qm9.load(0, limit=2 * ROWS)
    return split.x_train[:ROWS].numpy(), split.y_train[:ROWS].numpy()


def uci(name: str) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    def table() -> tuple[np.ndarray, np.ndarray]:
        x, y, *_ = tabular.load(name).split(0)
        kept = np.random.default_rng(0).permutation(len(x))[:ROWS]
        return x[kept], y[kept]

    return table


PROBLEMS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    **{name: uci(name) for name in tabular.NAMES.values()},
    "qm9": molecules,
    "friedman 1": lambda: make_friedman1(600, noise=1.0, random_state=0),
    "friedman 2": lambda: make_friedman2(400, noise=1.0, random_state=0),
    "steps": steps,
    "plane": plane,
    "gaps": gaps,
}


def error(x: np.ndarray, y: np.ndarray, variant: str) -> tuple[float, float]:
    """Validation RMSE in units of the targets' deviation, and seconds."""
    order = np.random.default_rng(1).permutation(len(x))
    cut = len(x) * 4 // 5
    first, second = order[:cut], order[cut:]
    arguments, exchanged = VARIANTS[variant]
    patches = [mock.patch.object(module, name, value) for module, name, value in exchanged]
    for patch in patches:
        patch.start()
    try:
        start = time.process_time()
        model = ClosedFormRegressor(random_state=0, **arguments).fit(x[first], y[first])
        seconds = time.process_time() - start
        predicted = model.predict(x[second])
    finally:
        for patch in patches:
            patch.stop()
    return float(np.sqrt(np.mean(((predicted - y[second]) / y[first].std(0)) ** 2))), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME")
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="two problems, two variants")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.quick:
        args.problems, args.variants = ["yacht", "plane"], ["default", "members: one"]
    torch.set_num_threads(1)
    data = {name: PROBLEMS[name]() for name in args.problems}
    kept = Kept(args.out / "tabular_search-cpu.json", "one change at a time", ("variant", "problem"))
    cells = [(variant, problem) for variant in args.variants for problem in args.problems]
    left = [cell for cell in cells if kept.get(*cell) is None]
    print(f"{len(cells) - len(left)} of {len(cells)} are there already", flush=True)
    for at, (variant, problem) in enumerate(left, 1):
        rmse, seconds = error(*data[problem], variant)
        kept.add({"variant": variant, "problem": problem, "rmse": rmse, "seconds": seconds})
        base_row = kept.get("default", problem)
        ratio = f"{rmse / base_row['rmse']:.3f} of the default's" if base_row else ""
        print(f"{at}/{len(left)}", variant, problem, f"{rmse:.4g} {ratio} {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
