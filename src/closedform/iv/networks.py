"""Feature networks that the estimator and the experiments share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..stack.networks import mlp

POWERS = 3
BUMPED = 3  # columns, up to which a sieve has bumps
CENTRES = 9  # of the bumps of a column, from -2 to 2 deviations


class Beside(nn.Module):
    """`[x, net(x)]`: the inputs are features too, so that what is linear need not be learned."""

    on_last_axis = True  # see `stack.modules`

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.net(x)], -1)


class Sieve(nn.Module):
    """`[x, x^2, x^3]` of every column as Hermite polynomials, which hardly correlate where x is standard normal, and after
    them, where `bumps` and of up to `BUMPED` columns, bumps in a row: what a cubic polynomial cannot bend to."""

    def __init__(self, bumps: bool = True):
        super().__init__()
        self.bumps = bumps

    def forward(self, x: Tensor) -> Tensor:
        parts = [x, (x * x - 1) / 2**0.5, (x * x - 3) * x / 6**0.5]
        if self.bumps and x.shape[1] <= BUMPED:
            centres = torch.linspace(-2, 2, CENTRES, dtype=x.dtype)
            parts.append((-2 * (x[:, :, None] - centres).square()).exp().flatten(1))
        return torch.cat(parts, 1)


def sieve_width(columns: int, bumps: bool = True) -> int:
    """The number of features that a sieve has of so many columns."""
    return columns * (POWERS + (CENTRES if bumps and columns <= BUMPED else 0))


class BesideSieve(Beside):
    """`[sieve of x, net(x)]`."""

    def __init__(self, net: nn.Module, bumps: bool):
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
    sizes: Sequence[int], generator: torch.Generator | None = None, bumps: bool = True
) -> tuple[nn.Module, int]:
    """An MLP beside the sieve of its inputs, and the number of its features."""
    return BesideSieve(mlp(sizes, generator=generator), bumps), sieve_width(sizes[0], bumps) + sizes[-1]


def pooled(
    side: int, size: int, sizes: Sequence[int], generator: torch.Generator | None = None
) -> tuple[nn.Module, int]:
    """An MLP on averaged images, and the number of its features."""
    inputs = (side // size) ** 2
    return nn.Sequential(Pool(side, size), mlp([inputs, *sizes], generator=generator)), sizes[-1]
