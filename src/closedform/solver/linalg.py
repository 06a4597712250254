"""Least squares with a penalty: what is factored once the route is chosen, and what happens when it cannot be.

For extended features `X (n, D)` (a column of ones for the bias), residuals `E (n, o)` of the old layer and lambda, the
update of the layer `W (o, D)` is the minimiser of `|E - X dW^T|^2 + lam |dW|^2` (paper eq. 2 and 14 in residual form)::

    dual    (rows):     dW = ((X X^T + lam I_n)^-1 E)^T X
    primal  (moments):  dW = ((X^T X + lam I_D)^-1 X^T E)^T

A lambda with one value a feature stands on the diagonal of the primal; in the dual it is a change of units, `X / sqrt(lam)`
solved with lambda 1, and the update divided by `sqrt(lam)`. Everything takes a leading model axis, with a lambda a model.

>>> X = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
>>> E = torch.tensor([[3.0], [5.0]], dtype=torch.float64)
>>> ridge(Rows(X, E), lam=1.0).update          # 3/(1+1), 2*5/(4+1)
tensor([[1.5000, 2.0000]], dtype=torch.float64)

Everything is differentiable in the residuals (and in the features, where anybody wants that), and runs without a graph
break or a wait for the device. The system is float64 (see `route.precision`): in float32 a factor of a matrix of condition
1e6 can exist and still be useless. On data-centre GPUs that costs little; on a CPU it halves the speed of the products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import elimination, route
from .systems import Moments, Rows, System, rows_of


class Solved(NamedTuple):
    update: Tensor  # (..., o, D)
    ok: Tensor  # () or (M,) bool: the factor exists; finiteness of the update is for the guard to check


_COPIES = 4  # of the residuals, that are there at once while a system is solved for them
# A factored system: from another one with the same features and other residuals to its solution
Factor = Callable[[System], Solved]
Shift = tuple[Tensor, Tensor]  # a solution, and whether the factor exists


def ridge(system: System, lam: float | Tensor) -> Solved:
    """Minimise `|E - X dW^T|^2 + lam |dW|^2` for a system in rows or moments, as `Batch.system` and `systems.least_squares`
    choose them; `lam = 0.0` gives the minimum-norm least-squares solution."""
    return factor(system, lam)(system)


def factor(system: System, lam: float | Tensor) -> Factor:
    """What `ridge` does before it looks at the residuals.

    lam: a number, a tensor `()` or `(M,)`, or one value a feature, `(D,)` or `(M, D)`."""
    if isinstance(lam, (int, float)) and lam == 0:
        return minimum_norm(system)
    return _dual(system, lam) if isinstance(system, Rows) else _primal(system, lam)


def path(system: System, units: Tensor, ratios: Tensor) -> Factor:
    """The solves for several lambdas `ratios (K,) * units (D,)` of features that they share: one Gram product for all, and
    residuals of their own, `(K, n, o)`."""
    scale = units.rsqrt()
    inner = system.scaled(scale)
    K = gram_lower(inner.wide) if isinstance(inner, Rows) else inner.G
    solve = shifted_(K.expand(len(ratios), *K.shape).clone(), ratios)

    def solved(other: System) -> Solved:
        if isinstance(inner, Rows):
            A, ok = solve(rows_of(other).E)
            return Solved((A.mT @ inner.X) * scale, ok)
        dW, ok = solve(scale[:, None] * other.C)
        return Solved(dW.mT * scale, ok)

    return solved


def _by_feature(system: System, lam: float | Tensor) -> bool:
    models = system.X.ndim - 2 if isinstance(system, Rows) else system.G.ndim - 2
    return isinstance(lam, Tensor) and lam.ndim == models + 1


def _dual(rows: Rows, lam: float | Tensor) -> Factor:
    if _by_feature(rows, lam):
        assert isinstance(lam, Tensor)
        scale = lam.rsqrt()
        inner = _dual(rows.scaled(scale), 1.0)

        def rescaled(other: System) -> Solved:
            update, ok = inner(other)  # which looks at the residuals alone
            units = scale.unsqueeze(-2)
            if torch.compiler.is_compiling() or update.requires_grad or units.requires_grad:
                return Solved(update * units, ok)
            return Solved(update.mul_(units), ok)  # of many outputs every copy counts

        return rescaled
    X, K = rows.X, gram_lower(rows.wide)
    bad = _ill_conditioned(K, lam)
    if bad is not None and K.ndim == 2:
        return _svd(X, lam)
    solve = shifted_(K, lam)

    def solved(other: System) -> Solved:
        return _by_outputs(solve, rows_of(other).E, X)

    return solved if bad is None else _some_alone(rows, lam, bad, solved)


def _by_outputs(solve: Callable[[Tensor], Shift], E: Tensor, X: Tensor) -> Solved:
    """`((K + lam I)^-1 E)^T X`, for very many outputs some of them at a time: the solution has the size of the residuals."""
    n, o = E.shape[-2:]
    block = route.block(n, E.device, _COPIES)
    if E.ndim > 2 or o <= block or E.requires_grad or X.requires_grad or torch.compiler.is_compiling():
        A, ok = solve(E)
        return Solved(A.mT @ X, ok)
    update, ok = X.new_empty(o, X.shape[1]), _yes(X)
    for low in range(0, o, block):
        A, factored = solve(E[:, low : low + block])
        torch.mm(A.mT, X, out=update[low : low + block])
        ok = ok & factored
    return Solved(update, ok)


def _primal(moments: Moments, lam: float | Tensor) -> Factor:
    G = moments.G
    bad = _ill_conditioned(G, lam)
    if bad is not None and G.ndim == 2:
        if moments.rows is None:
            return _eigen(moments, lam)
        rows = moments.rows()
        if not _by_feature(moments, lam):
            return _svd(rows.X, lam)
        assert isinstance(lam, Tensor)
        scale = lam.rsqrt()
        inner = _svd(rows.X * scale, 1.0)
        return lambda other: Solved(inner(other).update * scale, inner(other).ok)
    solve = shifted_(G.clone(), lam)

    def solved(other: System) -> Solved:
        dW, ok = solve(other.C)
        return Solved(dW.mT, ok)

    return solved if bad is None else _some_alone(moments, lam, bad, solved)


def _ill_conditioned(K: Tensor, lam: float | Tensor) -> Tensor | bool | None:
    """Which systems a Cholesky factor cannot do, where a look at them is free; None if it can do all."""
    if K.dtype == torch.float32 or not route.may_branch(K):
        return None  # float32 is only taken where lambda is known to be large enough
    bad = route.ill_conditioned(K.diagonal(dim1=-2, dim2=-1), _on_diagonal(K, lam))
    return bad if (bad if isinstance(bad, bool) else bool(bad.any())) else None


def _some_alone(system: System, lam: float | Tensor, bad: Tensor | bool, solve: Factor) -> Factor:
    """A stack of models of which some are so ill-conditioned that they take a route of their own."""
    assert isinstance(bad, Tensor)
    numbers = bad.nonzero()[:, 0].tolist()
    alone = {k: factor(system.model(k), lam[k] if isinstance(lam, Tensor) and lam.ndim else lam) for k in numbers}

    def solved(other: System) -> Solved:
        update, ok = (tensor.clone() for tensor in solve(other))
        for k, own in alone.items():
            update[k], ok[k] = own(other.model(k))
        return Solved(update, ok)

    return solved


def _on_diagonal(K: Tensor, lam: float | Tensor) -> float | Tensor:
    """Lambda as it is added to the diagonal of `K (..., m, m)`."""
    return lam.unsqueeze(-1) if isinstance(lam, Tensor) and 0 < lam.ndim == K.ndim - 2 else lam


def rounding(size: int, dtype: torch.dtype) -> float:
    """The rounding error of a Gram matrix of this size, relative to its diagonal."""
    return 4 * size * torch.finfo(dtype).eps


def noise(largest: Tensor, size: int) -> Tensor:
    """The rounding error of the singular values or eigenvalues of a matrix whose longer side is `size`, of which this is the
    largest: smaller ones mean nothing."""
    return largest * size * torch.finfo(largest.dtype).eps


def shift_(K: Tensor, lam: float | Tensor) -> Tensor:
    """`K + lam I` in place, whose lower triangle alone need be defined. Where lambda is below the rounding error of K's
    diagonal it is raised to that error, or no factor would exist."""
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    diagonal += (diagonal * rounding(K.shape[-1], K.dtype)).clamp(min=_on_diagonal(K, lam))
    return K


def factor_shifted_(K: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of `K + lam I`, and whether there is one; K is overwritten."""
    L, info = torch.linalg.cholesky_ex(shift_(K, lam))
    return L, info == 0


