"""One tidy table for each experiment, and what everybody reads off it: the best setting, its error, its interval.

A row is one measurement of one trained model: the columns of its configuration, `seed`, `step`, the metrics measured there
(for example `validation` and `test`), `wall_s` since its training began, and where it ran (`device`, `torch`,
`closedform`). A model that diverged has infinite metrics from there on. The table lies in `results.parquet` beside
`experiment.json`, which says what the columns mean (see `closedform.paper.report.spec`).

>>> import pandas as pd
>>> table = pd.DataFrame({"lr": [0.1] * 2 + [1.0] * 2, "seed": 0, "step": [5, 10] * 2,
...                       "validation": [4.0, 2.0, 3.0, 1.0], "test": [4.5, 2.5, 3.5, 1.5]})
>>> runs = finished(table, ["lr"], select="validation", metric="test")
>>> best(runs, by=[], settings=["lr"]).to_dict("records")
[{'lr': 1.0, 'score': 1.0, 'final': 1.5, 'half_width': nan, 'seeds': 1}]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...extras import require
from ...files import atomic

if TYPE_CHECKING:
    import pandas as pd

TABLE = "results.parquet"
LAST = 0.2  # the share of training, at its end, over which settings are compared (the paper's choice)

# 97.5 % quantiles of Student's t by degrees of freedom; from 30 on the normal one is within 4 %
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
      2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045)  # fmt: skip


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of a mean over seeds; NaN for a single one."""
    n = len(values)
    if n < 2:
        return math.nan
    mean = sum(values) / n
    if not math.isfinite(mean):
        return math.inf
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return (_T[n - 2] if n - 2 < len(_T) else 1.96) * deviation / math.sqrt(n)


def finished(
    table: pd.DataFrame, configuration: Sequence[str], *, select: str, metric: str, late: bool = False
) -> pd.DataFrame:
    """One row a trained model: `score`, the mean of `select` over the last fifth of its training, and `final`, its last
    `metric` or, if `late`, the mean of that over the same fifth. `configuration` names the columns that, with `seed`, tell
    models apart; a missing value is a value."""
    keys = [*configuration, "seed"]
    ordered = table.sort_values("step", kind="stable").fillna({select: math.inf, metric: math.inf})
    last = ordered.groupby(keys, dropna=False, observed=True)["step"].transform("max")
    groups = ordered[ordered["step"] > (1 - LAST) * last].groupby(keys, dropna=False, observed=True, sort=False)
    return groups.agg(score=(select, "mean"), final=(metric, "mean" if late else "last")).reset_index()


def by_setting(runs: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Means over the seeds: one row for each combination of `columns`."""
    groups = runs.groupby(list(columns), dropna=False, observed=True, sort=False)
    return groups.agg(
        score=("score", "mean"), final=("final", "mean"), half_width=("final", half_width), seeds=("seed", "nunique")
    ).reset_index()


def best(
    runs: pd.DataFrame, by: Sequence[str], settings: Sequence[str], *, lower: bool = True, failed: float | None = None
) -> pd.DataFrame:
    """The setting with the best score (over the seeds) for each combination of the columns `by`. Where some settings
    were run with more seeds than others, the choice is among those; but one that diverged with any seed comes last, and so
    does one whose score is worse than `failed`."""
    means = by_setting(runs, [*by, *settings])
    diverged = ~means["score"].abs().lt(math.inf)
    if failed is not None:
        diverged |= means["score"].gt(failed) if lower else means["score"].lt(failed)
    ranked = means.assign(diverged=diverged).sort_values(
        ["diverged", "seeds", "score"], ascending=[True, False, lower], kind="stable"
    )
    means = ranked.drop(columns="diverged")
    chosen = means.groupby(list(by), dropna=False, observed=True, sort=False).head(1) if by else means.head(1)
    return chosen.sort_values(list(by), kind="stable").reset_index(drop=True) if by else chosen.reset_index(drop=True)


def rows_of(table: pd.DataFrame, row: Mapping[str, Any], columns: Sequence[str]) -> pd.DataFrame:
    """The rows of the table that agree with `row` in `columns`, missing values with missing values."""
    keep = None
    for name in columns:
        same = table[name].isna() if _missing(row[name]) else table[name] == row[name]
        keep = same if keep is None else keep & same
    return table if keep is None else table.loc[keep]


def curve(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """`step`, mean and half width of the interval over the seeds, at the steps that every seed has."""
    groups = rows.groupby("step")[metric]
    table = groups.agg(mean="mean", half_width=half_width, seeds="size").reset_index()
    return table.loc[table["seeds"] == table["seeds"].max()].reset_index(drop=True)


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def save(table: pd.DataFrame, folder: Path) -> Path:
    """Write the table so that a reader sees the old one or the new one, never a part."""
    with atomic(folder / TABLE) as file:
        table.to_parquet(file, index=False, compression="zstd")
    return folder / TABLE


def load(folder: Path) -> pd.DataFrame:
    require("a table of results", "experiments", "pandas", "pyarrow")
    import pandas as pd

    path = folder / TABLE
    if not path.is_file():
        raise ValueError(f"{folder} holds no results: expected {TABLE} in it")
    try:
        return pd.read_parquet(path)
    except Exception as bad:
        raise ValueError(f"{path} cannot be read as a Parquet table: {bad}") from bad
