"""Files that are whole or not there, whoever writes and whenever it stops."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".closedform-tmp"
CLAIM = ".claimed"
STALE = 3600.0


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the name `path` when the block ends well, and leaves nothing when it does not.

    Readers see the old file or the new one; of two processes that write at once, the later wins. A process that is killed
    in between leaves a temporary file, which `remove_stale` takes away.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name survives a power cut only once its folder is on the disk too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Holds the folder for this process; a second one that claims it meanwhile gets a ValueError.

    The operating system gives it up when the process ends, however it ends. Where there is no such lock (Windows) nothing
    is held: two runs then do the same work twice, and the results are still whole."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # a link would lead to somebody's file; nothing is written, so nothing is lost where the name is taken
        descriptor = os.open(folder / CLAIM, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as bad:
        raise ValueError(f"{folder / CLAIM} cannot be used to claim the folder: {bad.strerror}") from None
    with open(descriptor, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another run is at work in {folder}; wait for it, or choose another folder") from None
        yield


def remove_stale(folder: Path) -> None:
    """Remove the temporary files of processes that were killed.

    They are known by an age of an hour: a process number says nothing on a folder that several machines share, and a
    living writer has its file for less than a second.
    """
    for path in folder.glob(f".*{TEMPORARY}"):
        with suppress(FileNotFoundError):  # another process may be cleaning up too
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink()
