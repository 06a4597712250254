"""The linear systems of a last layer: which one is factored, how, and what happens when it cannot be.

For extended features `X (n, D)` (a column of ones for the bias), residuals `E (n, o)` of the old layer and lambda, the
update of the layer `W (o, D)` is the minimiser of `|E - X dW^T|^2 + lam |dW|^2` (paper eq. 2 and 14 in residual form)::

    dual    (n <= D):  dW = ((X X^T + lam I_n)^-1 E)^T X
    primal  (n >  D):  dW = ((X^T X + lam I_D)^-1 X^T E)^T

A vector lambda is a change of units: `X / sqrt(lam)`, solved with lambda 1, and the update divided by `sqrt(lam)`.

>>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
>>> E = torch.tensor([[3.0], [5.0]], dtype=torch.float64)
>>> ridge(Rows(X, E), lam=1.0).update          # 3/(1+1), 2*5/(4+1)
tensor([[1.5000, 2.0000]], dtype=torch.float64)

Everything is differentiable in the residuals (and in the features, where anybody wants that), and runs without a graph
break or a wait for the device. The system is float64 whatever the features are: in float32 a factor of a matrix of
condition 1e6 can exist and still be useless. On data-centre GPUs that costs little; on a CPU it halves the speed of the
products, which is the price of never being wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Union

import torch
from torch import Tensor

# Above this bound on (largest eigenvalue + lam) / lam a Cholesky factor loses more than half of float64's digits, and the
# singular value decomposition, which does not square the condition number, takes over (where a branch is possible).
MAX_CONDITION = 1e8


def solve_dtype(device: torch.device) -> torch.dtype:
    """The dtype of every solve: float64, but float32 on devices that have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def may_branch(tensor: Tensor) -> bool:
    """Whether a look at values is free: in eager mode on the CPU. Elsewhere a branch becomes a mask."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


@dataclass
class Rows:
    """A batch as rows: features `X (n, D)` and residuals `E (n, o)`, both scaled by the root of the sample weight.

    n: the batch size that `per_sample` sees, the number of samples or the sum of their weights.
    padded: X with columns of zeros up to an even width, which the fast products of a GPU want.
    """

    X: Tensor
    E: Tensor
    n: int | float | Tensor = 0
    bias: bool = False
    padded: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.X.dtype

    @property
    def wide(self) -> Tensor:
        return self.X if self.padded is None else self.padded

    @property
    def C(self) -> Tensor:
        return self.X.T @ self.E

    @property
    def ee(self) -> Tensor:
        return self.E.square().sum(0)

    def diagonal(self) -> Tensor:
        """The diagonal of `X^T X`."""
        return self.X.square().sum(0)

    def gram(self) -> Tensor:
        D, wide = self.X.shape[1], self.wide
        return (wide.T @ wide)[:D, :D]

    def moments(self) -> Moments:
        return Moments(self.gram(), (self.wide.T @ self.E)[: self.X.shape[1]], self.ee, self.n, self.bias)


@dataclass
class ClassRows(Rows):
    """Rows whose own class counts `k` times: the squared residual `E[i, c]` has the weight k where `label[i]` is c."""

    label: Tensor = field(default_factory=lambda: torch.empty(0))
    k: float = 1.0

    @property
    def weighted(self) -> Tensor:
        """The residuals times their weights."""
        own = self.label[:, None]
        return self.E.scatter_add(1, own, (self.k - 1) * self.E.gather(1, own))

    @property
    def C(self) -> Tensor:
        return self.X.T @ self.weighted

    @property
    def ee(self) -> Tensor:
        return (self.E * self.weighted).sum(0)


@dataclass
class Moments:
    """A batch as moments: `G = X^T X (D, D)`, `C = X^T E (D, o)` and `ee (o,)`, the squared residuals summed."""

    G: Tensor
    C: Tensor
    ee: Tensor
    n: int | float | Tensor = 0
    bias: bool = False
    rows: Callable[[], Rows] | None = None  # where the rows are still at hand, for the route that needs them

    @property
    def dtype(self) -> torch.dtype:
        return self.G.dtype

    def diagonal(self) -> Tensor:
        return self.G.diagonal()

    def moments(self) -> Moments:
        return self


System = Union[Rows, Moments]


class Solution(NamedTuple):
    update: Tensor  # (o, D)
    ok: Tensor  # 0-dim bool: the factor exists; finiteness of the update is for the caller to check


class Factor(NamedTuple):
    """A factored system, for as many residuals as there are."""

    solve: Callable[[System], Tensor]  # the update (o, D) for another system with the same features
    ok: Tensor  # 0-dim bool: the factor exists


def ridge(system: System, lam: float | Tensor) -> Solution:
    """Minimise `|E - X dW^T|^2 + lam |dW|^2` by the smaller of the two systems; `lam = 0.0` gives the minimum-norm
    least-squares solution."""
    solve, ok = factor(system, lam)
    return Solution(solve(system), ok)


def factor(system: System, lam: float | Tensor) -> Factor:
    """What `ridge` does before it looks at the residuals."""
    if isinstance(lam, (int, float)) and lam == 0:
        return minimum_norm(system)
    if isinstance(lam, Tensor) and lam.ndim == 1:
        scale = lam.rsqrt()
        inner = factor(scaled(system, scale), 1.0)
        return Factor(lambda other: inner.solve(scaled(other, scale)) * scale, inner.ok)
    found = _dual(system, lam) if isinstance(system, Rows) else _primal(system, lam)
    return Factor(found.solve, found.ok & (lam > 0)) if isinstance(lam, Tensor) else found


def scaled(system: System, scale: Tensor) -> System:
    """The system in other units: every feature multiplied by its scale."""
    if isinstance(system, Rows):
        return replace(system, X=system.X * scale, padded=None)
    rows = system.rows
    return Moments(
        scale[:, None] * system.G * scale,
        scale[:, None] * system.C,
        system.ee,
        system.n,
        system.bias,
        None if rows is None else lambda: Rows(rows().X * scale, rows().E),
    )


def rows_of(system: System) -> Rows:
    """The rows behind a system that has them."""
    if isinstance(system, Rows):
        return system
    assert system.rows is not None
    return system.rows()


def _dual(rows: Rows, lam: float | Tensor) -> Factor:
    X = rows.X
    K = gram_lower(rows.wide)
    if may_branch(K) and ill_conditioned(K, lam):
        return _svd(X, lam)
    L, ok = factor_shifted_(K, lam)
    return Factor(lambda other: cholesky_solve(rows_of(other).E, L).T @ X, ok)


def _primal(moments: Moments, lam: float | Tensor) -> Factor:
    G = moments.G
    if may_branch(G) and ill_conditioned(G, lam):
        return _eigen(G, lam) if moments.rows is None else _svd(moments.rows().X, lam)
    L, ok = factor_shifted_(G.clone(), lam)
    return Factor(lambda other: cholesky_solve(other.C, L).T, ok)


def ill_conditioned(K: Tensor, lam: float | Tensor) -> bool:
    """Whether `(trace + lam) / lam`, which bounds the condition number from above, is past what Cholesky can do. NaN and
    inf are left to the guard."""
    trace = float(K.diagonal().detach().sum())
    return MAX_CONDITION * float(lam) < trace < float("inf")


def factor_shifted_(K: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of `K + lam I`, reading the lower triangle of K only, whose diagonal is overwritten.

    Where lambda is below the rounding error of K's diagonal it is raised to that error, or no factor would exist.
    """
    diagonal = K.diagonal()
    floor = 4 * K.shape[0] * torch.finfo(K.dtype).eps
    diagonal += (diagonal * floor).clamp(min=lam)
    L, info = torch.linalg.cholesky_ex(K)
    return L, info == 0


