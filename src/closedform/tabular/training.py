"""`closedform train`: from a file to a folder with a model, its report and its predictions; goes on where it was killed."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..files import atomic
from ..stack.loop import Checkpoint
from . import comparing, folder, page, permutation, predicting, publishing, reading
from . import target as targets
from .choosing import choose
from .classifier import ClosedFormClassifier
from .loop import Plan, Record
from .reading import TableError
from .regressor import ClosedFormRegressor

if TYPE_CHECKING:
    import pandas as pd

    from .permutation import Importance

HINT = "; --categorical {0} takes the column as texts, and --ignore {0} leaves it out"
KEPT = (
    "the model keeps {:,} training rows, in its file too, and looks up those nearest to a new row;"
    " --no-neighbours leaves them out"
)

EVERY_S = 1.0  # between checkpoints, which are small


@dataclass
class Outcome:
    """The result of a training: errors on the test rows, of the model and of the models it is compared with."""

    model: folder.TableModel
    metric: str
    scores: dict[str, float]
    quality_name: str  # of what stands beside the errors: R² or accuracy
    quality: dict[str, float]
    seconds: dict[str, float]
    train_rows: int
    test_rows: int
    importance: Importance | None = None
    intervals: str | None = None  # how they do on the test rows, in words
    remarks: list[str] = field(default_factory=list)  # besides those about columns, which the preparation has


def train(
    data: Path,
    target: str,
    out: Path,
    *,
    categorical: Sequence[str] = (),
    ignored: Sequence[str] = (),
    task: str = "auto",
    seed: int = 0,
    max_iter: int | None = None,
    effort: float = 1.0,
    neighbours: bool = True,
    encoding: str = "utf-8-sig",
    overwrite: bool = False,
    importance: str = "quick",
    shown: Callable[[Record, Plan], None] = lambda record, plan: None,
    stage: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Train on `data`, test on a fifth of its rows, and write the folder `out`, which is whole or not there.

    While it works, everything lies in `out` with `.partial` at the end of its name; the same call goes on from there. The
    importance of the columns is "quick", which cuts it to some seconds, "full" or "none"."""
    out = out.resolve() if out.is_symlink() else out
    partial = out.with_name(out.name + ".partial")
    folder.check_free(out)
    table = reading.whole(data, encoding=encoding)
    with reading.naming(data):
        categorical, ignored = _named(table, categorical), _named(table, ignored)
        _check_columns(table, target, ignored)
    if not overwrite:
        folder.check_replaceable(out, target, data)
    with reading.naming(data):
        read = targets.read(table, target, task, categorical)
        y, task = read.y, read.task
        first, second = targets.split(y, seed, task)
        inputs = read.table.drop(columns=target)
        preparation = choose(inputs, rows=first, categorical=categorical, ignored=ignored, hint=HINT, by_name=True)
        X, X_test = preparation.transform(inputs.iloc[first]), preparation.transform(inputs.iloc[second])
    remarks = [*read.remarks, *comparing.cautions(len(second))]

    kind = ClosedFormRegressor if task == "regression" else ClosedFormClassifier
    epochs = "auto" if max_iter is None else max_iter
    estimator = kind(random_state=seed, max_iter=epochs, effort=effort, neighbours=neighbours)
    model = folder.TableModel(task, target, estimator)

    with publishing.workspace(partial):
        publishing.recover(partial, out)
        try:
            identity = _identity(X, y[first], estimator)
            seconds = {}
            stage("training")
            start = time.perf_counter()
            checkpoint = Checkpoint(partial / publishing.CHECKPOINT, identity, EVERY_S, or_anew=True)
            estimator._fit(inputs.iloc[first], y[first], preparation=preparation, checkpoint=checkpoint, on_epoch=shown)
            seconds["closedform"] = checkpoint.seconds + time.perf_counter() - start
            if estimator.neighbours_ is not None:
                remarks.append(KEPT.format(len(estimator.neighbours_.rows)))
            stage("comparing")
            test = inputs.iloc[second]
            predicted = {"closedform": estimator.predict(test)}
            for name, other in comparing.baselines(task, estimator, seed).items():
                start = time.perf_counter()
                predicted[name] = other.fit(X, y[first]).predict(X_test)
                seconds[name] = time.perf_counter() - start
            scores = {name: comparing.error(task, y[second], values) for name, values in predicted.items()}
            quality = {name: comparing.quality(task, y[second], score) for name, score in scores.items()}
            outcome = Outcome(
                model,
                comparing.METRIC[task],
                scores,
                comparing.QUALITY[task],
                quality,
                seconds,
                len(first),
                len(second),
                intervals=predicting.interval_sentence(model, test, y[second]),
                remarks=remarks,
            )
            if importance != "none":
                stage("importance")
                budget = None if importance == "full" else permutation.BUDGET
                outcome.importance = permutation.importance(
                    estimator, X_test, y[second], task, seed, budget=budget, progress=progress
                )

            stage("writing")
            rows = predicting.predictions(model, test)
            rows.insert(0, f"true {target}", y[second])
            text = io.StringIO()
            predicting.write(rows, text)
            with atomic(partial / folder.PREDICTIONS) as file:
                file.write(text.getvalue().encode())
            page.write(partial / folder.REPORT, data.name, outcome, y[second], predicted["closedform"])
            folder.save(
                model,
                partial,
                {
                    "data": folder.origin(data, out),
                    "scores": {"metric": outcome.metric, **scores},
                    outcome.quality_name: quality,
                    "seconds": {name: round(value, 3) for name, value in seconds.items()},
                    "rows": {"train": len(first), "test": len(second)},
                    "seed": seed,
                    "remarks": [*remarks, *preparation.remarks],
                },
            )
            publishing.publish(partial, out)
            publishing.clear(partial)
        except (ValueError, ArithmeticError, LookupError, TypeError):  # of the data: the same command would fail again
            publishing.clear(partial)
            raise
    return outcome


def _named(table: pd.DataFrame, entries: Sequence[str]) -> list[str]:
    """The columns that were named: each entry is a name or several with commas between them."""
    names = []
    for entry in entries:
        names += [entry] if entry in table.columns else [name.strip() for name in entry.split(",") if name.strip()]
    for name in names:
        _check_there(table, name)
    return names


def _check_there(table: pd.DataFrame, name: str) -> None:
    if name not in table.columns:
        close = reading.did_you_mean(name, table.columns)
        raise TableError(f"there is no column {name!r}{close}; the columns are {_listed(table.columns)}")


def _check_columns(table: pd.DataFrame, target: str, ignored: Sequence[str]) -> None:
    _check_there(table, target)
    if target in ignored:
        raise TableError(f"{target!r} is the target and cannot be ignored")
    if len(table.columns) < 2:
        raise TableError(f"{target!r} is the only column; expected others to predict it from")


def _listed(names: Any) -> str:
    names = [repr(name) for name in names]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _identity(X: np.ndarray, y: np.ndarray, estimator: Any) -> str:
    """Names a training: a checkpoint of other data, settings or of another version is not continued."""
    digest = hashlib.sha256(json.dumps([__version__, estimator.get_params()], default=str, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(X).tobytes())
    digest.update("\0".join(map(str, y)).encode())
    return digest.hexdigest()
