"""`GeneralizedSquared` for all classes by one shared factor (paper appendix A.3, eq. 32, without its inversion per class).

Class c counts its own samples k times, so its system differs from the shared one by their rows alone::

    (X^T X + lam I + (k - 1) X_c^T X_c) dw_c = X^T (Z E)_c           Z: k at a sample's own class, 1 elsewhere

With the shared factor `X^T X + lam I = L L^T`, in the coordinates `x = L^T dw`, that is `(I + delta S_c^T S_c) x_c = b_c`
with `S = X L^-T`, `B = L^-1 X^T (Z E)` and `delta = k - 1`: the identity and n_c rows. Few rows (n <= D) give the same form
in their own space, `(X X^T + lam I + lam (1/k - 1) I_c) a_c = E_c` with `delta = 1/k - 1`, and so do the singular values of
X, where no factor can be trusted. `per_class` solves that form::

    x_c = b_c - delta S_c^T M_c^-1 S_c b_c,        M_c = I + delta S_c S_c^T

`S_c S_c^T <= I`, so the eigenvalues of M_c lie between 1 and k: it is positive definite for every k > 0, and its condition
number is known beforehand. Where a look at values is free, classes of equally many samples are factored together: the cost
is `sum_c min(n_c, D)^2 max(n_c, D)`. Elsewhere (a GPU, a compiled step) the sizes are not known, and a fixed number of
Chebyshev iterations does the same to rounding error, each at the cost of a product of S with a vector.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import linalg, route
from .linalg import Solved
from .systems import ClassRows, System

TOLERANCE = 1e-13  # of the Chebyshev iteration
_MOST = 1600  # iterations: k = 1e4
_DENSE = 128  # up to so many classes, sums over a class's rows are a product with the one-hot labels


def ridge(rows: ClassRows, lam: float | Tensor) -> Solved:
    """Minimise `sum_ic Z_ic (E - X dW^T)_ic^2 + lam |dW|^2`; `lam = 0.0` gives the limit for lam to zero."""
    if isinstance(lam, Tensor) and lam.ndim == 1:
        scale = lam.rsqrt()
        in_other_units = rows.scaled(scale)
        assert isinstance(in_other_units, ClassRows)
        solution = ridge(in_other_units, 1.0)
        return Solved(solution.update * scale, solution.ok)
    if isinstance(lam, (int, float)) and lam == 0:
        return _svd(rows, 0.0)
    few = route.by_rows(rows.X.shape[0], rows.X.shape[1])
    K = linalg.gram_lower(rows.wide) if few else rows.gram()
    if route.may_branch(K) and bool(route.ill_conditioned(K.diagonal(), lam)):
        return _svd(rows, lam)
    L, ok = linalg.factor_shifted_(K, lam)
    return Solved(_dual(rows, lam, L) if few else factored(rows, L), ok)


def factored(rows: System, L: Tensor) -> Tensor:
    """The update `(o, D)` for a shared system `L L^T (D, D)` that holds every sample once."""
    assert isinstance(rows, ClassRows)
    S = torch.linalg.solve_triangular(L, rows.X.T, upper=False).T
    B = torch.linalg.solve_triangular(L, rows.C, upper=False)
    return torch.linalg.solve_triangular(L.T, per_class(S, B, rows.label, rows.k - 1), upper=True).T


def by_covariance(rows: System, R: Tensor) -> Tensor:
    """The same from a factor of the inverse of the shared system, `R R^T (D, D)`."""
    assert isinstance(rows, ClassRows)
    return (R @ per_class(rows.X @ R, R.T @ rows.C, rows.label, rows.k - 1)).T


def _dual(rows: ClassRows, lam: float | Tensor, L: Tensor) -> Tensor:
    eye = torch.eye(L.shape[0], dtype=L.dtype, device=L.device)
    S = torch.linalg.solve_triangular(L, eye, upper=False).T * lam**0.5
    B = torch.linalg.solve_triangular(L, rows.E, upper=False)
    A = torch.linalg.solve_triangular(L.T, per_class(S, B, rows.label, 1 / rows.k - 1), upper=True)
    return A.T @ rows.X


def _svd(rows: ClassRows, lam: float | Tensor) -> Solved:
    """With `X = U diag(s) V^T` and `dw = V q / s`: `(I + lam / s^2 + (k - 1) U_c^T U_c) q = U^T (Z E)_c`."""
    U, s, Vh = torch.linalg.svd(rows.X, full_matrices=False)
    sound = s > linalg.noise(s[0], max(rows.X.shape))
    root = torch.where(sound, s / (s * s + lam).sqrt(), torch.zeros_like(s))  # 1 / sqrt(1 + lam / s^2)
    Q = root[:, None] * per_class(U * root, root[:, None] * (U.T @ rows.weighted), rows.label, rows.k - 1)
    update = torch.where(sound, 1 / s, torch.zeros_like(s))[:, None] * Q
    return Solved(update.T @ Vh, torch.ones((), dtype=torch.bool, device=s.device))


def per_class(S: Tensor, B: Tensor, label: Tensor, delta: float) -> Tensor:
    """`(I + delta S_c^T S_c)^-1 b_c` for every column `b_c` of `B (m, o)`, with S_c the rows of `S (n, m)` of class c."""
    if delta == 0:
        return B
    if route.may_branch(S):
        return _direct(S, B, label, delta)
    return _iterated(S, B, label, delta)


def _direct(S: Tensor, B: Tensor, label: Tensor, delta: float) -> Tensor:
    """By factors of `M_c`, or of `I + delta S_c^T S_c` where a class has more samples than that has rows."""
    m, o = B.shape
    order = label.argsort(stable=True)
    counts = torch.bincount(label, minlength=o)
    first = counts.cumsum(0) - counts
    parts, places = [B.T[counts == 0]], [torch.nonzero(counts == 0)[:, 0]]
    for size in torch.unique(counts[counts > 0]).tolist():
        classes = torch.nonzero(counts == size)[:, 0]
        T = S[order[first[classes][:, None] + torch.arange(size, device=S.device)]]  # (g, size, m)
        b = B.T[classes][:, :, None]
        if size > m:
            x = _cholesky(T.mT @ T, delta, b)
        else:
            x = b - delta * (T.mT @ _cholesky(T @ T.mT, delta, T @ b))
        parts.append(x[:, :, 0])
        places.append(classes)
    back = torch.cat(places).argsort()
    return torch.cat(parts)[back].T


def _cholesky(K: Tensor, delta: float, b: Tensor) -> Tensor:
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    return torch.cholesky_solve(b, torch.linalg.cholesky_ex(eye + delta * K)[0])


def iterations(k: float) -> int:
    """How many Chebyshev steps reach `TOLERANCE` where the eigenvalues lie between 1 and k: the error falls by
    `(sqrt(k) - 1) / (sqrt(k) + 1)` a step.

    >>> iterations(1.0), iterations(5.0), iterations(15.0)
    (1, 32, 58)
    """
    root = math.sqrt(max(k, 1 / k))
    rate = (root - 1) / (root + 1)
    return 1 if rate == 0 else math.ceil(math.log(TOLERANCE / 2) / math.log(rate))


def _iterated(S: Tensor, B: Tensor, label: Tensor, delta: float) -> Tensor:
    """`a = M^-1 u` for all classes at once by the Chebyshev iteration, where `(M a)_i = a_i + delta s_i . t_c`, with t_c the
    sum of `s_j a_j` over the samples of i's class c."""
    sums = _Sums(S, label, B.shape[1])
    S, label = sums.S, sums.label
    if iterations(1 + delta) > _MOST:
        raise ValueError(f"k is {1 + delta:.3g}; expected 1e-4 to 1e4 where the sizes of classes are not looked at")
    low, high = sorted((1.0, 1.0 + delta))
    middle, half = (high + low) / 2, (high - low) / 2
    r = (S * B.T[label]).sum(1)
    a = torch.zeros_like(r)
    d, rho = r / middle, half / middle
    for _ in range(iterations(1 + delta)):
        # Saad, Iterative Methods for Sparse Linear Systems, algorithm 12.1: coefficients from the bounds alone
        a = a + d
        r = (r - d).sub((S * sums(d)[label]).sum(1), alpha=delta)
        last, rho = rho, 1 / (2 * middle / half - rho)
        d = (rho * last * d).add(r, alpha=2 * rho / half)
    return B - delta * sums(a).T


class _Sums:
    """`t_c = sum of s_j a_j over the samples of class c`, `(o, m)`, without a wait for the device and in one order, so that
    every process gets the same bits. `S` and `label` are in the order that it takes `a` in."""

    def __init__(self, S: Tensor, label: Tensor, classes: int):
        self.S, self.label = S, label
        self.hot = self.offsets = None
        if classes <= _DENSE or torch.compiler.is_compiling() or S.requires_grad:
            self.hot = (torch.arange(classes, device=S.device)[:, None] == label).to(S.dtype)
            return
        order = label.argsort(stable=True)
        self.S, self.label = S[order], label[order]
        self.offsets = torch.searchsorted(self.label, torch.arange(classes + 1, device=S.device))

    def __call__(self, a: Tensor) -> Tensor:
        if self.hot is not None:
            return self.hot @ (self.S * a[:, None])
        return torch.segment_reduce(self.S * a[:, None], "sum", offsets=self.offsets, axis=0, unsafe=True, initial=0)
