"""Warnings that name the user's own line, however many calls of ours and of torch lie between."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

PASSED = ("closedform", "torch", "sklearn")  # packages whose lines are nobody's to change


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost call that was not made by one of the packages `PASSED`."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
