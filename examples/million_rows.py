"""A million rows in pieces: `Statistics` adds them up, sites are merged, saved, and one of them is forgotten exactly.

    python examples/million_rows.py [--quick]

Four sites each see a quarter of the rows and send a file of about 300 kB: sums of products, no row. The merged layer is that
of all rows together. When a site takes its rows back, they are subtracted, as if they had never been there.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import closedform as cf

SITES, INPUTS, WIDTH, PIECE = 4, 4, 192, 10_000


def rows(site: int, piece: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * site + piece)
    x = torch.rand(PIECE, INPUTS, generator=draw) * 2 - 1
    y = torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + (site == 3) * x[:, 3:4]  # the last site is different
    return x, y + 0.1 * torch.randn(PIECE, 1, generator=draw)


def main(quick: bool = False) -> dict[str, float]:
    pieces = 1 if quick else 25
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh()).requires_grad_(False)
    backbone[0].weight.mul_(3)  # features that bend
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for site in range(SITES):
            sums = cf.Statistics(WIDTH, 1)
            for piece in range(pieces):
                x, y = rows(site, piece)
                sums.add(backbone(x), y)
            paths.append(sums.save(Path(folder) / f"{site}.safetensors"))
        size = max(path.stat().st_size for path in paths)
        whole = cf.Statistics.load(paths[0])
        for path in paths[1:]:
            whole.merge(cf.Statistics.load(path))
        last = cf.Statistics.load(paths[-1])
    print(f"{whole.n:,} rows in {time.perf_counter() - start:.1f} s; a site's file has {size / 1000:.0f} kB")
    head = cf.ClosedFormLinear(WIDTH, 1).eval()
    x_test, y_test = rows(0, 999)
    errors = {}
    for name in ("all sites", "without the last"):
        if name != "all sites":
            whole.subtract(last)
        head.set_weights_(whole.solve(beta=1.0))
        errors[name] = float((head(backbone(x_test)) - y_test).square().mean())
        print(f"{name:17} {whole.n:,} rows, mean squared error at the first site {errors[name]:.4f} (noise .0100)")
    return errors


if __name__ == "__main__":
    main("--quick" in sys.argv)
