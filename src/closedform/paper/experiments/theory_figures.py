"""The figures of docs/theory.md, drawn from the numbers of `theory.run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .figures import BLUE, GREEN, GREY, ORANGE, RED, pyplot

Study = dict[str, Any]


def draw(studies: Study, out: Path) -> list[Path]:
    """One SVG for each study that has a figure."""
    plt = pyplot()
    plt.rcParams["svg.fonttype"] = "none"  # text as text: smaller, and it can be searched
    return [_figure(plt, function, studies[name], out / f"{name}.svg") for name, function in FIGURES.items()]


def _figure(plt: Any, function: Callable[[Any, Study], None], study: Study, path: Path) -> Path:
    columns = PANELS.get(path.stem, 2)
    figure, axes = plt.subplots(1, columns, figsize=(4.6 * columns, 3.5), squeeze=False)
    function(axes[0], study)
    for axis in axes[0]:
        axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    plt.close(figure)
    return path


def non_convexity(axes: Any, study: Study) -> None:
    (axis,) = axes
    for name, colour in (("plain", BLUE), ("ridge", ORANGE)):
        axis.plot(study["s"], study[name]["line"], color=colour, linewidth=2, label=f"beta = {study[name]['beta']:g}")
    axis.plot(0.5, study["plain"]["middle"], "o", color="black", label="critical, and a maximum")
    axis.set(
        xlabel="position on the segment",
        ylabel="$L^\\star$ / $|Y|^2$",
        title="not convex in the features",
        ylim=(0, 1.08),
    )
    axis.legend(frameon=False, fontsize=9, loc="lower center")


def kernel_flow(axes: Any, study: Study) -> None:
    left, right = axes
    for activation, colour in (("relu", BLUE), ("erf", ORANGE), ("gelu", GREEN)):
        one = study[activation]
        for index, share in enumerate(one["shares"]):
            left.plot(
                one["t"][1:], share[1:], color=colour, linewidth=1, alpha=0.7, label=None if index else activation
            )
    left.set(
        xscale="log",
        xlabel="time",
        ylabel="attained share of $|Y|^2$",
        title="the flow attains all targets",
        ylim=(0, 1.04),
    )
    left.legend(frameon=False, fontsize=9)
    escape = study["escape"]
    for name, colour in (("orthogonal", RED), ("saddle", GREY)):
        right.plot(escape["size"], escape[name]["half"], "o-", color=colour, label=f"beside a {_called(name)}")
    right.set(xscale="log", xlabel="distance of the start", ylabel="time to half of what is missing")
    right.set_title("bad critical points are left")
    right.invert_xaxis()
    right.legend(frameon=False, fontsize=9)


def _called(name: str) -> str:
    return "maximum (orthogonal features)" if name == "orthogonal" else "saddle point"


def finite_width(axes: Any, study: Study) -> None:
    left, right = axes
    panels = (
        (left, "distance", "features stray from the limit's flow"),
        (right, "kernel", "tangent kernel at the start"),
    )
    for axis, key, title in panels:
        for activation, colour in (("relu", BLUE), ("erf", ORANGE), ("gelu", GREEN)):
            widths, values = np.array(study[activation]["widths"], dtype=float), np.array(study[activation][key])
            axis.plot(np.repeat(widths, values.shape[1]), values.reshape(-1), ".", color=colour, alpha=0.3)
            axis.plot(widths, np.exp(np.log(values).mean(1)), "o-", color=colour, linewidth=2, label=activation)
        mean = np.exp(np.log(np.array(study["erf"][key])).mean(1))
        widths = np.array(study["erf"]["widths"], dtype=float)
        axis.plot(widths, mean[0] * (widths / widths[0]) ** -0.5, "--", color=GREY, label="width$^{-1/2}$")
        axis.set(xscale="log", yscale="log", xlabel="width", ylabel="relative distance", title=title)
    left.legend(frameon=False, fontsize=9)


def one_step(axes: Any, study: Study) -> None:
    (axis,) = axes
    bound, ratio = np.array(study["points"]).T
    axis.plot([0, 1], [0, 1], color=ORANGE, linewidth=2, label="best learning rate (the bound)")
    axis.plot(bound, ratio, ".", color=BLUE, alpha=0.5, label="random learning rate")
    axis.set(xlabel="bound of Theorem 5.3", ylabel="gradient step's gain / solve's gain", title="random problems")
    axis.legend(frameon=False, fontsize=9)


def kalman(axes: Any, study: Study) -> None:
    left, middle, right = axes
    shown = (("collapsed", RED, "collapsed, the paper's lambda"), ("best_lambda", ORANGE, "collapsed, best lambda"))
    shown += (("full", BLUE, "full filter"),)
    for name, colour, label in shown:
        batch = np.arange(0, len(study[name]["error"]), 2)  # every other one, to keep the file small
        left.plot(batch, study[name]["error"][::2], color=colour, linewidth=1, alpha=0.6, label=label)
        left.plot(batch, study[name]["prediction"][::2], color=colour, linewidth=2, linestyle=":")
        right.plot(study["levels"], study[name]["coverage"], color=colour, linewidth=2, label=label)
    left.set(xlabel="batch", ylabel="squared error of the weights")
    left.set_ylim(0, 2.2 * study["collapsed"]["predicted"])
    left.set_title("measured, and predicted (dotted)")
    left.legend(frameon=False, fontsize=8)
    middle.plot(study["lams"], study["predicted_by_lam"], color=RED, linewidth=2, label="collapsed, predicted")
    middle.axhline(study["full"]["predicted"], color=BLUE, linewidth=2, label="full, predicted")
    middle.plot(study["lam"], study["collapsed"]["measured"], "o", color=RED, label="measured at the paper's lambda")
    middle.plot(study["best_lam"], study["best_lambda"]["measured"], "s", color=ORANGE, label="measured at the best")
    middle.set(
        xscale="log",
        xlabel="lambda",
        ylabel="squared error of the weights",
        title="what forgetting costs",
        ylim=(0, None),
    )
    middle.legend(frameon=False, fontsize=8)
    right.plot([0, 1], [0, 1], color=GREY, linestyle="--")
    right.set(xlabel="nominal coverage", ylabel="measured coverage", title="predictive intervals")
    right.legend(frameon=False, fontsize=8)


FIGURES: dict[str, Callable[[Any, Study], None]] = {
    "non_convexity": non_convexity,
    "kernel_flow": kernel_flow,
    "finite_width": finite_width,
    "one_step": one_step,
    "kalman": kalman,
}
PANELS = {"non_convexity": 1, "one_step": 1, "kalman": 3}
