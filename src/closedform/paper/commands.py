"""The commands that reproduce the paper: `closedform paper ...`, `report`, `thin` and `claims`."""

from __future__ import annotations

import enum
import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .imagenet_command import imagenet
from .running import REPORT, checked_device, open_page, run_experiment, show, train_all, write_report

TIMINGS = Path("benchmarks/results/step_overhead-cuda.json")


def register(app: typer.Typer) -> None:
    for command in (report, claims, thin):
        app.command()(command)
    figures = typer.Typer(invoke_without_command=True, help="Reproduce the paper's figures and tables.")
    figures.callback()(paper)
    for command in (landscape, theory, qm9, fno, dfiv, policy, cifar100, imagenet, timing):
        figures.command()(command)
    app.add_typer(figures, name="paper")


class Optimizer(str, enum.Enum):
    sgd = "sgd"
    adam = "adam"


class ImageOptimizer(str, enum.Enum):
    sgd = "sgd"
    adamw = "adamw"
    muon = "muon"


Optimizers = Annotated[list[Optimizer] | None, typer.Option(help="May be given more than once.")]
BatchSizes = Annotated[list[int] | None, typer.Option(min=1, help="May be given more than once.")]
Count = Annotated[int | None, typer.Option(min=1)]
Refine = Annotated[int, typer.Option(min=0, help="This many more seeds, at the settings that the first seeds chose.")]
Seconds = Annotated[float | None, typer.Option(min=0.1, help="Stop after this many seconds, as Ctrl-C does.")]
Device = Annotated[str, typer.Option(help='"auto", "cpu", "cuda" or "cuda:1".')]
Out = Annotated[Path | None, typer.Option(help="The folder of the results; a later run continues what it holds.")]
Results = Annotated[Path, typer.Argument(help="A folder with results.parquet and experiment.json.")]


def paper(
    context: typer.Context,
    list_: Annotated[bool, typer.Option("--list", help="Show every figure and table, and its command.")] = False,
) -> None:
    if list_:
        _catalogue()
    elif context.invoked_subcommand is None:
        print(context.get_help())


# ---- Experiments ---------------------------------------------------------------------------------


def qm9(
    quick: Annotated[bool, typer.Option(help="20,000 molecules, 3 epochs, one seed, few settings: minutes.")] = False,
    optimizer: Optimizers = None,
    batch_size: BatchSizes = None,
    epochs: Count = None,
    seeds: Count = None,
    refine: Refine = 0,
    molecules: Annotated[int | None, typer.Option(min=100, help="Use only this many of the molecules.")] = None,
    device: Device = "auto",
    dask: Annotated[str | None, typer.Option(help="Address of a Dask cluster; its workers train the stacks.")] = None,
    synthetic: Annotated[bool, typer.Option(help="Generated molecules instead of the data set.")] = False,
    out: Out = None,
) -> None:
    """QM9: the learned layer against ridge, proximal and Kalman, at several batch sizes and optimizers.

    Ctrl-C stops the run, and the same command continues it. The report is one HTML page in the output folder.
    """
    from .experiments import qm9 as experiment

    configs = experiment.jobs(
        _names(optimizer) or (["sgd"] if quick else experiment.OPTIMIZERS),
        sorted(set(batch_size or ([32, 256] if quick else experiment.BATCH_SIZES))),
        size="quick" if quick else "full",
        epochs=epochs or (3 if quick else experiment.EPOCHS),
        seeds=seeds or (1 if quick else experiment.SEEDS),
        limit=molecules or (20_000 if quick else None),
        source="synthetic" if synthetic else "qm9",
    )
    folder = out or Path("runs/qm9-quick" if quick else "runs/qm9")
    # a worker of a cluster may have a GPU that this machine has not
    device = device if dask and device != "auto" else checked_device(device)
    run_experiment(experiment, configs, folder, device=device, refine=refine, dask=dask)