def shifted_(K: Tensor, lam: float | Tensor) -> Callable[[Tensor], Shift]:
    """The function from B to `(K + lam I)^-1 B`; K is overwritten."""
    return _divided(shift_(K, lam))


def _divided(K: Tensor) -> Callable[[Tensor], Shift]:
    """The function from B to `K^-1 B`."""
    if route.eliminated(K):
        return lambda B: elimination.eliminate(K, B) if K.ndim > 2 else _one_eliminated(K, B)
    L, info = torch.linalg.cholesky_ex(K)
    return lambda B: (cholesky_solve(B, L), info == 0)


def raised(K: Tensor) -> Callable[[Tensor], Shift]:
    """The function from B to `K^-1 B`, K raised by the rounding error of its diagonal; K stays as it was."""
    if route.eliminated(K):
        return shifted_(K.clone(), 0.0)
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    before = diagonal.clone()  # of the whole matrix the factor is the only copy
    L, ok = factor_shifted_(K, 0.0)
    diagonal.copy_(before)
    return lambda B: (cholesky_solve(B, L), ok)


def inverse_(K: Tensor) -> Shift:
    """`K^-1`, and whether K is positive definite; K, whose diagonal should be about 1, is overwritten.

    Where a look is free it is raised by its rounding error only if it has no factor, elsewhere by a single rounding: a
    filter turns its matrix over twice a step, and what is added each time would add up where data say little."""
    if route.may_branch(K):
        L, info = torch.linalg.cholesky_ex(K)
        if (info != 0).any():
            raised, still = torch.linalg.cholesky_ex(shift_(K, 0.0))
            L, info = torch.where((info == 0)[..., None, None], L, raised), torch.where(info == 0, info, still)
        return torch.cholesky_inverse(L), info == 0
    K.diagonal(dim1=-2, dim2=-1).add_(torch.finfo(K.dtype).eps)
    return _divided(K)(torch.eye(K.shape[-1], dtype=K.dtype, device=K.device).expand_as(K))


