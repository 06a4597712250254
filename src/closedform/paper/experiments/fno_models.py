"""The models of the experiment on Burgers' equation: the paper's grids, and smaller ones with as many settings a method.

    full      the paper's grid: 12 (SGD) or 6 (Adam) rates for l2; each of them with 9 values of beta (ridge) and of lambda
              (proximal), and with 4 memories of the Kalman filter
    reduced   12 settings a method: 12 rates for l2, 3 rates by 4 values for the others
    quick     4 settings a method: 4 rates, or 2 rates by 2 values
    wider     what `beyond` takes its settings from: those around a best one that lies at an end of its grid

The reduced and the quick grid were fixed before any run at full size, after trials with 362 samples, 64 points, a width of
64 and a few epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from .stacks import INIT, GridModel

RATES = {
    "sgd": (10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.01, 0.005, 0.001, 0.0005),
    "adam": (0.1, 0.01, 0.005, 0.001, 0.0005, 0.0001),
}
LAMBDAS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)  # and betas
MEMORIES = (0.5, 0.9, 0.99, 0.999)

REDUCED_L2 = {
    "sgd": RATES["sgd"],
    "adam": (0.1, 0.05, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001, 0.0005, 0.0003, 0.0002, 0.0001),
}
REDUCED_RATES = {"sgd": (1.0, 0.2, 0.05), "adam": (0.005, 0.001, 0.0005)}
REDUCED_LAMBDAS = (1e-4, 1e-2, 1.0, 100.0)

QUICK_L2 = {"sgd": (0.5, 0.2, 0.1, 0.05), "adam": (0.01, 0.005, 0.001, 0.0005)}
QUICK_RATES = {"sgd": (0.5, 0.1), "adam": (0.005, 0.001)}

WIDER_RATES = {
    "sgd": (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    "adam": (5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
}
WIDER_LAMBDAS = tuple(10.0**k for k in range(-6, 7))
WIDER_MEMORIES = (0.1, 0.2, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
FURTHER = 2  # values beyond an end

SETTINGS = ("lr", "lam", "beta", "forget")


def models(optimizer: str, size: str) -> list[GridModel]:
    """The models of one stack."""
    if size == "full":
        return _grid(optimizer, RATES[optimizer], RATES[optimizer], LAMBDAS, LAMBDAS, MEMORIES)
    if size == "reduced":
        rates = REDUCED_L2[optimizer], REDUCED_RATES[optimizer]
        return _grid(optimizer, *rates, REDUCED_LAMBDAS, REDUCED_LAMBDAS, MEMORIES)
    if size == "wider":
        rates = WIDER_RATES[optimizer]
        return _grid(optimizer, rates, rates, WIDER_LAMBDAS, WIDER_LAMBDAS, WIDER_MEMORIES)
    return _grid(optimizer, QUICK_L2[optimizer], QUICK_RATES[optimizer], (1e-2, 1.0), (1e-2, 100.0), (0.9, 0.99))


def _grid(
    optimizer: str,
    learned: Sequence[float],
    rates: Sequence[float],
    betas: Sequence[float],
    lambdas: Sequence[float],
    memories: Sequence[float],
) -> list[GridModel]:
    init = INIT[optimizer]
    models = [GridModel("l2", lr, init) for lr in learned]
    models += [GridModel("ridge", lr, init, beta=beta) for lr in rates for beta in betas]
    models += [GridModel("proximal", lr, init, lam=lam) for lr in rates for lam in lambdas]
    return models + [GridModel("kalman", lr, init, forget=forget) for lr in rates for forget in memories]


def beyond(optimizer: str, best: GridModel, tried: Sequence[GridModel]) -> list[int]:
    """The numbers, in the wider grid, of the settings beyond those ends of the grid `tried` at which `best` lies; none where
    it lies at no end."""
    choices, ended = [], False
    wide = {"lr": WIDER_RATES[optimizer], "lam": WIDER_LAMBDAS, "beta": WIDER_LAMBDAS, "forget": WIDER_MEMORIES}
    for name in SETTINGS:
        own, values = getattr(best, name), [getattr(model, name) for model in tried if model.method == best.method]
        more: list[float | None] = []
        if own is not None and own == max(values):
            more += [value for value in wide[name] if value > own][:FURTHER]
        elif own is not None and own == min(values):
            more += [value for value in wide[name] if value < own][-FURTHER:]
        choices.append([own, *more])
        ended = ended or bool(more)
    if not ended:
        return []
    known = {astuple(model) for model in tried}
    grid = models(optimizer, "wider")
    return [
        k
        for k, model in enumerate(grid)
        if model.method == best.method
        and astuple(model) not in known
        and all(getattr(model, name) in values for name, values in zip(SETTINGS, choices))
    ]
