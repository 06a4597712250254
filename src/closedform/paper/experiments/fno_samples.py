"""A few test samples of the experiment on Burgers' equation: initial condition, solution, and what the methods predict.

The errors are those on all points. Of the fields and the predictions only about 512 points are kept, enough for a picture.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...stack import measuring
from ...stack.models import Stack
from ..data import store
from ..report import colours
from ..report import text as words
from ..report.spec import Experiment, load
from ..sweeps import grid, results

FILE = "samples.npz"
SAMPLES, DRAWN = 3, 512
MOST_BYTES = 1 << 26  # of a file of samples; those of the paper's experiment take 2 MB
WIDTH, FIELD, ERROR, LEFT = 380, 190, 110, 44  # of a picture, in its own units


@torch.no_grad()
def save(
    folder: Path,
    config: dict[str, Any],
    stack: Stack,
    history: measuring.History,
    models: Sequence[Any],
    test: measuring.EvaluationSet,
) -> None:
    """Write what the first seed's best model of every method (by validation) predicts for the first test samples."""
    x, y = test.X[0, :SAMPLES].cpu(), test.Y[0, :SAMPLES].cpu()
    steps = torch.tensor(history.steps)
    errors = torch.stack(history.errors["validation"])[steps > (1 - results.LAST) * steps[-1]].mean(0)[0]
    every = max(1, x.shape[1] // DRAWN)
    arrays: store.Arrays = {"x": _drawn(x, every), "y": _drawn(y, every)}
    for method in dict.fromkeys(model.method for model in models):
        sound = [k for k in history.alive if models[k].method == method and torch.isfinite(errors[k])]
        if not sound:
            continue
        best = min(sound, key=lambda k: float(errors[k]))
        backbone, layer = stack.module(0, history.alive.index(best))
        predicted = layer(backbone(x))
        arrays[f"predicted-{method}"] = _drawn(predicted, every)
        arrays[f"mse-{method}"] = (predicted - y).double().square().mean((1, 2)).numpy()
    store.save(_file(folder, config), arrays)


def _drawn(fields: torch.Tensor, every: int) -> np.ndarray:
    return fields[:, ::every, 0].float().contiguous().numpy()


def _file(folder: Path, config: dict[str, Any]) -> Path:
    return folder / f"{grid.digest(config)}.{FILE}"


def gather(out: Path, configs: Iterable[dict[str, Any]], *earlier: Path) -> None:
    """One file from those of the stacks, with what the folders of earlier results have."""
    arrays: store.Arrays = {}
    for folder in earlier:
        if (folder / FILE).is_file():
            arrays |= store.read(folder / FILE, MOST_BYTES)
    for config in configs:
        path = _file(out / "parts", config)
        if path.is_file():
            key = f"{config['optimizer']}-{config['batch_size']}"
            arrays |= {f"{key}-{name}": array for name, array in store.read(path).items()}
    if arrays:
        store.save(out / FILE, arrays)


def sections(folder: Path) -> list[str]:
    """The part of the report about the samples, where the folder has them."""
    if not (folder / FILE).is_file():
        return []
    arrays, experiment = store.read(folder / FILE, MOST_BYTES), load(folder)
    keys = list(dict.fromkeys(tuple(name.split("-")[:2]) for name in arrays))
    optimizers = experiment.where.get("optimizer", [])
    keys.sort(key=lambda key: (optimizers.index(key[0]) if key[0] in optimizers else 9, int(key[1])))
    parts = []
    for at, (optimizer, size) in enumerate(keys):
        start = f"{optimizer}-{size}-"
        own = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
        drawn = "".join(_sample(own, experiment, row) for row in range(len(own["x"])))
        opened = " open" if at == 0 else ""
        title = f"{words.named(experiment, 'optimizer', optimizer)}, batch size {size}"
        parts.append(
            f'<details{opened}><summary>{html.escape(title)}</summary><div class="samples">{drawn}</div></details>'
        )
    return [
        f'<style>{_style(experiment)}</style><section class="fields" aria-labelledby="fields">'
        '<h2 id="fields">A few test samples</h2>'
        "<p>The first three test samples of the first seed, on all points. Above: the initial condition (dotted), the "
        "solution at time 1 (broad) and what each method predicts; below: prediction minus solution.</p>"
        f'<p class="legend">{_legend(experiment)}</p>{"".join(parts)}</section>'
    ]


def _legend(experiment: Experiment) -> str:
    names = [("start", "initial condition"), ("truth", "solution")]
    names += [(f"method {_class(method.key)}", method.label) for method in experiment.methods]
    line = '<svg width="30" height="10" aria-hidden="true"><path class="{}" d="M1 5H29"/></svg>'
    return "".join(f"<span>{line.format(kind)} {html.escape(label)}</span>" for kind, label in names)


def _class(method: str) -> str:
    return "m-" + "".join(letter if letter.isalnum() else "-" for letter in method)


def _style(experiment: Experiment) -> str:
    def rules(shade: Any) -> str:
        return "".join(
            f".{_class(m.key)}{{--line:{shade(m.colour or own)};--dash:{' '.join(map(str, dash)) or 'none'}}}"
            for m, own, dash in zip(experiment.methods, cycle(colours.PALETTE), cycle(colours.DASHES))
        )

    return (
        ".fields summary{cursor:pointer;font-weight:600;padding:.4rem 0}"
        ".fields .legend{gap:.35rem 1.1rem;font-size:.875rem}.fields .legend span{white-space:nowrap}"
        ".samples{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr))}"
        ".samples figure{margin:.5rem 0}.samples figcaption{margin:.25rem 0 0;font-size:.8125rem;color:var(--soft)}"
        ".samples svg{display:block;width:100%;height:auto}"
        ".samples text{fill:var(--soft);font-size:11px}"
        ".fields path{fill:none;stroke-linejoin:round}"
        ".fields .start{stroke:var(--soft);stroke-dasharray:1.5 3;stroke-width:1.5}"
        ".fields .truth{stroke:var(--rule);stroke-width:6}"
        ".fields .method{stroke:var(--line);stroke-dasharray:var(--dash);stroke-width:1.4}"
        f"{rules(colours.on_light)}@media screen and (prefers-color-scheme:dark){{{rules(colours.on_dark)}}}"
    )


def _sample(own: store.Arrays, experiment: Experiment, row: int) -> str:
    methods = [method for method in experiment.methods if f"predicted-{method.key}" in own]
    truth = own["y"][row]
    lines = [("start", own["x"][row]), ("truth", truth)]
    predicted = [(f"method {_class(m.key)}", own[f"predicted-{m.key}"][row]) for m in methods]
    errors_listed = ", ".join(f"{m.label} {float(own[f'mse-{m.key}'][row]):.2g}" for m in methods)
    errors = [(kind, values - truth) for kind, values in predicted]
    height, label = FIELD + ERROR + 28, html.escape(f"Sample {row + 1}: MSE {errors_listed}")
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
        f"{_panel([*lines, *predicted], 0, FIELD)}{_panel(errors, FIELD + 14, ERROR, zero=True)}</svg>"
        f"<figcaption>Sample {row + 1}. MSE: {html.escape(errors_listed)}</figcaption></figure>"
    )


