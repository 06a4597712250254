"""Where a training stood after its last epoch, in one file, written whole after every epoch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..files import atomic
from .loop import Engine, Plan, Record

FILE = "checkpoint.safetensors"


class Stopwatch:
    """Seconds since it was made, and those of a run before that was stopped."""

    def __init__(self) -> None:
        self.start, self.before = time.perf_counter(), 0.0

    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.start


def write(path: Path, identity: str, record: Record, engine: Engine, seconds: float) -> None:
    from safetensors.torch import save

    tensors = {f"engine.{name}": tensor for name, tensor in engine.state().items()}
    tensors |= {f"kept.{name}": tensor for name, tensor in record.kept.items()}
    numbers = {k: v for k, v in vars(record).items() if k != "kept"}
    head = json.dumps({"identity": identity, "record": numbers, "seconds": seconds})
    data = save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, metadata={"training": head})
    with atomic(path) as file:
        file.write(data)


def read(path: Path, identity: str) -> tuple[Record, dict[str, Tensor], float] | None:
    """What `write` wrote for this identity (the data and all settings); None where there is nothing, or of another."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            head = json.loads((file.metadata() or {}).get("training", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, json.JSONDecodeError):
        return None
    if head.get("identity") != identity:
        return None
    record = Record(**head["record"])
    record.kept = {name[len("kept.") :]: t for name, t in tensors.items() if name.startswith("kept.")}
    engine = {name[len("engine.") :]: t for name, t in tensors.items() if name.startswith("engine.")}
    return record, engine, head["seconds"]


def hooks(path: Path, identity: str, shown: Callable[[Record, Plan], None], watch: Stopwatch) -> dict[str, Any]:
    """The arguments of an estimator's `_fit` that write after every epoch and go on from what is there."""

    def on_epoch(record: Record, engine: Engine, plan: Plan) -> None:
        write(path, identity, record, engine, watch.seconds())
        shown(record, plan)

    def resume() -> tuple[Record, dict[str, Tensor]] | None:
        found = read(path, identity)
        if found is None:
            return None
        record, state, watch.before = found
        return record, state

    return {"resume": resume, "on_epoch": on_epoch}
