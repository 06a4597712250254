"""`closedform predict`: a model's predictions for a file of any length, at constant memory."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..files import atomic
from . import folder, reading
from .charts import number
from .reading import TableError

if TYPE_CHECKING:
    import pandas as pd

FORMULA = re.compile(r"[=+\-@\t\r]")  # how a cell begins that a spreadsheet would run


def predict(
    model_folder: Path,
    data: Path,
    out: Path,
    *,
    encoding: str = "utf-8-sig",
    rows: int = reading.PIECE,
    level: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write `out` with a row of predictions for every row of `data`; returns how many. It is whole or not there.

    level: of intervals, or sets of classes, beside the predictions; none without it."""
    if level is not None and not 0 < level < 1:
        raise ValueError(f"--level must be a share between 0 and 1, got {level:g}")
    if out.is_dir():
        raise ValueError(f"{out} is a folder; expected the name of a file for the predictions")
    if out.exists() and data.exists() and out.samefile(data):
        raise ValueError(f"{out} is the table itself, which the predictions would replace; --out names another file")
    model = folder.load(model_folder)
    if level is not None and model.estimator.distances_ is None:
        raise ValueError(f"{model_folder} has no intervals: it was trained on too few rows to hold some out")
    done = 0
    with atomic(out) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        for table in reading.pieces(data, encoding=encoding, rows=rows, columns=model.preparation.used):
            with reading.naming(data):
                piece = predictions(model, table, level)
            write(piece, text, header=done == 0)
            done += len(table)
            if progress is not None:
                progress(done)
        text.flush()
        text.detach()
        if done == 0:
            raise TableError(f"{data}: the table has no rows; expected at least 1")
    return done


def predictions(model: folder.TableModel, inputs: pd.DataFrame, level: float | None = None) -> pd.DataFrame:
    """The predicted target, and for classes their probabilities; the index is the row. With a level also the ends of an
    interval that holds such a share of the targets, or the classes of a set that does."""
    import pandas as pd

    name = model.target
    if model.task == "regression":
        table = pd.DataFrame({f"predicted {name}": model.estimator.predict(inputs)}, index=inputs.index)
        if level is not None:
            ends = model.estimator.predict_interval(inputs, 1 - level)
            table[f"{name} from"], table[f"{name} to"] = ends[:, 0], ends[:, 1]
    else:
        probabilities = model.estimator.predict_proba(inputs)
        classes = model.estimator.classes_
        table = pd.DataFrame({f"predicted {name}": classes[probabilities.argmax(1)]}, index=inputs.index)
        for k, label in enumerate(classes):
            table[f"probability of {label}"] = probabilities[:, k]
        if level is not None:
            texts = classes.astype(str)
            sets = model.estimator.predict_set(inputs, 1 - level)
            table[f"{name} one of"] = [" | ".join(texts[chosen]) for chosen in sets]
    table.index.name = "row"
    return table


def interval_sentence(model: folder.TableModel, inputs: pd.DataFrame, y: np.ndarray, level: float = 0.9) -> str | None:
    """How the intervals or sets do on rows that were not trained on; None where too few rows were held out for them."""
    estimator = model.estimator
    if estimator.distances_ is None or len(estimator.distances_) * (1 - level) < 1:
        return None
    if model.task == "regression":
        ends = estimator.predict_interval(inputs, 1 - level)
        inside = float(np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])))
        reach = number(float(ends[0, 1] - ends[0, 0]) / 2)
        return (
            f"Intervals of {level:.0%} reach {reach} to both sides of a prediction and hold {inside:.0%} of these rows."
        )
    chosen = estimator.predict_set(inputs, 1 - level)
    inside = float(np.mean(chosen[np.arange(len(y)), np.searchsorted(estimator.classes_, y)]))
    size = float(chosen.sum(1).mean())
    return (
        f"Sets of {level:.0%} have {size:.2f} classes on average and hold the right one for {inside:.0%} of these rows."
    )


def write(table: pd.DataFrame, file: IO[str], *, header: bool = True) -> None:
    """The table as CSV. A text that a spreadsheet would take for a formula gets an apostrophe in front; numbers do not."""
    safe = table.copy()
    for column in table.columns:
        if table[column].dtype.kind in "OU":
            safe[column] = [_harmless(value) for value in table[column]]
    safe.to_csv(file, header=header, lineterminator="\n")


def _harmless(value: Any) -> Any:
    """
    >>> _harmless("=1+1"), _harmless("-1"), _harmless("north")
    ("'=1+1", '-1', 'north')
    """
    if isinstance(value, str) and FORMULA.match(value) and not reading.is_number(value):
        return f"'{value}"
    return value
