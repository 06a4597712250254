"""Fields for `benchmarks/fields.py`: Darcy flow and Burgers' equation, solved here.

Darcy flow, `-div(a grad u) = 1` on the unit square with `u = 0` on its edge, from a permeability `a` of two values, as in
the Fourier neural operator's paper; finite volumes on cells, whose five-point system conjugate gradients solve. Burgers'
equation from its initial condition (`closedform.paper.data.burgers`), to the whole of space and time at once: the fields
have time along the first axis, and the initial condition is repeated along it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from closedform.paper.data import burgers, store

PERMEABILITY = (3.0, 12.0)
FINER = 2  # Darcy flow is solved on cells of half the size
BURGERS_POINTS = 1024
_TOLERANCE, _MOST_STEPS = 1e-10, 200


@dataclass(frozen=True)
class Fields:
    """Inputs and targets `(samples, 1, side, side)` of the three parts, in float32, scaled by the mean and the deviation of
    the training part; those of the targets turn predictions back."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    mean: float
    deviation: float

    def to(self, device: str) -> Fields:
        parts = ((x.to(device), y.to(device)) for x, y in (self.train, self.validation, self.test))
        return Fields(*parts, self.mean, self.deviation)


def load(name: str, counts: tuple[int, int, int], side: int, seed: int, device: str) -> Fields:
    """The fields of an equation, made on first use (on `device`) and kept in the cache; split by `seed` into training,
    validation and test."""
    samples = sum(counts)
    make = {"darcy": _darcy, "burgers": _burgers}[name]

    def check(arrays: store.Arrays) -> None:
        for key in ("x", "y"):
            if arrays[key].shape != (samples, side, side) or not np.isfinite(arrays[key]).all():
                raise ValueError(f"its {key} is not a finite array of shape {(samples, side, side)}")

    arrays = store.cached(f"fields-{name}-{samples}-{side}.npz", lambda: make(samples, side, device), check)
    order = np.random.RandomState(seed).permutation(samples)
    train, held, test = np.split(order, np.cumsum(counts)[:2])
    x, y = (torch.from_numpy(arrays[key])[:, None] for key in ("x", "y"))
    mean, deviation = float(y[train].mean()), float(y[train].std())
    x = (x - x[train].mean()) / x[train].std()
    y = (y - mean) / deviation
    return Fields(*((x[part], y[part]) for part in (train, held, test)), mean, deviation)


# ---- Darcy flow ----------------------------------------------------------------------------------


def _darcy(samples: int, side: int, device: str) -> store.Arrays:
    a, u = [], []
    for first in range(0, samples, 100):
        block = permeability(min(100, samples - first), FINER * side, seed=first).to(device)
        u.append(darcy(block, torch.ones_like(block))[:, ::FINER, ::FINER].float().cpu())
        a.append(block[:, ::FINER, ::FINER].float().cpu())
    return {"x": torch.cat(a).numpy(), "y": torch.cat(u).numpy()}


def permeability(samples: int, side: int, seed: int) -> Tensor:
    """12 where a Gaussian field of covariance `(-Laplace + 9)^-2` (no flow over the edge) is positive, and 3 elsewhere."""
    draws = torch.randn(samples, side, side, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    k = torch.arange(side, dtype=torch.float64)
    cells = (k + 0.5) / side
    cosines = torch.cos(math.pi * k[:, None] * cells) * torch.where(k > 0, math.sqrt(2), 1.0)[:, None]
    size = 1 / (math.pi**2 * (k[:, None] ** 2 + k**2) + 9)
    size[0, 0] = 0
    low, high = torch.tensor(PERMEABILITY, dtype=torch.float64)
    return torch.where(cosines.T @ (draws * size) @ cosines > 0, high, low)


def darcy(a: Tensor, f: Tensor) -> Tensor:
    """The solution of `-div(a grad u) = f` with `u = 0` on the edge of the unit square, at the centres of `N x N` cells;
    `a` and `f` are `(samples, N, N)` in float64.

    Between two cells stands the harmonic mean of their permeabilities, which is exact for layers. Conjugate gradients
    with the Laplacian's inverse, by sines, as the preconditioner: the number of steps depends on the ratio of the largest
    to the smallest permeability, and not on N.
    """
    if not bool((a > 0).all()):
        raise ValueError(f"a permeability is positive everywhere, and the least of these is {float(a.min()):g}")
    N = a.shape[-1]
    across = [_between(a), _between(a.mT).mT]
    k = torch.arange(1, N + 1, dtype=a.dtype, device=a.device)
    sines = torch.sin(math.pi * k[:, None] * (torch.arange(N, dtype=a.dtype, device=a.device) + 0.5) / N)
    sines = sines / sines.norm(dim=1, keepdim=True)
    eigenvalues = 4 * N**2 * torch.sin(math.pi * k / (2 * N)).square()
    laplacian = eigenvalues[:, None] + eigenvalues

    def apply(u: Tensor) -> Tensor:
        return N**2 * (_flux(u, across[0]) + _flux(u.mT, across[1].mT).mT)

    def precondition(r: Tensor) -> Tensor:
        return sines.T @ ((sines @ r @ sines.T) / laplacian) @ sines

    def dot(p: Tensor, q: Tensor) -> Tensor:
        return (p * q).sum((1, 2), keepdim=True)

    u, r = torch.zeros_like(f), f.clone()
    z = precondition(r)
    p, rz = z, dot(r, z)
    start = rz.clone()
    for _ in range(_MOST_STEPS):
        Ap = apply(p)
        step = rz / dot(p, Ap)
        u, r = u + step * p, r - step * Ap
        z = precondition(r)
        before, rz = rz, dot(r, z)
        if bool((rz <= _TOLERANCE**2 * start).all()):
            return u
        p = z + rz / before * p
    ratio = float(a.max() / a.min())
    raise ValueError(f"{_MOST_STEPS} steps are too few for permeabilities whose largest is {ratio:.0e} times the least")


def _between(a: Tensor) -> Tensor:
    """The permeability of the faces across the second axis, `(samples, N + 1, N)`: from the edge half a cell is passed."""
    inner = 2 * a[:, 1:] * a[:, :-1] / (a[:, 1:] + a[:, :-1])
    return torch.cat([2 * a[:, :1], inner, 2 * a[:, -1:]], 1)


def _flux(u: Tensor, face: Tensor) -> Tensor:
    """What flows out of each cell across the second axis, times the size of a cell."""
    edge = torch.zeros_like(u[:, :1])
    flow = face * torch.diff(torch.cat([edge, u, edge], 1), dim=1)
    return flow[:, :-1] - flow[:, 1:]


# ---- Burgers' equation ---------------------------------------------------------------------------


def _burgers(samples: int, side: int, device: str) -> store.Arrays:
    start = burgers.random_field(samples, BURGERS_POINTS, seed=1)
    every = BURGERS_POINTS // side
    u, rows = start, []
    for _ in range(side):
        u = burgers.solve(u, burgers.VISCOSITY, burgers.TIME / side, device=device)
        rows.append(u[:, ::every])
    x = np.repeat(start[:, None, ::every], side, 1)
    return {"x": x.astype(np.float32), "y": np.stack(rows, 1).astype(np.float32)}
