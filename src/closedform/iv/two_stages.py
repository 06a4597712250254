"""Two-stage least squares of rewards on differences of features, in closed form from moments.

Stage one regresses the differences psi on the instruments' features phi, stage two the rewards on what it predicts:

    W = (S_pp + beta_1)^-1 S_pd ,    w = (W^T S_pp W + beta_2)^-1 W^T S_pr

where `S_pp = phi^T phi`, `S_pd = phi^T psi` and `S_pr = phi^T r`. With the value's own features for instruments, and no
ridge, this is the least-squares temporal difference estimate `(phi^T psi)^-1 phi^T r`. All of it is made of sums over rows,
so a bootstrap over groups of rows weighs the groups' sums.

A bootstrap solves it some hundred times, with systems that are too ill-conditioned for a Cholesky factor. In the coordinates
where both systems of all rows are the identity, those of a replicate are near it: `replicates` changes to them once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..solver import linalg
from ..solver.systems import Moments

CHUNK = 20  # replicates that are solved at a time


@dataclass
class StageSums:
    """The sums of each group of rows, with a leading axis of groups."""

    pp: Tensor
    pd: Tensor
    pr: Tensor
    rows: Tensor  # in each group

    @staticmethod
    def of(phi: Tensor, psi: Tensor, rewards: Tensor, group: Tensor, groups: int) -> StageSums:
        """Of rows `phi (n, k)`, `psi (n, d)` and `rewards (n, 1)`, whose group is a number from 0 on."""
        order = group.argsort(stable=True)
        counts = torch.bincount(group, minlength=groups)
        blocks = [part.split(counts.tolist()) for part in (phi[order], psi[order], rewards[order])]
        pp = torch.stack([p.T @ p for p in blocks[0]])
        pd, pr = (torch.stack([p.T @ q for p, q in zip(blocks[0], other)]) for other in blocks[1:])
        return StageSums(pp, pd, pr, counts.to(phi.dtype))

    def weighted(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
        """The sums of all rows with a weight for each group `(groups,)`, and the number of rows so weighted."""
        sums = (torch.tensordot(weight, part, 1) for part in (self.pp, self.pd, self.pr))
        return *sums, float(weight @ self.rows)  # pyright: ignore[reportReturnType]


def solve(sums: StageSums, weight: Tensor, beta_1: float, beta_2: Tensor) -> Tensor:
    """`w (d,)`; `beta_1` and `beta_2 (d,)` are a row."""
    pp, pd, pr, n = sums.weighted(weight)
    W = linalg.ridge(_moments(pp, pd, n), beta_1 * n).update  # (d, k)
    return linalg.ridge(_moments(W @ pp @ W.T, W @ pr, n), beta_2 * n).update[0]


def replicates(sums: StageSums, weights: Tensor, beta_1: float, beta_2: Tensor) -> Tensor:
    """`solve` for many weights of the groups `(replicates, groups)`: `(replicates, d)`."""
    pp, pd, _, n = sums.weighted(torch.ones_like(weights[0]))
    size, V = torch.linalg.eigh(pp)
    size = size.clamp(min=0) + beta_1 * n
    T_1 = V * size.rsqrt()
    W = T_1.T @ pd  # stage one of all rows, where its system is the identity
    scale = (beta_2 * n).rsqrt()
    level, V = torch.linalg.eigh(scale[:, None] * (W.T @ (T_1.T @ pp @ T_1) @ W) * scale)
    sound = level > linalg.noise(level[-1], len(level))
    T_2 = scale[:, None] * V[:, sound] * (level[sound] + 1).rsqrt()
    changed = StageSums(T_1.T @ sums.pp @ T_1, T_1.T @ sums.pd @ T_2, T_1.T @ sums.pr, sums.rows)
    ridges = beta_1 / size, T_2.T @ (beta_2[:, None] * T_2)
    parts = [_replicates(changed, part, *ridges) for part in weights.split(CHUNK)]
    w, ok = (torch.cat(column) for column in zip(*parts))
    w = w @ T_2.T
    for k in (~ok).nonzero()[:, 0].tolist():
        w[k] = solve(sums, weights[k], beta_1, beta_2)
    return w


def _replicates(sums: StageSums, weights: Tensor, beta_1: Tensor, beta_2: Tensor) -> tuple[Tensor, Tensor]:
    """By Cholesky factors, and where there were any; `beta_1` is a diagonal and `beta_2` a matrix."""
    pp, pd, pr = (torch.tensordot(weights, part, 1) for part in (sums.pp, sums.pd, sums.pr))
    n = (weights @ sums.rows)[:, None, None]
    L, failed_1 = torch.linalg.cholesky_ex(pp + n * beta_1.diag())
    W = torch.cholesky_solve(pd, L)
    L, failed_2 = torch.linalg.cholesky_ex(W.mT @ (pp @ W) + n * beta_2)
    w = torch.cholesky_solve(W.mT @ pr, L)[..., 0]
    return w, (failed_1 == 0) & (failed_2 == 0) & w.isfinite().all(1)


def _moments(G: Tensor, C: Tensor, n: float) -> Moments:
    return Moments((G + G.T) / 2, C, torch.zeros(C.shape[1], dtype=C.dtype), n)
