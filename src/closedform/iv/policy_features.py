"""Features of states and actions, and their differences along a transition."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..stack.networks import mlp

WIDE = 64  # a state of more numbers than these is a picture, and no feature by itself


class ActionFeatures(nn.Module):
    """Features of rows `[state, action]`, the first of which is a constant.

    A discrete action comes as indicators or probabilities `a`, and the features are `[1, a (x) [1, s, net(s)]]`: linear in
    the probabilities, so that one pass gives the mean over a policy's actions. Those of a continuous action are
    `[1, s, a, net(s, a)]`. Of networks side by side (`stack.modules`) rows and features have a model axis first.
    """

    def __init__(
        self,
        states: int,
        actions: int,
        discrete: bool,
        hidden: Sequence[int],
        features: int,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.states, self.discrete, self.plain = states, discrete, states <= WIDE
        inputs = states if discrete else states + actions
        self.net = mlp([inputs, *hidden, features], generator=generator)
        beside = features + (inputs if self.plain else 0)
        self.width = 1 + (actions * (1 + beside) if discrete else beside)

    def forward(self, rows: Tensor) -> Tensor:
        constant = rows.new_ones(*rows.shape[:-1], 1)
        if not self.discrete:
            return torch.cat([constant, *([rows] if self.plain else []), self.net(rows)], -1)
        s, a = rows[..., : self.states], rows[..., self.states :]
        g = torch.cat([constant, *([s] if self.plain else []), self.net(s)], -1)
        return torch.cat([constant, (a[..., :, None] * g[..., None, :]).flatten(-2)], -1)


class Difference(nn.Module):
    """`features(s, a) - discount (1 - done) features(s', a')` of rows `[s, a, s', a', 1 - done]`: what the reward is linear
    in, if the value is linear in the features."""

    def __init__(self, features: ActionFeatures, discount: float):
        super().__init__()
        self.features, self.discount = features, discount

    def forward(self, rows: Tensor) -> Tensor:
        now, following, going = parts(rows)
        both = self.features(torch.cat([now, following], -2))
        n = rows.shape[-2]
        return both[..., :n, :] - self.discount * going * both[..., n:, :]


def parts(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`[s, a]`, `[s', a']` and `1 - done (n, 1)` of rows as `Difference` takes them."""
    width = (rows.shape[-1] - 1) // 2
    return rows[..., :width], rows[..., width:-1], rows[..., -1:]
