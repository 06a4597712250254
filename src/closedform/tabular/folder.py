"""The folder of a trained model: `model.safetensors` and `model.json`, numbers and texts only; nothing in it is executed."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..files import CLAIM, TEMPORARY, atomic
from . import checkpoint, files, preparing
from .preparing import Preparation

FORMAT = 1
MODEL, JSON, PREDICTIONS, REPORT = "model.safetensors", "model.json", "predictions.csv", "report.html"
FILES = (MODEL, JSON, PREDICTIONS, REPORT)
WORKING = (checkpoint.FILE, CLAIM)
READY, OLD = "ready", "replaced"  # folders in the one where a training works


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
            raise ValueError(f"format {body['format']}, and this version reads {FORMAT}")
        found = Preparation(**body["preparation"])
        preparing.check(found)
        task, target = body["task"], body["target"]
        if task not in ("regression", "classification") or not isinstance(target, str):
            raise ValueError(f"task {task!r} and target {target!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as bad:
        said = bad if isinstance(bad, ValueError) else repr(bad)
        raise ValueError(f"{path} is not a model description that this version knows: {said}") from None
    if not (Path(folder) / MODEL).is_file():
        raise ValueError(f"{folder} holds no model: {MODEL} is not there")
    model = Model(task, target, found, files.load(Path(folder) / MODEL))
    if hasattr(model.estimator, "classes_") != (task == "classification"):
        raise ValueError(f"{folder}: {JSON} tells of {task}, but {MODEL} does not: they are of different models")
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


def publish(partial: Path, out: Path) -> None:
    """Give the finished files of `partial` the folder `out`, in place of an older model's; other files in it stay."""
    recover(partial, out)
    check_free(out)
    ready, old = partial / READY, partial / OLD
    ready.mkdir(exist_ok=True)
    for name in FILES:
        os.replace(partial / name, ready / name)
    if out.exists():
        os.replace(out, old)
    os.replace(ready, out)
    recover(partial, out)


def recover(partial: Path, out: Path) -> None:
    """What the folder that `publish` was replacing when it was stopped held besides the model goes where it belongs."""
    old = partial / OLD
    if not old.is_dir():
        return
    if not out.exists():
        os.replace(old, out)
        return
    for entry in old.iterdir():
        if entry.name in FILES:
            entry.unlink()
        elif not (out / entry.name).exists():
            os.replace(entry, out / entry.name)
    with suppress(OSError):  # not empty: nothing that is not ours is removed
        old.rmdir()


def clear(partial: Path) -> None:
    """Remove the files of a training that is over, and the folder if nothing else is in it."""
    for folder in (partial / READY, partial):
        for name in (*FILES, *WORKING):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob(f".*{TEMPORARY}"):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
