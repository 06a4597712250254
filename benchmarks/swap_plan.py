"""Which runs of the swap test come next, and what the finished ones say.

For each cell (task, optimizer, batch size) and each head the rates of a ladder are tried with the first seeds: five, and
more where the best lies at an end, and for SGD upwards until a rate no longer trains. Then the chosen rates get all seeds.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import swap_tasks
from closedform.files import atomic
from swap_train import Run, rate_of, rule_of, solved_head

HEADS = ("learned", "solved")
RUNGS = (-2, -1, 0, 1, 2)
FURTHEST = 6  # rungs from the middle at which the search ends


@dataclass(frozen=True, order=True)
class Cell:
    task: str
    optimizer: str
    batch_size: int
    quick: bool = False

    def run(self, head: str, rung: int, seed: int) -> Run:
        return Run(self.task, self.optimizer, self.batch_size, head, rung, seed, self.quick)


class Records:
    """The finished runs of a folder, a JSON file each, and `earlier` ones. Runs at rates of another ladder, and solved runs
    by another rule than the default of now, do not count."""

    def __init__(self, folder: Path, earlier: Iterable[dict] = ()):
        self.folder = folder
        self.rows: dict[Run, dict] = {}
        tasks = {quick: swap_tasks.tasks(quick) for quick in (True, False)}
        self.rules = {quick: _default_rules(tasks[quick]) for quick in (True, False)}
        for row in [*earlier, *(json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))]:
            run = run_of(row)
            task = tasks[run.quick].get(run.task)
            if task is None or not math.isclose(row["rate"], rate_of(task, run.optimizer, run.rung)):
                continue
            if run.head == "learned" or row["rule"] == self.rules[run.quick][run.task]:
                self.rows[run] = row

    def add(self, row: dict) -> None:
        self.rows[run_of(row)] = row
        with atomic(self.folder / f"{run_of(row).name}.json") as file:
            file.write(json.dumps(row).encode() + b"\n")

    def error(self, run: Run, part: str = "validation") -> float:
        """Infinite where the run has diverged."""
        value = self.rows[run][part]
        return math.inf if value is None else value

    def mean(self, cell: Cell, head: str, rung: int, seeds: Iterable[int], part: str = "validation") -> float:
        """The geometric mean over the seeds."""
        values = [self.error(cell.run(head, rung, seed), part) for seed in seeds]
        return math.inf if math.inf in values else geometric_mean(values)


def run_of(row: dict) -> Run:
    return Run(**{name: row[name] for name in Run.__dataclass_fields__})


def _default_rules(tasks: dict[str, swap_tasks.Task]) -> dict[str, str]:
    return {name: rule_of(solved_head(task, task.classes())) for name, task in tasks.items()}


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(max(value, 1e-300)) for value in values))


# ---- What comes next -----------------------------------------------------------------------------


def next_runs(cell: Cell, records: Records, seeds: list[int], search: int, heads: tuple[str, ...] = HEADS) -> list[Run]:
    """The runs that can be done now; none once the cell is finished. `search`: with how many seeds the rates of these
    `heads` are chosen. A solved head that has none of its own is run at the learned one's."""
    first = seeds[:search]
    wanted = [
        cell.run(head, rung, seed) for head in heads for rung in searched(cell, head, records, first) for seed in first
    ]
    missing = [run for run in wanted if run not in records.rows]
    if not missing:
        best = {head: best_rung(cell, head, records, first) for head in heads}
        pairs = {("solved", best["learned"]), *best.items()}
        wanted = [cell.run(head, rung, seed) for head, rung in sorted(pairs) for seed in seeds]
        missing = [run for run in wanted if run not in records.rows]
    return missing


