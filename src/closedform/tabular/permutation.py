"""Permutation importance: how much worse the predictions become when the values of one column are shuffled.

A table of many columns would wait for it longer than for the training. So the work is cut to a budget of seconds: first to
fewer rows, then to fewer shuffles, then to the columns that the predictions go with most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import comparing, frames

SHUFFLES, MOST_ROWS, LEAST_ROWS = 5, 2000, 200
TOGETHER = 2000  # rows of several shuffles that are predicted at once
BUDGET = 3.0  # seconds


@dataclass
class Importance:
    """Columns with the error that shuffling them adds, its mean and deviation over the shuffles, the largest first."""

    entries: list[tuple[str, float, float]]
    rows: int
    shuffles: int
    columns: int  # in all, of which `entries` may be the first ones

    def caption(self) -> str:
        shuffles = f"Mean of {self.shuffles} shuffles" if self.shuffles > 1 else "One shuffle"
        spread = "; the thin line is one standard deviation" if self.shuffles > 1 else ""
        cut = ""
        if len(self.entries) < self.columns:
            cut = f" Looked at: the {len(self.entries)} of {self.columns} columns that the predictions go with most."
        more = " --importance full takes more time for it." if cut or self.shuffles < SHUFFLES else ""
        return f"{shuffles} of {self.rows:,} test rows{spread}.{cut}{more}"


def importance(
    estimator: Any,
    X: np.ndarray,
    y: np.ndarray,
    task: str,
    seed: int,
    *,
    budget: float | None = BUDGET,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Importance:
    """The importance of every column of the estimator's preparation, which made `X`; all of it where `budget` is None."""
    model, blocks = frames.for_prepared(estimator), estimator.preparation_.blocks()
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(X))[:MOST_ROWS]
    X, y = X[chosen], y[chosen]
    predicted, seconds = _timed(model, X)
    shuffles = SHUFFLES
    if budget is not None:
        affordable = budget / seconds * len(X)  # rows that can be predicted
        rows = int(min(len(X), max(LEAST_ROWS, affordable / (len(blocks) * shuffles))))
        X, y, predicted = X[:rows], y[:rows], predicted[:rows]
        shuffles = int(min(shuffles, max(1, affordable / (len(blocks) * rows))))
        blocks = _first(blocks, X, predicted, task, int(max(1, affordable / (shuffles * rows))))
    base = comparing.error(task, y, predicted)
    together = min(shuffles, max(1, TOGETHER // len(X)))  # few rows are predicted faster many at a time
    shuffled = np.tile(X, (together, 1))
    entries = []
    for done, (name, block) in enumerate(blocks, 1):
        added = []
        for low in range(0, shuffles, together):
            rows = np.concatenate([generator.permutation(len(X)) for _ in range(min(together, shuffles - low))])
            shuffled[: len(rows), block] = X[rows, block]
            predictions = model.predict(shuffled[: len(rows)]).reshape(-1, len(X))
            added += [comparing.error(task, y, values) - base for values in predictions]
        shuffled[:, block] = np.tile(X[:, block], (together, 1))
        entries.append((name, float(np.mean(added)), float(np.std(added))))
        progress(done, len(blocks))
    entries.sort(key=lambda entry: -entry[1])
    return Importance(entries, len(X), shuffles, len(estimator.preparation_.blocks()))


def _timed(model: Any, X: np.ndarray) -> tuple[np.ndarray, float]:
    model.predict(X[:1])  # the first call is slower
    start = time.perf_counter()
    return model.predict(X), max(time.perf_counter() - start, 1e-6)


def _first(
    blocks: list[tuple[str, slice]], X: np.ndarray, predicted: np.ndarray, task: str, count: int
) -> list[tuple[str, slice]]:
    """The columns with the largest correlation of one of their inputs with the predictions, as many as can be paid for."""
    if count >= len(blocks):
        return blocks
    Y = predicted[:, None] if task == "regression" else (predicted[:, None] == np.unique(predicted)).astype(np.float64)
    correlation = np.abs(_standard(X).T @ _standard(Y)).max(1)
    strength = [correlation[block].max() for _, block in blocks]
    return [blocks[k] for k in sorted(np.argsort(strength)[::-1][:count])]


def _standard(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean(0)
    length = np.sqrt(np.square(centred).sum(0))
    return centred / np.where(length > 0, length, 1.0)
