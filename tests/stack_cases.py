"""Candidates of every kind, and a stack of small networks that trains them on a small problem."""

import torch

import closedform as cf
from closedform.solver import lambdas
from closedform.stack import measuring
from closedform.stack.models import Candidate, Stack
from closedform.stack.networks import mlp

STEPS, ROWS, INPUTS, WIDTH, OUTPUTS = 100, 90, 7, 12, 3
TENSOR = torch.linspace(0.5, 3, WIDTH)
CANDIDATES = {
    "l2": Candidate(0.05),
    "l2 cosine": Candidate(0.05, cosine=True, init="lecun"),
    "ridge": Candidate(0.05, cf.Ridge(0.3)),
    "ridge per sample": Candidate(0.02, cf.Ridge(cf.per_sample(0.1)), init="he"),
    "proximal": Candidate(0.05, cf.Proximal(5.0), init="xavier"),
    "auto": Candidate(0.03, cf.Proximal("auto")),
    "relative": Candidate(0.03, cf.Proximal(lambdas.relative(2.0, per_feature=True))),
    "vector": Candidate(0.03, cf.Proximal(TENSOR)),
    "follow": Candidate(0.05, cf.Proximal(5.0), cosine=True, follow=True),
    "ema": Candidate(0.05, cf.Ema(0.3, momentum=0.8)),
    "kalman": Candidate(0.05, cf.Kalman(0.95)),
    "kalman follow": Candidate(0.05, cf.Kalman(0.9, lam=2.0), cosine=True, follow=True),
}


def data(seeds=2, n=ROWS, dtype=torch.float64):
    g = torch.Generator().manual_seed(5)
    X = torch.randn(seeds, n, INPUTS, generator=g, dtype=dtype)
    Y = torch.sin(X @ torch.randn(INPUTS, OUTPUTS, generator=g, dtype=dtype)) + 0.05 * X[..., :OUTPUTS]
    return X, Y


def stack(candidates, seeds=(0, 3), dtype=torch.float64, batch_size=8, **options):
    backbones = [mlp([INPUTS, 10, WIDTH], generator=torch.Generator().manual_seed(s)).to(dtype) for s in seeds]
    models = Stack(backbones, candidates, OUTPUTS, batch_size=batch_size, total=STEPS, seeds=seeds, **options)
    models.feed(*data(len(seeds), dtype=dtype))
    return models


def measured():
    """The sets on which the loop measures a stack."""
    X, Y = data()
    return {
        "validation": measuring.EvaluationSet(X[:, :40], Y[:, :40]),
        "test": measuring.EvaluationSet(X[:, 40:], Y[:, 40:]),
    }
