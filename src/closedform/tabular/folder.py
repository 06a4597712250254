"""The folder of a trained model: `model.safetensors` and `model.json`, numbers and texts only; nothing in it is executed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__, estimator_files
from ..files import atomic
from .columns import Preparation

FORMAT = 2
MODEL, JSON, PREDICTIONS, REPORT = "model.safetensors", "model.json", "predictions.csv", "report.html"
FILES = (MODEL, JSON, PREDICTIONS, REPORT)


@dataclass
class TableModel:
    """A fitted estimator, which has the preparation of its tables, and what it predicts."""

    task: str  # "regression" or "classification"
    target: str
    estimator: Any

    @property
    def preparation(self) -> Preparation:
        return self.estimator.preparation_


def save(model: TableModel, folder: Path, extra: dict[str, Any]) -> None:
    """Write the model, and its description with what `extra` adds to it."""
    estimator_files.save(model.estimator, folder / MODEL)
    body = {
        "format": FORMAT,
        "closedform": __version__,
        "task": model.task,
        "target": model.target,
        "columns": model.preparation.descriptions(),
        **extra,
        "preparation": model.preparation.to_json(),
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
        preparation = Preparation.from_json(body["preparation"])
        task, target = body["task"], body["target"]
        if task not in ("regression", "classification") or not isinstance(target, str):
            raise ValueError(f"task {task!r} and target {target!r}")
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as bad:
        reason = bad if isinstance(bad, ValueError) else repr(bad)
        raise ValueError(f"{path} is not a model description that this version knows: {reason}") from None
    if not (Path(folder) / MODEL).is_file():
        raise ValueError(f"{folder} holds no model: {MODEL} is not there")
    model = TableModel(task, target, estimator_files.load(Path(folder) / MODEL))
    if hasattr(model.estimator, "classes_") != (task == "classification"):
        raise ValueError(f"{folder}: {JSON} describes a {task}, and {MODEL} is none: they are of different models")
    if getattr(model.estimator, "preparation_", None) != preparation:
        raise ValueError(f"{folder}: {JSON} and {MODEL} do not describe the same columns: they are of different models")
    return model


def origin(data: Path, out: Path) -> str:
    """The file that a model is made of, as seen from the model's folder, so that both can be moved together."""
    try:
        return Path(os.path.relpath(data.resolve(), out.resolve())).as_posix()
    except ValueError:  # on another drive
        return data.resolve().as_posix()


def check_free(out: Path) -> dict[str, Any] | None:
    """Raise unless `out` is free, or the folder of a model that `closedform train` wrote; returns its description."""
    if not out.exists():
        return None
    if not (out / JSON).is_file():
        raise ValueError(f"{out} exists and holds no model; --out names another folder")
    try:
        body = json.loads((out / JSON).read_text(encoding="utf-8"))
        ours = isinstance(body, dict) and {"format", "closedform", "task", "target", "preparation"} <= set(body)
    except (ValueError, RecursionError):
        ours = False
    if not ours:
        raise ValueError(f"{out} exists, and its {JSON} is not one of closedform train; --out names another folder")
    return body


def check_replaceable(out: Path, target: str, data: Path) -> None:
    """Raise unless `out` is free or holds a model of this target and file, which a new training may replace."""
    body = check_free(out)
    if body is None or (body["target"] == target and body.get("data") == origin(data, out)):
        return
    raise ValueError(
        f"{out} holds a model of {body['target']!r} from {Path(str(body.get('data', 'another file'))).name}; --overwrite "
        "replaces it, and --out names another folder"
    )
