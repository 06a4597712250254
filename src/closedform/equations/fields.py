"""What an operator sees: an unknown function and its derivatives at points.

The entries are `(n, d)`: a column for each feature, and one column when the function has been solved for. An operator that
is linear treats both alike, and that is all the library asks of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

Axes = tuple[int, ...]


class Field:
    """A function at the points `x (n, D)`, with its derivatives.

    x: the points, for coefficients that vary: `lambda u: u.x[:, :1] * u.dx(0)`.
    partner: the same function at the points' partners, where the condition has a map to them (periodic conditions).
    """

    def __init__(self, x: Tensor, table: Mapping[Axes, Tensor], partner: Field | None = None):
        self.x = x
        self._table = table
        self._partner = partner

    def d(self, *axes: int) -> Tensor:
        """The derivative along these coordinates, in any order; `d()` is the value."""
        D = self.x.shape[1]
        if any(not 0 <= axis < D for axis in axes):
            raise ValueError(
                f"the axes of a derivative must be 0 to {D - 1}, the coordinates of the points, got {axes}"
            )
        key = tuple(sorted(axes))
        if key not in self._table:
            raise ValueError(f"the derivative along {key} was not computed; there are {sorted(self._table, key=len)}")
        return self._table[key]

    @property
    def value(self) -> Tensor:
        return self.d()

    def dx(self, axis: int) -> Tensor:
        """The first derivative along a coordinate."""
        return self.d(axis)

    @property
    def gradient(self) -> tuple[Tensor, ...]:
        """The first derivatives, one for each coordinate."""
        return tuple(self.d(axis) for axis in range(self.x.shape[1]))

    def second(self, first: int, other: int) -> Tensor:
        """One entry of the matrix of second derivatives."""
        return self.d(first, other)

    @property
    def laplacian(self) -> Tensor:
        """The sum of the second derivatives along all coordinates; `laplacian_in` for some of them."""
        return self.laplacian_in(*range(self.x.shape[1]))

    def laplacian_in(self, *axes: int) -> Tensor:
        """The Laplacian in these coordinates: those of space, where another one is time."""
        return torch.stack([self.d(axis, axis) for axis in axes]).sum(0)

    @property
    def biharmonic(self) -> Tensor:
        """The Laplacian of the Laplacian."""
        axes = range(self.x.shape[1])
        return torch.stack([self.d(i, i, j, j) for i in axes for j in axes]).sum(0)

    @property
    def has_partner(self) -> bool:
        return self._partner is not None

    @property
    def partner(self) -> Field:
        if self._partner is None:
            raise ValueError("the operator uses u.partner, but its condition has no map to partners")
        return self._partner

    def table(self) -> dict[Axes, Tensor]:
        """Everything that is there, by axes."""
        return dict(self._table)

    def extended(self) -> Field:
        """With a last column for the constant function, which is the bias of the layer."""
        table = {}
        for axes, entry in self._table.items():
            constant = entry.new_zeros(len(entry), 1) if axes else entry.new_ones(len(entry), 1)
            table[axes] = torch.cat([entry, constant], 1)
        return Field(self.x, table, None if self._partner is None else self._partner.extended())

    def contracted(self, weights: Tensor) -> Field:
        """The function that these weights `(d,)` make of the features: one column."""
        table = {axes: (entry @ weights)[:, None] for axes, entry in self._table.items()}
        return Field(self.x, table, None if self._partner is None else self._partner.contracted(weights))

    def detached(self) -> Field:
        table = {axes: entry.detach() for axes, entry in self._table.items()}
        return Field(self.x, table, None if self._partner is None else self._partner.detached())


class Lazy(Mapping[Axes, Tensor]):
    """A table whose entries are made when they are asked for."""

    def __init__(self, entry: Callable[[Axes], Tensor]):
        self._entry = entry

    def __getitem__(self, axes: Axes) -> Tensor:
        return self._entry(axes)

    def __contains__(self, axes: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Axes]:
        return iter(())

    def __len__(self) -> int:
        return 0


def constant(x: Tensor, value: float | Tensor, partner: Tensor | None = None) -> Field:
    """A function that is the same everywhere: its derivatives are zero."""

    def entry(axes: Axes) -> Tensor:
        return x.new_zeros(len(x), 1) if axes else x.new_ones(len(x), 1) * value

    return Field(x, Lazy(entry), None if partner is None else constant(partner, value))


def combined(u: Field, v: Field, a: float, b: float) -> Field:
    """The function `a u + b v`."""
    partner = combined(u.partner, v.partner, a, b) if u.has_partner else None
    return Field(u.x, Lazy(lambda axes: a * u.d(*axes) + b * v.d(*axes)), partner)
