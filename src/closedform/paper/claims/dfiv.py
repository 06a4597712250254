"""The paper's sentences about instrumental variables, each as a check on a table of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..experiments import dfiv as experiment
from ..sweeps import results
from . import thresholds
from .verdicts import Check, listed

if TYPE_CHECKING:
    import pandas as pd

ALIKE, SMALL = thresholds.of("similar"), int(thresholds.of("small batch"))


class SpriteErrors:
    """Test errors over the last fifth of training at the setting that validation has chosen, by batch size and line of the
    figure."""

    def __init__(self, table: pd.DataFrame):
        by = ["batch_size", "method"]
        runs = results.finished(table, [*by, *experiment.SETTINGS], select="validation", metric="test", late=True)
        best = results.best(runs, by, experiment.SETTINGS)
        self.errors: dict[int, dict[str, float]] = {}
        for row in best.to_dict("records"):
            self.errors.setdefault(int(row["batch_size"]), {})[str(row["method"])] = float(row["final"])
        self.seeds = int(best["seeds"].min())

    def ratios(self, one: str, other: str) -> dict[int, float]:
        return {size: row[one] / row[other] for size, row in sorted(self.errors.items())}


def check(folder: Path) -> list[Check]:
    """Every check; the folder must hold the whole experiment."""
    table = results.load(folder)
    present = set(table[["batch_size", "method"]].itertuples(index=False, name=None))
    wanted = [(size, method.key) for size in experiment.SIZES["full"].batch_sizes[:-1] for method in experiment.METHODS]
    absent = [row for row in wanted if row not in present]
    if absent:
        size, method = absent[0]
        raise ValueError(f"{folder} does not hold the whole experiment: nothing for batch size {size}, {method}")
    errors = SpriteErrors(table)
    checks = []
    for kind, suffix in (("re-estimated", ""), ("online", " online")):
        ratios = errors.ratios(f"ridge{suffix}", f"proximal{suffix}")
        largest = max(ratios)
        small = {size: ratio for size, ratio in ratios.items() if size <= SMALL}
        figures = f"ridge / proximal at batch size {listed(ratios)} ({errors.seeds} seeds)"
        checks += [
            Check(f"{kind}: proximal beats ridge at small batches (up to {SMALL})", figures, min(small.values()) > 1),
            Check(
                f"{kind}: the two are comparable at large batches ({largest}, all rows of a stage)",
                f"ridge / proximal {ratios[largest]:.2f}",
                1 / ALIKE <= ratios[largest] <= ALIKE,
            ),
        ]
    gaps = {name: errors.ratios(f"{name} online", name) for name in ("proximal", "ridge")}
    checks.append(
        Check(
            "proximal: online and re-estimated evaluation are nearly identical",
            f"online / re-estimated at batch size {listed(gaps['proximal'])}",
            all(1 / ALIKE <= ratio <= ALIKE for ratio in gaps["proximal"].values()),
        )
    )
    closer = {size: abs(gaps["proximal"][size] - 1) - abs(gaps["ridge"][size] - 1) for size in gaps["ridge"]}
    checks.append(
        Check(
            "online is closer to re-estimated for proximal than for ridge, at small batches",
            f"online / re-estimated of ridge at batch size {listed(gaps['ridge'])}",
            all(value < 0 for size, value in closer.items() if size <= SMALL),
            beyond=True,
        )
    )
    return checks
