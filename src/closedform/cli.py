"""`closedform` on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

from .extras import require


def main() -> None:
    try:
        require("closedform's command line", "experiments", "matplotlib", "rich", "typer")
    except ImportError as missing:
        sys.exit(str(missing))
    import typer

    app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
    app.command()(demo)
    app.command()(version)
    app()


def version() -> None:
    """Print the version."""
    from . import __version__

    print(__version__)


def demo(out: Path = Path("results/demo"), quick: bool = False) -> None:
    """Compare l2, ridge, proximal and Kalman on a problem that needs no download.

    --quick trains on less data for a few seconds, to see that everything works; its ranking means nothing.
    """
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .experiments import demo as experiment

    console = Console()
    console.print(
        "Training the same network with its last layer learned (l2) or solved at every step (ridge, proximal, Kalman).\n"
        "Each method gets six settings at each batch size; the best on validation data is shown. Ctrl-C stops early.\n"
    )
    torch.set_num_threads(1)  # the matrices are small, and threads that wait for each other are slow on a busy machine
    sizes = (32, 256)
    samples, epochs = (2000, 1) if quick else (16_000, 6)
    runs: list[experiment.Run] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("training", total=experiment.count(sizes))
            for run in experiment.sweep(sizes, samples, epochs):
                runs.append(run)
                progress.update(task, advance=1, description=f"{run.method:>8}, batch {run.batch_size:<3}")
    except KeyboardInterrupt:
        console.print(f"stopped after {len(runs)} of {experiment.count(sizes)} runs")
    if not runs:
        sys.exit(130)
    _table(console, experiment.best(runs))
    picture = experiment.save(runs, out)
    console.print(f"\nLearning curves: {picture}    all runs: {picture.with_suffix('.json')}")


def _table(console, chosen: dict) -> None:
    from rich.table import Table

    table = Table(title="Test error of the best setting (mean squared, standardised targets)")
    for name in ("batch", "method", "test MSE", "of l2's", "learning rate", "setting", "ms/step"):
        table.add_column(name, justify="left" if name in ("method", "setting") else "right")
    for size in sorted({size for size, _ in chosen}):
        rows = {method: run for (batch, method), run in chosen.items() if batch == size}
        least = min(run.test[-1] for run in rows.values())
        for method, run in rows.items():
            error = run.test[-1]
            ratio = f"{error / rows['l2'].test[-1]:.2f}" if "l2" in rows else ""
            shown = f"[bold green]{error:.4f}[/]" if error == least else f"{error:.4f}"
            table.add_row(str(size), method, shown, ratio, f"{run.lr:g}", run.setting, f"{run.ms_per_step:.2f}")
        table.add_section()
    console.print(table)
    winners = {
        size: min(((run.test[-1], m) for (b, m), run in chosen.items() if b == size)) for size in {b for b, _ in chosen}
    }
    said = "; ".join(
        f"at batch size {size}, {method} ({error:.4f})" for size, (error, method) in sorted(winners.items())
    )
    console.print(f"Lowest test error: {said}. One seed. (*: the memory lengthens as the learning rate falls.)")
