"""Do the 90 and 95 % intervals of `DFIVRegressor.average_effect` hold the truth, with weak and with strong instruments?

    python benchmarks/iv_coverage.py
    python benchmarks/iv_coverage.py --draws 40     # fewer draws of the estimator; what is in the file is not done again

A slope of one, rows that ordinary least squares overrates: `x = s (z_1 + ... + z_m) + 0.3 (w_1 + ... + w_q) + u` and
`y = x + 0.5 (w_1 + ... + w_q) + (0.8 u + 0.6 e) (0.5 + |z_1|)`, all else standard normal. The strength s is set by the
first-stage F that it gives on average; with F = 1 the instruments say nothing. `estimator` is `DFIVRegressor` with its
defaults, which chooses among a line and curves; `line` is `closedform.iv.line` alone, on many more draws. Beside it are its
interval from standard errors alone, and two-stage least squares with robust errors.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import torch

from closedform.iv import DFIVRegressor, anderson_rubin, line, linear
from closedform.iv.effects import normal
from common import RESULTS, save

LEVELS = (0.9, 0.95)
LINES = [  # instruments, first-stage F, controls, rows
    (1, 10, 0, 500), (1, 10, 3, 500), (1, 100, 0, 500), (3, 10, 0, 500), (3, 10, 3, 500), (3, 100, 0, 500),
    (10, 10, 0, 1000), (30, 5, 2, 1000), (30, 20, 0, 2000),
    (2, 2, 0, 500), (5, 1, 0, 500), (5, 2, 0, 500), (5, 4, 0, 500), (10, 2, 3, 500), (30, 2, 0, 1000),
]  # fmt: skip
ESTIMATORS = [(1, 10, 0, 500), (1, 100, 0, 500), (5, 2, 0, 500)]


def drawn(instruments: int, F: float, controls: int, n: int, seed: list[int]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    Z, W, (u, e) = (
        rng.standard_normal((n, instruments)),
        rng.standard_normal((n, controls)),
        rng.standard_normal((2, n)),
    )
    x = np.sqrt((F - 1) / n) * Z.sum(1) + 0.3 * W.sum(1) + u
    y = x + 0.5 * W.sum(1) + (0.8 * u + 0.6 * e) * (0.5 + np.abs(Z[:, 0]))
    return x[:, None], y, Z, W


def lines(design: tuple[int, int, int, int], draws: int) -> dict:
    estimates, two_stage, unbounded = [], [], 0
    inside = {name: dict.fromkeys(LEVELS, 0) for name in ("line", "standard errors", "2SLS")}
    for seed in range(draws):
        X, y, Z, W = drawn(*design, seed=[seed, *design])
        controls = W if W.shape[1] else None
        fit, plain = line.fitted(X, y, Z, controls), linear.two_stage(X, y, Z, controls)
        estimates.append(float(fit.coef[0]))
        two_stage.append(float(plain.coef[0]))
        weak = anderson_rubin.needed(X, Z, controls, fit.first_stage)
        moments = anderson_rubin.moments(X, y, Z, controls) if weak else None
        for level in LEVELS:
            ends = [f.coef[0] + np.array([-1, 1]) * normal(level) * f.std_error[0] for f in (fit, plain)]
            slope = line.slope_interval(fit.coef[0], fit.std_error[0], moments, fit.first_stage.degrees[1], level)
            for name, (low, high) in zip(inside, (slope[:2], *ends)):
                inside[name][level] += bool(low <= 1 <= high)
        unbounded += bool(np.isinf(slope.high))  # at the last level
    shares = {name: {str(level): hits / draws for level, hits in counts.items()} for name, counts in inside.items()}
    return _row("line", design, draws, shares) | {
        "median": float(np.median(estimates)),
        "two_stage_median": float(np.median(two_stage)),
        "unbounded": unbounded / draws,
    }


def estimators(design: tuple[int, int, int, int], draws: int) -> dict:
    estimates, used, inside, unbounded = [], [], {str(level): 0 for level in LEVELS}, 0
    for seed in range(draws):
        X, y, Z, W = drawn(*design, seed=[seed, *design])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = DFIVRegressor(random_state=seed).fit(X, y, Z=Z, W=W if W.shape[1] else None)
        for level in LEVELS:
            effect = model.average_effect(level=level)
            inside[str(level)] += bool(effect.low[0] <= 1 <= effect.high[0])
        unbounded += bool(np.isinf(effect.high[0]))  # at the last level
        estimates.append(float(model.average_effect().estimate[0]))
        used.append(model.summary().used.split(",")[0])
    shares = {"estimator": {level: hits / draws for level, hits in inside.items()}}
    kinds = {kind: used.count(kind) for kind in sorted(set(used))}
    row = _row("estimator", design, draws, shares)
    return row | {"median": float(np.median(estimates)), "used": kinds, "unbounded": unbounded / draws}


def _row(what: str, design: tuple[int, int, int, int], draws: int, shares: dict) -> dict:
    names = ("instruments", "F", "controls", "n")
    return {"what": what, **dict(zip(names, design)), "draws": draws, "shares": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few draws")
    parser.add_argument("--draws", type=int, default=100, help="of the estimator; a line has ten times as many")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    args = parser.parse_args()
    args.device = "cpu"
    torch.set_num_threads(1)
    path = args.out / "iv_coverage-cpu.json"
    rows: list[dict] = json.loads(path.read_text())["rows"] if path.is_file() and not args.quick else []
    draws = 2 if args.quick else args.draws
    jobs = [(lines, "line", design, 10 * draws) for design in LINES[: 2 if args.quick else None]]
    jobs += [(estimators, "estimator", design, draws) for design in ESTIMATORS[: 1 if args.quick else None]]
    for measure, what, design, count in jobs:
        key = {"what": what, **dict(zip(("instruments", "F", "controls", "n"), design))}
        if any(key.items() <= row.items() for row in rows):
            continue
        rows.append(measure(design, count))
        print(rows[-1], flush=True)
        save(args, "iv_coverage", "Do the intervals of an average effect hold the truth?", rows)


if __name__ == "__main__":
    main()
