"""The paper's first experiment: twelve properties of QM9's molecules from their Coulomb matrices, by every method.

The set-up is the paper's (appendix "Experimental Details"): an MLP of three layers of 256 with GELU, SGD with Nesterov
momentum 0.9 from a last layer of zeros or Adam from a LeCun one, 50 epochs at a constant rate, batch sizes 32 to 2048, its
grids of learning rate, lambda and beta, and the best setting by the validation error over the last fifth of training. The
paper does not say what its learning rates refer to: here the loss is the mean over the samples of the squared error summed
over the twelve targets. Errors are reported as means over samples and targets, which are standardised.

Beyond the paper, with a rate that falls along a cosine: the Kalman filter, lambda relative to the Gram matrix ("auto"), a
lambda for every feature, and a lambda that rises as the rate falls; and, so that the comparison is fair, the learned layer
and the paper's proximal rule with that rate too.

All models of one optimizer and batch size are trained as one stack (`closedform.stack.models`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...stack import measuring
from ...stack.networks import mlp
from ..data import qm9
from ..report.spec import Curves, Experiment, Method, Sensitivity, environment
from . import stacks
from .qm9_models import ABLATED, INITS, SETTINGS, QM9Model, models

if TYPE_CHECKING:
    import pandas as pd

BATCH_SIZES = (32, 256, 1024, 2048)
OPTIMIZERS = ("sgd", "adam")
EPOCHS, SEEDS = 50, 3
WIDTHS = (435, 256, 256, 256)

OPENING = (
    "QM9: twelve properties of small molecules from their Coulomb matrices. Every method trains the same network; its last\n"
    "layer is learned (l2) or solved at every step (ridge, proximal, Kalman). The table shows each method's test error, in\n"
    "units of the targets' variance, at the setting with the least validation error.\n"
    "Ctrl-C stops the run, and the same command continues it."
)

METHODS = (
    Method("l2", "l2", "#6b7280"),
    Method("ridge", "ridge", "#c2410c"),
    Method("proximal", "proximal", "#1d4ed8"),
    Method("l2 cosine", "l2, cosine", "#9ca3af"),
    Method("proximal cosine", "proximal, cosine", "#60a5fa"),
    Method("auto", "λ auto", "#7c3aed", ours=True),
    Method("per feature", "λ by feature", "#db2777", ours=True),
    Method("schedule", "λ follows rate", "#ca8a04", ours=True),
    Method("kalman", "Kalman", "#059669", ours=True),
)


finished = stacks.finished


def jobs(
    optimizers: Sequence[str],
    batch_sizes: Sequence[int],
    *,
    size: str = "full",
    epochs: int = EPOCHS,
    seeds: int = SEEDS,
    limit: int | None = None,
    source: str = "qm9",
) -> list[dict[str, Any]]:
    """One configuration a stack. The full experiment also compares Algorithms 1 and 2 and a layer without a bias, under
    SGD, in a fifth of the epochs.

    `only` lists the models of a stack by their numbers in `models`, where it does not have all of them."""
    available = {"qm9": qm9.MOLECULES, "synthetic": limit or qm9.SYNTHETIC}[source]
    if limit is not None and not 10 <= limit <= available:
        raise ValueError(f"the number of molecules is {limit}; expected 10 to {available:,}")
    stacks.check_batch_sizes(batch_sizes, (limit or available) * 8 // 10, "molecules")
    shared = {"epochs": epochs, "first_seed": 0, "seeds": seeds, "limit": limit, "source": source, "only": ""}
    base = {"size": size, "algorithm": 1, "bias": True}
    configs = [
        shared | base | {"optimizer": o, "batch_size": b} for o in optimizers for b in sorted(batch_sizes, reverse=True)
    ]
    if size == "full" and "sgd" in optimizers:
        short = shared | {"size": "ablated", "optimizer": "sgd", "epochs": max(1, epochs // 5)}
        for batch_size in sorted(batch_sizes, reverse=True):
            for algorithm, bias in ((1, True), (2, True), (1, False)):
                configs.append(short | {"batch_size": batch_size, "algorithm": algorithm, "bias": bias})
    return [
        config | {"grid": stacks.fingerprint(WIDTHS, models(config["optimizer"], config["size"]))} for config in configs
    ]


def _models(config: dict[str, Any]) -> list[QM9Model]:
    return stacks.chosen(config, models(config["optimizer"], config["size"]))


def name(config: dict[str, Any]) -> str:
    """A configuration in a few words, for the progress bar."""
    words = stacks.name(config)
    if config["size"] == "ablated":
        words += f", algorithm {config['algorithm']}" + ("" if config["bias"] else ", no bias")
    return words


def work(config: dict[str, Any]) -> float:
    """How long a stack takes, in units of its own: steps, which cost something whatever their size, and samples."""
    count = len(_models(config)) * config["seeds"]
    samples = (config["limit"] or qm9.MOLECULES) * config["epochs"]
    return count * samples * (1 + 40 / config["batch_size"])


@lru_cache(maxsize=1)
def _data(seeds: range, limit: int | None, source: str) -> dict[str, measuring.EvaluationSet]:
    splits = [qm9.load(seed, limit, source=source) for seed in seeds]  # pyright: ignore[reportArgumentType]
    return {
        part: measuring.EvaluationSet(
            torch.stack([getattr(split, f"x_{part}") for split in splits]),
            torch.stack([getattr(split, f"y_{part}") for split in splits]),
        )
        for part in ("train", "validation", "test")
    }


def train(
    config: dict[str, Any],
    *,
    folder: Path | None,
    device: str,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Train the stack of one configuration; the rows are all its models at all marks. `folder` is for its checkpoint."""
    seeds = stacks.seeds(config)
    data = _data(seeds, config["limit"], config["source"])
    chosen = _models(config)
    _, history = stacks.train_stack(
        config,
        [mlp(WIDTHS, generator=torch.Generator().manual_seed(seed)) for seed in seeds],
        chosen,
        data,
        device=device,
        checkpoint=None if folder is None else stacks.checkpoint(folder, config),
        progress=progress,
        algorithm=config["algorithm"],
        bias=config["bias"],
        reduction="sum",
        tf32=True,
    )
    return stacks.tidy(history, chosen, seeds, SETTINGS, device)


