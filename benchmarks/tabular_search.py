"""What was tried for the defaults of the estimators: one change at a time, on validation rows only.

    CLOSEDFORM_DATA=... python benchmarks/tabular_search.py [--variants kalman ...] [--problems yacht ...] [--quick]

The problems are the training rows of split 0 of the nine UCI tables (at most 4,000 of them), 2,000 molecules of QM9 with 12
targets, and five made ones: Friedman's first and second, steps, a plane with much noise, and a table with gaps, whose few
rows without an important value dominate the error. A fifth of the rows is for validation; no test row is looked at. A row
of the result is the validation RMSE over that of the default, a geometric mean over the problems (below 1 is better), the
worst and the best of them, and the seconds of the processor.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import make_friedman1, make_friedman2

from closedform.data import qm9, tabular
from closedform.estimators import ClosedFormRegressor
from common import RESULTS, environment

ROWS = 4000
VARIANTS: dict[str, dict] = {
    "default": {},
    "learned last layer": {"rule": "learned"},
    "kalman": {"rule": "kalman"},
    "one member": {"members": 1},
    "four members": {"members": 4},
    "no rows held out": {"early_stopping": False},
    "a fifth held out": {"validation_fraction": 0.2},
    "no weight decay": {"weight_decay": 0.0},
    "weight decay 0.2": {"weight_decay": 0.2},
    "one lambda, 1": {"lam": 1.0},
    "one lambda, 100": {"lam": 100.0},
    "rate 0.003": {"learning_rate": 0.003},
    "rate 0.03": {"learning_rate": 0.03},
    "two layers of 48": {"hidden_layer_sizes": (48, 48)},
    "three of 96": {"hidden_layer_sizes": (96, 96, 96)},
    "relu": {"activation": "relu"},
    "silu": {"activation": "silu"},
    "tanh": {"activation": "tanh"},
    "30 epochs": {"max_iter": 30},
    "100 epochs": {"max_iter": 100},
    "batches of 128": {"batch_size": 128},
}


def steps() -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(0)
    x = g.normal(size=(1500, 12))
    y = np.sign(x[:, 0]) * np.where(x[:, 1] > 0.5, 1.0, 0.3) + np.abs(x[:, 2]) + 0.3 * g.normal(size=1500)
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
    found = qm9.load(0, limit=2500)
    return found.x_train.numpy(), found.y_train.numpy()


def uci(name: str) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    def made() -> tuple[np.ndarray, np.ndarray]:
        x, y, *_ = tabular.load(name).split(0)
        kept = np.random.default_rng(0).permutation(len(x))[:ROWS]
        return x[kept], y[kept]

    return made


PROBLEMS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    **{name: uci(name) for name in tabular.NAMES.values()},
    "qm9": molecules,
    "friedman 1": lambda: make_friedman1(600, noise=1.0, random_state=0),
    "friedman 2": lambda: make_friedman2(400, noise=1.0, random_state=0),
    "steps": steps,
    "plane": plane,
    "gaps": gaps,
}


def error(x: np.ndarray, y: np.ndarray, settings: dict) -> float:
    order = np.random.default_rng(1).permutation(len(x))
    cut = len(x) * 4 // 5
    first, second = order[:cut], order[cut:]
    model = ClosedFormRegressor(random_state=0, **settings).fit(x[first], y[first])
    return float(np.sqrt(np.mean(((model.predict(x[second]) - y[second]) / y[first].std(0)) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--quick", action="store_true", help="two problems, two variants")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    problems = {name: PROBLEMS[name] for name in args.problems}
    variants = ["default", *(v for v in args.variants if v != "default")]
    if args.quick:
        problems, variants = {"yacht": PROBLEMS["yacht"], "plane": plane}, ["default", "one member"]
    torch.set_num_threads(1)
    data = {name: made() for name, made in problems.items()}
    rows: list[dict] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for variant in variants:
        start = time.process_time()
        errors = {name: error(x, y, VARIANTS[variant]) for name, (x, y) in data.items()}
        ratios = {name: errors[name] / (rows[0]["rmse"] if rows else errors)[name] for name in errors}
        mean = math.exp(float(np.mean(np.log(list(ratios.values())))))
        seconds = time.process_time() - start
        rows.append({"variant": variant, "over_default": mean, "seconds": seconds, "rmse": errors, "ratios": ratios})
        print(f"{variant:20s} {mean:.3f}  {seconds:.0f} s", {k: f"{v:.2f}" for k, v in ratios.items()}, flush=True)
        body = {"question": "one change at a time", "environment": environment("cpu"), "rows": rows}
        (args.out / "tabular_search-cpu.json").write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
