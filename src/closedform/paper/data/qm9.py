"""QM9: twelve properties of 130,831 small organic molecules, from their sorted Coulomb matrices.

>>> from closedform.paper.data import qm9
>>> split = qm9.load(source="synthetic", limit=100)
>>> split.x_train.shape, split.y_train.shape, split.names[:3]
(torch.Size([80, 435]), torch.Size([80, 12]), ('mu', 'alpha', 'homo'))

The molecules are those of Ramakrishnan et al. (2014) without the 3,054 whose geometry did not converge, as the PyPI package
`qm9pack` has them. They come from `qm9.npz` in the folder `CLOSEDFORM_DATA`, else from our cache, else from the package.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from . import store

MOLECULES = 130_831
SIZE = 29  # atoms of the largest molecule
BOHR = 0.529177210903  # in angstrom
STD_FLOOR = 0.05
SYNTHETIC = 2000

# name, unit, and the package's column
TARGETS = (
    ("mu", "Debye", "Dipole_debye"),
    ("alpha", "Bohr^3", "Polarizability_bohr3"),
    ("homo", "Hartree", "HOMO_au"),
    ("lumo", "Hartree", "LUMO_au"),
    ("gap", "Hartree", "HOMO_LUMO_gap_au"),
    ("r2", "Bohr^2", "R2_bohr2"),
    ("zpve", "Hartree", "ZPVE_au"),
    ("u0", "Hartree", "InternalEnergy_0K_au"),
    ("u298", "Hartree", "InternalEnergy_298K_au"),
    ("h298", "Hartree", "Enthalphy_298K_au"),
    ("g298", "Hartree", "GibbsFreeEnergy_298K_au"),
    ("cv", "cal/(mol K)", "Heatcapacity_Cv_cal_mol_K"),
)
NAMES = tuple(name for name, _, _ in TARGETS)
UNITS = tuple(unit for _, unit, _ in TARGETS)
CHARGE = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}


@dataclass(frozen=True)
class Molecules:
    """Molecules one after another; the atoms of all of them stand in `z` and `pos`, `n_atoms` for each."""

    n_atoms: np.ndarray
    """(N,)"""
    z: np.ndarray
    """Nuclear charges, (atoms,)"""
    pos: np.ndarray
    """Positions in angstrom, (atoms, 3)"""
    y: np.ndarray
    """Targets in the units named, (N, 12)"""
    index: np.ndarray
    """Number in the original data set, from 1, (N,)"""
    names: tuple[str, ...] = NAMES
    units: tuple[str, ...] = UNITS

    def __len__(self) -> int:
        return len(self.n_atoms)

    def take(self, which: np.ndarray) -> Molecules:
        """The molecules at these places, in this order."""
        last = np.cumsum(self.n_atoms, dtype=np.int64)
        counts = self.n_atoms[which].astype(np.int64)
        # every atom's place: its molecule's first atom, plus its number within the molecule
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        atoms = np.repeat((last - self.n_atoms)[which], counts) + within
        return Molecules(self.n_atoms[which], self.z[atoms], self.pos[atoms], self.y[which], self.index[which])


@dataclass(frozen=True)
class QM9Split(store.ThreeParts):
    """Standardised features and targets in float32. A prediction in file units is `p * y_std + y_mean`, in float64."""

    y_mean: Tensor
    y_std: Tensor
    names: tuple[str, ...]
    units: tuple[str, ...]


def load(seed: int = 0, limit: int | None = None, *, source: Literal["qm9", "synthetic"] = "qm9") -> QM9Split:
    """The data split 80/10/10 at random: 104,664 for training, 13,083 for validation, 13,084 for test.

    `limit` keeps only this many molecules, the first of the seed's permutation. `source="synthetic"` splits generated
    molecules instead, `limit` of them or 2,000; they do not depend on the seed.

    Features and targets are standardised with the training split's mean and standard deviation, with two exceptions. A
    feature that is constant in training is 0 everywhere. A feature's deviation is at least 0.05 hartree: the last rows of
    the matrices are zero in all but a few dozen molecules, which would stand at up to 260 deviations without the floor and
    stand below 60 with it. Of the 253 features that at least a tenth of the molecules have, the floor touches ten.

    The features are computed anew each time: that takes about a second, hardly longer than reading them from a file.
    """
    if source == "synthetic":
        pool = synthetic(SYNTHETIC if limit is None else limit)
    elif source == "qm9":
        pool = molecules()
    else:
        raise ValueError(f"source is {source!r}; expected 'qm9' or 'synthetic'")
    n = len(pool) if limit is None else limit
    if not 10 <= n <= len(pool):
        raise ValueError(f"limit is {limit}; expected 10 to {len(pool):,}")
    # numpy promises that the stream of RandomState, unlike that of a Generator, stays the same in all its versions
    order = np.random.RandomState(seed).permutation(len(pool))[:n]
    train, validation, test = (pool.take(part) for part in np.split(order, [n * 8 // 10, n * 8 // 10 + n // 10]))

    x = [coulomb(part.n_atoms, part.z, part.pos) for part in (train, validation, test)]
    constant = x[0].min(0) == x[0].max(0)
    mean, std = _moments(x[0])
    scale = np.where(constant, 0, 1 / np.maximum(std, STD_FLOOR))
    for part in x:  # in place, for the features are most of the memory
        part -= mean.astype(np.float32)
        part *= scale.astype(np.float32)

    y_mean, y_std = _moments(train.y)
    y_std[y_std == 0] = 1
    y = [((part.y - y_mean) / y_std).astype(np.float32) for part in (train, validation, test)]
    tensors = [torch.from_numpy(array) for array in (x[0], y[0], x[1], y[1], x[2], y[2], y_mean, y_std)]
    return QM9Split(*tensors, names=pool.names, units=pool.units)


def molecules() -> Molecules:
    """The 130,831 molecules."""
    if path := store.data_file("qm9.npz"):
        arrays = store.read(path)
        try:
            _check(arrays)
        except ValueError as error:
            raise ValueError(f"{path} is not QM9: {error}") from None
    else:
        arrays = store.cached("qm9-1.npz", _parse_package, _check)
    return Molecules(arrays["n_atoms"], arrays["z"], arrays["pos"], arrays["y"], arrays["index"])


def coulomb(n_atoms: np.ndarray, z: np.ndarray, pos: np.ndarray, size: int = SIZE) -> np.ndarray:
    """Sorted Coulomb matrices (Rupp et al. 2012), upper triangle with the diagonal: (N, size (size + 1) / 2) float32.

    In atomic units, positions being converted from angstrom to bohr: `0.5 Z_i^2.4` on the diagonal, `Z_i Z_j / |R_i - R_j|`
    beside it. Rows and columns stand in descending order of the rows' Euclidean norm, and zeros fill up to `size` atoms.
    Atoms whose norms are equal to the last bit keep their order. The features do not change when the molecule is moved or
    turned, or its atoms renumbered, except that rounding may exchange symmetric atoms, whose norms are all but equal.
    """
    n_atoms = np.asarray(n_atoms, np.int64)
    if len(z) != n_atoms.sum() or pos.shape != (len(z), 3):
        raise ValueError(f"n_atoms adds up to {n_atoms.sum()}, z is {z.shape} and pos is {pos.shape}")
    if len(n_atoms) and not 1 <= n_atoms.min() <= n_atoms.max() <= size:
        raise ValueError(f"molecules have {n_atoms.min()} to {n_atoms.max()} atoms; expected 1 to size = {size}")
    first = np.cumsum(n_atoms) - n_atoms
    column = np.zeros((size, size), np.int64)
    column[np.triu_indices(size)] = np.arange(size * (size + 1) // 2)
    x = np.zeros((len(n_atoms), size * (size + 1) // 2), np.float32)
    for which, n in _of_one_size(n_atoms):
        atoms = first[which, None] + np.arange(n)
        Z = z[atoms].astype(np.float64)
        C = Z[:, :, None] * Z[:, None, :] / _distances(pos[atoms] / BOHR)
        C[:, np.arange(n), np.arange(n)] = 0.5 * Z**2.4
        order = np.argsort(-np.einsum("bij,bij->bi", C, C), axis=1, kind="stable")
        i, j = np.triu_indices(n)
        x[which[:, None], column[i, j]] = np.take_along_axis(
            C.reshape(-1, n * n), order[:, i] * n + order[:, j], axis=1
        )
    return x


def synthetic(n: int, seed: int = 0) -> Molecules:
    """`n` generated molecules: 3 to 9 atoms of C, N, O and F within 2 to 14 of H, no two nearer than 1.1 angstrom.

    The targets have QM9's names and about its ranges, and are smooth functions of the geometry, with its identities (the
    gap is lumo less homo, the energies differ by thermal terms). They are not chemistry.
    """
    random = np.random.RandomState(seed)
    heavy, hydrogen = random.randint(3, 10, n), random.randint(2, 15, n)
    n_atoms = heavy + hydrogen
    # atoms take the places of a grid that are nearest to its middle, more or less, each moved by less than 0.2 angstrom
    grid = 1.5 * (np.stack(np.meshgrid(*[np.arange(4)] * 3), -1).reshape(-1, 3) - 1.5)
    places = np.argsort(np.linalg.norm(grid, axis=1) + random.rand(n, len(grid)), axis=1)[:, :SIZE]
    pos = grid[places] + random.uniform(-0.2, 0.2, (n, SIZE, 3)) / np.sqrt(3)
    z = random.choice([6, 7, 8, 9], p=[0.7, 0.12, 0.15, 0.03], size=(n, SIZE))
    z[np.arange(SIZE) >= heavy[:, None]] = 1
    present = np.arange(SIZE) < n_atoms[:, None]
    y = _synthetic_targets(z, pos, present)
    return Molecules(n_atoms.astype(np.uint8), z[present].astype(np.uint8), pos[present], y, np.arange(1, n + 1))


def _synthetic_targets(z: np.ndarray, pos: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Targets of padded molecules: (n, 12) from (n, size), (n, size, 3) and (n, size)."""
    per_element = {
        "charge": {1: 0.2, 6: -0.1, 7: -0.5, 8: -0.6, 9: -0.4},
        "volume": {1: 2.0, 6: 8.0, 7: 6.5, 8: 5.0, 9: 3.5},
        "energy": {1: -0.6, 6: -38.0, 7: -54.7, 8: -75.2, 9: -99.8},
    }
    charge, volume, energy = (np.where(present, _table(values)[z], 0.0) for values in per_element.values())
    count = present.sum(1)
    distances = _distances(pos)
    pair = present[:, :, None] & present[:, None, :] & ~np.eye(z.shape[1], dtype=bool)
    near = np.where(pair, np.exp(-((distances / 1.6) ** 2)), 0.0).sum(2)  # about the number of neighbours, halved
    bonds = np.where(pair, np.exp(-distances) * np.sqrt(z[:, :, None] * z[:, None, :]), 0.0).sum((1, 2))
    middle = (pos * present[..., None]).sum(1) / count[:, None]
    centred = pos - middle[:, None]

    mu = np.linalg.norm((charge[..., None] * centred).sum(1), axis=1)
    alpha = (volume * (1 + 0.2 * np.tanh(near - 1))).sum(1)
    homo = -0.24 + 0.05 * np.tanh((charge * near).sum(1))
    lumo = 0.01 + 0.1 * np.sin(bonds / count)
    r2 = 3 * (z * present * (centred**2).sum(2)).sum(1)
    zpve = 0.005 * near.sum(1)
    u0 = energy.sum(1) - 0.02 * bonds
    u298 = u0 + 0.002 + 0.0004 * count
    h298 = u298 + 0.000944
    g298 = h298 - 0.005 * np.log1p(r2)
    cv = (1 + np.exp(-near)).sum(1, where=present)
    return np.stack([mu, alpha, homo, lumo, lumo - homo, r2, zpve, u0, u298, h298, g298, cv], axis=1)


