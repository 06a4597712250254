"""The paper's classification experiment: CIFAR-100 by a ResNet-18, its last layer learned or solved.

The set-up is the paper's where it says what it is: batch sizes 32 to 4096, SGD with Nesterov momentum 0.9 from a last layer
of zeros or Adam from a LeCun one, 80/20 training and validation images, its grids of learning rate, lambda and beta, the
best setting by the validation accuracy over the last fifth of training. It does not say the rest: here the learning rate
falls along a cosine for every method, images are cropped and mirrored at random, there is no weight decay, and the loss is
the mean over the samples of the loss summed over the classes.

The whole product of its grids (the size "full") is some thousand runs. By default every method has the same few runs at
each batch size instead, that climb from a start of its own (`STARTS`): first the learning rate, then the one other setting,
a step of the grid at a time, to the best validation accuracy (`climb`). `follow_up` then sweeps lambda, beta and the design
choices at the best rate, as in the paper's figure of hyperparameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ... import __version__
from ...files import claimed
from ...head import ClosedFormLinear
from ...state import INITS
from ..data import cifar
from ..sweeps import grid, results
from . import stacks
from .cifar100_model import classifier
from .cifar100_report import METHODS, SETTINGS, experiment
from .cifar100_report import OPTIMIZERS as OPTIMIZERS
from .classifier import DeviceImages

if TYPE_CHECKING:
    import pandas as pd

BATCH_SIZES = (32, 128, 1024, 4096)
EPOCHS, SEEDS = 30, 1
RATES = (10.0, 5.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01, 0.005, 0.001, 0.0005)
LAMBDAS = BETAS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
RUNS = 5  # that every method has for its settings at one batch size
RATIOS, FORGETS = (0.01, 0.1, 1.0, 10.0, 100.0), (0.5, 0.9, 0.99, 0.999)  # of the rules that the paper does not have
LADDERS = {
    "lr": (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),  # the paper's, without the 0.3
    "lam": (*LAMBDAS, 1e4, 1e5),  # at small batches the best lies beyond the paper's grid
    "beta": BETAS,
    "ratio": RATIOS,
    "forget": FORGETS,
}
# where the climbs start, by batch size: the choices of the runs in `results/cifar100`
STARTS: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "cross-entropy": {"lr": (0.05, 0.1, 0.2, 0.2)},
    "l2": {"lr": (0.001, 0.001, 0.001, 0.001)},
    "ridge": {"lr": (0.2, 0.2, 2.0, 10.0), "beta": (1.0, 1e3, 1e3, 1.0)},
    "proximal": {"lr": (0.1, 0.5, 5.0, 10.0), "lam": (1e5, 1e4, 1e3, 1e3)},
    "generalized": {"lr": (0.1, 0.5, 5.0, 5.0), "ratio": (100.0, 10.0, 1.0, 1.0)},
    "closed-form cross-entropy": {"lr": (0.1, 0.2, 0.5, 0.2), "ratio": (10.0, 1.0, 0.1, 0.1)},
    "kalman": {"lr": (0.1, 0.5, 5.0, 5.0), "forget": (0.999, 0.99, 0.99, 0.9)},
    "kalman cross-entropy": {"lr": (0.1, 0.5, 1.0, 1.0), "forget": (0.99, 0.99, 0.9, 0.9)},
}
ADAM = 0.001  # the rate there
DIVERGED = 0.02  # an accuracy below this is chance, and the next learning rate is lower

OPENING = (
    "CIFAR-100: images in 100 classes by a ResNet-18. Every method trains the same network; its last layer is learned\n"
    "(cross-entropy, l2) or solved at every step (ridge, proximal, Kalman, closed-form cross-entropy). The table shows\n"
    "each method's test accuracy at the setting with the best validation accuracy. Ctrl-C stops\n"
    "the run, and the same command continues it."
)

DESIGN = ("init", "bias", "algorithm")


# ---- What is run ---------------------------------------------------------------------------------


def jobs(
    optimizers: Sequence[str],
    batch_sizes: Sequence[int],
    *,
    size: str = "climb",
    methods: Sequence[str] | None = None,
    epochs: int = EPOCHS,
    seeds: int = SEEDS,
    limit: int | None = None,
    source: str = "cifar100",
    net: str = "resnet18",
    precision: str = "bf16",
) -> list[dict[str, Any]]:
    """One configuration a run: where the climbs start ("climb", and "quick" where there are none), or the "full" grids."""
    chosen = [method.key for method in METHODS] if methods is None else list(methods)
    if unknown := set(chosen) - {method.key for method in METHODS}:
        raise ValueError(f"there is no method {sorted(unknown)[0]!r}; expected {', '.join(m.key for m in METHODS)}")
    if size not in ("climb", "full", "quick"):
        raise ValueError(f"size is {size!r}; expected 'climb', 'full' or 'quick'")
    training = (limit or {"cifar100": cifar.TRAINING, "synthetic": cifar.SYNTHETIC}[source]) * 8 // 10
    stacks.check_batch_sizes(batch_sizes, training, "images")
    configs = []
    for seed in range(seeds):
        for batch_size in batch_sizes:
            for optimizer in optimizers:
                shared = {"epochs": epochs, "limit": limit, "source": source, "net": net, "precision": precision}
                shared |= {"optimizer": optimizer, "batch_size": batch_size, "seed": seed}
                for method in chosen:
                    if size == "full":
                        configs += [_config(shared, method, lr, swept) for lr in RATES for swept in _swept(method)]
                    else:
                        configs.append(_config(shared, method, **_start(method, optimizer, batch_size)))
    return configs


def _start(method: str, optimizer: str, batch_size: int) -> dict[str, Any]:
    """What a climb starts from."""
    column = sum(batch_size >= size for size in BATCH_SIZES[1:])
    swept = {name: values[column] for name, values in STARTS[method].items()}
    lr = swept.pop("lr")
    return {"lr": ADAM if optimizer == "adam" else lr, "swept": swept}


def _swept(method: str, beyond: bool = False) -> list[dict[str, float]]:
    """All values of the one setting that a method has besides its learning rate: the paper's, or those beyond them too."""
    axis = next((name for name in STARTS[method] if name != "lr"), None)
    if axis is None:
        return [{}]
    return [{axis: value} for value in (LAMBDAS if axis == "lam" and not beyond else LADDERS[axis])]


