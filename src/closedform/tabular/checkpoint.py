"""Where a training stood after its last epoch, in one archive, written whole after every epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import archive
from .loop import Engine, Plan, Record

FILE = "checkpoint.safetensors"
FORMAT = 1


class Stopwatch:
    """Seconds since it was started, and those of a run before that was stopped."""

    def __init__(self) -> None:
        self.start, self.before = time.perf_counter(), 0.0

    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.start


def write(path: Path, identity: str, record: Record, engine: Engine, seconds: float) -> None:
    tensors = {f"engine.{name}": tensor for name, tensor in engine.state().items()}
    tensors |= {f"kept.{name}": tensor for name, tensor in record.kept.items()}
    numbers = {k: v for k, v in vars(record).items() if k != "kept"}
    header = {"format": FORMAT, "training": identity, "record": numbers, "seconds": seconds}
    archive.write(path, header, tensors)


def read(path: Path, identity: str) -> tuple[Record, dict[str, Tensor], float] | None:
    """What `write` wrote for this identity (the data and all settings). None where there is nothing, or something damaged
    or of another training: then it starts anew."""
    if not path.is_file():
        return None
    try:
        header, tensors = archive.read(path)
        if header.get("format") != FORMAT or header.get("training") != identity:
            return None
        record = Record(**header["record"])
        seconds = float(header["seconds"])
    except (ValueError, TypeError, KeyError):
        return None
    record.kept = {name[len("kept.") :]: t for name, t in tensors.items() if name.startswith("kept.")}
    engine = {name[len("engine.") :]: t for name, t in tensors.items() if name.startswith("engine.")}
    return record, engine, seconds


def hooks(path: Path, identity: str, shown: Callable[[Record, Plan], None], watch: Stopwatch) -> dict[str, Any]:
    """The arguments of an estimator's `_fit` that write after every epoch and go on from what is there."""

    def on_epoch(record: Record, engine: Engine, plan: Plan) -> None:
        write(path, identity, record, engine, watch.seconds())
        shown(record, plan)

    def resume() -> tuple[Record, dict[str, Tensor]] | None:
        checkpoint = read(path, identity)
        if checkpoint is None:
            return None
        record, state, watch.before = checkpoint
        return record, state

    return {"resume": resume, "on_epoch": on_epoch}
