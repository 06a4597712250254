"""What the regressor and the classifier share: fitting, features, the last layer in the units of the targets."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from ..arrays import as_numpy, moments, one_thread
from ..estimator_files import save
from ..solver.rules import Kalman, Rule
from ..stack.loop import Checkpoint
from ..stack.periodic import PeriodicPerceptron
from . import conformal, frames, neighbours, noise, shrinking
from .columns import Preparation
from .loop import Engine, Epochs, Plan, Record, TrainingRows, bounds, train
from .modules import Modules
from .networks import Networks
from .rows import folds, merged
from .scaling import as_lines, centre_and_scale, scaled, straight, wavy
from .settings import Settings

STREAM = 0.1  # of the rate, for `partial_fit`, whose rate does not fall
SHARPNESS = 3.0  # a level's share goes with its held-out squared error to this power, inverted
CHUNK = 2048  # rows predicted at a time


class Estimator(Settings, ABC):
    """Base of the estimators; see `ClosedFormRegressor`."""

    _one_scale = False  # whether the outputs belong together, as those of classes do

    # ---- Fitting ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train on `X (n, features)` and `y`; arrays, tensors or data frames, which may hold texts, dates and gaps.
        Returns the estimator."""
        return self._fit(X, y, sample_weight)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        preparation: Preparation | None = None,
        checkpoint: Checkpoint | None = None,
        on_epoch: Callable[[Record, Plan], None] | None = None,
    ) -> Any:
        """`fit`, with a preparation that is known already, a look in after every epoch, and a checkpoint."""
        self._check_parameters()
        with self._unchanged_on_error():
            return self._fitted(X, y, sample_weight, preparation, checkpoint, on_epoch)

    @contextlib.contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        before = dict(vars(self))
        engine: Engine | None = before.get("engine_")  # trained further in place
        state = {} if engine is None else {name: tensor.clone() for name, tensor in engine.state().items()}
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            if engine is not None:
                engine.restore(state)
            raise

    def _fitted(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        preparation: Preparation | None,
        checkpoint: Checkpoint | None,
        on_epoch: Callable[[Record, Plan], None] | None,
    ) -> Any:
        again = self.warm_start and hasattr(self, "engine_")
        X, Y, weight = self._validated(X, y, sample_weight, reset=not again, preparation=preparation)
        X, Y, weight = self._merged(X, Y, weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if not again:
            self._standardise(X, Y, weight)
        plan = self._plan(len(X), seed)
        with one_thread():
            engine = self._engine(X, self._rows_fitted, Y.shape[1], seed)
            if again:
                self._warm(engine)
            rows = self._rows(engine, X, Y, weight)
            if self.early_stopping:
                held = folds(len(X), engine.members, len(self._bank(self._rows_fitted)), self.validation_fraction, seed)
                rows.held = None if held is None else held.to(engine.device)
            bar = _Bar(plan.epochs) if self.verbose else None

            def epoch(record: Record) -> None:
                if bar is not None:
                    bar(record)
                if on_epoch is not None:
                    on_epoch(record, plan)

            record = train(Epochs(engine, rows, plan, epoch), checkpoint)
            if bar is not None:
                bar.close()
            self._note(engine, record)
            self._calibrate(rows)
            self._finish()
        self._fitted_parameters = self.get_params(deep=False)
        return self

    def _warm(self, engine: Engine) -> None:
        """The weights of the last fit, for a new schedule with the settings of today."""
        try:
            engine.restore(self.engine_.state())
        except ValueError:
            raise ValueError(
                "warm_start goes on from the networks of the last fit, which hidden_layer_sizes, waves, members, rule or"
                " backbone no longer describe; warm_start=False starts anew"
            ) from None
        engine.forget_optimizer()

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> None:
        self._check_parameters()
        with self._unchanged_on_error():
            self._taken_in(X, y, sample_weight, first)

    def _taken_in(self, X: Any, y: Any, sample_weight: Any, first: bool) -> None:
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
                self.linear_share_ = 0.0
                self._fitted_parameters = self.get_params(deep=False)
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
            self.shares_ = _shares(self._missed, len(self._bank(self._rows_fitted)))
            self.distances_ = self.neighbours_ = None  # those of an earlier fit are of another model
            self._finish()

    def _note(self, engine: Engine, record: Record) -> None:
        self.engine_ = engine
        self.n_iter_ = record.epoch
        self.loss_curve_ = list(record.loss)
        self.validation_curve_ = [float(np.mean(values)) for values in record.held]
        best = torch.tensor(record.best, dtype=torch.float64) if record.best else None
        equal = np.full(engine.members, 1 / engine.members)
        self.shares_ = equal if best is None else _shares(best, len(self._bank(self._rows_fitted)))
        self._missed = best

    def _finish(self) -> None:
        """`coef_` and `intercept_` in the units of the targets."""
        weight, bias = self.engine_.layer(torch.from_numpy(self.shares_))
        scale = self.target_scale_
        self.coef_ = weight.cpu().numpy() * scale[:, None]
        if self.neighbours_ is not None:
            self.coef_ = np.concatenate([self.coef_, np.diag(self.neighbours_.share * scale)], 1)
        self.intercept_ = bias.cpu().numpy() * scale + self.target_mean_
        if not (np.isfinite(self.coef_).all() and np.isfinite(self.intercept_).all()):
            raise ValueError("training left the range of floats: expected inputs, targets and weights of moderate size")
        self._shape_layer()

    @abstractmethod
    def _shape_layer(self) -> None:
        """`coef_` and `intercept_` in scikit-learn's shape; the regressor and the classifier each have it."""

    def _calibrate(self, rows: TrainingRows) -> None:
        """What the rows that were held out tell of the errors to come; nothing where there are none."""
        self.distances_, self.neighbours_, self.linear_share_ = None, None, 0.0
        if rows.held is None:
            return
        held, line = conformal.held_out(self.engine_, self.shares_, rows), None
        if isinstance(self.engine_, Networks) and min(len(rows.x), len(self.input_centre_)) <= shrinking.LARGEST:
            inputs = self.engine_.network.parts(rows.x)[1]
            held, line = shrinking.drawn(held, rows, inputs)
            self.linear_share_ = line.share
        networks_alone = held
        if isinstance(self.engine_, Networks) and self.neighbours:
            self.neighbours_, held = neighbours.judged(
                self.engine_, self.shares_, rows, held, len(self.input_centre_), line, jointly=self._one_scale
            )
        if isinstance(self.engine_, Networks) and line is not None:
            self.engine_.draw_to(line.whole, line.share)
        if isinstance(self.engine_, Networks) and self.engine_.memory.kind == "kalman":
            shares = torch.from_numpy(self.shares_)
            self.engine_.scale_noise(noise.factor(self.engine_, shares, rows, networks_alone))
        self._judge(held)

    @abstractmethod
    def _judge(self, held: conformal.HeldOut) -> None:
        """Learn from predictions of held-out rows."""

    def _reach(self, alpha: Any) -> np.ndarray:
        alpha = conformal.check_alpha(alpha)
        if self.distances_ is None:
            raise ValueError(
                "intervals and sets need rows that members held out, and this estimator has none:"
                " fit with early_stopping=True on more than a few rows (partial_fit holds none out)"
            )
        return conformal.reach(self.distances_, alpha)

    @abstractmethod
    def _encoded(self, y: np.ndarray, *, reset: bool) -> np.ndarray:
        """The targets as numbers; the regressor and the classifier each have it."""

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, preparation: Preparation | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        used = None if sample_weight is None else np.asarray(as_numpy(sample_weight)) != 0
        X, y = frames.validated(self, X, y, reset=reset, preparation=preparation, used=used)
        Y = self._encoded(y, reset=reset)
        if sample_weight is None:
            return X, Y, None
        weight = _check_sample_weight(as_numpy(sample_weight), X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("every sample_weight is zero: there is nothing to fit")
        with np.errstate(over="ignore"):
            if not np.isfinite(weight.sum()):
                raise ValueError(
                    f"sample_weight adds up to more than a float holds, with weights up to {weight.max():.3g}:"
                    " expected smaller ones; only their ratios matter"
                )
        return X, Y, weight

    def _merged(
        self, X: np.ndarray, Y: np.ndarray, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return merged(X, Y, weight)

    def _standardise(self, X: np.ndarray, Y: np.ndarray, weight: np.ndarray) -> None:
        self._rows_fitted = len(X)  # decides what "auto" means
        self.input_centre_, self.input_scale_ = centre_and_scale(X, weight)
        self.wavy_ = wavy(X)
        self.target_mean_, self.target_scale_ = self._target_moments(Y, weight)
        targets = (Y - self.target_mean_) / self.target_scale_
        self.line_ = straight(X, targets, weight, scaled(X, self.input_centre_, self.input_scale_))
        if self.backbone is not None:  # which makes all features itself
            self.line_[2] = 0.0

    def _target_moments(self, Y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return moments(Y, weight)

    def _rows(self, engine: Engine, X: np.ndarray, Y: np.ndarray, weight: np.ndarray) -> TrainingRows:
        kind = {"device": engine.device, "dtype": engine.dtype}
        y = torch.as_tensor((Y - self.target_mean_) / self.target_scale_, **kind)
        w = None if (weight == weight[0]).all() else torch.as_tensor(weight / weight.mean(), **kind)
        return TrainingRows(self._inputs(X).to(**kind), y, w)

    def _inputs(self, X: np.ndarray) -> Tensor:
        """What an engine takes: the columns drawn in and, where the last layer sees plain ones, these behind them."""
        parts = [scaled(X, self.input_centre_, self.input_scale_)]
        if self._plain:
            parts.append(as_lines(X, self.line_))
        return torch.from_numpy(np.concatenate(parts, 1))

    @property
    def _plain(self) -> bool:
        return bool(self.line_[2].any())

    # ---- Predicting ------------------------------------------------------------------------------

    def features(self, X: Any) -> np.ndarray:
        """What the last layer sees: a prediction is `features(X) @ coef_.T + intercept_`."""
        return np.concatenate([phi.cpu().numpy() for phi in self._pieces(X)])

    def _pieces(self, X: Any) -> Iterator[Tensor]:
        """The features, some rows at a time: those of all rows may be more than memory holds."""
        check_is_fitted(self)
        X = frames.validated(self, X, reset=False)
        for low in range(0, len(X), CHUNK):
            with one_thread():
                phi = self._features(X[low : low + CHUNK])
            yield phi

    def _features(self, X: np.ndarray) -> Tensor:
        inputs = self._inputs(X)
        phi = self.engine_.features(inputs.to(self.engine_.device))
        if self.neighbours_ is None:
            return phi
        means = self.neighbours_.means(inputs[:, : len(self.input_centre_)].numpy())
        return torch.cat([phi, torch.from_numpy(means).to(phi)], 1)

    def _outputs(self, X: Any) -> np.ndarray:
        """`(n, outputs)` in the units of the targets."""
        W, b = np.atleast_2d(self.coef_).T, np.atleast_1d(self.intercept_)
        return np.concatenate([phi.cpu().numpy() @ W + b for phi in self._pieces(X)])

    # ---- The engine ------------------------------------------------------------------------------

    def _engine(self, X: np.ndarray, n: int, outputs: int, seed: int) -> Engine:
        inputs, members = X.shape[1], self._members(n)
        columns = self._wave_columns(self.wavy_)
        alone = inputs if self._plain else 0
        network = PeriodicPerceptron(
            inputs, columns, self._waves(len(columns)), self._hidden(n, outputs), self.activation, alone
        )
        if self.backbone is None and not isinstance(self.rule, Rule):
            return Networks(
                network,
                outputs,
                members=members,
                memory=self._memory(members, n),
                weight_decay=self._decays(members, n),
                seed=seed,
                learning_rate=self._rate(network.seen_inputs),
                device=self._device(n),
            )
        backbone = self.backbone
        if backbone is None:
            backbone = network.module(torch.Generator().manual_seed(seed))
        return Modules(
            backbone,
            outputs,
            example=self._inputs(X[:2]).float(),
            memory=self.rule if isinstance(self.rule, Rule) else self._memory(1, n),
            weight_decay=self._decays(1, n)[0],
            learning_rate=self._rate(network.seen_inputs) if self.backbone is None else self._rate(1) / 10,
            seed=seed,
            device=self._device(n),
        )

    def _needs_kalman(self) -> None:
        rule = self.rule
        if not (isinstance(rule, Kalman) or rule == "kalman"):
            raise ValueError(f'return_std needs rule="kalman", which keeps a covariance; this estimator has {rule!r}')

    # ---- Files -----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator to one safetensors file, whole or not at all; `closedform.tabular.load` reads it."""
        return save(self, path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        return tags


def _shares(errors: Tensor, count: int) -> np.ndarray:
    """How much each member counts, from held-out squared errors: the mean error of a level, of which there are `count`, to
    the power -SHARPNESS, divided among its members.

    >>> _shares(torch.tensor([1.0, 1.0]), 4).tolist(), _shares(torch.tensor([1.0, float("inf")]), 4).tolist()
    ([0.5, 0.5], [1.0, 0.0])
    """
    levels = torch.arange(len(errors)) % count
    members = torch.bincount(levels)
    means = torch.bincount(levels, errors.double().nan_to_num(nan=math.inf)) / members
    best = float(means.min())
    if not math.isfinite(best):
        return np.full(len(errors), 1 / len(errors))
    floor = max(best, 1e-300)
    shares = (means.clamp(min=floor) / floor) ** -SHARPNESS / members
    return (shares[levels] / shares[levels].sum()).numpy()


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
