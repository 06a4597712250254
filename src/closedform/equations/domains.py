"""Where points come from: boxes, their faces, and parts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Sampler = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Box:
    """All points between two corners. Points of a box are spread evenly (scrambled Sobol points), in float64.

    >>> square = Box((0, 0), (1, 1))
    >>> square.inside(8, torch.Generator().manual_seed(0)).shape
    torch.Size([8, 2])
    """

    low: Sequence[float]
    high: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or not all(a < b for a, b in zip(self.low, self.high)):
            raise ValueError(f"a box needs a lower and a higher corner, got {self.low} and {self.high}")

    @property
    def dimension(self) -> int:
        return len(self.low)

    def inside(self, n: int, generator: torch.Generator) -> Tensor:
        """A sampler of the whole box."""
        low, high = torch.tensor([self.low, self.high], dtype=torch.float64)
        return low + (high - low) * _even(n, self.dimension, generator)

    def face(self, axis: int, end: int) -> Sampler:
        """The sampler of one face: `end` 0 is the low one, 1 the high one."""
        value = (self.low, self.high)[end][axis]

        def points(n: int, generator: torch.Generator) -> Tensor:
            x = self.inside(n, generator)
            x[:, axis] = value
            return x

        return points

    def faces(self, *axes: int) -> Sampler:
        """The sampler of the faces across these axes, all alike; of the whole boundary where no axis is named."""
        ends = [(axis, end) for axis in axes or range(self.dimension) for end in (0, 1)]

        def points(n: int, generator: torch.Generator) -> Tensor:
            counts = [n // len(ends) + (k < n % len(ends)) for k in range(len(ends))]
            return torch.cat([self.face(*end)(count, generator) for end, count in zip(ends, counts) if count])

        return points

    def where(self, condition: Callable[[Tensor], Tensor]) -> Sampler:
        """The sampler of the part of the box where the condition holds."""

        def points(n: int, generator: torch.Generator) -> Tensor:
            parts, count, tries = [], 0, 2 * n
            while count < n:
                x = self.inside(tries, generator)
                parts.append(x[condition(x)])
                count += len(parts[-1])
                if count == 0 and (tries := 4 * tries) > 1_000_000:
                    raise ValueError(f"the condition holds at none of {tries // 4} points of {self}")
            return torch.cat(parts)[:n]

        return points


def _even(n: int, dimension: int, generator: torch.Generator) -> Tensor:
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    return torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed).draw(n, dtype=torch.float64)
