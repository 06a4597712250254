"""Does swapping `nn.Linear` for the library's default layer, and changing nothing else, lower the error?

    python benchmarks/swap.py --quick                                        # the CPU, minutes
    python benchmarks/swap.py --device cuda --seconds 540 --out runs/swap    # a piece of the whole; again until it is done
    python benchmarks/swap.py --device cuda --out runs/swap --plan           # what is missing, and an estimate
    python benchmarks/swap.py --device cuda --out runs/swap --summary --beside benchmarks/results/swap-cuda.json

For each task, optimizer and batch size the learned layer gets its best rate, chosen on validation data; then the head alone
is swapped. `swapped` is the ratio of the test errors at that rate (solved / learned), `own rate` the one with the solved
head's best rate as well, `largest rate` by how much the largest rate that still trains is larger (SGD). Every finished run
is a file of the folder `--out`, and a row of the summary. `--beside` takes an earlier summary, of another sitting or another
machine: its runs are not done again, and its cells join these. A run that `--seconds` cuts off is done again.

On a GPU `--workers` processes train `--together` runs each. Processes take turns on the GPU unless NVIDIA's MPS runs.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

import torch

import common
import swap_optimizers
import swap_plan
import swap_tasks
import swap_train
from swap_plan import Cell, Records
from swap_train import Run

QUESTION = __doc__.splitlines()[0]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="small sizes of seven tasks, SGD and AdamW")
    parser.add_argument(
        "--plan", action="store_true", help="print the number of runs that are missing, and an estimate"
    )
    parser.add_argument(
        "--summary", action="store_true", help="run nothing: sum up the finished runs, each cell with the seeds it has"
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="start no run after so many, and stop those at work"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/swap"), help="folder of the finished runs")
    parser.add_argument(
        "--beside", type=Path, nargs="+", default=[], help="earlier summaries, whose runs and cells join"
    )
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="folder of the summary")
    parser.add_argument("--tasks", nargs="+", help="names; `tables`; `others` and `classes`, more tables")
    parser.add_argument("--optimizers", nargs="+", choices=swap_optimizers.NAMES)
    parser.add_argument("--batch-sizes", nargs="+", type=int, help="of those that a task has")
    parser.add_argument("--seeds", type=int, default=None, help="how many (default 3, quick 2)")
    parser.add_argument("--search-seeds", type=int, default=1, help="how many of them choose the rates")
    parser.add_argument("--same-rate", action="store_true", help="search no rate for the solved head: the swap alone")
    parser.add_argument("--workers", type=int, help="processes (default 6 on a GPU, 1 on the CPU)")
    parser.add_argument(
        "--together", type=int, help="runs side by side in a process (default 3 on a GPU, 1 on the CPU)"
    )
    parser.add_argument("--no-capture", action="store_true", help="no CUDA graphs")
    args = parser.parse_args(argv)
    gpu = args.device == "cuda"
    args.seeds = args.seeds or (2 if args.quick else 3)
    args.workers = args.workers or (6 if gpu else 1)
    args.together = args.together or (3 if gpu else 1)
    args.heads = swap_plan.HEADS[:1] if args.same_rate else swap_plan.HEADS
    args.optimizers = args.optimizers or (["sgd", "adamw"] if args.quick else list(swap_optimizers.NAMES))
    if not 1 <= args.search_seeds <= args.seeds:
        parser.error(f"--search-seeds must be 1 to the number of seeds, {args.seeds}; got {args.search_seeds}")
    if args.out.resolve() == args.results.resolve():
        parser.error(f"--out and --results must be two folders, got {args.out} for both: every file of --out is a run")
    known = swap_tasks.tasks(args.quick)
    names = args.tasks or (swap_tasks.QUICK if args.quick else swap_tasks.FULL)
    args.tasks = [task for name in names for task in swap_tasks.GROUPS.get(name, [name])]
    if unknown := sorted(set(args.tasks) - set(known)):
        parser.error(
            f"there is no task {', '.join(unknown)}; expected some of: {', '.join([*known, *swap_tasks.GROUPS])}"
        )
    return args


def cells(args: argparse.Namespace) -> tuple[list[Cell], dict[str, str]]:
    """The cells that can be run, and why the optimizers that are left out cannot. A summary needs none of them."""
    named = () if args.summary else args.optimizers
    skipped = {name: why for name in named if (why := swap_optimizers.missing(name)) is not None}
    known = swap_tasks.tasks(args.quick)
    chosen = [
        Cell(task, optimizer, size, args.quick)
        for task in args.tasks
        for optimizer in args.optimizers
        for size in known[task].epochs
        if optimizer not in skipped and (not args.batch_sizes or size in args.batch_sizes)
    ]
    return chosen, skipped


def estimate(cell: Cell, device: str) -> float:
    """Seconds of one run, roughly."""
    task = swap_tasks.tasks(cell.quick)[cell.task]
    samples = len(swap_train.loaded(cell.task, 0, cell.quick, "cpu").train[0])
    return task.epochs[cell.batch_size] * (samples // cell.batch_size) * task.seconds[device]


def plan(args: argparse.Namespace, chosen: list[Cell], records: Records) -> None:
    """Runs beyond the first five rates depend on what the first ones say; three more a cell are counted for them."""
    total_runs, total = 0, 0.0
    for cell in chosen:
        now = len(swap_plan.next_runs(cell, records, list(range(args.seeds)), args.search_seeds, args.heads))
        done = sum(cell.run(run.head, run.rung, run.seed) == run for run in records.rows)
        whole = 2 * len(swap_plan.RUNGS) * args.search_seeds + 3 + 3 * (args.seeds - args.search_seeds)
        left = max(now, whole - done) if now else 0
        seconds = left * estimate(cell, args.device)
        print(f"{cell.task:34}{cell.optimizer:8}{cell.batch_size:>6}{done:>6} done{left:>6} left{seconds:>9.0f} s")
        total_runs, total = total_runs + left, total + seconds
    share = args.workers if args.device == "cpu" else 1
    print(f"{len(chosen)} cells, about {total_runs} runs left, about {total / share / 60:.0f} minutes")


# ---- At work -------------------------------------------------------------------------------------


def _work(runs: list[Run], device: str, deadline: float, capture: bool) -> list[dict]:
    if time.time() > deadline:  # while it waited for a worker
        return []
    torch.set_num_threads(1)
    return swap_train.train(runs, device, deadline, capture)


def groups(runs: list[Run], together: int) -> list[list[Run]]:
    """Runs of one cell, which take equally many steps, in groups; one seed first, whose data a worker then has."""
    by_cell: dict[tuple, list[Run]] = {}
    for run in runs:
        by_cell.setdefault((run.task, run.optimizer, run.batch_size), []).append(run)
    ordered = [sorted(some, key=lambda run: (run.seed, run.head, run.rung)) for some in by_cell.values()]
    return [some[k : k + together] for some in ordered for k in range(0, len(some), together)]


def execute(args: argparse.Namespace, chosen: list[Cell], records: Records) -> None:
    """Run what is missing until it is there or the time is over. A run that fails is told, and not tried again."""
    deadline = time.time() + args.seconds
    seeds = list(range(args.seeds))
    if "burgers" in args.tasks:
        swap_tasks.tasks(args.quick)["burgers"].load(0)  # made once, before several workers need it
    started: set[Run] = set()
    flying: dict[Future, list[Run]] = {}
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(args.workers, mp_context=context) if args.workers > 1 or args.device == "cuda" else None

    def collect(some: list[Run], result) -> None:
        try:
            rows = result()
        except Exception:
            print(f"failed: {', '.join(run.name for run in some)}\n{traceback.format_exc()}", flush=True)
            return
        for row in rows:
            records.add(row)
            error = "diverged" if row["validation"] is None else f"{row['validation']:.4g}"
            print(f"{swap_plan.run_of(row).name:50}{error:>12}{row['seconds']:>9.1f} s", flush=True)

    while True:
        ready = [
            run for cell in chosen for run in swap_plan.next_runs(cell, records, seeds, args.search_seeds, args.heads)
        ]
        waiting = groups([run for run in ready if run not in started], args.together)
        if time.time() > deadline:
            waiting = []
        if not waiting and not flying:
            break
        if pool is None:
            started |= set(waiting[0])
            collect(
                waiting[0], lambda some=waiting[0]: swap_train.train(some, args.device, deadline, not args.no_capture)
            )
            continue
        for some in waiting[: max(0, 2 * args.workers - len(flying))]:
            started |= set(some)
            flying[pool.submit(_work, some, args.device, deadline, not args.no_capture)] = some
        for future in wait(flying, return_when=FIRST_COMPLETED).done:
            collect(flying.pop(future), future.result)
    if pool is not None:
        pool.shutdown()


def summary(cell: Cell, records: Records, args: argparse.Namespace) -> dict | None:
    """A cell with all seeds, or where nothing is run, with as many as are finished."""
    fewest = args.search_seeds if args.summary else args.seeds
    for seeds in range(args.seeds, fewest - 1, -1):
        if (row := swap_plan.summarise(cell, records, list(range(seeds)), args.search_seeds, args.heads)) is not None:
            return row
    return None


def _written(body: dict) -> str:
    """The summary as text, a run a line."""
    head = json.dumps({name: value for name, value in body.items() if name != "runs"}, indent=1)
    runs = ",\n".join(f"  {json.dumps(row)}" for row in body["runs"])
    return f'{head[:-2]},\n "runs": [\n{runs}\n ]\n}}\n'


def main(argv: list[str] | None = None) -> dict | None:
    args = arguments(argv)
    chosen, skipped = cells(args)
    for name, why in skipped.items():
        print(f"{name} is skipped: {why}")
    earlier = [json.loads(path.read_text()) for path in args.beside]
    records = Records(args.out, [row for body in earlier for row in body.get("runs", [])])
    if args.plan:
        plan(args, chosen, records)
        return None
    if not args.summary:
        execute(args, chosen, records)
    rows = [row for cell in chosen if (row := summary(cell, records, args)) is not None]
    rows = swap_plan.joined(rows, [row for body in earlier for row in body["rows"]], chosen, records)
    stale = swap_plan.by_an_earlier_rule(rows, records)
    before = {name for body in earlier for name in body["environment"].get("devices", [])}
    devices = {"devices": sorted(before | {row["device"] for row in records.rows.values()})}
    body = {
        "question": QUESTION,
        "environment": devices if args.summary else common.environment(args.device) | devices,
        "skipped": skipped,
        "unfinished": len(chosen) - len(rows) + len(stale),
        "earlier_rule": stale,
        "losses": {task: swap_tasks.tasks(args.quick)[task].loss for task in args.tasks},
        "overall": swap_plan.overall([row for row in rows if swap_plan.named(row) not in stale]),
        "pooled_noise": swap_plan.pooled_noise(rows),
        "rows": rows,
        "runs": [
            {name: value for name, value in row.items() if name != "curve"}
            for _, row in sorted(records.rows.items(), key=lambda pair: pair[0].name)
        ],
    }
    print(swap_plan.table(rows))
    print(json.dumps(body["overall"], indent=1))
    if body["unfinished"]:
        print(f"{body['unfinished']} of {len(chosen)} cells are not finished: run the same command again")
    args.results.mkdir(parents=True, exist_ok=True)
    others = not set(args.tasks) & set(swap_tasks.FULL)
    path = args.results / f"swap{'_others' if others else ''}{'_quick' if args.quick else ''}-{args.device}.json"
    path.write_text(_written(body))
    print(f"wrote {path}")
    return body


if __name__ == "__main__":
    main()