def searched(cell: Cell, head: str, records: Records, seeds: list[int]) -> list[int]:
    """The rungs that the search needs, as far as the finished runs say."""
    rungs = list(RUNGS)

    def finished(rung: int, of: str = head) -> bool:
        return all(cell.run(of, rung, seed) in records.rows for seed in seeds)

    while all(finished(rung) for rung in rungs):
        best = min(rungs, key=lambda rung: records.mean(cell, head, rung, seeds))
        if best == rungs[0] and rungs[0] > -FURTHEST:
            rungs.insert(0, rungs[0] - 1)
        elif rungs[-1] < FURTHEST and (best == rungs[-1] or _climbs(cell, head, rungs[-1], records, seeds)):
            rungs.append(rungs[-1] + 1)
        else:
            break
    return rungs


def _climbs(cell: Cell, head: str, top: int, records: Records, seeds: list[int]) -> bool:
    """Whether a rate above `top` is wanted for the largest that trains."""
    known = all(cell.run("learned", rung, seed) in records.rows for rung in RUNGS for seed in seeds)
    return cell.optimizer == "sgd" and known and trains(cell, head, top, records, seeds)


def tried(cell: Cell, head: str, records: Records, seeds: list[int]) -> list[int]:
    every = {run.rung for run in records.rows if cell.run(run.head, run.rung, run.seed) == run and run.head == head}
    return sorted(rung for rung in every if all(cell.run(head, rung, seed) in records.rows for seed in seeds))


def best_rung(cell: Cell, head: str, records: Records, seeds: list[int]) -> int:
    return min(tried(cell, head, records, seeds), key=lambda rung: records.mean(cell, head, rung, seeds))


def trains(cell: Cell, head: str, rung: int, records: Records, seeds: list[int]) -> bool:
    """Whether the validation error comes nine tenths of the way from a constant's to the learned layer's best. Half would
    not do: a solved layer goes half of the way on a backbone that a large rate has ruined."""
    constant = records.rows[cell.run(head, rung, seeds[0])]["constant"]
    least = min(records.mean(cell, "learned", k, seeds) for k in tried(cell, "learned", records, seeds))
    return records.mean(cell, head, rung, seeds) < constant - 0.9 * (constant - min(least, constant))


# ---- What it says --------------------------------------------------------------------------------


def summarise(
    cell: Cell, records: Records, seeds: list[int], search: int, heads: tuple[str, ...] = HEADS
) -> dict | None:
    """A row of the table; None while runs of the cell are missing."""
    if next_runs(cell, records, seeds, search, heads):
        return None
    first = seeds[:search]
    best = {head: best_rung(cell, head, records, first) for head in heads}

    def errors(head: str, rung: int) -> list[float]:
        return [records.error(cell.run(head, rung, seed), "test") for seed in seeds]

    learned = errors("learned", best["learned"])
    row = {
        "task": cell.task,
        "optimizer": cell.optimizer,
        "batch_size": cell.batch_size,
        "source": records.rows[cell.run("learned", best["learned"], seeds[0])]["source"],
        "rule": records.rows[cell.run("solved", best["learned"], seeds[0])]["rule"],
        "seeds": len(seeds),
        "learned": _finite(learned),
        "swapped": _compared(learned, errors("solved", best["learned"])),
        "rates": {head: records.rows[cell.run(head, rung, seeds[0])]["rate"] for head, rung in best.items()},
    }
    if "solved" in best:
        row["own"] = _compared(learned, errors("solved", best["solved"]))
        if cell.optimizer == "sgd":
            row["largest"] = _largest(cell, records, first)
    return row


def _compared(learned: list[float], solved: list[float]) -> dict:
    """The ratio of the errors of every seed, their geometric mean and the standard error of its logarithm; none where
    a run has diverged."""
    if math.inf in learned + solved:
        return {"errors": _finite(solved), "ratios": None, "ratio": None, "noise": None}
    ratios = [b / a for a, b in zip(learned, solved)]
    logs = [math.log(ratio) for ratio in ratios]
    noise = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else None
    return {"errors": solved, "ratios": ratios, "ratio": geometric_mean(ratios), "noise": noise}


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _largest(cell: Cell, records: Records, seeds: list[int]) -> dict:
    """The largest rate of the ladder that trains, for both heads; `open` where no higher one has been tried."""
    rates, ends = {}, {}
    for head in HEADS:
        rungs = tried(cell, head, records, seeds)
        fine = [rung for rung in rungs if trains(cell, head, rung, records, seeds)]
        rates[head] = records.rows[cell.run(head, max(fine), seeds[0])]["rate"] if fine else None
        ends[head] = bool(fine) and max(fine) == rungs[-1]
    factor = rates["solved"] / rates["learned"] if rates["learned"] and rates["solved"] else None
    return {**rates, "factor": factor, "open": ends}


