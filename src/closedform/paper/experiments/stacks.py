"""What the experiments that train stacks share: which models a stack has, its table, and a run that can be stopped.

A configuration describes one stack: `optimizer`, `batch_size`, `size` (which grid of models), `epochs`, `first_seed`,
`seeds`, `only` (the models by their numbers, where the stack does not have all of them), `grid` (a fingerprint of the
models), and what the data are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ... import __version__
from ...files import claimed
from ...solver.rules import Kalman, Proximal, Ridge, Rule
from ...stack import measuring
from ...stack.loop import Checkpoint
from ...stack.models import Candidate, Stack
from ..report.spec import Experiment
from ..sweeps import grid, results

if TYPE_CHECKING:
    import pandas as pd

Config = dict[str, Any]
EVERY_S = 120.0  # between checkpoints: nearly a gigabyte at full size
INIT = {"sgd": "zeros", "adam": "lecun"}  # the paper's initial last layers


@dataclass(frozen=True)
class GridModel:
    """One model of a grid, by the columns that describe it in the table. The learning rate is constant."""

    method: str
    lr: float
    init: str
    lam: float | None = None
    beta: float | None = None
    forget: float | None = None

    def candidate(self) -> Candidate:
        return Candidate(self.lr, self.rule(), self.init)

    def rule(self) -> Rule | None:
        """The rule of the last layer; None where the optimizer learns it."""
        if self.beta is not None:
            return Ridge(self.beta)
        if self.forget is not None:
            return Kalman(self.forget)
        return None if self.lam is None else Proximal(self.lam)


AnyModel = TypeVar("AnyModel")


def chosen(config: Config, models: Sequence[AnyModel]) -> list[AnyModel]:
    """Those of the models of a grid that the stack has."""
    return [models[int(k)] for k in config["only"].split(",")] if config["only"] else list(models)


def fingerprint(*parts: object) -> str:
    """Twelve digits that change with the models, so that the results of other models are not taken for these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def check_batch_sizes(batch_sizes: Sequence[int], rows: int, name: str) -> None:
    if max(batch_sizes) > rows:
        raise ValueError(f"batch size {max(batch_sizes)} is larger than the training set of {rows:,} {name}")


def seeds(config: Config) -> range:
    return range(config["first_seed"], config["first_seed"] + config["seeds"])


def name(config: Config) -> str:
    """A configuration in a few words, for the progress bar."""
    words = f"{config['optimizer']}, batch size {config['batch_size']}"
    if config["only"]:
        return f"{words}, more seeds"
    return f"{words}, seed {config['first_seed']}" if config["first_seed"] else words


def refined(
    config: Config,
    table: pd.DataFrame,
    more: int,
    models: Sequence[Any],
    settings: Sequence[str],
    failed: float | None = None,
) -> Config:
    """The stack of `config` for `more` seeds, at the settings alone that its own rows choose for each method and initial
    layer."""
    own = (table["size"] == config["size"]) & (table["optimizer"] == config["optimizer"])
    table = table.loc[own & (table["batch_size"] == config["batch_size"])]
    runs = results.finished(table, ["method", "init", *settings], select="validation", metric="test")
    best = results.best(runs, ["method", "init"], settings, failed=failed)
    kept = {
        tuple(None if value != value else value for value in row) for row in best[["method", "init", *settings]].values
    }
    only = [k for k, m in enumerate(models) if (m.method, m.init, *(getattr(m, name) for name in settings)) in kept]
    later = config["first_seed"] + config["seeds"]
    return config | {"first_seed": later, "seeds": more, "only": ",".join(map(str, only))}


def finished(configs: Iterable[Config], out: Path) -> list[Config]:
    """Those of the configurations that earlier runs have completed."""
    return [config for config in configs if not grid.finished([config], out / "parts", version=__version__).empty]


def checkpoint(folder: Path, config: Config) -> Checkpoint:
    """Where a stack's training is kept in between."""
    path = folder / f"{grid.digest(config)}.checkpoint"
    return Checkpoint(path, grid.digest(config, __version__), every_s=EVERY_S)


