"""`DFIVRegressor`: what a treatment causes, when something unseen moves treatment and outcome together."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ..iv import Data, Split, linear
from . import dfiv_member as members
from .dfiv_member import Design, Member
from .dfiv_summary import Summary, deep_part, linear_part
from .prepare import moments, numpy, one_thread
from .settings import _are_sizes, _check_auto, _is_count, _is_positive

ROWS = 60  # below these the halves of a deep fit are too small to mean anything
CHUNK = 4096  # rows predicted at a time


class DFIVRegressor(RegressorMixin, BaseEstimator):
    """Instrumental-variable regression with learned features: the structural function f of `y = f(X, W) + e`, where e moves
    X too, from instruments Z that move X and are independent of e given the controls W.

    Rows are split: stage one learns what the instruments say about the treatment's features, stage two, on other rows, what
    these say about the outcome (the paper's Algorithm 3). A second member has the halves exchanged, and predictions are
    averaged. What has to be chosen is chosen by the outcome given the instruments, on rows that no stage has seen.

    Parameters
    ----------
    features : "deep" learns features; "linear" is two-stage least squares, exactly and on all rows.
    treatment : how the treatment enters a deep fit: "linear" (with an effect that depends on the controls), "deep", or "auto",
        which compares both and takes the linear one unless the other is clearly better.
    hidden_layer_sizes : of the networks of treatment, instruments and controls; "auto" is (64, 64).
    n_features : how many features are learned of treatment, instruments and controls, besides their own columns; "auto" is
        (8, 32, 16), and 48 of the controls for more than 4000 rows.
    rule : "proximal", "kalman" or "ridge" (the original method): how the layers are solved in minibatches.
    lam_inner : lambda_12 relative to the features, or "auto": 0.01 or 1, by held-out rows.
    learning_rate : of AdamW at the start; it falls along half a cosine. "auto" is 0.01, and 0.001 for a backbone.
    weight_decay : of AdamW.
    batch_size, max_iter : of each stage, and the number of outer iterations of a member.
    members : an even number, or 1; every second one has the halves of the one before exchanged.
    validation_fraction : rows held out for choices and diagnostics.
    backbone : an `nn.Module` from `(n, columns of X)` to `(n, features)` for the treatment, copied: for images, say.
    random_state : an integer makes a fit reproducible to the bit on a CPU.
    verbose : whether to show progress on stderr.

    Attributes
    ----------
    coef_, intercept_, control_coef_, std_error_ : of a linear fit.
    members_, replicates_ : trained members of a deep fit; refits of `bootstrap`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z, u = rng.standard_normal((2, 1000)); x = z + u; y = 2 * x + 3 * u + rng.standard_normal(1000)
    >>> DFIVRegressor(features="linear").fit(x[:, None], y, Z=z[:, None]).coef_.round(1)
    array([2.])
    """

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
        max_iter: int = 100,
        members: int = 2,
        validation_fraction: float = members.HOLD_OUT,
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
        self._check_parameters()
        made = self._fitted(*checked(X, y, Z, W), names=_names(X))
        self.__dict__.update(made)  # at the end, so that an error leaves the estimator as it was
        self.__dict__.pop("replicates_", None)
        return self

    def _check_parameters(self) -> None:
        choices = {"features": ("deep", "linear"), "treatment": ("auto", "linear", "deep")}
        choices["rule"] = ("proximal", "kalman", "ridge")
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                told = ", ".join(f'"{value}"' for value in allowed)
                raise ValueError(f"{name} must be one of {told}, got {getattr(self, name)!r}")
        _check_auto("hidden_layer_sizes", self.hidden_layer_sizes, _are_sizes, "a sequence of positive integers")
        three = lambda sizes: _are_sizes(sizes) and len(sizes) == 3  # noqa: E731
        _check_auto("n_features", self.n_features, three, "three positive integers")
        _check_auto("lam_inner", self.lam_inner, _is_positive, "a positive number")
        _check_auto("learning_rate", self.learning_rate, _is_positive, "a positive number")
        for name in ("batch_size", "max_iter", "members"):
            if not _is_count(getattr(self, name)):
                raise ValueError(f"{name} must be a positive integer, got {getattr(self, name)!r}")
        if self.members > 1 and self.members % 2:
            raise ValueError(f"members must be 1 or even, since they come in pairs with exchanged halves, got {self.members}")
        if not (self.weight_decay == 0 or _is_positive(self.weight_decay)):
            raise ValueError(f"weight_decay must be a number from 0 on, got {self.weight_decay!r}")
        if not _is_positive(self.validation_fraction) or not self.validation_fraction < 0.9:
            raise ValueError(f"validation_fraction must be between 0 and 0.9, got {self.validation_fraction!r}")
        if self.backbone is not None and not isinstance(self.backbone, nn.Module):
            raise ValueError(f"backbone must be a torch.nn.Module or None, got {type(self.backbone).__name__}")

    def _fitted(
        self,
        X: np.ndarray,
        y: np.ndarray,
        Z: np.ndarray,
        W: np.ndarray | None,
        *,
        names: list[str],
        groups: np.ndarray | None = None,
        designs: list[Design] | None = None,
    ) -> dict[str, Any]:
        """The attributes of a fit. Rows of one group (of equal number in `groups`) stay in one stage; `designs` are given
        where they have been chosen before."""
        extra = excluded(Z, W)
        deep = self.features == "deep"
        wide = X.shape[1] > 50  # images: the linear model has nothing to say
        shape = {"n_features_in_": X.shape[1], "_controls": 0 if W is None else W.shape[1], "_names": names}
        if not deep:
            linear.check_identified(X, extra, W)
            fit = linear.two_stage(X, y, extra, W)
            shape |= {"coef_": fit.coef, "intercept_": fit.intercept, "control_coef_": fit.controls}
            return shape | {
                "std_error_": fit.std_error, "covariance_": fit.covariance,
                "summary_": linear_part(X, y, extra, W, names),
            }  # fmt: skip
        groups = np.arange(len(X)) if groups is None else groups
        count = len(np.unique(groups))
        if count < ROWS:
            raise ValueError(f"a deep fit needs at least {ROWS} different rows, got {count}; features='linear' needs fewer")
        instruments = extra if W is None else np.column_stack([extra, W])
        scales = {
            "_x": moments(X, np.ones(len(X))), "_z": moments(instruments, np.ones(len(X))),
            "_y": moments(y[:, None], np.ones(len(X))),
        }  # fmt: skip
        if W is not None:
            scales["_w"] = moments(W, np.ones(len(X)))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        data = Data(
            _scaled(X, scales["_x"]), _scaled(instruments, scales["_z"]), _scaled(y[:, None], scales["_y"]),
            None if W is None else _scaled(W, scales["_w"]),
        )  # fmt: skip
        with one_thread():
            trained, tried, split, held = self._train(data, groups, designs, seed)
            summary = linear_part(X, y, extra, W, names) if not wide else _nothing_linear(len(X))
            summary = self._diagnosed(summary, trained, tried, data, split, held, extra)
        return shape | scales | {"members_": trained, "summary_": summary}

    def _base(self, data: Data, rows: int) -> Design:
        sizes, n = self.hidden_layer_sizes, len(data.X)
        widths = self.n_features
        if isinstance(widths, str):
            widths = (8, 32, 48 if n > 4000 else 16)
        rate = self.learning_rate
        if isinstance(rate, str):
            rate = 0.01 if self.backbone is None else 0.001
        return Design(
            inputs=data.X.shape[1],
            instruments=data.Z.shape[1],
            controls=0 if data.O is None else data.O.shape[1],
            treatment="backbone" if self.backbone is not None else "linear",
            hidden=(64, 64) if isinstance(sizes, str) else tuple(int(size) for size in sizes),
            widths=tuple(int(width) for width in widths),  # pyright: ignore[reportArgumentType]
            rule=self.rule,
            inner=members.INNER[0],
            iterations=int(self.max_iter),
            batch=min(int(self.batch_size), rows),
            learning_rate=float(rate),
            weight_decay=float(self.weight_decay),
            seed=0,
        )

    def _train(self, data: Data, groups: np.ndarray, designs: list[Design] | None, seed: int) -> tuple:
        """Members, the models compared, the first split and the rows held out."""
        rng = np.random.default_rng(seed)
        order = rng.permutation(np.unique(groups))
        count = max(1, round(self.validation_fraction * len(order)))
        held = _rows_of(groups, order[:count])
        rest = order[count:]

        def split(pair: int) -> Split:
            mixed = rest if pair == 0 else np.random.default_rng([seed, pair]).permutation(rest)
            half = len(mixed) // 2
            return Split(_rows_of(groups, mixed[:half]), _rows_of(groups, mixed[half:]))

        first = split(0)
        base = self._base(data, min(len(first.first), len(first.second)))
        if designs is None:
            kind = "backbone" if self.backbone is not None else self.treatment
            designs = members.candidates(base, kind, self.lam_inner)
        designs = [replace(design, seed=seed % 2**31, batch=base.batch) for design in designs]
        tick = _Ticker(self.max_iter * (len(designs) + self.members - 1)) if self.verbose else None
        best, tried = members.chosen(designs, data, first, held, self.backbone, tick)
        trained = [best]
        for k in range(1, self.members):
            part = split(k // 2)
            part = Split(part.second, part.first) if k % 2 else part
            design = replace(best.design, seed=(seed + 1000 * k) % 2**31)
            trained.append(members.fitted(design, data, part, held, self.backbone, tick))
        if tick is not None:
            tick.close()
        return trained, tried, first, held

    def _diagnosed(
        self, made: Summary, trained: list[Member], tried: list, data: Data, split: Split, held: Tensor, extra: np.ndarray
    ) -> Summary:
        rows = data.rows(held)
        member = trained[0]
        with torch.no_grad():
            psi, phi = member.psi(rows.X).double(), member.phi(rows.Z).double()
            layers = member.layers
            target, found = layers.psi(psi), layers.phi(phi) @ layers.W.T + layers.b
            spread = (target - target.mean(0)).square().mean(0)
            R2 = 1 - (target - found).square().mean(0) / spread.clamp(min=1e-30)
            kept = member.structural(rows.X, rows.O)
            expected = member.expected(rows.Z, rows.O)
            online = member.structural(rows.X, rows.O, member.online)
            both = torch.stack([m.expected(rows.Z, rows.O) for m in trained]).mean(0)
        design = member.design
        told = {0.0: "layers of training"}.get(member.ridge, f"re-estimated layers, ridge {member.ridge:g} a row")
        return deep_part(
            made,
            stages=(len(split.first), len(split.second), len(held)),
            feature_R2=R2[spread > 1e-12].numpy(),
            structural=kept.numpy(),
            expected=expected.numpy(),
            online=online.numpy(),
            kept=kept.numpy(),
            outcome=rows.y[:, 0].numpy(),
            outcome_expected=both.numpy(),
            values=len(np.unique(extra, axis=0)),
            tried=[(_told(d), loss) for d, loss in tried],
            used=f"{_told(design)}, {told}; {len(trained)} members",
        )

    # ---- Using the fit ---------------------------------------------------------------------------

    def predict(self, X: Any, W: Any = None) -> np.ndarray:
        """The structural function at treatments X and controls W."""
        check_is_fitted(self, "summary_")
        return self._predicted(*self._inputs(X, W))

    def _predicted(self, X: np.ndarray, W: np.ndarray | None) -> np.ndarray:
        if self._linear:
            found = X @ self.coef_ + self.intercept_
            return found if W is None else found + W @ self.control_coef_
        x = _scaled(X, self._x)
        o = None if W is None else _scaled(W, self._w)
        with one_thread(), torch.no_grad():
            parts = [
                sum(m.structural(x[low : low + CHUNK], None if o is None else o[low : low + CHUNK]) for m in self.members_)
                for low in range(0, len(x), CHUNK)
            ]
        found = torch.cat(parts).numpy() / len(self.members_)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return found * self._y[1][0] + self._y[0][0]

    @property
    def _linear(self) -> bool:
        return hasattr(self, "coef_")

    def effect(self, x0: Any, x1: Any, W: Any = None, *, level: float | None = None) -> Any:
        """What moving the treatment from `x0` to `x1` does to the outcome, for every row of W (or of x0 and x1, which are
        numbers, rows or arrays). With `level`, such as 0.95, also the ends of an interval: from `bootstrap`, or for a
        linear fit from its standard errors."""
        check_is_fitted(self, "summary_")
        n = 1 if W is None else len(np.asarray(numpy(W)))
        p = self.n_features_in_
        ends = []
        for name, value in (("x0", x0), ("x1", x1)):
            value = np.asarray(numpy(value), dtype=np.float64)
            try:
                rows = max(n, value.shape[0] if value.ndim == 2 else 1)
                ends.append(np.broadcast_to(value, (rows, p)))
            except ValueError:
                raise ValueError(
                    f"{name} has shape {value.shape}; expected {p} treatments, for one row or {n} of them"
                ) from None
        rows = max(len(end) for end in ends)
        ends = [np.broadcast_to(end, (rows, p)) for end in ends]
        change = self.predict(ends[1], W) - self.predict(ends[0], W)
        if level is None:
            return change
        if self._linear and not hasattr(self, "replicates_"):
            d = ends[1] - ends[0]
            spread = np.sqrt(np.einsum("ni,ij,nj->n", d, self.covariance_[:p, :p], d)) * _normal(level)
            return change, change - spread, change + spread
        return (change, *self._quantiles(lambda m: m.predict(ends[1], W) - m.predict(ends[0], W), level))

    def marginal_effect(self, X: Any, W: Any = None) -> np.ndarray:
        """The derivative of the structural function by every treatment, `(n, p)`."""
        check_is_fitted(self, "summary_")
        X, W = self._inputs(X, W)
        if self._linear:
            return np.tile(self.coef_, (len(X), 1))
        slopes = []
        for low in range(0, len(X), CHUNK):
            x = _scaled(X[low : low + CHUNK], self._x).requires_grad_()
            o = None if W is None else _scaled(W[low : low + CHUNK], self._w)
            with one_thread():
                total = sum(member.structural(x, o).sum() for member in self.members_)
                (slope,) = torch.autograd.grad(total, x)  # pyright: ignore[reportArgumentType]
            slopes.append(slope.double().numpy())
        return np.concatenate(slopes) / len(self.members_) * self._y[1][0] / self._x[1]

    def score(self, X: Any, y: Any, W: Any = None, Z: Any = None) -> float:
        """With Z the R^2 of the outcome given the instruments, the only fit that confounded data can show; without, that of
        `predict` against y, which means something where y is not confounded (an experiment, a known function)."""
        check_is_fitted(self, "summary_")
        y = np.asarray(numpy(y), dtype=np.float64).ravel()
        if Z is None:
            found = self.predict(X, W)
        elif self._linear:
            raise ValueError("score with Z is for a deep fit; of a linear one see summary()")
        else:
            X, y, Z, W = checked(X, y, Z, W, fitted=True)
            extra = excluded(Z, W)
            z = _scaled(extra if W is None else np.column_stack([extra, W]), self._z)
            o = None if W is None else _scaled(W, self._w)
            with torch.no_grad():
                mean = torch.stack([member.expected(z, o) for member in self.members_]).mean(0).numpy()
            found = mean * self._y[1][0] + self._y[0][0]
        if len(found) != len(y):
            raise ValueError(f"X has {len(found)} rows and y {len(y)}; expected as many")
        return 1 - float(np.square(y - found).sum() / np.square(y - y.mean()).sum())

    def summary(self) -> Summary:
        """Diagnostics: strength of the instruments, what is identified, and warnings. Print it."""
        check_is_fitted(self, "summary_")
        return self.summary_

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
        """Refit to rows drawn with replacement, for `interval` and `effect(level=)`; see `dfiv_bootstrap`."""
        from .dfiv_bootstrap import bootstrap

        check_is_fitted(self, "summary_")
        self.replicates_ = bootstrap(self, checked(X, y, Z, W), replicates, folder, n_jobs)
        return self

    def interval(self, X: Any, W: Any = None, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Pointwise percentile interval of the structural function, from `bootstrap`."""
        check_is_fitted(self, "summary_")
        return self._quantiles(lambda model: model.predict(X, W), level)

    def _quantiles(self, of: Callable[[DFIVRegressor], np.ndarray], level: float) -> tuple[np.ndarray, np.ndarray]:
        if not hasattr(self, "replicates_"):
            raise ValueError("there are no replicates: call bootstrap(X, y, Z=Z, W=W) with the rows of the fit first")
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level}")
        values = np.stack([of(model) for model in self.replicates_])
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high

    def _inputs(self, X: Any, W: Any) -> tuple[np.ndarray, np.ndarray | None]:
        X = _matrix(X, "X")
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {X.shape[1]} treatments; the fit had {self.n_features_in_}")
        if (W is None) != (self._controls == 0):
            told = f"{self._controls} controls" if self._controls else "no controls"
            raise ValueError(f"W is {'not ' if W is None else ''}given, and the fit had {told}")
        if W is None:
            return X, None
        W = _matrix(W, "W")
        if W.shape != (len(X), self._controls):
            raise ValueError(f"W has shape {W.shape}; expected ({len(X)}, {self._controls}), a row for each of X")
        return X, W

    # ---- Files -----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the fit (without replicates) to one safetensors file; `closedform.estimators.load` reads it."""
        from . import files

        return files.save(self, Path(path))


