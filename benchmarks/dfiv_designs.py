"""`DFIVRegressor` with its defaults on small simulated designs: curves by number of rows, and many instruments.

    python benchmarks/dfiv_designs.py
    python benchmarks/dfiv_designs.py --shapes     # eight shapes against the sieve, kernels and learned features alone

Curves: `x = z + u / 2`, `y = f(x) + 2 u + e / 10` with z, u, e standard normal. Errors are mean squared, of the curve at 41
points from -1.5 to 1.5. Beside it two-stage least squares, and a sieve: two-stage least squares on Hermite polynomials, of
degree 6 in the treatment and 8 in the instrument, fixed once and not tuned.

Many instruments: `x = z_1 + u`, `y = 2 x + 2 u + e` with 400 rows and 50 or 150 standard normal instruments, of which the
first matters; the slope is 2, that of ordinary least squares 3.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import dfiv_shapes
from closedform.estimators import DFIVRegressor
from common import RESULTS, save

AT = np.linspace(-1.5, 1.5, 41)
CURVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "2 x": lambda x: 2 * x,
    "x^2": np.square,
    "sin(2 x)": lambda x: np.sin(2 * x),
}
hermite = np.polynomial.hermite_e.hermevander


def sieve(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The curve by two-stage least squares on polynomials."""
    A, B = hermite(x / 2, 6), hermite(z, 8)
    fitted = B @ np.linalg.lstsq(B, A, rcond=None)[0]
    return hermite(AT / 2, 6) @ np.linalg.lstsq(fitted, y, rcond=None)[0]


def curve(name: str, n: int, seed: int) -> dict:
    rng = np.random.default_rng(1000 + seed)
    z, u, e = rng.standard_normal((3, n))
    x = z + u / 2
    y = CURVES[name](x) + 2 * u + e / 10
    X, Z = x[:, None], z[:, None]
    start = time.process_time()
    deep = DFIVRegressor(random_state=seed).fit(X, y, Z=Z)
    seconds = time.process_time() - start
    straight = DFIVRegressor(features="linear").fit(X, y, Z=Z)
    predictions = {"deep": deep.predict(AT[:, None]), "linear": straight.predict(AT[:, None]), "sieve": sieve(x, y, z)}
    truth = CURVES[name](AT)
    errors = {method: float(np.square(values - truth).mean()) for method, values in predictions.items()}
    return errors | {"used": deep.summary().used, "cpu_s": seconds}


def many(instruments: int, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((400, instruments))
    u, e = rng.standard_normal((2, 400))
    X = (Z[:, 0] + u)[:, None]
    y = 2 * X[:, 0] + 2 * u + e
    deep = DFIVRegressor(random_state=seed).fit(X, y, Z=Z)
    two_stage = deep.summary().two_stage
    return {"deep": float(deep.marginal_effect(X).mean()), "linear": None if two_stage is None else two_stage[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few rows")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--shapes", action="store_true", help="the eight shapes of dfiv_shapes.py instead")
    parser.add_argument(
        "--only", nargs="+", choices=dfiv_shapes.SHAPES, help="measure these shapes again, in the same file"
    )
    args = parser.parse_args()
    args.device = "cpu"
    torch.set_num_threads(1)
    if args.shapes:
        n, seeds = (400, range(1)) if args.quick else (2000, range(20, 25))  # the choices were settled on draws 0 to 3
        rows = []
        for name in args.only or dfiv_shapes.SHAPES:
            rows.append(dfiv_shapes.joined(name, n, [dfiv_shapes.measured(name, n, seed) for seed in seeds]))
            print(name, rows[-1]["means"], rows[-1]["over_best"], flush=True)
        path = args.out / "dfiv_shapes-cpu.json"
        if args.only:
            again = {row["shape"]: row for row in rows}
            rows = [again.get(row["shape"], row) for row in json.loads(path.read_text())["rows"]]
        save(args, "dfiv_shapes", "Is the estimator near the best of simpler ones, whatever the shape?", rows)
        return
    table: list[dict] = []
    for name in CURVES:
        for n in (200,) if args.quick else (500, 2000, 8000):
            runs = [curve(name, n, seed) for seed in range(1 if args.quick else 5)]
            means = {key: statistics.fmean(run[key] for run in runs) for key in ("deep", "linear", "sieve", "cpu_s")}
            table.append(
                {"curve": name, "n": n, "variance": float(CURVES[name](AT).var()), "means": means, "seeds": runs}
            )
            print(name, n, means, flush=True)
    for instruments in (5,) if args.quick else (50, 150):
        runs = [many(instruments, seed) for seed in range(1 if args.quick else 10)]
        table.append({"instruments": instruments, "seeds": runs})
        print(instruments, runs, flush=True)
    save(args, "dfiv_designs", "How good is DFIVRegressor with its defaults, and from how many rows on?", table)


if __name__ == "__main__":
    main()
