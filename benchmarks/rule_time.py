"""What one solve of each rule costs: proximal, Kalman in both forms, and the default, which runs several filters.

    python benchmarks/rule_time.py [--device cuda] [--quick]

Twelve outputs under the squared loss, 100 under cross-entropy. On a GPU a solve is captured as a CUDA graph and replayed,
as in a captured training step; on the CPU it is called. All rules of a cell take turns in one process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import closedform as cf
from common import arguments, captured, interleaved, save

RULES = {
    "proximal": cf.Proximal(),
    "information": cf.Kalman(form="information"),
    "covariance": cf.Kalman(form="covariance"),
    "kalman": cf.Kalman(),
    "auto": cf.Auto(),
}


def solve(d: int, batch: int, rule: str, loss: str, device: str) -> Callable[[], object]:
    """One solve, ready to be called again and again."""
    outputs = 12 if loss == "squared" else 100
    phi = torch.randn(batch, d, device=device)
    y = (
        torch.randn(batch, outputs, device=device)
        if loss == "squared"
        else torch.randint(outputs, (batch,), device=device)
    )
    head = cf.ClosedFormLinear(
        d, outputs, rule=RULES[rule], loss=cf.CrossEntropy() if loss == "cross-entropy" else None
    )
    head = head.to(device)

    def one() -> None:
        head.solve(phi, y)

    return captured(one) if device == "cuda" else one


def main() -> None:
    args = arguments(__doc__ or "")
    torch.manual_seed(0)
    cells = [(256, 32, "squared"), (256, 128, "squared"), (512, 32, "squared"), (512, 128, "squared")]
    if not args.quick:
        cells += [(256, 1024, "squared"), (512, 128, "cross-entropy"), (2048, 32, "squared"), (2048, 128, "squared")]
    rows = []
    print(f"{'d':>5} {'batch':>6} {'loss':>14} | " + " ".join(f"{name:>12}" for name in RULES) + " | auto / kalman")
    for d, batch, loss in cells:
        times = interleaved({name: solve(d, batch, name, loss, args.device) for name in RULES}, args.device, 1.0)
        median = {name: cell["median_ms"] for name, cell in times.items()}
        ratio = median["auto"] / median["kalman"]
        rows.append({"d": d, "batch": batch, "loss": loss, "ms": median, "auto_over_kalman": ratio, "turns": times})
        shown = " ".join(f"{median[name]:12.3f}" for name in RULES)
        print(f"{d:5d} {batch:6d} {loss:>14} | {shown} | {ratio:.2f}", flush=True)
    save(args, "rule_time", "milliseconds of one solve by rule", rows)


if __name__ == "__main__":
    main()
