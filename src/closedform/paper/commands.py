"""The commands of `closedform`: what is asked for, how far it is, and what came out."""

from __future__ import annotations

import _thread
import enum
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..tabular import commands as tables
from .sweeps.grid import SweepError


def application() -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        help="`closedform` on the command line.",
        pretty_exceptions_enable=False,
    )
    app.command()(version)
    app.command()(report)
    app.command()(claims)
    app.command()(thin)
    tables.register(app)
    figures = typer.Typer(invoke_without_command=True, help="Reproduce the paper's figures and tables.")
    figures.callback()(paper)
    for figure in (landscape, theory, qm9, fno, dfiv, cifar100, timing):
        figures.command()(figure)
    app.add_typer(figures, name="paper")
    return app


class Optimizer(str, enum.Enum):
    sgd = "sgd"
    adam = "adam"


def version() -> None:
    """Print the version."""
    from .. import __version__

    print(__version__)


def paper(
    context: typer.Context,
    list_: Annotated[bool, typer.Option("--list", help="Show every figure and table, and its command.")] = False,
) -> None:
    if list_:
        _catalogue()
    elif context.invoked_subcommand is None:
        print(context.get_help())


def qm9(
    quick: Annotated[bool, typer.Option(help="20,000 molecules, 3 epochs, one seed, few settings: minutes.")] = False,
    optimizer: Annotated[list[Optimizer] | None, typer.Option(help="May be given more than once.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(min=1, help="May be given more than once.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    refine: Annotated[int, typer.Option(min=0, help="So many more seeds, at the settings chosen by the first.")] = 0,
    molecules: Annotated[int | None, typer.Option(min=100, help="Use only this many of the molecules.")] = None,
    device: Annotated[str, typer.Option(help='"auto", "cpu", "cuda" or "cuda:1".')] = "auto",
    dask: Annotated[str | None, typer.Option(help="Address of a Dask cluster, whose workers take the stacks.")] = None,
    synthetic: Annotated[bool, typer.Option(help="Generated molecules instead of the data set.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where results go (and are found again).")] = None,
) -> None:
    """QM9: the learned layer against ridge, proximal and Kalman, at several batch sizes and optimizers.

    Ctrl-C stops; the same command goes on where it was. The report is one HTML page in the output folder.
    """
    from .experiments import qm9 as experiment

    configs = experiment.jobs(
        [o.value for o in optimizer] if optimizer else ["sgd"] if quick else experiment.OPTIMIZERS,
        sorted(set(batch_size or ([32, 256] if quick else experiment.BATCH_SIZES))),
        size="quick" if quick else "full",
        epochs=epochs or (3 if quick else experiment.EPOCHS),
        seeds=seeds or (1 if quick else experiment.SEEDS),
        limit=molecules or (20_000 if quick else None),
        source="synthetic" if synthetic else "qm9",
    )
    folder = out or Path("runs/qm9-quick" if quick else "runs/qm9")
    _run(
        experiment,
        configs,
        folder,
        device=device if dask and device != "auto" else _device(device),
        refine=refine,
        dask=dask,
    )


def fno(
    quick: Annotated[
        bool, typer.Option(help="320 samples, 64 points, a narrower network, 10 epochs: minutes.")
    ] = False,
    reduced: Annotated[bool, typer.Option(help="Twelve settings a method instead of the paper's grids.")] = False,
    optimizer: Annotated[list[Optimizer] | None, typer.Option(help="May be given more than once.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(min=1, help="May be given more than once.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    refine: Annotated[int, typer.Option(min=0, help="So many more seeds, at the settings chosen by the first.")] = 0,
    samples: Annotated[
        int | None, typer.Option(min=20, help="So many samples instead of 2,048 (--quick: 320).")
    ] = None,
    tf32: Annotated[bool, typer.Option(help="Let a GPU round the factors of the network's products to TF32.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Stop after so many, as by Ctrl-C.")] = None,
    device: Annotated[str, typer.Option(help='"auto", "cpu", "cuda" or "cuda:1".')] = "auto",
    out: Annotated[Path | None, typer.Option(help="Where results go (and are found again).")] = None,
) -> None:
    """Burgers' equation by a Fourier neural operator: the learned layer against ridge, proximal and Kalman.

    Ctrl-C stops; the same command goes on where it was. The report is one HTML page in the output folder.
    """
    from .experiments import fno as experiment

    if quick and reduced:
        raise ValueError("--quick and --reduced are two grids of settings: expected one of them")
    configs = experiment.jobs(
        [o.value for o in optimizer] if optimizer else ["sgd"] if quick else experiment.OPTIMIZERS,
        sorted(set(batch_size or ([2, 8, 32] if quick else experiment.BATCH_SIZES))),
        size="quick" if quick else "reduced" if reduced else "full",
        epochs=epochs or (10 if quick else experiment.EPOCHS),
        seeds=seeds or (1 if quick else experiment.SEEDS),
        tf32=tf32,
        **({"samples": samples} if samples else {}),
    )
    folder = out or Path("runs/fno-quick" if quick else "runs/fno")
    _run(experiment, configs, folder, seconds, device=_device(device), refine=refine)


def cifar100(
    quick: Annotated[bool, typer.Option(help="2,000 generated or real images, one epoch, a small network.")] = False,
    optimizer: Annotated[list[Optimizer] | None, typer.Option(help="May be given more than once.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(min=1, help="May be given more than once.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="May be given more than once.")] = None,
    full: Annotated[bool, typer.Option(help="All of the paper's grids: some thousand runs.")] = False,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs that every method has to find its settings.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    refine: Annotated[int, typer.Option(min=0, help="So many more seeds, at the settings chosen by the first.")] = 0,
    ablations: Annotated[
        bool, typer.Option(help="At the best rates also all lambda and beta, initial layers, no bias, Algorithm 2.")
    ] = False,
    images: Annotated[int | None, typer.Option(min=100, help="Use only this many of the training images.")] = None,
    device: Annotated[str, typer.Option(help='"auto", "cpu", "cuda" or "cuda:1".')] = "auto",
    at_once: Annotated[int, typer.Option(min=1, help="So many processes that share the device.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Stop after so many, as by Ctrl-C.")] = None,
    synthetic: Annotated[bool, typer.Option(help="Generated images instead of the data set.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where results go (and are found again).")] = None,
) -> None:
    """CIFAR-100: cross-entropy and l2 against ridge, proximal, Kalman and closed-form cross-entropy, by a ResNet-18.

    Ctrl-C stops; the same command goes on where it was. The report is one HTML page in the output folder.
    """
    from .experiments import cifar100 as experiment

    configs = experiment.jobs(
        [o.value for o in optimizer] if optimizer else ["sgd"] if quick else experiment.OPTIMIZERS,
        sorted(set(batch_size or ([128] if quick else experiment.BATCH_SIZES))),
        size="full" if full else "quick" if quick else "climb",
        methods=method,
        epochs=epochs or (1 if quick else experiment.EPOCHS),
        seeds=seeds or experiment.SEEDS,
        limit=images or (2000 if quick else None),
        source="synthetic" if synthetic else "cifar100",
        net="small" if quick else "resnet18",
        precision="fp32" if _device(device) == "cpu" else "bf16",
    )
    folder = out or Path("runs/cifar100-quick" if quick else "runs/cifar100")
    _run(
        experiment,
        configs,
        folder,
        device=_device(device),
        runs=runs or (1 if quick or full else experiment.RUNS),
        refine=refine,
        ablations=ablations,
        at_once=at_once,
        deadline=None if seconds is None else time.perf_counter() + seconds,
    )


def dfiv(
    quick: Annotated[bool, typer.Option(help="1,000 rows, 40 iterations, two batch sizes, one seed: seconds.")] = False,
    full: Annotated[
        bool, typer.Option(help="The paper's rows, networks, grids and T1: half an hour on an H200.")
    ] = False,
    batch_size: Annotated[list[int] | None, typer.Option(min=1, help="May be given more than once.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1)] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="The first chooses the settings of the others.")] = None,
    device: Annotated[str, typer.Option(help='"auto", "cpu", "cuda" or "cuda:1".')] = "auto",
    tf32: Annotated[bool, typer.Option(help="Products of the networks in TF32 on a GPU.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where results go (and are found again).")] = None,
) -> None:
    """Instrumental variables on sprites: proximal against ridge layers by batch size, online and re-estimated.

    Ctrl-C stops; the same command goes on where it was. The report is one HTML page in the output folder.
    """
    from .experiments import dfiv as experiment

    if quick and full:
        raise ValueError("--quick and --full were both given; expected one of them")
    size = "quick" if quick else "full" if full else "cpu"
    configs = experiment.jobs(size, batch_size, iterations, tf32)
    folder = out or Path({"cpu": "runs/dfiv"}.get(size, f"runs/dfiv-{size}"))
    _run(experiment, configs, folder, seeds=seeds or experiment.SIZES[size].seeds, device=_device(device))


def timing(
    results: Annotated[Path, typer.Option(help="What `python benchmarks/step_overhead.py` wrote.")] = Path(
        "benchmarks/results/step_overhead-cuda.json"
    ),
) -> None:
    """The paper's two wall-clock tables beside ours: its figure / our step eager / our step captured."""
    from .experiments import timing as tables

    rows = tables.rows(results)
    for net, title in (("resnet18", "ResNet-18"), ("resnet50", "ResNet-50")):
        shown = Table(title=f"{title}: the paper (A100) / ours eager / ours captured")
        for name in tables.HEAD:
            shown.add_column(name, justify="right")
        for row in rows:
            if row.net == net:
                shown.add_row(*tables.cells(row))
        Console().print(shown)


def landscape(
    out: Annotated[Path, typer.Option(help="The folder of the page and the picture.")] = Path("runs/landscape"),
) -> None:
    """Figure 1: the loss of W relu(theta x), the curve of solved layers, and two descents; a page to play with."""
    from .experiments import landscape as experiment

    for path in experiment.run(out):
        print(path)


def theory(
    quick: Annotated[bool, typer.Option(help="Fewer repetitions, narrower networks.")] = False,
    out: Annotated[Path, typer.Option(help="The folder of theory.json and the figures.")] = Path("runs/theory"),
    figures: Annotated[Path | None, typer.Option(help="Another folder for the figures.")] = None,
) -> None:
    """Every statement of the paper's theory as a computation: its numbers and its figures."""
    from .experiments import theory as experiment

    print(experiment.run(out, quick, figures, say=print))


def report(
    results: Annotated[Path, typer.Argument(help="A folder with results.parquet and experiment.json.")],
    out: Annotated[Path | None, typer.Option(help="The page to write; report.html in the folder otherwise.")] = None,
) -> None:
    """Write one self-contained HTML page from a results folder."""
    from . import report as page

    print(page.write(results, out, _sections(results)))


def _sections(results: Path) -> list[str]:
    """What an experiment adds to its report."""
    from .experiments import cifar100_report, fno_samples

    return [*cifar100_report.sections(results), *fno_samples.sections(results)]


def thin(
    results: Annotated[Path, typer.Argument(help="A folder with results.parquet and experiment.json.")],
    out: Annotated[Path, typer.Argument(help="The folder of the small copy.")],
) -> None:
    """Write a small copy of a results folder, which gives the same report."""
    from .experiments import fno_samples
    from .report.thin import thin as copy

    print(copy(results, out))
    if (results / fno_samples.FILE).is_file():
        shutil.copyfile(results / fno_samples.FILE, out / fno_samples.FILE)


def claims(
    experiment: Annotated[str, typer.Argument(help="qm9, fno, dfiv or cifar100")],
    results: Annotated[Path | None, typer.Option(help="results/EXPERIMENT otherwise.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a table for a page.")] = False,
) -> None:
    """Check the paper's sentences about an experiment against results, by default those in the repository."""
    from . import claims as sentences

    folder = results or Path("results") / experiment
    checks = sentences.check(experiment, folder)
    if markdown:
        print(sentences.markdown(checks))
    else:
        sentences.show(checks, folder, Console())


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        asked = torch.device(name)
    except RuntimeError:
        asked = torch.device("meta")
    there = asked.type == "cpu" or (asked.type == "cuda" and (asked.index or 0) < torch.cuda.device_count())
    if not there:
        raise ValueError(
            f'--device is {name!r}; expected "auto", "cpu" or, where there is such a GPU, "cuda" or "cuda:1"'
        )
    return name


def _catalogue() -> None:
    from .experiments.catalogue import PAPER

    table = Table(title="The paper's figures and tables")
    for name in ("in the paper", "shows", "command"):
        table.add_column(name)
    for entry in PAPER:
        table.add_row(
            entry.what, entry.shows, f"[bold]{entry.command}[/]" if entry.command else "[dim]not built yet[/]"
        )
    Console().print(table)


def _run(
    experiment: Any, configs: list[dict[str, Any]], out: Path, seconds: float | None = None, **options: Any
) -> None:
    """Run an experiment with a progress bar; then its table, its report and one sentence. After `seconds` it is stopped."""
    from . import report as page

    console = Console()
    console.print(experiment.OPENING + "\n", highlight=False, soft_wrap=True)
    work = {experiment.name(config): experiment.work(config) for config in configs}
    finished: set[str] = set()
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    start = time.perf_counter()
    alarm = threading.Timer(seconds or 0.0, _thread.interrupt_main)
    alarm.daemon = True
    if seconds:
        alarm.start()
    try:
        with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as progress:
            several = options.get("at_once", 1)
            told = f"training, {several} runs at once" if several > 1 else "reading the data"
            least = sum(work.values()) * options.get("runs", 1)  # what is known beforehand of the runs to come
            task = progress.add_task(told, total=least)

            def step(config: dict[str, Any], t: int, total: int) -> None:
                name = experiment.name(config)
                if name not in work:  # one that the results of others have asked for
                    work[name] = experiment.work(config)
                    progress.update(task, total=max(least, sum(work.values())))
                done = sum(work[other] for other in finished) + work[name] * t / total
                progress.update(task, completed=done, description=name)

            def ended(count: int, total: int, config: dict[str, Any]) -> None:
                step(config, 1, 1)
                finished.add(experiment.name(config))

            for config in experiment.finished(configs, out):
                finished.add(experiment.name(config))
            experiment.run(out, configs, **options, progress=step, done=ended)
            progress.update(task, completed=max(least, sum(work.values())), description="finished")
    except KeyboardInterrupt as stopped:
        console.print(f"Stopped with {len(finished)} of {len(work)} runs finished. The same command goes on from here.")
        sys.exit(getattr(stopped, "code", 130))
    except SweepError as failed:
        print(f"closedform: {failed}", file=sys.stderr)
        sys.exit(1)
    finally:
        alarm.cancel()
    _best(console, out)
    seconds = time.perf_counter() - start
    console.print(
        f"\nReport: {page.write(out, None, _sections(out))}    table: {out / 'results.parquet'}    {seconds:.0f} s",
        highlight=False,
    )


def _best(console: Any, out: Path) -> None:
    """The best setting of each method, and who has the lowest error."""
    from .report import panels, summary, text

    table, experiment = panels.read(out)
    facets = summary.best_settings(table, experiment)
    names = [text.name(experiment, column) for column in experiment.settings]
    shown = Table(title=f"{experiment.label} of each method at its best setting")
    for name in ("", "method", experiment.label, f"/ {experiment.methods[0].label}", "setting"):
        right = name.startswith(("/", experiment.label))
        shown.add_column(name, justify="right" if right else "left", no_wrap=name not in ("", "setting"))
    for facet in facets:
        for row, entry in enumerate(facet.entries):
            value = f"[bold green]{entry.shown}[/]" if entry.best else entry.shown
            ratio = "" if entry.ratio is None else f"{entry.ratio:.2f}"
            used = [f"{name} {value}" for name, value in zip(names, entry.settings) if value != text.MISSING]
            shown.add_row("" if row else ", ".join(facet.names), entry.method.label, value, ratio, ", ".join(used))
        shown.add_section()
    console.print(shown)
    console.print(summary.sentence(facets, experiment), highlight=False, soft_wrap=True)