def _one_eliminated(K: Tensor, B: Tensor) -> Shift:
    if B.requires_grad:
        return torch.linalg.solve(K, B), torch.ones((), dtype=torch.bool, device=K.device)
    X, ok = elimination.eliminate(K[None], B[None])
    return X[0], ok[0]


def _yes(like: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.bool, device=like.device)


def by_singular_values(X: Tensor) -> Callable[[float | Tensor], Factor]:
    """By the singular values of X itself, whose condition number is the root of the Gram matrix's; they are found once, for
    any number of lambdas. Those below rounding error are noise, and what they multiply is left alone. On a device this
    waits: singular values are found by iteration."""
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    least = noise(S[..., :1], max(X.shape[-2:]))

    def penalised(lam: float | Tensor) -> Factor:
        inverse = torch.where(S > least, S / (S * S + lam), torch.zeros_like(S)).unsqueeze(-1)
        return lambda other: Solved((inverse * (U.mT @ rows_of(other).E)).mT @ Vh, _yes(X))

    return penalised


def _svd(X: Tensor, lam: float | Tensor) -> Factor:
    return by_singular_values(X)(lam)


def _eigen(moments: Moments, lam: float | Tensor) -> Factor:
    """The same from moments alone: eigenvalues at rounding level are taken for zero, and so is what they multiply."""
    if _by_feature(moments, lam):
        assert isinstance(lam, Tensor)
        scale = lam.rsqrt()
        inner = _eigen(moments.scaled(scale), 1.0)
        return lambda other: Solved(inner(other.scaled(scale)).update * scale, _yes(scale))
    w, V = torch.linalg.eigh(moments.G)
    inverse = torch.where(w > noise(w[-1], len(w)), 1 / (w.clamp(min=0) + lam), torch.zeros_like(w)).unsqueeze(-1)
    return lambda other: Solved((V @ (inverse * (V.mT @ other.C))).mT, _yes(w))


def minimum_norm(system: System) -> Factor:
    """`dW = E^T (X^+)^T`: least squares of smallest norm, directions below rounding error left alone."""
    if isinstance(system, Moments) and system.rows is None:
        return _eigen(system, 0.0)
    return _svd(rows_of(system).X, 0.0)


# ---- The two products and solves where a GPU's libraries leave time on the table -----------------

_BLOCK = 32  # diagonal blocks inverted by one batched triangular solve


def gram_lower(X: Tensor) -> Tensor:
    """The lower triangle of `X X^T`; what stands above it is not defined.

    Large products on an accelerator are cut into strips that skip most of the upper half (there is no `syrk` in torch).
    """
    if X.device.type == "cpu" or X.ndim > 2 or X.shape[0] < 512 or X.requires_grad or torch.compiler.is_compiling():
        return X @ X.mT
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
    plain = L.device.type == "cpu" or L.ndim > 2 or L.shape[0] <= 640 or torch.compiler.is_compiling()
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
