"""Does solving the last layer of neuraloperator's two-dimensional FNO, and changing nothing else, lower its error?

    pip install '.[operators]'
    python benchmarks/fields.py --quick                                          # the CPU, minutes
    python benchmarks/fields.py --device cuda --seconds 240 --out runs/fields    # again until it is done

Darcy flow and Burgers' equation in space and time, by neuraloperator's network with its own relative L2 loss and AdamW. The
learned layer gets its best rate of at least five, chosen on validation data with the first seed; then the last layer alone
becomes a solved one (`replace_last_linear`, the default rule, a weight a field) at that rate, for all seeds. `errors` is the
ratio of the test errors (solved / learned), `time` that of a training step, both sides in turn in one process. Every
finished run is a file of the folder `--out`. `--network twin` takes a small operator of ours where neuraloperator is not
installed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

import torch

import common
import fields_networks
import fields_train
from closedform.files import atomic
from fields_train import HEADS, Run, Training

QUESTION = __doc__.splitlines()[0]
EQUATIONS = ("darcy", "burgers")
RUNGS = (-2, -1, 0, 1, 2)
FURTHEST = 4  # rungs from the middle at which the search ends
TIMING = "time"


class Records:
    """The finished runs of a folder, a JSON file each. Runs of another size do not count."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.rows: dict[Run, dict] = {}
        for path in sorted(folder.glob("*.json")):
            row = json.loads(path.read_text())
            run = Run(**{name: row[name] for name in Run.__dataclass_fields__})
            if row["size"] == json.loads(json.dumps(run.size.__dict__)):
                self.rows[run] = row

    def add(self, run: Run, row: dict) -> None:
        self.rows[run] = row
        with atomic(self.folder / f"{run.name}.json") as file:
            file.write(json.dumps(row).encode() + b"\n")

    def error(self, run: Run, part: str = "validation") -> float:
        """Infinite where the run has diverged."""
        value = self.rows[run][part]
        return math.inf if value is None else value


class Cell:
    """One equation with one network: which runs come next, and what the finished ones say."""

    def __init__(self, equation: str, network: str, quick: bool, seeds: int, records: Records):
        self.equation, self.network, self.quick, self.seeds, self.records = equation, network, quick, seeds, records

    def run(self, head: str, rung: int, seed: int) -> Run:
        return Run(self.equation, self.network, head, rung, seed, self.quick)

    def rungs(self) -> list[int]:
        """The rates that the search needs, as far as the finished runs say: further ones where the best is at an end."""
        rungs = list(RUNGS)
        while all(self.run("learned", rung, 0) in self.records.rows for rung in rungs):
            best = self._best(rungs)
            if best == rungs[0] and best > -FURTHEST:
                rungs.insert(0, best - 1)
            elif best == rungs[-1] and best < FURTHEST:
                rungs.append(best + 1)
            else:
                break
        return rungs

    def _best(self, rungs: list[int]) -> int:
        return min(rungs, key=lambda rung: self.records.error(self.run("learned", rung, 0)))

    def missing(self) -> list[Run]:
        rungs = self.rungs()
        search = [run for rung in rungs if (run := self.run("learned", rung, 0)) not in self.records.rows]
        if search:
            return search
        best = self._best(rungs)
        wanted = [self.run(head, best, seed) for seed in range(self.seeds) for head in HEADS]
        return [run for run in wanted if run not in self.records.rows]

    def summary(self) -> dict:
        rungs, rows = self.rungs(), self.records.rows
        best = self._best(rungs)
        errors = {
            head: [self.records.error(self.run(head, best, seed), "test") for seed in range(self.seeds)]
            for head in HEADS
        }
        ratios = [solved / learned for learned, solved in zip(*errors.values())]
        row = rows[self.run("solved", best, 0)]
        return {
            "equation": self.equation,
            "network": self.network,
            "size": row["size"],
            "parameters": row["parameters"],
            "steps": row["steps"],
            "rates": {
                f"{self.run('learned', k, 0).rate:.2g}": rows[self.run("learned", k, 0)]["validation"] for k in rungs
            },
            "rate": self.run("learned", best, 0).rate,
            **errors,
            "errors": math.exp(statistics.fmean(map(math.log, ratios))),
            "ratios": ratios,
            "rule": row["rule"],
            "rejected": [rows[self.run("solved", best, seed)]["rejected"] for seed in range(self.seeds)],
        }


