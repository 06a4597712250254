"""A diagnosis as a picture. matplotlib is imported only when one is drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import extras

if TYPE_CHECKING:
    from .diagnose import Diagnosis

BLUE, ORANGE, GREY = "#1f6fb2", "#d9622b", "#777777"


def spectrum(d: Diagnosis, path: Path) -> Path:
    """Left: the eigenvalues of a batch's Gram, with lambda. Right: what one step closes of the error in each direction."""
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    w = d.eigenvalues[d.eigenvalues > 0]
    left.plot(torch.arange(1, len(w) + 1), w, color=BLUE, linewidth=2, label="eigenvalues of a batch's Gram")
    if d.lam > 0:
        left.axhline(d.lam, color=ORANGE, linestyle="--", label=f"{_name(d)} = {d.lam:.3g}")
    left.set(yscale="log", xlabel="direction", ylabel="eigenvalue, for one batch")
    attainable = "" if math.isnan(d.attainable) else f", attainable {100 * d.attainable:.3g} %"
    left.set_title(f"effective rank {d.effective_rank:.1f} of {d.width}{attainable}", fontsize=10)
    left.legend(frameon=False, fontsize=9)
    _closed(right, d)
    for axis in (left, right):
        axis.grid(alpha=0.25)
    return _save(figure, path)


def _closed(axis: Any, d: Diagnosis) -> None:
    keep = d.residual > 0
    w, p = d.eigenvalues[keep], d.residual[keep]
    axis.set(xlabel="eigenvalue of the direction", ylabel="share of the error closed", ylim=(-0.05, 1.12))
    if not len(w):
        axis.set_title("nothing left to gain", fontsize=10)
        return
    grid = torch.logspace(math.log10(float(w.min())), math.log10(float(w.max())), 200, dtype=torch.float64)
    rate = (p * w).sum() / (p * w**2).sum()  # the best rate of Theorem 5.3, in units of the eigenvalues
    axis.axhline(0, color=GREY, linewidth=0.8)
    axis.plot(grid, torch.ones_like(grid), color=GREY, linewidth=1.5, label="closed form")
    axis.plot(grid, 1 - (1 - rate * grid) ** 2, color=ORANGE, linewidth=2, label="gradient step, best rate")
    sizes = 12 + 300 * p / p.max()
    axis.scatter(w, 1 - (1 - rate * w) ** 2, s=sizes, color=ORANGE, alpha=0.35, linewidth=0)
    closed = d.closed[keep]
    if not bool(closed.isnan().any()):
        label = f"one solve, {type(d.rule).__name__} ({_tried(d)})"
        axis.scatter(w, closed.clamp(min=-1), s=sizes, color=BLUE, alpha=0.6, linewidth=0, label=label)
    axis.set(xscale="log")
    if rate * w.max() > 2 or bool((closed < 0).any()):  # a step can make a direction worse than it was
        axis.set_ylim(bottom=-1.05)
    axis.set_title(f"gradient step: at most {100 * d.gradient_share:.3g} % (dots: the residual)", fontsize=10)
    axis.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.0, 0.9))


def _tried(d: Diagnosis) -> str:
    return "measured" if len(d.gains) == 1 else f"mean of {len(d.gains)}"


def history(entries: list[tuple[int, Diagnosis]], path: Path) -> Path:
    """Four quantities over the steps of a run."""
    if not entries:
        raise ValueError("nothing was diagnosed yet, so there is nothing to draw")
    plt = _pyplot()
    steps = [step for step, _ in entries]
    panels = {
        "error": [("as it is", [d.error for _, d in entries])],
        "share of a gradient step": [("", [d.gradient_share for _, d in entries])],
        "effective rank": [("", [d.effective_rank for _, d in entries])],
        "batches remembered": [("", [d.memory for _, d in entries])],
    }
    if all(d.samples > d.width for _, d in entries):  # on fewer samples the best layer has no error, which says nothing
        panels["error"].append(("best layer", [d.best_error for _, d in entries]))
    figure, axes = plt.subplots(1, 4, figsize=(13, 3))
    for axis, (title, lines) in zip(axes, panels.items()):
        for (label, values), colour in zip(lines, (BLUE, GREY)):
            axis.plot(steps, values, color=colour, linewidth=2, marker="o", markersize=3, label=label)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
    if all(value > 0 for _, values in panels["error"] for value in values):
        axes[0].set_yscale("log")
    axes[0].legend(frameon=False, fontsize=9)
    return _save(figure, path)


def _name(d: Diagnosis) -> str:
    return "beta" if hasattr(d.rule, "beta") else "lambda"


def _pyplot() -> Any:
    extras.require("a picture", "theory", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    _pyplot().close(figure)
    return path
