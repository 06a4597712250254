"""Transitions logged in three environments of bsuite, and the value of the evaluated policy there.

The evaluated policy follows a rule of thumb nine times of ten and takes a random action otherwise; the logged one does so
six times of ten. With noise p the environment replaces the action by a random one with probability p, and adds `p e` to
the reward, e standard normal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...extras import require

EVALUATED, LOGGED = 0.9, 0.6  # the share of actions that follow the rule
ACTIONS = 3  # left, stay, right


@dataclass(frozen=True)
class ControlTask:
    """An environment by its name in bsuite, and the rule: the action of an observation."""

    name: str
    module: str
    environment: str
    rule: Callable[[np.ndarray], int]

    def start(self, seed: int) -> Any:
        require("the benchmark of policies", "benchmarks", "bsuite")
        from importlib import import_module

        return getattr(import_module(f"bsuite.environments.{self.module}"), self.environment)(seed=seed)


def _catch(board: np.ndarray) -> int:
    """Towards the ball."""
    paddle, ball = int(board[-1].argmax()), int(board[:-1].any(0).argmax())
    return 1 + int(np.sign(ball - paddle))


def _cartpole(observation: np.ndarray) -> int:
    """To the side on which the pole leans, which lets it swing and fall after a while."""
    return 1 + int(np.sign(observation[0, 2]))


def _mountain_car(observation: np.ndarray) -> int:
    """With the motion."""
    return 2 if observation[0, 1] >= 0 else 0


TASKS = {
    task.name: task
    for task in (
        ControlTask("catch", "catch", "Catch", _catch),
        ControlTask("cartpole", "cartpole", "Cartpole", _cartpole),
        ControlTask("mountain car", "mountain_car", "MountainCar", _mountain_car),
    )
}


class Log(NamedTuple):
    """What `PolicyEvaluator.fit` takes, and the starts of the episodes."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    next_actions: np.ndarray  # probabilities
    done: np.ndarray
    episode: np.ndarray
    starts: np.ndarray
    start_actions: np.ndarray  # probabilities of the evaluated policy at the starts


def probabilities(rule: int, share: float) -> np.ndarray:
    return share * np.eye(ACTIONS)[rule] + (1 - share) / ACTIONS


def episode(
    task: ControlTask, environment: Any, share: float, noise: float, rng: np.random.Generator
) -> Iterator[tuple]:
    """One episode of a policy: `(state, action, reward, next state, rule of the next state, done)` a step."""
    state = environment.reset().observation
    done = False
    while not done:
        action = int(rng.choice(ACTIONS, p=probabilities(task.rule(state), share)))
        taken = int(rng.integers(ACTIONS)) if noise and rng.random() < noise else action
        moment = environment.step(taken)
        reward = float(moment.reward) + noise * float(rng.standard_normal())
        done = bool(moment.last())
        yield state, action, reward, moment.observation, task.rule(moment.observation), done
        state = moment.observation


def logged(task: ControlTask, noise: float, transitions: int, seed: int) -> Log:
    """This many transitions of the logged policy; the last episode may be cut off, which is not its end."""
    rng, environment = np.random.default_rng([seed, 1]), task.start(seed)
    rows: list[tuple] = []
    episodes, starts = [], []
    while len(rows) < transitions:
        before = len(rows)
        rows += list(episode(task, environment, LOGGED, noise, rng))
        starts.append(rows[before][0])
        episodes += [len(starts)] * (len(rows) - before)
    s, a, r, following, rules, done = (np.array(part) for part in zip(*rows[:transitions]))
    chosen = np.stack([probabilities(rule, EVALUATED) for rule in range(ACTIONS)])
    first = np.array(starts)
    return Log(
        s, a, r, following, chosen[rules], done, np.array(episodes[:transitions]),
        first, chosen[[task.rule(state) for state in first]],
    )  # fmt: skip


def truth(task: ControlTask, noise: float, discount: float, episodes: int, seed: int = 10_000) -> tuple[float, float]:
    """The mean discounted return of the evaluated policy, and its standard error: exact for catch, else of so many simulated
    episodes. The noise of the rewards has mean zero and is left out; that of the actions is not."""
    if task.name == "catch":
        return catch_value(noise, discount), 0.0
    rng, environment = np.random.default_rng([seed, 2]), task.start(seed)
    returns = []
    for _ in range(episodes):
        total, weight, state, done = 0.0, 1.0, environment.reset().observation, False
        while not done:
            action = int(rng.choice(ACTIONS, p=probabilities(task.rule(state), EVALUATED)))
            taken = int(rng.integers(ACTIONS)) if rng.random() < noise else action
            moment = environment.step(taken)
            total += weight * float(moment.reward)
            weight *= discount
            state, done = moment.observation, bool(moment.last())
        returns.append(total)
    return float(np.mean(returns)), float(np.std(returns) / np.sqrt(episodes))


def catch_value(noise: float, discount: float, columns: int = 5, steps: int = 9) -> float:
    """The value of the evaluated policy in catch. The ball falls from a random column in so many steps, the paddle starts in
    the middle, and the last step pays 1 or -1."""
    caught = []
    for ball in range(columns):
        place = np.eye(columns)[columns // 2]  # the probability of each column of the paddle
        for _ in range(steps):
            following = np.zeros(columns)
            for x, share in enumerate(place):
                chosen = (1 - noise) * probabilities(1 + int(np.sign(ball - x)), EVALUATED) + noise / ACTIONS
                for move, p in zip((-1, 0, 1), chosen):
                    following[min(max(x + move, 0), columns - 1)] += share * p
            place = following
        caught.append(place[ball])
    return float(discount ** (steps - 1) * (2 * np.mean(caught) - 1))
