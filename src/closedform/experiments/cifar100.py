"""The paper's classification experiment: CIFAR-100 by a ResNet-18, its last layer learned or solved.

The set-up is the paper's where it says what it is: batch sizes 32 to 4096, SGD with Nesterov momentum 0.9 from a last layer
of zeros or Adam from a LeCun one, 80/20 training and validation images, its grids of learning rate, lambda and beta, the
best setting by the validation accuracy over the last fifth of training. It does not say the rest: here the learning rate
falls along a cosine for every method, images are cropped and mirrored at random, there is no weight decay, and the loss is
the mean over the samples of the loss summed over the classes.

As in the paper's figure of hyperparameters, learning rates are compared first (`jobs` with the size "rates"), and then
lambda, beta and the design choices at the best rate (`follow_up`). "full" is the whole product of the grids. One
configuration is one run, and any of them can be run by itself within a limit of time::

    python -m closedform.experiments.cifar100 --out runs/cifar100 --method proximal --batch-size 128 --seconds 540
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import __version__
from ..data import cifar
from ..files import claimed
from ..head import ClosedFormLinear
from ..report.spec import Curves, Experiment, Method, Sensitivity
from ..storage import INITS
from ..sweeps import grid, results
from .cifar100_model import NETS, classifier
from .classifier import Data, OutOfTime

if TYPE_CHECKING:
    import pandas as pd

BATCH_SIZES = (32, 128, 1024, 4096)
OPTIMIZERS = ("sgd", "adam")
EPOCHS, SEEDS = 30, 1
RATES = (10.0, 5.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01, 0.005, 0.001, 0.0005)
LAMBDAS = BETAS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
SOME_RATES = {"sgd": (1.0, 0.5, 0.2, 0.05, 0.01), "adam": (0.01, 0.005, 0.001, 0.0005)}  # of the "rates"
RATIOS, FORGETS = (0.1, 1.0, 10.0), (0.9, 0.99, 0.999)  # of the rules that the paper does not have
LAM, BETA, RATIO, FORGET = 1000.0, 1.0, 1.0, 0.99  # what learning rates are compared at
CONFIDENCE = {32: (0.99, 0.63), 128: (0.99, 0.62), 1024: (0.99, 0.73), 4096: (0.99, 0.76)}  # the paper's table

OPENING = (
    "CIFAR-100: images in 100 classes by a ResNet-18. Every method trains the same network; its last layer is learned\n"
    "(cross-entropy, l2) or solved at every step (ridge, proximal, Kalman, closed-form cross-entropy). The table shows\n"
    "each method's test accuracy at the setting with the best validation accuracy. Ctrl-C stops, the same command goes on."
)

METHODS = (
    Method("cross-entropy", "cross-entropy", "#6b7280"),
    Method("l2", "l2", "#9ca3af"),
    Method("ridge", "ridge", "#c2410c"),
    Method("proximal", "proximal", "#1d4ed8"),
    Method("generalized", "generalised squared", "#7c3aed", ours=True),
    Method("closed-form cross-entropy", "closed-form cross-entropy", "#ca8a04", ours=True),
    Method("kalman", "Kalman", "#059669", ours=True),
    Method("kalman cross-entropy", "Kalman cross-entropy", "#db2777", ours=True),
)
SETTINGS = ("lr", "lam", "beta", "ratio", "forget")
DESIGN = ("init", "bias", "algorithm")


# ---- What is run ---------------------------------------------------------------------------------


def jobs(
    optimizers: Sequence[str],
    batch_sizes: Sequence[int],
    *,
    size: str = "rates",
    methods: Sequence[str] | None = None,
    epochs: int = EPOCHS,
    seeds: int = SEEDS,
    limit: int | None = None,
    source: str = "cifar100",
    net: str = "resnet18",
    precision: str = "bf16",
) -> list[dict[str, Any]]:
    """One configuration a run: "rates" (every method at some learning rates), "full" (the paper's grids, and ours) or
    "quick" (one learning rate each)."""
    chosen = [method.key for method in METHODS] if methods is None else list(methods)
    if unknown := set(chosen) - {method.key for method in METHODS}:
        raise ValueError(f"there is no method {sorted(unknown)[0]!r}; expected {', '.join(m.key for m in METHODS)}")
    if size not in ("rates", "full", "quick"):
        raise ValueError(f"size is {size!r}; expected 'rates', 'full' or 'quick'")
    training = (limit or {"cifar100": cifar.TRAINING, "synthetic": cifar.SYNTHETIC}[source]) * 8 // 10
    if max(batch_sizes) > training:
        raise ValueError(f"batch size {max(batch_sizes)} is larger than the training set of {training:,} images")
    made = []
    for seed in range(seeds):
        for batch_size in batch_sizes:
            for optimizer in optimizers:
                shared = {"epochs": epochs, "limit": limit, "source": source, "net": net, "precision": precision}
                shared |= {"optimizer": optimizer, "batch_size": batch_size, "seed": seed}
                rates = {"rates": SOME_RATES[optimizer], "full": RATES, "quick": SOME_RATES[optimizer][1:2]}[size]
                for method in chosen:
                    made += [_config(shared, method, lr, s) for lr in rates for s in _swept(method, size == "full")]
    return made


def _swept(method: str, full: bool) -> list[dict[str, float]]:
    """The values of the one setting that a method has besides its learning rate."""
    if method in ("cross-entropy", "l2"):
        return [{}]
    if method == "ridge":
        return [{"beta": beta} for beta in (BETAS if full else (BETA,))]
    if method == "proximal":
        return [{"lam": lam} for lam in (LAMBDAS if full else (LAM,))]
    if method.startswith("kalman"):
        return [{"forget": forget} for forget in (FORGETS if full else (FORGET,))]
    return [{"ratio": ratio} for ratio in (RATIOS if full else (RATIO,))]


def _config(shared: dict[str, Any], method: str, lr: float, swept: dict[str, float]) -> dict[str, Any]:
    init = "zeros" if shared["optimizer"] == "sgd" else "lecun"
    return {**shared, "method": method, **dict.fromkeys(SETTINGS), "lr": lr} | swept | _design(init)


def _design(init: str, bias: bool = True, algorithm: int = 1) -> dict[str, Any]:
    return {"init": init, "bias": bias, "algorithm": algorithm}


def follow_up(table: pd.DataFrame, *, seeds: int = 1) -> list[dict[str, Any]]:
    """What the paper compares at the best learning rate, found in a table of the "rates": all lambda and beta (and the one
    setting of each of our rules), four initial layers, no bias, Algorithm 2; and every method with more seeds, at its best
    setting."""
    shared_names = ["epochs", "limit", "source", "net", "precision", "optimizer", "batch_size"]
    table = table.loc[(table["seed"] == 0) & _default(table)]
    made = []
    for _, rows in table.groupby(shared_names, dropna=False, sort=False):
        base = {name: _plain(name, rows[name].iloc[0]) for name in shared_names} | {"seed": 0}
        runs = results.finished(rows, ["method", *SETTINGS], select="validation", metric="test")
        best = results.best(runs, ["method"], SETTINGS, lower=False).set_index("method")
        for method in best.index:
            lr = float(best.loc[method, "lr"])  # pyright: ignore[reportArgumentType]
            swept = {k: v for k in SETTINGS[1:] if (v := _plain(k, best.loc[method, k])) is not None}
            made += [_config(base | {"seed": seed}, method, lr, swept) for seed in range(1, seeds)]
            made += [_config(base, method, lr, s) for s in _swept(method, full=True)]
            if method == "proximal":
                at = _config(base, method, lr, swept)
                made += [at | {"init": init} for init in INITS if init != at["init"]]
                made += [at | {"bias": False}, at | {"algorithm": 2}]
    return list({grid.digest(config): config for config in made}.values())


def _plain(name: str, value: Any) -> Any:
    """A value of a table as a configuration has it: a column with gaps makes floats of whole numbers and NaN of None."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or value != value:
        return None
    return int(value) if name in ("epochs", "limit", "batch_size") else value


def _default(table: pd.DataFrame) -> pd.Series:
    init = table["optimizer"].map({"sgd": "zeros", "adam": "lecun"})
    return (table["init"] == init) & table["bias"].astype(bool) & (table["algorithm"] == 1)


def name(config: dict[str, Any]) -> str:
    """A configuration in a few words, for the progress bar."""
    told = f"{config['optimizer']}, batch size {config['batch_size']}, {config['method']}, rate {config['lr']:g}"
    told += "".join(f", {key} {config[key]:g}" for key in SETTINGS[1:] if config[key] is not None)
    if config["init"] != ("zeros" if config["optimizer"] == "sgd" else "lecun"):
        told += f", {config['init']}"
    told += ("" if config["bias"] else ", no bias") + (", algorithm 2" if config["algorithm"] == 2 else "")
    return f"{told}, seed {config['seed']}" if config["seed"] else told


def work(config: dict[str, Any]) -> float:
    """How long a run takes, in units of its own: steps, which cost something whatever their size, and samples."""
    samples = (config["limit"] or cifar.TRAINING) * config["epochs"]
    return samples * (1 + 40 / config["batch_size"]) * (1.3 if config["algorithm"] == 2 else 1)


# ---- Running -------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _data(seed: int, limit: int | None, source: str, device: str) -> Data:
    return Data(cifar.load(seed, limit, source=source), torch.device(device))  # pyright: ignore[reportArgumentType]


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
    rows = model.train(checkpoint=_checkpoint(folder, config), name=key, progress=progress, deadline=deadline)
    table = pd.DataFrame(rows)
    table["rejected"] = int(model.head.rejected) if isinstance(model.head, ClosedFormLinear) else 0
    table["device"] = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    table["torch"], table["closedform"] = torch.__version__, __version__
    return table


def _checkpoint(folder: Path, config: dict[str, Any]) -> Path:
    return folder / f"{grid.digest(config)}.checkpoint"


def finished(configs: Iterable[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """Those of the configurations that earlier runs have completed."""
    return [config for config in configs if not grid.finished([config], out / "parts", version=__version__).empty]


def run(
    out: Path,
    configs: list[dict[str, Any]],
    *,
    device: str = "cpu",
    progress: Callable[[dict[str, Any], int, int], None] | None = None,
    done: Callable[[int, int, dict[str, Any]], None] | None = None,
    refine: int = 0,
    deadline: float | None = None,
) -> pd.DataFrame:
    """Run those of `jobs` that are not finished, and write `out/results.parquet` and `out/experiment.json` from all runs in
    the folder.

    refine: then also run what follows up their best learning rates, with so many seeds (`follow_up`).
    deadline: a time of `time.perf_counter`; then the run under way is put aside and what is finished written.
    """
    parts = out / "parts"

    def one(config: dict[str, Any]) -> pd.DataFrame:
        told = None if progress is None else partial(progress, config)
        return train(config, folder=parts, device=device, progress=told, deadline=deadline)

    if len(finished(configs, out)) < len(configs):
        first = configs[0]
        _data(first["seed"], first["limit"], first["source"], device)  # what is wrong with it is said at once
    with claimed(out):
        try:
            grid.run(one, configs, parts, progress=done, version=__version__)
            if refine:
                configs = [*configs, *follow_up(collected(out), seeds=refine)]
                grid.run(one, configs, parts, progress=done, version=__version__)
        finally:
            for config in finished(configs, out):
                _checkpoint(parts, config).unlink(missing_ok=True)
            table = collected(out)
            if len(table):
                results.save(table, out)
                experiment(table).save(out)
    return table


def collected(out: Path) -> pd.DataFrame:
    """All runs that the folder holds, whatever they were run for, with their studies."""
    configs = grid.configurations(out / "parts", version=__version__)
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
        return table["optimizer"].map({"sgd": "zeros", "adam": "lecun"})
    return {"bias": True, "algorithm": 1}[column]


# ---- What the report has to know -----------------------------------------------------------------


def confidence(table: pd.DataFrame, optimizer: str = "sgd") -> dict[int, dict[str, float]]:
    """The mean largest probability at the end of training, by batch size and method, each at its best setting."""
    rows = table.loc[(table["study"] == "methods") & (table["optimizer"] == optimizer)]
    by = ["batch_size", "method"]
    runs = results.finished(rows, [*by, *SETTINGS], select="validation", metric="confidence")
    best = results.best(runs.loc[runs["score"] > -math.inf], by, SETTINGS, lower=False)
    found: dict[int, dict[str, float]] = {}
    for row in best.itertuples():
        found.setdefault(int(row.batch_size), {})[str(row.method)] = float(row.final)  # pyright: ignore
    return found


def _confidences(table: pd.DataFrame) -> str:
    told = []
    for size, row in confidence(table).items():
        ours = "; ".join(f"{method} {value:.2f}" for method, value in row.items())
        paper = (
            " (the paper: cross-entropy {:.2f}, proximal {:.2f})".format(*CONFIDENCE[size])
            if size in CONFIDENCE
            else ""
        )
        told.append(f"batch size {size}: {ours}{paper}")
    return (
        "Mean largest probability of the test images under SGD, at each method's best setting: " + ". ".join(told) + "."
    )


def experiment(table: pd.DataFrame) -> Experiment:
    """What the report has to know of a table."""
    first, shown = table.iloc[0], {"study": ["methods"], "optimizer": list(OPTIMIZERS)}
    count = cifar.TRAINING if first["limit"] is None or first["limit"] != first["limit"] else int(first["limit"])
    accuracy = "Final test accuracy of the {} rule against {} (in sum units), at the best learning rate for each."
    figures: list[Curves | Sensitivity] = [
        Curves("Learning curves", "Test accuracy at the best setting of each method.", shown),
        Sensitivity(
            "How much lambda matters", accuracy.format("proximal", "λ"), "lam", shown | {"method": ["proximal"]}
        ),
        Sensitivity("How much beta matters", accuracy.format("ridge", "β"), "beta", shown | {"method": ["ridge"]}),
    ]
    for optimizer in sorted(set(table["optimizer"]), reverse=True):
        title, caption = f"Learning rates, {optimizer}", "Final test accuracy at each learning rate, best of λ and β."
        figures.append(Sensitivity(title, caption, "lr", shown | {"optimizer": [optimizer]}, "method", "batch_size"))
    ablations = {
        "initialisation": ("init", "Initialisation of the last layer", "The proximal rule from four initial layers."),
        "algorithms": ("algorithm", "Algorithm 1 and Algorithm 2", "Solve, then step (1); step, then solve (2)."),
        "bias": ("bias", "With and without a bias", "The proximal rule with a bias solved, and without one."),
    }
    for study, (column, title, caption) in ablations.items():
        if study in set(table["study"]):
            where: dict[str, list] = {"study": [study], "optimizer": list(OPTIMIZERS)}
            figures.append(Curves(title, caption, where | ({"init": list(INITS)} if column == "init" else {}), column))
    keys, made = set(table["method"]), "" if first["source"] == "cifar100" else " generated"
    text = (
        f"{count:,}{made} images, 80/20 training and validation, cropped and mirrored at random; {first['net']}; "
        f"{int(table['epochs'].max())} epochs; SGD with Nesterov momentum 0.9 from a last layer of zeros, Adam from a LeCun "
        "one; learning rates fall along a cosine and refer to the mean over samples of the loss summed over classes; "
        f"{first['precision']}."
    )
    return Experiment(
        name="cifar100",
        title="CIFAR-100: a hundred classes of small images",
        text=text + "\n\n" + _confidences(table),
        metric="test",
        select="validation",
        label="test accuracy",
        methods=tuple(method for method in METHODS if method.key in keys),
        by=("optimizer", "batch_size"),
        settings=SETTINGS,
        figures=tuple(figures),
        where=shown,
        lower=False,
        log=False,
        environment={c: ", ".join(sorted(set(table[c].astype(str)))) for c in ("device", "torch", "closedform")},
    )


# ---- Chosen runs from a script -------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Run configurations of the CIFAR-100 experiment, within a limit of time."
    )
    parser.add_argument("--out", type=Path, default=Path("runs/cifar100"))
    parser.add_argument("--size", choices=("rates", "full", "quick", "follow-up"), default="rates")
    parser.add_argument("--optimizer", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--batch-size", nargs="+", type=int, default=list(BATCH_SIZES))
    parser.add_argument("--method", nargs="+", choices=[method.key for method in METHODS])
    parser.add_argument("--lr", nargs="+", type=float, help="only these of the learning rates")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--limit", type=int, help="only so many of the training images")
    parser.add_argument("--source", choices=("cifar100", "synthetic"), default="cifar100")
    parser.add_argument("--net", choices=tuple(NETS), default="resnet18")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, help="stop after so many; the same command goes on")
    args = parser.parse_args(arguments)
    start = time.perf_counter()
    if args.size == "follow-up":
        configs = follow_up(collected(args.out), seeds=args.seeds)
        configs = [c for c in configs if c["optimizer"] in args.optimizer and c["batch_size"] in args.batch_size]
        configs = [c for c in configs if args.method is None or c["method"] in args.method]
    else:
        shared = {
            name: getattr(args, name) for name in ("size", "epochs", "seeds", "limit", "source", "net", "precision")
        }
        configs = jobs(args.optimizer, args.batch_size, methods=args.method, **shared)
    configs = [c for c in configs if args.lr is None or c["lr"] in args.lr]
    ended = len(finished(configs, args.out))
    print(f"{len(configs)} runs, {ended} of them finished", flush=True)

    def done(count: int, total: int, config: dict[str, Any]) -> None:
        rows = grid.finished([config], args.out / "parts", version=__version__)
        result = (
            f"test accuracy {rows['test'].iloc[-1]:.4f}, {rows['wall_s'].iloc[-1]:.0f} s" if len(rows) else "failed"
        )
        print(f"{count}/{total} {name(config)}: {result}", flush=True)

    try:
        deadline = None if args.seconds is None else start + args.seconds
        run(args.out, configs, device=args.device, done=done, deadline=deadline)
    except OutOfTime:
        print(f"out of time after {time.perf_counter() - start:.0f} s: the same command goes on", flush=True)
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
