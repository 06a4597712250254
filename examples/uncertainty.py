"""Error bars from the Kalman rule: how far a prediction may be off, and where the model has seen nothing.

    python examples/uncertainty.py [--quick]

The rule's memory is the covariance of the last layer. While the backbone moves, it forgets, and the covariance is that of
the last few batches. So when training is done, the backbone stands still and the layer takes in all rows once more without
forgetting: Bayesian linear regression on the learned features, exact, with the noise level estimated on the way.
It knows of doubt about the last layer only. Far from all rows the features themselves are wrong: there the error bars grow,
but the truth leaves them, as the last lines of the table show.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import closedform as cf

NOISE = 0.2


def truth(x: Tensor) -> Tensor:
    return torch.sin(3 * x)


def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows on [-2, -0.5] and [0.5, 2], with noise: nothing in between, nothing outside."""
    g = torch.Generator().manual_seed(seed)
    x = (torch.rand(n, 1, generator=g) * 1.5 + 0.5) * (torch.randint(2, (n, 1), generator=g) * 2 - 1)
    return x, truth(x) + NOISE * torch.randn(n, 1, generator=g)


def fit(steps: int, batch: int = 64) -> tuple[nn.Module, cf.ClosedFormLinear]:
    torch.manual_seed(0)
    x, y = data(1024, seed=0)
    backbone = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    head = cf.ClosedFormLinear(64, 1, rule=cf.Kalman(0.99))
    optimizer = torch.optim.Adam(backbone.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,))
        phi = backbone(x[rows])
        head.solve(phi, y[rows])
        loss = F.mse_loss(head(phi), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    backbone.eval().requires_grad_(False)
    head.reset_parameters()
    head.rule = cf.Kalman(forget=1.0, lam=0.1)  # a prior of variance sigma^2 / 0.1 on each weight, and no forgetting
    for part in torch.arange(len(x)).split(batch):
        head.solve(backbone(x[part]), y[part])
    return backbone, head


def main(quick: bool = False) -> dict[str, float]:
    backbone, head = fit(200 if quick else 2000)
    x, y = data(4096, seed=1)
    phi = backbone(x)
    std = head.variance(phi).sqrt()
    inside = float(((y - head(phi)).abs() < 1.96 * std).float().mean())
    print(f"of fresh rows {100 * inside:.1f} % lie within 1.96 standard deviations (95.0 % should)")
    print(
        f"the noise has the standard deviation {NOISE}; where there are many rows the model says {float(std.median()):.3f}"
    )
    print(f"\n{'x':>6} {'truth':>7} {'model':>7}  +- std")
    spread = {}
    for at in (-4.0, -3.0, -2.0, -1.25, -0.5, 0.0, 0.5, 1.25, 2.0, 3.0, 4.0):
        point = torch.tensor([[at]])
        mean, deviation = float(head(backbone(point))), float(head.variance(backbone(point)).sqrt())
        spread[at] = deviation
        print(f"{at:6.2f} {float(truth(point)):7.2f} {mean:7.2f}  {deviation:.3f} {'#' * round(20 * deviation)}")
    return {
        "inside": inside,
        "noise": float(std.median()),
        "seen": spread[1.25],
        "gap": spread[0.0],
        "far": spread[4.0],
    }


if __name__ == "__main__":
    main("--quick" in sys.argv)
