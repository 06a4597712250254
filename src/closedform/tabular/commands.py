"""The commands `closedform train` and `closedform predict`."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..extras import require
from . import reading


class Task(str, enum.Enum):
    auto = "auto"
    regression = "regression"
    classification = "classification"


class ImportanceOf(str, enum.Enum):
    quick = "quick"
    full = "full"
    none = "none"


REMARKS = 15  # about columns that are printed
NAMES = 12  # columns of a kind that are listed by name
Encoding = Annotated[str, typer.Option(help="Of a CSV file.")]


def register(app: typer.Typer) -> None:
    app.command()(train)
    app.command()(predict)


def train(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file with a header.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    categorical: Annotated[
        list[str] | None, typer.Option(help="Columns to take as categories: names, comma-separated or repeated.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Columns to leave out: names, comma-separated or repeated.")
    ] = None,
    task: Annotated[Task, typer.Option(help="What the target is.")] = Task.auto,
    out: Annotated[Path | None, typer.Option(help="The folder to write; NAME-model beside the file otherwise.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="A number that suits the table otherwise.")] = None,
    effort: Annotated[float, typer.Option(help="How much longer than usual to train: 2 doubles the epochs.")] = 1.0,
    neighbours: Annotated[
        bool, typer.Option(help="Whether the model may keep its training rows, where that lowers the error.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the split and the training.")] = 0,
    importance: Annotated[
        ImportanceOf, typer.Option(help="Of the columns: quick takes some seconds, full as long as it needs.")
    ] = ImportanceOf.quick,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model of another target or file.")] = False,
    encoding: Encoding = "utf-8-sig",
) -> None:
    """Train on a table and write a folder: the model, a report page and predictions for the rows it was tested on.

    A fifth of the rows is kept for the test. Killed at any time, the same command goes on from where it stood about a
    second before.
    """
    reading.check_file(data)  # before the imports, so that a wrong name is answered at once
    require("closedform train", "sklearn", "sklearn")
    from . import training

    console = Console()
    folder = out or data.with_name(f"{data.stem}-model")
    if out is None and folder.is_symlink():
        raise ValueError(f"{folder} is a link, which is not followed unless --out names it")
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    try:
        with Progress(
            *columns,
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,  # an error is one line and no more
        ) as progress:
            bar = progress.add_task("reading", total=None, note="")

            def shown(record: Any, plan: Any) -> None:
                error = min(record.held[-1]) if record.held else record.loss[-1]
                note = f"{'held-out' if record.held else 'training'} error {error:.4g}"
                progress.update(bar, total=plan.epochs, completed=record.epoch, note=note)

            outcome = training.train(
                data,
                target,
                folder,
                categorical=categorical or (),
                ignored=ignore or (),
                task=task.value,
                seed=seed,
                max_iter=epochs,
                effort=effort,
                neighbours=neighbours,
                encoding=encoding,
                overwrite=overwrite,
                importance=importance.value,
                shown=shown,
                stage=lambda text: progress.update(bar, description=text),
                progress=lambda done, total: progress.update(bar, total=total, completed=done, note="columns"),
            )
    except KeyboardInterrupt:
        console.print("Stopped. The same command goes on from here.")
        sys.exit(130)
    _show(console, outcome, folder)


def _show(console: Console, outcome: Any, folder: Path) -> None:
    from .charts import number, share
    from .page import sentence

    _say(console, "Columns taken as")
    for kind, names in outcome.model.preparation.summary().items():
        more = f" and {len(names) - NAMES:,} more" if len(names) > NAMES else ""
        _say(console, f"  {kind}: {', '.join(names[:NAMES])}{more}")
    about_columns = outcome.model.preparation.remarks
    for remark in [*about_columns[:REMARKS], *outcome.remarks]:
        _say(console, remark[0].upper() + remark[1:] + ".")
    if len(about_columns) > REMARKS:
        _say(console, f"{len(about_columns) - REMARKS:,} more remarks about columns stand in the report.")
    rows = f"{outcome.test_rows:,} row{'s' * (outcome.test_rows != 1)}"
    title = f"{outcome.metric} on {rows} to test ({outcome.train_rows:,} to train)"
    table = Table(title=title)
    for name in ("model", outcome.metric, "/ closedform", outcome.quality_name, "seconds"):
        table.add_column(name, justify="left" if name == "model" else "right")
    own, best = outcome.scores["closedform"], min(outcome.scores.values())
    for name, score in outcome.scores.items():
        shown = Text(number(score), style="bold green" if score == best else "")
        ratio = f"{score / own:.2f}" if own else ""
        table.add_row(name, shown, ratio, share(outcome.quality[name]), f"{outcome.seconds[name]:.2f}")
    console.print(table)
    _say(console, sentence(outcome))
    if outcome.intervals is not None:
        _say(console, outcome.intervals)
    _say(console, f"\nThe model is in {folder}. Open {folder / 'report.html'}")


def _say(console: Console, text: str) -> None:
    """Print as it is: names of columns and files may hold brackets, which rich would take for its own."""
    console.print(Text(text), soft_wrap=True)


def predict(
    model: Annotated[Path, typer.Argument(help="A folder that closedform train wrote.")],
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file with the model's columns, of any length.")],
    out: Annotated[Path | None, typer.Option(help="NAME-predictions.csv beside the file otherwise.")] = None,
    interval: Annotated[
        bool, typer.Option("--interval", help="Also the ends of an interval, or a set of classes, for every row.")
    ] = False,
    level: Annotated[
        float | None, typer.Option(help="The share of true values that --interval is to hold; 0.9 otherwise.")
    ] = None,
    encoding: Encoding = "utf-8-sig",
) -> None:
    """Predict for every row of a table, piece by piece, so that a file larger than memory works too."""
    reading.check_file(data)
    if level is not None and not interval:
        raise ValueError(f"--level {level:g} is the level of --interval, which is not asked for; expected both")
    require("closedform predict", "sklearn", "sklearn")
    from .predicting import predict as run

    path = out or data.with_name(f"{data.stem}-predictions.csv")
    console = Console()
    with console.status("predicting") as status:
        rows = run(
            model,
            data,
            path,
            encoding=encoding,
            level=(0.9 if level is None else level) if interval else None,
            progress=lambda done: status.update(f"{done:,} rows"),
        )
    _say(console, f"{rows:,} row{'s' * (rows != 1)}: {path}")
