"""Fitted Q evaluation with a solved layer: the value is regressed on `r + discount (1 - done) Q_target(s', a')`."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ..solver.rules import Rule
from ..solver.stacks import side_by_side
from ..stack import modules as stacked_modules
from ..stack.heads import Heads
from .algorithm import adamw, descend, layer
from .policy_features import ActionFeatures, parts


class FittedQ:
    """A network of features and a solved layer, and a copy of both that gives the targets. Several of one shape can stand
    side by side (`beside`): their rows, features and layers have a leading model axis.

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
        self.lr, self.weight_decay = lr, weight_decay
        self._start()

    def _start(self) -> None:
        self.optimizer = adamw(list(self.features.parameters()), self.lr, self.weight_decay)
        self.steps = self.skipped = 0
        self.target = copy.deepcopy(self.features).requires_grad_(False)
        self.target_W = self.head.W.clone()

    @staticmethod
    def beside(models: Sequence[FittedQ]) -> FittedQ:
        """Models of one shape as one, before their first step; `take_out` copies what it has learned back into them."""
        stack = copy.copy(models[0])
        features = stacked_modules.side_by_side([model.features for model in models])
        stack.features = features  # pyright: ignore[reportAttributeAccessIssue]  # called as ActionFeatures are
        rule = side_by_side([model.head.rule for model in models], models[0].features.width, False)
        stack.head = Heads(torch.stack([model.head.W for model in models]), rule, bias=False)
        stack._start()
        return stack

    def take_out(self, models: Sequence[FittedQ]) -> None:
        """Copy networks and layers into the models that this one was made of by `beside`."""
        stacked_modules.take_out(self.features, [model.features for model in models])
        for k, model in enumerate(models):
            model.head.W.copy_(self.head.W[k])

    @torch.no_grad()
    def _copy(self) -> None:
        for target, parameter in zip(self.target.parameters(), self.features.parameters()):
            target.copy_(parameter)
        self.target_W.copy_(self.head.W)

    def set_lr(self, lr: float) -> None:
        assert self.optimizer is not None
        self.optimizer.param_groups[0]["lr"] = lr

    def step(self, rows: Tensor, rewards: Tensor) -> None:
        """The layer first, then the features, on rows `[s, a, s', a', 1 - done]` and rewards `(n, 1)`."""
        if self.steps and self.steps % self.refresh == 0:
            self._copy()
        now, following, going = parts(rows)
        with torch.no_grad():
            Q = self.target(following).double() @ self.target_W.mT
            targets = rewards.double() + self.discount * going.double() * Q
        phi = self.features(now).double()
        self.head.solve(phi.detach(), targets)
        assert self.optimizer is not None
        self.skipped += not descend(self.optimizer, (phi @ self.head.W.mT - targets).square().mean((-2, -1)))
        self.steps += 1
