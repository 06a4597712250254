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
from . import checkpoint, folder, page, predicting, preparing, publishing, reading
from .classifier import ClosedFormClassifier
from .loop import Plan, Record
from .reading import TableError
from .regressor import ClosedFormRegressor

if TYPE_CHECKING:
    import pandas as pd

TEST = 0.2
FEW = 10  # different whole numbers up to which a target is taken for classes
IMPORTANCE_ROWS = 2000


@dataclass
class Outcome:
    """The result of a training: errors on the test rows, of the model and of the models it is compared with."""

    model: folder.TableModel
    metric: str
    scores: dict[str, float]
    seconds: dict[str, float]
    train_rows: int
    test_rows: int
    remarks: list[str] = field(default_factory=list)


def train(
    data: Path,
    target: str,
    out: Path,
    *,
    categorical: Sequence[str] = (),
    task: str = "auto",
    seed: int = 0,
    max_iter: int | None = None,
    encoding: str = "utf-8-sig",
    shown: Callable[[Record, Plan], None] = lambda record, plan: None,
    stage: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Train on `data`, test on a fifth of its rows, and write the folder `out`, which is whole or not there.

    While it works, everything lies in `out` with `.partial` at the end of its name; the same call goes on from there."""
    out = out.resolve() if out.is_symlink() else out
    partial = out.with_name(out.name + ".partial")
    folder.check_free(out)
    table = reading.whole(data, encoding=encoding)
    for column in (target, *categorical):
        if column not in table.columns:
            raise TableError(f"{data}: there is no column {column!r}; the columns are {_listed(table.columns)}")
    if len(table.columns) < 2:
        raise TableError(f"{data}: {target!r} is the only column; expected others to predict it from")
    table, y, task, remarks = _target(data, table, target, task, categorical)
    first, second = _split(y, seed, task)
    inputs = [column for column in table.columns if column != target]
    preparation, left_out = preparing.find(data, table, inputs, categorical, first)
    remarks += left_out
    frame = preparing.frame(data, table, preparation)

    kind = ClosedFormRegressor if task == "regression" else ClosedFormClassifier
    estimator = kind(random_state=seed, max_iter="auto" if max_iter is None else max_iter)
    model = folder.TableModel(task, target, preparation, estimator)
    transform = preparing.transformer(preparation)
    X, X_test = transform.transform(frame.iloc[first]), transform.transform(frame.iloc[second])

    with publishing.workspace(partial):
        publishing.recover(partial, out)
        try:
            identity = _identity(X, y[first], estimator)
            seconds = {}
            stage("training")
            watch = checkpoint.Stopwatch()
            estimator._fit(X, y[first], **checkpoint.hooks(partial / checkpoint.FILE, identity, shown, watch))
            seconds["closedform"] = watch.seconds()
            stage("comparing")
            predicted = {"closedform": estimator.predict(X_test)}
            for name, other in _baselines(task, estimator, seed).items():
                start = time.perf_counter()
                predicted[name] = other.fit(X, y[first]).predict(X_test)
                seconds[name] = time.perf_counter() - start
            metric = "RMSE" if task == "regression" else "error rate"
            scores = {name: _error(task, y[second], values) for name, values in predicted.items()}
            outcome = Outcome(model, metric, scores, seconds, len(first), len(second), remarks)

            stage("writing")
            pipeline = model.pipeline()
            test = frame.iloc[second]
            rows = predicting.predictions(model, pipeline, test)
            rows.insert(0, f"true {target}", y[second])
            text = io.StringIO()
            predicting.write(rows, text)
            with atomic(partial / folder.PREDICTIONS) as file:
                file.write(text.getvalue().encode())
            importance = _importance(pipeline, test, y[second], seed)
            page.write(partial / folder.REPORT, data.name, outcome, y[second], predicted["closedform"], importance)
            folder.save(
                model,
                partial,
                {
                    "scores": {"metric": metric, **scores},
                    "seconds": {name: round(value, 3) for name, value in seconds.items()},
                    "rows": {"train": len(first), "test": len(second)},
                    "seed": seed,
                },
            )
            publishing.publish(partial, out)
            publishing.clear(partial)
        except (ValueError, ArithmeticError, LookupError, TypeError):  # of the data: the same command would fail again
            publishing.clear(partial)
            raise
    return outcome


def _target(
    data: Path, table: pd.DataFrame, target: str, task: str, categorical: Sequence[str]
) -> tuple[pd.DataFrame, np.ndarray, str, list[str]]:
    """The rows that have a target, the target itself, and the task."""
    remarks = []
    missing = table[target].isna()
    if missing.all():
        raise TableError(f"{data}: column {target!r}: all {len(table)} rows are missing; expected a target")
    if missing.any():
        count = int(missing.sum())
        remarks.append(f"{count} row{'s' * (count > 1)} without {target!r} {'are' if count > 1 else 'is'} left out")
        table = table.loc[~missing]
    values = table[target]
    numeric = target not in categorical and reading.is_numeric(values)
    if not numeric and target not in categorical and task != "classification":
        reading.check_spelling(data, target, values, hint="; --task classification takes it as classes")
    if task == "auto":
        task = "classification"
        if numeric:
            numbers = reading.numbers(data, target, values)
            whole = bool((numbers == numbers.round()).all())
            few = numbers.nunique() <= min(FEW, len(numbers) // 2)
            task = "classification" if whole and few else "regression"
        remarks.append(f"{target!r} is taken as a {task} target; --task chooses another")
    if task == "regression":
        y = reading.numbers(data, target, values, hint="; --task classification takes it as classes").to_numpy()
        if np.ptp(y) == 0:
            raise TableError(f"{data}: column {target!r}: every row is {y[0]:g}; there is nothing to predict")
    else:
        y = reading.texts(values).to_numpy().astype(str)
        labels, _counts = np.unique(y, return_counts=True)
        if len(labels) < 2:
            raise TableError(f"{data}: column {target!r}: every row is {labels[0]!r}; expected at least two classes")
        if len(labels) > max(2, len(y) // 2):
            raise TableError(f"{data}: column {target!r}: {len(labels)} classes in {len(y)} rows are too many")
    if len(y) < 4:
        raise TableError(
            f"{data}: {len(y)} row{'s' * (len(y) != 1)} with a target; expected at least 4 to train and test on"
        )
    return table, y, task, remarks


def _split(y: np.ndarray, seed: int, task: str) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(y))
    alone = np.zeros(len(y), dtype=bool)
    stratify = None
    size = max(1, round(TEST * len(y)))
    if task == "classification":
        _classes, place, counts = np.unique(y, return_inverse=True, return_counts=True)
        alone = counts[place] == 1  # a class of one row is there to train on, not to test
        several = int((counts > 1).sum())
        rest = rows[~alone]
        size = min(size, len(rest) - 1)
        stratify = y[rest] if several <= min(size, len(rest) - size) else None
    first, second = train_test_split(rows[~alone], test_size=size, random_state=seed, stratify=stratify)
    return np.sort(np.concatenate([first, rows[alone]])), np.sort(second)


def _identity(X: np.ndarray, y: np.ndarray, estimator: Any) -> str:
    """Names a training: a checkpoint of other data, settings or of another version is not continued."""
    digest = hashlib.sha256(json.dumps([__version__, estimator.get_params()], default=str, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(X).tobytes())
    digest.update("\0".join(map(str, y)).encode())
    return digest.hexdigest()


def _baselines(task: str, estimator: Any, seed: int) -> dict[str, Any]:
    """Ridge (or its classifier) on the inputs themselves, and a network of the same layers with a learned last one."""
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    ridge = RidgeCV if task == "regression" else RidgeClassifierCV
    plain = type(estimator)(rule="learned", members=1, weight_decay=0.0, max_iter=estimator.max_iter, random_state=seed)
    return {
        "ridge": make_pipeline(StandardScaler(), ridge(alphas=np.logspace(-3, 4, 15))),
        "plain Adam network": plain,
    }


def _error(task: str, y: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.sqrt(np.mean((y - predicted) ** 2)) if task == "regression" else np.mean(y != predicted))


def _importance(pipeline: Any, frame: pd.DataFrame, y: np.ndarray, seed: int) -> list[tuple[str, float, float]]:
    """How much worse the score becomes when a column is shuffled: mean and deviation of five times, the largest first."""
    from sklearn.inspection import permutation_importance

    if len(frame) > IMPORTANCE_ROWS:
        chosen = np.random.default_rng(seed).choice(len(frame), IMPORTANCE_ROWS, replace=False)
        frame, y = frame.iloc[chosen], y[chosen]
    scoring = "neg_root_mean_squared_error" if np.issubdtype(y.dtype, np.number) else "accuracy"
    importance: Any = permutation_importance(pipeline, frame, y, n_repeats=5, random_state=seed, scoring=scoring)
    order = np.argsort(-importance.importances_mean)
    return [
        (frame.columns[k], float(importance.importances_mean[k]), float(importance.importances_std[k])) for k in order
    ]


def _listed(names: Any) -> str:
    names = [repr(name) for name in names]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
