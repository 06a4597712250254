"""The tables of the README from the committed results: python benchmarks/tables.py"""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def _rows(name: str) -> list[dict]:
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def _markdown(head: list[str], body: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---:"] * len(head), *body]]
    return "\n".join(lines)


def solve_time(device: str = "cuda", outputs: int = 100) -> str:
    """How many times faster than the d x d system, and in brackets the milliseconds of our solve."""
    rows = [row for row in _rows(f"solve_time-{device}") if row["outputs"] == outputs]
    dims = sorted({row["d"] for row in rows})
    cells = {
        (row["batch"], row["d"]): f"{row['textbook_over_ours']:.1f} ({row['ours']['median_ms']:.2f})" for row in rows
    }
    batches = sorted({row["batch"] for row in rows})
    return _markdown(
        ["batch", *(f"d = {d}" for d in dims)],
        [[str(batch), *(cells.get((batch, d), "") for d in dims)] for batch in batches],
    )


def step_overhead() -> str:
    """Our step over a cross-entropy step: eager / captured / the paper's."""
    rows = _rows("step_overhead-cuda")
    dims = sorted({row["d"] for row in rows})
    cells = {
        (
            row["net"],
            row["batch"],
            row["d"],
        ): f"{row['eager_ratio']:.2f} / {row['captured_ratio']:.3f} / {row['paper']:.2f}"
        for row in rows
    }
    nets = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}
    keys = list(dict.fromkeys((row["net"], row["batch"]) for row in rows))
    return _markdown(
        ["net", "batch", *(f"d = {d}" for d in dims)],
        [[nets[net], str(batch), *(cells[net, batch, d] for d in dims)] for net, batch in keys],
    )


def memory() -> str:
    body = [
        [
            f"{row['n']:,}",
            f"{row['d']:,}",
            str(row["outputs"]),
            f"{row['peak_bytes'] / 2**20:.1f}",
            f"{row['square_bytes'] / 2**20:.1f}",
        ]
        for row in _rows("memory-cuda")
    ]
    return _markdown(["rows", "d", "outputs", "peak MiB", "a d x d matrix, MiB"], body)


def qm9() -> str:
    """Test error on QM9, at the best setting of each method."""
    from closedform.report import panels, summary

    facets = summary.best_settings(*panels.read(RESULTS.parents[1] / "results" / "qm9"))
    methods = [entry.method for entry in facets[0].entries]
    head = ["method", *(", ".join(name.replace("batch size ", "") for name in facet.names) for facet in facets)]
    body = [[f"{method.label} †" if method.ours else method.label] for method in methods]
    for facet in facets:
        cells = {}
        for entry in facet.entries:
            text = f"{entry.final:.4f}" + ("" if entry.seeds > 1 else "¹")
            text = f"diverges ({entry.diverged}/{entry.seeds})" if entry.diverged else text
            cells[entry.method.key] = f"**{text}**" if entry.best else text
        for row, method in zip(body, methods):
            row.append(cells.get(method.key, ""))
    return _markdown(head, body)


def diagnose_overhead() -> str:
    """What a diagnosis of the last layer takes of a training run (docs/theory.md)."""
    body = [
        [
            str(row["batch"]),
            str(row["d"]),
            f"{row['single']['step']['median_ms']:.2f}",
            f"{row['single']['diagnosis']['median_ms']:.2f}",
            f"{row['share']:.2%}",
            f"{row['rounds']['median']:.1%} ({row['rounds']['low']:.1%} to {row['rounds']['high']:.1%})"
            if "rounds" in row
            else "not run",
        ]
        for row in _rows("diagnose_overhead-cpu")
    ]
    head = ["batch", "d", "step, ms", "diagnosis, ms", "share, every 200 steps", "runs with it against without"]
    return _markdown(head, body)


if __name__ == "__main__":
    for table in (qm9, solve_time, step_overhead, memory, diagnose_overhead):
        print(f"{table.__doc__ or table.__name__}\n\n{table()}\n")
