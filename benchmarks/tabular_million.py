"""A million rows by 20 columns: error, time and peak memory of the default, of `partial_fit` in pieces, and of LightGBM.

    python benchmarks/tabular_million.py [--rows 1000000]

Made data (a smooth function of eight columns, steps in two, a category of twelve, noise of a tenth of the variance); 100,000
more rows are the test. Each model has a process of its own, one thread, its defaults; memory is the process's peak, with
the imports and the table itself. `partial_fit` sees the rows once, 50,000 at a time, which a file could bring.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from closedform.files import atomic
from common import RESULTS, environment

COLUMNS, TEST, PIECE = 20, 100_000, 50_000
MODELS = ("closedform", "partial_fit", "LightGBM")


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, COLUMNS))
    X[:, 18], X[:, 19] = random.integers(0, 12, n), np.exp(X[:, 19])
    effect = np.random.default_rng(7).normal(size=12)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * np.abs(X[:, 3]) + np.tanh(X[:, 4] + X[:, 5]) * X[:, 6]
    y += (X[:, 7] > 0.5) * 1.0 + 0.5 * (X[:, 8] < -1) + effect[X[:, 18].astype(int)] + 0.3 * np.log(X[:, 19])
    return X, y + 0.6 * random.normal(size=n)


def one(model: str, n: int) -> dict:
    import torch

    torch.set_num_threads(1)
    X, y = rows(n, 0)
    start = time.process_time()
    if model == "LightGBM":
        from lightgbm import LGBMRegressor

        estimator = LGBMRegressor(n_jobs=1, random_state=0, verbose=-1).fit(X, y)
    else:
        from closedform.tabular import ClosedFormRegressor

        estimator = ClosedFormRegressor(random_state=0)
        if model == "closedform":
            estimator.fit(X, y)
        else:
            for low in range(0, n, PIECE):
                estimator.partial_fit(X[low : low + PIECE], y[low : low + PIECE])
    seconds = time.process_time() - start
    X, y = rows(TEST, 1)
    error = float(np.sqrt(np.mean((np.asarray(estimator.predict(X)) - y) ** 2)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"model": model, "rows": n, "rmse": error, "seconds": seconds, "peak_gib": peak / 2**30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--model", choices=MODELS, help="of this process; all, one after the other, otherwise")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.model:
        print(json.dumps(one(args.model, args.rows)))
        return
    results = []
    for model in MODELS:
        command = [sys.executable, __file__, "--model", model, "--rows", str(args.rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
        print("{model}: RMSE {rmse:.4f}, {seconds:.0f} s, {peak_gib:.2f} GiB".format(**results[-1]), flush=True)
    body = {"question": "a million rows", "noise": 0.6, "environment": environment("cpu"), "rows": results}
    with atomic(args.out / "tabular_million-cpu.json") as file:
        file.write(json.dumps(body, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
