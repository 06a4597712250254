"""The worked example of docs/iv.md: schooling and wages, by least squares, two-stage least squares and `DFIVRegressor`.

    python benchmarks/iv_card.py

Writes benchmarks/results/iv_card-cpu.json, and docs/figures/iv/card.svg. Replicates of the bootstrap are kept in
runs/iv-card, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from closedform.estimators import DFIVRegressor
from closedform.paper.data import iv
from closedform.paper.experiments.figures import BLUE, GREY, ORANGE, pyplot
from common import RESULTS, save

YEARS = np.arange(6.0, 19.0)
AT = 12.0  # years of schooling that wages are compared with
PEOPLE = 300  # whose controls the curve is averaged over


def curve(model: DFIVRegressor, W: np.ndarray) -> np.ndarray:
    """What so many years do to the logarithm of the wage, against twelve: the mean over people."""
    return np.array([float(np.mean(model.effect(AT, years, W))) for years in YEARS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few iterations and replicates, no picture")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--runs", type=Path, default=Path("runs/iv-card"), help="folder of the replicates")
    args = parser.parse_args()
    args.device = "cpu"
    torch.set_num_threads(1)
    c = iv.model("card")
    people = c.W.to_numpy()[np.random.default_rng(0).choice(len(c.W), PEOPLE, replace=False)]
    straight = DFIVRegressor(features="linear").fit(c.X, c.y, Z=c.Z, W=c.W)
    start = time.process_time()
    settings = {"max_iter": 5} if args.quick else {}
    deep = DFIVRegressor(**settings, random_state=0).fit(c.X, c.y, Z=c.Z, W=c.W)
    seconds = time.process_time() - start
    effect = deep.average_effect(level=0.95)  # before the bootstrap, whose interval stands beside it
    folder = None if args.quick else args.runs
    deep.bootstrap(c.X, c.y, Z=c.Z, W=c.W, replicates=2 if args.quick else 200, folder=folder)
    middle = curve(deep, people)
    low, high = np.quantile([curve(model, people) for model in deep.replicates_], [0.025, 0.975], axis=0)
    slopes = [float(model.marginal_effect(c.X, c.W).mean()) for model in deep.replicates_]
    summary = straight.summary()
    row = {
        "rows": len(c.y),
        "ordinary": summary.ordinary[0],
        "two_stage": float(straight.coef_[0]),
        "two_stage_error": float(straight.std_error_[0]),
        "deep": float(effect.estimate[0]),
        "interval": [float(effect.low[0]), float(effect.high[0])],
        "interval_from": effect.interval,
        "deep_low": float(np.quantile(slopes, 0.025)),
        "deep_high": float(np.quantile(slopes, 0.975)),
        "replicates": len(slopes),
        "other_seeds": [
            float(
                DFIVRegressor(**settings, random_state=seed)
                .fit(c.X, c.y, Z=c.Z, W=c.W)
                .marginal_effect(c.X, c.W)
                .mean()
            )
            for seed in range(1, 2 if args.quick else 5)
        ],
        "fit_cpu_s": seconds,
        "summary": str(deep.summary()),
        "years": YEARS.tolist(),
        "curve": middle.tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
    }
    save(args, "iv_card", "What a year of schooling does to the logarithm of the wage.", [row])
    print(row["summary"])
    if not args.quick:
        draw(row, Path(__file__).parents[1] / "docs" / "figures" / "iv")


def draw(row: dict, folder: Path) -> None:
    plt = pyplot()
    years = np.array(row["years"])
    with plt.rc_context({"svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(6.2, 3.8), layout="constrained")
        axes.fill_between(years, row["low"], row["high"], color=BLUE, alpha=0.15, lw=0, label="95 % of the bootstrap")
        axes.plot(years, row["curve"], color=BLUE, lw=2, label="DFIVRegressor")
        axes.plot(years, row["two_stage"] * (years - AT), color=ORANGE, ls="--", label="two-stage least squares")
        axes.plot(years, row["ordinary"] * (years - AT), color=GREY, ls=":", label="ordinary least squares")
        axes.set_xlabel("years of schooling")
        axes.set_ylabel(f"log wage, against {AT:.0f} years")
        axes.legend(frameon=False, loc="upper left")
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / "card.svg", metadata={"Date": None})
        plt.close(figure)
    print(f"wrote {folder / 'card.svg'}")


if __name__ == "__main__":
    main()
