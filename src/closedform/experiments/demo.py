"""Who wins? The four ways to treat the last layer on one regression problem, in about two minutes on a laptop.

The data need no download: the position and reach of an eight-link robot arm (three coordinates and two distances of its
tip) from its joint angles, with a little noise. A network of three layers learns them by SGD with Nesterov momentum and a
cosine rate, in small batches and in larger ones. Every method gets the same number of settings; the best is chosen on
validation data and reported on test data.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import __version__, lambdas, training
from ..head import ClosedFormLinear
from ..rules import Kalman, Proximal, Ridge, Rule

WIDTH, LINKS, OUTPUTS = 128, 8, 5


@dataclass
class Run:
    """One trained network."""

    method: str
    batch_size: int
    lr: float
    setting: str
    steps: list[int]
    validation: list[float]
    test: list[float]
    ms_per_step: float
    rejected: int


def robot_arm(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """`n` random poses of an eight-link arm whose joints turn in alternating planes, and what its tip does."""
    g = torch.Generator().manual_seed(seed)
    angles = (torch.rand(n, LINKS, generator=g) - 0.5) * math.pi
    tip, direction = torch.zeros(n, 3), torch.tensor([1.0, 0.0, 0.0]).expand(n, 3).clone()
    middle = tip
    for joint in range(LINKS):
        cos, sin = angles[:, joint].cos(), angles[:, joint].sin()
        a, b = ((0, 1), (0, 2), (1, 2))[joint % 3]
        turned = direction.clone()
        turned[:, a] = cos * direction[:, a] - sin * direction[:, b]
        turned[:, b] = sin * direction[:, a] + cos * direction[:, b]
        direction = turned
        tip = tip + direction / LINKS
        middle = tip if joint == LINKS // 2 - 1 else middle
    reach = torch.stack([tip.norm(dim=1), (tip - middle).norm(dim=1)], 1)
    y = torch.cat([tip, reach], 1)
    return angles, y + 0.01 * torch.randn(y.shape, generator=g)


Make = Callable[[torch.optim.Optimizer], Rule]
RATES = (0.3, 1.0, 3.0)
# six settings a method: learning rates, or learning rates times regularisation
SETTINGS: dict[str, list[tuple[float, str, Make | None]]] = {
    "l2": [(lr, "", None) for lr in (0.1, 0.2, 0.4, 0.7, 1.0, 2.0)],
    "ridge": [(lr, f"beta={beta:g}", lambda opt, beta=beta: Ridge(beta)) for lr in RATES for beta in (1.0, 100.0)],
    "proximal": [(lr, f"lambda={lam}", lambda opt, lam=lam: Proximal(lam)) for lr in RATES for lam in (1000.0, "auto")],
    "kalman": [
        (lr, f"forget={gamma:g}*", lambda opt, gamma=gamma: Kalman(lambdas.follow_lr(opt, forget=gamma)))
        for lr in RATES
        for gamma in (0.99, 0.999)
    ],
}


def train(method: str, setting: tuple[float, str, Make | None], batch_size: int, data: dict, epochs: int) -> Run:
    """Train one network and measure it along the way."""
    lr, name, make = setting
    torch.manual_seed(0)
    sizes = (LINKS, WIDTH, WIDTH, WIDTH)
    layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.GELU())]
    backbone = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(backbone.parameters(), lr=lr, momentum=0.9, nesterov=True)
    head = nn.Linear(WIDTH, OUTPUTS) if make is None else ClosedFormLinear(WIDTH, OUTPUTS, rule=make(optimizer))
    step: Callable[..., Tensor] = training.algorithm1
    if make is None:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        optimizer.add_param_group({"params": head.parameters()})
        step = training.l2
    x, y = data["train"]
    per_epoch = len(x) // batch_size
    total = epochs * per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    run = Run(method, batch_size, lr, name, [], [], [], 0.0, 0)
    marks = {round(total * k / 20) for k in range(1, 21)}
    spent = 0.0
    order = torch.Generator().manual_seed(0)
    for t in range(total):
        if t % per_epoch == 0:
            shuffled = torch.randperm(len(x), generator=order)
        index = shuffled[(t % per_epoch) * batch_size :][:batch_size]
        before = time.perf_counter()
        try:
            step(backbone, head, optimizer, x[index], y[index])
        except ValueError:  # the head refuses features that are not finite: the backbone has diverged
            run.steps.append(t + 1)
            run.validation.append(math.inf)
            run.test.append(math.inf)
            break
        schedule.step()
        spent += time.perf_counter() - before
        if t + 1 in marks:
            run.steps.append(t + 1)
            for part, curve in (("validation", run.validation), ("test", run.test)):
                with torch.no_grad():
                    error = F.mse_loss(head(backbone(data[part][0])), data[part][1])
                curve.append(float(error) if torch.isfinite(error) else math.inf)
            if not math.isfinite(run.validation[-1]):
                break  # it diverged, and will not come back
    run.ms_per_step = 1e3 * spent / (t + 1)
    run.rejected = int(head.rejected) if isinstance(head, ClosedFormLinear) else 0
    return run


def load(samples: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Standardised training, validation and test data."""
    x, y = robot_arm(samples + 4000, seed=0)
    x = (x - x[:samples].mean(0)) / x[:samples].std(0)
    y = (y - y[:samples].mean(0)) / y[:samples].std(0)
    cuts = {
        "train": slice(0, samples),
        "validation": slice(samples, samples + 2000),
        "test": slice(samples + 2000, None),
    }
    return {name: (x[cut], y[cut]) for name, cut in cuts.items()}


