"""What a long run says of itself: a bar in a terminal, and elsewhere a line now and then to the log."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

Progress = Callable[[int, int, float], None]
EVERY_S = 10.0  # between two lines of the log
log = logging.getLogger("closedform.equations")


@contextlib.contextmanager
def shown(progress: Progress | bool, steps: int) -> Iterator[Progress]:
    """What to call after each step: the caller's own function; with True a bar, where rich is installed and a person looks
    at the terminal, or lines to the logger `closedform.equations`; with False nothing is shown."""
    if callable(progress):
        yield progress
    elif not progress or steps == 0:
        yield lambda step, total, loss: None
    elif _interactive():
        with _bar(steps) as bar:
            yield bar
    else:
        yield _Lines()


def _interactive() -> bool:
    if not sys.stderr.isatty():
        return False
    try:
        import rich.progress  # noqa: F401  # only whether it is there
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def _bar(steps: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Display

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Display(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("training", total=steps)

        def step(done: int, total: int, loss: float) -> None:
            display.update(task, completed=done, description=f"loss {loss:.1e}")

        yield step


class _Lines:
    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()
        self._first: int | None = None

    def __call__(self, step: int, total: int, loss: float) -> None:
        now = time.monotonic()
        first = self._first = step if self._first is None else self._first  # a run that goes on does not start at 1
        if now - self._last < EVERY_S and step < total:
            return
        self._last = now
        left = (now - self._begin) / (step - first + 1) * (total - step)
        log.info("step %d of %d, loss %.1e, about %.0f s left", step, total, loss, left)
