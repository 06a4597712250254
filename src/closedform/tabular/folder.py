"""The folder of a trained model: `model.safetensors` and `model.json`, numbers and texts only; nothing in it is executed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__, estimator_files
from ..files import atomic
from . import preparing
from .preparing import Preparation

FORMAT = 1
MODEL, JSON, PREDICTIONS, REPORT = "model.safetensors", "model.json", "predictions.csv", "report.html"
FILES = (MODEL, JSON, PREDICTIONS, REPORT)


@dataclass
class TableModel:
    """A fitted estimator, and how a table becomes its input."""

    task: str  # "regression" or "classification"
    target: str
    preparation: Preparation
    estimator: Any

    def pipeline(self) -> Any:
        """As one scikit-learn `Pipeline`, which takes the data frames that `preparing.frame` makes."""
        from sklearn.pipeline import Pipeline

        return Pipeline([("columns", preparing.transformer(self.preparation)), ("network", self.estimator)])


def save(model: TableModel, folder: Path, extra: dict[str, Any]) -> None:
    """Write the model, and its description with what `extra` adds to it."""
    estimator_files.save(model.estimator, folder / MODEL)
    body = {
        "format": FORMAT,
        "closedform": __version__,
        "task": model.task,
        "target": model.target,
        "preparation": asdict(model.preparation),
        **extra,
    }
    with atomic(folder / JSON) as file:
        file.write((json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())


def load(folder: Path) -> TableModel:
    """The model of a folder that `closedform train` wrote."""
    path = Path(folder) / JSON
    if not path.is_file():
        raise ValueError(f"{folder} holds no model: expected {JSON} and {MODEL} in it, as closedform train writes them")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']}, and this version reads {FORMAT}")
        preparation = Preparation(**body["preparation"])
        preparing.check(preparation)
        task, target = body["task"], body["target"]
        if task not in ("regression", "classification") or not isinstance(target, str):
            raise ValueError(f"task {task!r} and target {target!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as bad:
        reason = bad if isinstance(bad, ValueError) else repr(bad)
        raise ValueError(f"{path} is not a model description that this version knows: {reason}") from None
    if not (Path(folder) / MODEL).is_file():
        raise ValueError(f"{folder} holds no model: {MODEL} is not there")
    model = TableModel(task, target, preparation, estimator_files.load(Path(folder) / MODEL))
    if hasattr(model.estimator, "classes_") != (task == "classification"):
        raise ValueError(f"{folder}: {JSON} describes a {task}, and {MODEL} is none: they are of different models")
    width = preparing.transformer(preparation).transform(_example(preparation)).shape[1]
    if width != model.estimator.n_features_in_:
        raise ValueError(
            f"{folder}: {JSON} describes {width} inputs, but {MODEL} has {model.estimator.n_features_in_}: "
            "they are of different models"
        )
    return model


def _example(preparation: Preparation) -> Any:
    import pandas as pd

    rows: dict[str, Any] = {c: [np.nan] for c in preparation.numbers}
    return pd.DataFrame(rows | {c: [v[0]] for c, v in zip(preparation.categories, preparation.values)})


def check_free(out: Path) -> None:
    """Raise unless `out` is free, or the folder of a model that `closedform train` wrote, which may be replaced."""
    if not out.exists():
        return
    if not (out / JSON).is_file():
        raise ValueError(f"{out} exists and holds no model; --out names another folder")
    try:
        body = json.loads((out / JSON).read_text(encoding="utf-8"))
        ours = isinstance(body, dict) and {"format", "closedform", "task", "target", "preparation"} <= set(body)
    except (ValueError, RecursionError):
        ours = False
    if not ours:
        raise ValueError(f"{out} exists, and its {JSON} is not one of closedform train; --out names another folder")
