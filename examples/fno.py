"""A Fourier neural operator whose last layer, one for all points in space, is solved at every step.

    python examples/fno.py [--quick]

Viscous Burgers' equation: from a field at time 0 to the field at time 1. The layer is learned by SGD or solved, both from
one backbone, on the same batches; each has the best of four learning rates, by its error on fresh fields. A batch of B
fields on N points is B N rows for the solve. An operator does not see the grid: trained on one point in four, it is used on
all. `closedform paper fno` is the experiment of the paper.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import closedform as cf
from closedform.paper.data import burgers
from closedform.paper.models.fno import FNO1d

RATES = (0.05, 0.1, 0.2, 0.5)
WIDTH, MODES, EVERY = 32, 12, 4


class Fields(NamedTuple):
    """`(samples, points)` at time 0 and `(samples, points, 1)` at time 1."""

    start: Tensor
    end: Tensor

    def coarse(self) -> Fields:
        return Fields(self.start[:, ::EVERY], self.end[:, ::EVERY])


def fields(samples: int, points: int, seed: int) -> Fields:
    start = burgers.random_field(samples, points, seed=seed)
    end = burgers.solve(start, burgers.VISCOSITY, burgers.TIME)
    return Fields(torch.from_numpy(start).float(), torch.from_numpy(end).float().unsqueeze(2))


def train(data: Fields, solved: bool, rate: float, epochs: int, batch: int = 16) -> nn.Module:
    torch.manual_seed(0)
    operator = FNO1d(WIDTH, MODES, blocks=3)
    head = cf.ClosedFormLinear(WIDTH, 1, rule=cf.Proximal(1.0), init="zeros") if solved else nn.Linear(WIDTH, 1)
    if not solved:
        nn.init.zeros_(head.weight)  # as the paper does under SGD, and as the other starts
        nn.init.zeros_(head.bias)
    trained = [*operator.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(trained, lr=rate, momentum=0.9, nesterov=True)
    for _ in range(epochs):
        for rows in torch.randperm(len(data.start)).split(batch):
            phi = operator(data.start[rows])  # (B, N, width)
            if isinstance(head, cf.ClosedFormLinear):
                head.solve(phi, data.end[rows])  # the one new line
            loss = F.mse_loss(head(phi), data.end[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return nn.Sequential(operator, head).eval()


@torch.no_grad()
def error(model: nn.Module, data: Fields) -> float:
    return float(F.mse_loss(model(data.start), data.end))


def main(quick: bool = False) -> dict[str, float]:
    samples, points, epochs = (64, 256, 8) if quick else (256, 512, 20)
    data, fresh = fields(samples, points, seed=0).coarse(), fields(64, points, seed=1)
    found = {}
    print(f"{samples} fields, {epochs} epochs; the fields have a variance of {float(fresh.end.var()):.3f}")
    for name, solved in (("learned", False), ("solved", True)):
        models = {rate: train(data, solved, rate, epochs) for rate in RATES}
        errors = {rate: error(model, fresh.coarse()) for rate, model in models.items()}
        rate = min(RATES, key=lambda rate: errors[rate] if errors[rate] == errors[rate] else float("inf"))
        found[name], found[f"{name}, all points"] = errors[rate], error(models[rate], fresh)
        print(
            f"last layer {name:8} mean squared error on {points // EVERY} points {errors[rate]:.2e}, "
            f"on {points} {found[f'{name}, all points']:.2e} (learning rate {rate})",
            flush=True,
        )
    return found


if __name__ == "__main__":
    main("--quick" in sys.argv)
