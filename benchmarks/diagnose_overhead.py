"""What does watching the last layer cost a training run?

    python benchmarks/diagnose_overhead.py [--device cuda] [--quick]

A round of `every` training steps with `cf.Diagnostics` against the same round without it: rounds alternate, so that both
see the same machine. The share is the median round with it over the median without it, less one; the spread is what two
rounds of the *same* kind differ by, and a share below it cannot be told from nothing by comparing rounds. So the diagnosis
itself is timed too, alternating with single steps, and its time over that of `every` steps is the other, sharper, estimate.
"""

from __future__ import annotations

import torch
from torch import nn

import closedform as cf
from common import arguments, interleaved, save

CELLS = [  # batch, features, hidden layers
    (32, 128, 2),
    (256, 128, 2),
    (256, 512, 2),
    (1024, 512, 2),
]
EVERY = 200  # the default
INPUTS, OUTPUTS = 32, 12


def training(batch: int, dim: int, layers: int, device: str) -> dict:
    """One training step of Algorithm 1 on a network of equal widths, and a diagnosis of its head."""
    torch.manual_seed(0)
    sizes = [INPUTS] + layers * [dim]
    backbone = nn.Sequential(*(m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.GELU()))).to(device)
    head = cf.ClosedFormLinear(dim, OUTPUTS, device=device)
    optimizer = torch.optim.SGD(backbone.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(batch, INPUTS, device=device), torch.randn(batch, OUTPUTS, device=device)

    def step(watch: cf.Diagnostics | None = None) -> None:
        phi = backbone(x)
        if watch is not None:
            watch(phi, y)
        head.solve(phi, y)
        loss = nn.functional.mse_loss(head(phi), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def rounds(watch: cf.Diagnostics | None) -> None:
        for _ in range(EVERY):
            step(watch)

    with torch.no_grad():
        phi = backbone(x)
    watch = cf.Diagnostics(head, every=EVERY)
    return {
        "single": {"step": step, "diagnosis": lambda: cf.diagnose_batch(head, phi, y)},
        "rounds": {"with": lambda: rounds(watch), "without": lambda: rounds(None)},
    }


def main() -> None:
    args = arguments(__doc__ or "")
    torch.set_num_threads(1)  # the networks are small, and threads that wait for each other blur the comparison
    rows = []
    print(f"{'B':>5} {'d':>5} | {'step ms':>8} {'diagnosis':>9} {'share':>8} | {'rounds':>8} {'spread':>7}")
    for batch, dim, layers in CELLS[:1] if args.quick else CELLS:
        sides = training(batch, dim, layers, args.device)
        single = interleaved(sides["single"], args.device, 0.3 if args.quick else 4.0, least=20)
        step, diagnosis = (single[k]["median_ms"] for k in ("step", "diagnosis"))
        row: dict = {"batch": batch, "d": dim, "every": EVERY, "single": single, "share": diagnosis / (EVERY * step)}
        row["rounds"] = interleaved(
            sides["rounds"], args.device, 1.0 if args.quick else 25.0, least=3 if args.quick else 5
        )
        plain = row["rounds"]["without"]
        row["rounds_share"] = row["rounds"]["with"]["median_ms"] / plain["median_ms"] - 1
        row["rounds_spread"] = (plain["high_ms"] - plain["low_ms"]) / plain["median_ms"]
        print(
            f"{batch:5d} {dim:5d} | {step:8.3f} {diagnosis:9.3f} {row['share']:8.2%} | {row['rounds_share']:8.2%} "
            f"{row['rounds_spread']:7.2%}",
            flush=True,
        )
        rows.append(row)
    save(args, "diagnose_overhead", f"share of a training run that a diagnosis every {EVERY} steps takes", rows)


if __name__ == "__main__":
    main()
