"""Proxy variables: what a price does to sales when demand is unseen, by `DFPVRegressor` and by regressions.

    python benchmarks/dfpv.py

The design is `closedform.paper.data.demand.proxies`. Errors are mean squared, of the mean outcome at ten prices from 10 to
30. Regressions are multilayer perceptrons of scikit-learn: of the outcome on the price alone, and on the price and all
averaged over the rows' proxies (which would be right if the proxies were the confounder itself).
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from closedform.estimators import DFIVRegressor, DFPVRegressor
from closedform.paper.data import demand
from common import RESULTS, save

PRICES = np.linspace(10, 30, 10)


def regression(X: np.ndarray, y: np.ndarray, seed: int) -> object:
    net = MLPRegressor(hidden_layer_sizes=(64, 64), early_stopping=True, max_iter=500, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make_pipeline(StandardScaler(), net).fit(X, y)


def errors(n: int, seed: int) -> dict[str, float]:
    """Mean squared errors of each method on one draw."""
    rows, truth = demand.proxies(n, seed), demand.proxy_curve(PRICES)
    start = time.process_time()
    model = DFPVRegressor(DFIVRegressor(random_state=seed)).fit(rows.A, rows.y, Z=rows.Z, W=rows.W)
    seconds = time.process_time() - start
    alone = regression(rows.A, rows.y, seed)
    everything = regression(np.column_stack([rows.A, rows.Z, rows.W]), rows.y, seed)
    at = [np.column_stack([np.full(n, price), rows.Z, rows.W]) for price in PRICES]
    predictions = {
        "proxies": model.predict(PRICES[:, None]),
        "price alone": alone.predict(PRICES[:, None]),
        "price and proxies": np.array([everything.predict(X).mean() for X in at]),
    }
    return {name: float(np.square(values - truth).mean()) for name, values in predictions.items()} | {"cpu_s": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 300 rows")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    args = parser.parse_args()
    args.device = "cpu"
    torch.set_num_threads(1)
    table = []
    for n in (300,) if args.quick else (1000, 5000):
        runs = [errors(n, seed) for seed in (range(1) if args.quick else range(60, 65))]
        means = {name: statistics.fmean(run[name] for run in runs) for name in runs[0]}
        table.append({"n": n, "means": means, "seeds": runs})
        print(n, means, flush=True)
    save(args, "dfpv", "The mean outcome under a price that is set, from proxies of an unseen confounder.", table)


if __name__ == "__main__":
    main()
