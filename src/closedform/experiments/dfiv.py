"""The paper's third application: deep feature instrumental variables on sprites, proximal against ridge, by batch size.

The task is the paper's (`closedform.data.dsprites`), and so are Algorithm 3 with one stage-one batch for all T1 steps, AdamW
with weight decay 0.1, a constant learning rate, lambda_12 = 1e-4, and the choice of the settings: the least error of the
structural function on 100 points of the grid at the end of training, by the re-estimated layers. Both methods are swept over
the same number of settings. Every model is measured twice, by the layers of training (online) and by layers re-estimated
with ridge on all training rows.

Three sizes. "cpu" is what a core does in half an hour: 5,000 rows, images averaged over 4 x 4 pixels before a small network,
T1 = 5, three values of each lambda, the first seed choosing the settings that the others are run with. "full" is the
paper's: 10,000 rows, the network of the published code of DFIV on all pixels, T1 = 20, its whole grids. "quick" is a look.

One departure in all of them: the paper re-estimates with a ridge of 0.01. On standardised features that leaves the
directions that the instruments hardly move undamped and errors in the hundreds, for both methods, so the ridge of stage two
is 0.1 a row, as in the published code of DFIV, and that of stage one 1e-4 a row.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from .. import __version__
from ..data import dsprites
from ..files import claimed
from ..iv import DFIV, Data, Rules, Split, evaluation, networks, reestimated
from ..iv import train as iterate
from ..models.mlp import mlp
from ..report.spec import Curves, Experiment, Method, Sensitivity
from ..sweeps import grid, results

if TYPE_CHECKING:
    import pandas as pd

OPENING = (
    "Instrumental variables on sprites: what does the image of a heart cause, when its height is a hidden confounder? Deep\n"
    "features, solved layers in two stages, in minibatches: proximal layers against ridge ones. The table shows the test\n"
    "error of the structural function; online means by the layers of training, without a pass over all rows. Ctrl-C stops,\n"
    "the same command goes on."
)
SETTINGS = ("lr", "lam_1", "lam_2")
LAM_12 = 1e-4
RIDGE = evaluation.per_sample(0.1)
METHODS = (
    Method("ridge", "ridge", "#c2410c", dashed=False),
    Method("ridge online", "ridge, online", "#c2410c", dashed=True),
    Method("proximal", "proximal", "#1d4ed8", dashed=False),
    Method("proximal online", "proximal, online", "#1d4ed8", dashed=True),
)
DECADES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)


class Size(NamedTuple):
    n: int
    batch_sizes: tuple[int, ...]  # of each stage; the last is all rows of a stage
    iterations: int
    T1: int
    marks: int
    rates: tuple[float, ...]
    lambdas: tuple[float, ...]  # of lambda_1, lambda_2, beta_1 and beta_2 alike
    seeds: int
    network: str


SIZES = {
    "quick": Size(1000, (64, 500), 40, 5, 4, (1e-3, 5e-3), (10.0,), 1, "pooled"),
    "cpu": Size(5000, (16, 64, 256, 1024, 2500), 120, 5, 12, (1e-3,), (0.1, 10.0, 1e3), 3, "pooled"),
    "full": Size(
        10_000, (16, 64, 256, 1024, 5000), 1000, 20, 50, (0.001, 0.005, 0.01, 0.05, 0.1), DECADES, 3, "published"
    ),
}


def jobs(size: str = "cpu", batch_sizes: Iterable[int] | None = None, **changes: Any) -> list[dict[str, Any]]:
    """One configuration a model, of the first seed; `run` adds the others."""
    if size not in SIZES:
        raise ValueError(f"there is no size {size!r}; expected one of {', '.join(SIZES)}")
    chosen = SIZES[size]._replace(**{k: v for k, v in changes.items() if v is not None})
    sizes = sorted(set(batch_sizes or chosen.batch_sizes), reverse=True)
    if not 1 <= min(sizes) <= max(sizes) <= chosen.n // 2:
        raise ValueError(f"batch sizes are 1 to {chosen.n // 2}, the rows of a stage, got {sizes}")
    if chosen.iterations < chosen.marks:
        chosen = chosen._replace(marks=chosen.iterations)
    shared = {"n": chosen.n, "iterations": chosen.iterations, "T1": chosen.T1, "marks": chosen.marks}
    shared |= {"network": chosen.network, "seed": 0}
    return [
        {**shared, "batch_size": batch, "method": method, "lr": lr, "lam_1": lam_1, "lam_2": lam_2}
        for batch in sizes
        for lr, lam_1, lam_2 in itertools.product(chosen.rates, chosen.lambdas, chosen.lambdas)
        for method in ("proximal", "ridge")
    ]


def name(config: dict[str, Any]) -> str:
    """A configuration in a few words, for the progress bar."""
    told = f"{config['method']}, batch size {config['batch_size']}, rate {config['lr']:g}"
    return f"{told}, {config['lam_1']:g} and {config['lam_2']:g}, seed {config['seed']}"


def work(config: dict[str, Any]) -> float:
    """How long a run takes, in units of its own."""
    return config["iterations"] * config["T1"] * (300 + config["batch_size"])


# ---- One run -------------------------------------------------------------------------------------


class Problem(NamedTuple):
    data: Data
    split: Split
    mean: float
    std: float
    validation: tuple[torch.Tensor, torch.Tensor]  # images, and the structural function in the units of the outcome
    test: tuple[torch.Tensor, torch.Tensor]


@lru_cache(maxsize=1)
def problem(n: int, seed: int) -> Problem:
    """The rows of a seed, standardised, and the grid."""
    rows = dsprites.sample(n, seed)
    tensor = partial(torch.as_tensor, dtype=torch.float32)
    mean, std = float(rows.y.mean()), float(rows.y.std())
    Z = tensor((rows.Z - rows.Z.mean(0)) / rows.Z.std(0))
    data = Data(tensor(rows.X), Z, tensor((rows.y - mean) / std)[:, None])
    parts = [
        (tensor(part.X), torch.as_tensor(part.f)) for part in dsprites.validation_and_test(dsprites.grid(), seed=0)
    ]
    return Problem(data, Split.halves(n, seed), mean, std, *parts)


def model_of(config: dict[str, Any]) -> DFIV:
    g = torch.Generator().manual_seed(config["seed"])
    if config["network"] == "published":  # the widths of the published code, without its spectral normalisation
        psi, phi = mlp([4096, 1024, 512, 128, 32], generator=g), mlp([3, 256, 128, 128, 32], generator=g)
        widths = 32, 32
    else:
        (psi, d), (phi, k) = networks.pooled(dsprites.SIDE, 4, [128, 32], g), (mlp([3, 128, 32], generator=g), 32)
        widths = d, k
    nets: list[nn.Module] = [psi, phi]
    if config["method"] == "proximal":
        rules = Rules.proximal(config["lam_1"], config["lam_2"], LAM_12)
    else:
        rules = Rules.ridge(config["lam_1"], config["lam_2"])
    return DFIV(*nets, widths=widths, rules=rules, lr=config["lr"], weight_decay=0.1, T1=config["T1"], generator=g)


def train(config: dict[str, Any], progress: Callable[[int, int], None] | None = None) -> pd.DataFrame:
    """Train one configuration; two rows for every mark, by re-estimated layers and online."""
    import pandas as pd

    made = problem(config["n"], config["seed"])
    model, total = model_of(config), config["iterations"]
    marks = {round(total * (k + 1) / config["marks"]) for k in range(config["marks"])}
    rows, start = [], time.perf_counter()

    def after(t: int) -> None:
        if t in marks:
            layers = {
                "re-estimated": reestimated(model, made.data, made.split, evaluation.BETA_1, RIDGE),
                "online": evaluation.online(model),
            }
            errors = {kind: _errors(model, found, made) for kind, found in layers.items()}
            for kind, (_, test) in errors.items():
                # both are shown at one setting: that of the re-estimated layers, as in the paper
                validation = errors["re-estimated"][0]
                rows.append({"evaluation": kind, "step": t, "validation": validation, "test": test})
                rows[-1]["wall_s"] = time.perf_counter() - start
        if progress is not None:
            progress(t, total)

    iterate(
        model,
        made.data,
        made.split,
        iterations=total,
        batch_size=config["batch_size"],
        lr=config["lr"],
        fresh=False,
        decay=False,
        seed=config["seed"],
        after=after,
    )
    table = pd.DataFrame(rows)
    table["rejected"] = model.first.rejected + model.second.rejected
    table["device"], table["torch"], table["closedform"] = "cpu", torch.__version__, __version__
    return table


def _errors(model: DFIV, layers: evaluation.Layers, made: Problem) -> tuple[float, float]:
    """Mean squared errors of the structural function on the validation and the test points."""
    validation, test = (
        float(((evaluation.predict(model, layers, X)[:, 0] * made.std + made.mean - f) ** 2).mean())
        for X, f in (made.validation, made.test)
    )
    return validation, test


# ---- All of them ---------------------------------------------------------------------------------


def finished(configs: Iterable[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """Those of the configurations that earlier runs have completed."""
    return [config for config in configs if not grid.finished([config], out / "parts", version=__version__).empty]


def refined(configs: list[dict[str, Any]], table: pd.DataFrame, seeds: int) -> list[dict[str, Any]]:
    """The settings that the first seed has chosen, with the other seeds."""
    by = ["batch_size", "method"]
    rows = table.loc[(table["evaluation"] == "re-estimated") & (table["seed"] == 0)]
    best = results.best(results.finished(rows, [*by, *SETTINGS], select="validation", metric="test"), by, SETTINGS)
    keys = [*by, *SETTINGS]
    chosen = set(best[keys].itertuples(index=False, name=None))
    return [
        {**config, "seed": seed}
        for config in configs
        if tuple(config[key] for key in keys) in chosen
        for seed in range(1, seeds)
    ]


def run(
    out: Path,
    configs: list[dict[str, Any]],
    *,
    seeds: int,
    workers: int = 1,
    progress: Callable[[dict[str, Any], int, int], None] | None = None,
    done: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> pd.DataFrame:
    """Run those of `jobs` that are not finished, then the other seeds at the settings that the first has chosen, and write
    `out/results.parquet` and `out/experiment.json`. A run that was killed starts again; finished ones are kept."""
    parts = out / "parts"

    def here(config: dict[str, Any]) -> pd.DataFrame:
        return train(config, None if progress is None else partial(progress, config))

    one = here if workers == 1 else train
    with claimed(out):
        first = grid.run(one, configs, parts, jobs=workers, progress=done, version=__version__)
        more = refined(configs, first, seeds)
        more.sort(key=lambda config: config["seed"])
        if more:
            grid.run(one, more, parts, jobs=workers, progress=done, version=__version__)
        table = grid.finished([*configs, *more], parts, version=__version__)
        results.save(tidy(table), out)
        experiment(tidy(table)).save(out)
    return table


def tidy(table: pd.DataFrame) -> pd.DataFrame:
    """The evaluation as part of the method's name, which is how the report tells lines apart."""
    online = (table["evaluation"] == "online").map({True: " online", False: ""})
    return table.assign(method=table["method"] + online)


