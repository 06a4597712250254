"""Made tables on which the default is known to be weak: against ridge, `MLPRegressor` and boosted trees, all defaults.

    python benchmarks/tabular_hard.py [--quick]

RMSE on 1,000 test rows, for classes 1 - AUC; a mean over seeds 0 to 4, each with another table. Stopped at any time, the
same command goes on after the last table that was finished.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from closedform.estimators import ClosedFormClassifier, ClosedFormRegressor
from common import RESULTS, Kept

SEEDS, TEST = 5, 1000
Table = tuple[np.ndarray, np.ndarray]


def curved(X: np.ndarray) -> np.ndarray:
    return np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]


def wide(r: np.random.Generator, n: int) -> Table:
    X = r.normal(size=(n, 200))
    return X, X[:, :5].sum(1) + 0.5 * r.normal(size=n)


def short(r: np.random.Generator, n: int) -> Table:
    X = r.normal(size=(n, 5))
    return X, X[:, 0] + 0.2 * r.normal(size=n)


def skewed(r: np.random.Generator, n: int) -> Table:
    X = r.lognormal(0, 2.5, (n, 6))
    return X, curved(np.log(X) / 2.5) + 0.1 * r.normal(size=n)


def heavy(r: np.random.Generator, n: int) -> Table:
    X = r.standard_t(1.5, (n, 6))
    return X, curved(np.tanh(X)) + 0.1 * r.normal(size=n)


def tails(r: np.random.Generator, n: int) -> Table:
    X = r.lognormal(0, 1.5, (n, 5))
    return X, X @ r.normal(size=5) + 0.1 * r.normal(size=n)


def product(r: np.random.Generator, n: int) -> Table:
    X = r.lognormal(0, 1, (n, 3))
    return X, X[:, 0] * X[:, 1] + 0.1 * r.normal(size=n)


def noise(r: np.random.Generator, n: int) -> Table:
    return r.normal(size=(n, 10)), r.normal(size=n)


def classes(r: np.random.Generator, n: int) -> Table:
    X = r.normal(size=(n, 6))
    return X, (0.5 * X[:, 0] + r.logistic(size=n) > 0).astype(int)


PROBLEMS: dict[str, tuple[Callable[[np.random.Generator, int], Table], int]] = {
    "linear, 200 columns": (wide, 150),
    "linear, 20 rows": (short, 20),
    "lognormal inputs": (skewed, 1000),
    "heavy-tailed inputs": (heavy, 500),
    "linear, lognormal columns": (tails, 1000),
    "product of lognormal columns": (product, 1000),
    "nothing but noise": (noise, 500),
    "noisy linear classes": (classes, 300),
}


def errors(name: str, seed: int) -> dict[str, float]:
    make, n = PROBLEMS[name]
    X, y = make(np.random.default_rng(seed), n + TEST)
    if make is classes:
        models = {
            "closedform": ClosedFormClassifier(random_state=seed),
            "linear": make_pipeline(StandardScaler(), LogisticRegression()),
            "MLP": make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
            "trees": HistGradientBoostingClassifier(random_state=seed),
        }
        fitted = {key: model.fit(X[:n], y[:n]) for key, model in models.items()}
        return {k: 1 - float(roc_auc_score(y[n:], m.predict_proba(X[n:])[:, 1])) for k, m in fitted.items()}
    models = {
        "closedform": ClosedFormRegressor(random_state=seed),
        "linear": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 4, 15))),
        "MLP": make_pipeline(StandardScaler(), MLPRegressor(random_state=seed)),
        "trees": HistGradientBoostingRegressor(random_state=seed),
    }
    fitted = {key: model.fit(X[:n], y[:n]) for key, model in models.items()}
    return {key: float(np.sqrt(np.mean((model.predict(X[n:]) - y[n:]) ** 2))) for key, model in fitted.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest table, one seed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    cells = [(name, seed) for seed in range(SEEDS) for name in PROBLEMS]
    cells = [("linear, 20 rows", 0)] if args.quick else cells
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Stochastic Optimizer")  # MLPRegressor's default of 200 epochs
    kept = Kept(args.out / "tabular_hard-cpu.json", "tables where the default is weak", ("problem", "seed"))
    left = [cell for cell in cells if kept.get(*cell) is None]
    for at, (name, seed) in enumerate(left, 1):
        by_model = errors(name, seed)
        kept.add({"problem": name, "seed": seed, "rows": PROBLEMS[name][1], "error": by_model})
        print(f"{at}/{len(left)}", name, seed, {k: f"{v:.3g}" for k, v in by_model.items()}, flush=True)


if __name__ == "__main__":
    main()
