"""Ridge for many betas at the price of one: a decomposition of the features, from which every layer and score follows.

With weights as roots `r` on the rows, centred features `X (n, d)` and targets `Y` (the intercept is not penalised), and
`X^T X = V diag(w) V^T` or, for few rows, `X X^T = U diag(s) U^T`::

    many rows   W(beta)^T = V (w + beta)^-1 V^T X^T Y          few rows   W(beta)^T = X^T U (s + beta)^-1 U^T Y
    h_i         = r_i^2 / sum r^2 + sum_j (X V)_ij^2 / (w_j + beta)        the leverage of row i
    left out    = (Y - X W^T)_i / (1 - h_i)                                the error of row i, had it been left out

The last line is exact (it is how scikit-learn's `RidgeCV` chooses too). Without a bias nothing is centred and the first part
of h is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from . import route
from .linalg import Factor, Solved
from .systems import Moments

# Of a residual's norm, to which a few products make it: the scores are then good to about 1e-10 and 1e-7. The second one and
# float32 are for so many multiplications that they pay.
_TOLERANCE, _QUICK_TOLERANCE, _QUICK = 1e-6, 1e-4, 1 << 26
_ROWS, _COLUMNS = 2048, 1024  # whose parts of the residuals are made at once


class PathRows(NamedTuple):
    """Features as they came `(n, d)`, targets `(n, o)` and the roots of the sample weights `(n, 1)`."""

    phi: Tensor
    y: Tensor
    root: Tensor


class RidgePath:
    """The ridge layers of a data set for any beta (sum units), and their leave-one-out errors."""

    def __init__(self, phi: Tensor, y: Tensor, weight: Tensor | None = None, bias: bool = True):
        dtype = route.precision(phi.device)
        n, d = phi.shape
        weight = torch.ones(n, dtype=dtype, device=phi.device) if weight is None else weight.to(dtype)
        self.rows, self.bias, self.dtype = PathRows(phi, y, weight.sqrt()[:, None]), bias, dtype
        self.total = weight.sum()
        zero = torch.zeros((), dtype=dtype, device=phi.device)
        self.mean_x = self._mean(phi, weight) if bias else zero
        self.mean_y = self._mean(y, weight) if bias else zero
        self.few = route.by_rows(n, d)
        if self.few:
            X, Y = self._piece(0, n)
            K = X @ X.T
            self.diagonal = X.square().sum() / d
            if bias:  # the direction of the intercept gets the largest eigenvalue, and is then left out
                q = self.rows.root / self.total.sqrt()
                K = K + (2 * K.diagonal().sum() + 1) * (q @ q.T)
            s, U = torch.linalg.eigh(K)
            self.values, self.basis = (s[:-1], U[:, :-1]) if bias else (s, U)
            self.values = self.values.clamp(min=0)
            self.right = self.basis.T @ Y
        else:
            G, C, self.squares = (torch.zeros((), dtype=dtype, device=phi.device) for _ in range(3))
            for X, Y in self._pieces():
                G, C, self.squares = G + X.T @ X, C + X.T @ Y, self.squares + Y.square().sum()
            self.diagonal = G.diagonal().mean()
            w, self.basis = torch.linalg.eigh(G)
            self.values = w.clamp(min=0)
            self.right = self.basis.T @ C

    def _mean(self, tensor: Tensor, weight: Tensor) -> Tensor:
        total = torch.zeros(tensor.shape[1], dtype=self.dtype, device=tensor.device)
        for low in range(0, len(tensor), route.CHUNK):
            part = slice(low, low + route.CHUNK)
            total += weight[part] @ tensor[part].to(self.dtype)
        return total / self.total

    def _piece(self, low: int, high: int) -> tuple[Tensor, Tensor]:
        """Some rows in the solver's precision: centred, and times the root of their weight."""
        phi, y, root = (part[low:high] for part in self.rows)
        return root * (phi.to(self.dtype) - self.mean_x), root * (y.to(self.dtype) - self.mean_y)

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        for low in range(0, len(self.rows.phi), route.CHUNK):
            yield self._piece(low, low + route.CHUNK)

    def layer(self, beta: float) -> Tensor:
        """The layer `(o, D)`, with the bias, if there is one, in its last column."""
        coefficients = self.basis @ (self.right / (self.values + beta)[:, None])
        if self.few:
            coefficients = self._piece(0, len(self.rows.phi))[0].T @ coefficients
        W = coefficients.T
        return torch.cat([W, (self.mean_y - W @ self.mean_x)[:, None]], 1) if self.bias else W

    def leave_one_out(self, betas: Tensor) -> Tensor:
        """The mean squared error over rows and outputs, each row predicted by the layer without it: one value a beta."""
        n, o = self.rows.y.shape
        least = int(betas.argmin())
        shrunk = 1 / (self.values[:, None] + betas)  # (m, betas)
        # the residuals of the least beta need all digits to come about; what is made of them does not
        many = n * len(self.values) * o * len(betas) > _QUICK
        quick = torch.float32 if many else self.dtype
        left, right = self._differences(betas, least, _QUICK_TOLERANCE if many else _TOLERANCE)
        mixed = torch.cat([torch.ones_like(betas)[None], right])  # of the least beta's residual and the parts
        i, j = torch.triu_indices(len(mixed), len(mixed), device=betas.device)
        pairs = mixed[i] * mixed[j] * torch.where(i == j, 1.0, 2.0)[:, None]
        total = torch.zeros_like(betas)
        for low in range(0, n, _ROWS):
            X, Y = (self.basis[low : low + _ROWS], None) if self.few else self._piece(low, low + _ROWS)
            T = X if Y is None else X @ self.basis
            rough = T.to(quick)
            products = torch.zeros(len(T), len(i), dtype=self.dtype, device=T.device)
            for part in torch.arange(o, device=T.device).split(max(1, _COLUMNS // len(mixed))):
                R = self.right[:, part]
                fit = T @ (R * shrunk[:, least, None])
                E = betas[least] * fit if Y is None else Y[:, part] - fit
                moved = rough @ (left[:, :, None] * R[:, None]).flatten(1).to(quick)
                parts = torch.cat([E.to(quick), moved], 1).view(len(T), len(mixed), -1)
                products += (parts @ parts.mT)[:, i, j]
            squares = (products @ pairs).clamp(min=0)  # of the residuals, (rows, betas)
            if Y is None:  # both the residual and 1 - h vanish with beta, so that neither may be a difference
                rest = (rough.square() @ (betas * shrunk).to(quick)).to(self.dtype)
            else:
                mean = self.rows.root[low : low + _ROWS].square() / self.total if self.bias else 0.0
                rest = 1 - mean - (rough.square() @ shrunk.to(quick)).to(self.dtype)
            total += (squares / rest.square()).sum(0)
        return total / self.total / o

    def _differences(self, betas: Tensor, least: int, tolerance: float) -> tuple[Tensor, Tensor]:
        """Factors `(m, r)` and `(r, betas)` of what every beta adds to the residual of the least one.

        The residuals of beta are those of the least one plus `T diag(difference) R`, and `T^T T` is diagonal. So singular
        values of the differences, each row times the size of its part of the residual and each column by the residual's,
        say how few products `T diag(.) R` give the residuals of all betas: some twenty for a hundred betas."""
        w, lowest = self.values[:, None], betas[least]
        difference = (betas - lowest) / ((w + lowest) * (w + betas))
        along = self.right.square().sum(1, keepdim=True)  # of the targets, times w for many rows
        if self.few:
            difference, size = w * difference, along.sqrt()
            norm = (along * (betas / (w + betas)).square()).sum(0)
        else:
            size = (w * along).sqrt()
            along = torch.where(w > w.amax() * torch.finfo(w.dtype).eps * len(w), along / w, torch.zeros_like(w))
            across = (self.squares * (1 - 1e-12) - along.sum()).clamp(min=0)
            norm = across + (along * (betas / (w + betas)).square()).sum(0)
        norm = norm.sqrt().clamp(min=torch.finfo(w.dtype).tiny)
        U, S, Vh = torch.linalg.svd(size * difference / norm, full_matrices=False)
        rank = int((S > tolerance).sum())
        left = torch.where(size > 0, U[:, :rank] / size, torch.zeros_like(size))
        return left, S[:rank, None] * Vh[:rank] * norm


def factors(moments: Moments, betas: Tensor) -> Iterator[Factor]:
    """For every beta the factor of `G + beta I`, from one decomposition of G."""
    w, V = torch.linalg.eigh(moments.G)
    yes = torch.ones((), dtype=torch.bool, device=w.device)
    for beta in betas:
        inverse = (1 / (w.clamp(min=0) + beta))[:, None]
        yield lambda other, inverse=inverse: Solved((V @ (inverse * (V.T @ other.C))).T, yes)
