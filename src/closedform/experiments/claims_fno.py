"""The paper's sentences about Burgers' equation, each as a check on a table of results (see `experiments.claims`).

Errors are those on all points at the end of training, at each method's best setting. The paper gives no number for its
words; the ones taken for them are constants here. A check about a comparison that the results do not hold is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..report import panels
from ..sweeps import results
from . import fno as experiment
from .claims import Check

if TYPE_CHECKING:
    import pandas as pd

EFFECTIVE = 1.5  # at most half as much again as the best of the paper's methods
FAILS = 3.0  # three times the error of the best of the others is a failure
SIMILAR = 1.25  # within a quarter of each other
PAPER = ("l2", "ridge", "proximal")
SOLVED = ("ridge", "proximal", "kalman")


class Errors:
    """Errors at the best settings, and how soon they are reached."""

    def __init__(self, table: pd.DataFrame):
        self.optimizers = [o for o in experiment.OPTIMIZERS if o in set(table["optimizer"])]
        columns = ["optimizer", "batch_size", "method"]
        told = [*columns, *experiment.SETTINGS]
        runs = results.finished(table, told, select="validation", metric="fine")
        self.final: dict[str, dict[int, dict[str, float]]] = {}
        self.curves: dict[tuple[str, int, str], pd.DataFrame] = {}
        for row in panels.each(results.best(runs, columns, experiment.SETTINGS, failed=experiment.FAILED)):
            optimizer, size, method = row["optimizer"], int(row["batch_size"]), row["method"]
            self.final.setdefault(optimizer, {}).setdefault(size, {})[method] = float(row["final"])
            self.curves[optimizer, size, method] = results.curve(results.rows_of(table, row, told), "test")

    def ratios(self, optimizer: str, one: str, other: str, sizes: Iterable[int] | None = None) -> dict[int, float]:
        """The error of `one` over that of `other` by batch size, where both are there."""
        return {
            size: row[one] / row[other] if math.isfinite(row[one]) else math.inf
            for size, row in self.final[optimizer].items()
            if one in row and other in row and (sizes is None or size in sizes)
        }

    def sooner(self, optimizer: str, method: str) -> dict[int, float]:
        """How many times fewer steps `method` takes to the error (on the training grid, mean over the last fifth) with which
        l2 ends; 0 where it does not get there."""
        found = {}
        for size in self.final[optimizer]:
            if (optimizer, size, "l2") not in self.curves or (optimizer, size, method) not in self.curves:
                continue
            learned, own = self.curves[optimizer, size, "l2"], self.curves[optimizer, size, method]
            total = learned["step"].max()
            end = learned.loc[learned["step"] > (1 - results.LAST) * total, "mean"].mean()
            there = own.loc[own["mean"] <= end, "step"]
            found[size] = float(total / there.min()) if len(there) and math.isfinite(end) else 0.0
        return found


def _listed(values: dict[int, float]) -> str:
    return ", ".join(f"{size}: {value:.2f}" for size, value in values.items())


def _effective(errors: Errors) -> list[Check]:
    checks = []
    for optimizer in errors.optimizers:
        ratios = {
            size: row["proximal"] / min(row[method] for method in PAPER)
            for size, row in errors.final[optimizer].items()
            if set(PAPER) <= set(row)
        }
        if ratios:
            checks.append(
                Check(
                    f"{optimizer}: proximal is effective at every batch size",
                    f"proximal / best of l2, ridge and proximal at batch size {_listed(ratios)}",
                    all(ratio <= EFFECTIVE for ratio in ratios.values()),
                )
            )
    return checks


def _ridge(errors: Errors) -> list[Check]:
    checks = []
    for optimizer in errors.optimizers:
        rows = {size: row for size, row in errors.final[optimizer].items() if size == 2 and set(PAPER) <= set(row)}
        ratios = {size: row["ridge"] / min(row["l2"], row["proximal"]) for size, row in rows.items()}
        if ratios:
            figures = f"ridge / best of l2 and proximal at batch size {_listed(ratios)}"
            holds = all(ratio > FAILS for ratio in ratios.values())
            checks.append(Check(f"{optimizer}: ridge fails at batch size 2", figures, holds))
        against = {
            "is outperformed by": [8, 32] if optimizer == "sgd" else [],
            "is similar to": [128] if optimizer == "sgd" else [8, 32, 128],
        }
        for verb, sizes in against.items():
            ratios = errors.ratios(optimizer, "ridge", "proximal", sizes)
            if ratios:
                shown = " and ".join(map(str, ratios))
                similar = verb == "is similar to"
                holds = (1 / SIMILAR <= r <= SIMILAR if similar else r > 1 for r in ratios.values())
                claim = f"{optimizer}: ridge {verb} proximal at batch size {shown}"
                checks.append(Check(claim, f"ridge / proximal at batch size {_listed(ratios)}", all(holds)))
    return checks


def _sooner(errors: Errors) -> list[Check]:
    checks = []
    for optimizer in errors.optimizers:
        for method in SOLVED:
            ratios = errors.sooner(optimizer, method)
            if ratios:
                checks.append(
                    Check(
                        f"{optimizer}: {method} reaches the final error of l2 in fewer steps",
                        "l2's steps / its own (0: never) at batch size "
                        + ", ".join(f"{size}: {ratio:.1f}" for size, ratio in ratios.items()),
                        all(ratio > 1 for ratio in ratios.values()),
                        beyond=method == "kalman",
                    )
                )
    return checks


def _beyond(errors: Errors) -> list[Check]:
    checks = []
    for optimizer in errors.optimizers:
        ratios = errors.ratios(optimizer, "kalman", "proximal")
        if ratios:
            figures = f"Kalman / proximal at batch size {_listed(ratios)}"
            holds = all(r <= SIMILAR for r in ratios.values())
            checks.append(Check(f"{optimizer}: Kalman is no worse than proximal", figures, holds, beyond=True))
    return checks


CHECKS = (_effective, _ridge, _sooner, _beyond)


def check(folder: Path) -> list[Check]:
    """Every check that the results of the folder can answer."""
    table = results.load(folder)
    if missing := [c for c in ("fine", "test", "validation", *experiment.SETTINGS) if c not in table]:
        raise ValueError(f"{folder} does not hold results of Burgers' equation: there is no column {missing[0]!r}")
    found = [result for checks in CHECKS for result in checks(Errors(table))]
    if not found:
        raise ValueError(f"{folder} does not hold two methods at one batch size, so there is nothing to compare")
    return found
