"""The paper's sentences about an experiment, each as a check on a table of results.

A check says what is claimed (in our words), the figures, and whether it holds. `closedform claims qm9` prints them from the
results in the repository. What counts as "comparable", "near" or "fails" the paper does not say; the numbers that were
taken for these words are constants here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..experiments import qm9 as experiment
from ..sweeps import results

if TYPE_CHECKING:
    import pandas as pd

NEAR = 1.10  # within a tenth is comparable, close, alike
FAILS = 1.5  # half as much again as the other method is a failure
UNTRAINED = 0.5  # of the targets' variance: no better than half a guess of the mean
GOOD = 1.25  # "beneficial" lambda: within a quarter of the best one


@dataclass(frozen=True)
class Check:
    claim: str
    figures: str
    holds: bool
    beyond: bool = False  # ours, not the paper's


class Table:
    """The finished models of the methods study, and the questions that the checks ask of them."""

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
        found: dict[int, dict[str, float]] = {}
        for (size, method), error in self.best(["batch_size", "method"], optimizer=optimizer).items():
            found.setdefault(int(size), {})[method] = error
        return found


def _ratio(one: float, other: float) -> float:
    return one / other if math.isfinite(one) else math.inf


def _listed(values: dict[Any, float], digits: str = ".2f") -> str:
    return ", ".join(f"{key}: {value:{digits}}" for key, value in values.items())


def _ridge(table: Table) -> list[Check]:
    checks = []
    for optimizer in experiment.OPTIMIZERS:
        errors = table.methods(optimizer)
        ratios = {size: _ratio(row["ridge"], row["proximal"]) for size, row in errors.items()}
        largest = max(ratios)
        checks.append(
            Check(
                f"{optimizer}: ridge fails at small batches and comes near proximal only at {largest}",
                f"ridge / proximal at batch size {_listed(ratios)}",
                all(
                    ratio > (NEAR if size != min(ratios) else FAILS)
                    for size, ratio in ratios.items()
                    if size != largest
                )
                and ratios[largest] <= NEAR,
            )
        )
    return checks


def _proximal(table: Table) -> list[Check]:
    sgd = {size: row["proximal"] / row["l2"] for size, row in table.methods("sgd").items()}
    adam = {size: row["proximal"] / row["l2"] for size, row in table.methods("adam").items()}
    return [
        Check(
            "sgd: proximal beats l2 at every batch size",
            f"proximal / l2 at batch size {_listed(sgd)}",
            all(r < 1 for r in sgd.values()),
        ),
        Check(
            "adam: proximal is comparable to l2",
            f"proximal / l2 at batch size {_listed(adam)}",
            all(1 / NEAR <= r <= NEAR for r in adam.values()),
        ),
    ]


def _lambda(table: Table) -> list[Check]:
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
                f"least lambda within {GOOD:g} of the best error at batch size {_listed(least, 'g')}",
                all(a >= b for a, b in zip(falling, falling[1:])) and falling[0] > falling[-1],
            ),
            Check(
                f"{optimizer}: a lambda of about 1e3 is good throughout",
                f"error at 1e3 / at the best lambda at batch size {_listed(at_1e3)}",
                all(ratio <= GOOD for ratio in at_1e3.values()),
            ),
        ]
    return checks


def _initialisation(table: Table) -> list[Check]:
    checks = []
    for optimizer in experiment.OPTIMIZERS:
        found = table.best(["batch_size", "init"], "initialisation", optimizer=optimizer)
        ratios, spread, untrained = {}, {}, []
        for size in table.batch_sizes:
            others = [error for (s, init), error in found.items() if s == size and init != "zeros"]
            ratios[size], spread[size] = found[size, "zeros"] / min(others), max(others) / min(others)
            untrained += [size] if min(others) > UNTRAINED else []
        figures = f"zeros / best of the others at batch size {_listed(ratios)}"
        if optimizer == "sgd":
            claim = "sgd: a last layer of zeros is the best start, except at very small batches"
            holds = all(ratio <= 1 for size, ratio in ratios.items() if size != min(ratios))
        else:
            claim = "adam: zeros are worse than the other initial layers, which are alike"
            figures += f"; worst / best of the others {_listed(spread)}"
            figures += "".join(f"; at {size} none of the settings trained" for size in untrained)
            trained = [size for size in table.batch_sizes if size not in untrained]
            holds = bool(trained) and all(ratios[size] > 1 and spread[size] <= NEAR for size in trained)
        checks.append(Check(claim, figures, holds))
    return checks


def _algorithms(table: Table) -> list[Check]:
    found = table.best(["batch_size", "algorithm"], "algorithms")
    epochs = int(table.table.loc[table.table["study"] == "algorithms", "epochs"].max())
    ratios = {size: found[size, 2] / found[size, 1] for size in table.batch_sizes}
    return [
        Check(
            "sgd: Algorithms 1 and 2 perform alike",
            f"Algorithm 2 / Algorithm 1 after {epochs} epochs at batch size {_listed(ratios)}",
            all(1 / NEAR <= ratio <= NEAR for ratio in ratios.values()),
        )
    ]


def _beyond(table: Table) -> list[Check]:
    """What this package adds, under plain SGD."""
    checks = []
    ours = [method.key for method in experiment.METHODS if method.ours]
    sgd, adam = table.methods("sgd"), table.methods("adam")
    for size, aim in ((32, 0.7), (256, 0.85)):
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


CHECKS: dict[str, tuple[Callable[[Table], list[Check]], ...]] = {
    "qm9": (_ridge, _proximal, _lambda, _initialisation, _algorithms, _beyond)
}


def check(name: str, folder: Path) -> list[Check]:
    if name == "cifar100":
        from . import cifar100

        return cifar100.check(folder)
    if name == "fno":
        from . import fno

        return fno.check(folder)
    if name == "dfiv":
        from . import dfiv

        return dfiv.check(folder)
    if name not in CHECKS:
        raise ValueError(f"there are no claims about {name!r}; expected qm9, fno, dfiv or cifar100")
    table = results.load(folder)
    columns = ["study", "optimizer", "batch_size", "method"]
    there = set(table[columns].itertuples(index=False, name=None))
    needed = [
        ("methods", o, b, m.key)
        for o in experiment.OPTIMIZERS
        for b in experiment.BATCH_SIZES
        for m in experiment.METHODS
    ]
    needed += [("initialisation", o, b, "proximal") for o in experiment.OPTIMIZERS for b in experiment.BATCH_SIZES]
    needed += [("algorithms", "sgd", b, "proximal") for b in experiment.BATCH_SIZES]
    absent = [row for row in needed if row not in there]
    if absent:
        first = ", ".join(f"{column} {value}" for column, value in zip(columns, absent[0]))
        raise ValueError(f"{folder} does not hold the whole experiment: nothing for {first}")
    return [result for checks in CHECKS[name] for result in checks(Table(table))]


def markdown(checks: list[Check]) -> str:
    """The checks as a table for a page."""
    lines = ["| | claim | figures |", "|---|---|---|"]
    for result in checks:
        verdict = "holds" if result.holds else "**does not hold**"
        lines.append(f"| {verdict} | {'(ours) ' if result.beyond else ''}{result.claim} | {result.figures} |")
    return "\n".join(lines)


def show(name: str, folder: Path, console: Any) -> None:
    """Print every check."""
    checks = check(name, folder)
    for beyond, title in ((False, "What the paper says"), (True, "Beyond the paper")):
        console.print(f"[bold]{title}[/]")
        for result in (c for c in checks if c.beyond is beyond):
            verdict = "[green]holds[/]         " if result.holds else "[red]does not hold[/] "
            console.print(
                f"  {verdict} {result.claim}\n                  [dim]{result.figures}[/]",
                highlight=False,
                soft_wrap=True,
            )
    held = sum(c.holds for c in checks)
    console.print(f"{held} of {len(checks)} hold, from {folder}.")