def _panel(lines: Sequence[tuple[str, np.ndarray]], top: float, height: float, zero: bool = False) -> str:
    """Lines over one period of the domain, with the range of their values written beside."""
    finite = [values[np.isfinite(values)] for _, values in lines]
    values = np.concatenate([part for part in finite if part.size] or [np.zeros(1)])
    low, high = float(values.min()), float(values.max())
    if zero:
        low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
    if high <= low:
        low, high = low - 1.0, high + 1.0
    inner, right = height - 14, WIDTH - LEFT - 6

    def y(value: float) -> float:
        return top + 8 + inner * (high - value) / (high - low)

    parts = [f'<rect class="frame" x="{LEFT}" y="{top + 4:.0f}" width="{right}" height="{inner + 8:.0f}"/>']
    for value in (low, 0.0, high) if low < 0 < high else (low, high):
        shown = f"{value:.2g}".replace("-", "\u2212") if value else "0"
        parts.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}h{right}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y(value) + 4:.1f}" text-anchor="end">{shown}</text>')
    for kind, line in lines:
        points = [
            (LEFT + right * at / len(line), y(float(value))) for at, value in enumerate(line) if np.isfinite(value)
        ]
        drawn = "L".join(f"{x:.1f} {place:.1f}" for x, place in points)
        parts.append(f'<path class="{kind}" d="M{drawn}"/>')
    if zero:
        for at, label in ((0.0, "0"), (0.5, "π"), (1.0, "2π")):
            place = f'x="{LEFT + right * at:.0f}" y="{top + height + 12:.0f}"'
            parts.append(f'<text {place} text-anchor="middle">{label}</text>')
    return "".join(parts)
