"""Classes that arrive one group at a time: `head.grow` adds outputs, and nothing is forgotten.

    python examples/new_classes.py [--quick]

Ten classes come in five groups of two; when a group has passed, none of its rows is seen again. A linear layer that
learns by gradient steps forgets the old classes while it learns the new ones. The solved layer remembers every batch in
one small matrix (`Kalman` with forget=1), so it ends where one fit on all rows at once ends.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F

import closedform as cf

CLASSES, GROUP, INPUTS, WIDTH = 10, 2, 16, 256


def data(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three blobs a class, too close together for a linear boundary between the inputs."""
    centres = torch.randn(CLASSES, 3, INPUTS, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (rows,), generator=draw)
    blob = torch.randint(3, (rows,), generator=draw)
    return centres[y, blob] + 0.5 * torch.randn(rows, INPUTS, generator=draw), y


def main(quick: bool = False) -> dict[str, float]:
    rows = 3000 if quick else 30000
    torch.manual_seed(1)
    backbone = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU()).requires_grad_(False)
    (x, y), (x_test, y_test) = data(rows, 1), data(2000, 2)
    phi, phi_test = backbone(x), backbone(x_test)
    head = cf.ClosedFormLinear(WIDTH, GROUP, rule=cf.Kalman(forget=1.0, lam=1.0), loss=cf.OneHotSquared()).eval()
    learned = nn.Linear(WIDTH, CLASSES)
    optimizer = torch.optim.SGD(learned.parameters(), lr=0.05, momentum=0.9)
    for first in range(0, CLASSES, GROUP):
        if first:
            head.grow(GROUP)
        own = ((y >= first) & (y < first + GROUP)).nonzero()[:, 0]
        for batch in own.split(64):
            head.solve(phi[batch], y[batch])
            optimizer.zero_grad()
            F.cross_entropy(learned(phi[batch]), y[batch]).backward()
            optimizer.step()
        seen = y_test < first + GROUP
        right = [float((m(phi_test[seen]).argmax(1) == y_test[seen]).float().mean()) for m in (head, learned)]
        print(f"classes 0 to {first + GROUP - 1}: right {right[0]:.3f} solved, {right[1]:.3f} by gradient steps")
    whole = cf.ClosedFormLinear(WIDTH, CLASSES, rule=cf.Ridge(1.0), loss=cf.OneHotSquared()).eval()
    whole.solve(phi, y)
    at_once = float((whole(phi_test).argmax(1) == y_test).float().mean())
    print(f"one fit on all rows at once: {at_once:.3f}")
    return {"solved": right[0], "learned": right[1], "at once": at_once}


if __name__ == "__main__":
    main("--quick" in sys.argv)
