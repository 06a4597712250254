"""Theorem 5.1: the loss with a solved last layer as a functional of the features themselves (paper, appendix C.1).

`L*(phi) = min_W |Y - phi W^T|^2 + beta |W|^2` is not convex in `phi`, and has critical points that are no minima.

>>> Y = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
>>> start, end = segment(Y, d=1)
>>> middle = (start + end) / 2
>>> [round(loss(phi, Y, beta=0.5).item(), 6) for phi in (start, middle, end)]   # higher in the middle than at both ends
[0.6, 1.0, 0.6]
>>> gradient(middle, Y, beta=0.5).norm().item()                           # where the gradient is zero
0.0

Since `L*(phi) <= L(0, phi) = |Y|^2` with equality only where `phi^T Y = 0`, the critical points that the paper exhibits
(zero features, features orthogonal to the targets) are global *maxima* of `L*`. For beta = 0 there are saddle points too:
features that hold some singular directions of Y and are orthogonal to the others (`saddle`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class _Decomposed(NamedTuple):
    """`phi = U diag(S) V^T`, without the directions that are rounding errors: the one place where the rank is decided."""

    U: Tensor
    S: Tensor
    V: Tensor

    def inverse(self, beta: float) -> Tensor:
        """`(phi^T phi + beta I)^-1 phi^T (d, n)`, the transpose of the paper's `Phi_beta^+`."""
        return (self.V * (self.S / (self.S**2 + beta))) @ self.U.T


def checked(phi: Tensor, Y: Tensor, beta: float = 0.0) -> tuple[Tensor, Tensor]:
    """Both in float64, or a `ValueError` that says what is wrong."""
    if phi.ndim != 2 or Y.ndim != 2 or len(phi) != len(Y):
        raise ValueError(f"phi must be (n, d) and Y (n, o), got {tuple(phi.shape)} and {tuple(Y.shape)}")
    if not 0 <= beta < float("inf"):
        raise ValueError(f"beta must be zero or positive and finite, got {beta}")
    return phi.double(), Y.double()


def best_layer(phi: Tensor, Y: Tensor, beta: float = 0.0) -> Tensor:
    """`W*(phi) (o, d)`, eq. 2; for beta = 0 the smallest solution, `Y^T (phi^+)^T`. It can be differentiated in phi, for
    beta = 0 only where the rank is full."""
    return _fit(*checked(phi, Y, beta), beta)[1]


