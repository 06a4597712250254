"""Where points come from: boxes, their faces, and parts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Sampler = Callable[[int, torch.Generator], Tensor]
DECADES = 6.0  # how near a corner matters, in powers of ten of its distance


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
        if not all(hasattr(side, "__len__") for side in (self.low, self.high)):
            raise ValueError(f"a box needs two corners, each a sequence of numbers, got {self.low} and {self.high}")
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
        if not -self.dimension <= axis < self.dimension or end not in (0, 1):
            raise ValueError(
                f"a face has an axis of 0 to {self.dimension - 1} and an end of 0 or 1, got {axis} and {end}"
            )
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
                holds = condition(x)
                if holds.shape != (len(x),) or holds.dtype != torch.bool:
                    raise ValueError(
                        f"the condition must give a truth value for each of {len(x)} points, got {holds.dtype} of shape "
                        f"{tuple(holds.shape)}"
                    )
                parts.append(x[holds])
                count += len(parts[-1])
                if count == 0 and (tries := 4 * tries) > 1_000_000:
                    raise ValueError(f"the condition holds at none of {tries // 4} points of {self}")
            return torch.cat(parts)[:n]

        return points


def towards(sampler: Sampler, point: Sequence[float], decades: float = DECADES) -> Sampler:
    """The sampler with half of its points drawn in towards a corner, or whatever point the solution is not smooth at: as
    many to each power of ten of the distance. The straight way from a point of the domain to that one must be inside.

    >>> square = Box((0, 0), (1, 1))
    >>> x = towards(square.inside, (0.0, 0.0))(1000, torch.Generator().manual_seed(0))
    >>> bool(100 < (x.norm(dim=1) < 1e-3).sum() < 400)
    True
    """
    if not callable(sampler) or not hasattr(point, "__len__") or not decades > 0:
        raise ValueError(
            f"towards needs a sampler, a point and a positive number of decades, got {type(sampler).__name__}, {point} and "
            f"{decades}"
        )

    def points(n: int, generator: torch.Generator) -> Tensor:
        x = sampler(n, generator)
        if len(point) != x.shape[1]:
            raise ValueError(
                f"the point {tuple(point)} has {len(point)} coordinates, but the sampler's have {x.shape[1]}"
            )
        centre = torch.as_tensor(point, dtype=x.dtype, device=x.device)
        shrunk = 10 ** (-decades * torch.rand(len(x), 1, generator=generator, dtype=x.dtype))
        # by chance, for evenly spread points have an order: every second one lies in one half of the box
        shrunk[torch.rand(len(x), generator=generator) < 0.5] = 1.0
        return centre + (x - centre) * shrunk.to(x.device)

    return points


def _even(n: int, dimension: int, generator: torch.Generator) -> Tensor:
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    return torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed).draw(n, dtype=torch.float64)
