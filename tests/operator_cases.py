"""Methods, and a stack of small Fourier neural operators that trains with them on a small problem."""

import torch

import closedform as cf
from closedform.paper.models.fno import FNO1d
from closedform.stack.models import Candidate, Stack

STEPS, SAMPLES, POINTS, WIDTH, SEEDS = 12, 10, 12, 6, (0, 3)
METHODS = {
    "l2": Candidate(0.05, init="lecun"),
    "l2 slower": Candidate(0.01, init="lecun"),
    "ridge": Candidate(0.05, cf.Ridge(0.3)),
    "ridge per sample": Candidate(0.02, cf.Ridge(cf.per_sample(0.01))),
    "proximal": Candidate(0.05, cf.Proximal(5.0)),
    "auto": Candidate(0.03, cf.Proximal("auto")),
    "kalman": Candidate(0.05, cf.Kalman(0.95)),
}


def backbone(seed, modes=4, dtype=torch.float64):
    torch.manual_seed(seed)
    return FNO1d(WIDTH, modes, blocks=2).to(dtype)


def fields(samples=SAMPLES, points=POINTS, dtype=torch.float64):
    g = torch.Generator().manual_seed(5)
    x = 2 * torch.pi * torch.arange(points) / points
    a, b = torch.randn(2, len(SEEDS), samples, 1, generator=g).double()
    X = a * x.sin() + b * (2 * x).cos()
    return X.unsqueeze(3).to(dtype), (X.square() - 0.5 * X.roll(1, 2)).unsqueeze(3).to(dtype)


def stack(candidates, batch_size=3, dtype=torch.float64, points=POINTS, **options):
    models = Stack(
        [backbone(seed, dtype=dtype) for seed in SEEDS],
        candidates, 1, batch_size=batch_size, total=STEPS, seeds=SEEDS, **options,
    )  # fmt: skip
    models.feed(*fields(points=points, dtype=dtype))
    return models
