"""Processes that work for another one and must not outlive it."""

from __future__ import annotations

import os
import threading
import time

SECONDS = 1.0  # between two looks at the parent
_watched: set[int] = set()


def end_with(parent: int) -> None:
    """End this process, within about a second, once the process `parent` that started it is gone.

    A parent that is killed cannot tell its workers, and a pool's idle workers would wait for minutes. Called in the parent
    itself, or where processes have no parents (Windows), this does nothing.
    """
    if parent in (os.getpid(), *_watched) or os.name != "posix":
        return
    _watched.add(parent)
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="closedform-parent").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS)
    os._exit(1)  # files are written whole or not at all, so nothing is left half done
