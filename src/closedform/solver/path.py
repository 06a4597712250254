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

_COLUMNS = 256  # betas times outputs whose predictions are made at once


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
            G, C = torch.zeros((), dtype=dtype, device=phi.device), torch.zeros((), dtype=dtype, device=phi.device)
            for X, Y in self._pieces():
                G, C = G + X.T @ X, C + X.T @ Y
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
        o = self.rows.y.shape[1]
        several = max(1, _COLUMNS // o)
        sums = [torch.zeros_like(part) for part in betas.split(several)]
        low = 0
        for X, Y in [(self.basis, None)] if self.few else self._pieces():
            T = X if self.few else X @ self.basis
            squares = T.square()
            for part, total in zip(betas.split(several), sums):
                inverse = 1 / (self.values[:, None] + part)  # (m, betas)
                fit = (T @ (self.right[:, None, :] * inverse[:, :, None]).flatten(1)).view(len(T), -1, o)
                h = squares @ inverse
                if Y is None:  # both the error and 1 - h vanish with beta: it is taken out of both
                    left_out = fit / h.unsqueeze(-1)
                else:
                    if self.bias:
                        h += self.rows.root[low : low + len(X)].square() / self.total
                    left_out = (Y.unsqueeze(1) - fit) / (1 - h).unsqueeze(-1)
                total += left_out.square().sum((0, 2))
            low += len(T)
        return torch.cat(sums) / self.total / o


def factors(moments: Moments, betas: Tensor) -> Iterator[Factor]:
    """For every beta the factor of `G + beta I`, from one decomposition of G."""
    w, V = torch.linalg.eigh(moments.G)
    yes = torch.ones((), dtype=torch.bool, device=w.device)
    for beta in betas:
        inverse = (1 / (w.clamp(min=0) + beta))[:, None]
        yield lambda other, inverse=inverse: Solved((V @ (inverse * (V.T @ other.C))).T, yes)
