"""How long a piece of work will take, as a sentence once there is something to go by."""

from __future__ import annotations

import time
from collections.abc import Callable

MEASURED = 10.0  # seconds of work after which a guess at the rest is worth a sentence


def duration(seconds: float) -> str:
    """
    >>> duration(0.4), duration(75), duration(600), duration(9000)
    ('less than a second', '75 s', '10 min', '2.5 h')
    """
    if seconds < 1:
        return "less than a second"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Pace:
    """Says once, after some seconds of work, how long the rest will take at that speed."""

    def __init__(self, say: Callable[[str], object], subject: str = "This"):
        self._say, self._subject = say, subject
        self._start: tuple[float, float] | None = None
        self._said = False

    def at(self, done: float, total: float) -> None:
        """So much of the work is done."""
        now = time.perf_counter()
        if self._start is None:
            self._start = (now, done)
        since, before = self._start
        if self._said or now - since < MEASURED or done <= before:
            return
        self._said = True
        left = (total - done) * (now - since) / (done - before)
        if left > MEASURED:
            self._say(f"{self._subject} will take about {duration(left)}.")
