"""The input of `PolicyEvaluator`: logged transitions as arrays, or a sentence that says what is wrong with which."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import as_numpy

SUM = 1e-3  # by which probabilities of a row may miss 1


@dataclass(frozen=True)
class Actions:
    """What actions are: one of `count`, or with `discrete` False a row of `count` numbers."""

    discrete: bool
    count: int

    def encoded(self, actions: Any, name: str, probabilities: bool = True) -> np.ndarray:
        """Actions as rows `(n, count)`: indicators or probabilities of discrete actions, numbers of continuous ones."""
        actions = numbers(actions, name)
        if not self.discrete:
            rows = actions[:, None] if actions.ndim == 1 else actions
            if actions.dtype.kind != "f" or rows.shape[1:] != (self.count,):
                raise ValueError(
                    f"{name} has shape {actions.shape} and dtype {actions.dtype}; expected (n, {self.count}) of floating "
                    "point, since the logged actions are continuous"
                )
            return rows.astype(np.float64)
        if actions.dtype.kind in "iub":
            return self._indicators(_flat(actions, name), name)
        if not probabilities or actions.shape[1:] != (self.count,):
            kinds = f"whole numbers (n,){f' or probabilities (n, {self.count})' if probabilities else ''}"
            raise ValueError(f"{name} has shape {actions.shape} and dtype {actions.dtype}; expected {kinds}")
        sums = actions.sum(1)
        bad = np.flatnonzero((actions < 0).any(1) | ~(np.abs(sums - 1) <= SUM))
        if len(bad):
            raise ValueError(
                f"{name} holds {actions[bad[0]].tolist()} in row {bad[0]} ({len(bad)} such rows in all); expected "
                "probabilities from 0 on that add up to 1"
            )
        return (actions / sums[:, None]).astype(np.float64)

    def _indicators(self, index: np.ndarray, name: str) -> np.ndarray:
        index = index.astype(np.int64)
        if len(index) and not 0 <= index.min() <= index.max() < self.count:
            worst = index.min() if index.min() < 0 else index.max()
            raise ValueError(f"{name} holds the action {worst}; expected whole numbers from 0 to {self.count - 1}")
        return np.eye(self.count)[index]


@dataclass(frozen=True)
class Transitions:
    """Rows `(s, a, r, s', a', done)`, with actions encoded. `episode` numbers the episode of each row, from 0 on."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    next_actions: np.ndarray
    going: np.ndarray  # 1 - done
    episode: np.ndarray | None
    kind: Actions

    def __len__(self) -> int:
        return len(self.rewards)


def numbers(values: Any, name: str) -> np.ndarray:
    """An array of finite numbers with at least one dimension."""
    array = np.asarray(as_numpy(values))
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name} holds something that is not a number; expected an array of numbers") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} has the dtype {array.dtype}; expected numbers")
    if array.ndim == 0:
        raise ValueError(f"{name} is the single number {array}; expected a row for each transition")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        raise ValueError(f"{name} contains NaN or infinity in row {bad[0][0]} ({len(bad)} such values in all)")
    return array


def states_of(values: Any, name: str, width: int | None = None) -> np.ndarray:
    """States as rows `(n, width)` of float64; further dimensions, as of images, are flattened."""
    array = numbers(values, name)
    if array.ndim == 1:
        raise ValueError(
            f"{name} has shape {array.shape}; expected (n, numbers of a state): {name}.reshape(-1, 1), or for the number of "
            "a state a row of indicators"
        )
    if not len(array):
        raise ValueError(f"{name} has shape {array.shape}; expected at least one row")
    array = array.reshape(len(array), -1).astype(np.float64)
    if width is not None and array.shape[1] != width:
        raise ValueError(f"{name} has {array.shape[1]} numbers a state; expected {width}, as in the fit")
    return array


def _flat(array: np.ndarray, name: str) -> np.ndarray:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; expected (n,)")
    return array


def kind_of(actions: Any, next_actions: Any, count: int | None) -> Actions:
    """Whole numbers are discrete actions, floating point is continuous."""
    logged, following = numbers(actions, "actions"), numbers(next_actions, "next_actions")
    if logged.dtype.kind == "f":
        if count is not None:
            raise ValueError(f"actions are floating point and n_actions is {count}; expected whole numbers")
        if following.dtype.kind != "f":
            raise ValueError(
                "actions are floating point (continuous) and next_actions whole numbers (discrete); expected one kind"
            )
        return Actions(False, 1 if logged.ndim == 1 else logged.shape[1])
    if count is None and following.dtype.kind == "f" and following.ndim == 2:
        count = following.shape[1]
    if count is None:
        count = 1 + int(max(logged.max(initial=0), following.max(initial=0)))
    return Actions(True, count)


def checked(
    states: Any, actions: Any, rewards: Any, next_states: Any, next_actions: Any, done: Any, episode: Any,
    n_actions: int | None,
) -> Transitions:  # fmt: skip
    """All parts as arrays, or a ValueError that says what is wrong with which."""
    kind = kind_of(actions, next_actions, n_actions)
    now, after = states_of(states, "states"), states_of(next_states, "next_states")
    if now.shape[1] != after.shape[1]:
        raise ValueError(f"states have {now.shape[1]} numbers and next_states {after.shape[1]}; expected as many")
    reward = _flat(numbers(rewards, "rewards"), "rewards").astype(np.float64)
    over = _flat(numbers(done, "done"), "done").astype(np.float64)
    if not np.isin(over, (0.0, 1.0)).all():
        bad = over[~np.isin(over, (0.0, 1.0))][0]
        raise ValueError(f"done holds {bad:g}; expected True or False, or 1 and 0, a row each")
    index = None
    if episode is not None:
        index = np.unique(_flat(np.asarray(as_numpy(episode)), "episode"), return_inverse=True)[1]
    encoded = kind.encoded(actions, "actions", probabilities=False), kind.encoded(next_actions, "next_actions")
    parts = {
        "states": now, "actions": encoded[0], "rewards": reward, "next_states": after, "next_actions": encoded[1],
        "done": over,
    } | ({} if index is None else {"episode": index})  # fmt: skip
    lengths = {name: len(part) for name, part in parts.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError("rows differ: " + ", ".join(f"{name} has {n}" for name, n in lengths.items()))
    return Transitions(now, encoded[0], reward, after, encoded[1], 1 - over, index, kind)


def never_taken(data: Transitions) -> float:
    """The share of the evaluated policy's next actions that were never logged: of its probability on discrete actions that
    no row took, of continuous ones the share outside of the range of the logged ones."""
    following = data.next_actions[data.going > 0]
    if not len(following):
        return 0.0
    if data.kind.discrete:
        return float(following[:, ~data.actions.any(0)].sum(1).mean())
    low, high = data.actions.min(0), data.actions.max(0)
    return float(((following < low) | (following > high)).any(1).mean())


def warn_of_never_taken(data: Transitions) -> None:
    share = never_taken(data)
    if share > 0:
        where = (
            "actions that the logged policy never took" if data.kind.discrete else "actions outside of the logged range"
        )
        warnings.warn(
            f"the evaluated policy spends {share:.1%} of its next actions on {where}: their value is a guess of the network",
            stacklevel=4,
        )
