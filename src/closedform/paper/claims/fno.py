"""The paper's sentences about Burgers' equation, each as a check on a table of results.

Two rules give an error for each method:

* *late*: the setting with the least validation error over the last fifth of training, and the mean test error over that
  fifth, on the training grid;
* *at the end*: the setting with the least validation error after the last step, and the test error on all points there. The
  paper chooses so; but one step is one draw of a curve that may have spikes, which the paper smooths for its figures.

Where some settings were run with more seeds than others (those that the first seed had chosen, and those beyond the end of a
grid), both rules have only these left.

A verdict is that of the first rule; the figures give what the second says, and whether it would be the other verdict. How
soon an error is reached is read off the curves that the first rule draws, each method counted to the first measurement at
or below the error with which l2 ends, l2 itself as well; one measurement's difference counts for nothing. A
comparison that the results do not hold is left out, and a batch size of the paper's that is missing is named, as is one
where a curve has its end alone (a small copy of results keeps no more of settings that were not the best when it was made).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..experiments import fno as experiment
from ..report import panels, text
from ..sweeps import results
from . import thresholds
from .verdicts import Check

if TYPE_CHECKING:
    import pandas as pd

EFFECTIVE, FAILS, SIMILAR = (thresholds.of(word) for word in ("effective", "fails", "similar"))
PAPER = ("l2", "ridge", "proximal")
SOLVED = ("ridge", "proximal", "kalman")


@dataclass(frozen=True)
class Sooner:
    """`times` fewer steps (0: never there), and whether the two are more than one measurement apart."""

    times: float
    clear: bool


class BurgersErrors:
    """Errors at the best settings, as means over the seeds (`final`) and seed by seed (`seeds`), and how soon they are
    reached; by the second rule if `at_end`."""

    def __init__(self, table: pd.DataFrame, at_end: bool = False):
        self.optimizers = [o for o in experiment.OPTIMIZERS if o in set(table["optimizer"])]
        columns = ["optimizer", "batch_size", "method"]
        configuration = [*columns, *experiment.SETTINGS]
        last = table.groupby([*configuration, "seed"], dropna=False, observed=True)["step"].transform("max")
        measured = table.loc[table["step"] == last] if at_end else table
        metric = "fine" if at_end else "test"
        runs = results.finished(measured, configuration, select="validation", metric=metric, late=not at_end)
        self.final: dict[str, dict[int, dict[str, float]]] = {}
        self.seeds: dict[tuple[str, int, str], dict[int, float]] = {}
        self.rows: dict[tuple[str, int, str], pd.DataFrame] = {}  # of the table, at the best settings
        for row in panels.each(results.best(runs, columns, experiment.SETTINGS, failed=experiment.FAILED)):
            optimizer, size, method = row["optimizer"], int(row["batch_size"]), row["method"]
            self.final.setdefault(optimizer, {}).setdefault(size, {})[method] = float(row["final"])
            own = results.rows_of(runs, row, configuration).sort_values("seed")
            self.seeds[optimizer, size, method] = dict(zip(map(int, own["seed"]), map(float, own["final"])))
            self.rows[optimizer, size, method] = results.rows_of(table, row, configuration)

    def ratios(self, optimizer: str, one: str, others: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
        """The error of `one` over the least of `others` by batch size, where all are there."""
        return {
            size: row[one] / min(row[other] for other in others) if math.isfinite(row[one]) else math.inf
            for size, row in self.final[optimizer].items()
            if size in sizes and {one, *others} <= set(row)
        }

    def curve(self, optimizer: str, size: int, method: str, seed: int | None = None) -> pd.DataFrame:
        """The test error along training at the best setting, its mean over the seeds or that of one seed."""
        rows = self.rows[optimizer, size, method]
        return results.curve(rows if seed is None else rows.loc[rows["seed"] == seed], "test")

    def sooner(self, optimizer: str, method: str, seed: int | None = None) -> dict[int, Sooner]:
        """How many times fewer steps `method` takes to the error with which l2 ends (its mean over the last fifth), each
        counted to the first measurement that is no larger; by the mean over the seeds, or by one seed at the same
        settings. A batch size where one of the two curves has its end alone is left out."""
        by_size = {}
        for size in self.final[optimizer]:
            if (optimizer, size, "l2") not in self.rows or (optimizer, size, method) not in self.rows:
                continue
            learned, own = (self.curve(optimizer, size, one, seed) for one in ("l2", method))
            if _is_end_alone(learned) or _is_end_alone(own):
                continue
            late = learned["step"] > (1 - results.LAST) * learned["step"].max()
            end = learned.loc[late, "mean"].mean()
            first, there = (curve.loc[curve["mean"] <= end, "step"] for curve in (learned, own))
            if there.empty or not math.isfinite(end):
                by_size[size] = Sooner(0.0, False)
                continue
            between = learned["step"].gt(there.min()) & learned["step"].lt(first.min())
            by_size[size] = Sooner(float(first.min() / there.min()), bool(between.any()))
        return by_size


def _is_end_alone(curve: pd.DataFrame) -> bool:
    return bool(curve["step"].min() > (1 - results.LAST) * curve["step"].max())


@dataclass(frozen=True)
class _Verdict:
    claim: str
    what: str
    figures: str
    holds: bool
    beyond: bool = False


def _at(sizes: Sequence[int], asked: Sequence[int], run: Sequence[int] | None = None) -> str:
    """`run` has `sizes`, and those whose curves are not whole.

    >>> _at([8, 32], [2, 8, 32]), _at([2], [2])
    ('at batch size 8 and 32 (2 was not run)', 'at batch size 2')
    >>> _at([8], [2, 8, 32], run=[8, 32])
    'at batch size 8 (2 was not run; 32 has no whole curve)'
    """
    run = sizes if run is None else run
    missing = [str(size) for size in asked if size not in run]
    partial = [str(size) for size in run if size not in sizes]
    left = [f"{text.listed(missing)} {'was' if len(missing) == 1 else 'were'} not run"] if missing else []
    left += [f"{text.listed(partial)} {'has' if len(partial) == 1 else 'have'} no whole curve"] if partial else []
    return f"at batch size {text.listed(list(map(str, sizes)))}" + (f" ({'; '.join(left)})" if left else "")


def _compared(
    errors: BurgersErrors,
    claim: str,
    one: str,
    others: Sequence[str],
    holds: Callable[[float], bool],
    sizes: Sequence[int],
    optimizer: str,
    beyond: bool = False,
) -> list[_Verdict]:
    """The verdict about `one` over the best of `others` at those of `sizes` that are there."""
    ratios = errors.ratios(optimizer, one, others, sizes)
    if not ratios:
        return []
    what = f"{one} / {'best of ' if len(others) > 1 else ''}{text.listed(list(others))}"
    figures = ", ".join(f"{size}: {ratio:.2f}" for size, ratio in ratios.items())
    claim = f"{optimizer}: {claim} {_at(list(ratios), sizes)}"
    return [_Verdict(claim, what, figures, all(map(holds, ratios.values())), beyond)]


def _similar(ratio: float) -> bool:
    return 1 / SIMILAR <= ratio <= SIMILAR


def _verdicts(errors: BurgersErrors) -> list[_Verdict]:
    every = experiment.BATCH_SIZES
    verdicts = []
    for o in errors.optimizers:
        verdicts += _compared(errors, "proximal is effective", "proximal", PAPER, lambda r: r <= EFFECTIVE, every, o)
    for o in errors.optimizers:
        verdicts += _compared(errors, "ridge fails", "ridge", ("l2", "proximal"), lambda r: r > FAILS, [2], o)
        against = ("ridge", ("proximal",))
        if o == "sgd":
            verdicts += _compared(
                errors, "ridge is outperformed by proximal", *against, lambda r: r > SIMILAR, [8, 32], o
            )
        large = [128] if o == "sgd" else [8, 32, 128]
        verdicts += _compared(errors, "ridge is similar to proximal", *against, _similar, large, o)
    for o in errors.optimizers:
        claim = "kalman is no worse than proximal"
        verdicts += _compared(errors, claim, "kalman", ("proximal",), lambda r: r <= SIMILAR, every, o, beyond=True)
    return verdicts


def _sooner(errors: BurgersErrors) -> list[_Verdict]:
    verdicts = []
    for o in errors.optimizers:
        for method in SOLVED:
            if ratios := errors.sooner(o, method):
                figures = ", ".join(
                    f"{size}: {r.times:.1f}{' (within one measurement)' if r.times > 1 and not r.clear else ''}"
                    for size, r in ratios.items()
                )
                run = [size for size, row in errors.final[o].items() if {"l2", method} <= set(row)]
                at = _at(list(ratios), experiment.BATCH_SIZES, run)
                claim = f"{o}: {method} reaches the final error of l2 in fewer steps {at}"
                holds = all(r.clear for r in ratios.values())
                verdicts.append(
                    _Verdict(claim, f"steps of l2 / steps of {method} (0: never)", figures, holds, method == "kalman")
                )
    return verdicts


def check(folder: Path) -> list[Check]:
    """Every check that the results of the folder can answer."""
    table = results.load(folder)
    if missing := [c for c in ("fine", "test", "validation", *experiment.SETTINGS) if c not in table]:
        raise ValueError(f"{folder} does not hold results of Burgers' equation: there is no column {missing[0]!r}")
    errors = BurgersErrors(table)
    ends = {verdict.claim: verdict for verdict in _verdicts(BurgersErrors(table, at_end=True))}
    checks = []
    for late in (*_verdicts(errors), *_sooner(errors)):
        figures = f"{late.what}: {late.figures}"
        if late.claim in ends:
            end = ends[late.claim]
            turned = "" if late.holds == end.holds else f"; there it {'holds' if end.holds else 'does not hold'}"
            figures += f"; after the last step {end.figures}{turned}"
        checks.append(Check(late.claim, figures, late.holds, late.beyond))
    if not checks:
        raise ValueError(f"{folder} does not hold two methods at one batch size, so there is nothing to compare")
    return checks
