"""The pictures of docs/gallery.md: python benchmarks/gallery.py [NAME ...]

Runs every example with `--quick`'s settings (a minute in all), keeps what it returns in results/gallery.json, and draws it.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from closedform.extras import require

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "gallery.json"
FIGURES = ROOT / "docs" / "figures" / "gallery"
SOLVED, OTHER = "#059669", "#9ca3af"


class Picture(NamedTuple):
    label: str  # of the axis
    bars: dict[str, str]  # what the example returns, as the picture names it
    solved: tuple[str, ...]  # which of them are by this library
    log: bool = False


PICTURES = {
    "regression": Picture("mean squared error", {"learned": "learned", "solved, Proximal": "Proximal",
                          "solved, Kalman": "Kalman"}, ("solved, Proximal", "solved, Kalman"), log=True),
    "fno": Picture("mean squared error", {"learned": "learned", "solved": "solved"}, ("solved",), log=True),
    "poisson": Picture("relative error", {"learned": "learned", "solved": "solved"}, ("solved",), log=True),
    "fields": Picture("mean squared error", {"learned": "learned", "solved": "solved"}, ("solved",)),
    "fine_tuned_transformer": Picture("right, of held-out texts", {"chance": "chance", "value": "solved head"}, ("value",)),
    "instrumental_variables": Picture("error of the effect", {"least squares": "least squares",
                                      "two-stage least squares": "two-stage", "deep features": "DFIV"}, ("deep features",)),
    "bandit": Picture("regret", {"greedy": "greedy", "careful": "careful", "Thompson": "Thompson"}, ("Thompson",)),
    "million_rows": Picture("mean squared error at one site", {"all sites": "all sites",
                            "without the last": "one forgotten"}, ("all sites", "without the last")),
    "new_classes": Picture("right, of all classes", {"learned": "gradient steps", "solved": "solved",
                           "at once": "all at once"}, ("solved",)),
    "stream": Picture("mean squared error", {"least squares, all rows": "all rows", "Adam, best rate": "Adam",
                      "SGD, best rate": "SGD", "standardised SGD, a row a step": "standardised SGD",
                      "solved, default rule": "solved, default", "solved, forget 0.9": "solved, forget .9"},
                      ("solved, default rule", "solved, forget 0.9"), log=True),
    "policy": Picture("cost of the policy", {"truth": "simulated", "iv": "iv", "lstd": "lstd", "fqe": "fqe"},
                      ("iv", "lstd", "fqe")),
    "streaming": Picture("mean squared error", {"once": "fitted once", "mean": "the mean", "following": "partial_fit"},
                         ("following",), log=True),
    "uncertainty": Picture("standard deviation", {"seen": "many rows", "gap": "in the gap", "far": "far away"},
                           ("seen", "gap", "far")),
    "custom_loss": Picture("error of the log rate", {"Squared": "Squared", "Poisson": "Poisson"}, ("Poisson",)),
    "several_machines": Picture("mean squared error", {"mean": "the mean", "value": "solved"}, ("value",), log=True),
}  # fmt: skip


def measure(name: str) -> dict[str, float]:
    """What the example returns."""
    sys.path.insert(0, str(ROOT / "examples"))
    module = __import__(name)
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        if name == "several_machines":
            returned = module.main(["--quick", "--folder", folder])
            # the error of no model at all, for comparison
            return {"value": returned, "mean": float(module.data()[1].var(0, correction=0).mean())}
        returned = module.main(quick=True)
    return {"value": returned, "chance": 0.5} if isinstance(returned, float) else returned


def draw(name: str, values: dict[str, float], out: Path) -> Path:
    require("a picture", "experiments", "matplotlib")
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    from closedform.paper.report.figures import RC, save

    picture = PICTURES[name]
    sizes = [abs(values[key]) for key in picture.bars]
    style: dict[Any, Any] = {
        **RC,
        "axes.grid": False,
        "ytick.left": False,
        "xtick.bottom": False,
        "axes.spines.left": False,
    }
    with matplotlib.rc_context(style | {"axes.spines.bottom": False}):
        figure = Figure(figsize=(3.0, 0.55 + 0.26 * len(sizes)), layout="constrained")
        axes = figure.subplots()
        places = range(len(sizes))
        colours = [SOLVED if key in picture.solved else OTHER for key in picture.bars]
        start = min(sizes) / 4 if picture.log else 0.0
        axes.barh(places, [size - start for size in sizes], left=start, color=colours, height=0.7)
        if picture.log:
            axes.set_xscale("log")
        for at, size in zip(places, sizes):
            axes.annotate(
                f"{size:.0f}" if size >= 100 else f"{size:.2g}",
                (size, at),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axes.set_yticks(list(places), list(picture.bars.values()))
        axes.invert_yaxis()
        axes.set_xlim(start, max(sizes) * ((max(sizes) / start) ** 0.25 if picture.log else 1.2))
        axes.xaxis.set_major_formatter(NullFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(which="both", bottom=False)
        axes.set_xlabel(picture.label + (" (logarithmic)" if picture.log else ""), fontsize=8)
        path = out / f"{name}.svg"
        save(figure, path)
    return path


def main(names: list[str]) -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name in names or PICTURES:
        results[name] = {key: float(f"{value:.4g}") for key, value in measure(name).items()}
        print(draw(name, results[name], FIGURES))
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
