"""The average effect of each treatment of a fitted `DFIVRegressor`, with an interval, and a picture of the curve.

Of a deep fit that was not bootstrapped the interval is asymptotic: the features count as known, and the layer of stage two
is linear, with the covariance `(F^T F + ridge)^-1 F^T diag(e^2) F (F^T F + ridge)^-1` of its features F given the
instruments and the residuals `e = y - f(X)` of its rows (White's). Members with exchanged halves have other rows of stage
two, so that two of them count as independent, and more as two.
That of a line is Anderson and Rubin's or from its standard errors (`closedform.iv.line`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import Data, Split, evaluation, line
from .effects import banded, normal, treatments
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
    if at is not None:
        X = np.broadcast_to(treatments(at, p, "at")[:1], X.shape)
    if by is not None and (not np.isfinite(by) or by == 0):
        raise ValueError(f"by must be a finite change of the treatment other than 0, got {by!r}")

    def effect(fit: DFIVRegressor) -> np.ndarray:
        if by is None:
            return fit._slopes(X, controls).mean(0)
        moves = np.eye(p) * by
        return np.array([(fit._predicted(X + d, controls) - fit._predicted(X, controls)).mean() for d in moves])

    estimate = effect(model)
    if hasattr(model, "replicates_"):
        return AverageEffect(*banded(estimate, model.replicates_, effect, level), "bootstrap")
    if model._linear:
        how = "Anderson-Rubin" if hasattr(model, "_ratio") else "standard errors"
        return AverageEffect(estimate, *linear_ends(model, np.eye(p) * (by or 1.0), level), how)
    if not hasattr(model, "_covariances"):
        raise ValueError("the file of this fit has no covariance for an asymptotic interval: call bootstrap first")
    spread = _spread(model, X, controls, by) * normal(level)
    return AverageEffect(estimate, estimate - spread, estimate + spread, "asymptotic")


def linear_ends(model: DFIVRegressor, changes: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """The ends of an interval of what each of the changes `(n, p)` of the treatments does, by a linear fit."""
    p = model.n_features_in_
    if hasattr(model, "_ratio"):
        low, high = line.interval(model._ratio, normal(level))
        moved = changes[:, 0] != 0  # zero times infinity is no number
        ends = [np.multiply(changes[:, 0], end, out=np.zeros(len(changes)), where=moved) for end in (low, high)]
        return np.minimum(*ends), np.maximum(*ends)
    spread = np.sqrt(np.einsum("ni,ij,nj->n", changes, model.covariance_[:p, :p], changes)) * normal(level)
    middle = changes @ model.coef_
    return middle - spread, middle + spread


@torch.no_grad()
def _spread(model: DFIVRegressor, X: np.ndarray, controls: np.ndarray | None, by: float | None) -> np.ndarray:
    """Standard errors `(p,)` of the average effects of a deep fit."""
    c = None if controls is None else scaled(controls, model._w)
    variances = []
    for member, V in zip(model.members_, model._covariances):

        def features(values: np.ndarray, member: Member = member) -> Tensor:
            xi = None if member.xi is None or c is None else evaluation.outputs(member.xi, c)
            psi = member.layers.psi(evaluation.outputs(member.psi, scaled(values, model._x)))
            return member.layers._second(psi, xi).mean(0)

        own = []
        for k in range(X.shape[1]):
            step = STEP * model._x[1][k] if by is None else by
            change = np.zeros(X.shape[1])
            change[k] = step if by is not None else step / 2
            before = X if by is not None else X - change
            L = features(X + change) - features(before)
            own.append(float(L @ V @ L) / (1.0 if by is not None else step) ** 2)
        variances.append(own)
    mean = np.mean(variances, 0) / min(len(variances), 2)
    return np.sqrt(mean) * model._y[1][0]


def plot_effect(model: DFIVRegressor, *, treatment: int, level: float | None, points: int, axis: Any) -> Any:
    """See `DFIVRegressor.plot_effect`."""
    from ..extras import require

    require("plot_effect", "experiments", "matplotlib")
    import matplotlib.pyplot as plt

    X, controls = model._kept()
    if not 0 <= treatment < X.shape[1]:
        raise ValueError(f"treatment is {treatment}; expected the number of a column of X, from 0 to {X.shape[1] - 1}")
    low_end, high_end = np.quantile(X[:, treatment], [0.02, 0.98])
    grid = np.linspace(float(low_end), float(high_end), points)

    def curve(fit: DFIVRegressor) -> np.ndarray:
        values = []
        for value in grid:
            moved = X.copy()
            moved[:, treatment] = value
            values.append(fit._predicted(moved, controls).mean())
        return np.array(values) - np.mean(values)

    axis = plt.subplots()[1] if axis is None else axis
    estimate = curve(model)
    if level is not None:
        if not hasattr(model, "replicates_"):
            raise ValueError("a band needs replicates: call bootstrap(X, y, Z=Z, W=W) first, or level=None for no band")
        _, low, high = banded(estimate, model.replicates_, curve, level)
        axis.fill_between(grid, low, high, alpha=0.25, linewidth=0, label=f"{level:.0%} band, bootstrap")
    axis.plot(grid, estimate, label="estimate")
    axis.set(xlabel=model._names[treatment], ylabel="effect on the outcome, around its mean")
    axis.legend()
    return axis