def _told(design: Design) -> str:
    kind = {"linear": "linear treatment", "deep": "deep treatment", "backbone": "the given backbone"}[design.treatment]
    return kind if design.rule == "ridge" else f"{kind}, inner lambda {design.inner:g}"


def _nothing_linear(n: int) -> Summary:
    return Summary("deep", n, (0, 0, 0), [], math.nan, math.nan, (0, 0), [], math.nan, math.nan, None, None, [])


def _rows_of(groups: np.ndarray, chosen: np.ndarray) -> Tensor:
    return torch.from_numpy(np.flatnonzero(np.isin(groups, chosen)))


def _scaled(values: np.ndarray, by: tuple[np.ndarray, np.ndarray]) -> Tensor:
    return torch.as_tensor((values - by[0]) / by[1], dtype=torch.float32)


def _normal(level: float) -> float:
    from statistics import NormalDist

    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def _names(X: Any) -> list[str]:
    columns = getattr(X, "columns", None)
    if columns is not None:
        return [str(name) for name in columns]
    shape = np.shape(numpy(X))
    return [f"x{k}" for k in range(shape[1] if len(shape) == 2 else 1)]


# ---- Input ---------------------------------------------------------------------------------------


def _matrix(values: Any, name: str) -> np.ndarray:
    values = numpy(values)
    if np.ndim(values) == 1 and name != "y":
        raise ValueError(f"{name} has shape {np.shape(values)}; expected (n, columns), so {name}.reshape(-1, 1) or a column")
    return check_array(values, dtype=np.float64, input_name=name, estimator="DFIVRegressor")


