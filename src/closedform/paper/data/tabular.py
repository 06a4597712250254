"""Nine regression tables of the UCI repository with the standard splits of Gal and Ghahramani (2016).

`uci_gal9.npz` in the folder that `CLOSEDFORM_DATA` names: for each table `NAME/x`, `NAME/y` and `NAME/test_mask`, a row of
packed bits for each split. The splits are 20 of nine to one, for the largest table 5.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

FILE = "uci_gal9.npz"
NAMES = {
    "bostonHousing": "boston",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval-propulsion-plant": "naval",
    "power-plant": "power",
    "protein-tertiary-structure": "protein",
    "wine-quality-red": "wine",
    "yacht": "yacht",
}


class UCITable:
    """Inputs `x (n, f)`, targets `y (n,)` and `tests (splits, n)`, which rows each split tests on."""

    def __init__(self, x: np.ndarray, y: np.ndarray, tests: np.ndarray):
        self.x, self.y, self.tests = x, y, tests

    def split(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Inputs and targets to train on, inputs and targets to test on."""
        test = self.tests[k]
        return self.x[~test], self.y[~test], self.x[test], self.y[test]


def path() -> Path:
    folder = os.environ.get("CLOSEDFORM_DATA")
    if not folder or not (Path(folder) / FILE).is_file():
        raise FileNotFoundError(f"{FILE} was not found: set CLOSEDFORM_DATA to the folder that holds it")
    return Path(folder) / FILE


def load(name: str) -> UCITable:
    """One of the tables by its short name: boston, concrete, energy, kin8nm, naval, power, protein, wine or yacht."""
    long = {short: long for long, short in NAMES.items()}.get(name)
    if long is None:
        raise ValueError(f"there is no table {name!r}; expected one of {', '.join(NAMES.values())}")
    with np.load(path(), allow_pickle=False) as file:
        x = file[f"{long}/x"].astype(np.float64)
        y = file[f"{long}/y"].astype(np.float64).reshape(-1)
        tests = np.unpackbits(file[f"{long}/test_mask"], axis=1)[:, : len(x)].astype(bool)
    return UCITable(x, y, tests)
