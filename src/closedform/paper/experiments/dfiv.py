"""The paper's third application: deep feature instrumental variables on sprites, proximal against ridge, by batch size.

The task is the paper's (`closedform.paper.data.dsprites`), and so are Algorithm 3 with one stage-one batch for all T1 steps,
AdamW with weight decay 0.1, a constant learning rate, lambda_12 = 1e-4, and what the settings are chosen by: the error of
the structural function on 100 points of the grid, by the re-estimated layers. Both methods are swept over the same settings
with the first seed; the five best of each are run with the other seeds, and the best of these on all seeds is shown. Every
model is measured twice, by layers re-estimated with ridge on all training rows and by those of training (online).

Three sizes. "full" is the paper's: 10,000 rows, the widths of the published code of DFIV on all pixels, T1 = 20, the paper's
grids of 500 settings a method (50 of them from batches of 1024 on), for a GPU. "cpu" is what a core does in less than an
hour: 5,000 rows, images averaged over 4 x 4 pixels before a small network, T1 = 5, one rate and five values of each lambda
(three from batches of 1024 on). "quick" is a look.

One departure in all of them: the paper re-estimates with a ridge of 0.01. On standardised features that leaves the
directions that the instruments hardly move undamped and errors in the hundreds, for both methods, so the ridge of stage two
is 0.1 a row, as in the published code of DFIV, and that of stage one 1e-4 a row.

All models of a batch size and a rate are trained as one stack (`closedform.iv.stacked`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ...iv import DFIV, Data, Rules, Split, evaluation, networks
from ...iv.stacked import IVCandidate, IVStack, Points
from ...stack import measuring
from ...stack.networks import mlp
from ..data import dsprites
from ..report.spec import Curves, Experiment, Method, Sensitivity, environment
from ..sweeps import results
from . import stacks

if TYPE_CHECKING:
    import pandas as pd

OPENING = (
    "Instrumental variables on sprites: what does the image of a heart cause, when its height is a hidden confounder? Deep\n"
    "features, solved layers in two stages, in minibatches: proximal layers against ridge ones. The table shows the test\n"
    "error of the structural function; online means by the layers of training, without a pass over all rows.\n"
    "Ctrl-C stops the run, and the same command continues it."
)
SETTINGS = ("lr", "lam_1", "lam_2")
LAM_12, WEIGHT_DECAY = 1e-4, 0.1
RIDGE = evaluation.per_sample(0.1)
TOP = 5  # settings of each method that the other seeds are run with
CHECKPOINT = 1 << 32  # bytes; a larger stack is a matter of a minute or two, and begins again
METHODS = (
    Method("ridge", "ridge", "#c2410c", dashed=False),
    Method("ridge online", "ridge, online", "#c2410c", dashed=True),
    Method("proximal", "proximal", "#1d4ed8", dashed=False),
    Method("proximal online", "proximal, online", "#1d4ed8", dashed=True),
)
DECADES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
RATES = (0.001, 0.005, 0.01, 0.05, 0.1)


class SpriteSize(NamedTuple):
    n: int
    batch_sizes: tuple[int, ...]  # of each stage; the last is all rows of a stage
    iterations: int
    T1: int
    marks: int
    rates: tuple[float, ...]
    lambdas: tuple[float, ...]  # of lambda_1, lambda_2, beta_1 and beta_2 alike
    seeds: int
    network: str
    coarse: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # rates and lambdas of batches from 1024 on


SIZES = {
    "quick": SpriteSize(1000, (64, 500), 40, 5, 4, (1e-3, 5e-3), (10.0,), 1, "pooled"),
    "cpu": SpriteSize(
        5000, (16, 64, 256, 1024, 2500), 600, 5, 20, (1e-3,), (1e-2, 1.0, 100.0, 1e3, 1e4), 3, "pooled",
        coarse=((1e-3,), (1.0, 100.0, 1e4)),
    ),
    "full": SpriteSize(
        10_000, (16, 64, 256, 1024, 5000), 1000, 20, 25, RATES, DECADES, 3, "published",
        coarse=(RATES[:2], (1e-4, 1e-2, 1.0, 100.0, 1e4)),
    ),
}  # fmt: skip
COARSE = 1024


@dataclass(frozen=True)
class SpriteModel:
    """One model of a grid, by the columns that describe it in the table: lambda_1 and lambda_2, or beta_1 and beta_2."""

    method: str
    lr: float
    lam_1: float
    lam_2: float
    init: str = "lecun"

    def candidate(self) -> IVCandidate:
        if self.method == "proximal":
            return IVCandidate(self.lr, Rules.proximal(self.lam_1, self.lam_2, LAM_12))
        return IVCandidate(self.lr, Rules.ridge(self.lam_1, self.lam_2))


def models(size: str, batch_size: int) -> list[SpriteModel]:
    """All models of a batch size; both methods have the same settings."""
    chosen = SIZES[size]
    rates, lambdas = chosen.rates, chosen.lambdas
    if chosen.coarse is not None and batch_size >= COARSE:
        rates, lambdas = chosen.coarse
    return [
        SpriteModel(method, lr, lam_1, lam_2)
        for lr in rates
        for method in ("proximal", "ridge")
        for lam_1, lam_2 in itertools.product(lambdas, lambdas)
    ]


def jobs(
    size: str = "cpu", batch_sizes: Iterable[int] | None = None, iterations: int | None = None, tf32: bool = False
) -> list[dict[str, Any]]:
    """One configuration a stack, of the first seed: all models of a batch size and a rate. `run` adds the other seeds."""
    if size not in SIZES:
        raise ValueError(f"there is no size {size!r}; expected one of {', '.join(SIZES)}")
    chosen = SIZES[size]
    total = iterations or chosen.iterations
    sizes = sorted(set(batch_sizes or chosen.batch_sizes))
    if not 1 <= min(sizes) <= max(sizes) <= chosen.n // 2:
        raise ValueError(f"batch sizes are 1 to {chosen.n // 2}, the rows of a stage, got {sizes}")
    shared = {"n": chosen.n, "iterations": total, "T1": chosen.T1, "marks": min(chosen.marks, total)}
    shared |= {"network": chosen.network, "size": size, "optimizer": "adamw", "tf32": tf32, "first_seed": 0, "seeds": 1}
    shared["grid"] = stacks.fingerprint(models(size, 1), models(size, COARSE), LAM_12, RIDGE, WEIGHT_DECAY)
    configs = []
    for batch in sizes:
        grid_models = models(size, batch)
        for lr in sorted({model.lr for model in grid_models}):
            only = ",".join(str(k) for k, model in enumerate(grid_models) if model.lr == lr)
            configs.append(shared | {"batch_size": batch, "only": only})
    return configs


def _models(config: dict[str, Any]) -> list[SpriteModel]:
    return stacks.chosen(config, models(config["size"], config["batch_size"]))


def name(config: dict[str, Any]) -> str:
    """A configuration in a few words, for the progress bar."""
    words = f"batch size {config['batch_size']}"
    if config["first_seed"]:
        return f"{words}, seed {config['first_seed']}"
    return f"{words}, rate {_models(config)[0].lr:g}"


def work(config: dict[str, Any]) -> float:
    """How long a stack takes, in units of its own."""
    return config["iterations"] * config["T1"] * (20 + len(_models(config))) * (300 + config["batch_size"])


finished = stacks.finished


# ---- One stack -----------------------------------------------------------------------------------


class SpriteProblem(NamedTuple):
    data: Data
    split: Split
    variance: float  # of the outcomes; errors are reported in units of the outcomes
    validation: Points
    test: Points


@lru_cache(maxsize=1)
def problem(n: int, seed: int) -> SpriteProblem:
    """The rows of a seed and the grid, outcomes and instruments standardised."""
    rows = dsprites.sample(n, seed)
    tensor = partial(torch.as_tensor, dtype=torch.float32)
    mean, std = float(rows.y.mean()), float(rows.y.std())
    Z = tensor((rows.Z - rows.Z.mean(0)) / rows.Z.std(0))
    data = Data(tensor(rows.X), Z, tensor((rows.y - mean) / std)[:, None])
    parts = [
        Points(tensor(part.X), torch.as_tensor((part.f - mean) / std))
        for part in dsprites.validation_and_test(dsprites.grid(), seed=0)
    ]
    return SpriteProblem(data, Split.halves(n, seed), std**2, *parts)


def start(network: str, seed: int, T1: int) -> DFIV:
    """The networks and layers that all models of a seed start from."""
    g = torch.Generator().manual_seed(seed)
    nets: list[nn.Module]
    if network == "published":  # the widths of the published code, without its spectral normalisation
        nets = [mlp([4096, 1024, 512, 128, 32], generator=g), mlp([3, 256, 128, 128, 32], generator=g)]
    else:
        nets = [networks.pooled(dsprites.SIDE, 4, [128, 32], g)[0], mlp([3, 128, 32], generator=g)]
    return DFIV(*nets, widths=(32, 32), T1=T1, generator=g)


def train(
    config: dict[str, Any],
    *,
    folder: Path,
    device: str,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Train the stack of one configuration; a row for every model and mark, with both evaluations. `folder` is for its
    checkpoint."""
    seed, total, chosen = config["first_seed"], config["iterations"], _models(config)
    task = problem(config["n"], seed)
    stack = IVStack(
        start(config["network"], seed, config["T1"]),
        [model.candidate() for model in chosen],
        task.data,
        task.split,
        {"validation": task.validation, "test": task.test},
        batch_size=config["batch_size"],
        total=total,
        weight_decay=WEIGHT_DECAY,
        beta_2=RIDGE,
        seed=seed,
        tf32=config["tf32"],
        device=device,
    )
    small = sum(tensor.numel() * tensor.element_size() for tensor in stack.state().values()) < CHECKPOINT
    history = measuring.train(
        stack,
        IVStack.measure,
        at=[round(total * (k + 1) / config["marks"]) for k in range(config["marks"])],
        checkpoint=stacks.checkpoint(folder, config) if small else None,
        progress=progress,
    )
    for key, values in history.errors.items():
        if key != "train":
            history.errors[key] = [task.variance * value for value in values]
    return stacks.tidy(history, chosen, stacks.seeds(config), SETTINGS, device)


