"""Run an experiment in a terminal: a progress bar, then a table of the best settings, a sentence and the report."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..extras import require
from .pace import Pace, duration
from .sweeps.grid import SweepError

REPORT = ("pandas", "pyarrow", "matplotlib", "jinja2")  # the packages that tables and reports need


def checked_device(name: str) -> str:
    """The device to train on; a ValueError where there is none of this name."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type != "cpu" and not (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count()):
        raise ValueError(
            f'--device is {name!r}; expected "auto", "cpu" or, where there is such a GPU, "cuda" or "cuda:1"'
        )
    return name


def write_report(results: Path, out: Path | None = None) -> Path:
    """The report on a results folder, with the verdicts on its claims and what the experiment adds."""
    from .claims.section import section
    from .experiments import cifar100_report, fno_samples
    from .report import write

    extra = [*cifar100_report.sections(results), *fno_samples.sections(results)]
    return write(results, out, extra, section(results))


def run_experiment(
    experiment: Any, configs: list[dict[str, Any]], out: Path, seconds: float | None = None, **options: Any
) -> None:
    """Run an experiment and show what came out. After `seconds` it is stopped as by Ctrl-C."""
    # a missing package is better known now than after the training
    require("an experiment", "experiments", *REPORT)

    console = Console()
    console.print(experiment.OPENING + "\n", highlight=False, soft_wrap=True)
    start = time.perf_counter()
    alarm = threading.Timer(seconds or 0.0, _thread.interrupt_main)
    alarm.daemon = True
    if seconds:
        alarm.start()
    bar = Bar(experiment, configs, options, console)
    try:
        with bar.progress:
            bar.finish(experiment.finished(configs, out))
            experiment.run(out, configs, **options, progress=bar.step, done=bar.ended)
            bar.complete()
    except KeyboardInterrupt as stopped:
        console.print(
            f"Stopped with {len(bar.finished)} of {len(bar.work)} runs finished. The same command continues from here."
        )
        sys.exit(getattr(stopped, "code", 130))
    except SweepError as failed:
        print(f"closedform: {failed}", file=sys.stderr)
        sys.exit(1)
    finally:
        alarm.cancel()
    show(console, out, time.perf_counter() - start)


def train_all(experiment: Any, out: Path, *args: Any, **options: Any) -> None:
    """Do the runs of an experiment that prints them as they end."""
    try:
        experiment.run(out, *args, **options, say=lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        print("Stopped. The same command continues from here.")
        sys.exit(130)
    except SweepError as failed:
        print(f"closedform: {failed}", file=sys.stderr)
        sys.exit(1)


def show(console: Console, out: Path, seconds: float) -> None:
    """The best settings of an experiment, and its report."""
    _show_best(console, out)
    console.print(f"\nThis took {duration(seconds)}. The table is {out / 'results.parquet'}.", highlight=False)
    open_page(console, write_report(out))


def open_page(console: Console, page: Path) -> None:
    """The last line of a long command: what to look at."""
    console.print(f"Open {page}", highlight=False, soft_wrap=True)


class Bar:
    """The progress of an experiment, by the work of its runs."""

    def __init__(self, experiment: Any, configs: list[dict[str, Any]], options: dict[str, Any], console: Console):
        self.experiment = experiment
        self.work = {experiment.name(config): experiment.work(config) for config in configs}
        self.finished: set[str] = set()
        self.least = sum(self.work.values()) * options.get("runs", 1)  # known before the results ask for more runs
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
        self.progress = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console)
        several = options.get("at_once", 1)
        title = f"training, {several} runs at once" if several > 1 else "reading the data"
        self._pace = Pace(lambda line: console.print(line, highlight=False))
        self._task = self.progress.add_task(title, total=self.least)

    def finish(self, configs: list[dict[str, Any]]) -> None:
        self.finished |= {self.experiment.name(config) for config in configs}

    def step(self, config: dict[str, Any], t: int, total: int) -> None:
        name = self.experiment.name(config)
        if name not in self.work:  # a run that the results of others have asked for
            self.work[name] = self.experiment.work(config)
            self.progress.update(self._task, total=self._total())
        done = sum(self.work[other] for other in self.finished) + self.work[name] * t / total
        self._pace.at(done, self._total())
        self.progress.update(self._task, completed=done, description=name)

    def ended(self, count: int, total: int, config: dict[str, Any]) -> None:
        self.step(config, 1, 1)
        self.finish([config])

    def complete(self) -> None:
        self.progress.update(self._task, completed=self._total(), description="finished")

    def _total(self) -> float:
        return max(self.least, sum(self.work.values()))


def _show_best(console: Console, out: Path) -> None:
    """The best setting of each method, and who has the lowest error."""
    from .report import panels, summary, text

    results, experiment = panels.read(out)
    facets = summary.best_settings(results, experiment)
    names = [text.name(experiment, column) for column in experiment.settings]
    table = Table(title=f"{experiment.label} of each method at its best setting")
    for name in ("", "method", experiment.label, f"/ {experiment.methods[0].label}", "setting"):
        right = name.startswith(("/", experiment.label))
        table.add_column(name, justify="right" if right else "left", no_wrap=name not in ("", "setting"))
    for facet in facets:
        for row, entry in enumerate(facet.entries):
            value = f"[bold green]{entry.shown}[/]" if entry.best else entry.shown
            ratio = "" if entry.ratio is None else f"{entry.ratio:.2f}"
            used = [f"{name} {value}" for name, value in zip(names, entry.settings) if value != text.MISSING]
            table.add_row("" if row else ", ".join(facet.names), entry.method.label, value, ratio, ", ".join(used))
        table.add_section()
    console.print(table)
    console.print(summary.sentence(facets, experiment), highlight=False, soft_wrap=True)
