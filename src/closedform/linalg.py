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
from dataclasses import dataclass
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

    def moments(self) -> Moments:
        D, wide = self.X.shape[1], self.wide
        return Moments((wide.T @ wide)[:D, :D], (wide.T @ self.E)[:D], self.ee, self.n, self.bias)


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


def ridge(system: System, lam: float | Tensor) -> Solution:
    """Minimise `|E - X dW^T|^2 + lam |dW|^2` by the smaller of the two systems; `lam = 0.0` gives the minimum-norm
    least-squares solution."""
    if isinstance(lam, (int, float)) and lam == 0:
        return minimum_norm(system)
    if isinstance(lam, Tensor) and lam.ndim == 1:
        scale = lam.rsqrt()
        solution = ridge(_scaled(system, scale), 1.0)
        return Solution(solution.update * scale, solution.ok)
    solution = _dual(system, lam) if isinstance(system, Rows) else _primal(system, lam)
    return Solution(solution.update, solution.ok & (lam > 0)) if isinstance(lam, Tensor) else solution


def _scaled(system: System, scale: Tensor) -> System:
    if isinstance(system, Rows):
        return Rows(system.X * scale, system.E, system.n, system.bias)
    rows = system.rows
    return Moments(
        scale[:, None] * system.G * scale,
        scale[:, None] * system.C,
        system.ee,
        system.n,
        system.bias,
        None if rows is None else lambda: Rows(rows().X * scale, rows().E),
    )


def _dual(rows: Rows, lam: float | Tensor) -> Solution:
    X, E = rows.X, rows.E
    K = gram_lower(rows.wide)
    if may_branch(K) and _ill_conditioned(K, lam):
        return _svd(X, E, lam)
    A, ok = solve_shifted_(K, lam, E)
    return Solution(A.T @ X, ok)


def _primal(moments: Moments, lam: float | Tensor) -> Solution:
    G, C = moments.G, moments.C
    if may_branch(G) and _ill_conditioned(G, lam):
        if moments.rows is not None:
            rows = moments.rows()
            return _svd(rows.X, rows.E, lam)
        return _eigen(G, C, lam)
    dW, ok = solve_shifted_(G.clone(), lam, C)
    return Solution(dW.T, ok)


def _ill_conditioned(K: Tensor, lam: float | Tensor) -> bool:
    """Whether `(trace + lam) / lam`, which bounds the condition number from above, is past what Cholesky can do. NaN and
    inf are left to the guard."""
    trace = float(K.diagonal().detach().sum())
    return MAX_CONDITION * float(lam) < trace < float("inf")


def solve_shifted_(K: Tensor, lam: float | Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """`(K + lam I)^-1 B` by Cholesky, reading the lower triangle of K only, whose diagonal is overwritten.

    Where lambda is below the rounding error of K's diagonal it is raised to that error, or no factor would exist.
    """
    diagonal = K.diagonal()
    floor = 4 * K.shape[0] * torch.finfo(K.dtype).eps
    diagonal += (diagonal * floor).clamp(min=lam)
    L, info = torch.linalg.cholesky_ex(K)
    return cholesky_solve(B, L), info == 0


def _svd(X: Tensor, E: Tensor, lam: float | Tensor) -> Solution:
    """By the singular values of X itself, whose condition number is the root of the Gram matrix's."""
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    return Solution(
        ((S / (S * S + lam))[:, None] * (U.T @ E)).T @ Vh, torch.ones((), dtype=torch.bool, device=X.device)
    )


def _eigen(G: Tensor, C: Tensor, lam: float | Tensor) -> Solution:
    """The same from moments alone: eigenvalues at rounding level are taken for zero, and so is what they multiply."""
    w, V = torch.linalg.eigh(G)
    noise = w[-1] * G.shape[0] * torch.finfo(G.dtype).eps
    inverse = torch.where(w > noise, 1 / (w.clamp(min=0) + lam), torch.zeros_like(w))
    return Solution((V @ (inverse[:, None] * (V.T @ C))).T, torch.ones((), dtype=torch.bool, device=G.device))


def minimum_norm(system: System) -> Solution:
    """`dW = E^T (X^+)^T`: least squares of smallest norm, directions below rounding error left alone.

    The only solve that waits for a device (its singular values are found by iteration)."""
    if isinstance(system, Moments):
        if system.rows is None:
            return _eigen(system.G, system.C, 0.0)
        system = system.rows()
    X, E = system.X, system.E
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    noise = S[0] * max(X.shape) * torch.finfo(X.dtype).eps
    inverse = torch.where(S > noise, 1 / S, torch.zeros_like(S))
    return Solution((inverse[:, None] * (U.T @ E)).T @ Vh, torch.ones((), dtype=torch.bool, device=X.device))


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