# ---- All of them ---------------------------------------------------------------------------------


def refined(config: dict[str, Any], table: pd.DataFrame, seeds: int) -> list[dict[str, Any]]:
    """The settings of each method that are best with the first seed, with the others."""
    rows = table.loc[(table["batch_size"] == config["batch_size"]) & (table["seed"] == 0)]
    runs = results.finished(rows, ["method", *SETTINGS], select="validation", metric="test")
    best = runs.sort_values("score", kind="stable").groupby("method", sort=False).head(TOP)
    kept = set(best[["method", *SETTINGS]].itertuples(index=False, name=None))
    grid_models = models(config["size"], config["batch_size"])
    only = [k for k, m in enumerate(grid_models) if (m.method, *(getattr(m, name) for name in SETTINGS)) in kept]
    return [config | {"first_seed": seed, "only": ",".join(map(str, only))} for seed in range(1, seeds)]


def run(
    out: Path,
    configs: list[dict[str, Any]],
    *,
    seeds: int,
    device: str = "cpu",
    progress: Callable[[dict[str, Any], int, int], None] | None = None,
    done: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> pd.DataFrame:
    """Train the stacks that are not finished, then the best settings with the other seeds, and write `out/results.parquet`
    and `out/experiment.json`; see `stacks.run`."""
    return stacks.run(
        train,
        out,
        configs,
        device=device,
        prepare=lambda config: problem(config["n"], 0),
        collect=tidy,
        experiment=experiment,
        same=("n", "iterations", "T1", "marks", "network", "tf32"),
        refine=lambda config, table: refined(config, table, seeds),
        progress=progress,
        done=done,
    )


def tidy(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each evaluation, which is part of the method's name, so that the report draws a line for each. Both have the
    validation error of the re-estimated layers, which the paper chooses by."""
    import pandas as pd

    rest = table.drop(columns=["validation online", "test online"])
    online = rest.assign(evaluation="online", method=table["method"] + " online", test=table["test online"])
    return pd.concat([rest.assign(evaluation="re-estimated"), online], ignore_index=True)


def experiment(table: pd.DataFrame) -> Experiment:
    """What the report has to know of a table."""
    first = table.iloc[0]
    network = "the published code's widths" if first["network"] == "published" else "a small network on 16 x 16 images"
    seeds = table["seed"].nunique()
    rest = f"; the {TOP} best of each were run with the others too, and the best of these is shown" * (seeds > 1)
    sensitivity = "Final test error, at the best of the other settings, by the re-estimated layers (in sum units)."
    return Experiment(
        name="dfiv",
        title="Deep feature instrumental variables on sprites",
        text=(
            f"{int(first['n']):,} rows, half for each stage; {network}; Algorithm 3 with T1 = {int(first['T1'])}, T2 = 1, "
            f"lambda_12 = {LAM_12:g}, AdamW with weight decay {WEIGHT_DECAY:g} at a constant rate, "
            f"{int(first['iterations'])} iterations{', products of the networks in TF32' if first['tf32'] else ''}. "
            "Settings were chosen by the error of the re-estimated layers on 100 points of the grid, its mean over the last "
            f"fifth of training; each method had the same settings to choose from, with the first seed{rest}.\n\n"
            "Solid lines: both layers re-estimated on all rows, by a ridge of "
            "1e-4 a row in stage one and 0.1 a row in stage two. Dashed lines: the layers of training as they are."
        ),
        metric="test",
        late=True,
        select="validation",
        label="test MSE",
        methods=METHODS,
        by=("batch_size",),
        settings=SETTINGS,
        figures=(
            Curves("Learning curves", "Test error of the structural function by iteration.", {}, rows=None),
            Sensitivity("How much lambda_1 matters", sensitivity, "lam_1", {"method": ["proximal"]}, columns=None),
            Sensitivity("How much lambda_2 matters", sensitivity, "lam_2", {"method": ["proximal"]}, columns=None),
            Sensitivity("How much beta_1 matters", sensitivity, "lam_1", {"method": ["ridge"]}, columns=None),
            Sensitivity("How much beta_2 matters", sensitivity, "lam_2", {"method": ["ridge"]}, columns=None),
        ),
        environment=environment(table),
        names={"lam_1": "λ₁ or β₁", "lam_2": "λ₂ or β₂"},
    )
