"""Feature networks that the estimator and the experiments share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..stack.networks import mlp

POWERS = 3


class Beside(nn.Module):
    """`[x, net(x)]`: the inputs are features too, so that what is linear need not be learned."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.net(x)], 1)


class Powers(nn.Module):
    """`[x, x^2, x^3]` of every column as Hermite polynomials, which hardly correlate where x is standard normal: a sieve."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, (x * x - 1) / 2**0.5, (x * x - 3) * x / 6**0.5], 1)


class BesidePowers(Beside):
    """`[powers of x, net(x)]`."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([Powers()(x), self.net(x)], 1)


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


def powers_beside(sizes: Sequence[int], generator: torch.Generator | None = None) -> tuple[nn.Module, int]:
    """An MLP beside the powers of its inputs, and the number of its features."""
    return BesidePowers(mlp(sizes, generator=generator)), POWERS * sizes[0] + sizes[-1]


def pooled(
    side: int, size: int, sizes: Sequence[int], generator: torch.Generator | None = None
) -> tuple[nn.Module, int]:
    """An MLP on averaged images, and the number of its features."""
    inputs = (side // size) ** 2
    return nn.Sequential(Pool(side, size), mlp([inputs, *sizes], generator=generator)), sizes[-1]
