"""The simplest candidate of `DFIVRegressor`: a straight line, fitted to all rows without a ridge.

As many instruments as treatments: two-stage least squares.

More instruments than treatments: two-stage least squares would lean towards ordinary least squares, the more of them the
further. So it is limited information with the own row of every sum left out, in Fuller's form (HFUL of Hausman, Newey,
Woutersen, Chao and Swanson 2012), whose standard errors hold with many instruments and under heteroskedasticity.

Of a single treatment with one instrument, or with several weak ones, the interval is Anderson and Rubin's
(`closedform.iv.anderson_rubin`). It holds however weak they are, and is unbounded where the data do not say anything. Of
several treatments it is from standard errors, which are too short with weak instruments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import anderson_rubin, linear
from .effects import normal
from .linear import TwoStage
from .loop import Data

FULLER = 1.0  # Fuller's constant: the estimator has moments, and a small bias towards ordinary least squares


def fitted(X: np.ndarray, y: np.ndarray, Z: np.ndarray, controls: np.ndarray | None = None) -> TwoStage:
    """The line; raises a ValueError where the instruments do not identify one."""
    line = linear.two_stage(X, y, Z, controls)
    if excess(X, Z, controls) == 0:
        return line
    coefficients, covariance = jackknife(X, y, Z, controls)
    p = X.shape[1]
    return TwoStage(
        coefficients[:p], coefficients[p:-1], float(coefficients[-1]), covariance, line.first_stage, line.stage_one
    )


def excess(X: np.ndarray, Z: np.ndarray, controls: np.ndarray | None) -> int:
    """How many instruments there are beyond one for each treatment."""
    known = linear.with_ones(controls, len(X))
    return linear.rank(np.column_stack([Z, known])) - linear.rank(known) - X.shape[1]


def jackknife(
    X: np.ndarray, y: np.ndarray, Z: np.ndarray, controls: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """HFUL: coefficients of treatments, controls and the constant, and their covariance."""
    n, p = X.shape
    known = linear.with_ones(controls, n)
    B = linear.basis(known)  # controls may be collinear
    A = np.column_stack([X / np.sqrt(np.square(X).sum(0)), B])
    Q = linear.basis(np.column_stack([Z, known]))
    P = np.square(Q).sum(1)  # the diagonal of the projection

    def crossed(B: np.ndarray, C: np.ndarray) -> np.ndarray:
        """`sum of B_i P_ij C_j over i != j`."""
        return (Q.T @ B).T @ (Q.T @ C) - (B * P[:, None]).T @ C

    # limited information: the least ratio of what instruments explain of a combination of outcome and regressors
    both = np.column_stack([y / (math.sqrt(y @ y) or 1.0), A])
    values = np.linalg.eigvals(np.linalg.lstsq(both.T @ both, crossed(both, both), rcond=None)[0])
    least = float(values.real.min())
    k = FULLER / n
    alpha = (least - (1 - least) * k) / (1 - (1 - least) * k)
    H = crossed(A, A) - alpha * A.T @ A
    b = np.linalg.lstsq(H, crossed(A, y[:, None])[:, 0] - alpha * A.T @ y, rcond=None)[0]
    e = y - A @ b
    V = A - np.outer(e, A.T @ e) / max(float(e @ e), 1e-300)  # regressors less what of them goes with the errors
    F = Q @ (Q.T @ V)
    own = (V * P[:, None]).T @ (np.square(e)[:, None] * F)
    middle = F.T @ (np.square(e)[:, None] * F) - own - own.T
    # pairs of rows, the sum of P_ij^2 V_i e_i V_j e_j: a sum over pairs of columns of Q
    pairs = np.stack([(Q.T @ (Q * column[:, None])).ravel() for column in (V * e[:, None]).T])
    middle = middle + pairs @ pairs.T
    inverse = np.linalg.pinv(H)
    back = np.zeros((p + known.shape[1], A.shape[1]))  # to coefficients of the columns as they are
    back[:p, :p] = np.diag(1 / np.sqrt(np.square(X).sum(0)))
    back[p:, p:] = np.linalg.lstsq(known, B, rcond=linear.RANK)[0]
    return back @ b, back @ inverse @ middle @ inverse.T @ back.T


class Interval(NamedTuple):
    low: float
    high: float
    kind: str  # "Anderson-Rubin" or "standard errors"


def slope_interval(slope: float, std_error: float, moments: np.ndarray | None, rest: int, level: float) -> Interval:
    """Of the slope of a single treatment: Anderson and Rubin's, where there are its moments (`closedform.iv.anderson_rubin`)
    with so many degrees of freedom left; else from the standard error. With several instruments the two together, so that
    the estimate is inside; where no slope agrees with all instruments only the latter is left."""
    spread = normal(level) * std_error
    low, high = slope - spread, slope + spread
    robust = None if moments is None else anderson_rubin.ends(moments, rest, level)
    if moments is None or robust is None:
        return Interval(low, high, "standard errors")
    if len(moments) > 1:
        robust = min(low, robust[0]), max(high, robust[1])
    return Interval(*robust, "Anderson-Rubin")


@dataclass(frozen=True)
class Rival:
    """The line among the candidates that are compared on rows which they were not fitted to."""

    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    controls: np.ndarray | None

    @staticmethod
    def of(data: Data) -> Rival:
        controls = None if data.O is None else data.O.double().numpy()
        own = data.Z.shape[1] - (0 if controls is None else controls.shape[1])
        return Rival(data.X.double().numpy(), data.y[:, 0].double().numpy(), data.Z[:, :own].double().numpy(), controls)

    def losses(self, rows: Tensor, out: Tensor) -> Tensor:
        """Squared errors of the outcome given the instruments, of the rows `out` by the line of the rows `rows`; infinite
        where these identify none."""
        at, new = rows.numpy(), out.numpy()
        known = None if self.controls is None else self.controls[at]
        try:
            line = fitted(self.X[at], self.y[at], self.Z[at], known)
        except ValueError:
            return torch.full((len(new),), torch.inf, dtype=torch.float64)
        known = linear.with_ones(None if self.controls is None else self.controls[new], len(new))
        expected = np.column_stack([self.Z[new], known]) @ line.stage_one @ line.coef
        expected += known @ np.append(line.controls, line.intercept)
        return torch.from_numpy(np.square(self.y[new] - expected))

    def crossed(self, first: Tensor, unseen: Tensor, folds: list[Tensor]) -> Tensor:
        """The losses of rows `unseen`, each by the line of the rows `first` and of the other folds of `unseen`."""
        losses = torch.zeros(len(unseen), dtype=torch.float64)
        for out in folds:
            losses[out] = self.losses(torch.cat([first, unseen[~out]]), unseen[out])
        return losses
