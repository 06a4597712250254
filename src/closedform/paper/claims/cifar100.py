"""The paper's sentences about CIFAR-100, each as a check on a table of results.

A check about a comparison that the results do not hold is left out.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..experiments import cifar100_report
from ..sweeps import results
from . import thresholds
from .verdicts import Check

if TYPE_CHECKING:
    import pandas as pd

NEAR, FAILS = thresholds.of("near in accuracy"), thresholds.of("fails in accuracy")
AHEAD, BEHIND = thresholds.of("ahead"), thresholds.of("behind")
LARGE, LARGE_BATCH = thresholds.of("large lambda"), thresholds.of("large batch")


class Accuracies:
    """Test accuracies at the best setting, and the questions that the checks ask of them."""

    def __init__(self, table: pd.DataFrame):
        self.table = table
        self.optimizers = list(dict.fromkeys(table["optimizer"]))

    def best(self, by: list[str], study: str = "methods", metric: str = "test", **where: Any) -> dict[Any, float]:
        rows = self.table.loc[self.table["study"] == study]
        for column, value in where.items():
            rows = rows.loc[rows[column] == value]
        if rows.empty:
            return {}
        columns = ["optimizer", "batch_size", "method", "init", "bias", "algorithm", *cifar100_report.SETTINGS]
        runs = results.finished(rows, columns, select="validation", metric=metric)
        chosen = results.best(runs, by, [c for c in cifar100_report.SETTINGS if c not in by], lower=False)
        return dict(zip(zip(*(chosen[column] for column in by)), chosen["final"]))

    def methods(self, optimizer: str) -> dict[int, dict[str, float]]:
        """Accuracies by batch size and method."""
        by_size: dict[int, dict[str, float]] = {}
        for (size, method), accuracy in self.best(["batch_size", "method"], optimizer=optimizer).items():
            by_size.setdefault(int(size), {})[method] = accuracy
        return by_size

    def gaps(self, optimizer: str, one: str, other: str) -> dict[int, float]:
        """How far `one` is ahead of `other`, by batch size; a method that diverged has accuracy 0."""
        return {
            size: max(row[one], 0.0) - max(row[other], 0.0)
            for size, row in self.methods(optimizer).items()
            if one in row and other in row
        }

    def rates(self, optimizer: str, method: str) -> dict[int, float]:
        """The learning rate that the validation accuracy chose, by batch size."""
        rows = self.table.loc[self.table["study"] == "methods"]
        rows = rows.loc[(rows["optimizer"] == optimizer) & (rows["method"] == method)]
        if rows.empty:
            return {}
        runs = results.finished(rows, ["batch_size", *cifar100_report.SETTINGS], select="validation", metric="test")
        chosen = results.best(runs, ["batch_size"], cifar100_report.SETTINGS, lower=False)
        return {int(size): float(lr) for size, lr in zip(chosen["batch_size"], chosen["lr"])}

    def swept(self, optimizer: str, method: str, setting: str) -> dict[int, dict[float, float]]:
        """Accuracies of the short runs by batch size and value of a setting, all at one learning rate: the one that has
        most values."""
        by = ["batch_size", "lr", setting]
        by_rate: dict[tuple[int, float], dict[float, float]] = {}
        for (size, lr, value), accuracy in self.best(by, "settings", optimizer=optimizer, method=method).items():
            by_rate.setdefault((int(size), float(lr)), {})[float(value)] = max(accuracy, 0.0)
        most: dict[int, dict[float, float]] = {}
        for (size, _), values in by_rate.items():
            if len(values) > max(1, len(most.get(size, {}))):
                most[size] = values
        return most


def _points(values: dict[Any, float]) -> str:
    return ", ".join(f"{key}: {100 * value:+.1f}" for key, value in values.items())


def _proximal(table: Accuracies) -> list[Check]:
    checks = []
    for optimizer in table.optimizers:
        gaps = table.gaps(optimizer, "proximal", "l2")
        if gaps:
            figures = f"lead in points of accuracy at batch size {_points(gaps)}"
            checks.append(Check(f"{optimizer}: proximal beats l2", figures, all(gap > 0 for gap in gaps.values())))
        if len(gaps) > 1:
            ordered = [gaps[size] for size in sorted(gaps)]
            widens = all(b >= a - NEAR for a, b in zip(ordered, ordered[1:])) and ordered[-1] > ordered[0]
            checks.append(Check(f"{optimizer}: the gap widens with the batch size", figures, widens))
        ahead = table.gaps(optimizer, "proximal", "cross-entropy")
        if ahead:
            figures = f"lead in points of accuracy at batch size {_points(ahead)}"
            claim = f"{optimizer}: proximal surpasses cross-entropy"
            checks.append(Check(claim, figures, all(gap > 0 for gap in ahead.values())))
    return checks


def _ridge(table: Accuracies) -> list[Check]:
    checks = []
    for optimizer in table.optimizers:
        gaps = table.gaps(optimizer, "ridge", "proximal")
        if len(gaps) > 1:
            smallest, largest = min(gaps), max(gaps)
            checks.append(
                Check(
                    f"{optimizer}: ridge fails at small batches and comes near proximal only at large ones",
                    f"ridge minus proximal, in points of accuracy, at batch size {_points(gaps)}",
                    gaps[smallest] < -FAILS and gaps[largest] > -NEAR,
                )
            )
    return checks


def _settings(table: Accuracies) -> list[Check]:
    checks = []
    for optimizer in table.optimizers:
        lost = {}
        for size, values in table.swept(optimizer, "proximal", "lam").items():
            large = [accuracy for lam, accuracy in values.items() if lam >= LARGE]
            if len(large) > 1:
                lost[size] = min(large) - max(values.values())
        if any(size >= LARGE_BATCH for size in lost):
            checks.append(
                Check(
                    f"{optimizer}: proximal is robust to lambda where it is large enough ({LARGE:g} or more), except at "
                    "small batches",
                    "worst of these minus the best lambda, at one learning rate, in points of accuracy, at batch size "
                    f"{_points(lost)}",
                    all(loss > -NEAR for size, loss in lost.items() if size >= LARGE_BATCH),
                )
            )
        spread = {}
        for method, setting in (("proximal", "lam"), ("ridge", "beta")):
            sizes = table.swept(optimizer, method, setting)
            spread[method] = {s: max(v.values()) - min(v.values()) for s, v in sizes.items() if len(v) > 2}
        both = spread["proximal"].keys() & spread["ridge"].keys()
        if both:
            means = {method: math.fsum(values[size] for size in both) / len(both) for method, values in spread.items()}
            checks.append(
                Check(
                    f"{optimizer}: ridge is more sensitive to beta than proximal to lambda",
                    f"mean range over the values at one learning rate, in points of accuracy: {_points(means)}",
                    means["ridge"] > means["proximal"],
                )
            )
    return checks


def _rates(table: Accuracies) -> list[Check]:
    """That solved layers take larger learning rates, the more so the larger the batch."""
    checks = []
    for optimizer in table.optimizers:
        methods = ("cross-entropy", "l2", "ridge", "proximal")
        chosen = {method: table.rates(optimizer, method) for method in methods}
        if all(len(sizes) > 1 for sizes in chosen.values()):
            top = {method: sizes[max(sizes)] for method, sizes in chosen.items()}
            solved, learned = min(top["ridge"], top["proximal"]), max(top["cross-entropy"], top["l2"])
            checks.append(
                Check(
                    f"{optimizer}: at the largest batch the solved layers take larger learning rates than the learned ones",
                    "best learning rates: " + ", ".join(f"{method} {lr:g}" for method, lr in top.items()),
                    solved >= learned and max(top["ridge"], top["proximal"]) > learned,
                )
            )
    return checks


def _confidence(table: Accuracies) -> list[Check]:
    checks = []
    for optimizer in table.optimizers:
        by_size = cifar100_report.confidence(table.table, optimizer)
        pairs = {
            s: (row["cross-entropy"], row["proximal"])
            for s, row in by_size.items()
            if {"cross-entropy", "proximal"} <= set(row)
        }
        if pairs:
            listed = ", ".join(
                f"{size}: {squared:.2f} against {entropy:.2f}" for size, (entropy, squared) in pairs.items()
            )
            checks.append(
                Check(
                    f"{optimizer}: the squared loss is less confident than cross-entropy",
                    f"mean largest probability, squared loss against cross-entropy, at batch size {listed}",
                    all(squared < entropy for entropy, squared in pairs.values()),
                )
            )
    return checks


def _design(table: Accuracies) -> list[Check]:
    checks = []
    for optimizer in table.optimizers:
        for study, column, claim in (
            ("bias", "bias", "a bias makes no difference"),
            ("algorithms", "algorithm", "Algorithms 1 and 2 perform alike"),
        ):
            by_size: dict[int, list[float]] = {}
            for (size, _), accuracy in table.best(["batch_size", column], study, optimizer=optimizer).items():
                by_size.setdefault(int(size), []).append(max(accuracy, 0.0))
            differences = {size: max(v) - min(v) for size, v in by_size.items() if len(v) > 1}
            if differences:
                figures = f"difference in points of accuracy at batch size {_points(differences)}"
                checks.append(Check(f"{optimizer}: {claim}", figures, all(d <= NEAR for d in differences.values())))
    accuracies = table.best(["batch_size", "init"], "initialisation", optimizer="sgd")
    behind = {}
    for size in sorted({size for size, _ in accuracies}):
        others = [max(accuracy, 0.0) for (s, init), accuracy in accuracies.items() if s == size and init != "zeros"]
        if others and (size, "zeros") in accuracies:
            behind[int(size)] = accuracies[size, "zeros"] - max(others)
    if behind:
        figures = f"zeros minus the best of the others, in points of accuracy, at batch size {_points(behind)}"
        checks.append(
            Check("sgd: a last layer of zeros is the best start", figures, all(v >= 0 for v in behind.values()))
        )
    return checks


def _beyond(table: Accuracies) -> list[Check]:
    """What this package adds, rule by rule."""
    checks = []
    for optimizer in table.optimizers:
        for method in (method.key for method in cifar100_report.METHODS if method.ours):
            gaps = table.gaps(optimizer, method, "cross-entropy")
            if gaps:
                figures = f"lead in points of accuracy at batch size {_points(gaps)}"
                claim = f"{optimizer}: {method} is never behind cross-entropy"
                checks.append(Check(claim, figures, min(gaps.values()) >= 0, beyond=True))
            if len(gaps) > 1:
                holds = max(gaps.values()) >= AHEAD and min(gaps.values()) >= -BEHIND
                claim = (
                    f"{optimizer}: {method} is 1 point ahead of cross-entropy at some batch size and never 0.5 behind"
                )
                checks.append(Check(claim, figures, holds, beyond=True))
        for method in ("kalman", "generalized"):
            gaps = table.gaps(optimizer, method, "proximal")
            if gaps:
                figures = f"lead in points of accuracy at batch size {_points(gaps)}"
                claim = f"{optimizer}: {method} is never behind proximal"
                checks.append(Check(claim, figures, min(gaps.values()) >= 0, beyond=True))
    return checks


CHECKS = (_proximal, _ridge, _settings, _rates, _confidence, _design, _beyond)


def check(folder: Path) -> list[Check]:
    """Every check that the results of the folder can answer."""
    table = results.load(folder)
    if missing := [
        c for c in ("study", "confidence", "validation", "test", *cifar100_report.SETTINGS) if c not in table
    ]:
        raise ValueError(f"{folder} does not hold results of CIFAR-100: there is no column {missing[0]!r}")
    answered = [result for checks in CHECKS for result in checks(Accuracies(table))]
    if not answered:
        raise ValueError(f"{folder} does not hold two methods at one batch size, so there is nothing to compare")
    return answered
