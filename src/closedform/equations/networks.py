"""Backbones whose features are worth solving with before any training.

What decides is how fast the features vary over the domain: too slowly, and they cannot follow the solution; too fast, and
there are too few of them. `network` takes that as a number, and `best_network` finds it by trying: a solve takes less than a
second, and its residual at fresh points is an honest judge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from .domains import Box
from .jets import Sine
from .problem import Problem
from .solution import Solution
from .solving import solve

TRIALS: dict[type[nn.Module], tuple[float, ...]] = {
    nn.Tanh: (0.5, 1.0, 2.0, 4.0, 8.0),
    Sine: (1.0, 2.0, 4.0, 8.0, 16.0),
}
ENOUGH = 1e-11  # a residual, in the units of the rows, below which nothing more is tried


def network(
    box: Box,
    features: int = 512,
    *,
    scale: float | Sequence[float] = 1.0,
    activation: type[nn.Module] = nn.Tanh,
    hidden: Sequence[int] = (),
    seed: int = 0,
) -> nn.Sequential:
    """Layers of an activation in float64, on a box.

    scale: how fast the features vary, along all coordinates or along each. The slopes of the first layer are uniform up to
        `scale` for a box that goes from -1 to 1, and each unit is centred at a random point of the box (for `Sine` its phase
        is random).
    hidden: the widths of layers before the features; without one the features are `activation(linear(x))`.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1

    low, high = torch.tensor([box.low, box.high], dtype=torch.float64)
    widths = [box.dimension, *hidden, features]
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(zip(widths, widths[1:])):
        layer = nn.Linear(before, after, dtype=torch.float64)
        with torch.no_grad():
            if k == 0:
                slopes = torch.as_tensor(scale, dtype=torch.float64) * uniform(after, before) * 2 / (high - low)
                centres = (low + high) / 2 + uniform(after, before) * (high - low) / 2
                layer.weight.copy_(slopes)
                layer.bias.copy_(math.pi * uniform(after) if activation is Sine else -(slopes * centres).sum(1))
            else:
                layer.weight.copy_(math.sqrt(3 / before) * uniform(after, before))
                layer.bias.copy_(uniform(after))
        layers += [layer, activation()]
    return nn.Sequential(*layers)


def best_network(
    problem: Problem, box: Box, features: int = 512, *, trial_features: int = 256, seed: int = 0
) -> nn.Sequential:
    """The network of the activation and scales whose solve has the smallest residual at fresh points.

    First one scale for all coordinates, then a larger or smaller one for each, as long as that helps.

    trial_features: of the networks that are tried, which need not be as wide as the one that is returned.
    """

    def solution(activation: type[nn.Module], scale: Sequence[float]) -> Solution:
        trial = network(box, min(trial_features, features), scale=scale, activation=activation, seed=seed)
        return solve(problem, trial, steps=0, seed=seed)

    # In units of its own rows a network of fast features would always look better: its rows are longer.
    units = solution(Sine, [4.0] * box.dimension).row_norms

    def residual(activation: type[nn.Module], scale: Sequence[float]) -> float:
        parts = solution(activation, scale).residuals
        left = math.hypot(*(parts[name] / size for name, size in units.items() if size > 0))
        return left if math.isfinite(left) else float("inf")

    activation, scale, least = nn.Tanh, [1.0] * box.dimension, float("inf")
    for kind, sizes in TRIALS.items():
        for size in sizes:
            left = residual(kind, [size] * box.dimension)
            if left < least:
                activation, scale, least = kind, [size] * box.dimension, left
    for axis in range(box.dimension if box.dimension > 1 else 0):
        before = least
        for factor in (2.0, 0.5):
            while least > ENOUGH:
                candidate = [size * factor if k == axis else size for k, size in enumerate(scale)]
                left = residual(activation, candidate)
                if not left < least:
                    break
                scale, least = candidate, left
            if least < before:  # back again would be the same trials
                break
    return network(box, features, scale=scale, activation=activation, seed=seed)
