"""What an experiment's table means: `experiment.json` beside `results.parquet`, all that the report needs to know."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...files import atomic

if TYPE_CHECKING:
    import pandas as pd

SPEC = "experiment.json"


@dataclass(frozen=True)
class Method:
    key: str  # its value in the table's column `method`
    label: str
    colour: str = ""  # a name or #rrggbb; empty: the next of a palette that colour-blind people can tell apart
    ours: bool = False  # beyond the paper
    dashed: bool | None = None  # None: a pattern of its own, by its place among the methods


@dataclass(frozen=True)
class Curves:
    """A metric against the step, at the best setting of every line; a panel for each value of `rows` and `columns`."""

    title: str
    caption: str
    where: dict[str, list] = field(default_factory=dict)  # column: values that the figure shows
    colour: str = "method"
    rows: str | None = "optimizer"
    columns: str | None = "batch_size"
    metric: str = ""  # the column drawn; empty: the experiment's metric
    label: str = ""  # of that column
    kind: Literal["curves"] = "curves"


@dataclass(frozen=True)
class Sensitivity:
    """The `metric` at the end against one hyperparameter `x`, at the best of the others; a panel for each of `columns`."""

    title: str
    caption: str
    x: str
    where: dict[str, list] = field(default_factory=dict)
    colour: str = "batch_size"
    columns: str | None = "optimizer"
    kind: Literal["sensitivity"] = "sensitivity"


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    text: str  # what was done, in a few sentences; paragraphs are separated by an empty line
    metric: str  # the reported column
    select: str  # the column that settings are chosen by
    label: str  # of the metric, for axes
    methods: tuple[Method, ...]
    by: tuple[str, ...]  # what settings are chosen for, such as optimizer and batch size (the method is always one)
    settings: tuple[str, ...]  # what is chosen
    figures: tuple[Curves | Sensitivity, ...]
    where: dict[str, list] = field(default_factory=dict)  # the rows that the table of best settings is about
    lower: bool = True  # whether less of the metric is better
    failed: float | None = None  # a setting whose `select` is worse than this is chosen only where there is no other
    late: bool = False  # whether the metric shown is its mean over the last fifth of training, not its last value
    log: bool = True  # whether the metric's axis is logarithmic at first
    environment: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of columns, where they should read otherwise

    def method(self, key: str) -> Method:
        """The method with this key; one that is not described goes by its key."""
        return next((method for method in self.methods if method.key == key), Method(key, str(key)))

    def save(self, folder: Path) -> None:
        with atomic(folder / SPEC) as file:
            file.write((json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode())


def environment(table: pd.DataFrame) -> dict[str, str]:
    """Where the rows of a table were measured."""
    return {name: ", ".join(sorted(set(table[name].astype(str)))) for name in ("device", "torch", "closedform")}


def load(folder: Path) -> Experiment:
    path = folder / SPEC
    if not path.is_file():
        raise ValueError(f"{folder} holds no results: expected {SPEC} in it")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        kinds = {"curves": Curves, "sensitivity": Sensitivity}
        figures = tuple(kinds[figure["kind"]](**figure) for figure in body.pop("figures"))
        methods = tuple(Method(**method) for method in body.pop("methods"))
        if not methods:
            raise ValueError("`methods` is empty")
        by, settings = tuple(body.pop("by")), tuple(body.pop("settings"))
        return Experiment(**body, figures=figures, methods=methods, by=by, settings=settings)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as bad:
        raise ValueError(f"{path} does not describe an experiment: {bad}") from bad
