"""What a solve is given: a least-squares system as rows, or as moments of rows.

Everything may have a leading model axis: rows `(M, n, D)`, moments `(M, D, D)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Union

import torch
from torch import Tensor

from . import route


@dataclass
class Rows:
    """A batch as rows: features `X (..., n, D)` and residuals `E (..., n, o)`, both scaled by the root of the sample weight.

    n: the batch size that `per_sample` sees, the number of samples or the sum of their weights.
    padded: X with columns of zeros up to an even width, which the fast products of a GPU want.
    """

    X: Tensor
    E: Tensor
    n: int | float | Tensor = 0
    bias: bool = False
    padded: Tensor | None = None
    _products: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.X.dtype

    @property
    def wide(self) -> Tensor:
        return self.X if self.padded is None else self.padded

    @property
    def C(self) -> Tensor:
        return self._once("C", lambda: self.X.mT @ self.E)

    @property
    def ee(self) -> Tensor:
        return self._once("ee", lambda: self.E.square().sum(-2))

    def diagonal(self) -> Tensor:
        """The diagonal of `X^T X`."""
        return self._once("diagonal", lambda: self.X.square().sum(-2))

    def _once(self, name: str, product: Callable[[], Tensor]) -> Tensor:
        """A product that several ask for."""
        if name not in self._products:
            self._products[name] = product()
        return self._products[name]

    def gram(self) -> Tensor:
        D, wide = self.X.shape[-1], self.wide
        return (wide.mT @ wide)[..., :D, :D]

    def moments(self) -> Moments:
        D = self.X.shape[-1]
        C = (self.wide.mT @ self.E)[..., :D, :]
        return Moments(self.gram(), C, lambda: self.ee, self.n, self.bias, lambda: self)

    def scaled(self, scale: Tensor) -> Rows:
        """In other units: every feature multiplied by its scale `(..., D)`."""
        return replace(self, X=self.X * scale.unsqueeze(-2), padded=None)

    def model(self, k: int) -> Rows:
        """One model's rows of a stack."""
        return Rows(self.X[k], self.E[k], _of_model(self.n, k), self.bias)


@dataclass
class ClassRows(Rows):
    """Rows whose own class counts `k` times: the squared residual `E[i, c]` has the weight k where `label[i]` is c."""

    label: Tensor = field(default_factory=lambda: torch.empty(0))
    k: float = 1.0

    @property
    def weighted(self) -> Tensor:
        """The residuals times their weights."""
        own = self.label[:, None].expand(*self.E.shape[:-1], 1)
        return self.E.scatter_add(-1, own, (self.k - 1) * self.E.gather(-1, own))

    @property
    def C(self) -> Tensor:
        return self._once("C", lambda: self.X.mT @ self.weighted)

    @property
    def ee(self) -> Tensor:
        return self._once("ee", lambda: (self.E * self.weighted).sum(-2))


@dataclass
class Moments:
    """A batch as moments: `G = X^T X (..., D, D)`, `C = X^T E (..., D, o)` and the squared residuals summed, `ee (..., o)`,
    which not every rule asks for."""

    G: Tensor
    C: Tensor
    squares: Tensor | Callable[[], Tensor]
    n: int | float | Tensor = 0
    bias: bool = False
    rows: Callable[[], Rows] | None = None  # where the rows are still at hand, for the route that needs them

    @property
    def dtype(self) -> torch.dtype:
        return self.G.dtype

    def diagonal(self) -> Tensor:
        return self.G.diagonal(dim1=-2, dim2=-1)

    @property
    def ee(self) -> Tensor:
        if not isinstance(self.squares, Tensor):
            self.squares = self.squares()
        return self.squares

    def moments(self) -> Moments:
        return self

    def scaled(self, scale: Tensor) -> Moments:
        """In other units: every feature multiplied by its scale `(..., D)`."""
        down, rows = scale.unsqueeze(-1), self.rows
        again = None if rows is None else lambda: rows().scaled(scale)
        return replace(self, G=down * self.G * scale.unsqueeze(-2), C=down * self.C, rows=again)

    def moved(self, change: Tensor) -> Moments:
        """The moments of the residuals against other layers, which differ by `change (..., o, D)` from the one of these."""
        dW = change.mT
        moved = self.G @ dW
        squares = (self.ee + (dW * (moved - 2 * self.C)).sum(-2)).clamp(min=0)
        return replace(self, C=self.C - moved, squares=squares, rows=None)

    def model(self, k: int) -> Moments:
        """One model's moments of a stack."""
        rows = self.rows
        again = None if rows is None else lambda: rows().model(k)
        return Moments(self.G[k], self.C[k], self.ee[k], _of_model(self.n, k), self.bias, again)


System = Union[Rows, Moments]


def _of_model(n: int | float | Tensor, k: int) -> int | float | Tensor:
    return n[k] if isinstance(n, Tensor) and n.ndim else n


def rows_of(system: System) -> Rows:
    """The rows behind a system that has them."""
    if isinstance(system, Rows):
        return system
    assert system.rows is not None
    return system.rows()


def least_squares(X: Tensor, E: Tensor) -> System:
    """The system of rows as they are, by the smaller route."""
    rows = Rows(X, E, X.shape[-2])
    return rows if route.by_rows(X.shape[-2], X.shape[-1]) else rows.moments()
