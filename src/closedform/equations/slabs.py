"""Long times, slab by slab: each slab of time is a problem of its own, and starts where the one before has ended.

A network that has to follow a whole history needs features for all of it. A slab needs them for a part, and the solve costs
the cube of their number, so ten slabs of 100 features cost a hundredth of one of 1,000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from .problem import Problem
from .solution import Solution
from .solving import solve

Build = Callable[[float, float, "Callable[[Tensor], Tensor] | None"], "tuple[Problem, nn.Module]"]


@dataclass
class March:
    """The solutions of all slabs. Called with points, whose last coordinate is the time, it asks the slab of each."""

    times: Sequence[float]
    slabs: list[Solution]

    def __call__(self, x: Tensor) -> Tensor:
        x = torch.as_tensor(x).to(self.slabs[0].weights)
        slab = torch.bucketize(x[:, -1].contiguous(), x.new_tensor(self.times[1:-1]))
        out = x.new_empty(len(x), len(self.slabs[0].weights))
        for k in slab.unique().tolist():
            out[slab == k] = self.slabs[k](x[slab == k])
        return out


def march(times: Sequence[float], build: Build, **options) -> March:
    """Solve one slab after the other.

    times: the edges of the slabs, from the first time to the last.
    build: `(begin, end, before) -> (problem, backbone)` of the slab between two times. `before` is the solution of the slab
        before, whose values at `begin` are the initial condition; None in the first slab.
    options: those of `solve`, for every slab. Of a `checkpoint` there is a file for each slab, with its number behind the
        name: all are removed at the end, unless `keep_checkpoint`.
    """
    if len(times) < 2 or not all(a < b for a, b in zip(times, times[1:])):
        raise ValueError(f"the edges of slabs must be two or more times that increase, got {list(times)}")
    slabs: list[Solution] = []
    checkpoint, keep = options.pop("checkpoint", None), options.pop("keep_checkpoint", False)
    files = [] if checkpoint is None else [Path(f"{checkpoint}.{k}") for k in range(len(times) - 1)]
    for k, (begin, end) in enumerate(zip(times, times[1:])):
        problem, backbone = build(begin, end, slabs[-1] if slabs else None)
        kept = {"checkpoint": files[k], "keep_checkpoint": True} if files else {}
        slabs.append(solve(problem, backbone, **options, **kept))
    for file in [] if keep else files:
        file.unlink(missing_ok=True)
    return March(times, slabs)
