"""The first picture of the README, from the committed results: python benchmarks/picture.py"""

from __future__ import annotations

import io
import re
from pathlib import Path

from closedform.extras import require

ROOT = Path(__file__).parents[1]
SIZES = ("32", "256")
LINES = {  # label, colour, dashes; in the order of the legend
    "l2": ("learned", "#6b7280", (None, None)),
    "l2 cosine": ("learned, falling rate", "#6b7280", (1, 1.5)),
    "kalman": ("ours: Kalman, falling rate", "#059669", (None, None)),
    "proximal": ("the paper's proximal rule", "#1d4ed8", (5, 2)),
    "proximal cosine": ("proximal, falling rate", "#60a5fa", (5, 2, 1, 2)),
}


def draw(out: Path) -> None:
    """Learning curves on QM9 under SGD with small batches: learned, the paper's rule, and ours."""
    require("the picture", "experiments", "matplotlib", "pandas", "pyarrow")
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from closedform.paper.report import figures, panels

    curves = panels.figures(*panels.read(ROOT / "results" / "qm9"))[0]
    by_title = {panel.title: panel for panel in curves.panels}
    with matplotlib.rc_context(figures.RC | {"font.size": 9.5, "svg.hashsalt": "closedform"}):
        picture = Figure(figsize=(5.8, 3.5), layout="constrained")
        for axes, size in zip(picture.subplots(1, 2, sharey=True), SIZES):
            axes.set(yscale="log", ylim=(0.052, 0.3), xlim=(0, 50), title=f"batch size {size}", xlabel="epoch")
            for line in by_title[f"sgd, batch size {size}"].lines:
                method = line.key.partition("=")[2]
                if method not in LINES or line.diverged:
                    continue
                label, colour, dashes = LINES[method]
                epochs = [50 * step / line.x[-1] for step in line.x]
                axes.plot(
                    epochs, line.y, color=colour, dashes=dashes, label=label, lw=2.2 if method == "kalman" else 1.4
                )
            axes.yaxis.set(
                major_locator=FixedLocator([0.06, 0.08, 0.1, 0.15, 0.2, 0.3]),
                minor_locator=NullLocator(),
                major_formatter=FuncFormatter(lambda error, _: f"{error:g}"),
            )
        picture.axes[0].set_ylabel("test error (mean squared)")
        shown = {line.get_label(): line for line in picture.axes[1].lines}
        handles = [shown[label] for label, _, _ in LINES.values()]
        picture.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, handlelength=2.6)
        buffer = io.StringIO()
        picture.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    out.write_text(re.sub(r"\n +", "\n", buffer.getvalue()), encoding="utf-8")


if __name__ == "__main__":
    draw(ROOT / "docs" / "figures" / "learning.svg")
