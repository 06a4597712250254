"""The figures of docs/differential.md: python benchmarks/equations_picture.py

Errors against time come from the committed results. Fields are solved again, as the benchmark does.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from closedform.equations import best_network, solve
from closedform.extras import require
from common import RESULTS
from equations import FEATURES
from equations_problems import CASES

FOLDER = Path(__file__).parents[1] / "docs" / "figures" / "equations"
WAYS = {  # colour and mark
    "solved": ("#059669", "*"),
    "trained": ("#1d4ed8", "o"),
    "learned": ("#6b7280", "s"),
    "deepxde": ("#d97706", "^"),
    "spectral": ("#7c3aed", "x"),
}
SHOWN = ("poisson_fast", "l_shape_corner", "advection_diffusion", "burgers")


def curves(out: Path, results: Path = RESULTS / "equations.json") -> None:
    """Relative error against seconds, a panel a problem."""
    from matplotlib.figure import Figure

    rows = json.loads(results.read_text())["rows"]
    height = -(-len(rows) // 4)
    figure = Figure(figsize=(10, 2.3 * height), layout="constrained")
    panels = figure.subplots(height, 4, squeeze=False).ravel()
    for panel, row in zip(panels, rows):
        panel.set(yscale="log", ylim=(1e-15, 30))
        panel.set_title(row["title"], fontsize=10)
        panel.grid(alpha=0.3)
        for way, (colour, mark) in WAYS.items():
            if row[way]:
                points = row[way].get("curve") or [(row[way]["seconds"], row[way]["error"])]
                panel.plot(*zip(*points), color=colour, marker=mark, markersize=4, linewidth=1, label=way)
    for panel in panels[len(rows) :]:
        panel.set_axis_off()
    figure.supxlabel("seconds of one core")
    figure.supylabel("relative L2 error")
    handles = {label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=len(handles))
    _save(figure, out)


def fields(out: Path, side: int = 160) -> None:
    """Solutions above, the absolute errors below."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    for name, (above, below) in zip(SHOWN, figure.subplots(2, len(SHOWN)).T):
        case = CASES[name]()
        backbone = best_network(case.problem, case.box, FEATURES, corners=case.corners)
        solution = solve(case.problem, backbone, steps=0)
        axes = [torch.linspace(a, b, side, dtype=torch.float64) for a, b in zip(case.box.low, case.box.high)]
        x = torch.cartesian_prod(*axes)
        u, truth = solution(x), case.exact(x)
        if name.startswith("l_shape"):
            u[(x[:, 0] > 0) & (x[:, 1] < 0)] = float("nan")
        extent = (case.box.low[0], case.box.high[0], case.box.low[1], case.box.high[1])
        options = {"origin": "lower", "extent": extent, "aspect": "auto"}
        error = (u - truth).abs().clamp(min=1e-16).reshape(side, side).T
        picture = above.imshow(u.reshape(side, side).T, cmap="viridis", **options)
        figure.colorbar(picture, ax=above)
        picture = below.imshow(error, cmap="magma", norm=LogNorm(), **options)
        figure.colorbar(picture, ax=below)
        above.set_title(case.name)
        below.set_title("absolute error")
    _save(figure, out)


def _save(figure, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=90)


if __name__ == "__main__":
    require("the figures", "benchmarks", "matplotlib")
    torch.set_num_threads(1)
    curves(FOLDER / "curves.png")
    fields(FOLDER / "fields.png")
