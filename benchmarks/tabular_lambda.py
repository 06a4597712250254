"""`lam="auto"` against every lambda of a grid, on the nine UCI tables and on QM9, at batch sizes 32 and 256: test error.

    CLOSEDFORM_DATA=... python benchmarks/tabular_lambda.py [--sets boston qm9] [--quick]

`ClosedFormRegressor` with 30 epochs and at most 2,000 rows to train on, the rest of its settings the defaults; the mean
squared error on the test rows, a mean over splits 0 to 2. The grid is 0.1, 1, ..., 10,000, in sum units. "auto" is within
10 % where its error is at most 1.1 times that of the best of the grid, which was chosen on the test rows themselves.
Stopped at any time, the same command goes on after the last split that was finished.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from closedform.estimators import ClosedFormRegressor
from closedform.paper.data import qm9, tabular
from common import RESULTS, Kept

GRID = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
ROWS, EPOCHS, SPLITS, BATCHES = 2000, 30, 3, (32, 256)


def data(name: str, split: int) -> tuple[np.ndarray, ...]:
    if name == "qm9":
        molecules = qm9.load(split, limit=2 * ROWS)
        x, y, x_test, y_test = molecules.x_train, molecules.y_train, molecules.x_test, molecules.y_test
        return x[:ROWS].numpy(), y[:ROWS].numpy(), x_test.numpy(), y_test.numpy()
    x, y, x_test, y_test = tabular.load(name).split(split)
    kept = np.random.default_rng(split).permutation(len(x))[:ROWS]
    return x[kept], y[kept], x_test, y_test


def errors(name: str, batch: int, split: int) -> dict[str, float]:
    x, y, x_test, y_test = data(name, split)
    by_lambda = {}
    for lam in ("auto", *GRID):
        model = ClosedFormRegressor(lam=lam, batch_size=batch, max_iter=EPOCHS, random_state=split).fit(x, y)
        by_lambda[str(lam)] = float(np.mean(((model.predict(x_test) - y_test) / y.std(0)) ** 2))
    return by_lambda


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=[*tabular.NAMES.values(), "qm9"])
    parser.add_argument("--quick", action="store_true", help="the smallest table, one split")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    sets, splits = (["yacht"], 1) if args.quick else (args.sets, SPLITS)
    torch.set_num_threads(1)
    kept = Kept(args.out / "tabular_lambda-cpu.json", "lam=auto against a grid", ("set", "batch", "split"))
    cells = [(name, batch, split) for split in range(splits) for name in sets for batch in BATCHES]
    left = [cell for cell in cells if kept.get(*cell) is None]
    print(f"{len(cells) - len(left)} of {len(cells)} splits are there already", flush=True)
    for at, (name, batch, split) in enumerate(left, 1):
        by_lambda = errors(name, batch, split)
        kept.add({"set": name, "batch": batch, "split": split, "mse": by_lambda})
        print(f"{at}/{len(left)}", name, batch, split, {k: f"{v:.3g}" for k, v in by_lambda.items()}, flush=True)


if __name__ == "__main__":
    main()
