"""`PolicyEvaluator`: what a policy is worth, from transitions that another policy logged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arrays import moments, one_thread
from ..parameters import are_sizes, is_count, is_positive
from ..solver.lambdas import relative
from ..solver.rules import Kalman, Proximal, Rule
from ..stack import loop
from . import two_stages
from .algorithm import DFIV, Rules
from .effects import check_level
from .evaluation import outputs
from .fqe import FittedQ
from .loop import Data, Iterations, Split, batches, train
from .policy_features import ActionFeatures, Difference
from .transitions import Actions, Transitions, checked, states_of, warn_of_never_taken

METHODS = ("iv", "fqe", "lstd")
GROUPS = 64  # of episodes, at most, which the bootstrap draws from
# Ridges of the last solve, a row, of features of size one. The second is weak: a long horizon amplifies what a ridge does
FIRST, SECOND = 1e-6, 1e-9
BACKUPS = 3  # of Bellman's operator in a fit, over the horizon 1 / (1 - discount)
LEVEL = 1e-12  # of the constant, which ridges leave alone


class PolicyEvaluator:
    """The value of a policy: `Q(s, a)`, the expected sum of discounted rewards from state s and action a on, from
    transitions that were logged under another policy.

    Bellman's equation says `r = Q(s, a) - discount (1 - done) Q(s', a') + noise`, where the noise moves s' too: least
    squares is biased, and `(s, a)` is an instrument. With `Q = phi(s, a) w` the reward is linear in
    `psi = phi(s, a) - discount (1 - done) phi(s', a')`.

    Parameters
    ----------
    discount : from 0 to below 1.
    method : "fqe" is fitted Q evaluation with a solved layer. "lstd" takes the features that it has learned, and solves for
        the fixed point in closed form on all rows. "iv" goes on from these features in two stages (the paper's Algorithm 3)
        before that solve.
    rule : of the solved layers in minibatches, such as `closedform.Proximal(lam)`; None is a Kalman filter in "fqe", and
        proximal in both stages of "iv".
    n_features : how many features are learned, besides the states themselves.
    max_iter : steps of fitted Q evaluation; "iv" takes a quarter as many iterations of two stages after them.
    inner_steps : of the instruments' features in each of these iterations.
    n_actions : how many discrete actions there are; None takes it from the data.
    replicates : of the bootstrap in `interval`.
    random_state : an integer; the same gives the same fit.

    Attributes
    ----------
    features_ : the network phi. weights_ : w, in the units of the rewards. gradient_steps_ : that the fit has taken.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> s, a = rng.integers(0, 2, (2, 500)); states = np.eye(2)          # action 1 leads to state 1, which pays 1
    >>> model = PolicyEvaluator(discount=0.5, method="lstd", max_iter=20)
    >>> model = model.fit(states[s], a, 1.0 * s, states[a], np.ones(500, int), np.zeros(500, bool))
    >>> model.q(states, np.array([1, 1])).round(2)                       # 0 + 1/2 + 1/4 + ... and 1 + 1/2 + ...
    array([1., 2.])
    """

    features_: ActionFeatures
    weights_: Tensor
    gradient_steps_: int

    def __init__(
        self,
        discount: float = 0.99,
        method: str = "iv",
        *,
        rule: Rule | None = None,
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        n_features: int = 32,
        max_iter: int = 1000,
        inner_steps: int = 2,
        batch_size: int = 512,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-3,
        n_actions: int | None = None,
        replicates: int = 200,
        random_state: int = 0,
    ):
        self.discount, self.method, self.rule = discount, method, rule
        self.hidden_layer_sizes, self.n_features = hidden_layer_sizes, n_features
        self.max_iter, self.inner_steps, self.batch_size = max_iter, inner_steps, batch_size
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.n_actions, self.replicates, self.random_state = n_actions, replicates, random_state

    def _check_parameters(self) -> None:
        if not isinstance(self.discount, Real) or not 0 <= self.discount < 1:
            raise ValueError(f"discount must be from 0 to below 1, got {self.discount!r}")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.rule is not None and not isinstance(self.rule, Rule):
            raise ValueError(f"rule must be None or a rule such as Proximal(lam), got {self.rule!r}")
        if not are_sizes(self.hidden_layer_sizes):
            raise ValueError(f"hidden_layer_sizes must be positive integers, got {self.hidden_layer_sizes!r}")
        for name in ("n_features", "max_iter", "inner_steps", "batch_size", "replicates"):
            if not is_count(getattr(self, name)):
                raise ValueError(f"{name} must be a positive integer, got {getattr(self, name)!r}")
        if self.n_actions is not None and not is_count(self.n_actions):
            raise ValueError(f"n_actions must be None or a positive integer, got {self.n_actions!r}")
        if not isinstance(self.random_state, Integral) or self.random_state < 0:
            raise ValueError(f"random_state must be a whole number from 0 on, got {self.random_state!r}")
        if not is_positive(self.learning_rate):
            raise ValueError(f"learning_rate must be a positive number, got {self.learning_rate!r}")
        if not (self.weight_decay == 0 or is_positive(self.weight_decay)):
            raise ValueError(f"weight_decay must be a number from 0 on, got {self.weight_decay!r}")

    # ---- Fitting ---------------------------------------------------------------------------------

    def fit(
        self,
        states: Any,
        actions: Any,
        rewards: Any,
        next_states: Any,
        next_actions: Any,
        done: Any,
        *,
        episode: Any = None,
    ) -> PolicyEvaluator:
        """Fit transitions, a row each.

        actions : whole numbers `(n,)` are discrete actions, floating point `(n,)` or `(n, m)` continuous ones.
        next_actions : what the evaluated policy does in the next state: actions of the same kind, or of discrete ones its
            probabilities `(n, actions)`.
        done : whether the episode ended in the next state, from where on there is no reward. An episode that was only cut
            off is not done.
        episode : a number or name of each row's episode, for `interval`.
        """
        self._check_parameters()
        data = checked(states, actions, rewards, next_states, next_actions, done, episode, self.n_actions)
        warn_of_never_taken(data)
        fitted = copy.copy(self)  # so that an error leaves an earlier fit as it was
        fitted._fit(data)
        self.__dict__.update(vars(fitted))
        return self

    def _fit(self, data: Transitions) -> None:
        kind, p = data.kind, data.states.shape[1]
        scale = moments(np.concatenate([data.states, data.next_states]), np.ones(2 * len(data)))
        action_scale = np.zeros(kind.count), np.ones(kind.count)
        if not kind.discrete:
            action_scale = moments(data.actions, np.ones(len(data)))
        unit = float(np.sqrt(np.square(data.rewards).mean())) or 1.0
        self._kind, self._states, self._scales, self._unit = kind, p, (scale, action_scale), unit
        now = self._rows(data.states, data.actions)
        following = self._rows(data.next_states, data.next_actions)
        X = torch.cat([now, following, torch.as_tensor(data.going[:, None], dtype=torch.float32)], 1)
        r = torch.as_tensor(data.rewards[:, None] / unit)
        g = torch.Generator().manual_seed(int(self.random_state))
        features = ActionFeatures(p, kind.count, kind.discrete, self.hidden_layer_sizes, self.n_features, g)
        with one_thread():
            fitted = self._fitted_q(features, Data(X, now, r), g)
            self.gradient_steps_ = self.max_iter
            if self.method == "iv" and len(data) > 1:
                self._two_stages(features, Data(X, now, r), g)
            self._solve(features, X, now, r, data)
        if self.method == "fqe":
            self._shift = fitted * unit - self.weights_
            self.weights_ = self.weights_ + self._shift

    def _two_stages(self, features: ActionFeatures, data: Data, g: torch.Generator) -> None:
        """Algorithm 3, from the features as they are, which are those of the instruments at the start as well."""
        instruments = copy.deepcopy(features)
        iterations = max(1, self.max_iter // 4)
        self.gradient_steps_ += iterations * (self.inner_steps + 1)
        rule = self.rule or Proximal(relative(1.0))
        model = DFIV(
            Difference(features, self.discount),
            instruments,
            widths=(features.width, instruments.width),
            rules=Rules(rule, Proximal(relative(1e-2)), rule),
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            T1=self.inner_steps,
            order="solve",
            intercept=False,
            generator=g,
        )
        split = Split.halves(len(data.y), self.random_state)
        settings = {"iterations": iterations, "batch_size": self.batch_size, "lr": self.learning_rate}
        train(model, data, split, fresh=True, seed=self.random_state, **settings)

    def _fitted_q(self, features: ActionFeatures, data: Data, g: torch.Generator) -> Tensor:
        """Learns the features by fitted Q evaluation, and returns its layer."""
        fitted = FittedQ(
            features,
            self.discount,
            self.rule or Kalman(0.9),
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            refresh=max(4, min(20, int(self.max_iter * (1 - self.discount) / BACKUPS))),
            generator=g,
        )
        drawn = batches(torch.arange(len(data.y)), self.batch_size, self.random_state)

        def draw() -> Callable[[], None]:
            rows = next(drawn)
            return lambda: fitted.step(data.X[rows], data.y[rows])

        loop.train(Iterations(fitted, draw, self.max_iter, self.learning_rate))
        return fitted.head.W[0]

    def _solve(
        self,
        features: ActionFeatures,
        X: Tensor,
        now: Tensor,
        r: Tensor,
        data: Transitions,
    ) -> None:
        """Both stages once more on all rows. The instruments are the value's own features here, as many as there are
        weights: with more of them two-stage least squares leans towards least squares, which a long horizon amplifies."""
        features.requires_grad_(False)
        psi = outputs(Difference(features, self.discount), X)
        phi = outputs(features, now)
        if not bool(psi.isfinite().all() and phi.isfinite().all()):
            raise ValueError("training diverged: expected finite features; try a smaller learning_rate")
        size = phi.square().mean(0).sqrt()
        size = torch.where(size > 0, size, 1.0)
        group, groups = self._groups(data)
        self._sums = two_stages.StageSums.of(phi / size, psi / size, r, group, groups)
        self._beta = torch.full((len(size),), SECOND, dtype=torch.float64)
        self._beta[0] = LEVEL
        self._size, self.features_ = size, features
        self.weights_ = self._weights(torch.ones(groups, dtype=torch.float64))
        self._shift = torch.zeros_like(self.weights_)

    def _groups(self, data: Transitions) -> tuple[Tensor, int]:
        """The group of each row: its episode, or one of `GROUPS` random sets of episodes; rows without episodes are episodes
        of length one."""
        episode = np.arange(len(data)) if data.episode is None else data.episode
        count = int(episode.max()) + 1
        if count > GROUPS:
            order = np.random.default_rng(self.random_state).permutation(count)
            episode, count = order[episode] % GROUPS, GROUPS
        return torch.from_numpy(episode), count

    def _weights(self, weight: Tensor) -> Tensor:
        return two_stages.solve(self._sums, weight, FIRST, self._beta) / self._size * self._unit

    def _rows(self, states: np.ndarray, actions: np.ndarray) -> Tensor:
        parts = [(part - mean) / scale for part, (mean, scale) in zip((states, actions), self._scales)]
        return torch.as_tensor(np.concatenate(parts, 1), dtype=torch.float32)

    # ---- Using the fit ---------------------------------------------------------------------------

    def q(self, states: Any, actions: Any) -> np.ndarray:
        """`Q(s, a)` of rows of states and one action each, `(n,)`."""
        return (self._phi(states, actions, probabilities=False) @ self.weights_).numpy()

    def value(self, states: Any, actions: Any) -> np.ndarray:
        """The value of states, `(n,)`, where the policy takes these actions; of discrete ones also its probabilities."""
        return (self._phi(states, actions) @ self.weights_).numpy()

    def interval(self, states: Any, actions: Any, *, level: float = 0.9) -> tuple[float, float]:
        """An interval of the mean value of these states: percentiles of a bootstrap over the episodes of the fit (over rows,
        as if they were independent, where it had no `episode`; of more than 64, over 64 random groups). Each replicate
        gives every episode a random weight and solves for the layer again; the features stay as they are, so
        the interval does not cover what they cannot represent. That of "fqe" is the one of "lstd", moved to its value."""
        check_level(level)
        phi = self._phi(states, actions).mean(0)
        groups = len(self._sums.rows)
        if groups < 2:
            raise ValueError("the fit had one episode; expected at least two, to see how episodes differ")
        g = torch.Generator().manual_seed(int(self.random_state))
        weights = -torch.rand(self.replicates, groups, generator=g, dtype=torch.float64).log()
        weights = weights / weights.mean(1, keepdim=True)
        with one_thread():
            values = [float(phi @ (self._weights(weight) + self._shift)) for weight in weights]
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def _phi(self, states: Any, actions: Any, probabilities: bool = True) -> Tensor:
        if not hasattr(self, "weights_"):
            raise ValueError("this PolicyEvaluator has not been fitted; expected a call of fit first")
        kind: Actions = self._kind
        rows = states_of(states, "states", self._states)
        encoded = kind.encoded(actions, "actions", probabilities)
        if len(rows) != len(encoded):
            raise ValueError(f"states have {len(rows)} rows and actions {len(encoded)}; expected as many")
        with one_thread():
            return outputs(self.features_, self._rows(rows, encoded))
