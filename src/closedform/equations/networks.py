"""Backbones whose features are worth solving with before any training.

What decides is how fast the features vary over the domain: too slowly, and they cannot follow the solution; too fast, and
there are too few of them. `network` takes that as a number, and `best_network` finds it by trying: a solve takes less than a
second, and its residual at fresh points is an honest judge.

At a corner that points inwards, or where conditions of two kinds meet, a solution behaves like a power of the distance, and
no smooth feature follows it. Half of the features then see the logarithm of the distance and the direction instead
(`Corners`): in these a power is smooth.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .domains import DECADES, Box
from .jets import Sine
from .problem import Problem
from .solution import Solution
from .solving import solve

TRIALS: dict[type[nn.Module], tuple[float, ...]] = {
    nn.Tanh: (0.5, 1.0, 2.0, 4.0, 8.0),
    Sine: (1.0, 2.0, 4.0, 8.0, 16.0),
}
ENOUGH = 1e-11  # a residual, in the units of the rows, below which nothing more is tried


LOG_SLOPE, DIRECTION_SLOPE = 0.5, 2.0  # of features around a corner, at most
NEAREST = 1e-10  # of the box: nearer to a corner nothing changes


class Corners(nn.Module):
    """Coordinates around corners: the position `(n, D)`, then for every corner the logarithm of the distance and the
    direction, `(n, D + corners (1 + D))` in all."""

    points: Tensor

    def __init__(self, points: Sequence[Sequence[float]], size: float):
        super().__init__()
        self.register_buffer("points", torch.tensor(points, dtype=torch.float64))
        self.least = NEAREST * size

    def forward(self, x: Tensor) -> Tensor:
        away = x.unsqueeze(-2) - self.points
        square = away.square().sum(-1, keepdim=True) + self.least**2
        around = torch.cat([square.log() / 2, away * square.rsqrt()], -1)
        return torch.cat([x, around.flatten(-2)], -1)


def network(
    box: Box,
    features: int = 512,
    *,
    scale: float | Sequence[float] = 1.0,
    activation: type[nn.Module] = nn.Tanh,
    hidden: Sequence[int] = (),
    corners: Sequence[Sequence[float]] = (),
    seed: int = 0,
) -> nn.Sequential:
    """Layers of an activation in float64, on a box.

    scale: how fast the features vary, along all coordinates or along each. The slopes of the first layer are uniform up to
        `scale` for a box that goes from -1 to 1, and each unit is centred at a random point of the box (for `Sine` its phase
        is random).
    hidden: the widths of layers before the features; without one the features are `activation(linear(x))`.
    corners: points at which the solution is not smooth. Half of the units of the first layer see the position, the others
        the coordinates of `Corners`, one corner each.
    """
    D = box.dimension
    corners = [tuple(float(part) for part in corner) if hasattr(corner, "__len__") else () for corner in corners]
    if any(len(corner) != D or not all(map(math.isfinite, corner)) for corner in corners):
        raise ValueError(f"corners must be a list of points with {D} coordinates each, as the box has, got {corners}")
    if isinstance(scale, Sequence) and len(scale) != D:
        raise ValueError(f"scale needs one value or {D}, as the box has coordinates, got {scale}")
    if min([features, *hidden]) < 1 or (hidden or [features])[0] // 2 < len(corners):
        raise ValueError(f"expected at least one unit a layer and two a corner, got {[*hidden, features]}")
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1

    low, high = torch.tensor([box.low, box.high], dtype=torch.float64)
    size = float((high - low).norm())
    widths = [D + len(corners) * (1 + D), *hidden, features]
    layers: list[nn.Module] = [Corners(corners, size)] if corners else []
    for k, (before, after) in enumerate(zip(widths, widths[1:])):
        layer = nn.Linear(before, after, dtype=torch.float64)
        with torch.no_grad():
            if k == 0:
                slopes = torch.as_tensor(scale, dtype=torch.float64) * uniform(after, D) * 2 / (high - low)
                centres = (low + high) / 2 + uniform(after, D) * (high - low) / 2
                if corners:
                    slopes, centres = _around(len(corners), slopes, centres, size, uniform)
                layer.weight.copy_(slopes)
                layer.bias.copy_(math.pi * uniform(after) if activation is Sine else -(slopes * centres).sum(1))
            else:
                layer.weight.copy_(math.sqrt(3 / before) * uniform(after, before))
                layer.bias.copy_(uniform(after))
        layers += [layer, activation()]
    return nn.Sequential(*layers)


def _around(
    corners: int, slopes: Tensor, centres: Tensor, size: float, uniform: Callable[..., Tensor]
) -> tuple[Tensor, Tensor]:
    """Slopes and centres `(units, D)` for the coordinates of `Corners`: the second half of the units is for the corners, in
    turn."""
    units, D = slopes.shape
    log_distance = math.log(size) + DECADES * math.log(10) * (uniform(units, corners, 1) - 1) / 2
    around = torch.cat([LOG_SLOPE * uniform(units, corners, 1), DIRECTION_SLOPE * uniform(units, corners, D)], -1)
    number = torch.arange(units)[:, None]
    cornered = number >= units // 2
    mine = cornered & (number % corners == torch.arange(corners))
    slopes = torch.cat([slopes * ~cornered, (around * mine[:, :, None]).flatten(1)], 1)
    return slopes, torch.cat([centres, torch.cat([log_distance, uniform(units, corners, D)], -1).flatten(1)], 1)


def best_network(
    problem: Problem,
    box: Box,
    features: int = 512,
    *,
    corners: Sequence[Sequence[float]] = (),
    trial_features: int = 256,
    seed: int = 0,
) -> nn.Sequential:
    """The network of the activation and scales whose solve has the smallest residual at fresh points.

    First one scale for all coordinates, then a larger or smaller one for each, as long as that helps.

    corners: points at which the solution is not smooth, see `network`. Around them the activation is tanh: sines of the
        logarithm of the distance would oscillate without end.
    trial_features: of the networks that are tried, which need not be as wide as the one that is returned.
    """

    def solution(activation: type[nn.Module], scale: Sequence[float]) -> Solution:
        width = min(trial_features, features)
        trial = network(box, width, scale=scale, activation=activation, corners=corners, seed=seed)
        with warnings.catch_warnings():  # a trial may fail
            warnings.simplefilter("ignore", UserWarning)
            return solve(problem, trial, steps=0, seed=seed)

    # In units of its own rows a network of fast features would always look better: its rows are longer.
    units = solution(nn.Tanh if corners else Sine, [4.0] * box.dimension).row_norms

    def residual(activation: type[nn.Module], scale: Sequence[float]) -> float:
        parts = solution(activation, scale).residuals
        left = math.hypot(*(parts[name] / size for name, size in units.items() if size > 0))
        return left if math.isfinite(left) else float("inf")

    activation, scale, least = nn.Tanh, [1.0] * box.dimension, float("inf")
    for kind, sizes in TRIALS.items():
        for size in () if corners and kind is Sine else sizes:
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
    return network(box, features, scale=scale, activation=activation, corners=corners, seed=seed)
