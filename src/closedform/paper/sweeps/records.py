"""Finished runs, a JSON file each, that need nothing but Python to be written and read.

The name of a file is the digest of the run's configuration, and a file is whole or not there. So any process may be killed
at any time, and folders of several machines are merged by copying their files together.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...files import atomic, remove_stale
from .grid import digest


class Records:
    """The finished runs of a folder: what `add` noted of a configuration, by `get`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._by_digest: dict[str, dict[str, Any]] = {}
        if folder.is_dir():
            remove_stale(folder)
        for path in sorted(folder.glob("*.json")):
            if (record := _read(path)) is not None:
                self._by_digest[path.stem] = record

    def __len__(self) -> int:
        return len(self._by_digest)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._by_digest.values())

    def get(self, config: dict[str, Any]) -> dict[str, Any] | None:
        return self._by_digest.get(digest(config))

    def add(self, config: dict[str, Any], **noted: Any) -> None:
        """Write the record of a configuration: `noted`, and the configuration under the name "config"."""
        record = {"config": config, **noted}
        with atomic(self.folder / f"{digest(config)}.json") as file:
            file.write(json.dumps(record).encode() + b"\n")
        self._by_digest[digest(config)] = record

    def merge(self, folder: Path) -> int:
        """Copy the records of another folder that this one lacks; how many they were."""
        if not folder.is_dir():
            raise ValueError(f"{folder} holds no runs: there is no such folder")
        missing = [path for path in sorted(folder.glob("*.json")) if path.stem not in self._by_digest]
        count = 0
        for path in missing:
            if (record := _read(path)) is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, self.folder / path.name)
                self._by_digest[path.stem] = record
                count += 1
        return count


def _read(path: Path) -> dict[str, Any] | None:
    """A record, or None where the file is none; a damaged one is told, and its run is made again."""
    try:
        record = json.loads(path.read_text())
        whole = path.stem == digest(record["config"])
    except (ValueError, KeyError, TypeError, OSError):
        whole = False
    if not whole:
        warnings.warn(f"{path} is not the record of a run; it is left out", stacklevel=3)
        return None
    return record