def train_stack(
    config: Config,
    backbones: Sequence[nn.Module],
    models: Sequence[Any],
    data: dict[str, measuring.EvaluationSet],
    *,
    device: str,
    at: Callable[[int], Sequence[int]] = measuring.marks,
    at_end: Callable[[Stack], dict[str, Tensor]] | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> tuple[Stack, measuring.History]:
    """Train the stack of a configuration: the backbone of each seed with every model's last layer.

    data: "train", and "validation" and "test", which it is measured on.
    at: the marks of so many steps. options: of `Stack`."""
    stack = Stack(
        backbones,
        [model.candidate() for model in models],
        data["train"].Y.shape[-1],
        batch_size=config["batch_size"],
        total=data["train"].X.shape[1] // config["batch_size"] * config["epochs"],
        seeds=seeds(config),
        optimizer=config["optimizer"],
        device=device,
        **options,
    )
    stack.feed(*data["train"])
    measure = measuring.on({part: data[part] for part in ("validation", "test")})
    history = measuring.train(
        stack, measure, at=at(stack.total), at_end=at_end, checkpoint=checkpoint, progress=progress
    )
    return stack, history


def tidy(
    history: measuring.History, models: Sequence[Any], seeds: range, settings: Sequence[str], device: str
) -> pd.DataFrame:
    """A row for every model and mark."""
    import pandas as pd

    frames = []
    for mark, step in enumerate(history.steps):
        errors = {name: values[mark] for name, values in history.errors.items()}
        for row, seed in enumerate(seeds):
            frame = pd.DataFrame([vars(model) for model in models])
            frame["seed"], frame["step"], frame["wall_s"] = seed, step, history.wall_s[mark]
            for name, values in sorted(errors.items()):
                frame[name] = values[row].numpy()
            frames.append(frame)
    table = pd.concat(frames, ignore_index=True).astype(dict.fromkeys(settings, "float64"))
    table["models"] = len(models) * len(seeds)
    table["device"] = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    table["torch"], table["closedform"] = torch.__version__, __version__
    return table


def run(
    train: Callable[..., pd.DataFrame],
    out: Path,
    configs: list[Config],
    *,
    device: str,
    prepare: Callable[[Config], object],
    collect: Callable[[pd.DataFrame], pd.DataFrame],
    experiment: Callable[[pd.DataFrame], Experiment],
    same: Sequence[str],
    refine: Callable[[Config, pd.DataFrame], Sequence[Config]] | None = None,
    dask: str | None = None,
    progress: Callable[[Config, int, int], None] | None = None,
    done: Callable[[int, int, Config], None] | None = None,
) -> pd.DataFrame:
    """Train the stacks that are not finished, and write `out/results.parquet` and `out/experiment.json` from all.

    The table has what earlier runs of the same experiment in the folder have finished, too; it is written even when this
    run is stopped.

    prepare: reads the data, so that what is wrong with them is said at once.
    collect, experiment: the table as it is written, and what the report has to know of it.
    same: the entries of a configuration that other configurations of the same experiment share.
    refine: the stacks of more seeds that the results ask for at a configuration; asked for twice, they count once.
    dask: the address of a cluster, whose workers take a stack each; they need the data, and write nothing."""
    parts = out / "parts"

    def here(config: Config) -> pd.DataFrame:
        step = None if progress is None else partial(progress, config)
        return train(config, folder=parts, device=device, progress=step)

    def ended(count: int, total: int, config: Config) -> None:
        checkpoint(parts, config).path.unlink(missing_ok=True)  # its result is safe
        if done is not None:
            done(count, total, config)

    one = here if dask is None else partial(train, folder=None, device=device)
    with claimed(out):
        if dask is None and len(finished(configs, out)) < len(configs):
            prepare(configs[0])
        try:
            table = grid.run(one, configs, parts, dask=dask, progress=ended, version=__version__)
            if refine is not None:
                more = [other for config in configs for other in refine(config, table)]
                grid.run(one, more, parts, dask=dask, progress=ended, version=__version__)
        finally:
            table = grid.finished(alike(configs, parts, same), parts, version=__version__)
            if len(table):
                table = collect(table).drop(columns=["seeds", "first_seed", "only", "grid"])
                results.save(table, out)
                experiment(table).save(out)
    return table


def alike(configs: list[Config], parts: Path, same: Sequence[str]) -> list[Config]:
    """What is finished in the folder and belongs to the same experiment as `configs`: other batch sizes, optimizers and
    seeds, but the same data, models and epochs."""
    grids = {(c["optimizer"], c["size"]): c["grid"] for c in configs}
    sizes = {(c["size"], c.get("epochs")) for c in configs}
    return [
        config
        for config in grid.configurations(parts, version=__version__)
        if {"size", "optimizer", "grid", *same} <= config.keys()  # another experiment's result has other entries
        and (config["size"], config.get("epochs")) in sizes
        and grids.get((config["optimizer"], config["size"]), config["grid"]) == config["grid"]
        and all(config[name] == configs[0][name] for name in same)
    ]
