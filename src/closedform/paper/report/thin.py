"""A small copy of a results folder, which gives the same report: whole curves where a figure draws them, and of every other
model the end of its training, by which settings are chosen."""

from __future__ import annotations

from pathlib import Path

from ..sweeps import results
from . import panels, spec


def thin(folder: Path, out: Path) -> Path:
    if out.resolve() == folder.resolve():
        raise ValueError(f"{folder} would lose its curves: the small copy needs another folder")
    table, experiment = panels.read(folder)
    model_columns = panels.configuration(experiment)
    last = table.groupby([*model_columns, "seed"], dropna=False, observed=True)["step"].transform("max")
    keep = table["step"] > last.mul(1 - results.LAST)
    for figure in experiment.figures:
        if isinstance(figure, spec.Curves):
            for row in panels.each(panels.drawn(table, experiment, figure)):
                keep[results.rows_of(table, row, model_columns).index] = True
    # as it was read: what the report takes for infinite may be a value that is not there
    small = results.load(folder).loc[keep].reset_index(drop=True)
    numbers = [c for c in small.columns if small[c].dtype == "float64" and c not in model_columns]
    experiment.save(out)
    return results.save(small.astype(dict.fromkeys(numbers, "float32")), out)
