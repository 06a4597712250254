"""From the folder in which a training works to the folder of its model.

A training works in `NAME.partial`, which it makes and marks as its own. A folder of that name that somebody else made is
left alone, and no link in it is followed. When the model is finished its files take the place of an older model's at once.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..files import CLAIM, TEMPORARY, atomic, claimed
from .folder import FILES, check_free

CHECKPOINT = "checkpoint.safetensors"  # of a training that has not ended
READY, REPLACED = "ready", "replaced"  # folders in the one where a training works
MARKER, MARK = ".closedform-train", b"closedform train works in this folder\n"
OWN = (*FILES, CHECKPOINT, READY, REPLACED, CLAIM, MARKER)


@contextmanager
def workspace(partial: Path) -> Iterator[None]:
    """The folder to work in, made or found again, and held for this process; a ValueError where it is not ours."""
    check_ours(partial)
    with claimed(partial):
        with atomic(partial / MARKER) as file:
            file.write(MARK)
        yield


def check_ours(partial: Path) -> None:
    """Raise a ValueError unless the folder is free, or one in which a training worked before and that holds no links."""
    if not partial.exists() and not partial.is_symlink():
        return
    if not _is_folder(partial) or not _is_marked(partial):
        raise ValueError(
            f"{partial} is in the way: closedform train works in a folder of this name and did not make this one; move it, "
            "or choose another folder with --out"
        )
    for name in OWN:
        if (partial / name).is_symlink():
            raise ValueError(f"{partial / name} is a link, which closedform train did not make; remove it")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_marked(partial: Path) -> bool:
    """Whether we made the folder. One that we had no time to mark holds nothing but a claim and temporary files."""
    marker = partial / MARKER
    if marker.is_file() and not marker.is_symlink():
        return marker.stat().st_size == len(MARK) and marker.read_bytes() == MARK
    return all(
        path.is_file() and not path.is_symlink() and (path.name == CLAIM or path.name.endswith(TEMPORARY))
        for path in partial.iterdir()
    )


def publish(partial: Path, out: Path) -> None:
    """Give the finished files of `partial` the folder `out`, in place of an older model's; other files in it stay."""
    recover(partial, out)
    check_free(out)
    ready, replaced = partial / READY, partial / REPLACED
    ready.mkdir(exist_ok=True)
    for name in FILES:
        os.replace(partial / name, ready / name)
    if not out.exists():
        os.replace(ready, out)
        return
    os.replace(ready, replaced)
    if not exchange(replaced, out):
        os.replace(replaced, ready)
        os.replace(out, replaced)
        os.replace(ready, out)
    recover(partial, out)


def recover(partial: Path, out: Path) -> None:
    """What is left of a folder that `publish` was replacing: the files of the model go, and all others go back to `out`."""
    replaced = partial / REPLACED
    if not _is_folder(replaced):
        return
    if not out.exists():
        os.replace(replaced, out)
        return
    for entry in replaced.iterdir():
        if entry.name in FILES:
            entry.unlink()
        elif not (out / entry.name).exists():
            os.replace(entry, out / entry.name)
    with suppress(OSError):  # not empty: nothing that is not ours is removed
        replaced.rmdir()


def clear(partial: Path) -> None:
    """Remove the files of a training that is over, and the folder if nothing else is in it."""
    for folder in (partial / READY, partial):
        if not _is_folder(folder):
            continue
        for name in (*FILES, CHECKPOINT):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob(f".*{TEMPORARY}"):
            path.unlink(missing_ok=True)
        if {path.name for path in folder.iterdir()} <= {CLAIM, MARKER}:
            for name in (CLAIM, MARKER):
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # another run may be starting in it
                folder.rmdir()


def exchange(first: Path, second: Path) -> bool:
    """Let two folders change names at once, so that there is one of either name at every moment. False where the system
    cannot do that (neither Linux nor macOS, or a file system without it); then nothing has changed."""
    names = os.fsencode(first), os.fsencode(second)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            here = -100  # AT_FDCWD: relative to the working folder; 2 is RENAME_EXCHANGE
            return libc.renameat2(here, names[0], here, names[1], 2) == 0
        if sys.platform == "darwin":
            return libc.renamex_np(*names, 2) == 0  # RENAME_SWAP
    except (AttributeError, OSError, TypeError):  # an older C library, or none
        pass
    return False
