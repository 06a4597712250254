"""How the networks of `PolicyEvaluator` learn: fitted Q evaluation, then both stages of Algorithm 3, all side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..solver.lambdas import relative
from ..solver.rules import Kalman, Proximal, Rule
from ..solver.stacks import check_side_by_side
from ..stack import loop
from .algorithm import DFIV, Rules
from .fqe import FittedQ
from .loop import Data, Iterations, Split, batches, together, train, train_side_by_side
from .policy_features import ActionFeatures, Difference

BACKUPS = 3  # of Bellman's operator in a fit, over the horizon 1 / (1 - discount)
SLOWER = 0.2  # the two stages' share of the learning rate: at the full one they spoil features that are learned already
APART = 1 << 20  # between the seeds of two networks, so that fits of neighbouring seeds share none


class Network(NamedTuple):
    """Features, the seed of their batches, and what their random numbers come from."""

    features: ActionFeatures
    seed: int
    generator: torch.Generator


@dataclass(frozen=True)
class TrainingSettings:
    """Of `PolicyEvaluator`, under the same names."""

    discount: float
    rule: Rule | None
    max_iter: int
    inner_steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float

    @property
    def iterations(self) -> int:
        """Of the two stages."""
        return max(1, self.max_iter // 10)


def networks(members: int, seed: int, build: Callable[[torch.Generator], ActionFeatures]) -> list[Network]:
    """Fresh networks; the first is that of a fit with one."""
    seeds = [seed + k * APART for k in range(members)]
    generators = [torch.Generator().manual_seed(s) for s in seeds]
    return [Network(build(g), s, g) for s, g in zip(seeds, generators)]


def groups(members: Sequence[Network], rule: Rule | None) -> list[Sequence[Network]]:
    """The networks that train as one: all of them, or where the rule cannot stand side by side each alone."""
    try:
        check_side_by_side(rule or Proximal())
    except ValueError:
        return [[member] for member in members]
    return [members]


def fitted_q(members: Sequence[Network], data: Data, settings: TrainingSettings) -> list[Tensor]:
    """Learns the features by fitted Q evaluation, and returns the layers."""
    models = [
        FittedQ(
            member.features,
            settings.discount,
            settings.rule or Kalman(0.9),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            refresh=max(4, min(20, int(settings.max_iter * (1 - settings.discount) / BACKUPS))),
            generator=member.generator,
        )
        for member in members
    ]
    model = models[0] if len(models) == 1 else FittedQ.beside(models)
    drawn = [batches(torch.arange(len(data.y)), settings.batch_size, member.seed) for member in members]

    def draw() -> Callable[[], None]:
        rows = together([next(own) for own in drawn])
        return lambda: model.step(data.X[rows], data.y[rows])

    loop.train(Iterations(model, draw, settings.max_iter, settings.learning_rate))
    if model is not models[0]:
        model.take_out(models)
    return [model.head.W[0] for model in models]


def two_stages(members: Sequence[Network], data: Data, settings: TrainingSettings) -> None:
    """Algorithm 3, from the features as they are, which are those of the instruments at the start as well."""
    rule, lr = settings.rule or Proximal(relative(1.0)), SLOWER * settings.learning_rate
    models = []
    for features, _, generator in members:
        instruments = copy.deepcopy(features)
        model = DFIV(
            Difference(features, settings.discount),
            instruments,
            widths=(features.width, instruments.width),
            rules=Rules(rule, Proximal(relative(1e-2)), rule),
            lr=lr,
            weight_decay=settings.weight_decay,
            T1=settings.inner_steps,
            order="solve",
            intercept=False,
            generator=generator,
        )
        models.append(model)
    seeds = [member.seed for member in members]
    splits = [Split.halves(len(data.y), seed) for seed in seeds]
    steps = {"iterations": settings.iterations, "batch_size": settings.batch_size, "lr": lr}
    if len(models) == 1:
        train(models[0], data, splits[0], fresh=True, seed=seeds[0], **steps)
    else:
        train_side_by_side(models, data, splits, seeds=seeds, fresh=True, **steps)
