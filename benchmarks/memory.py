"""How much memory does a solve take at its peak, beyond its inputs?

    python benchmarks/memory.py [--device cuda]

The dual route must not allocate a d x d matrix, and the moments of a batch of many rows must not grow with the rows. On a
GPU the caching allocator counts; on a CPU the profiler's record of every allocation is added up.
"""

from __future__ import annotations

import math

import torch

import closedform as cf
from common import arguments, save

CELLS = [(32, 1024, 100), (32, 4096, 100), (32, 16384, 10), (10_000, 128, 1), (1_000_000, 128, 1)]
FIELDS = [(8, 256, 128), (8, 8192, 128), (8, 65536, 128)]  # batch, points, features of a layer shared over space


def peak_bytes(function, device: str) -> int:
    if device == "cuda":
        function()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    from torch.profiler import ProfilerActivity, profile

    function()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        function()
    held = most = 0
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def main() -> None:
    args = arguments(__doc__ or "")
    rows = []
    print(f"{'n':>8} {'d':>6} {'o':>4} | {'peak MiB':>9} {'d x d MiB':>10} {'phi MiB':>8}")
    cells = [((n,), d, outputs) for n, d, outputs in (CELLS[:4] if args.quick else CELLS)]
    cells += [((batch, points), d, 1) for batch, points, d in FIELDS[: 2 if args.quick else 3]]
    for shape, d, outputs in cells:
        n = math.prod(shape)
        phi, y = torch.randn(*shape, d, device=args.device), torch.randn(*shape, outputs, device=args.device)
        head = cf.ClosedFormLinear(d, outputs, rule=cf.Proximal(1e3), device=args.device)
        peak = peak_bytes(lambda: head.solve(phi, y), args.device)  # noqa: B023 - called at once
        square, inputs = 8 * (d + 1) ** 2, phi.numel() * 4
        rows.append(
            {"n": n, "d": d, "outputs": outputs, "peak_bytes": peak, "square_bytes": square, "phi_bytes": inputs}
            | ({"batch": shape[0], "points": shape[1]} if len(shape) == 2 else {})
        )
        print(
            f"{n:8d} {d:6d} {outputs:4d} | {peak / 2**20:9.2f} {square / 2**20:10.2f} {inputs / 2**20:8.2f}", flush=True
        )
    save(args, "memory", "bytes that one solve holds at its peak beyond its inputs", rows)


if __name__ == "__main__":
    main()
