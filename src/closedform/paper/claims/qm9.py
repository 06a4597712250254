"""The paper's sentences about QM9, each as a check on a table of results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..experiments import qm9 as experiment
from ..sweeps import results
from . import thresholds
from .verdicts import Check, listed

if TYPE_CHECKING:
    import pandas as pd

NEAR, FAILS, GOOD, UNTRAINED = (thresholds.of(word) for word in ("near", "fails", "good", "untrained"))
AIMS = {size: thresholds.of(f"error at {size}") for size in (32, 256)}


class QM9Errors:
    """Test errors at the best settings, and the questions that the checks ask of them."""

    def __init__(self, table: pd.DataFrame):
        self.table = table
        self.batch_sizes = sorted(int(size) for size in set(table["batch_size"]))

    def study(self, name: str) -> pd.DataFrame:
        rows = self.table.loc[self.table["study"] == name]
        columns = ["optimizer", "batch_size", "method", "init", "algorithm", "bias", *experiment.SETTINGS]
        return results.finished(rows, columns, select="validation", metric="test")

    def best(self, by: list[str], study: str = "methods", **where: Any) -> dict[Any, float]:
        """The final test error at the best setting for every value of the columns `by`."""
        runs = self.study(study)
        for column, value in where.items():
            runs = runs.loc[runs[column] == value]
        chosen = results.best(runs, by, [c for c in experiment.SETTINGS if c not in by])
        keys = chosen[by[0]] if len(by) == 1 else zip(*(chosen[column] for column in by))
        return dict(zip(keys, chosen["final"]))

    def methods(self, optimizer: str) -> dict[int, dict[str, float]]:
        """Errors by batch size and method."""
        by_size: dict[int, dict[str, float]] = {}
        for (size, method), error in self.best(["batch_size", "method"], optimizer=optimizer).items():
            by_size.setdefault(int(size), {})[method] = error
        return by_size


def _ratio(one: float, other: float) -> float:
    return one / other if math.isfinite(one) else math.inf


def _ridge(table: QM9Errors) -> list[Check]:
    checks = []
    for optimizer in experiment.OPTIMIZERS:
        errors = table.methods(optimizer)
        ratios = {size: _ratio(row["ridge"], row["proximal"]) for size, row in errors.items()}
        largest = max(ratios)
        checks.append(
            Check(
                f"{optimizer}: ridge fails at small batches and comes near proximal only at {largest}",
                f"ridge / proximal at batch size {listed(ratios)}",
                all(
                    ratio > (NEAR if size != min(ratios) else FAILS)
                    for size, ratio in ratios.items()
                    if size != largest
                )
                and ratios[largest] <= NEAR,
            )
        )
    return checks


def _proximal(table: QM9Errors) -> list[Check]:
    sgd = {size: row["proximal"] / row["l2"] for size, row in table.methods("sgd").items()}
    adam = {size: row["proximal"] / row["l2"] for size, row in table.methods("adam").items()}
    return [
        Check(
            "sgd: proximal beats l2 at every batch size",
            f"proximal / l2 at batch size {listed(sgd)}",
            all(r < 1 for r in sgd.values()),
        ),
        Check(
            "adam: proximal is comparable to l2",
            f"proximal / l2 at batch size {listed(adam)}",
            all(1 / NEAR <= r <= NEAR for r in adam.values()),
        ),
    ]


def _lambda(table: QM9Errors) -> list[Check]:
    checks = []
    for optimizer in experiment.OPTIMIZERS:
        errors = table.best(["batch_size", "lam"], optimizer=optimizer, method="proximal")
        least: dict[int, float] = {}
        at_1e3: dict[int, float] = {}
        for size in table.batch_sizes:
            own = {lam: error for (s, lam), error in errors.items() if s == size}
            best = min(own.values())
            least[size] = min(lam for lam, error in own.items() if error <= GOOD * best)
            at_1e3[size] = own[1e3] / best
        falling = [least[size] for size in table.batch_sizes]
        checks += [
            Check(
                f"{optimizer}: small batches need a larger lambda",
                f"least lambda with at most {GOOD:g} times the best error at batch size {listed(least, 'g')}",
                all(a >= b for a, b in zip(falling, falling[1:])) and falling[0] > falling[-1],
            ),
            Check(
                f"{optimizer}: a lambda of about 1e3 is good throughout",
                f"error at 1e3 / at the best lambda at batch size {listed(at_1e3)}",
                all(ratio <= GOOD for ratio in at_1e3.values()),
            ),
        ]
    return checks


def _initialisation(table: QM9Errors) -> list[Check]:
    checks = []
    for optimizer in experiment.OPTIMIZERS:
        errors = table.best(["batch_size", "init"], "initialisation", optimizer=optimizer)
        ratios, spread, untrained = {}, {}, []
        for size in table.batch_sizes:
            others = [error for (s, init), error in errors.items() if s == size and init != "zeros"]
            ratios[size], spread[size] = errors[size, "zeros"] / min(others), max(others) / min(others)
            untrained += [size] if min(others) > UNTRAINED else []
        figures = f"zeros / best of the others at batch size {listed(ratios)}"
        if optimizer == "sgd":
            claim = "sgd: a last layer of zeros is the best start, except at very small batches"
            holds = all(ratio <= 1 for size, ratio in ratios.items() if size != min(ratios))
        else:
            claim = "adam: zeros are worse than the other initial layers, which are alike"
            figures += f"; worst / best of the others {listed(spread)}"
            figures += "".join(f"; at {size} none of the settings trained" for size in untrained)
            trained = [size for size in table.batch_sizes if size not in untrained]
            holds = bool(trained) and all(ratios[size] > 1 and spread[size] <= NEAR for size in trained)
        checks.append(Check(claim, figures, holds))
    return checks


def _algorithms(table: QM9Errors) -> list[Check]:
    errors = table.best(["batch_size", "algorithm"], "algorithms")
    epochs = int(table.table.loc[table.table["study"] == "algorithms", "epochs"].max())
    ratios = {size: errors[size, 2] / errors[size, 1] for size in table.batch_sizes}
    return [
        Check(
            "sgd: Algorithms 1 and 2 perform alike",
            f"Algorithm 2 / Algorithm 1 after {epochs} epochs at batch size {listed(ratios)}",
            all(1 / NEAR <= ratio <= NEAR for ratio in ratios.values()),
        )
    ]


def _beyond(table: QM9Errors) -> list[Check]:
    """What this package adds, under plain SGD."""
    checks = []
    ours = [method.key for method in experiment.METHODS if method.ours]
    sgd, adam = table.methods("sgd"), table.methods("adam")
    for size, aim in AIMS.items():
        method = min(ours, key=lambda key: sgd[size][key])
        error = sgd[size][method]
        paper, rival = sgd[size]["proximal"], min(adam[size]["l2"], adam[size]["l2 cosine"])
        checks += [
            Check(
                f"batch size {size}: our best rule under SGD has at most {aim:g} times the error of the paper's proximal",
                f"{method} {error:.4f}, proximal {paper:.4f}: {error / paper:.2f}",
                error / paper <= aim,
                beyond=True,
            ),
            Check(
                f"batch size {size}: our best rule under SGD is within 10 % of Adam with a learned layer",
                f"{method} {error:.4f}, Adam's l2 (constant or cosine rate) {rival:.4f}: {error / rival:.2f}",
                error / rival <= NEAR,
                beyond=True,
            ),
        ]
    return checks


CHECKS = (_ridge, _proximal, _lambda, _initialisation, _algorithms, _beyond)


def check(folder: Path) -> list[Check]:
    """Every check; the folder must hold the whole experiment."""
    table = results.load(folder)
    columns = ["study", "optimizer", "batch_size", "method"]
    present = set(table[columns].itertuples(index=False, name=None))
    cells = [(optimizer, size) for optimizer in experiment.OPTIMIZERS for size in experiment.BATCH_SIZES]
    needed = [("methods", *cell, method.key) for cell in cells for method in experiment.METHODS]
    needed += [("initialisation", *cell, "proximal") for cell in cells]
    needed += [("algorithms", "sgd", size, "proximal") for size in experiment.BATCH_SIZES]
    absent = [row for row in needed if row not in present]
    if absent:
        first = ", ".join(f"{column} {value}" for column, value in zip(columns, absent[0]))
        raise ValueError(f"{folder} does not hold the whole experiment: nothing for {first}")
    return [result for checks in CHECKS for result in checks(QM9Errors(table))]
