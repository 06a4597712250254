"""The paper's second experiment: the solution of Burgers' equation at time 1 from that at time 0, by a Fourier neural
operator whose last layer is shared over space.

The set-up is the paper's (appendix "Experimental Details"): 2,048 samples on 8,192 points, 1448/200/400; training on every
32nd point; 4 blocks of width 128 with 16 modes; SGD with Nesterov momentum 0.9 from a last layer of zeros or Adam from a
LeCun one, 100 epochs at a constant rate; batch sizes 2 to 128; its grids of learning rate, lambda and beta; the best setting
by the validation error at the end (here: over the last fifth of training, which is less of a draw, and the test error is
the mean over the same fifth). Learning rates refer to the mean squared error over samples and points; the fields are not
scaled. A batch of B is 256 B rows for the last layer.

Beyond the paper: the Kalman filter, at the same constant rates.

All models of one optimizer, batch size and seed are trained as one stack (`closedform.stack.models`). Errors on the
training grid are taken along the way, those on all points (super-resolution) at the end alone: over the last fifth they
would be a third more work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...stack import measuring
from ..data import burgers
from ..models.fno import FNO1d
from ..report.spec import Curves, Experiment, Method, Sensitivity, environment
from ..sweeps import results
from . import fno_samples, stacks
from .fno_models import SETTINGS, beyond, models

if TYPE_CHECKING:
    import pandas as pd

BATCH_SIZES = (2, 8, 32, 128)
OPTIMIZERS = ("sgd", "adam")
EPOCHS, SEEDS = 100, 3
BLOCKS, MARKS = 4, 25
FAILED = 0.1  # a validation error, where the solutions' variance is 0.23: hardly better than a guess of the mean
FULL = {"samples": burgers.SAMPLES, "points": burgers.POINTS, "stride": 32, "width": 128, "modes": 16}
QUICK = {"samples": 320, "points": 1024, "stride": 16, "width": 48, "modes": 16}

OPENING = (
    "Burgers' equation: the solution at time 1 from the initial condition, by a Fourier neural operator. Every method\n"
    "trains the same network; its last layer, which all points in space share, is learned (l2) or solved at every step\n"
    "(ridge, proximal, Kalman). The table shows each method's test error at the setting with the least validation error,\n"
    "both as means over the last fifth of training.\n"
    "Ctrl-C stops the run, and the same command continues it."
)

METHODS = (
    Method("l2", "l2", "#6b7280"),
    Method("ridge", "ridge", "#c2410c"),
    Method("proximal", "proximal", "#1d4ed8"),
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
    tf32: bool = False,
    **sizes: int,
) -> list[dict[str, Any]]:
    """One configuration a stack, the most telling first: large batches before batches of 2, which take longest.

    sizes: changes of `samples`, `points`, `stride`, `width` and `modes`."""
    shape = (QUICK if size == "quick" else FULL) | sizes
    training = round(shape["samples"] * burgers.SPLIT[0] / burgers.SAMPLES)
    stacks.check_batch_sizes(batch_sizes, training, "samples")
    if shape["points"] % shape["stride"] or shape["points"] // shape["stride"] < 2:
        raise ValueError(
            f"the stride is {shape['stride']}; expected a divisor of the {shape['points']} points that leaves at least two"
        )
    shared = shape | {"size": size, "epochs": epochs, "tf32": tf32, "seeds": 1, "only": ""}
    order = [b for b in (32, 128, 8) if b in batch_sizes]
    order += sorted((b for b in batch_sizes if b not in order), reverse=True)
    late = [b for b in order if b < 8]
    configs: list[dict[str, Any]] = [
        shared | {"optimizer": optimizer, "batch_size": batch_size, "first_seed": seed}
        for sizes_now in ([b for b in order if b not in late], late)
        for optimizer in optimizers
        for seed in range(seeds)
        for batch_size in sizes_now
    ]
    return [
        config | {"grid": stacks.fingerprint(BLOCKS, models(config["optimizer"], config["size"]))} for config in configs
    ]


def wider_jobs(
    table: pd.DataFrame, optimizers: Sequence[str], batch_sizes: Sequence[int], *, seeds: int = SEEDS
) -> list[dict[str, Any]]:
    """Where the best setting of a method in `table` lies at an end of its grid, the settings beyond that end, each with all
    seeds: a stack for each optimizer and batch size that has one, the fewest steps first."""
    columns = ["optimizer", "batch_size", "method", "init"]
    runs = results.finished(table, [*columns, *SETTINGS], select="validation", metric="test", late=True)
    configs = []
    for batch_size in sorted(batch_sizes, reverse=True):
        for optimizer in optimizers:
            own = (table["optimizer"] == optimizer) & (table["batch_size"] == batch_size)
            if not own.any():
                continue
            shape = {key: table.loc[own, key].iloc[0].item() for key in (*FULL, "epochs", "tf32")}
            cell = runs.loc[(runs["optimizer"] == optimizer) & (runs["batch_size"] == batch_size)]
            tried = _grid_models(cell)
            only = [
                k
                for best in _grid_models(results.best(cell, ["method", "init"], SETTINGS, failed=FAILED))
                for k in beyond(optimizer, best, tried)
            ]
            if only:
                grid_name = stacks.fingerprint(BLOCKS, models(optimizer, "wider"))
                where = {"optimizer": optimizer, "batch_size": batch_size, "first_seed": 0, "seeds": seeds}
                numbers = ",".join(map(str, only))
                configs.append(shape | where | {"size": "wider", "only": numbers, "grid": grid_name})
    return configs


def _grid_models(rows: pd.DataFrame) -> list[stacks.GridModel]:
    settings = rows[list(SETTINGS)].astype(object).where(rows[list(SETTINGS)].notna(), None)
    return [
        stacks.GridModel(method, lr, init, lam, beta, forget)
        for method, init, (lr, lam, beta, forget) in zip(rows["method"], rows["init"], settings.values)
    ]


def _models(config: dict[str, Any]) -> list[stacks.GridModel]:
    return stacks.chosen(config, models(config["optimizer"], config["size"]))


name = stacks.name


def work(config: dict[str, Any]) -> float:
    """How long a stack takes, in units of its own: steps, which cost something whatever their size, and samples."""
    count = len(_models(config)) * config["seeds"]
    return count * config["epochs"] * config["samples"] * (1 + 3 / config["batch_size"])


@lru_cache(maxsize=2)
def _data(seeds: range, samples: int, points: int, stride: int, device: str) -> dict[str, measuring.EvaluationSet]:
    def report(done: int, total: int) -> None:
        print(f"Solved {done:,} of {total:,} samples of the data.", file=sys.stderr, flush=True)

    splits = [burgers.load(seed, samples=samples, points=points, device=device, progress=report) for seed in seeds]

    def fields(part: str, every: int) -> measuring.EvaluationSet:
        sides = ([getattr(split, f"{side}_{part}")[:, ::every] for split in splits] for side in "xy")
        return measuring.EvaluationSet(*(torch.stack(side).unsqueeze(3).contiguous() for side in sides))

    parts = {part: fields(part, stride) for part in ("train", "validation", "test")}
    return parts | {"fine": fields("test", 1)}


def _of(config: dict[str, Any], device: str) -> dict[str, measuring.EvaluationSet]:
    return _data(stacks.seeds(config), *(config[key] for key in ("samples", "points", "stride")), device)


def backbone(seed: int, width: int, modes: int) -> FNO1d:
    """The network of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FNO1d(width, modes, BLOCKS)