def joined(rows: list[dict], earlier: Iterable[dict], cells: Iterable[Cell], records: Records) -> list[dict]:
    """The rows of all cells in their order, of a cell the one by the default rule of now, and of these the one with the most
    seeds. A row by an earlier default stays where there is no other: its `rule` tells."""

    def key(row: dict) -> tuple:
        return row["task"], row["optimizer"], row["batch_size"]

    def rank(row: dict) -> tuple:
        return row["rule"] == records.rules[False].get(row["task"]), row["seeds"]

    now = {key(row): row for row in rows}
    for row in earlier:
        if key(row) not in now or rank(now[key(row)]) < rank(row):
            now[key(row)] = row
    order = [(cell.task, cell.optimizer, cell.batch_size) for cell in cells]
    return [now[place] for place in order if place in now]


def by_an_earlier_rule(rows: list[dict], records: Records) -> list[str]:
    """The cells whose solved head is not the default of now."""
    return [named(row) for row in rows if row["rule"] != records.rules[False].get(row["task"])]


def overall(rows: list[dict]) -> dict:
    """The figures of the aims over these cells; a swapped head that diverged is told and is in no mean."""
    total: dict = {"cells": len(rows)}
    for key in ("swapped", "own"):
        there = [row for row in rows if key in row]
        known = [row for row in there if row[key]["ratio"] is not None]
        total[f"{key}_diverged"] = [named(row) for row in there if row[key]["ratio"] is None]
        if known:
            worst = max(known, key=lambda row: row[key]["ratio"])
            total[key] = geometric_mean(row[key]["ratio"] for row in known)
            total[f"{key}_worst"] = {"cell": named(worst), "ratio": worst[key]["ratio"], "noise": worst[key]["noise"]}
    factors = [row["largest"]["factor"] for row in rows if row.get("largest", {}).get("factor")]
    if factors:
        total["largest_rate_factor_median"] = statistics.median(factors)
    return total


def pooled_noise(rows: list[dict]) -> dict[str, float]:
    """The root mean square of the standard errors of a task's cells: two seeds alone say little about a cell's own."""
    noise: dict[str, list[float]] = {}
    for row in rows:
        if row["swapped"]["noise"] is not None:
            noise.setdefault(row["task"], []).append(row["swapped"]["noise"])
    return {task: math.sqrt(statistics.fmean(one**2 for one in some)) for task, some in noise.items()}


def named(row: dict) -> str:
    return f"{row['task']}, {row['optimizer']}, batch {row['batch_size']}"


def table(rows: list[dict]) -> str:
    """The rows as text."""

    def ratio(cell: dict) -> str:
        if cell["ratio"] is None:
            return "diverged"
        return f"{cell['ratio']:.3f}" + (f" ±{cell['noise']:.3f}" if cell["noise"] is not None else "")

    width = max(18, *(len(row["task"]) + 2 for row in rows)) if rows else 18
    lines = [
        f"{'task':{width}}{'optimizer':10}{'batch':>6}{'learned':>11}{'swapped':>15}{'own rate':>15}{'largest rate':>14}"
    ]
    for row in rows:
        factor = row.get("largest", {}).get("factor")
        largest = "" if "largest" not in row else f"x {factor:.2g}" if factor else "-"
        own = ratio(row["own"]) if "own" in row else ""
        error = "diverged" if None in row["learned"] else f"{geometric_mean(row['learned']):.4g}"
        lines.append(
            f"{row['task']:{width}}{row['optimizer']:10}{row['batch_size']:>6}{error:>11}"
            f"{ratio(row['swapped']):>15}{own:>15}{largest:>14}"
        )
    return "\n".join(lines)
