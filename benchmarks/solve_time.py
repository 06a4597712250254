"""How long does one solve take, against the textbook's d x d system and torch.linalg.lstsq?

    python benchmarks/solve_time.py [--device cuda] [--quick]

All three do the same work in float32: from a batch and the old layer (with bias) to the new layer, in place.
"""

from __future__ import annotations

import itertools

import torch

import closedform as cf
from common import arguments, captured, interleaved, save

LAM = 1e3


def sides(batch: int, d: int, outputs: int, device: str) -> dict:
    g = torch.Generator(device).manual_seed(0)
    phi = torch.randn(batch, d, generator=g, device=device)
    y = torch.randn(batch, outputs, generator=g, device=device)
    head = cf.ClosedFormLinear(d, outputs, rule=cf.Proximal(LAM), device=device)
    ones = torch.ones(batch, 1, device=device)
    eye = torch.eye(d + 1, device=device)
    W = torch.zeros(outputs, d + 1, device=device)
    V = torch.zeros(outputs, d + 1, device=device)

    def textbook() -> None:
        """Paper eq. 14 with a solve in place of the inverse."""
        X = torch.cat([phi, ones], 1)
        W.copy_(torch.linalg.solve(X.T @ X + LAM * eye, X.T @ y + LAM * W.T).T)

    def lstsq() -> None:
        """The same minimiser as a stacked least-squares problem."""
        X = torch.cat([phi, ones], 1)
        stacked = torch.cat([X, LAM**0.5 * eye])
        V.copy_(torch.linalg.lstsq(stacked, torch.cat([y, LAM**0.5 * V.T])).solution.T)

    return {"ours": lambda: head.solve(phi, y), "textbook": textbook, "lstsq": lstsq}


def main() -> None:
    args = arguments(__doc__ or "")
    gpu = args.device == "cuda"
    grid = list(itertools.product((32, 128, 1024, 4096), (128, 512, 1024, 2048, 4096), (1, 100)))
    if not gpu:  # the textbook takes seconds at d = 4096
        grid = [*itertools.product((32, 256, 1024), (128, 512, 1024), (100,)), (32, 4096, 100)]
    if args.quick:
        grid = [(32, 128, 10), (32, 512, 10)]
    rows = []
    print(f"{'B':>5} {'d':>5} {'o':>4} | {'ours':>9} {'textbook':>9} {'lstsq':>9} ms | textbook/ours lstsq/ours")
    for batch, d, outputs in grid:
        functions = sides(batch, d, outputs, args.device)
        times = interleaved(functions, args.device, seconds=0.3 if gpu else 0.5, least=3)
        row = {"batch": batch, "d": d, "outputs": outputs, **times}
        ours, textbook, lstsq = (times[k]["median_ms"] for k in ("ours", "textbook", "lstsq"))
        row["textbook_over_ours"], row["lstsq_over_ours"] = textbook / ours, lstsq / ours
        extra = ""
        if gpu:
            graph = interleaved({"ours": captured(functions["ours"])}, args.device, seconds=0.05)
            row["ours_captured"] = graph["ours"]
            extra = f" | captured {graph['ours']['median_ms']:.3f}"
        rows.append(row)
        print(
            f"{batch:5d} {d:5d} {outputs:4d} | {ours:9.3f} {textbook:9.3f} {lstsq:9.3f}    |"
            f" {textbook / ours:13.1f} {lstsq / ours:10.1f}{extra}",
            flush=True,
        )
    save(args, "solve_time", "milliseconds of one solve of the last layer, float32, with bias", rows)


if __name__ == "__main__":
    main()
