"""Candidates, and a stack of small instrumental-variable models that trains them on a small problem."""

import torch

from closedform import Proximal, Ridge
from closedform.iv import DFIV, Data, Rules, Split, networks
from closedform.iv.stacked import IVCandidate, IVStack, Points
from closedform.solver.lambdas import per_sample, relative
from closedform.stack.networks import mlp

ROWS, SIDE, TOTAL = 60, 8, 30
CANDIDATES = [
    IVCandidate(1e-2, Rules.proximal(3.0, 5.0)),
    IVCandidate(3e-3, Rules.proximal(0.1, 100.0, 0.5)),
    IVCandidate(1e-2, Rules.ridge(0.2, 3.0)),
    IVCandidate(2e-3, Rules.proximal(relative(10.0), relative(1.0), relative(1e-2))),
    IVCandidate(5e-3, Rules(Ridge(per_sample(0.1)), Proximal(1e-3), Ridge(0.4))),
]


def problem(dtype=torch.float64):
    g = torch.Generator().manual_seed(1)
    Z = torch.randn(ROWS, 2, generator=g, dtype=dtype)
    u = torch.randn(ROWS, 1, generator=g, dtype=dtype)
    X = torch.cat([Z, u], 1) @ torch.randn(3, SIDE * SIDE, generator=g, dtype=dtype)
    X += 0.1 * torch.randn(ROWS, SIDE * SIDE, generator=g, dtype=dtype)
    y = torch.sin(X[:, :1]) + u
    points = {"test": Points(X[:20] * 0.5, torch.sin(X[:20, 0] * 0.5).double())}
    return Data(X, Z, y), Split.halves(ROWS, 0), points


def alone(rules, lr=1e-2, pool=1, dtype=torch.float64, T1=3, T2=1):
    g = torch.Generator().manual_seed(2)
    psi = networks.pooled(SIDE, pool, [10, 6], g)[0] if pool > 1 else mlp([SIDE * SIDE, 10, 6], generator=g)
    nets = psi.to(dtype), mlp([2, 9, 7], generator=g).to(dtype)
    return DFIV(*nets, widths=(6, 7), rules=rules, lr=lr, weight_decay=0.1, T1=T1, T2=T2, generator=g)


def stack(candidates=CANDIDATES, batch=8, pool=1, dtype=torch.float64, **options):
    data, split, points = problem(dtype)
    model = alone(candidates[0].rules, pool=pool, dtype=dtype, **options)
    return IVStack(model, candidates, data, split, points, batch_size=batch, total=TOTAL, seed=3)