def _table(values: dict[int, float]) -> np.ndarray:
    """The values by nuclear charge."""
    table = np.zeros(max(values) + 1)
    table[list(values)] = list(values.values())
    return table


def _distances(pos: np.ndarray) -> np.ndarray:
    """(b, n, n) distances in float64 from positions (b, n, 3), with 1 on the diagonal."""
    squares = np.zeros((*pos.shape[:2], pos.shape[1]))
    for k in range(3):  # one coordinate at a time needs a third of the memory
        squares += np.subtract(pos[:, :, None, k], pos[:, None, :, k], dtype=np.float64) ** 2
    squares[:, np.arange(pos.shape[1]), np.arange(pos.shape[1])] = 1
    if not squares.all():
        raise ValueError("two atoms of one molecule are at the same place")
    return np.sqrt(squares, out=squares)


def _of_one_size(n_atoms: np.ndarray, chunk: int = 512) -> Iterator[tuple[np.ndarray, int]]:
    """Chunks of molecules with equally many atoms: their places, and the number of atoms."""
    for n in np.unique(n_atoms):
        which = np.flatnonzero(n_atoms == n)
        for start in range(0, len(which), chunk):
            yield which[start : start + chunk], int(n)


def _moments(a: np.ndarray, chunk: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the columns in float64, without a float64 copy of `a`."""
    mean = a.mean(0, dtype=np.float64)
    squares = np.zeros_like(mean)
    for start in range(0, len(a), chunk):
        squares += ((a[start : start + chunk] - mean) ** 2).sum(0)
    return mean, np.sqrt(squares / len(a))


def _check(arrays: store.Arrays) -> None:
    """Raise a ValueError unless these are the arrays of QM9."""
    wanted = {"n_atoms", "z", "pos", "y", "names", "units", "index"}
    if missing := sorted(wanted - set(arrays)):
        raise ValueError(f"it has no array {', '.join(missing)}")
    atoms = int(arrays["n_atoms"].sum(dtype=np.int64))
    shapes = {"n_atoms": (MOLECULES,), "z": (atoms,), "pos": (atoms, 3), "y": (MOLECULES, 12), "index": (MOLECULES,)}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"its {name} has shape {arrays[name].shape}; expected {shape}")
    for name, expected in (("names", NAMES), ("units", UNITS)):
        if tuple(arrays[name]) != expected:
            raise ValueError(f"its {name} are {', '.join(arrays[name])}; expected {', '.join(expected)}")


def _package_folder() -> Path:
    """The folder of the package's tables, found without importing it, for that needs setuptools."""
    spec = find_spec("qm9pack")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "QM9 is not on this machine: pip install 'closedform[qm9]', "
            "or set the environment variable CLOSEDFORM_DATA to a folder that has qm9.npz"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _parse_package() -> store.Arrays:
    """The content of the package's three tables."""
    parts = [_parse(path) for path in sorted(_package_folder().glob("qm9_part*.csv"))]
    if not parts:
        raise FileNotFoundError(
            f"the package qm9pack has no qm9_part*.csv in {_package_folder()}; expected version 1.0.3"
        )
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {**arrays, "names": np.array(NAMES), "units": np.array(UNITS)}


def _parse(path: Path) -> store.Arrays:
    n_atoms, index, elements, positions, y = [], [], [], [], []
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        at = {name: k for k, name in enumerate(next(rows))}
        targets = [at[column] for _, _, column in TARGETS]
        for row in rows:
            n_atoms.append(int(row[at["N_atoms"]]))
            index.append(int(row[at["Index"]]))
            elements.append(row[at["Elements"]])
            positions.append(row[at["XYZ_Ang"]])
            y.append([float(row[k]) for k in targets])
    # elements are written "['C','H']" and positions "[[x,y,z],[x,y,z]]": a column is parsed as one text, which is quick
    letters = np.frombuffer("".join(elements).encode(), np.uint8)
    charges = np.zeros(256, np.uint8)
    charges[[ord(symbol) for symbol in CHARGE]] = list(CHARGE.values())
    z = charges[letters]
    text = ",".join(positions).replace("[", "").replace("]", "")
    return {
        "n_atoms": np.array(n_atoms, np.uint8),
        "z": z[z > 0],
        "pos": np.fromstring(text, sep=",").astype(np.float32).reshape(-1, 3),
        "y": np.array(y),
        "index": np.array(index, np.int32),
    }
