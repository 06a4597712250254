"""The models of the QM9 experiment: the paper's grids, and what stands beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...solver.lambdas import relative
from ...solver.rules import Proximal, Rule
from ...stack.models import Candidate
from .stacks import INIT, GridModel

RATES = (0.1, 0.01, 0.005, 0.001, 0.0005, 0.0001)
LAMBDAS = (0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 5e3, 1e4, 1e5)
BETAS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 5e3, 1e4, 1e5)
INITS = ("zeros", "lecun", "xavier", "he")
# what initialisations, algorithms and the bias are compared at
ABLATED = {"lam": (1e3, 1e4), "lr": (0.1, 0.01, 0.005, 0.001)}
OWN_RATES = {"sgd": (0.3, 0.1, 0.03, 0.01, 0.003), "adam": (0.01, 0.003, 0.001, 0.0003)}

SETTINGS = ("lr", "lam", "beta", "ratio", "forget")


@dataclass(frozen=True)
class QM9Model(GridModel):
    """A model of this grid: lambda may be relative to the features, and the rate may fall along a cosine."""

    ratio: float | None = None
    cosine: bool = False  # whether the rate falls; else it is constant

    def candidate(self) -> Candidate:
        follow = self.cosine and self.method in ("per feature", "schedule", "kalman")
        return Candidate(self.lr, self.rule(), self.init, self.cosine, follow)

    def rule(self) -> Rule | None:
        if self.ratio is not None:
            return Proximal(relative(self.ratio, per_feature=self.method == "per feature"))
        return super().rule()


def paper_models(init: str) -> list[QM9Model]:
    """The paper's grid, at a constant rate: 6 + 72 + 54 models."""
    models = [QM9Model("l2", lr, init) for lr in RATES]
    models += [QM9Model("ridge", lr, init, beta=beta) for lr in RATES for beta in BETAS]
    return models + [QM9Model("proximal", lr, init, lam=lam) for lr in RATES for lam in LAMBDAS]


def own_models(init: str, rates: Iterable[float]) -> list[QM9Model]:
    """What the paper does not have, and its methods at the same falling rate."""
    models = []
    for lr in rates:
        models.append(QM9Model("l2 cosine", lr, init, cosine=True))
        models += [QM9Model("proximal cosine", lr, init, lam=lam, cosine=True) for lam in (1e3, 1e4, 1e5)]
        models.append(QM9Model("auto", lr, init, ratio=10.0, cosine=True))
        models += [QM9Model("per feature", lr, init, ratio=ratio, cosine=True) for ratio in (10.0, 100.0)]
        models += [QM9Model("schedule", lr, init, ratio=ratio, cosine=True) for ratio in (10.0, 30.0, 100.0)]
        models += [QM9Model("kalman", lr, init, forget=forget, cosine=True) for forget in (0.99, 0.999)]
    return models


def models(optimizer: str, size: str) -> list[QM9Model]:
    """The models of one stack: the "full" grid, the "quick" one (the same few settings and the same falling rate for each
    method), or those that are "ablated"."""
    init = INIT[optimizer]
    if size == "ablated":
        return [QM9Model("proximal", lr, init, lam=lam) for lr in ABLATED["lr"] for lam in ABLATED["lam"]]
    if size == "full":
        others = [
            QM9Model("proximal", m.lr, other, lam=m.lam)
            for other in INITS
            if other != init
            for m in models(optimizer, "ablated")
        ]
        return paper_models(init) + own_models(init, OWN_RATES[optimizer]) + others
    rates = (0.03, 0.01, 0.003) if optimizer == "sgd" else (0.003, 0.001, 0.0003)
    quick = [QM9Model("l2", factor * lr, init) for lr in rates for factor in (1.0, 1.7)]
    quick += [QM9Model("ridge", lr, init, beta=beta) for lr in rates for beta in (10.0, 1e3)]
    quick += [QM9Model("proximal", lr, init, lam=lam) for lr in rates for lam in (1e3, 1e4)]
    quick += [QM9Model("kalman", lr, init, forget=forget) for lr in rates for forget in (0.99, 0.999)]
    return [replace(model, cosine=True) for model in quick]
