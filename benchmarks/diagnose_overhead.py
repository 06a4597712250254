"""What does watching the last layer cost a training run?

    python benchmarks/diagnose_overhead.py [--device cuda] [--quick]

Two answers. A diagnosis and a training step are timed in turn, and the share of a diagnosis every `EVERY` steps follows.
And whole rounds of `EVERY` steps are run with `cf.Diagnostics` and without it, in pairs whose order alternates; their
median ratio, with quartiles, says whether anything else is hidden in it. On a CPU everything is timed by the processor time
of one thread, which other programs on the machine disturb least.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import closedform as cf
from common import arguments, interleaved, save, summary

CELLS = [(32, 128), (256, 128), (256, 512), (1024, 512), (64, 1024), (1024, 1024), (64, 4096)]  # batch, features
EVERY = 200  # the default
LONGEST = 512  # features beyond which whole rounds would take too long
INPUTS, OUTPUTS = 32, 12


def training(batch: int, dim: int, device: str) -> tuple[dict, Callable[[bool], None]]:
    """One step of Algorithm 1 on a network with two hidden layers, a diagnosis of its head, and a round of steps."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(INPUTS, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU()).to(device)
    head = cf.ClosedFormLinear(dim, OUTPUTS, device=device)
    optimizer = torch.optim.SGD(backbone.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(batch, INPUTS, device=device), torch.randn(batch, OUTPUTS, device=device)
    watch = cf.Diagnostics(head, every=EVERY)

    def step(watched: bool = False) -> None:
        phi = backbone(x)
        if watched:
            watch(phi, y)
        head.solve(phi, y)
        loss = nn.functional.mse_loss(head(phi), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def steps(watched: bool) -> None:
        for _ in range(EVERY):
            step(watched)

    with torch.no_grad():
        phi = backbone(x)
    return {"step": step, "diagnosis": lambda: cf.diagnose_batch(head, phi, y)}, steps


def in_turn(sides: dict[str, Callable[[], object]], device: str, seconds: float, least: int = 20) -> dict[str, dict]:
    """Milliseconds a call of each side, sides in turn: median and quartiles."""
    if device == "cuda":
        return interleaved(sides, device, seconds, least)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in (*sides.values(), *sides.values()):
        side()
    start = time.process_time()
    while min(map(len, times.values())) < least or time.process_time() - start < seconds:
        for name, side in sides.items():
            before = time.process_time()
            side()
            times[name].append(1e3 * (time.process_time() - before))
    return {name: summary(values) for name, values in times.items()}


def paired(steps: Callable[[bool], None], device: str, pairs: int) -> dict:
    """Rounds with over rounds without, less one: median and quartiles over pairs."""

    def seconds(watched: bool) -> float:
        clock = time.process_time
        if device == "cuda":
            clock = time.perf_counter
            torch.cuda.synchronize()
        before = clock()
        steps(watched)
        if device == "cuda":
            torch.cuda.synchronize()
        return clock() - before

    steps(True)
    extra = []
    for turn in range(pairs):
        first = turn % 2 == 0
        times = {watched: seconds(watched) for watched in (first, not first)}
        extra.append(times[True] / times[False] - 1)
    low, median, high = statistics.quantiles(extra, n=4)
    return {"median": median, "low": low, "high": high, "pairs": pairs}


def main() -> None:
    args = arguments(__doc__ or "")
    torch.set_num_threads(1)  # the networks are small, and threads that wait for each other blur the comparison
    rows = []
    print(f"{'B':>5} {'d':>5} | {'step ms':>8} {'diagnosis':>9} {'share':>7} | rounds (quartiles)")
    for batch, dim in CELLS[:1] if args.quick else CELLS:
        sides, steps = training(batch, dim, args.device)
        single = in_turn(sides, args.device, 0.3 if args.quick else 5.0)
        step, diagnosis = (single[k]["median_ms"] for k in ("step", "diagnosis"))
        row = {"batch": batch, "d": dim, "every": EVERY, "single": single, "share": diagnosis / (EVERY * step)}
        spread = "not run"
        if dim <= LONGEST:
            pairs = 4 if args.quick else max(4, min(40, int(75 / step)))
            row["rounds"] = rounds = paired(steps, args.device, pairs)
            spread = f"{rounds['median']:.2%} ({rounds['low']:.2%} to {rounds['high']:.2%})"
        print(f"{batch:5d} {dim:5d} | {step:8.3f} {diagnosis:9.3f} {row['share']:7.2%} | {spread}", flush=True)
        rows.append(row)
    save(args, "diagnose_overhead", f"share of a training run that a diagnosis every {EVERY} steps takes", rows)


if __name__ == "__main__":
    main()
