"""The average effect of each treatment of a fitted `DFIVRegressor`, with an interval, and a picture of the curve.

Of a deep fit that was not bootstrapped the interval is asymptotic: the features count as known, and the layer of stage two
is linear, with the covariance `(F^T F + ridge)^-1 F^T diag(e^2) F (F^T F + ridge)^-1` of its features F given the
instruments and the residuals `e = y - f(X)` of its rows (White's). Members with exchanged halves have other rows of stage
two, so that two of them count as independent, and more as two.
That of a line is Anderson and Rubin's or from its standard errors (`closedform.iv.line.slope_interval`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..parameters import is_count
from . import Data, Split, evaluation, line
from .effects import banded, check_level, normal, treatments
from .inputs import scaled
from .members import Member

if TYPE_CHECKING:
    from .dfiv import DFIVRegressor

STEP = 1e-2  # of a treatment's deviation, for a slope
ROWS = 2000  # of the fit that are kept for averages


class AverageEffect(NamedTuple):
    """Estimates of each treatment `(p,)` with the ends of their intervals, and where these come from."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    interval: str  # "bootstrap", "asymptotic", "standard errors" or "Anderson-Rubin"


def kept_rows(X: np.ndarray, controls: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """All rows, or evenly spaced ones of many."""
    at = np.unique(np.linspace(0, len(X) - 1, min(ROWS, len(X))).astype(int))
    return X[at], None if controls is None else controls[at]


@torch.no_grad()
def covariance(member: Member, data: Data, split: Split) -> Tensor:
    """Of the layer of stage two, its constant left out, in standardised units."""
    rows = data.rows(split.second)
    layers = member.layers
    xi = None if member.xi is None or rows.O is None else evaluation.outputs(member.xi, rows.O)
    F = layers._second(layers.phi(evaluation.outputs(member.phi, rows.Z)) @ layers.W.T + layers.b, xi)
    F = F - F.mean(0)
    e = rows.y[:, 0].double() - member.structural(rows.X, rows.O)
    ridge = torch.full((F.shape[1],), max(member.ridge, 1e-6) * len(F), dtype=torch.float64)
    ridge[layers.free(F.shape[1], member.design.unpenalised)] = 1e-6 * len(F)
    bread = torch.linalg.inv(F.T @ F + ridge.diag())
    half = bread @ (F * (e - e.mean())[:, None]).T
    return half @ half.T


def average_effect(
    model: DFIVRegressor, *, level: float, at: Any, by: float | None, rows: tuple[np.ndarray, np.ndarray | None]
) -> AverageEffect:
    """See `DFIVRegressor.average_effect`."""
    X, controls = rows
    p = model.n_features_in_
    if by is not None and (
        isinstance(by, bool) or not isinstance(by, (int, float, np.number)) or not np.isfinite(by) or by == 0
    ):
        raise ValueError(f"by must be a finite change of the treatment other than 0, got {by!r}")
    if at is not None:
        X = _all_at(treatments(at, p, "at"), X, model._names)

    def effect(fit: DFIVRegressor) -> np.ndarray:
        if by is None:
            return fit._slopes(X, controls).mean(0)
        moves = np.eye(p) * by
        return np.array([(fit._predicted(X + d, controls) - fit._predicted(X, controls)).mean() for d in moves])

    estimate = effect(model)
    if hasattr(model, "replicates_"):
        return AverageEffect(*banded(estimate, model.replicates_, effect, level), "bootstrap")
    if model._linear:
        return AverageEffect(estimate, *linear_ends(model, np.eye(p) * (by or 1.0), level))
    spread = _average_errors(model, X, controls, by) * normal(level)
    return AverageEffect(estimate, estimate - spread, estimate + spread, "asymptotic")


def linear_ends(model: DFIVRegressor, changes: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray, str]:
    """The ends of an interval of what each of the changes `(n, p)` of the treatments does, by a linear fit, and where they
    are from."""
    p = model.n_features_in_
    if hasattr(model, "_moments"):
        rest = model.summary_.degrees[1]
        slope = line.slope_interval(float(model.coef_[0]), float(model.std_error_[0]), model._moments, rest, level)
        moved = changes[:, 0] != 0  # zero times infinity is no number
        ends = [np.multiply(changes[:, 0], end, out=np.zeros(len(changes)), where=moved) for end in slope[:2]]
        return np.minimum(*ends), np.maximum(*ends), slope.kind
    spread = np.sqrt(np.einsum("ni,ij,nj->n", changes, model.covariance_[:p, :p], changes)) * normal(level)
    middle = changes @ model.coef_
    return middle - spread, middle + spread, "standard errors"


def _all_at(at: np.ndarray, X: np.ndarray, names: list[str]) -> np.ndarray:
    """The rows with the treatment `at`; a warning where they hold nothing like it."""
    if len(at) > 1:
        raise ValueError(f"at has {len(at)} rows; expected one treatment, which all rows are given")
    for name, value, low, high in zip(names, at[0], X.min(0), X.max(0)):
        if not low <= value <= high:
            warnings.warn(
                f"at has {value:g} for {name}, and the rows of the fit go from {low:g} to {high:g}: the effect there is "
                "extrapolated",
                stacklevel=4,
            )
    return np.broadcast_to(at, X.shape)


def _average_errors(model: DFIVRegressor, X: np.ndarray, controls: np.ndarray | None, by: float | None) -> np.ndarray:
    """Standard errors `(p,)` of the average effects of a deep fit."""
    steps = STEP * np.asarray(model._x[1]) if by is None else np.full(X.shape[1], by)
    changes = np.diag(steps)

    def differences(features: Callable[[np.ndarray], Tensor]) -> Tensor:
        if by is not None:
            return torch.stack([features(X + change) - features(X) for change in changes])
        slopes = [(features(X + c / 2) - features(X - c / 2)) / step for c, step in zip(changes, steps)]
        return torch.stack(slopes)

    return _errors(model, controls, differences)


@torch.no_grad()
def _errors(
    model: DFIVRegressor, controls: np.ndarray | None, weights: Callable[[Callable[[np.ndarray], Tensor]], Tensor]
) -> np.ndarray:
    """Standard errors `(m,)` of numbers that are linear in the layer of stage two, by a deep fit. `weights` gives their
    weights `(m, features)` from a function that averages the features of treatments over the rows."""
    if not hasattr(model, "_covariances"):
        raise ValueError("the file of this fit has no covariance for an asymptotic interval: call bootstrap first")
    c = None if controls is None else scaled(controls, model._w)
    variances = []
    for member, V in zip(model.members_, model._covariances):

        def features(values: np.ndarray, member: Member = member) -> Tensor:
            xi = None if member.xi is None or c is None else evaluation.outputs(member.xi, c)
            psi = member.layers.psi(evaluation.outputs(member.psi, scaled(values, model._x)))
            return member.layers._second(psi, xi).mean(0)

        L = weights(features)
        variances.append(((L @ V) * L).sum(1).numpy())
    return np.sqrt(np.mean(variances, 0) / min(len(variances), 2)) * model._y[1][0]


def plot_effect(model: DFIVRegressor, *, treatment: int, level: float | None, points: int, axis: Any) -> Any:
    """See `DFIVRegressor.plot_effect`."""
    from ..extras import require

    require("plot_effect", "experiments", "matplotlib")
    import matplotlib.pyplot as plt

    X, controls = model._kept()
    if not isinstance(treatment, (int, np.integer)) or not 0 <= treatment < X.shape[1]:
        raise ValueError(
            f"treatment is {treatment!r}; expected the number of a column of X, from 0 to {X.shape[1] - 1}"
        )
    if not is_count(points):
        raise ValueError(f"points must be a positive integer, got {points!r}")
    if level is not None:
        check_level(level)
    low_end, high_end = np.quantile(X[:, treatment], [0.02, 0.98])
    grid = np.linspace(float(low_end), float(high_end), points)

    def moved(value: float) -> np.ndarray:
        rows = X.copy()
        rows[:, treatment] = value
        return rows

    def curve(fit: DFIVRegressor) -> np.ndarray:
        values = np.array([fit._predicted(moved(value), controls).mean() for value in grid])
        return values - values.mean()

    def weights(features: Callable[[np.ndarray], Tensor]) -> Tensor:
        L = torch.stack([features(moved(value)) for value in grid])
        return L - L.mean(0)

    estimate = curve(model)
    band = None
    if level is not None and hasattr(model, "replicates_"):
        band = *banded(estimate, model.replicates_, curve, level)[1:], "bootstrap"
    elif level is not None and model._linear:
        changes = np.outer(grid - grid.mean(), np.eye(X.shape[1])[treatment])
        band = linear_ends(model, changes, level)
    elif level is not None:
        spread = _errors(model, controls, weights) * normal(level)
        band = estimate - spread, estimate + spread, "asymptotic"
    axis = plt.subplots()[1] if axis is None else axis
    if band is not None:
        low, high, kind = band
        bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
        label = f"{level:.0%} band, {kind}" if bounded else f"{level:.0%} band, {kind}: everything, not drawn"
        axis.fill_between(grid, low, high, where=np.full(points, bounded), alpha=0.25, linewidth=0, label=label)
    axis.plot(grid, estimate, label="estimate")
    axis.set(xlabel=model._names[treatment], ylabel="effect on the outcome, around its mean")
    axis.legend()
    return axis