def timed(cell: Cell, device: str, seconds: float) -> dict:
    """A training step of both heads in turn, as a CUDA graph where that works."""
    rung = cell._best(cell.rungs())
    sides = {head: Training(cell.run(head, rung, 0), device) for head in HEADS}
    if device == "cuda":
        for training in sides.values():
            training.capture()
    times = common.interleaved({head: training.advance for head, training in sides.items()}, device, seconds)
    ratio = times["solved"]["median_ms"] / times["learned"]["median_ms"]
    return {
        "step_ms": times,
        "captured": [training.captured for training in sides.values()],
        "threads": torch.get_num_threads(),
        TIMING: ratio,
    }


# ---- At work -------------------------------------------------------------------------------------


def _work(run: Run, device: str, deadline: float, capture: bool) -> dict | None:
    torch.set_num_threads(1)
    return None if time.time() > deadline else fields_train.train(run, device, deadline, capture)


def execute(args: argparse.Namespace, cells: list[Cell], records: Records) -> None:
    """Run what is missing until it is there or the time is over."""
    deadline = time.time() + args.seconds
    for cell in cells:
        fields_train.loaded(
            cell.equation, cell.run("learned", 0, 0).size, 0, args.device
        )  # made before workers need it
    pool = ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn"))
    flying: dict[Future, Run] = {}
    try:
        while True:
            waiting = [run for cell in cells for run in cell.missing() if run not in flying.values()]
            if time.time() < deadline:
                for run in waiting:
                    flying[pool.submit(_work, run, args.device, deadline, not args.no_capture)] = run
            if not flying:
                return
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                run, row = flying.pop(future), future.result()
                if row is not None:
                    records.add(run, row)
                    error = "diverged" if row["validation"] is None else f"{row['validation']:.4g}"
                    print(f"{run.name:36}{run.rate:>9.2g}{error:>12}{row['seconds']:>9.1f} s", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="smaller fields and network: minutes on a CPU")
    parser.add_argument("--network", choices=fields_networks.NETWORKS, default="neuralop")
    parser.add_argument("--equations", nargs="+", choices=EQUATIONS, default=list(EQUATIONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="start nothing after so many, and stop the rest"
    )
    parser.add_argument("--timing-seconds", type=float, default=8.0, help="for the steps in turn, an equation")
    parser.add_argument(
        "--no-timing", action="store_true", help="sum up finished runs, of whatever machine, and time no steps"
    )
    parser.add_argument("--workers", type=int, help="processes (default 5 on a GPU, 1 on the CPU)")
    parser.add_argument("--no-capture", action="store_true", help="no CUDA graphs")
    parser.add_argument("--out", type=Path, default=Path("runs/fields"), help="folder of the finished runs")
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="folder of the summary")
    args = parser.parse_args(argv)
    args.workers = args.workers or (5 if args.device == "cuda" else 1)
    if args.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {args.seeds}")
    return args


def main(argv: list[str] | None = None) -> dict:
    args = arguments(argv)
    torch.set_num_threads(1)
    fields_networks.make(args.network, 8, 4)  # fails at once where neuraloperator is not installed
    args.out.mkdir(parents=True, exist_ok=True)
    records = Records(args.out)
    cells = [Cell(equation, args.network, args.quick, args.seeds, records) for equation in args.equations]
    if not args.no_timing:
        execute(args, cells, records)
    rows = []
    for cell in cells:
        if missing := cell.missing():
            print(f"{cell.equation} is not finished: {len(missing)} runs or more are left; run the same command again")
            continue
        rows.append(cell.summary() | ({} if args.no_timing else timed(cell, args.device, args.timing_seconds)))
        row = rows[-1]
        print(
            f"{row['equation']:10} learned {statistics.fmean(row['learned']):.4g}, solved "
            f"{statistics.fmean(row['solved']):.4g}, errors {row['errors']:.3f}"
            + (f", {TIMING} {row[TIMING]:.3f}" if TIMING in row else "")
        )
    if args.no_timing:  # the machine of the runs, not this one
        environment = {key: next(iter(records.rows.values()))[key] for key in ("device", "torch", "closedform")}
    else:
        environment = common.environment(args.device)
    body = {"question": QUESTION, "environment": environment, "rows": rows}
    suffix = ("_twin" if args.network == "twin" else "") + ("_quick" if args.quick else "")
    args.results.mkdir(parents=True, exist_ok=True)
    path = args.results / f"fields{suffix}-{args.device}.json"
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(f"wrote {path}")
    return body


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
