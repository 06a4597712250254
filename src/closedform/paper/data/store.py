"""Where data lie, and arrays in files that are checked when read.

A file is looked for in the folder named by the environment variable `CLOSEDFORM_DATA`, then in the cache: the folder named
by `CLOSEDFORM_CACHE`, or `closedform` in the user's own cache folder.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import numpy as np

from ...files import atomic, remove_stale

if TYPE_CHECKING:
    from torch import Tensor

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class ThreeParts:
    """Inputs and targets for training, for validation and for the test."""

    x_train: Tensor
    y_train: Tensor
    x_validation: Tensor
    y_validation: Tensor
    x_test: Tensor
    y_test: Tensor


def data_file(name: str) -> Path | None:
    """The file of this name in the folder `CLOSEDFORM_DATA`, if there is one."""
    folder = os.environ.get("CLOSEDFORM_DATA")
    path = Path(folder).expanduser() / name if folder else None
    return path if path is not None and path.is_file() else None


def cache_folder() -> Path:
    """The folder for data that were computed once and can be computed again."""
    if own := os.environ.get("CLOSEDFORM_CACHE"):
        return Path(own).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "closedform"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "closedform"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "closedform" / "Cache"
    return Path.home() / ".cache" / "closedform"


def save(path: Path, arrays: Arrays) -> None:
    """Write the arrays as an npz file, whole or not at all."""
    with atomic(path) as file, ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)  # np.savez would pickle without a word


def read(path: Path, most: int | None = None) -> Arrays:
    """All arrays of an npz file; a ValueError that names the file if it is damaged, or would take more than `most` bytes of
    memory: zeros are compressed a thousand times.

    An npz file is a zip file, and so holds a CRC-32 of every array, which is compared as the array is read.
    """
    try:
        # opened here, for numpy leaves a damaged file open
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            size = sum(member.file_size for member in arrays.zip.infolist())
            if most is not None and size > most:
                raise ValueError(f"its arrays have {size:,} bytes; expected at most {most:,}")
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # numpy, zipfile and zlib raise a dozen kinds on damaged bytes
        raise ValueError(f"{path} cannot be read as an npz file: {error}") from error


def cached(name: str, make: Callable[[], Arrays], check: Callable[[Arrays], None]) -> Arrays:
    """The arrays of the cache file `name`, computed and written if it is not there, damaged, or fails the check."""
    path = cache_folder() / name
    if path.is_file():
        try:
            arrays = read(path)
            check(arrays)
            return arrays
        except ValueError as error:
            warnings.warn(f"the cached data are computed again: {error}", stacklevel=2)
    arrays = make()
    check(arrays)
    try:
        save(path, arrays)
        remove_stale(path.parent)
    except OSError as error:
        warnings.warn(f"{path} cannot be written, so the next run computes it again: {error}", stacklevel=2)
    return arrays
