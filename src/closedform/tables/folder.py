"""The folder of a trained model: `model.safetensors` and `model.json`, numbers and texts only; nothing in it is executed."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..estimators import files
from ..files import atomic
from . import preparing
from .preparing import Preparation

FORMAT = 1
MODEL, JSON = "model.safetensors", "model.json"


@dataclass
class Model:
    """A fitted estimator, and how a table becomes its input."""

    task: str  # "regression" or "classification"
    target: str
    preparation: Preparation
    estimator: Any

    def pipeline(self) -> Any:
        """As one scikit-learn `Pipeline`, which takes the data frames that `preparing.frame` makes."""
        from sklearn.pipeline import Pipeline

        return Pipeline([("columns", preparing.transformer(self.preparation)), ("network", self.estimator)])


def save(model: Model, folder: Path, extra: dict[str, Any]) -> None:
    files.save(model.estimator, folder / MODEL)
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


def load(folder: Path) -> Model:
    """The model of a folder that `closedform train` wrote."""
    path = Path(folder) / JSON
    if not path.is_file():
        raise ValueError(f"{folder} holds no model: expected {JSON} and {MODEL} in it, as closedform train writes them")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise ValueError(f"{path} has format {body['format']}, and this version reads {FORMAT}")
        found = Preparation(**body["preparation"])
        model = Model(body["task"], body["target"], found, files.load(Path(folder) / MODEL))
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as bad:
        raise ValueError(f"{path} is not a model description that this version knows: {bad!r}") from None
    width = preparing.transformer(found).transform(_example(found)).shape[1]
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
    """Raise unless `out` is free, or a model's folder, which may be replaced."""
    if out.exists() and not (out / JSON).is_file():
        raise ValueError(f"{out} exists and holds no model; --out names another folder")


def publish(partial: Path, out: Path) -> None:
    """Give the finished folder its name, in place of an older model's."""
    check_free(out)
    old = out.with_name(f"{out.name}.old-{os.getpid()}")
    if out.exists():
        os.replace(out, old)
    os.replace(partial, out)
    if old.exists():
        with suppress(OSError):
            shutil.rmtree(old)
