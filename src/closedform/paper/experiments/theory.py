"""Every statement of the paper's theory, computed and drawn: the numbers and figures of docs/theory.md.

`run(out, quick)` writes `theory.json`, a figure for each study, the text and pictures of a diagnosis, and `report.html`: all
of these figures in one page, with the interactive landscape. Everything is
seeded and takes about a minute on one thread; `quick` does less of everything, to see that it works.
"""

from __future__ import annotations

import base64
import json
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import __version__, extras
from ...diagnosis.diagnose import diagnose, diagnose_batch
from ...head import ClosedFormLinear
from ...solver.rules import Proximal
from ..report.page import frame, save
from . import landscape, theory_figures
from .theory_studies import STUDIES, Study, normal


def run(
    out: Path, quick: bool = False, figures: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> Path:
    """Do every study, draw it, and write the numbers; returns the path of `theory.json`.

    The figures and the text of the diagnosis go to `figures`, by default to `out` as well. `say` is called with the name of
    each study.
    """
    extras.require("the theory", "theory", "scipy", "matplotlib")  # better known now than at the end
    figures = out if figures is None else figures
    for folder in (out, figures):
        folder.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are tiny
    try:
        studies: Study = {}
        for name, study in STUDIES.items():
            say(f"{name} ...")
            studies[name] = study(quick)
        say("diagnosis ...")
        studies["diagnosis"] = diagnosis(figures, quick)
        studies["landscape"] = landscape_numbers()
        landscape.draw(figures / "landscape.png")
        drawn = theory_figures.draw(studies, figures)
    finally:
        torch.set_num_threads(threads)
    versions = {
        "closedform": __version__,
        "torch": torch.__version__.split("+")[0],
        "python": platform.python_version(),
    }
    body = {"quick": quick, **versions, **_plain(studies)}
    path = out / "theory.json"
    path.write_text(json.dumps(body, indent=1) + "\n")
    text = "The statements of the paper's theory, computed. docs/theory.md explains every figure."
    pictures = {
        path.stem: path for path in [*drawn, *(figures / f"diagnosis_{name}.png" for name in studies["diagnosis"])]
    }
    sections = [landscape.section(), *(_figure(pictures[name], title) for name, title in TITLES.items())]
    save(frame("The theory, runnable", text, sections), out / "report.html")
    return path


# of the figures in the report
TITLES = {
    "non_convexity": "Theorem 5.1: the solved loss is not convex in the features",
    "kernel_flow": "Theorem 5.2: wide networks attain their targets",
    "finite_width": "Theorem 5.2: networks of finite width beside the limit",
    "one_step": "Theorem 5.3: a gradient step against a closed-form step",
    "kalman": "Appendix B: the Kalman reading",
    "diagnosis_auto": "A real last layer, with a sound lambda",
    "diagnosis_frozen": "The same with a lambda that freezes it",
}


def _figure(path: Path, title: str) -> str:
    """A picture as a section of a page. It is drawn on white, whatever the page's colours are."""
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<section aria-label="{title}"><figure><h2>{title}</h2>'
        f'<img style="max-width: 100%; background: white" alt="{title}" src="data:image/{kind};base64,{data}">'
        "</figure></section>"
    )


def landscape_numbers() -> Study:
    picture = landscape.data()
    result: Study = {"steps": landscape.STEPS}
    start = landscape.START_W, landscape.START_THETA, landscape.RATE, landscape.STEPS
    for activation in ("relu", "tanh"):
        one = replace(picture, activation=activation)
        result[activation] = {
            "start": float(one.loss(*start[:2])),
            "one_solve": float(one.curve_loss(start[1])),
            "both": float(one.descend_both(*start).loss[-1]),
            "along": float(one.descend_curve(*start[1:]).loss[-1]),
        }
    theta = torch.tensor([0.1, 0.5, 1.0, 3.0])
    result["relu"]["spread_along_curve"] = float(picture.curve_loss(theta).std())
    return result


def regression(n: int) -> tuple[Tensor, Tensor]:
    """Five smooth functions of eight inputs, standardised, with a little noise."""
    draw = normal(0)
    x = draw(n, 8)
    a, b, c, d, e, f, g, h = x.T
    y = torch.stack([torch.sin(2 * a), b * c, torch.tanh(d + e), f.abs(), g * h + a], 1)
    y = (y - y.mean(0)) / y.std(0) + 0.05 * draw(n, 5)
    return x.float(), y.float()


def diagnosis(out: Path, quick: bool) -> Study:
    """One network trained twice, with a sound lambda and with one that freezes the head."""
    x, y = regression(1000 if quick else 4000)
    result: Study = {}
    pages = []
    for name, rule in (("auto", Proximal("auto")), ("frozen", Proximal(1e7))):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        head = ClosedFormLinear(64, y.shape[1], rule=rule)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
        for _ in range(50 if quick else 500):
            index = torch.randint(0, len(x), (64,))
            phi = net(x[index])
            head.solve(phi, y[index])
            loss = F.mse_loss(head(phi), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, len(x) - 63, 64)]
        diagnosed = diagnose(head, net, batches)
        diagnosed.plot(out / f"diagnosis_{name}.png")
        pages.append(str(diagnosed))
        keys = ("gradient_share", "solve_share", "variation", "effective_rank", "attainable", "lam_ratio", "memory")
        result[name] = {key: getattr(diagnosed, key) for key in keys}
        result[name] |= {
            "solves_tried": len(diagnosed.gains),
            "solve_median": float(diagnosed.gains.median()),
            "solves_that_lose": float((diagnosed.gains < 0).double().mean()),
            "solve_share_on_own_batch": _on_own_batch(net, head, batches),
        }
    (out / "diagnosis.txt").write_text("\n\n\n".join(pages) + "\n")
    return result


@torch.no_grad()
def _on_own_batch(net: nn.Module, head: ClosedFormLinear, batches: list[tuple[Tensor, Tensor]]) -> float:
    """What a solve takes off the error of the very batch that it was solved on, against a full solve on that batch."""
    shares = [diagnose_batch(head, net(x), y).solve_share for x, y in batches]
    return sum(shares) / len(shares)


def _plain(value: Any) -> Any:
    """Lists and numbers of six digits, which is what is worth keeping; long series stay in the figures."""
    if isinstance(value, dict):
        return {key: plain for key, item in value.items() if (plain := _plain(item)) is not None}
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value] if len(value) <= 30 and not _nested(value) else None
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _nested(value: list | tuple) -> bool:
    return any(isinstance(item, (list, tuple, Tensor)) for item in value)
