"""What does a solve over several processes send, and what does a whole step?

    python benchmarks/communication.py

Two processes over gloo solve on joined batches of N rows, d features and o outputs: once exchanging the rows, once the
moments, and once as the library's rule chooses. Counted are the numbers (float64) that each process hands to the collective
operations, against the formula: N (d + o) for the rows of all processes, D (D + o) + o + 1 for the moments, with D = d + 1
for the bias. Where the machine allows a network namespace of one's own, the bytes on the wire are read from its interface.
An all-reduce sends each number twice (to be added up, and the sum back), a gather once, so in bytes rows stay cheaper up to
about N = 2 D; the rule compares numbers, since from N = D on the moments also make the smaller system to solve.

Then whole steps under DistributedDataParallel, with the buffers of the model sent around at every forward (as it does unless
told otherwise) and not: with a learned layer, and with one that the proximal rule or the Kalman filter solves, whose memory
is a buffer of D x D numbers. A solved layer and its memory are the same on all ranks without that. Counted there are the
bytes on the wire alone.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closedform as cf
from closedform.solver.statistics import Batch
from common import arguments, save

WORLD = 2
REPEATS = 5
CELLS = [(n, d, o) for d in (64, 256) for o in (1, 10) for n in (d // 8, d // 2, d, 2 * d, 4 * d)]
STEPS = [(32, 256, 1), (256, 256, 1), (32, 1024, 10)]
RULES = {"learned": None, "proximal": cf.Proximal(1e3), "kalman": cf.Kalman(0.99)}
INPUTS = 4
UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]


def formula(n: int, d: int, outputs: int, exchange: str) -> int:
    D = d + 1
    return n * (d + outputs) if exchange == "rows" else D * (D + outputs) + outputs + 1


def wire() -> int | None:
    """Bytes that the loopback interface has carried, if nobody else is on it."""
    if "COMMUNICATION_ALONE" not in os.environ:
        return None
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[1])


class Counted:
    """Adds up the floating point numbers that go through the collective operations."""

    def __init__(self) -> None:
        self.numbers = 0
        gather, reduce = dist.all_gather, dist.all_reduce

        def counted_gather(parts, tensor, **kwargs):
            self.numbers += sum(part.numel() for part in parts) if tensor.is_floating_point() else 0
            return gather(parts, tensor, **kwargs)

        def counted_reduce(tensor, **kwargs):
            self.numbers += tensor.numel()
            return reduce(tensor, **kwargs)

        dist.all_gather, dist.all_reduce = counted_gather, counted_reduce


def measure(n: int, d: int, outputs: int, rank: int, counted: Counted) -> dict:
    torch.manual_seed(rank)
    phi, y = torch.randn(n // WORLD, d), torch.randn(n // WORLD, outputs)
    head = cf.ClosedFormLinear(d, outputs, rule=cf.Proximal(1e3))
    head.solve(phi, y)
    dist.barrier()
    counted.numbers, before = 0, wire()
    for _ in range(REPEATS):
        head.solve(phi, y)
    dist.barrier()
    after = wire()
    sent = None if before is None or after is None else (after - before) / REPEATS / WORLD
    return {"numbers": counted.numbers / REPEATS, "wire_bytes": sent}


def step(n: int, d: int, outputs: int, rule: cf.rules.Rule | None, sync: bool, rank: int) -> float | None:
    """Bytes that a process sends in a step of training, on average over both: solve, forward, backward."""
    torch.manual_seed(0)
    head = nn.Linear(d, outputs) if rule is None else cf.ClosedFormLinear(d, outputs, rule=rule)
    model = nn.Sequential(nn.Linear(INPUTS, d), nn.Tanh(), head)
    known = inspect.signature(DistributedDataParallel).parameters  # the old name warns in torch 2.13
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    parallel = DistributedDataParallel(model, **{option: sync})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    x, y = torch.randn(n // WORLD, INPUTS), torch.randn(n // WORLD, outputs)
    before = None
    for t in range(2 + REPEATS):  # the first two set up DDP's buckets
        if t == 2:
            dist.barrier()
            before = wire()
        if isinstance(head, cf.ClosedFormLinear):
            head.observe(y)
        loss = nn.functional.mse_loss(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    after = wire()
    return None if before is None or after is None else (after - before) / REPEATS / WORLD


def steps(cells: list, rank: int) -> list[dict]:
    rows = []
    for n, d, outputs in cells:
        for name, rule in RULES.items():
            row = {"n": n, "d": d, "outputs": outputs, "rule": name}
            row |= {key: step(n, d, outputs, rule, sync, rank) for key, sync in (("synced", True), ("unsynced", False))}
            rows.append(row)
            if rank == 0:
                sent = ["-" if row[key] is None else f"{row[key] / 1024:.1f}" for key in ("synced", "unsynced")]
                print(f"{n:6d} {d:5d} {outputs:4d} {name:9} {sent[0]:>8} {sent[1]:>8}", flush=True)
    return rows


def worker(rank: int, cells: list, step_cells: list, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    counted, rule, rows = Counted(), Batch._by_rows, []
    for n, d, outputs in cells:
        row = {"n": n, "d": d, "outputs": outputs}
        for exchange in ("rows", "moments", "rule"):
            forced = property(lambda self, exchange=exchange: exchange == "rows")
            Batch._by_rows = rule if exchange == "rule" else forced  # type: ignore[assignment]
            row[exchange] = measure(n, d, outputs, rank, counted)
            if exchange != "rule":
                row[exchange]["formula"] = formula(n, d, outputs, exchange)
        rows.append(row)
        if rank == 0:
            print(line(row), flush=True)
    if rank == 0:
        (Path(folder) / "rows.json").write_text(json.dumps(rows))
        print(f"\na whole step, KiB\n{'N':>6} {'d':>5} {'o':>4} {'layer':9} {'synced':>8} {'unsynced':>8}")
    Batch._by_rows = rule  # type: ignore[assignment]
    taken = steps(step_cells, rank)
    if rank == 0:
        (Path(folder) / "steps.json").write_text(json.dumps(taken))
    dist.destroy_process_group()


def line(row: dict) -> str:
    cells = [f"{row['n']:6d} {row['d']:5d} {row['outputs']:4d}"]
    for exchange in ("rows", "moments", "rule"):
        side = row[exchange]
        kib = "       -" if side["wire_bytes"] is None else f"{side['wire_bytes'] / 1024:8.1f}"
        cells.append(f"{side['numbers']:9.0f} {side.get('formula', ''):>7} {kib}")
    return " | ".join(cells)


def main() -> None:
    args: Namespace = arguments(__doc__ or "")
    if "COMMUNICATION_ALONE" not in os.environ and shutil.which("unshare") and shutil.which("ip"):
        prepared = [*UNSHARE, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        if subprocess.run([*prepared, "true"], capture_output=True).returncode == 0:
            environment = os.environ | {"COMMUNICATION_ALONE": "1"}
            raise SystemExit(subprocess.run([*prepared, sys.executable, *sys.argv], env=environment).returncode)
    args.device = "cpu"
    cells = [(8, 64, 10), (64, 64, 10), (512, 64, 10)] if args.quick else CELLS
    head = f"{'numbers':>9} {'formula':>7} {'KiB':>8}"
    print(f"{'':17} | {'rows':^26} | {'moments':^26} | {'as the rule chooses':^26}")
    print(f"{'N':>6} {'d':>5} {'o':>4} | {head} | {head} | {head}")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (cells, STEPS[:1] if args.quick else STEPS, folder), nprocs=WORLD)
        rows, taken = (json.loads((Path(folder) / f"{name}.json").read_text()) for name in ("rows", "steps"))
    save(args, "communication", "what one solve over two processes sends: numbers, bytes sent by each process", rows)
    save(args, "communication_step", "bytes that each of two processes sends in a whole step under DDP", taken)


if __name__ == "__main__":
    main()