def checked(
    X: Any, y: Any, Z: Any, W: Any, fitted: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """The four parts as arrays, or a ValueError that says what is wrong with which."""
    if Z is None:
        raise ValueError("Z is missing: expected instruments (n, m), without which nothing tells cause from confounding")
    X, Z = _matrix(X, "X"), _matrix(Z, "Z")
    W = None if W is None else _matrix(W, "W")
    y = np.asarray(numpy(y))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(f"y has shape {y.shape}; expected one outcome, (n,)")
    y = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y", estimator="DFIVRegressor")
    lengths = {"X": len(X), "y": len(y), "Z": len(Z)} | ({} if W is None else {"W": len(W)})
    if len(set(lengths.values())) > 1:
        raise ValueError("rows differ: " + ", ".join(f"{name} has {n}" for name, n in lengths.items()))
    if fitted:
        return X, y, Z, W
    for name, values, what in (("X", X, "treatment"), ("Z", Z, "instrument")):
        constant = np.flatnonzero(np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(0))
        if len(constant) and (name == "Z" or len(constant) == values.shape[1]):
            raise ValueError(f"column {constant[0]} of {name} is constant: expected every {what} to vary")
    if np.ptp(y) == 0:
        raise ValueError("y is constant: there is nothing to explain")
    return X, y, Z, W


def excluded(Z: np.ndarray, W: np.ndarray | None) -> np.ndarray:
    """The columns of Z that are not columns of W."""
    if W is None:
        return Z
    own = [k for k in range(Z.shape[1]) if not any(np.array_equal(Z[:, k], W[:, j]) for j in range(W.shape[1]))]
    if not own:
        raise ValueError("Z has only columns of W: expected at least one instrument that is not a control")
    return Z[:, own]


class _Ticker:
    """Progress on stderr."""

    def __init__(self, total: int):
        self.total, self.done, self.start, self.told = total, 0, time.perf_counter(), 0.0

    def __call__(self) -> None:
        self.done += 1
        now = time.perf_counter()
        if now - self.told > 0.2 or self.done == self.total:
            self.told = now
            bar = "#" * (30 * self.done // self.total)
            text = f"\riteration {self.done}/{self.total} [{bar:.<30}] {now - self.start:.1f} s "
            print(text, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)


# ---- Files ---------------------------------------------------------------------------------------

SCALES = ("_x", "_z", "_y", "_w")
LINEAR = ("coef_", "control_coef_", "covariance_", "std_error_")


def described(estimator: DFIVRegressor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The attributes as JSON and as tensors."""
    tensors: dict[str, Tensor] = {}
    for name in SCALES:
        if hasattr(estimator, name):
            mean, scale = getattr(estimator, name)
            tensors |= {f"{name}.mean": torch.from_numpy(mean.copy()), f"{name}.scale": torch.from_numpy(scale.copy())}
    for name in LINEAR:
        if hasattr(estimator, name):
            tensors[name] = torch.from_numpy(np.array(getattr(estimator, name), dtype=np.float64))
    body: dict[str, Any] = {
        "n_features_in_": estimator.n_features_in_,
        "_controls": estimator._controls,
        "_names": estimator._names,
        "summary_": estimator.summary_.plain(),
    }
    if estimator._linear:
        return body | {"intercept_": estimator.intercept_}, tensors
    body["members"] = [{"design": asdict(m.design), "ridge": m.ridge} for m in estimator.members_]
    for k, member in enumerate(estimator.members_):
        tensors |= {f"{k}.{name}": value for name, value in member.tensors().items()}
    return body, tensors


def restore(
    estimator: DFIVRegressor, body: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None
) -> DFIVRegressor:
    """The inverse of `described`."""
    for name in ("n_features_in_", "_controls", "_names"):
        setattr(estimator, name, body[name])
    estimator.summary_ = Summary.of(body["summary_"])
    for name in SCALES:
        if f"{name}.mean" in tensors:
            setattr(estimator, name, (tensors[f"{name}.mean"].numpy(), tensors[f"{name}.scale"].numpy()))
    for name in LINEAR:
        if name in tensors:
            setattr(estimator, name, tensors[name].numpy())
    if "intercept_" in body:
        estimator.intercept_ = body["intercept_"]
        return estimator
    estimator.members_ = []
    for k, told in enumerate(body["members"]):
        plain = told["design"]
        design = Design(**plain | {name: tuple(plain[name]) for name in ("hidden", "widths")})
        own = {name[len(f"{k}.") :]: value for name, value in tensors.items() if name.startswith(f"{k}.")}
        member = Member.rebuilt(design, own, told["ridge"], backbone)
        for net in (member.psi, member.phi, member.xi):
            if net is not None:
                net.eval().requires_grad_(False)
        estimator.members_.append(member)
    return estimator
