"""The rules, losses, shapes and problems that the tests run over: each is defined here and nowhere else."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import closedform as cf

SHAPES = {"n<d": (5, 9), "n=d": (9, 9), "n=d+1": (10, 9), "n>d": (30, 9), "n=1": (1, 4), "d=1": (6, 1)}
OUTPUTS = (1, 3)

shapes = pytest.mark.parametrize(
    ("n", "d", "o", "bias"),
    [
        pytest.param(n, d, o, bias, id=f"{name}-o={o}-{'bias' if bias else 'nobias'}")
        for (name, (n, d)), o, bias in itertools.product(SHAPES.items(), OUTPUTS, (True, False))
    ],
)
conditions = pytest.mark.parametrize("condition", [1.0, 1e3, 1e6, 1e9, 1e12])
lams = pytest.mark.parametrize("lam", [1e-12, 1e-6, 1e-3, 1.0, 1e3])

# ---- Rules -----------------------------------------------------------------------------------------


def rules_of(features: int) -> dict[str, cf.Rule]:
    """Every kind of rule, for so many features and a bias."""
    return {
        "ridge": cf.Ridge(0.5),
        "minimum norm": cf.Ridge(0.0),
        "proximal": cf.Proximal(0.5),
        "far": cf.Proximal(20.0),
        "auto": cf.Proximal("auto"),
        "per feature": cf.Proximal(cf.lambdas.relative(10, per_feature=True)),
        "per sample": cf.Proximal(cf.per_sample(0.1)),
        "schedule": cf.Proximal(cf.lambdas.cosine(10.0, 1.0, 20)),
        "tensor": cf.Proximal(torch.tensor(2.0)),
        "vector": cf.Proximal(torch.linspace(1.0, 7.0, features + 1)),
        "short vector": cf.Proximal(torch.linspace(1.0, 50.0, features)),  # the bias, if there is one, has the mean
        "ema": cf.Ema(0.5, 0.9),
        "kalman": cf.Kalman(0.99),
        "information": cf.Kalman(0.9, lam=0.5, form="information"),
        "covariance": cf.Kalman(0.9, lam=0.5, form="covariance"),
        "drifting information": cf.Kalman(0.9, 0.01, 2.0, form="information"),
        "drifting covariance": cf.Kalman(0.9, 0.01, 2.0, form="covariance"),
        "several memories": cf.Auto(),
    }


RULES = rules_of(6)
# what a layer keeps differs between these: nothing, a schedule's step, a vector, a matrix
MODULE_RULES = (
    "ridge", "proximal", "auto", "schedule", "vector", "ema", "drifting information", "drifting covariance",
    "several memories",
)  # fmt: skip
# what a solve computes differs between these
SOLVE_RULES = (
    "ridge", "minimum norm", "proximal", "auto", "per sample", "vector", "ema", "information", "covariance",
    "drifting covariance", "several memories",
)  # fmt: skip


def rules(*names: str, features: int = 6, without: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """A test for each of these rules, or for all but some."""
    known = rules_of(features)
    chosen = names or tuple(name for name in known if name not in without)
    return pytest.mark.parametrize("rule", [pytest.param(known[name], id=name) for name in chosen])


# ---- Losses ----------------------------------------------------------------------------------------

LOSSES = {
    "squared": cf.Squared(),
    "one-hot": cf.OneHotSquared(0.1),
    "generalized": cf.GeneralizedSquared(5.0, 2.0),
    "generalized, k < 1": cf.GeneralizedSquared(0.2, 2.0),
    "cross-entropy": cf.CrossEntropy(3),
    "logistic": cf.Logistic(3),
    "huber": cf.Huber(0.1, 3),
}
# those that are solved by a quadratic bound, as functions of the number of inner steps
BOUNDED = {
    "cross-entropy": cf.CrossEntropy,
    "logistic": cf.Logistic,
    "huber": lambda inner_steps=1: cf.Huber(0.3, inner_steps),
}


def losses(*names: str, without: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """A test for each of these losses, or for all but some."""
    chosen = names or tuple(name for name in LOSSES if name not in without)
    return pytest.mark.parametrize("loss", [pytest.param(LOSSES[name], id=name) for name in chosen])


bounded = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in BOUNDED.items()])

# ---- Problems --------------------------------------------------------------------------------------


def nasty(g: torch.Generator) -> tuple[Tensor, Tensor, float, bool]:
    """A random problem in float32: any lambda, scale and rank; duplicate, constant and zero features; n = 1. Features,
    targets, lambda, and whether there is a bias."""

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    def chance(p: float) -> bool:
        return float(torch.rand((), generator=g)) < p

    n, d, o = (1 if chance(0.1) else pick(1, 24)), pick(1, 16), pick(1, 3)
    rank = pick(1, min(n, d))
    phi = torch.randn(n, rank, generator=g) @ torch.randn(rank, d, generator=g)
    if chance(0.3):
        phi = phi * torch.logspace(0, -float(torch.rand((), generator=g)) * 6, d)
    if chance(0.2):
        phi[:, pick(0, d - 1)] = phi[:, 0]
    if chance(0.2):
        phi[:, pick(0, d - 1)] = 1.0
    if chance(0.2):
        phi[:, pick(0, d - 1)] = 0.0
    if chance(0.05):
        phi.zero_()
    if chance(0.2) and n > 1:
        phi[-1] = phi[0]
    phi = phi * 10 ** float(torch.empty(()).uniform_(-6, 6, generator=g))
    y = torch.randn(n, o, generator=g) * 10 ** float(torch.empty(()).uniform_(-3, 3, generator=g))
    lam = 10 ** float(torch.empty(()).uniform_(-8, 8, generator=g))
    return phi, y, lam, chance(0.5)


@dataclass(frozen=True)
class Overflow:
    """A finite batch on which the solve of a layer whose numbers are all 0.5 is too large for float32 in some entries and
    fits in the others."""

    phi: Tensor
    y: Tensor
    bias: bool = False
    lam: float = 1e-12

    @property
    def shape(self) -> tuple[int, int]:
        return self.phi.shape[1], self.y.shape[1]


def _steep(n: int, d: int, outputs: int = 1) -> Overflow:
    """The first weight becomes about 1e40; the others stay small."""
    phi = torch.full((n, d), 1e-30)
    phi[:, 0] = 1e-5
    y = torch.full((n, outputs), 1e35)
    y[:, 1:] = 1.0
    return Overflow(phi, y)


def _far_away(n: int, d: int) -> Overflow:
    """A line through points far from zero: its slope fits, the bias, about -6e40, does not."""
    phi = torch.full((n, d), 1e-30)
    phi[:, 0] = 1000 + 10 * (torch.arange(n) % 2)
    return Overflow(phi, (3e38 * (2.0 * (torch.arange(n) % 2) - 1))[:, None], bias=True)


OVERFLOWS = {
    "one row": _steep(1, 2),
    "one of several outputs": _steep(3, 9, 3),
    "32 < n <= 128": _steep(40, 50, 2),
    "n > d": _steep(5, 2),
    "bias only": _far_away(2, 3),
    "bias only, 32 < n <= 128": _far_away(40, 50),
    "bias only, n > d": _far_away(8, 3),
}
overflows = pytest.mark.parametrize("overflow", [pytest.param(case, id=name) for name, case in OVERFLOWS.items()])
