"""The sentences of the paper as checks on results.

A check says what is claimed (in our words), the figures, and whether it holds. `closedform claims qm9` prints them from the
results in the repository. `thresholds` has the numbers that were taken for words such as "comparable" and "fails".
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from .verdicts import Check, markdown, show

__all__ = ["EXPERIMENTS", "Check", "check", "markdown", "show"]

EXPERIMENTS = ("qm9", "fno", "dfiv", "cifar100")


def check(experiment: str, folder: Path) -> list[Check]:
    """Every check on the results of an experiment that the folder can answer."""
    if experiment not in EXPERIMENTS:
        raise ValueError(f"there are no claims about {experiment!r}; expected one of {', '.join(EXPERIMENTS)}")
    return import_module(f".{experiment}", __name__).check(folder)
