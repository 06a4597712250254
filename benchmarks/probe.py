"""What a hundred betas cost beside one in `closedform.probe`, with the features given and behind a backbone.

    python benchmarks/probe.py

Each time, of one thread, is the median of `--repeats` runs after one that does not count; both ways take turns. `RidgeCV`
of scikit-learn, which gives the same layer, is run once on a small case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import closedform as cf

OUT = Path(__file__).parent / "results" / "probe-cpu.json"
BETAS = torch.logspace(-6, 6, 100, dtype=torch.float64)


def timed(call: Callable[[], object]) -> float:
    start = time.thread_time()  # one thread, so that other work on the machine does not count
    call()
    return time.thread_time() - start


def data(n: int, d: int, o: int) -> tuple[torch.Tensor, torch.Tensor]:
    phi = torch.randn(n, d, dtype=torch.float64) * torch.logspace(0, -3, d, dtype=torch.float64)
    return phi, phi @ torch.randn(d, o, dtype=torch.float64) + 0.1 * torch.randn(n, o, dtype=torch.float64)


def case(backbone: nn.Module, n: int, d: int, o: int, repeats: int) -> dict:
    phi, y = data(n, d, o)
    loader = list(zip(phi.split(500), y.split(500)))
    ways = {"1 beta": BETAS[50:51], "100 betas": BETAS}
    calls = {name: lambda betas=betas: cf.probe(backbone, loader, betas) for name, betas in ways.items()}
    for call in calls.values():
        call()
    runs = [{name: timed(call) for name, call in calls.items()} for _ in range(repeats)]
    ratios = [run["100 betas"] / run["1 beta"] for run in runs]
    return {name: round(statistics.median(run[name] for run in runs), 4) for name in ways} | {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one small case, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = []
    shapes = [(500, 32, 1, "none")] if args.quick else []
    if not args.quick:
        shapes = [(4000, 512, o, name) for name in ("none", "MLP") for o in (1, 10, 100)]
    for n, d, o, name in shapes:
        net = nn.Sequential(
            nn.Linear(d, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, d)
        ).double()
        row = {"rows": n, "features": d, "outputs": o, "backbone": name}
        row |= case(nn.Identity() if name == "none" else net, n, d, o, args.repeats)
        results.append(row)
        print(row, flush=True)
    if not args.quick:
        from sklearn.linear_model import RidgeCV

        phi, y = data(1000, 256, 1)
        peer = timed(lambda: RidgeCV(alphas=BETAS.numpy()).fit(phi.numpy(), y.numpy()))
        own = timed(lambda: cf.probe(nn.Identity(), [(phi, y)], BETAS))
        beside = {"rows": 1000, "features": 256, "outputs": 1, "RidgeCV": round(peer, 4), "probe": round(own, 4)}
        print(beside)
        OUT.write_text(
            json.dumps({"threads": 1, "torch": torch.__version__, "results": results, "peer": beside}, indent=1)
        )


if __name__ == "__main__":
    main()
