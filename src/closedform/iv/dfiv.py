"""`DFIVRegressor`: what a treatment causes, when something unseen moves treatment and outcome together."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from .. import estimator_files
from ..arrays import one_thread
from . import average, files, fitting, linear, settings
from .bootstrap import bootstrap
from .effects import banded, pair
from .inputs import Observations, check_columns, checked, columns, mark, matrix, names, outcome, scaled
from .members import HOLD_OUT, Member
from .summary import Summary, answers

CHUNK = 4096  # rows predicted at a time
FITTED = (
    *files.PLAIN,
    *files.SCALES,
    *files.LINEAR,
    "intercept_",
    "members_",
    "summary_",
    "replicates_",
    "_sample",
    "_covariances",
)  # attributes that a fit sets


class DFIVRegressor(RegressorMixin, BaseEstimator):
    """Instrumental-variable regression with learned features: the structural function f of `y = f(X, W) + e`, where e moves
    X too, from instruments Z that move X and are independent of e given the controls W.

    The controls are called `W` in every method, as in econml.

    Rows are split: stage one learns what the instruments say about the treatment's features, and stage two, on other rows,
    what these say about the outcome (the paper's Algorithm 3). A second member has the halves exchanged, and predictions are
    averaged. Choices are by how well the outcome is predicted from the instruments: on rows that no stage has seen, and
    where no feature is learned from outcomes by cross-validation on all rows. When they are made, the layers are solved once
    more with the held-out rows, half of them in each stage.

    Parameters
    ----------
    features : "deep" learns features; "linear" is two-stage least squares, exactly and on all rows.
    treatment : how the treatment enters a deep fit: "linear" (its effect depends on the controls), "sieve" (bumps in a
        row for up to 3 treatments without controls, else square and cube, and the same of the instruments), "deep", or
        "auto", which compares them and a line of treatment and controls on all rows (`closedform.iv.line`), which is
        taken where nothing is clearly better. The sieve takes part up to 10 treatments, learned features unless there is
        one treatment and no controls, where a sieve has every curve.
    hidden_layer_sizes : of the networks of treatment, instruments and controls; "auto" is (64, 64).
    n_features : how many features are learned of treatment, instruments and controls, besides their own columns; "auto" is
        (8, 32, 16), and 48 of the controls for more than 4000 rows.
    rule : "proximal", "kalman" or "ridge" (the original method): how the layers are solved in minibatches.
    lam_inner : lambda_12 relative to the features, or "auto": 0.01 or 1, by held-out rows.
    learning_rate : of AdamW at the start; it falls along half a cosine. "auto" is 0.01, and 0.003 for a backbone.
    weight_decay : of AdamW.
    batch_size : of each stage.
    max_iter : the number of outer iterations of a member; "auto" is 100, and 300 for a backbone.
    members : an even number, or 1; every second one has the halves of the one before exchanged.
    validation_fraction : rows held out for choices and diagnostics.
    backbone : an `nn.Module` from `(n, columns of X)` to `(n, features)` for the treatment, copied: for images, say.
    random_state : an integer makes a fit reproducible to the bit on a CPU.
    verbose : whether to show progress on stderr.

    Attributes
    ----------
    coef_, intercept_, control_coef_, std_error_ : of a linear fit, or of one that has taken the line.
    members_, replicates_ : trained members of a deep fit that has not; refits of `bootstrap`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z, u = rng.standard_normal((2, 1000)); x = z + u; y = 2 * x + 3 * u + rng.standard_normal(1000)
    >>> DFIVRegressor(features="linear").fit(x[:, None], y, Z=z[:, None]).coef_.round()
    array([2.])
    """

    n_features_in_: int
    coef_: np.ndarray
    intercept_: float
    control_coef_: np.ndarray
    std_error_: np.ndarray
    covariance_: np.ndarray
    members_: list[Member]
    summary_: Summary
    replicates_: list[DFIVRegressor]
    _controls: int
    _names: list[str]
    _columns: dict[str, list[str] | None]
    _instruments: int
    _own: list[int]
    _rows: list[Any]
    _sample: tuple[np.ndarray, np.ndarray | None]
    _covariances: list[torch.Tensor]
    _moments: np.ndarray
    _drawn: np.ndarray
    _stage_one: np.ndarray
    _x: tuple[np.ndarray, np.ndarray]
    _z: tuple[np.ndarray, np.ndarray]
    _y: tuple[np.ndarray, np.ndarray]
    _w: tuple[np.ndarray, np.ndarray]

    def __init__(
        self,
        features: str = "deep",
        *,
        treatment: str = "auto",
        hidden_layer_sizes: tuple[int, ...] | str = "auto",
        n_features: tuple[int, int, int] | str = "auto",
        rule: str = "proximal",
        lam_inner: float | str = "auto",
        learning_rate: float | str = "auto",
        weight_decay: float = 0.1,
        batch_size: int = 256,
        max_iter: int | str = "auto",
        members: int = 2,
        validation_fraction: float = HOLD_OUT,
        backbone: nn.Module | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.features = features
        self.treatment = treatment
        self.hidden_layer_sizes = hidden_layer_sizes
        self.n_features = n_features
        self.rule = rule
        self.lam_inner = lam_inner
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.members = members
        self.validation_fraction = validation_fraction
        self.backbone = backbone
        self.random_state = random_state
        self.verbose = verbose

    # ---- Fitting ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, Z: Any = None, W: Any = None) -> DFIVRegressor:
        """Fit treatments `X (n, p)`, outcomes `y (n,)`, instruments `Z (n, m)` and controls `W (n, q)` or None. Controls are
        instruments for themselves, whether or not Z repeats them."""
        self._fit(X, y, Z, W, names(X), {"X": columns(X), "Z": columns(Z), "W": columns(W)})
        for sentence in self.summary_.warnings:
            if any(words in sentence for words in ("weak instruments", "do not identify", "contradict each other")):
                warnings.warn(sentence, stacklevel=2)
        return self

    def _fit(
        self,
        X: Any,
        y: Any,
        Z: Any,
        controls: Any,
        treatments: list[str],
        tables: dict[str, list[str] | None],
        *,
        of_treatment: bool = True,
    ) -> DFIVRegressor:
        """`fit`, with the names of the treatments and of the columns of every table; `of_treatment` as in `fitting`."""
        self._check_parameters()
        rows = checked(X, y, Z, controls)
        attributes = fitting.attributes(self, rows, names=treatments, columns=tables, of_treatment=of_treatment)
        for name in FITTED:  # of an earlier fit, perhaps of another kind; at the end, so that an error changes nothing
            self.__dict__.pop(name, None)
        self.__dict__.update(attributes)
        if self.summary_.treatments and self.n_features_in_ <= fitting.WIDE:
            self.summary_.answer = answers(self.summary_, *self.average_effect(level=fitting.LEVEL), fitting.LEVEL)
        return self

    def _check_parameters(self) -> None:
        settings.check(self)

    # ---- Using the fit ---------------------------------------------------------------------------

    def predict(self, X: Any, W: Any = None) -> np.ndarray:
        """The structural function at treatments X and controls W."""
        check_is_fitted(self, "summary_")
        return self._predicted(*self._inputs(X, W))

    def _predicted(self, X: np.ndarray, controls: np.ndarray | None) -> np.ndarray:
        if self._linear:
            predictions = X @ self.coef_ + self.intercept_
            return predictions if controls is None else predictions + controls @ self.control_coef_
        parts = []
        with one_thread(), torch.no_grad():
            for low in range(0, len(X), CHUNK):
                x = scaled(X[low : low + CHUNK], self._x)
                c = None if controls is None else scaled(controls[low : low + CHUNK], self._w)
                parts.append(torch.stack([member.structural(x, c) for member in self.members_]).mean(0))
        return self._in_units(torch.cat(parts))

    def _in_units(self, outcomes: torch.Tensor) -> np.ndarray:
        """Standardised outcomes in the units of y."""
        return outcomes.numpy() * self._y[1][0] + self._y[0][0]

    def averaged(self, X: Any, W: Any) -> np.ndarray:
        """The structural function at each row of the controls W, averaged over the treatments X: `(len(W),)`."""
        check_is_fitted(self, "summary_")
        if self._controls == 0:
            raise ValueError("the fit had no controls, so there is nothing to hold while averaging: see predict")
        controls = matrix(W, "W")
        X, _ = self._inputs(X, np.broadcast_to(controls[:1], (len(matrix(X, "X")), controls.shape[1])))
        if controls.shape[1] != self._controls:
            raise ValueError(f"W has {controls.shape[1]} columns; the fit had {self._controls} controls")
        if self._linear:
            return X.mean(0) @ self.coef_ + self.intercept_ + controls @ self.control_coef_
        x, c = scaled(X, self._x), scaled(controls, self._w)
        with one_thread(), torch.no_grad():
            return self._in_units(torch.stack([member.averaged(x, c) for member in self.members_]).mean(0))

    @property
    def _linear(self) -> bool:
        return self.summary_.kind == "linear"

    def effect(self, x0: Any, x1: Any, W: Any = None, *, level: float | None = None) -> Any:
        """What moving the treatment from `x0` to `x1` does to the outcome, for every row of W (or of x0 and x1, which are
        numbers, rows or arrays; of a single treatment also `(n,)`, a row each; one row of W serves all). With `level`, such
        as 0.95, also the ends of an interval: from `bootstrap`, or for a linear fit from its standard errors."""
        check_is_fitted(self, "summary_")
        p = self.n_features_in_
        controls = None
        if W is not None:
            check_columns(W, "W", self._columns)
            controls = matrix(W, "W")
        ends = pair({"x0": x0, "x1": x1}, p, 1 if controls is None else len(controls))
        if controls is not None and len(controls) == 1:
            controls = np.broadcast_to(controls, (len(ends[0]), controls.shape[1]))
        change = self.predict(ends[1], controls) - self.predict(ends[0], controls)
        if level is None:
            return change
        if self._linear and not hasattr(self, "replicates_"):
            return change, *average.linear_ends(self, ends[1] - ends[0], level)[:2]
        return self._banded(change, lambda m: m.predict(ends[1], controls) - m.predict(ends[0], controls), level)

    def marginal_effect(self, X: Any, W: Any = None, *, level: float | None = None) -> Any:
        """The derivative of the structural function by every treatment, `(n, p)`. With `level`, such as 0.95, instead its
        mean over the rows, `(p,)`, and the ends of an interval of that: from `bootstrap`, or for a linear fit from its
        standard errors."""
        check_is_fitted(self, "summary_")
        X, controls = self._inputs(X, W)
        slopes = self._slopes(X, controls)
        if level is None:
            return slopes
        mean = slopes.mean(0)
        if self._linear and not hasattr(self, "replicates_"):
            return mean, *average.linear_ends(self, np.eye(self.n_features_in_), level)[:2]
        return self._banded(mean, lambda m: m._slopes(X, controls).mean(0), level)

    def _slopes(self, X: np.ndarray, controls: np.ndarray | None) -> np.ndarray:
        if self._linear:
            return np.tile(self.coef_, (len(X), 1))
        slopes = []
        for low in range(0, len(X), CHUNK):
            x = scaled(X[low : low + CHUNK], self._x).requires_grad_()
            c = None if controls is None else scaled(controls[low : low + CHUNK], self._w)
            with one_thread():
                total = torch.stack([member.structural(x, c) for member in self.members_]).sum()
                (slope,) = torch.autograd.grad(total, x)
            slopes.append(slope.double().numpy())
        return np.concatenate(slopes) / len(self.members_) * self._y[1][0] / self._x[1]

    def score(self, X: Any, y: Any, *, Z: Any = None, W: Any = None) -> float:
        """With Z the R^2 of the outcome given the instruments, the only fit that confounded data can show; without, that of
        `predict` against y, which means something where y is not confounded (an experiment, a known function)."""
        check_is_fitted(self, "summary_")
        y = outcome(y)
        if np.ptp(y) == 0:
            raise ValueError("y is constant: R^2 compares with the variance of the outcome, which is zero")
        predictions = self.predict(X, W) if Z is None else self._given_instruments(X, y, Z, W)
        if len(predictions) != len(y):
            raise ValueError(f"X has {len(predictions)} rows and y {len(y)}; expected as many")
        return 1 - float(np.square(y - predictions).sum() / np.square(y - y.mean()).sum())

    def _given_instruments(self, X: Any, y: Any, Z: Any, W: Any) -> np.ndarray:
        """The outcome predicted from the instruments and the controls."""
        X, controls = self._inputs(X, W)
        self._check_instruments(Z)
        X, y, Z, controls = checked(X, y, Z, controls, fitted=True)
        own = Z[:, self._own]
        if self._linear:
            known = np.column_stack([own, linear.with_ones(controls, len(own))])
            return self._predicted(known @ self._stage_one, controls)
        z = scaled(own if controls is None else np.column_stack([own, controls]), self._z)
        c = None if controls is None else scaled(controls, self._w)
        with one_thread(), torch.no_grad():
            return self._in_units(torch.stack([member.expected(z, c) for member in self.members_]).mean(0))

    def _check_instruments(self, Z: Any) -> None:
        check_columns(Z, "Z", self._columns)
        count = matrix(Z, "Z").shape[1]
        if count != self._instruments:
            raise ValueError(f"Z has {count} instruments; the fit had {self._instruments}")

    def summary(self) -> Summary:
        """The average effect, then diagnostics: strength of the instruments, what is identified, and warnings. Print it."""
        check_is_fitted(self, "summary_")
        return self.summary_

    def average_effect(self, *, level: float = 0.95, at: Any = None, by: float | None = None) -> average.AverageEffect:
        """The effect of each treatment averaged over the rows of the fit: estimate, ends of an interval, and where that is
        from: "bootstrap" after `bootstrap`; "standard errors" of a linear fit; "Anderson-Rubin" of a line with a single
        treatment and one instrument or several weak ones, which holds however weak they are and may be the whole line, from
        -inf to inf; "asymptotic" otherwise, which takes the learned features for known.

        at : a treatment that all rows are given, instead of their own.
        by : the change of the treatment; None is the slope, the effect of a unit.
        """
        check_is_fitted(self, "summary_")
        return average.average_effect(self, level=level, at=at, by=by, rows=self._kept())

    def plot_effect(self, treatment: int = 0, *, level: float | None = 0.95, points: int = 50, axis: Any = None) -> Any:
        """Draw the outcome against one treatment, averaged over the rows of the fit and around its mean. The legend says
        where the band is from, as in `average_effect`; level=None draws none. Returns the axis of matplotlib."""
        check_is_fitted(self, "summary_")
        return average.plot_effect(self, treatment=treatment, level=level, points=points, axis=axis)

    def _kept(self) -> tuple[np.ndarray, np.ndarray | None]:
        if not hasattr(self, "_sample"):
            raise ValueError(
                "the file of this fit was written without rows to average over: see effect and marginal_effect, which are "
                "told the rows"
            )
        return self._sample

    # ---- Intervals -------------------------------------------------------------------------------

    def bootstrap(
        self,
        X: Any,
        y: Any,
        Z: Any = None,
        W: Any = None,
        *,
        replicates: int = 50,
        folder: str | Path | None = None,
        n_jobs: int = 1,
    ) -> DFIVRegressor:
        """Refit to the rows of the fit, drawn with replacement, for `interval` and `level=` of effects.

        A refit keeps what the fit has chosen: its design, and its layers (those of training, or the ridges). So the
        intervals do not cover what another choice would have given.

        replicates : the number of refits.
        folder : keeps each as soon as it is done; a call with the same fit, rows and folder goes on from there.
        n_jobs : processes.
        """
        check_is_fitted(self, "summary_")
        self._inputs(X, W)
        if Z is not None:
            self._check_instruments(Z)
        return self._bootstrap(checked(X, y, Z, W), replicates=replicates, folder=folder, n_jobs=n_jobs)

    def _bootstrap(
        self, rows: Observations, *, replicates: int = 50, folder: str | Path | None = None, n_jobs: int = 1
    ) -> DFIVRegressor:
        if [len(rows.X), mark(rows)] != self._rows:
            others = "others" if len(rows.X) == self._rows[0] else f"{len(rows.X)}, and the fit had {self._rows[0]}"
            raise ValueError(f"the rows are not those of the fit, but {others}: expected the same, in the same order")
        self.replicates_ = bootstrap(self, rows, replicates, folder, n_jobs)
        return self

    def interval(self, X: Any, W: Any = None, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Pointwise percentile interval of the structural function, from `bootstrap`."""
        check_is_fitted(self, "summary_")
        return self._banded(self.predict(X, W), lambda model: model.predict(X, W), level)[1:]

    def _banded(
        self, estimate: np.ndarray, statistic: Callable[[DFIVRegressor], np.ndarray], level: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not hasattr(self, "replicates_"):
            raise ValueError("there are no replicates: call bootstrap(X, y, Z=Z, W=W) with the rows of the fit first")
        return banded(estimate, self.replicates_, statistic, level)

    def _inputs(self, X: Any, W: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Treatments and controls as arrays, checked."""
        check_columns(X, "X", self._columns)
        check_columns(W, "W", self._columns)
        X = matrix(X, "X")
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {X.shape[1]} treatments; the fit had {self.n_features_in_}")
        if (W is None) != (self._controls == 0):
            fitted = f"{self._controls} controls" if self._controls else "no controls"
            raise ValueError(f"W is {'not ' if W is None else ''}given, and the fit had {fitted}")
        if W is None:
            return X, None
        controls = matrix(W, "W")
        if controls.shape != (len(X), self._controls):
            raise ValueError(
                f"W has shape {controls.shape}; expected ({len(X)}, {self._controls}), a row for each of X"
            )
        return X, controls

    # ---- Files -----------------------------------------------------------------------------------

    def save(self, path: str | Path, *, rows: bool = True) -> Path:
        """Write the fit (without replicates) to one safetensors file; `closedform.iv.load` reads it.

        rows : whether up to 2,000 rows of treatments and controls go into it, which `average_effect` averages over (those of
            more than 50 treatments never do). False where nobody should see them: then `average_effect` refuses.
        """
        check_is_fitted(self, "summary_")
        fit = self if rows else copy.copy(self)
        if not rows:
            fit.__dict__.pop("_sample", None)
        return estimator_files.save(fit, path)
