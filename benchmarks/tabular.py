"""Defaults against defaults on nine UCI tables with their standard splits: test error, rank and time to fit.

    CLOSEDFORM_DATA=... python benchmarks/tabular.py [--sets boston ...] [--splits 0 10] [--models MLP ...] [--quick]

Every model gets standardised inputs and targets (scikit-learn's network cannot do without; LightGBM does not mind) and one
thread, and all else is its default. Models take turns on each split, so that all meet the same machine; times are seconds
of the processor, which other work on the machine changes less than the clock. The models:

  closedform  `ClosedFormRegressor()`
  MLP         scikit-learn's `MLPRegressor()`
  Adam        one plain torch network of the same layers and activation, learned by Adam at 0.001, as many epochs and as
              large batches as closedform
  learned     closedform with everything the same except that the last layers are learned: `rule="learned"`
  LightGBM    `LGBMRegressor()`

`MLP x` and `closedform x` in the second part of a row: the same number of epochs (20) for both, and their times.
Results are added to the JSON file, so that runs over some of the splits or models make up the whole.
"""

from __future__ import annotations

import argparse
import json
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

from closedform.data import tabular
from closedform.estimators import ClosedFormRegressor
from common import RESULTS, environment

EPOCHS = 20  # of the comparison of speed


class Adam:
    """A plain network in torch, as a tutorial would write it."""

    def __init__(self, like: ClosedFormRegressor, seed: int):
        self.like, self.seed = like, seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> Adam:
        torch.manual_seed(self.seed)
        plan = self.like._plan(len(X), self.seed)
        layers: list[torch.nn.Module] = []
        hidden = self.like._hidden(len(X))
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


def one(name: str, split: int, chosen: list[str]) -> dict:
    table = tabular.load(name)
    X, y, X_test, y_test = table.split(split)
    inputs, target = StandardScaler().fit(X), StandardScaler().fit(y[:, None])
    row: dict = {"set": name, "split": split, "rows": len(X), "rmse": {}, "seconds": {}}
    made = {model: estimator for model, estimator in models(split).items() if model in chosen}
    for model in sorted(made, key=lambda m: (list(made).index(m) + split) % len(made)):  # in turn
        row["seconds"][model] = timed(made[model], inputs.transform(X), target.transform(y[:, None]).ravel())
        predicted = target.inverse_transform(made[model].predict(inputs.transform(X_test))[:, None]).ravel()
        row["rmse"][model] = float(np.sqrt(np.mean((predicted - y_test) ** 2)))
    row["epochs"] = {model: int(made[model].n_iter_) for model in ("closedform", "MLP") if model in made}
    if split < 3 and {"closedform", "MLP"} <= set(made):
        same = {
            "closedform": ClosedFormRegressor(max_iter=EPOCHS, random_state=split),
            "closedform, one member": ClosedFormRegressor(max_iter=EPOCHS, members=1, random_state=split),
            "MLP": MLPRegressor(max_iter=EPOCHS, n_iter_no_change=EPOCHS + 1, random_state=split),
        }
        scaled = inputs.transform(X), target.transform(y[:, None]).ravel()
        row["same_epochs"] = {model: timed(estimator, *scaled) for model, estimator in same.items()}
    return row


def merged(path: Path, row: dict) -> list[dict]:
    """What the file holds, with this row, which may have some of the models only."""
    rows = {}
    for old in json.loads(path.read_text())["rows"] if path.is_file() else []:
        rows[old["set"], old["split"]] = old
    old = rows.get((row["set"], row["split"]), {})
    both = {key: old.get(key, {}) | value if isinstance(value, dict) else value for key, value in row.items()}
    rows[row["set"], row["split"]] = old | both
    names = list(tabular.NAMES.values())
    return sorted(rows.values(), key=lambda row: (names.index(row["set"]), row["split"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=list(tabular.NAMES.values()))
    parser.add_argument("--splits", nargs=2, type=int, default=(0, 20), help="from the first up to the second")
    parser.add_argument("--models", nargs="*", default=list(models(0)))
    parser.add_argument("--quick", action="store_true", help="the two smallest tables, one split")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.quick:
        args.sets, args.splits = ["boston", "yacht"], (0, 1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.filterwarnings("ignore", message="X does not have valid feature names")
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "tabular-cpu.json"
    with threadpool_limits(1):
        for split in range(*args.splits):
            for name in args.sets:
                if split >= len(tabular.load(name).tests):
                    continue
                row = one(name, split, args.models)
                body = {
                    "question": "test error and time to fit of defaults on tables",
                    "environment": environment("cpu"),
                    "rows": merged(path, row),
                }
                path.write_text(
                    json.dumps(body, indent=None, separators=(",", ":")).replace('{"set"', '\n{"set"') + "\n"
                )
                print(
                    name, split, {k: f"{v:.4g} ({row['seconds'][k]:.1f} s)" for k, v in row["rmse"].items()}, flush=True
                )


if __name__ == "__main__":
    main()