def solve_shifted_(K: Tensor, lam: float | Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """`(K + lam I)^-1 B`; K as for `factor_shifted_`."""
    L, ok = factor_shifted_(K, lam)
    return cholesky_solve(B, L), ok


def _yes(device: torch.device) -> Tensor:
    return torch.ones((), dtype=torch.bool, device=device)


def _svd(X: Tensor, lam: float | Tensor) -> Factor:
    """By the singular values of X itself, whose condition number is the root of the Gram matrix's."""
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    filtered = (S / (S * S + lam))[:, None]
    return Factor(lambda other: (filtered * (U.T @ rows_of(other).E)).T @ Vh, _yes(X.device))


def _eigen(G: Tensor, lam: float | Tensor) -> Factor:
    """The same from moments alone: eigenvalues at rounding level are taken for zero, and so is what they multiply."""
    w, V = torch.linalg.eigh(G)
    noise = w[-1] * G.shape[0] * torch.finfo(G.dtype).eps
    inverse = torch.where(w > noise, 1 / (w.clamp(min=0) + lam), torch.zeros_like(w))[:, None]
    return Factor(lambda other: (V @ (inverse * (V.T @ other.C))).T, _yes(G.device))


def minimum_norm(system: System) -> Factor:
    """`dW = E^T (X^+)^T`: least squares of smallest norm, directions below rounding error left alone.

    The only solve that waits for a device (its singular values are found by iteration)."""
    if isinstance(system, Moments) and system.rows is None:
        return _eigen(system.G, 0.0)
    X = rows_of(system).X
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    noise = S[0] * max(X.shape) * torch.finfo(X.dtype).eps
    inverse = torch.where(S > noise, 1 / S, torch.zeros_like(S))[:, None]
    return Factor(lambda other: (inverse * (U.T @ rows_of(other).E)).T @ Vh, _yes(X.device))


# ---- The two products and solves where a GPU's libraries leave time on the table -----------------

_BLOCK = 32  # diagonal blocks inverted by one batched triangular solve


def gram_lower(X: Tensor) -> Tensor:
    """The lower triangle of `X X^T`; what stands above it is not defined.

    Large products on an accelerator are cut into strips that skip most of the upper half (there is no `syrk` in torch).
    """
    if X.device.type == "cpu" or X.shape[0] < 512 or X.requires_grad or torch.compiler.is_compiling():
        return X @ X.T
    return _gram_strips(X)


def _gram_strips(X: Tensor, strips: int = 4) -> Tensor:
    n = X.shape[0]
    K = X.new_empty(n, n)
    edges = [n * i // strips for i in range(strips + 1)]
    for low, high in zip(edges, edges[1:]):
        torch.mm(X[low:high], X[:high].T, out=K[low:high, :high])
    return K


def cholesky_solve(B: Tensor, L: Tensor) -> Tensor:
    """`(L L^T)^-1 B`. On an accelerator by blocks: substitution with few right-hand sides is one long chain of tiny
    operations there, while inverting diagonal blocks (of the factor, not of the system) is a handful of batched products.
    """
    plain = L.device.type == "cpu" or L.shape[0] <= 640 or torch.compiler.is_compiling()
    if plain or L.requires_grad or B.requires_grad:
        return torch.cholesky_solve(B, L)
    return _blocked_cholesky_solve(B, L, panel=512 if L.shape[0] <= 2048 else 1024)


def _blocked_cholesky_solve(B: Tensor, L: Tensor, panel: int) -> Tensor:
    """Substitution over panels, each by the inverse of its diagonal block."""
    m, size = L.shape[0], _BLOCK
    while size < min(m, panel):
        size *= 2
    pad = -m % size
    if pad:
        L = torch.nn.functional.pad(L, (0, pad, 0, pad))
        L.diagonal()[m:] = 1
        B = torch.nn.functional.pad(B, (0, 0, 0, pad))
    inverse = _invert_diagonal_blocks(L, size)
    X = torch.empty_like(B)
    panels = [slice(low, low + size) for low in range(0, m + pad, size)]
    for p in panels:
        rest = B[p] - L[p, : p.start] @ X[: p.start] if p.start else B[p]
        torch.mm(inverse[p, p], rest, out=X[p])
    for p in reversed(panels):
        rest = X[p] - L[p.stop :, p].T @ X[p.stop :] if p.stop < m + pad else X[p].clone()
        torch.mm(inverse[p, p].T, rest, out=X[p])
    return X[:m]


def _invert_diagonal_blocks(L: Tensor, size: int) -> Tensor:
    """A matrix whose `size x size` diagonal blocks are the inverses of those of the lower triangular L, by doubling:
    `[[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]`."""
    inverse = torch.zeros_like(L, memory_format=torch.contiguous_format)
    width = _BLOCK
    eye = torch.eye(width, dtype=L.dtype, device=L.device)
    _blocks(inverse, width).copy_(torch.linalg.solve_triangular(_blocks(L, width), eye, upper=False))
    while width < size:
        A, C = _blocks(inverse, width, every=2), _blocks(inverse, width, every=2, first=(width, width))
        B = _blocks(L, width, every=2, first=(width, 0))
        _blocks(inverse, width, every=2, first=(width, 0)).copy_(torch.bmm(C, torch.bmm(B, A))).neg_()
        width *= 2
    return inverse


def _blocks(matrix: Tensor, width: int, every: int = 1, first: tuple[int, int] = (0, 0)) -> Tensor:
    """The `width x width` blocks from `first` on down the diagonal, every k-th of them, as one batched view."""
    down, right = matrix.stride()
    count = matrix.shape[0] // (width * every)
    offset = matrix.storage_offset() + first[0] * down + first[1] * right
    return matrix.as_strided((count, width, width), (every * width * (down + right), down, right), offset)
