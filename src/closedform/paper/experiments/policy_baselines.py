"""What `PolicyEvaluator` is compared with: values whose last layer is learned, and random features."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...arrays import moments, one_thread
from ...iv.loop import Iterations, batches
from ...iv.policy_features import ActionFeatures, Difference, parts
from ...iv.two_stages import StageSums, solve
from ...stack import loop
from ..data.policy import ACTIONS, Log

RIDGE = 1e-6  # of random features, a row


class TransitionRows:
    """A log as the networks take it, with states standardised as `PolicyEvaluator` does."""

    def __init__(self, log: Log):
        self.flat = log.states.reshape(len(log.states), -1).astype(np.float64)
        following = log.next_states.reshape(len(log.states), -1).astype(np.float64)
        self.mean, self.scale = moments(np.concatenate([self.flat, following]), np.ones(2 * len(self.flat)))
        now, after = self.tensor(self.flat, np.eye(ACTIONS)[log.actions]), self.tensor(following, log.next_actions)
        self.X = torch.cat([now, after, torch.as_tensor(1.0 - log.done[:, None], dtype=torch.float32)], 1)
        self.r = torch.as_tensor(log.rewards[:, None], dtype=torch.float32)
        self.starts = self.tensor(log.starts.reshape(len(log.starts), -1), log.start_actions)

    def tensor(self, states: np.ndarray, actions: np.ndarray) -> Tensor:
        return torch.as_tensor(np.concatenate([(states - self.mean) / self.scale, actions], 1), dtype=torch.float32)


class LearnedQ:
    """Features as in `PolicyEvaluator`, a learned last layer, Adam. The loss is that of fitted Q evaluation, or with
    `refresh` None the Bellman residual, whose gradient goes through both values."""

    def __init__(self, rows: TransitionRows, discount: float, refresh: int | None, hidden: tuple[int, ...], seed: int):
        torch.manual_seed(seed)
        features = ActionFeatures(rows.flat.shape[1], ACTIONS, True, hidden, hidden[-1])
        self.net = nn.Sequential(features, nn.Linear(features.width, 1, bias=False))
        nn.init.zeros_(self.net[1].weight)  # pyright: ignore[reportArgumentType]
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=True)
        self.discount, self.refresh, self.steps, self.target = discount, refresh, 0, copy.deepcopy(self.net)

    def set_lr(self, lr: float) -> None:
        self.optimizer.param_groups[0]["lr"] = lr

    def step(self, X: Tensor, r: Tensor) -> None:
        now, following, going = parts(X)
        if self.refresh is None:
            loss = (r + self.discount * going * self.net(following) - self.net(now)).square().mean()
        else:
            if self.steps % self.refresh == 0:
                self.target.load_state_dict(self.net.state_dict())
            with torch.no_grad():
                targets = r + self.discount * going * self.target(following)
            loss = (self.net(now) - targets).square().mean()
        self.steps += 1
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def learned(
    log: Log, discount: float, *, refresh: int | None, steps: int, batch_size: int, hidden: tuple[int, ...], seed: int
) -> float:
    """The mean value of the starts."""
    with one_thread():
        rows = TransitionRows(log)
        model = LearnedQ(rows, discount, refresh, hidden, seed)
        drawn = batches(torch.arange(len(rows.X)), batch_size, seed)

        def draw() -> Any:
            at = next(drawn)
            return lambda: model.step(rows.X[at], rows.r[at])

        loop.train(Iterations(model, draw, steps, lr=1e-3))
        with torch.no_grad():
            return float(model.net(rows.starts).mean())


def random_features(log: Log, discount: float, *, features: int, hidden: tuple[int, ...], seed: int) -> float:
    """Least-squares temporal differences with a network that is not trained; the mean value of the starts."""
    with one_thread(), torch.no_grad():
        rows = TransitionRows(log)
        g = torch.Generator().manual_seed(seed)
        phi = ActionFeatures(rows.flat.shape[1], ACTIONS, True, hidden, features, g)
        now = phi(parts(rows.X)[0]).double()
        psi = Difference(phi, discount)(rows.X).double()
        size = now.square().mean(0).sqrt()
        size = torch.where(size > 0, size, 1.0)
        sums = StageSums.of(now / size, psi / size, rows.r.double(), torch.zeros(len(now), dtype=torch.long), 1)
        beta = torch.full((len(size),), RIDGE, dtype=torch.float64)
        w = solve(sums, torch.ones(1, dtype=torch.float64), RIDGE, beta) / size
        return float((phi(rows.starts).double() @ w).mean())
