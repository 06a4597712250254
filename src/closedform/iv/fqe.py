"""Fitted Q evaluation with a solved layer: the value is regressed on `r + discount (1 - done) Q_target(s', a')`."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..solver.rules import Rule
from .algorithm import adamw, descend, layer
from .policy_features import ActionFeatures, parts


class FittedQ:
    """A network of features and a solved layer, and a copy of both that gives the targets.

    refresh: steps between two copies; each is one application of Bellman's operator.
    """

    def __init__(
        self,
        features: ActionFeatures,
        discount: float,
        rule: Rule,
        *,
        lr: float,
        weight_decay: float,
        refresh: int,
        generator: torch.Generator | None = None,
    ):
        self.features, self.discount, self.refresh = features, discount, refresh
        self.head = layer(rule, features.width, 1, generator)
        self.head.W.zero_()  # the first targets are rewards
        self.optimizer = adamw(list(features.parameters()), lr, weight_decay)
        self.steps = self.skipped = 0
        self._copy()

    def _copy(self) -> None:
        self.target = copy.deepcopy(self.features).requires_grad_(False)
        self.target_W = self.head.W.clone()

    def set_lr(self, lr: float) -> None:
        assert self.optimizer is not None
        self.optimizer.param_groups[0]["lr"] = lr

    def step(self, rows: Tensor, rewards: Tensor) -> None:
        """The layer first, then the features, on rows `[s, a, s', a', 1 - done]` and rewards `(n, 1)`."""
        if self.steps and self.steps % self.refresh == 0:
            self._copy()
        now, following, going = parts(rows)
        with torch.no_grad():
            Q = self.target(following).double() @ self.target_W.T
            targets = rewards.double() + self.discount * going.double() * Q
        phi = self.features(now).double()
        self.head.solve(phi.detach(), targets)
        assert self.optimizer is not None
        self.skipped += not descend(self.optimizer, (phi @ self.head.W.T - targets).square().mean())
        self.steps += 1
