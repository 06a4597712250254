"""`closedform predict`: a model's predictions for a file of any length, at constant memory."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import atomic
from . import folder, preparing, reading
from .reading import TableError

if TYPE_CHECKING:
    import pandas as pd


def predict(
    model_folder: Path,
    data: Path,
    out: Path,
    *,
    encoding: str = "utf-8-sig",
    rows: int = reading.PIECE,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write `out` with a row of predictions for every row of `data`; returns how many. It is whole or not there."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder; expected the name of a file for the predictions")
    if out.exists() and data.exists() and out.samefile(data):
        raise ValueError(f"{out} is the table itself, which the predictions would replace; --out names another file")
    model = folder.load(model_folder)
    pipeline = model.pipeline()
    done = 0
    with atomic(out) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        for table in reading.pieces(data, encoding=encoding, rows=rows, columns=model.preparation.columns):
            given = preparing.frame(data, table, model.preparation)
            predictions(model, pipeline, given).to_csv(text, header=done == 0, lineterminator="\n")
            done += len(table)
            if progress is not None:
                progress(done)
        text.flush()
        text.detach()
        if done == 0:
            raise TableError(f"{data}: the table has no rows; expected at least 1")
    return done


def predictions(model: folder.Model, pipeline: Any, given: pd.DataFrame) -> pd.DataFrame:
    """The predicted target, and for classes their probabilities; the index is the row."""
    import pandas as pd

    name = model.target
    if model.task == "regression":
        table = pd.DataFrame({f"predicted {name}": pipeline.predict(given)}, index=given.index)
    else:
        probabilities = pipeline.predict_proba(given)
        classes = model.estimator.classes_
        table = pd.DataFrame({f"predicted {name}": classes[probabilities.argmax(1)]}, index=given.index)
        for k, label in enumerate(classes):
            table[f"probability of {label}"] = probabilities[:, k]
    table.index.name = "row"
    return table