def train(
    config: dict[str, Any],
    *,
    folder: Path,
    device: str,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Train the stack of one configuration; the rows are all its models at all marks. `folder` is for its checkpoint, and
    for what its best models say of a few test samples."""
    seeds = stacks.seeds(config)
    data = _of(config, device)
    chosen = _models(config)
    stack, history = stacks.train_stack(
        config,
        [backbone(seed, config["width"], config["modes"]) for seed in seeds],
        chosen,
        data,
        device=device,
        at=lambda total: measuring.marks(total, MARKS),
        at_end=measuring.on({"fine": data["fine"]}),
        checkpoint=stacks.checkpoint(folder, config),
        progress=progress,
        tf32=config["tf32"],
    )
    if seeds[0] == 0 and config["size"] != "wider":  # which has only some of the methods
        fno_samples.save(folder, config, stack, history, chosen, data["fine"])
    return stacks.tidy(history, chosen, seeds, SETTINGS, device)


def run(
    out: Path,
    configs: list[dict[str, Any]],
    *,
    device: str = "cpu",
    refine: int = 0,
    beside: Path | None = None,
    progress: Callable[[dict[str, Any], int, int], None] | None = None,
    done: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> pd.DataFrame:
    """Run those of `jobs` that are not finished, and write the results of all (`stacks.run`).

    refine: how many more seeds to run, at the settings that the first seeds chose.
    beside: a folder of earlier results of the same experiment, whose rows join these in the table."""
    count = 1 + max(config["first_seed"] for config in configs)

    def more(config: dict[str, Any], table: pd.DataFrame) -> list[dict[str, Any]]:
        if not refine or config["first_seed"]:
            return []
        grid_models = models(config["optimizer"], config["size"])
        return [stacks.refined(config | {"seeds": count}, table, refine, grid_models, SETTINGS, FAILED)]

    same = ("samples", "points", "stride", "width", "modes", "tf32", "size")

    def collect(table: pd.DataFrame) -> pd.DataFrame:
        earlier = () if beside is None else (beside,)
        fno_samples.gather(out, stacks.alike(configs, out / "parts", same), *earlier)
        return table if beside is None else _joined(results.load(beside), table)

    return stacks.run(
        train,
        out,
        configs,
        device=device,
        prepare=lambda config: _of(config, device),
        collect=collect,
        experiment=experiment,
        same=same,
        refine=more,
        progress=progress,
        done=done,
    )


def join(folders: Sequence[Path], out: Path) -> pd.DataFrame:
    """Write the results of several folders as one; a model that two have is taken from the later one."""
    table = results.load(folders[0])
    for folder in folders[1:]:
        table = _joined(table, results.load(folder))
    results.save(table, out)
    experiment(table).save(out)
    fno_samples.gather(out, (), *folders)
    return table


def _joined(earlier: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Both tables; a model that both have is taken from the later one."""
    import pandas as pd

    model = ["optimizer", "batch_size", "method", "init", *SETTINGS, "seed"]
    both = pd.concat([earlier.assign(later=False), table.assign(later=True)], ignore_index=True)
    again = both.groupby(model, dropna=False, observed=True)["later"].transform("any") & ~both["later"]
    return both.loc[~again].drop(columns="later").reset_index(drop=True)


def _epochs(table: pd.DataFrame) -> str:
    """How many epochs there were, with the batch sizes that had another number than the most."""
    by_size = dict(sorted(zip(table["batch_size"].tolist(), table["epochs"].tolist())))
    usual = max(by_size.values(), key=lambda epochs: (list(by_size.values()).count(epochs), epochs))
    others = [f"{epochs} at batch size {size}" for size, epochs in by_size.items() if epochs != usual]
    return f"{usual} epochs" + (f" ({', '.join(others)})" if others else "")


def _super_resolution(table: pd.DataFrame, points: int, coarse: int) -> str:
    """How errors on all points compare with those on the training grid, where both were taken: after the last step."""
    sound = table.loc[table["validation"].lt(FAILED) & table["fine"].lt(float("inf")) & table["test"].gt(0)]
    if sound.empty:
        return f"On all {points:,} points no model has an error below {FAILED}."
    ratios = sound["fine"] / sound["test"]
    return (
        f"On all {points:,} points, after the last step, errors are {ratios.min():.2f} to {ratios.max():.2f} times those on "
        f"the {coarse} ({len(ratios)} models with an error below {FAILED})."
    )


def experiment(table: pd.DataFrame) -> Experiment:
    """What the report has to know of a table."""
    first, keys = table.iloc[0], set(table["method"])
    points, stride, samples = (int(first[key]) for key in ("points", "stride", "samples"))
    coarse = points // stride
    shown: dict[str, list] = {"optimizer": list(OPTIMIZERS)}
    final = (
        "Test error (mean over the last fifth of training) of the {} rule against {} (in sum units), at the best learning "
        "rate for each."
    )
    starts = {
        "sgd": "SGD with Nesterov momentum 0.9 from a last layer of zeros",
        "adam": "Adam from a LeCun last layer",
    }
    trained = ", ".join(words for key, words in starts.items() if key in set(table["optimizer"]))
    grids = {
        "full": "the paper's grids",
        "reduced": "twelve settings a method from the paper's grids and between",
        "quick": "four settings a method",
        "wider": "more settings beyond an end of these where the best lay there",
    }
    sizes = [size for size in grids if size in set(table["size"])]
    return Experiment(
        name="fno",
        title="Burgers' equation by a Fourier neural operator",
        text=(
            f"{samples:,} initial conditions and their solutions at time 1, viscosity 0.1, on {points:,} points, split "
            f"{burgers.SPLIT[0]}/{burgers.SPLIT[1]}/{burgers.SPLIT[2]}"
            f"{'' if samples == burgers.SAMPLES else ' in proportion'}; training on one point in {stride} ({coarse}); "
            f"{BLOCKS} blocks of width {int(first['width'])} with {int(first['modes'])} modes; "
            f"{_epochs(table)} at a constant rate; {trained}; {', and '.join(grids[size] for size in sizes)}"
            f"{'; products of the network in TF32' if first['tf32'] else ''}. The last layer is shared over space, so a "
            f"batch of B is {coarse} B rows for it.\n\n"
            f"Errors are those on the {coarse} points of the training grid; the table and the sensitivities show their mean "
            f"over the last fifth of training. {_super_resolution(table, points, coarse)}"
        ),
        metric="test",
        late=True,
        select="validation",
        failed=FAILED,
        label="test MSE",
        methods=tuple(method for method in METHODS if method.key in keys),
        by=("optimizer", "batch_size"),
        settings=SETTINGS,
        figures=(
            Curves(
                "Learning curves",
                "Test error at the best setting of each method, chosen by the validation error over the last fifth of "
                "training.",
                shown,
                metric="test",
                label=f"test MSE on {coarse} points",
            ),
            Sensitivity(
                "How much lambda matters", final.format("proximal", "λ"), "lam", shown | {"method": ["proximal"]}
            ),
            Sensitivity("How much beta matters", final.format("ridge", "β"), "beta", shown | {"method": ["ridge"]}),
        ),
        where=shown,
        environment=environment(table),
    )
