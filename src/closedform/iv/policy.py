"""`PolicyEvaluator`: what a policy is worth, from transitions that another policy logged."""

from __future__ import annotations

import copy
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arrays import moments, one_thread
from ..parameters import are_sizes, is_count, is_positive
from ..solver.rules import Rule
from . import policy_training, two_stages
from .effects import check_level
from .evaluation import outputs
from .loop import Data
from .policy_features import ActionFeatures, Difference
from .policy_training import TrainingSettings
from .transitions import Actions, Transitions, checked, states_of, warn_of_never_taken

METHODS = ("iv", "fqe", "lstd")
GROUPS = 64  # of episodes, at most, which the bootstrap draws from
# Ridges of the last solve, a row, of features of size one. The second is weak: a long horizon amplifies what a ridge does
FIRST, SECOND = 1e-6, 1e-9
LEVEL = 1e-12  # of the constant, which ridges leave alone
POINTS = 40  # of a normal distribution, that stand for it
TINY = 1e-12  # where one member counts for all


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
    members : how many networks are trained, side by side, each with other weights and batches. A value is their
        mean, in which a member that the episodes leave uncertain counts for less.
    rule : of the solved layers in minibatches, such as `closedform.Proximal(lam)`; None is a Kalman filter in "fqe", and
        proximal in both stages of "iv".
    n_features : how many features are learned, besides the states themselves.
    max_iter : steps of fitted Q evaluation, of each member; "iv" takes a tenth as many iterations of two stages after them.
    inner_steps : of the instruments' features in each of these iterations.
    n_actions : how many discrete actions there are; None takes it from the data.
    replicates : of the bootstrap for `interval`, which is done in `fit`.
    random_state : an integer; the same gives the same fit.

    Attributes
    ----------
    features_ : the networks phi, a list. weights_ : w of each, `(members, features)`, in the units of the rewards.
    member_weights_ : how much each counts. gradient_steps_ : that the fit has taken, those of all members together.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> s, a = rng.integers(0, 2, (2, 500)); states = np.eye(2)          # action 1 leads to state 1, which pays 1
    >>> model = PolicyEvaluator(discount=0.5, method="lstd", max_iter=20)
    >>> model = model.fit(states[s], a, 1.0 * s, states[a], np.ones(500, int), np.zeros(500, bool))
    >>> model.q(states, np.array([1, 1])).round(2)                       # 0 + 1/2 + 1/4 + ... and 1 + 1/2 + ...
    array([1., 2.])
    """

    features_: list[ActionFeatures]
    weights_: Tensor
    member_weights_: Tensor
    gradient_steps_: int

    def __init__(
        self,
        discount: float = 0.99,
        method: str = "iv",
        *,
        members: int = 3,
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
        self.discount, self.method, self.members, self.rule = discount, method, members, rule
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
        for name in ("members", "n_features", "max_iter", "inner_steps", "batch_size", "replicates"):
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
        rows = Data(X, now, torch.as_tensor(data.rewards[:, None] / unit))
        settings = TrainingSettings(**{field.name: getattr(self, field.name) for field in fields(TrainingSettings)})

        def build(g: torch.Generator) -> ActionFeatures:
            return ActionFeatures(p, kind.count, kind.discrete, self.hidden_layer_sizes, self.n_features, g)

        networks = policy_training.networks(self.members, int(self.random_state), build)
        staged = self.method == "iv" and len(data) > 1
        layers: list[Tensor] = []
        with one_thread():
            for group in policy_training.groups(networks, self.rule):
                layers += policy_training.fitted_q(group, rows, settings)
                if staged:
                    policy_training.two_stages(group, rows, settings)
            solved = [self._solved(network.features, rows, data) for network in networks]
        steps = self.max_iter + (settings.iterations * (self.inner_steps + 1) if staged else 0)
        self.gradient_steps_ = self.members * steps
        self.features_ = [network.features for network in networks]
        self.weights_ = torch.stack([weights for weights, _ in solved])
        self._replicates = torch.stack([replicates for _, replicates in solved])
        self.member_weights_ = self._shares(following, data)
        if self.method == "fqe":
            shift = torch.stack(layers) * unit - self.weights_
            self.weights_ = self.weights_ + shift
            self._replicates = self._replicates + shift[:, None]

    def _shares(self, following: Tensor, data: Transitions) -> Tensor:
        """How much each member counts. A fixed point can be almost singular. Its value is far off then, and the bootstrap
        sees it. A member whose mean value varies more than the median member's counts by its inverse variance."""
        share = torch.ones(self.members, dtype=torch.float64)
        if self.members == 1 or self._replicates.shape[1] < 2:
            return share / self.members
        going = torch.as_tensor(data.going) / len(data)
        mean = torch.stack([going @ outputs(features, following) for features in self.features_])
        variance = torch.einsum("mrd,md->mr", self._replicates, mean).var(1)
        share = torch.where(variance > variance.median(), variance.median() / variance, share)
        return share / share.sum()

    def _solved(self, features: ActionFeatures, rows: Data, data: Transitions) -> tuple[Tensor, Tensor]:
        """Both stages once more on all rows: the weights of a network's features, and those of the bootstrap. The
        instruments are the value's own features here, as many as there are weights: with more of them two-stage least
        squares leans towards least squares, which a long horizon amplifies."""
        features.requires_grad_(False)
        psi = outputs(Difference(features, self.discount), rows.X)
        phi = outputs(features, rows.Z)
        if not bool(psi.isfinite().all() and phi.isfinite().all()):
            raise ValueError("training diverged: expected finite features; try a smaller learning_rate")
        size = phi.square().mean(0).sqrt()
        size = torch.where(size > 0, size, 1.0)
        group, groups = self._groups(data)
        sums = two_stages.StageSums.of(phi / size, psi / size, rows.y, group, groups)
        beta = torch.full((len(size),), SECOND, dtype=torch.float64)
        beta[0] = LEVEL
        weights = two_stages.solve(sums, torch.ones(groups, dtype=torch.float64), FIRST, beta)
        g = torch.Generator().manual_seed(int(self.random_state))  # every network sees the same episodes
        drawn = -torch.rand(self.replicates, groups, generator=g, dtype=torch.float64).log()
        again = weights.new_empty(0, len(weights))
        if groups > 1:
            again = two_stages.replicates(sums, drawn / drawn.mean(1, keepdim=True), FIRST, beta)
        return weights / size * self._unit, again / size * self._unit

    def _groups(self, data: Transitions) -> tuple[Tensor, int]:
        """The group of each row: its episode, or one of `GROUPS` random sets of episodes; rows without episodes are episodes
        of length one."""
        episode = np.arange(len(data)) if data.episode is None else data.episode
        count = int(episode.max()) + 1
        if count > GROUPS:
            order = np.random.default_rng(self.random_state).permutation(count)
            episode, count = order[episode] % GROUPS, GROUPS
        return torch.from_numpy(episode), count

    def _rows(self, states: np.ndarray, actions: np.ndarray) -> Tensor:
        parts = [(part - mean) / scale for part, (mean, scale) in zip((states, actions), self._scales)]
        return torch.as_tensor(np.concatenate(parts, 1), dtype=torch.float32)

    # ---- Using the fit ---------------------------------------------------------------------------

    def q(self, states: Any, actions: Any) -> np.ndarray:
        """`Q(s, a)` of rows of states and one action each, `(n,)`."""
        return self._mean(self._phi(states, actions, probabilities=False))

    def value(self, states: Any, actions: Any) -> np.ndarray:
        """The value of states, `(n,)`, where the policy takes these actions; of discrete ones also its probabilities."""
        return self._mean(self._phi(states, actions))

    def _mean(self, phi: list[Tensor]) -> np.ndarray:
        return (self.member_weights_ @ torch.stack([own @ w for own, w in zip(phi, self.weights_)])).numpy()

    def interval(self, states: Any, actions: Any, *, level: float = 0.9) -> tuple[float, float]:
        """An interval of the mean value of these states, of two parts.

        A bootstrap over the episodes of the fit (over rows, as if they were independent, where it had no `episode`; of more
        than 64, over 64 random groups). Each replicate gives every episode a random weight and solves for all layers again,
        with the features as they are.

        And what the features leave open. The truth is taken to be as far from the members' mean as one more member would be:
        a normal term whose variance is that between members times `1 + 1 / members`. One member has no such term, and its
        interval is too short where features are hard to learn. What all members get wrong alike no interval covers.

        That of "fqe" is the one of "lstd", moved to its value: with a long horizon and few steps "fqe" has not arrived, and
        its interval is not to be trusted."""
        check_level(level)
        phi = torch.stack([own.mean(0) for own in self._phi(states, actions)])
        if not self._replicates.shape[1]:
            raise ValueError("the fit had one episode; expected at least two, to see how episodes differ")
        share = self.member_weights_
        replicates = torch.einsum("m,mrd,md->r", share, self._replicates, phi)
        if len(share) > 1:
            values = (self.weights_ * phi).sum(1)
            alike = share.square().sum()  # one over the members, where all count alike
            variance = share @ (values - share @ values).square() / (1 - alike).clamp(min=TINY)
            points = torch.special.ndtri((torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS)
            replicates = (replicates[:, None] + (variance * (1 + alike)).sqrt() * points).flatten()
        low, high = np.quantile(replicates.numpy(), [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def _phi(self, states: Any, actions: Any, probabilities: bool = True) -> list[Tensor]:
        """The features of every member."""
        if not hasattr(self, "weights_"):
            raise ValueError("this PolicyEvaluator has not been fitted; expected a call of fit first")
        kind: Actions = self._kind
        rows = states_of(states, "states", self._states)
        encoded = kind.encoded(actions, "actions", probabilities)
        if len(rows) != len(encoded):
            raise ValueError(f"states have {len(rows)} rows and actions {len(encoded)}; expected as many")
        with one_thread():
            tensor = self._rows(rows, encoded)
            return [outputs(features, tensor) for features in self.features_]
