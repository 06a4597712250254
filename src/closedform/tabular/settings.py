"""The parameters of the estimators, which values they take, and what "auto" means for a table of so many rows."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import nn

from ..parameters import are_sizes, check_auto, is_count, is_positive
from ..solver import lambdas
from ..solver.rules import Rule
from ..stack.networks import check_activation
from . import scaling
from .loop import Plan
from .networks import Memory

# Found by the experiments in docs/tabular.md, on tables' validation shares.
# Levels from little noise to much: weight decay, and lambda over the mean square of a feature at the full learning rate,
# which is the number of rows whose weight the old layer has in a solve
LEVELS = ((0.0, 1 / 16), (0.03, 1.0), (0.2, 16.0), (1.0, 256.0))
LARGE_LEVELS = ((0.0, 1 / 16), (0.03, 16.0), (0.2, 1024.0))  # much decay never helped large tables, long memories did
ALONE = (0.03, 4.0)  # of a single member, which has to do for every table
FORGET = (0.9, 0.95, 0.98, 0.99)  # of the levels under the Kalman rule
ALONE_FORGET = 0.95
SMALL = 4000  # rows up to which there are two members of each level, which hold out different rows; above, one of each
HIDDEN, LARGE_HIDDEN = (48, 48, 48), (64, 64, 64)
RATE, RATE_INPUTS = 0.01, 20  # the learning rate, and the number of inputs from which on it falls


class Settings(BaseEstimator):
    """Holds the parameters; see `ClosedFormRegressor`."""

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | str = "auto",
        *,
        activation: str = "gelu",
        rule: str | Rule = "proximal",
        lam: float | str = "auto",
        members: int | str = "auto",
        weight_decay: float | str = "auto",
        learning_rate: float | str = "auto",
        batch_size: int | str = "auto",
        max_iter: int | str = "auto",
        waves: int | str = "auto",
        effort: float = 1.0,
        neighbours: bool = True,
        early_stopping: bool = True,
        validation_fraction: float = 0.12,
        n_iter_no_change: int | None = None,
        backbone: nn.Module | None = None,
        warm_start: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.rule = rule
        self.lam = lam
        self.members = members
        self.weight_decay = weight_decay
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.waves = waves
        self.effort = effort
        self.neighbours = neighbours
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.backbone = backbone
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self) -> None:
        check_auto("hidden_layer_sizes", self.hidden_layer_sizes, are_sizes, "a sequence of positive integers")
        check_activation(self.activation)
        if not isinstance(self.rule, Rule) and self.rule not in ("proximal", "kalman", "learned"):
            raise ValueError(f'rule must be "proximal", "kalman", "learned" or a closedform rule, got {self.rule!r}')
        check_auto("lam", self.lam, is_positive, "a positive number")
        check_auto("members", self.members, is_count, "a positive integer")
        check_auto("weight_decay", self.weight_decay, lambda v: v == 0 or is_positive(v), "a number from 0 on")
        check_auto("learning_rate", self.learning_rate, is_positive, "a positive number")
        check_auto("batch_size", self.batch_size, is_count, "a positive integer")
        check_auto("max_iter", self.max_iter, is_count, "a positive integer")
        check_auto("waves", self.waves, lambda v: v == 0 or is_count(v), "a whole number from 0 on")
        if not is_positive(self.effort):
            raise ValueError(f"effort must be a positive number, got {self.effort!r}")
        if not is_positive(self.validation_fraction) or not self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be between 0 and 1, got {self.validation_fraction!r}")
        for name in ("neighbours", "early_stopping", "warm_start", "verbose"):
            value = getattr(self, name)
            if not isinstance(value, (bool, np.bool_)) and not (name == "verbose" and isinstance(value, Integral)):
                raise ValueError(f"{name} must be True or False, got {value!r}")
        patience = self.n_iter_no_change
        if patience is not None and not is_count(patience):
            raise ValueError(f"n_iter_no_change must be a positive integer or None, got {patience!r}")
        _check_device(self.device)
        if self.backbone is not None and not isinstance(self.backbone, nn.Module):
            raise ValueError(f"backbone must be a torch.nn.Module or None, got {type(self.backbone).__name__}")

    def _members(self, n: int) -> int:
        if self.backbone is not None or isinstance(self.rule, Rule):
            return 1
        if self.members != "auto":
            return int(self.members)
        return 2 * len(LEVELS) if n <= SMALL else len(LARGE_LEVELS)

    def _hidden(self, n: int, outputs: int) -> list[int]:
        sizes = self.hidden_layer_sizes
        if isinstance(sizes, str):
            sizes = HIDDEN if n <= SMALL else self._large_hidden(outputs)
        return [int(size) for size in sizes]

    def _large_hidden(self, outputs: int) -> tuple[int, ...]:
        return LARGE_HIDDEN

    def _bank(self, n: int) -> tuple[tuple[float, float], ...]:
        """The levels that members take in turn."""
        return LEVELS if n <= SMALL else LARGE_LEVELS

    def _levels(self, members: int, n: int) -> list[tuple[float, float]]:
        bank = self._bank(n)
        return [ALONE] if members == 1 else [bank[k % len(bank)] for k in range(members)]

    def _decays(self, members: int, n: int) -> list[float]:
        if self.weight_decay != "auto":
            return [float(self.weight_decay)] * members
        return [decay for decay, _ in self._levels(members, n)]

    def _batch_size(self, n: int) -> int:
        """32 up to some thousand rows, then growing with them to 256."""
        if self.batch_size != "auto":
            return int(self.batch_size)
        return min(256, max(32, 2 ** round(math.log2(max(n, 1) / 60))))

    def _plan(self, n: int, seed: int) -> Plan:
        if self.max_iter != "auto":
            epochs = int(self.max_iter)
        else:
            epochs = max(1, round(self.effort * max(10, min(55, round(55 * (1000 / n) ** 0.3)))))
        return Plan(self._batch_size(n), epochs, seed, self.n_iter_no_change if self.early_stopping else None)

    def _rate(self, inputs: int) -> float:
        """Many inputs make a large step of the first layer, so the rate falls with their root."""
        if self.learning_rate != "auto":
            return float(self.learning_rate)
        return RATE * min(1.0, math.sqrt(RATE_INPUTS / inputs))

    def _wave_columns(self, wavy: np.ndarray) -> list[int]:
        """Which inputs have waves, of those that may."""
        return [] if self.waves == 0 else np.flatnonzero(wavy).tolist()

    def _waves(self, columns: int) -> int:
        """Cosines of each column that has some."""
        return scaling.waves(columns) if self.waves == "auto" else int(self.waves)

    def _memory(self, members: int, n: int) -> Memory:
        lam = None if self.lam == "auto" else float(self.lam)
        kind = self.rule
        batch = min(n, self._batch_size(n))
        levels = self._levels(members, n)
        ratio = tuple(rows / batch for _, rows in levels) if kind == "proximal" else lambdas.AUTO_RATIO
        forget = (ALONE_FORGET,) if members == 1 else FORGET[: len(self._bank(n))]
        return Memory(kind, lam, ratio, forget)  # pyright: ignore[reportArgumentType]

    def _device(self, n: int) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)  # checked
        # a small network's step is mostly calls, which a GPU makes no faster
        large = self.backbone is not None or n > 200_000
        return torch.device("cuda" if large and torch.cuda.is_available() else "cpu")


def _check_device(name: Any) -> None:
    """Predictions are made in float64, which not every kind of device has."""
    try:
        kind = "cpu" if name == "auto" else torch.device(name).type
    except (RuntimeError, TypeError):
        kind = ""
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f'device must be "auto", "cpu" or, where there is such a GPU, "cuda", got {name!r}')
