"""Figure 1: the landscape of a two-parameter network, as a picture and as a page to play with.

`run(out)` writes `landscape.png` (the paper's relu, and tanh, where there is something to descend along the curve) and
`landscape.html`, which needs nothing but a browser. It opens with tanh, where the solved path is the better one; the paper's
relu, where it is not, is a button away. `section()` is the interactive part alone, to stand in another page
(`report.write(folder, sections=[section()])`): markup, style and script in one `<section class="cf-landscape">`, whose names
all begin with `cfl-`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from ...theory.landscape import Landscape
from ...theory.landscape import Path as Descent
from ..report.page import frame, save
from .figures import BLUE, GREEN, ORANGE, pyplot

START_W, START_THETA, RATE, STEPS = 2.0, 1.5, 0.02, 60


# what the page's buttons set; the first is what it opens with
PRESETS = (
    ("the solved path is better (tanh)", {"activation": "tanh"}),
    ("descent in both is better (the paper&#39;s relu)", {"activation": "relu"}),
)


def data(seed: int = 53) -> Landscape:
    """Three random points. The seed was picked among several, so that with the start below each descent wins once: with
    relu the one that may leave the curve (it crosses theta = 0, which the curve cannot), with tanh the one along it."""
    g = torch.Generator().manual_seed(seed)
    x = 3 * torch.rand(3, generator=g, dtype=torch.float64) - 1.5
    y = 3 * torch.rand(3, generator=g, dtype=torch.float64) - 1.5
    return Landscape(x, y)


def section(picture: Landscape | None = None, W: float = START_W, theta: float = START_THETA) -> str:
    """The interactive picture as a `<section>`: no network, no other file."""
    picture = replace(data(), **PRESETS[0][1]) if picture is None else picture
    state = {
        "x": picture.x.tolist(),
        "y": picture.y.tolist(),
        "activation": picture.activation,
        "beta": picture.beta,
        "theta": theta,
        "W": W,
        "lr": RATE,
        "steps": STEPS,
    }
    parts = {
        "style": _file("style.css").strip(),
        "script": _file("script.js").strip(),
        "presets": "\n".join(
            f"  <button type=\"button\" data-preset='{json.dumps(changes)}'>{label}</button>"
            for label, changes in PRESETS
        ),
        "data": json.dumps(state).replace("</", "<\\/"),
    }
    return _filled("section.html", parts)


def page(picture: Landscape | None = None) -> str:
    """The same as a page of its own, in the frame of a report."""
    title = "The loss of a two-parameter network, and the curve of solved last layers"
    return frame(title, "", [section(picture)])


def run(out: Path) -> list[Path]:
    """Write the picture and the page."""
    out.mkdir(parents=True, exist_ok=True)
    return [draw(out / "landscape.png"), save(page(), out / "landscape.html")]


def draw(path: Path, picture: Landscape | None = None) -> Path:
    """The landscape with relu and with tanh, the curve, and both descents from one start."""
    picture = data() if picture is None else picture
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), sharey=True)
    for axis, activation in zip(axes, ("relu", "tanh")):
        one = replace(picture, activation=activation)
        _map(axis, one)
        both = one.descend_both(START_W, START_THETA, RATE, STEPS)
        along = one.descend_curve(START_THETA, RATE, STEPS)
        _path(axis, both, ORANGE, f"gradient descent in both, loss {both.loss[-1]:.3f}", 3)
        _path(axis, along, GREEN, f"along the curve, loss {along.loss[-1]:.3f}", 5)
        axis.plot([START_THETA] * 2, [START_W, float(along.W[0])], ":", color=GREEN, linewidth=1.5)
        axis.plot(START_THETA, START_W, "o", color="black", markersize=7)
        axis.set(
            xlim=(-3, 3), ylim=(-3, 3), xlabel=r"$\theta$", title=rf"$f(x) = W\,\mathrm{{{activation}}}(\theta x)$"
        )
        axis.legend(loc="lower left", fontsize=8, framealpha=0.9)
    axes[0].set_ylabel("$W$")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return path


def _map(axis: Any, picture: Landscape) -> None:
    grid = torch.linspace(-3, 3, 240, dtype=torch.float64)
    theta, W = torch.meshgrid(grid, grid, indexing="xy")
    levels = (0.05 + picture.loss(W, theta)).log()
    axis.contourf(grid, grid, levels, levels=18, cmap="Greys", zorder=0)
    for side in (grid[grid < 0], grid[grid > 0]):
        axis.plot(
            side, picture.best(side), color=BLUE, linewidth=3, label=r"$W^\star(\theta)$" if side[0] > 0 else None
        )


def _path(axis: Any, path: Descent, colour: str, label: str, size: int) -> None:
    axis.plot(path.theta, path.W, "o-", color=colour, markersize=size, linewidth=1.2, label=label)


def _file(name: str) -> str:
    return (files("closedform.paper.experiments") / "landscape_page" / name).read_text(encoding="utf-8")


def _filled(name: str, parts: dict[str, str]) -> str:
    text = _file(name)
    for key, value in parts.items():
        text = text.replace("{{" + key + "}}", value)
    return text
