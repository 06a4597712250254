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
from .solving import solve

TRIALS = ((nn.Tanh, 0.5), (nn.Tanh, 1.0), (nn.Tanh, 2.0), (nn.Tanh, 4.0), (nn.Tanh, 8.0),
          (Sine, 1.0), (Sine, 2.0), (Sine, 4.0), (Sine, 8.0), (Sine, 16.0))  # fmt: skip


def network(
    box: Box, features: int = 512, *, scale: float = 1.0, activation: type[nn.Module] = nn.Tanh,
    hidden: Sequence[int] = (), seed: int = 0,
) -> nn.Sequential:  # fmt: skip
    """Layers of an activation in float64, on a box.

    scale: how fast the features vary. The slopes of the first layer are uniform up to `scale` for a box that goes from -1 to
        1, and each unit is centred at a random point of the box (for `Sine` its phase is random).
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
                slopes = scale * uniform(after, before) * 2 / (high - low)
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
    """The network of the activation and scale whose solve has the smallest relative residual at fresh points.

    trial_features: of the networks that are tried, which need not be as wide as the one that is returned.
    """
    residuals = []
    for activation, scale in TRIALS:
        trial = network(box, min(trial_features, features), scale=scale, activation=activation, seed=seed)
        residuals.append(solve(problem, trial, steps=0, seed=seed).relative_residual)
    activation, scale = TRIALS[residuals.index(min(residuals))]
    return network(box, features, scale=scale, activation=activation, seed=seed)
