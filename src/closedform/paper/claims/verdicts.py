"""What a check says, as a table for a page and on the screen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Check:
    claim: str
    figures: str
    holds: bool
    beyond: bool = False  # ours, not the paper's


def listed(values: dict[Any, float], digits: str = ".2f") -> str:
    """
    >>> listed({32: 1.5, 256: 0.999})
    '32: 1.50, 256: 1.00'
    """
    return ", ".join(f"{key}: {value:{digits}}" for key, value in values.items())


def markdown(checks: list[Check]) -> str:
    """The checks as a table for a page."""
    lines = ["| | claim | figures |", "|---|---|---|"]
    for check in checks:
        verdict = "holds" if check.holds else "**does not hold**"
        lines.append(f"| {verdict} | {'(ours) ' if check.beyond else ''}{check.claim} | {check.figures} |")
    return "\n".join(lines)


def show(checks: list[Check], folder: Path, console: Any) -> None:
    """Print every check."""
    for beyond, title in ((False, "What the paper says"), (True, "Beyond the paper")):
        console.print(f"[bold]{title}[/]")
        for check in (c for c in checks if c.beyond is beyond):
            verdict = "[green]holds[/]         " if check.holds else "[red]does not hold[/] "
            console.print(
                f"  {verdict} {check.claim}\n                  [dim]{check.figures}[/]",
                highlight=False,
                soft_wrap=True,
            )
    held = sum(check.holds for check in checks)
    console.print(f"{held} of {len(checks)} hold, from {folder}.")
