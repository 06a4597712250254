"""The paper's two wall-clock tables (appendix, "Wall-Clock Time Analysis on CIFAR-100") beside ours.

    rows = timing.rows(Path("benchmarks/results/step_overhead-cuda.json"))
    print(timing.markdown(rows, "resnet18"))

Ours are the steps that `benchmarks/step_overhead.py` timed. Times are of 100 epochs of 50,000 images; the paper's are
measured with everything around the steps, ours are steps alone. rSPS is ours over cross-entropy in steps a second, rTime in
time, so that an rTime below 1 means that the solved layer is the faster one.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

IMAGES, EPOCHS = 50_000, 100
DIMS = (128, 256, 512, 1024, 2048, 4096)
# steps a second (ours, cross-entropy) and seconds (ours, cross-entropy) on an A100, in the order of DIMS
_PAPER = {
    ("resnet18", 32): (
        (89.98, 81.02, 2164.20, 2348.11), (87.35, 78.97, 2214.96, 2400.73), (78.48, 79.86, 2413.57, 2374.19),
        (70.23, 81.89, 2633.73, 2325.33), (51.47, 79.66, 3426.96, 2383.31), (30.41, 82.44, 5488.86, 2318.55),
    ),
    ("resnet18", 128): (
        (40.57, 41.24, 1293.17, 1277.97), (39.59, 40.74, 1320.46, 1281.52), (38.77, 40.72, 1333.75, 1282.12),
        (35.47, 40.44, 1422.86, 1291.61), (29.76, 41.14, 1614.35, 1278.58), (20.92, 40.54, 2140.42, 1294.91),
    ),
    ("resnet18", 1024): (
        (4.66, 5.07, 1055.30, 967.64), (4.68, 5.04, 1046.71, 975.81), (4.68, 5.09, 1050.68, 966.34),
        (4.66, 5.05, 1051.08, 972.14), (4.57, 5.10, 1072.17, 963.36), (4.21, 5.02, 1164.10, 982.72),
    ),
    ("resnet18", 4096): (
        (1.11, 1.24, 1084.92, 966.99), (1.09, 1.24, 1097.92, 968.55), (1.08, 1.24, 1105.35, 963.45),
        (1.10, 1.23, 1089.28, 973.90), (1.09, 1.23, 1100.39, 974.79), (1.08, 1.24, 1107.10, 971.15),
    ),
    ("resnet50", 32): (
        (36.96, 42.94, 4735.09, 2855.43), (41.18, 42.84, 4240.65, 4056.31), (35.85, 39.59, 4903.87, 3496.42),
        (35.22, 43.28, 4903.89, 4002.80), (30.85, 41.52, 5482.36, 4173.49), (21.68, 41.97, 7605.07, 4133.77),
    ),
    ("resnet50", 128): (
        (16.53, 18.62, 2645.24, 2384.37), (16.37, 18.49, 2659.99, 2397.10), (16.15, 18.30, 2698.11, 2423.22),
        (15.45, 18.52, 2801.06, 2405.96), (14.31, 18.44, 3000.61, 2409.51), (11.95, 18.05, 3532.58, 2448.23),
    ),
    ("resnet50", 1024): (
        (2.26, 2.59, 2154.44, 1875.26), (2.25, 2.61, 2151.89, 1866.88), (2.24, 2.60, 2163.26, 1874.76),
        (2.23, 2.59, 2174.04, 1876.25), (2.19, 2.57, 2216.16, 1889.88), (2.12, 2.56, 2286.04, 1898.44),
    ),
}  # fmt: skip


class Timing(NamedTuple):
    sps: float
    sps_cross_entropy: float
    time_s: float
    time_cross_entropy_s: float

    @property
    def rsps(self) -> float:
        return self.sps / self.sps_cross_entropy

    @property
    def rtime(self) -> float:
        return self.time_s / self.time_cross_entropy_s


PAPER = {(net, b, d): Timing(*row) for (net, b), table in _PAPER.items() for d, row in zip(DIMS, table)}


class TimingRow(NamedTuple):
    net: str
    batch_size: int
    dim: int
    paper: Timing
    ours: Timing  # eager steps
    captured: Timing | None  # CUDA graphs


def _timing(ours_ms: float, cross_entropy_ms: float, batch_size: int) -> Timing:
    steps = EPOCHS * math.ceil(IMAGES / batch_size)
    return Timing(1e3 / ours_ms, 1e3 / cross_entropy_ms, steps * ours_ms / 1e3, steps * cross_entropy_ms / 1e3)


def rows(path: Path) -> list[TimingRow]:
    """The cells of the paper's tables that a file of the benchmark has."""
    if not path.is_file():
        raise ValueError(f"{path} is not there: python benchmarks/step_overhead.py writes it, on a CUDA device")
    compared = []
    for row in json.loads(path.read_text())["rows"]:
        key = row["net"], row["batch"], row["d"]
        if key not in PAPER:
            continue
        timings = [
            _timing(row[kind]["ours"]["median_ms"], row[kind]["cross_entropy"]["median_ms"], row["batch"])
            if kind in row
            else None
            for kind in ("eager", "captured")
        ]
        assert timings[0] is not None
        compared.append(TimingRow(*key, PAPER[key], timings[0], timings[1]))
    return compared


HEAD = ("batch", "dim", "SPS ours", "SPS CE", "rSPS", "time ours", "time CE", "rTime")


def cells(row: TimingRow) -> list[str]:
    """A line of the table: the paper's value, ours, and ours captured, in each column."""
    kinds = [kind for kind in (row.paper, row.ours, row.captured) if kind is not None]

    def side_by_side(digits: str, values: list[float]) -> str:
        return " / ".join(f"{value:{digits}}" for value in values)

    return [
        str(row.batch_size),
        str(row.dim),
        side_by_side(".1f", [kind.sps for kind in kinds]),
        side_by_side(".1f", [kind.sps_cross_entropy for kind in kinds]),
        side_by_side(".2f", [kind.rsps for kind in kinds]),
        side_by_side(".0f", [kind.time_s for kind in kinds]),
        side_by_side(".0f", [kind.time_cross_entropy_s for kind in kinds]),
        side_by_side(".2f", [kind.rtime for kind in kinds]),
    ]


def markdown(rows: list[TimingRow], net: str) -> str:
    """The table of one network, each cell the paper's (A100) / ours eager / ours captured."""
    lines = [list(HEAD), ["---:"] * len(HEAD), *(cells(row) for row in rows if row.net == net)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
