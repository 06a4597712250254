"""Feature networks that the estimator and the experiments share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..stack.networks import mlp

POWERS = 3
BUMPED = 3  # columns, up to which a sieve has bumps


class Beside(nn.Module):
    """`[x, net(x)]`: the inputs are features too, so that what is linear need not be learned."""

    on_last_axis = True  # see `stack.modules`

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.net(x)], -1)


class Bumps(NamedTuple):
    """Normal curves in a row, from `-reach` to `reach` deviations of a column."""

    count: int
    reach: float
    width: float


# A narrow row has waves and steps, a wide one what bends slowly. On draws that are not reported a choice between them was
# better than either, and than bumps beside polynomials (docs/iv.md)
NARROW, WIDE = Bumps(9, 2.0, 0.5), Bumps(13, 2.5, 1.0)


class Sieve(nn.Module):
    """The columns themselves and of each a row of bumps; where there are none, or more than `BUMPED` columns,
    `[x, x^2, x^3]` as Hermite polynomials, which hardly correlate where x is standard normal."""

    def __init__(self, bumps: Bumps | None = NARROW):
        super().__init__()
        self.bumps = bumps

    def forward(self, x: Tensor) -> Tensor:
        if self.bumps is None or x.shape[1] > BUMPED:
            return torch.cat([x, (x * x - 1) / 2**0.5, (x * x - 3) * x / 6**0.5], 1)
        count, reach, width = self.bumps
        centres = torch.linspace(-reach, reach, count, dtype=x.dtype)
        return torch.cat([x, (-((x[:, :, None] - centres) / width).square() / 2).exp().flatten(1)], 1)


def sieve_width(columns: int, bumps: Bumps | None = NARROW) -> int:
    """The number of features that a sieve has of so many columns."""
    return columns * (POWERS if bumps is None or columns > BUMPED else 1 + bumps.count)


class BesideSieve(Beside):
    """`[sieve of x, net(x)]`."""

    def __init__(self, net: nn.Module, bumps: Bumps | None):
        super().__init__(net)
        self.sieve = Sieve(bumps)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.sieve(x), self.net(x)], 1)


class Pool(nn.Module):
    """Square images given as rows of pixels, averaged over squares of `size` pixels."""

    def __init__(self, side: int, size: int):
        super().__init__()
        self.side, self.size = side, size

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x.view(-1, 1, self.side, self.side), self.size).flatten(1)


def beside(sizes: Sequence[int], generator: torch.Generator | None = None) -> tuple[nn.Module, int]:
    """An MLP beside its inputs, and the number of its features."""
    return Beside(mlp(sizes, generator=generator)), sizes[0] + sizes[-1]


def sieve_beside(
    sizes: Sequence[int], generator: torch.Generator | None = None, bumps: Bumps | None = NARROW
) -> tuple[nn.Module, int]:
    """An MLP beside the sieve of its inputs, and the number of its features."""
    return BesideSieve(mlp(sizes, generator=generator), bumps), sieve_width(sizes[0], bumps) + sizes[-1]


def pooled(
    side: int, size: int, sizes: Sequence[int], generator: torch.Generator | None = None
) -> tuple[nn.Module, int]:
    """An MLP on averaged images, and the number of its features."""
    inputs = (side // size) ** 2
    return nn.Sequential(Pool(side, size), mlp([inputs, *sizes], generator=generator)), sizes[-1]