def experiment(table: pd.DataFrame) -> Experiment:
    """What the report has to know of a table."""
    first = table.iloc[0]
    network = "the published code's network" if first["network"] == "published" else "a small network on 16 x 16 images"
    sensitivity = "Final test error, at the best of the other settings, by the re-estimated layers (in sum units)."
    return Experiment(
        name="dfiv",
        title="Deep feature instrumental variables on sprites",
        text=(
            f"{int(first['n']):,} rows, half for each stage; {network}; Algorithm 3 with T1 = {int(first['T1'])}, T2 = 1, "
            f"lambda_12 = {LAM_12:g}, AdamW with weight decay 0.1 at a constant rate, {int(first['iterations'])} iterations."
            " Settings were chosen with the first seed, by the error of the re-estimated layers on 100 points of the grid; "
            "each method had the same number of them.\n\nSolid lines: both layers re-estimated on all rows, by a ridge of "
            "1e-4 a row in stage one and 0.1 a row in stage two. Dashed lines: the layers of training as they are."
        ),
        metric="test",
        select="validation",
        label="test MSE",
        methods=METHODS,
        by=("batch_size",),
        settings=SETTINGS,
        figures=(
            Curves("Learning curves", "Test error of the structural function by iteration.", {}, rows=None),
            Sensitivity("How much lambda_1 matters", sensitivity, "lam_1", {"method": ["proximal"]}, columns=None),
            Sensitivity("How much beta_1 matters", sensitivity, "lam_1", {"method": ["ridge"]}, columns=None),
        ),
        environment={
            name: ", ".join(sorted(set(table[name].astype(str)))) for name in ("device", "torch", "closedform")
        },
        names={"lam_1": "λ₁ or β₁", "lam_2": "λ₂ or β₂"},
    )