def run(
    out: Path,
    configs: list[dict[str, Any]],
    *,
    device: str = "cpu",
    refine: int = 0,
    dask: str | None = None,
    progress: Callable[[dict[str, Any], int, int], None] | None = None,
    done: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> pd.DataFrame:
    """Run those of `jobs` that are not finished, and write the results of all (`stacks.run`).

    refine: how many more seeds to run, at the settings that the first seeds chose."""

    def more(config: dict[str, Any], table: pd.DataFrame) -> list[dict[str, Any]]:
        if not refine or config["size"] == "ablated":
            return []
        return [stacks.refined(config, table, refine, models(config["optimizer"], config["size"]), SETTINGS)]

    return stacks.run(
        train,
        out,
        configs,
        device=device,
        prepare=lambda config: _data(stacks.seeds(config), config["limit"], config["source"]),
        collect=with_studies,
        experiment=experiment,
        same=("limit", "source"),
        refine=more,
        dask=dask,
        progress=progress,
        done=done,
    )


def with_studies(table: pd.DataFrame) -> pd.DataFrame:
    """A column `study` that says which comparison a row belongs to; a row that serves two stands in both."""
    import pandas as pd

    default = table["optimizer"].map(stacks.INIT) == table["init"]
    ablated = table["size"] == "ablated"
    shared = (table["method"] == "proximal") & table["lam"].isin(ABLATED["lam"]) & table["lr"].isin(ABLATED["lr"])
    studies = {
        "methods": ~ablated & default,
        "initialisation": (table["size"] == "full") & shared,
        "algorithms": ablated & table["bias"],
        "bias": ablated & (table["algorithm"] == 1),
    }
    parts = [table[rows].assign(study=study) for study, rows in studies.items()]
    return pd.concat(parts, ignore_index=True).drop(columns="size")


def experiment(table: pd.DataFrame) -> Experiment:
    """What the report has to know of a table."""
    first = table.iloc[0]
    molecules = (
        "130,831 molecules"
        if first["limit"] is None or first["limit"] != first["limit"]
        else f"{int(first['limit']):,} molecules"
    )
    longest = int(table["epochs"].max())
    figures: list[Curves | Sensitivity] = [
        Curves(
            "Learning curves",
            "Test error at the best setting of each method, chosen by the validation error over the last fifth of training.",
            {"study": ["methods"], "optimizer": list(OPTIMIZERS)},
        ),
        Sensitivity(
            "How much lambda matters",
            "Final test error of the proximal rule against λ (in sum units), at the best learning rate for each.",
            "lam",
            {"study": ["methods"], "method": ["proximal"], "optimizer": list(OPTIMIZERS)},
        ),
        Sensitivity(
            "How much beta matters",
            "Final test error of the ridge rule against β (in sum units), at the best learning rate for each.",
            "beta",
            {"study": ["methods"], "method": ["ridge"], "optimizer": list(OPTIMIZERS)},
        ),
    ]
    ablations = {
        "initialisation": ("init", "Initialisation of the last layer", "The proximal rule from four initial layers."),
        "algorithms": (
            "algorithm",
            "Algorithm 1 and Algorithm 2",
            "Solve, then step (1); step, then solve on the same batch (2).",
        ),
        "bias": (
            "bias",
            "With and without a bias",
            "The proximal rule with the last layer's bias solved, and without one.",
        ),
    }
    present = set(table["study"])
    for study, (column, title, caption) in ablations.items():
        if study in present:
            epochs = int(table.loc[table["study"] == study, "epochs"].max())
            note = "" if epochs == longest else f" {epochs} epochs."
            where: dict[str, list] = {"study": [study], "optimizer": list(OPTIMIZERS)}
            where |= {"init": list(INITS)} if study == "initialisation" else {}
            caption = f"{caption} Best of λ = 1e3, 1e4 and four learning rates.{note}"
            figures.append(Curves(title, caption, where, column))
    keys = set(table["method"])
    rates = "The learning rate of every method falls along a cosine."
    if not table["cosine"].all():
        rates = (
            "The first three methods are the paper's, at a constant rate and on its grids; the others have a rate that "
            "falls along a cosine."
        )
    return Experiment(
        name="qm9",
        title="QM9: twelve molecular properties from Coulomb matrices",
        text=(
            f"{molecules}, split 80/10/10; an MLP of three layers of 256 with GELU; {longest} epochs; SGD with Nesterov "
            "momentum 0.9 from a last layer of zeros, Adam from a LeCun one. The error is the mean over samples and the "
            "twelve standardised targets; learning rates refer to the mean over samples of the error summed over "
            "the targets.\n\n" + rates
        ),
        metric="test",
        select="validation",
        label="test MSE",
        methods=tuple(method for method in METHODS if method.key in keys),
        by=("optimizer", "batch_size"),
        settings=SETTINGS,
        figures=tuple(figures),
        where={"study": ["methods"], "optimizer": list(OPTIMIZERS)},
        environment=environment(table),
    )
