"""A loss of your own in ten lines: Poisson regression on counts, with a solved last layer.

    python examples/custom_loss.py [--quick]

A count y with rate exp(z) has the negative log-likelihood exp(z) - y z. Its second derivative, exp(z), has no bound; with
the rate held at exp(b) from z = b on, that is the bound, and the loss stays convex. That is all the solver has to know.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import closedform as cf


@dataclass(frozen=True)
class Poisson(cf.losses.Loss):
    """Counts whose rate is `exp(min(z, b))`."""

    b: float = 2.5
    inner_steps: int = 5

    @property
    def curvature(self) -> float:  # a bound on the second derivative
        return math.exp(self.b)

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        below = z.clamp(max=self.b)
        return torch.exp(below) * (1 + z - below) - y * z

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.exp(z.clamp(max=self.b)) - y


def data(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, counts, and the rates that the counts were drawn from."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=g) * 4 - 2
    rate = torch.exp(1 + torch.sin(2 * x[:, :1]) * torch.cos(x[:, 1:]))
    return x, torch.poisson(rate, generator=g), rate


def train(loss: cf.losses.Loss, steps: int) -> float:
    """The mean squared error of the logarithm of the rate, on fresh inputs."""
    torch.manual_seed(0)
    x, y, _ = data(2048, seed=0)
    backbone = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    head = cf.ClosedFormLinear(64, 1, rule=cf.Proximal(), loss=loss)
    optimizer = torch.optim.Adam(backbone.parameters(), lr=3e-3)
    for step in range(steps):
        rows = torch.arange(step * 128, (step + 1) * 128) % len(x)
        phi = backbone(x[rows])
        head.solve(phi, y[rows])
        value = head.loss(head(phi), y[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    x, _, rate = data(2048, seed=1)
    with torch.no_grad():
        z = head(backbone(x))
        z = z if isinstance(loss, Poisson) else z.clamp(min=1e-2).log()
        return float((z - rate.log()).square().mean())


def main(quick: bool = False) -> dict[str, float]:
    steps = 400 if quick else 1000
    errors = {type(loss).__name__: train(loss, steps) for loss in (Poisson(), cf.Squared())}
    for name, error in errors.items():
        print(f"{name:8} mean squared error of the log rate: {error:.4f}")
    return errors


if __name__ == "__main__":
    main("--quick" in sys.argv)
