"""The table of best settings, and the sentence that says what it shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..sweeps import results
from . import panels, spec, text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class BestSetting:
    """One method at its best setting."""

    method: spec.Method
    final: float
    half_width: float
    settings: tuple[str, ...]
    seeds: int
    diverged: int  # how many of the seeds
    ratio: float | None  # to the first method's
    best: bool

    @property
    def shown(self) -> str:
        if not self.diverged:
            return text.interval(self.final, self.half_width)
        return "diverged" + (f" ({self.diverged} of {self.seeds} seeds)" if self.diverged < self.seeds else "")

    @property
    def shown_ratio(self) -> str:
        if self.ratio is None:
            return text.MISSING
        return f"{self.ratio:.2f}" if abs(self.ratio) < 1000 else text.number(self.ratio)


@dataclass(frozen=True)
class Facet:
    names: tuple[str, ...]  # of the columns `by`, such as "adam" and "batch size 32"
    entries: tuple[BestSetting, ...]

    @property
    def best(self) -> BestSetting | None:
        return next((entry for entry in self.entries if entry.best), None)

    @property
    def clear(self) -> bool:
        """Whether the best method's interval lies apart from every other's."""
        best = self.best
        return best is not None and all(
            abs(entry.final - best.final) > entry.half_width + best.half_width
            for entry in self.entries
            if entry is not best and not entry.diverged
        )


def best_settings(table: pd.DataFrame, experiment: spec.Experiment) -> list[Facet]:
    table = panels.where(table, experiment.where)
    by = [column for column in experiment.by if column != "method"]
    model_columns = panels.configuration(experiment)
    chosen_by = [column for column in model_columns if column not in (*by, "method")]
    runs = panels.finished(table, experiment)
    chosen = results.best(runs, [*by, "method"], chosen_by, lower=experiment.lower, failed=experiment.failed)
    rows_by_facet: dict[tuple, dict[str, Any]] = {}
    for row in panels.each(chosen):
        rows_by_facet.setdefault(tuple(row[column] for column in by), {})[row["method"]] = row
    ranks = [
        panels.order(experiment, c, (key[at] for key in rows_by_facet), experiment.where) for at, c in enumerate(by)
    ]

    def rank(key: tuple) -> list[int]:
        return [len(known) if text.missing(v) else known.index(v) for known, v in zip(ranks, key)]

    facets = []
    for key in sorted(rows_by_facet, key=rank):
        rows = rows_by_facet[key]
        finite = [row["final"] for row in rows.values() if math.isfinite(row["final"])]
        least = (min(finite) if experiment.lower else max(finite)) if finite else None
        baseline = rows[experiment.methods[0].key]["final"] if experiment.methods[0].key in rows else math.nan
        facets.append(
            Facet(
                tuple(text.named(experiment, column, value) for column, value in zip(by, key)),
                tuple(
                    BestSetting(
                        experiment.method(method),
                        row["final"],
                        row["half_width"],
                        tuple(text.value(row[column]) for column in experiment.settings),
                        int(row["seeds"]),
                        sum(not math.isfinite(final) for final in results.rows_of(runs, row, model_columns)["final"]),
                        _ratio(row["final"], baseline),
                        row["final"] == least,
                    )
                    for method, row in ((m, rows[m]) for m in panels.order(experiment, "method", rows, {}))
                ),
            )
        )
    return facets


def _ratio(final: float, baseline: float) -> float | None:
    return final / baseline if math.isfinite(final) and math.isfinite(baseline) and baseline else None


def sentence(facets: Sequence[Facet], experiment: spec.Experiment) -> str:
    """Which method has the lowest error in which case, and whether the intervals over the seeds overlap."""
    won: dict[str, list[Facet]] = {}
    for facet in facets:
        if facet.best is not None:
            won.setdefault(facet.best.method.label, []).append(facet)
    if not won:
        return "Every model diverged."
    ranked = sorted(won.items(), key=lambda pair: -len(pair[1]))
    parts = [_part(label, places, len(facets)) for label, places in ranked]
    words = f"{'Lowest' if experiment.lower else 'Highest'} {experiment.label}: {'; '.join(parts)}."
    lost = sum(facet.best is None for facet in facets)
    if lost:
        words += f" In {lost} of {len(facets)} cases every model diverged."
    if all(entry.seeds == 1 for facet in facets for entry in facet.entries):
        return f"{words} One seed each, so there are no intervals."
    contested = [facet for facet in facets if sum(not entry.diverged for entry in facet.entries) > 1]
    clear = sum(facet.clear for facet in contested)
    if len(contested) == 1:
        words += f" Its 95 % interval overlaps {'no other' if clear else 'another'}."
    elif contested:
        words += f" The best one's 95 % interval is clear of all others in {clear} of {len(contested)} cases."
    return words


def _part(label: str, places: Sequence[Facet], count: int) -> str:
    """
    >>> sgd = [Facet(("sgd", "batch size 32"), ()), Facet(("sgd", "batch size 256"), ())]
    >>> _part("l2", sgd, 4)
    'l2 in 2 of 4 cases (sgd: batch size 32, batch size 256)'
    >>> _part("l2", sgd, 2), _part("l2", sgd[:1], 1)
    ('l2 in all 2 cases', 'l2')
    """
    if len(places) == count:
        return f"{label} in all {count} cases" if count > 1 else label
    groups: dict[str, list[str]] = {}
    for place in places:
        groups.setdefault(", ".join(place.names[:-1]), []).append(place.names[-1])
    listed = "; ".join(f"{first}: {', '.join(last)}" if first else ", ".join(last) for first, last in groups.items())
    return f"{label} in {len(places)} of {count} cases ({listed})"
