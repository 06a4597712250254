"""What the regressor and the classifier share: parameters, fitting, features, the defaults that depend on the table."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from .. import lambdas
from ..rules import Kalman, Rule
from .loop import Engine, Plan, Record, Rows, bounds, train
from .modules import Modules
from .networks import Memory, Networks, check_activation
from .prepare import folds, merged, moments, numpy, one_thread

# Found by the experiments in docs/tabular.md, on tables' validation shares.
# Levels from little noise to much: weight decay, and how many rows the last layer remembers at the full learning rate:
# lambda is so many times the mean square of a feature
LEVELS = ((0.0, 32.0), (0.03, 64.0), (0.2, 160.0), (1.0, 640.0))
ALONE = 1  # the level of a single member
SMALL = 4000  # rows up to which there are two members of each level, which hold out different rows; above, one of each
LARGE_LEVELS = 3  # of the levels above that, where so much decay as the last has never helped
HIDDEN, LARGE_HIDDEN = (48, 48, 48), (64, 64, 64)
RATE, RATE_INPUTS = 0.01, 20  # the learning rate, and the number of inputs from which on it falls
STREAM = 0.1  # of the rate, for `partial_fit`, whose rate does not fall
FORGET = (0.9, 0.95, 0.98, 0.99)  # of the levels under the Kalman rule
SHARPNESS = 3.0  # a level's share goes with its held-out squared error to this power, inverted
CHUNK = 8192  # rows predicted at a time


class Estimator(BaseEstimator):
    """Base of the estimators; see `ClosedFormRegressor`."""

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
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.backbone = backbone
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # ---- Fitting ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train on `X (n, features)` and `y`; arrays, data frames or tensors. Returns the estimator."""
        return self._fit(X, y, sample_weight)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        resume: Callable[[dict[str, Any]], tuple[Record, dict[str, Tensor]] | None] | None = None,
        on_epoch: Callable[[Record, Engine, Plan], None] | None = None,
    ) -> Any:
        """`fit`, with a look in after every epoch and, from `resume`, a record and an engine's state to go on from."""
        self._check_parameters()
        again = self.warm_start and hasattr(self, "engine_")
        X, Y, weight = self._validated(X, y, sample_weight, reset=not again)
        X, Y, weight = merged(X, Y, weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if not again:
            self._standardise(X, Y, weight)
        plan = self._plan(len(X), seed)
        with one_thread():
            engine = self.engine_ if again else self._engine(X, len(X), Y.shape[1], seed)
            if again:
                engine.forget_optimizer()
            rows = self._rows(engine, X, Y, weight)
            if self.early_stopping:
                held = folds(len(X), engine.members, len(LEVELS), self.validation_fraction, seed)
                rows.held = None if held is None else held.to(engine.device)
            record = Record()
            found = resume({"seed": seed}) if resume is not None else None
            if found is not None:
                record, state = found
                engine.restore(state)
            bar = _Bar(plan.epochs) if self.verbose else None

            def epoch(record: Record) -> None:
                if bar is not None:
                    bar(record)
                if on_epoch is not None:
                    on_epoch(record, engine, plan)

            train(engine, rows, plan, record, epoch)
            if bar is not None:
                bar.close()
            self._note(engine, record)
            self._calibrate(rows)
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> None:
        self._check_parameters()
        X, Y, weight = self._validated(X, y, sample_weight, reset=first)
        weight = np.ones(len(X)) if weight is None else weight
        used = weight > 0
        X, Y, weight = X[used], Y[used], weight[used]
        with one_thread():
            if first:
                seed = int(check_random_state(self.random_state).randint(2**31 - 1))
                self._standardise(X, Y, weight)
                self.engine_ = self._engine(X, len(X), Y.shape[1], seed)
                self.loss_curve_, self.n_iter_, self._missed = [], 0, None
            engine = self.engine_
            rows = self._rows(engine, X, Y, weight)
            loss = 0.0
            for low, high in bounds(len(X), self._batch_size(len(X))):
                part = None if rows.weight is None else rows.weight[None, low:high, None]
                error, before = engine.step(rows.x[low:high], rows.y[low:high], part, STREAM)
                loss += float(error.mean())
                # the error of each batch before it is taken in is a held-out error of every member
                missed = before.square().mean((1, 2)).double().cpu()
                self._missed = missed if self._missed is None else self._missed.lerp(missed, 0.05)
            self.loss_curve_ = [*self.loss_curve_, loss / Y.size]
            self.n_iter_ += 1
            assert self._missed is not None
            self.shares_ = _shares(self._missed)
            self._finish()
            self.temperature_ = getattr(self, "temperature_", 1.0)

    def _note(self, engine: Engine, record: Record) -> None:
        self.engine_ = engine
        self.n_iter_ = record.epoch
        self.loss_curve_ = list(record.loss)
        self.validation_curve_ = [float(np.mean(values)) for values in record.held]
        best = torch.tensor(record.best, dtype=torch.float64) if record.best else None
        self.shares_ = _shares(best) if best is not None else np.full(engine.members, 1 / engine.members)
        self._missed = best
        self._finish()

    def _finish(self) -> None:
        """`coef_` and `intercept_` in the units of the targets."""
        weight, bias = self.engine_.layer(torch.from_numpy(self.shares_))
        scale = self.target_scale_
        self.coef_ = weight.cpu().numpy() * scale[:, None]
        self.intercept_ = bias.cpu().numpy() * scale + self.target_mean_
        self._shape_layer()

    def _shape_layer(self) -> None:
        raise NotImplementedError

    def _calibrate(self, rows: Rows) -> None:
        """What can be learned from the rows that were held out; nothing for a regressor."""

    def _encoded(self, y: np.ndarray, *, reset: bool) -> np.ndarray:
        raise NotImplementedError

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Inputs, encoded targets and weights; where something is wrong with them, the estimator stays as it was."""
        before = dict(self.__dict__)
        try:
            X, y = validate_data(self, numpy(X), numpy(y), reset=reset, dtype=np.float64, multi_output=True)
            Y = self._encoded(y, reset=reset)
            if sample_weight is None:
                return X, Y, None
            weight = _check_sample_weight(numpy(sample_weight), X, dtype=np.float64, ensure_non_negative=True)
            if not weight.any():
                raise ValueError("every sample_weight is zero: there is nothing to fit")
            return X, Y, weight
        except Exception:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _standardise(self, X: np.ndarray, Y: np.ndarray, weight: np.ndarray) -> None:
        self._rows_fitted = len(X)  # decides what "auto" means
        self.input_mean_, self.input_scale_ = moments(X, weight)
        self.target_mean_, self.target_scale_ = self._target_moments(Y, weight)

    def _target_moments(self, Y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return moments(Y, weight)

    def _rows(self, engine: Engine, X: np.ndarray, Y: np.ndarray, weight: np.ndarray) -> Rows:
        kind = {"device": engine.device, "dtype": engine.dtype}
        y = torch.as_tensor((Y - self.target_mean_) / self.target_scale_, **kind)
        w = None if (weight == weight[0]).all() else torch.as_tensor(weight / weight.mean(), **kind)
        return Rows(self._inputs(X).to(**kind), y, w)

    def _inputs(self, X: np.ndarray) -> Tensor:
        return torch.from_numpy((X - self.input_mean_) / self.input_scale_)

    # ---- Predicting ------------------------------------------------------------------------------

    def features(self, X: Any) -> np.ndarray:
        """What the last layer sees: a prediction is `features(X) @ coef_.T + intercept_`."""
        check_is_fitted(self)
        X = validate_data(self, numpy(X), reset=False, dtype=np.float64)
        with one_thread():
            parts = [self._features(X[low : low + CHUNK]) for low in range(0, len(X), CHUNK)]
        return torch.cat(parts).cpu().numpy()

    def _features(self, X: np.ndarray) -> Tensor:
        return self.engine_.features(self._inputs(X).to(self.engine_.device))

    def _outputs(self, X: Any) -> np.ndarray:
        """`(n, outputs)` in the units of the targets."""
        phi = self.features(X)
        return phi @ np.atleast_2d(self.coef_).T + np.atleast_1d(self.intercept_)

    # ---- Parameters ------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        _check_auto("hidden_layer_sizes", self.hidden_layer_sizes, _are_sizes, "a sequence of positive integers")
        check_activation(self.activation)
        if not isinstance(self.rule, Rule) and self.rule not in ("proximal", "kalman", "learned"):
            raise ValueError(f'rule must be "proximal", "kalman", "learned" or a closedform rule, got {self.rule!r}')
        _check_auto("lam", self.lam, _is_positive, "a positive number")
        _check_auto("members", self.members, _is_count, "a positive integer")
        _check_auto("weight_decay", self.weight_decay, lambda v: v == 0 or _is_positive(v), "a number from 0 on")
        _check_auto("learning_rate", self.learning_rate, _is_positive, "a positive number")
        _check_auto("batch_size", self.batch_size, _is_count, "a positive integer")
        _check_auto("max_iter", self.max_iter, _is_count, "a positive integer")
        if not _is_positive(self.validation_fraction) or not self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be between 0 and 1, got {self.validation_fraction!r}")
        patience = self.n_iter_no_change
        if patience is not None and not _is_count(patience):
            raise ValueError(f"n_iter_no_change must be a positive integer or None, got {patience!r}")
        if self.backbone is not None and not isinstance(self.backbone, nn.Module):
            raise ValueError(f"backbone must be a torch.nn.Module or None, got {type(self.backbone).__name__}")

    def _members(self, n: int) -> int:
        if self.backbone is not None or isinstance(self.rule, Rule):
            return 1
        if self.members != "auto":
            return int(self.members)
        return 2 * len(LEVELS) if n <= SMALL else LARGE_LEVELS

    def _hidden(self, n: int) -> list[int]:
        sizes = self.hidden_layer_sizes
        if isinstance(sizes, str):
            sizes = HIDDEN if n <= SMALL else LARGE_HIDDEN
        return [int(size) for size in sizes]

    def _levels(self, members: int) -> list[tuple[float, float]]:
        return [LEVELS[ALONE]] if members == 1 else [LEVELS[k % len(LEVELS)] for k in range(members)]

    def _decays(self, members: int) -> list[float]:
        if self.weight_decay != "auto":
            return [float(self.weight_decay)] * members
        return [decay for decay, _ in self._levels(members)]

    def _batch_size(self, n: int) -> int:
        """32 up to some thousand rows, then growing with them to 256."""
        if self.batch_size != "auto":
            return int(self.batch_size)
        return min(256, max(32, 2 ** round(math.log2(max(n, 1) / 60))))

    def _plan(self, n: int, seed: int) -> Plan:
        epochs = int(self.max_iter) if self.max_iter != "auto" else max(10, min(55, round(55 * (1000 / n) ** 0.3)))
        return Plan(self._batch_size(n), epochs, seed, self.n_iter_no_change if self.early_stopping else None)

    def _rate(self, inputs: int) -> float:
        """Many inputs make a large step of the first layer, so the rate falls with their root."""
        if self.learning_rate != "auto":
            return float(self.learning_rate)
        return RATE * min(1.0, math.sqrt(RATE_INPUTS / inputs))

    def _memory(self, members: int, n: int) -> Memory:
        lam = None if self.lam == "auto" else float(self.lam)
        kind = self.rule
        batch = min(n, self._batch_size(n))
        ratio = tuple(rows / batch for _, rows in self._levels(members)) if kind == "proximal" else lambdas.AUTO_RATIO
        forget = FORGET[ALONE] if members == 1 else tuple(FORGET[k % len(FORGET)] for k in range(members))
        return Memory(kind, lam, ratio, forget)  # pyright: ignore[reportArgumentType]

    def _device(self, n: int) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        # a small network's step is mostly calls, which a GPU makes no faster
        large = self.backbone is not None or n > 200_000
        return torch.device("cuda" if large and torch.cuda.is_available() else "cpu")

    def _engine(self, X: np.ndarray, n: int, outputs: int, seed: int) -> Engine:
        inputs, members = X.shape[1], self._members(n)
        if self.backbone is None and not isinstance(self.rule, Rule):
            return Networks(
                inputs,
                self._hidden(n),
                outputs,
                members=members,
                activation=self.activation,
                memory=self._memory(members, n),
                weight_decay=self._decays(members),
                seed=seed,
                learning_rate=self._rate(inputs),
                device=self._device(n),
            )
        backbone = self.backbone
        if backbone is None:
            backbone = _perceptron([inputs, *self._hidden(n)], self.activation, seed)
        return Modules(
            backbone,
            outputs,
            example=self._inputs(X[:2]).float(),
            memory=self.rule if isinstance(self.rule, Rule) else self._memory(1, n),
            weight_decay=self._decays(1)[0],
            learning_rate=self._rate(inputs) if self.backbone is None else self._rate(1) / 10,
            seed=seed,
            device=self._device(n),
        )

    def _needs_kalman(self) -> None:
        rule = self.rule
        if not (isinstance(rule, Kalman) or rule == "kalman"):
            raise ValueError(f'return_std needs rule="kalman", which keeps a covariance; this estimator has {rule!r}')

    # ---- Files -----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator to one safetensors file, whole or not at all; `closedform.estimators.load` reads it."""
        from . import files

        return files.save(self, Path(path))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        return tags


def _shares(errors: Tensor) -> np.ndarray:
    """How much each member counts, from held-out squared errors: a level's mean error to the power -SHARPNESS, divided among
    its members.

    >>> _shares(torch.tensor([1.0, 1.0])).tolist(), _shares(torch.tensor([1.0, float("inf")])).tolist()
    ([0.5, 0.5], [1.0, 0.0])
    """
    levels = torch.arange(len(errors)) % len(LEVELS)
    count = torch.bincount(levels)
    means = torch.bincount(levels, errors.double().nan_to_num(nan=math.inf)) / count
    best = float(means.min())
    if not math.isfinite(best):
        return np.full(len(errors), 1 / len(errors))
    floor = max(best, 1e-300)
    shares = (means.clamp(min=floor) / floor) ** -SHARPNESS / count
    return (shares[levels] / shares[levels].sum()).numpy()


def _perceptron(sizes: list[int], activation: str, seed: int) -> nn.Sequential:
    """The member of `Networks` as a module, for rules that only `ClosedFormLinear` knows."""
    kinds = {"gelu": nn.GELU, "silu": nn.SiLU, "relu": nn.ReLU, "tanh": nn.Tanh}
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:]):
        layer = nn.Linear(a, b, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            drawn = torch.randn(a * b, generator=generator, dtype=torch.float64) * a**-0.5
            layer.weight.copy_(drawn.view(a, b).T)
            layer.bias.zero_()
        layers += [layer, kinds[activation]()]
    return nn.Sequential(*layers)


def _is_positive(value: Any) -> bool:
    return isinstance(value, Real) and 0 < float(value) < math.inf


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) > 0


def _are_sizes(sizes: Any) -> bool:
    return isinstance(sizes, (tuple, list)) and len(sizes) > 0 and all(map(_is_count, sizes))


def _check_auto(name: str, value: Any, good: Callable[[Any], bool], expected: str) -> None:
    if isinstance(value, str) and value == "auto":
        return
    if isinstance(value, (str, bool)) or not good(value):
        raise ValueError(f'{name} must be "auto" or {expected}, got {value!r}')


class _Bar:
    """A progress bar on stderr."""

    def __init__(self, epochs: int):
        self.epochs, self.start, self.width = epochs, time.perf_counter(), 30

    def __call__(self, record: Record) -> None:
        done = self.width * record.epoch // self.epochs
        held = f"  held out {min(record.held[-1]):.4g}" if record.held else ""
        print(
            f"\repoch {record.epoch}/{self.epochs} [{'#' * done}{'.' * (self.width - done)}] "
            f"loss {record.loss[-1]:.4g}{held}  {time.perf_counter() - self.start:.1f} s ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        print(file=sys.stderr)
