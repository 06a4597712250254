"""Defaults against defaults on nine UCI tables with their standard splits: test error, rank and time to fit.

    CLOSEDFORM_DATA=... python benchmarks/tabular.py [--sets boston ...] [--splits 0 10] [--quick]

Every model gets standardised inputs and targets (scikit-learn's network cannot do without; LightGBM does not mind) and one
thread, and all else is its default. Models take turns on each split, so that all meet the same machine; times are seconds
of the processor, which other work on the machine changes less than the clock. The models:

  closedform  `ClosedFormRegressor()`
  MLP         scikit-learn's `MLPRegressor()`
  Adam        one plain torch network of the same layers and activation, learned by Adam at 0.001, as many epochs and as
              large batches as closedform
  learned     closedform with everything the same except that the last layers are learned: `rule="learned"`
  LightGBM    `LGBMRegressor()`

Stopped at any time, the same command goes on after the last split that was finished.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from lightgbm import LGBMRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from closedform.estimators import ClosedFormRegressor
from closedform.paper.data import tabular
from common import RESULTS, Kept


class Adam:
    """A plain network in torch, as a tutorial would write it."""

    def __init__(self, like: ClosedFormRegressor, seed: int):
        self.like, self.seed = like, seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> Adam:
        torch.manual_seed(self.seed)
        plan = self.like._plan(len(X), self.seed)
        layers: list[torch.nn.Module] = []
        hidden = self.like._hidden(len(X), 1)
        for a, b in zip([X.shape[1], *hidden], hidden):
            layers += [torch.nn.Linear(a, b), torch.nn.GELU()]
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(hidden[-1], 1))
        optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        x, t = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32).reshape(-1, 1)
        for _ in range(plan.epochs):
            for index in torch.randperm(len(x)).split(plan.batch_size):
                loss = torch.nn.functional.mse_loss(self.net(x[index]), t[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.net(torch.tensor(X, dtype=torch.float32)).numpy().ravel()


def models(seed: int) -> dict:
    return {
        "closedform": ClosedFormRegressor(random_state=seed),
        "MLP": MLPRegressor(random_state=seed),
        "Adam": Adam(ClosedFormRegressor(), seed),
        "learned": ClosedFormRegressor(rule="learned", random_state=seed),
        "LightGBM": LGBMRegressor(random_state=seed, n_jobs=1, verbose=-1),
    }


def timed(model, X: np.ndarray, y: np.ndarray) -> float:
    start = time.process_time()
    model.fit(X, y)
    return time.process_time() - start


def one(name: str, split: int) -> dict:
    table = tabular.load(name)
    X, y, X_test, y_test = table.split(split)
    inputs, target = StandardScaler().fit(X), StandardScaler().fit(y[:, None])
    scaled = inputs.transform(X), target.transform(y[:, None]).ravel()
    row: dict = {"set": name, "split": split, "rows": len(X), "rmse": {}, "seconds": {}}
    regressors = models(split)
    for model in sorted(regressors, key=lambda m: (list(regressors).index(m) + split) % len(regressors)):  # in turn
        row["seconds"][model] = timed(regressors[model], *scaled)
        predicted = target.inverse_transform(regressors[model].predict(inputs.transform(X_test))[:, None]).ravel()
        row["rmse"][model] = float(np.sqrt(np.mean((predicted - y_test) ** 2)))
    row["epochs"] = {model: int(regressors[model].n_iter_) for model in ("closedform", "MLP")}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=list(tabular.NAMES.values()))
    parser.add_argument("--splits", nargs=2, type=int, default=(0, 20), help="from the first up to the second")
    parser.add_argument("--quick", action="store_true", help="the two smallest tables, one split")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.quick:
        args.sets, args.splits = ["boston", "yacht"], (0, 1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.filterwarnings("ignore", message="X does not have valid feature names")
    torch.set_num_threads(1)
    kept = Kept(args.out / "tabular-cpu.json", "test error and time to fit of defaults on tables", ("set", "split"))
    cells = [(name, split) for split in range(*args.splits) for name in args.sets if split < _splits(name)]
    left = [cell for cell in cells if kept.get(*cell) is None]
    print(f"{len(cells) - len(left)} of {len(cells)} splits are there already", flush=True)
    with threadpool_limits(1):
        for model in models(0).values():  # what a first call sets up is nobody's time to fit
            timed(model, np.random.default_rng(0).normal(size=(100, 3)), np.arange(100.0) / 50 - 1)
        for at, (name, split) in enumerate(left, 1):
            row = one(name, split)
            kept.add(row)
            shown = {k: f"{v:.4g} ({row['seconds'][k]:.1f} s)" for k, v in row["rmse"].items()}
            print(f"{at}/{len(left)}", name, split, shown, flush=True)


def _splits(name: str) -> int:
    return len(tabular.load(name).tests)


if __name__ == "__main__":
    main()
