"""`lam="auto"` against every lambda of a grid, on the nine UCI tables and on QM9, at batch sizes 32 and 256: test error.

    CLOSEDFORM_DATA=... python benchmarks/tabular_lambda.py [--sets boston qm9] [--quick]

`ClosedFormRegressor` with 30 epochs and at most 2,000 rows to train on, the rest of its settings the defaults; the mean
squared error on the test rows, a mean over splits 0 to 2. The grid is 0.1, 1, ..., 10,000, in sum units. "auto" is within
10 % where its error is at most 1.1 times that of the best of the grid, which was chosen on the test rows themselves.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from closedform.data import qm9, tabular
from closedform.estimators import ClosedFormRegressor
from common import RESULTS, environment

GRID = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
ROWS, EPOCHS, SPLITS, BATCHES = 2000, 30, 3, (32, 256)


def data(name: str, split: int) -> tuple[np.ndarray, ...]:
    if name == "qm9":
        found = qm9.load(split, limit=2 * ROWS)
        x, y, x_test, y_test = found.x_train, found.y_train, found.x_test, found.y_test
        return x[:ROWS].numpy(), y[:ROWS].numpy(), x_test.numpy(), y_test.numpy()
    x, y, x_test, y_test = tabular.load(name).split(split)
    kept = np.random.default_rng(split).permutation(len(x))[:ROWS]
    return x[kept], y[kept], x_test, y_test


def errors(name: str, batch: int, splits: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for split in range(splits):
        x, y, x_test, y_test = data(name, split)
        for lam in ("auto", *GRID):
            model = ClosedFormRegressor(lam=lam, batch_size=batch, max_iter=EPOCHS, random_state=split).fit(x, y)
            error = np.mean(((model.predict(x_test) - y_test) / y.std(0)) ** 2)
            found.setdefault(str(lam), []).append(float(error))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=[*tabular.NAMES.values(), "qm9"])
    parser.add_argument("--quick", action="store_true", help="the smallest table, one split")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    sets, splits = (["yacht"], 1) if args.quick else (args.sets, SPLITS)
    torch.set_num_threads(1)
    rows = []
    args.out.mkdir(parents=True, exist_ok=True)
    for name in sets:
        for batch in BATCHES:
            found = errors(name, batch, splits)
            best = min(GRID, key=lambda lam: np.mean(found[str(lam)]))
            ratio = float(np.mean(found["auto"]) / np.mean(found[str(best)]))
            rows.append({"set": name, "batch": batch, "best": best, "auto_over_best": ratio, "mse": found})
            print(
                name, batch, f"auto / best {ratio:.3f}", {k: f"{np.mean(v):.3g}" for k, v in found.items()}, flush=True
            )
            body = {"question": "lam=auto against a grid", "environment": environment("cpu"), "rows": rows}
            (args.out / "tabular_lambda-cpu.json").write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