def _config(shared: dict[str, Any], method: str, lr: float, swept: dict[str, float]) -> dict[str, Any]:
    design = {"init": stacks.INIT[shared["optimizer"]], "bias": True, "algorithm": 1}
    return {**shared, "method": method, **dict.fromkeys(SETTINGS), "lr": lr} | swept | design


SHARED = ("epochs", "limit", "source", "net", "precision", "optimizer", "batch_size")


def _cells(table: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """What the runs of one optimizer and batch size share, and a row for each of them with its score."""
    table = table.loc[(table["seed"] == 0) & _default(table)]
    for _, rows in table.groupby(list(SHARED), dropna=False, sort=False):
        base = {name: _plain(name, rows[name].iloc[0]) for name in SHARED} | {"seed": 0}
        yield base, results.finished(rows, ["method", *SETTINGS], select="validation", metric="test")


def climb(table: pd.DataFrame, runs: int = RUNS) -> list[dict[str, Any]]:
    """One more run for every method, optimizer and batch size in a table of runs that has had fewer than `runs`: beside its
    best so far, a step of the grid up or, if that rate diverged, down. The first three runs of a method are spent on its
    learning rate, the others on its other setting where it has one; where nothing beside the best is left to try, beside
    the next best."""
    configs = []
    for base, cell in _cells(table):
        for method, rows in cell.groupby("method", sort=False):
            axis = next((name for name in SETTINGS[1:] if rows[name].notna().any()), "lr")
            tried = {(lr, value): score for lr, value, score in zip(rows["lr"], rows[axis], rows["score"])}
            if len(tried) < runs:
                step = _step(tried, axis, ("lr", axis) if len(tried) < 3 else (axis, "lr"))
                configs += [] if step is None else [_config(base, str(method), step[0], {axis: step[1], "lr": step[0]})]
    return configs


def _step(tried: dict[tuple[float, float], float], axis: str, order: Iterable[str]) -> tuple[float, float] | None:
    """The neighbour, not tried yet, of the best setting that has one."""
    for lr, value in sorted(tried, key=lambda setting: (-tried[setting], setting[0])):
        for moved in order:
            ladder = LADDERS[moved]
            at = ladder.index(lr if moved == "lr" else value)
            up = tried[lr, value] > DIVERGED or moved != "lr"
            for k in (at + 1, at - 1) if up else (at - 1, at + 1):
                if 0 <= k < len(ladder):
                    beside = (ladder[k], ladder[k] if axis == "lr" else value) if moved == "lr" else (lr, ladder[k])
                    if beside not in tried:
                        return beside
    return None


def follow_up(table: pd.DataFrame, *, refine: int = 0, ablations: bool = True) -> list[dict[str, Any]]:
    """What the paper compares at the best learning rate, found in a table of runs: all lambda and beta (and the one setting
    of each of our rules), four initial layers, no bias, Algorithm 2; and every method with `refine` more seeds, at its best
    setting."""
    configs = []
    for base, runs in _cells(table):
        best = results.best(runs, ["method"], SETTINGS, lower=False).set_index("method")
        for method in best.index:
            lr = float(best.loc[method, "lr"])  # pyright: ignore[reportArgumentType]
            swept = {k: v for k in SETTINGS[1:] if (v := _plain(k, best.loc[method, k])) is not None}
            configs += [_config(base | {"seed": seed}, method, lr, swept) for seed in range(1, 1 + refine)]
            if not ablations:
                continue
            configs += [_config(base, method, lr, s) for s in _swept(method, beyond=True)]
            if method == "proximal":
                at = _config(base, method, lr, swept)
                configs += [at | {"init": init} for init in INITS if init != at["init"]]
                configs += [at | {"bias": False}, at | {"algorithm": 2}]
    return list({grid.digest(config): config for config in configs}.values())


def _plain(name: str, value: Any) -> Any:
    """A value of a table as a configuration has it: a column with gaps makes floats of whole numbers and NaN of None."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or value != value:
        return None
    return int(value) if name in ("epochs", "limit", "batch_size") else value


def _default(table: pd.DataFrame) -> pd.Series:
    init = table["optimizer"].map(stacks.INIT)
    return (table["init"] == init) & table["bias"].astype(bool) & (table["algorithm"] == 1)


def name(config: dict[str, Any]) -> str:
    """A configuration in a few words, for the progress bar."""
    words = f"{config['optimizer']}, batch size {config['batch_size']}, {config['method']}, rate {config['lr']:g}"
    words += "".join(f", {key} {config[key]:g}" for key in SETTINGS[1:] if config[key] is not None)
    if config["init"] != stacks.INIT[config["optimizer"]]:
        words += f", {config['init']}"
    words += ("" if config["bias"] else ", no bias") + (", algorithm 2" if config["algorithm"] == 2 else "")
    return f"{words}, seed {config['seed']}" if config["seed"] else words


def work(config: dict[str, Any]) -> float:
    """How long a run takes, in units of its own: steps, which cost something whatever their size, and samples."""
    samples = (config["limit"] or cifar.TRAINING) * config["epochs"]
    return samples * (1 + 40 / config["batch_size"]) * (1.3 if config["algorithm"] == 2 else 1)


# ---- Running -------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _data(seed: int, limit: int | None, source: str, device: str) -> DeviceImages:
    return DeviceImages(cifar.load(seed, limit, source=source), torch.device(device))  # pyright: ignore[reportArgumentType]


def train(
    config: dict[str, Any],
    *,
    folder: Path,
    device: str,
    progress: Callable[[int, int], None] | None = None,
    deadline: float | None = None,
) -> pd.DataFrame:
    """Train one configuration; a row for every mark."""
    import pandas as pd

    model = classifier(config, _data(config["seed"], config["limit"], config["source"], device))
    key = grid.digest(config)
    with torch.backends.cudnn.flags(enabled=True, benchmark=device.startswith("cuda")):  # all batches are of one size
        rows = model.train(checkpoint=stacks.checkpoint(folder, config), name=key, progress=progress, deadline=deadline)
    table = pd.DataFrame(rows)
    table["rejected"] = int(model.head.rejected) if isinstance(model.head, ClosedFormLinear) else 0
    table["device"] = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    table["torch"], table["closedform"] = torch.__version__, __version__
    return table


finished = stacks.finished


def run(
    out: Path,
    configs: list[dict[str, Any]],
    *,
    device: str = "cpu",
    progress: Callable[[dict[str, Any], int, int], None] | None = None,
    done: Callable[[int, int, dict[str, Any]], None] | None = None,
    runs: int = 1,
    refine: int = 0,
    ablations: bool = False,
    at_once: int = 1,
    deadline: float | None = None,
) -> pd.DataFrame:
    """Run those of `jobs` that are not finished, and write `out/results.parquet` and `out/experiment.json` from all runs in
    the folder.

    runs: then climb from them, until every method has had this many runs at its batch size (`climb`).
    refine: then this many more seeds for the best setting of every method.
    ablations: then also what follows up the best learning rates (`follow_up`).
    at_once: how many processes share the device. A small batch does not fill a GPU; with NVIDIA's MPS they overlap.
    deadline: a time of `time.perf_counter`; then the run under way is put aside and what is finished written.
    """
    parts = out / "parts"
    cells = {tuple(config[name] for name in SHARED) for config in configs}

    def one(config: dict[str, Any]) -> pd.DataFrame:
        step = None if progress is None else partial(progress, config)
        return train(config, folder=parts, device=device, progress=step, deadline=deadline)

    def all_of(more: list[dict[str, Any]]) -> None:
        more = [config for config in more if tuple(config[name] for name in SHARED) in cells]
        function = one if at_once == 1 else partial(train, folder=parts, device=device, deadline=deadline)
        grid.run(function, more, parts, jobs=at_once, progress=done, version=__version__)

    if len(finished(configs, out)) < len(configs):
        first = configs[0]
        _data(first["seed"], first["limit"], first["source"], device)  # what is wrong with it is said at once
    with claimed(out):
        try:
            all_of(configs)
            methods = {config["method"] for config in configs}
            for _ in range(1, runs):
                all_of([config for config in climb(collected(out), runs) if config["method"] in methods])
            if refine or ablations:
                more = follow_up(collected(out), refine=refine, ablations=ablations)
                all_of([config for config in more if config["method"] in methods])
        finally:
            for config in grid.configurations(parts, version=__version__):
                stacks.checkpoint(parts, config).unlink(missing_ok=True)
            table = collected(out)
            if len(table):
                results.save(table, out)
                experiment(table).save(out)
    return table


def collected(out: Path) -> pd.DataFrame:
    """All runs that the folder holds, whatever they were run for, with their studies."""
    every = grid.configurations(out / "parts", version=__version__)
    configs = [config for config in every if "method" in config]  # another experiment's result has other entries
    table = grid.finished(configs, out / "parts", version=__version__)
    return with_studies(table.astype(dict.fromkeys(SETTINGS, "float64"))) if len(table) else table


def with_studies(table: pd.DataFrame) -> pd.DataFrame:
    """A column `study` that says which comparison a row belongs to; a row that serves two stands in both."""
    import pandas as pd

    parts = [table[_default(table)].assign(study="methods")]
    same = ["optimizer", "batch_size", "method", "seed", *SETTINGS]
    for study, column in (("initialisation", "init"), ("bias", "bias"), ("algorithms", "algorithm")):
        varied = table[~_default(table) & (table[column] != _usual(table, column))]
        usual = (
            parts[0].merge(varied.groupby(same, dropna=False).size().reset_index()[same], on=same).drop(columns="study")
        )
        if len(varied):
            parts.append(pd.concat([usual, varied], ignore_index=True).assign(study=study))
    return pd.concat(parts, ignore_index=True)


def _usual(table: pd.DataFrame, column: str) -> Any:
    if column == "init":
        return table["optimizer"].map(stacks.INIT)
    return {"bias": True, "algorithm": 1}[column]