def sweep(batch_sizes: tuple[int, ...], samples: int, epochs: int) -> Iterator[Run]:
    """Every method with each of its settings at each batch size."""
    data = load(samples)
    for batch_size in batch_sizes:
        for method, settings in SETTINGS.items():
            for setting in settings:
                yield train(method, setting, batch_size, data, epochs)


def count(batch_sizes: tuple[int, ...]) -> int:
    return len(batch_sizes) * sum(map(len, SETTINGS.values()))


def best(runs: list[Run]) -> dict[tuple[int, str], Run]:
    """The run with the least validation error at its end, for each batch size and method."""
    chosen: dict[tuple[int, str], Run] = {}
    for run in runs:
        key = run.batch_size, run.method
        if key not in chosen or run.validation[-1] < chosen[key].validation[-1]:
            chosen[key] = run
    return chosen


def save(runs: list[Run], folder: Path) -> Path:
    """The runs as JSON and the learning curves of the best as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    body = {"closedform": __version__, "torch": torch.__version__, "runs": [asdict(run) for run in runs]}
    (folder / "demo.json").write_text(json.dumps(body, indent=1))
    sizes = sorted({run.batch_size for run in runs})
    figure, axes = plt.subplots(1, len(sizes), figsize=(4.6 * len(sizes), 3.6), sharey=True, squeeze=False)
    colours = {"l2": "#777777", "ridge": "#d1495b", "proximal": "#2e86ab", "kalman": "#1b998b"}
    finite = [v for run in best(runs).values() for v in run.test if math.isfinite(v)]
    for axis, size in zip(axes[0], sizes):
        for (batch_size, method), run in best(runs).items():
            if batch_size == size:
                axis.plot(run.steps[: len(run.test)], run.test, label=method, color=colours[method], linewidth=2)
        top = min(2.0, 1.2 * max(finite))
        axis.set(yscale="log", xlabel="step", title=f"batch size {size}", ylim=(0.8 * min(finite), top))
        axis.grid(alpha=0.3, which="both")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axes[0][0].set_ylabel("test mean squared error")
    axes[0][-1].legend(frameon=False)
    figure.suptitle("The last layer, learned (l2) or solved, on a robot arm; SGD, best setting of each", fontsize=11)
    figure.tight_layout()
    picture = folder / "demo.png"
    figure.savefig(picture, dpi=150)
    plt.close(figure)
    return picture