def _fit(phi: Tensor, Y: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """The residual and the layer. The residual is not taken from the layer, which is huge where a direction is weak."""
    if phi.requires_grad:  # singular vectors have no derivative where singular values coincide; solutions have
        W = _differentiable(phi, Y, beta)
        return Y - phi @ W.T, W
    U, S, V = _decomposed(phi)
    coefficients, shrunk = U.T @ Y, S**2 + beta
    return Y - U @ ((S**2 / shrunk)[:, None] * coefficients), ((S / shrunk)[:, None] * coefficients).T @ V.T


def _differentiable(phi: Tensor, Y: Tensor, beta: float) -> Tensor:
    n, d = phi.shape
    if beta == 0:
        return (torch.linalg.pinv(phi) @ Y).T
    if n < d:
        return torch.linalg.solve(phi @ phi.T + beta * _eye(phi, n), Y).T @ phi
    return torch.linalg.solve(phi.T @ phi + beta * _eye(phi, d), phi.T @ Y).T


def loss(phi: Tensor, Y: Tensor, beta: float = 0.0) -> Tensor:
    """`L*(phi)`, eq. 36."""
    E, W = _fit(*checked(phi, Y, beta), beta)
    return E.square().sum() + beta * W.square().sum()


def gradient(phi: Tensor, Y: Tensor, beta: float = 0.0) -> Tensor:
    """The functional gradient `(n, d)`, eq. 38 in its first form: the residual times the layer, with the layer held."""
    E, W = _fit(*checked(phi, Y, beta), beta)
    return -2 * E @ W


def gradient_by_parts(phi: Tensor, Y: Tensor, beta: float = 0.0) -> Tensor:
    """The same by eq. 42, and for beta = 0 by eq. 43: only the attainable part of Y drives the features."""
    phi, Y = checked(phi, Y, beta)
    parts, inverse = split(phi, Y), _decomposed(phi).inverse(beta)
    if beta == 0:
        return -2 * parts.unattainable @ parts.attainable.T @ inverse.T
    return 2 * (phi @ inverse - _eye(phi, len(phi))) @ Y @ parts.attainable.T @ inverse.T


class TargetSplit(NamedTuple):
    """`Y = attainable + unattainable`, both `(n, o)`."""

    attainable: Tensor
    unattainable: Tensor

    @property
    def share(self) -> float:
        """`|Y_star|^2 / |Y|^2`; of nothing, nothing is missing: 1 for Y = 0."""
        star, perp = float(self.attainable.square().sum()), float(self.unattainable.square().sum())
        return star / (star + perp) if star + perp > 0 else 1.0


def split(phi: Tensor, Y: Tensor) -> TargetSplit:
    """Eq. 39 and 40: the projection of Y onto the columns of the features, and the rest."""
    phi, Y = checked(phi, Y)
    U = _decomposed(phi).U
    star = U @ (U.T @ Y)
    return TargetSplit(star, Y - star)


def _decomposed(phi: Tensor) -> _Decomposed:
    U, S, Vh = torch.linalg.svd(phi, full_matrices=False)
    keep = S > noise(S, phi)
    return _Decomposed(U[:, keep], S[keep], Vh[keep].T)


def orthogonal(Y: Tensor, d: int) -> Tensor:
    """Features `(n, d)` of the largest possible rank that are orthogonal to every output: a maximum of `L*`.

    Where Y leaves no room (rank n) they are zero."""
    Y = _targets(Y)
    U = torch.linalg.svd(Y, full_matrices=True)[0]
    room = U[:, _rank(Y) :]
    phi = Y.new_zeros(Y.shape[0], d)
    count = min(d, room.shape[1])
    phi[:, :count] = room[:, :count]
    return phi


def saddle(Y: Tensor, d: int, held: int) -> Tensor:
    """Features that hold the first `held` singular directions of Y and are orthogonal to the others: for beta = 0 a critical
    point that is neither a minimum nor a maximum when `0 < held < rank Y` (and `held < d`).

    The last singular value held has to exceed the first that is not: where the two are equal a turn from the one direction
    to the other changes nothing, and where Y leaves no other room nothing makes the loss higher."""
    Y = _targets(Y)
    rank = _rank(Y)
    if not 0 < held < min(rank, d):
        raise ValueError(f"held must be between 1 and min(rank Y, d) - 1 = {min(rank, d) - 1}, got {held}")
    U, S, _ = torch.linalg.svd(Y, full_matrices=True)
    if not S[held - 1] - S[held] > noise(S, Y):
        raise ValueError(
            f"singular values {held} and {held + 1} of Y are equal ({float(S[held]):.6g}): no saddle point"
        )
    basis = torch.cat([U[:, :held], U[:, rank:]], 1)
    phi = Y.new_zeros(Y.shape[0], d)
    count = min(d, basis.shape[1])
    phi[:, :count] = basis[:, :count]
    return phi


def segment(Y: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """The ends of a line along which `L*` is lower at both ends than in the middle, for every beta >= 0 and `Y != 0`.

    The middle is `orthogonal(Y, d)`, and the ends lie a multiple of Y's first singular direction to either side of its first
    feature. Where Y leaves room, the rank is the same along the whole line, so that `L*` is smooth there even for beta = 0.
    """
    Y = _targets(Y)
    if not bool((Y != 0).any()):
        raise ValueError("for Y = 0 the loss is zero everywhere, and convex")
    middle = orthogonal(Y, d)
    offset = torch.zeros_like(middle)
    offset[:, 0] = torch.linalg.svd(Y, full_matrices=False)[0][:, 0]
    return middle - offset, middle + offset


def _targets(Y: Tensor) -> Tensor:
    if Y.ndim != 2:
        raise ValueError(f"Y must be (n, o), got {tuple(Y.shape)}")
    return Y.double()


def _rank(Y: Tensor) -> int:
    S = torch.linalg.svdvals(Y)
    return int((S > noise(S, Y)).sum())


def noise(S: Tensor, matrix: Tensor) -> Tensor:
    """The rounding error of the singular values; zero where there are none."""
    return S.sum() * 0 if S.numel() == 0 else S[0] * max(matrix.shape) * torch.finfo(S.dtype).eps


def _eye(like: Tensor, size: int) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