def fno(
    quick: Annotated[
        bool, typer.Option(help="320 samples, 64 points, a narrower network, 10 epochs: minutes.")
    ] = False,
    reduced: Annotated[bool, typer.Option(help="Twelve settings a method instead of the paper's grids.")] = False,
    optimizer: Optimizers = None,
    batch_size: BatchSizes = None,
    epochs: Count = None,
    seeds: Count = None,
    refine: Refine = 0,
    samples: Annotated[
        int | None, typer.Option(min=20, help="This many samples instead of 2,048 (--quick: 320).")
    ] = None,
    tf32: Annotated[bool, typer.Option(help="Let a GPU round the factors of the network's products to TF32.")] = False,
    wider: Annotated[
        bool, typer.Option(help="Only settings beyond the ends at which best ones of --beside lie, with all seeds.")
    ] = False,
    beside: Annotated[
        Path | None, typer.Option(help="A folder of earlier results, whose rows join these in the table.")
    ] = None,
    seconds: Seconds = None,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Burgers' equation by a Fourier neural operator: the learned layer against ridge, proximal and Kalman.

    Ctrl-C stops the run, and the same command continues it. The report is one HTML page in the output folder.
    """
    from .experiments import fno as experiment

    if quick and reduced:
        raise ValueError("--quick and --reduced are two grids of settings: expected one of them")
    optimizers = _names(optimizer) or (["sgd"] if quick else experiment.OPTIMIZERS)
    sizes = sorted(set(batch_size or ([2, 8, 32] if quick else experiment.BATCH_SIZES)))
    folder = out or Path("runs/fno-quick" if quick else "runs/fno")
    if wider:
        if beside is None:
            raise ValueError(
                "--wider looks for best settings at the ends of grids: expected --beside FOLDER of results"
            )
        from .sweeps import results

        configs = experiment.wider_jobs(results.load(beside), optimizers, sizes, seeds=seeds or experiment.SEEDS)
        if not configs:
            raise ValueError(f"no best setting in {beside} lies at an end of its grid")
        device = checked_device(device)
        run_experiment(experiment, configs, folder, seconds, device=device, beside=beside)
        return
    configs = experiment.jobs(
        optimizers,
        sizes,
        size="quick" if quick else "reduced" if reduced else "full",
        epochs=epochs or (10 if quick else experiment.EPOCHS),
        seeds=seeds or (1 if quick else experiment.SEEDS),
        tf32=tf32,
        **({"samples": samples} if samples else {}),
    )
    device = checked_device(device)
    run_experiment(experiment, configs, folder, seconds, device=device, refine=refine, beside=beside)


def cifar100(
    quick: Annotated[bool, typer.Option(help="2,000 images, a small network, one and two epochs, one seed.")] = False,
    optimizer: Annotated[list[ImageOptimizer] | None, typer.Option(help="May be given more than once.")] = None,
    batch_size: BatchSizes = None,
    method: Annotated[list[str] | None, typer.Option(help="May be given more than once.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of the chosen settings.")] = None,
    search_epochs: Annotated[int | None, typer.Option(min=1, help="Of the runs that choose them.")] = None,
    seeds: Count = None,
    studies: Annotated[
        bool, typer.Option(help="Also label smoothing, bias, initial layers, Algorithm 2, all lambda and beta.")
    ] = True,
    images: Annotated[int | None, typer.Option(min=100, help="Use only this many of the training images.")] = None,
    device: Device = "auto",
    at_once: Annotated[int, typer.Option(min=1, help="How many processes share the device.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Work for this long; again until all is done.")] = None,
    merge: Annotated[list[Path] | None, typer.Option(help="First copy the runs of another output folder.")] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Train nothing: say what has run, and make the page.")
    ] = False,
    synthetic: Annotated[bool, typer.Option(help="Generated images instead of the data set.")] = False,
    out: Out = None,
) -> None:
    """CIFAR-100: learned, fixed and solved last layers by a ResNet-18; short runs choose the settings, longer ones count.

    Every finished run is a file in the output folder. Ctrl-C stops the work, and the same command continues it. The report
    is one HTML page in that folder, made of whatever has run.
    """
    from .experiments import cifar100 as experiment
    from .experiments import cifar100_plan as plan
    from .sweeps.records import Records

    start, console = time.perf_counter(), Console()
    console.print(experiment.OPENING + "\n", highlight=False, soft_wrap=True)
    device = checked_device(device)
    scale = plan.RunScale(
        epochs=epochs or (2 if quick else 30),
        search_epochs=search_epochs or (1 if quick else 10),
        seeds=seeds or (1 if quick else 3),
        limit=images or (2000 if quick else None),
        source="synthetic" if synthetic else "cifar100",
        net="small" if quick else "resnet18",
        precision="fp32" if quick else "bf16",
    )
    names = [one.value for one in optimizer or ([ImageOptimizer.sgd] if quick else [])]
    sizes = sorted(set(batch_size or ([128] if quick else [])))
    tasks = plan.chosen_tasks(names, sizes, method, studies and not quick)
    folder = out or Path("runs/cifar100-quick" if quick else "runs/cifar100")
    for other in merge or []:
        print(f"{Records(folder / experiment.RUNS).merge(other / experiment.RUNS)} runs copied from {other}")
    if not status:
        train_all(experiment, folder, tasks, scale, device=device, at_once=at_once, seconds=seconds)
    records = Records(folder / experiment.RUNS)
    for line in experiment.progress(tasks, records, scale):
        print(line)
    if not len(records):
        print(f"No run is finished yet in {folder}.")
        return
    if absent := [name for name in REPORT if find_spec(name) is None]:
        print(
            f"The page needs {', '.join(absent)}: `closedform paper cifar100 --status --out {folder}` makes it elsewhere."
        )
        return
    experiment.collect(folder)
    show(console, folder, time.perf_counter() - start)


def dfiv(
    quick: Annotated[bool, typer.Option(help="1,000 rows, 40 iterations, two batch sizes, one seed: seconds.")] = False,
    full: Annotated[
        bool, typer.Option(help="The paper's rows, networks, grids and T1: half an hour on an H200.")
    ] = False,
    batch_size: BatchSizes = None,
    iterations: Count = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="The first seed chooses the settings of the others.")] = None,
    device: Device = "auto",
    tf32: Annotated[bool, typer.Option(help="Let a GPU round the factors of the networks' products to TF32.")] = False,
    out: Out = None,
) -> None:
    """Instrumental variables on sprites: proximal against ridge layers by batch size, online and re-estimated.

    Ctrl-C stops the run, and the same command continues it. The report is one HTML page in the output folder.
    """
    from .experiments import dfiv as experiment

    if quick and full:
        raise ValueError("--quick and --full were both given; expected one of them")
    size = "quick" if quick else "full" if full else "cpu"
    configs = experiment.jobs(size, batch_size, iterations, tf32)
    folder = out or Path({"cpu": "runs/dfiv"}.get(size, f"runs/dfiv-{size}"))
    seeds = seeds or experiment.SIZES[size].seeds
    run_experiment(experiment, configs, folder, seeds=seeds, device=checked_device(device))


def policy(
    quick: Annotated[bool, typer.Option(help="3,000 transitions, two levels of noise, one seed: minutes.")] = False,
    seeds: Count = None,
    out: Annotated[Path, typer.Option(help="The folder of the results and the figures.")] = Path("runs/policy"),
) -> None:
    """The value of a policy from logged transitions (the paper's future work), beside baselines.

    Ctrl-C stops the run, and the same command continues it.
    """
    from .experiments import policy as experiment

    print(f"This takes {'minutes' if quick else 'hours'}; every finished row is kept.")
    table, *pictures = experiment.run(out, quick, print, seeds)
    print(f"The results are in {table}.")
    for picture in pictures:
        open_page(Console(), picture)


def landscape(
    out: Annotated[Path, typer.Option(help="The folder of the page and the picture.")] = Path("runs/landscape"),
) -> None:
    """Figure 1: the loss of W relu(theta x), the curve of solved layers, and two descents; a page to play with."""
    from .experiments import landscape as experiment

    _, page = experiment.run(out)
    open_page(Console(), page)


def theory(
    quick: Annotated[bool, typer.Option(help="Fewer repetitions, narrower networks.")] = False,
    out: Annotated[Path, typer.Option(help="The folder of theory.json and the figures.")] = Path("runs/theory"),
    figures: Annotated[Path | None, typer.Option(help="Another folder for the figures.")] = None,
) -> None:
    """Compute every statement of the paper's theory and draw it."""
    from .experiments import theory as experiment

    print(f"This takes {'seconds' if quick else 'about a minute on one core'}.")
    numbers = experiment.run(out, quick, figures, say=print)
    print(f"The numbers are in {numbers}.")
    open_page(Console(), out / "report.html")


# ---- What has been measured ----------------------------------------------------------------------


def timing(
    results: Annotated[
        Path | None, typer.Option(help="A file of `python benchmarks/step_overhead.py`; the repository's otherwise.")
    ] = None,
) -> None:
    """The paper's two wall-clock tables beside ours: its figure / our step eager / our step captured."""
    from .experiments import timing as measured

    if results is None and not TIMINGS.is_file():
        raise _not_in_a_clone("closedform paper timing", TIMINGS, "a file")
    rows = measured.rows(results or TIMINGS)
    for net, title in (("resnet18", "ResNet-18"), ("resnet50", "ResNet-50")):
        table = Table(title=f"{title}: the paper (A100) / ours eager / ours captured")
        for name in measured.HEAD:
            table.add_column(name, justify="right")
        for row in rows:
            if row.net == net:
                table.add_row(*measured.cells(row))
        Console().print(table)


def report(
    results: Results,
    out: Annotated[Path | None, typer.Option(help="The page to write; report.html in the folder otherwise.")] = None,
) -> None:
    """Write one self-contained HTML page from a results folder."""
    _check_folder("closedform report", results)
    open_page(Console(), write_report(results, out))


def thin(results: Results, out: Annotated[Path, typer.Argument(help="The folder of the small copy.")]) -> None:
    """Write a small copy of a results folder, which gives the same report."""
    _check_folder("closedform thin", results)
    from .experiments import fno_samples
    from .report.thin import thin as copy

    print(copy(results, out))
    if (results / fno_samples.FILE).is_file():
        shutil.copyfile(results / fno_samples.FILE, out / fno_samples.FILE)


def claims(
    experiment: Annotated[str, typer.Argument(help="qm9, fno, dfiv or cifar100")],
    results: Annotated[Path | None, typer.Option(help="results/EXPERIMENT of the repository otherwise.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a table for a page.")] = False,
) -> None:
    """Check the paper's sentences about an experiment against results, by default those in the repository."""
    from . import claims as sentences

    folder = results or Path("results") / experiment
    if experiment in sentences.EXPERIMENTS:  # else `check` says what is wrong
        _check_folder(f"closedform claims {experiment}", folder)
    checks = sentences.check(experiment, folder)
    if markdown:
        print(sentences.markdown(checks))
    else:
        sentences.show(checks, folder, Console())


# ---- Small pieces --------------------------------------------------------------------------------


def _names(optimizers: list[Optimizer] | None) -> list[str]:
    return [optimizer.value for optimizer in optimizers or []]


def _check_folder(command: str, folder: Path) -> None:
    """Say at once that a folder of results is not there; the repository's are not part of the installed package."""
    if folder.is_dir():
        return
    if folder.parts[:1] == ("results",):
        raise _not_in_a_clone(command, folder, "a folder")
    raise ValueError(f"{folder} holds no results: there is no such folder")


def _not_in_a_clone(command: str, path: Path, kind: str) -> ValueError:
    return ValueError(
        f"{command} reads {path} of the repository, which the installed package does not have: run it in a clone of "
        f"closedform, or name {kind} of your own"
    )


def _catalogue() -> None:
    from .experiments.catalogue import PAPER

    table = Table(title="The paper's figures and tables")
    for name in ("in the paper", "shows", "command"):
        table.add_column(name)
    for entry in PAPER:
        table.add_row(entry.what, entry.shows, f"[bold]{entry.command}[/]")
    Console().print(table)
