"""Regression in a plain loop: the last layer learned by gradient steps, and solved in closed form.

    python examples/regression.py [--quick]

All three nets start from the same backbone, see the same batches and take the same number of SGD steps; each has the best of
four learning rates, by its error on fresh rows.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import closedform as cf

RATES = (0.03, 0.1, 0.3, 1.0)


def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return x, torch.sin(4 * x[:, :1]) + torch.cos(4 * x[:, 1:2]) * x[:, 2:]


def train(head: nn.Linear, rate: float, steps: int, batch: int = 64) -> float:
    """The mean squared error on fresh rows."""
    torch.manual_seed(0)
    x, y = data(4096, seed=0)
    backbone = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,))
        phi = backbone(x[rows])
        if isinstance(head, cf.ClosedFormLinear):
            head.solve(phi, y[rows])  # the one new line
        loss = F.mse_loss(head(phi), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    x, y = data(4096, seed=1)
    with torch.no_grad():
        return float(F.mse_loss(head(backbone(x)), y))


def heads() -> dict[str, nn.Linear]:
    torch.manual_seed(0)
    return {
        "learned": nn.Linear(64, 1),
        "solved, Proximal": cf.ClosedFormLinear(64, 1, rule=cf.Proximal()),
        "solved, Kalman": cf.ClosedFormLinear(64, 1, rule=cf.Kalman(0.99)),
    }


def main(quick: bool = False) -> dict[str, float]:
    steps = 300 if quick else 3000
    errors = {}
    for name in heads():
        errors[name], rate = min((train(heads()[name], rate, steps), rate) for rate in RATES)
        print(
            f"{name:17} mean squared error after {steps} steps: {errors[name]:.5f} (learning rate {rate})", flush=True
        )
    return errors


if __name__ == "__main__":
    main("--quick" in sys.argv)
