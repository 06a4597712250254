"""Two-stage least squares, and what says how strong the instruments are.

    y = X b + C c + e,    first stage  X = Z p + C g + u

`Z` are the excluded instruments, `C` the controls (instruments for themselves) with a column of ones. Standard errors are
those that hold under heteroskedasticity (HC0), or the classical ones.

>>> rng = np.random.default_rng(0)
>>> z, u = rng.standard_normal((2, 5000)); x = z + u; y = 2 * x + 3 * u
>>> fit = two_stage(x[:, None], y, z[:, None])
>>> round(float(fit.coef[0]), 1), round(float(fit.first_stage.F), -3) > 1000
(2.0, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RANK = 1e-10  # a singular value below this share of the largest counts as zero
WEAK = 10.0  # the usual threshold of the first-stage F
STRONG = 104.7  # from which on intervals of two-stage least squares have their level (Lee and others 2022)


@dataclass(frozen=True)
class FirstStage:
    """How much the excluded instruments move the treatments, beyond the controls."""

    F: float  # joint F of the excluded instruments; the least over the treatments
    partial_r2: np.ndarray  # of every treatment
    degrees: tuple[int, int]
    p: float  # of the F under normal errors, an upper bound by the largest over the treatments
    cragg_donald: float  # the F of the combination of treatments that the instruments move least; `F` for one treatment


@dataclass(frozen=True)
class AndersonRubin:
    """The test of `b = b0` that holds however weak the instruments are."""

    F: float
    degrees: tuple[int, int]
    p: float  # exact under normal errors of equal variance; of the robust form for many rows


@dataclass(frozen=True)
class TwoStage:
    coef: np.ndarray  # of X
    controls: np.ndarray  # of the controls, without the intercept
    intercept: float
    covariance: np.ndarray  # of coef, controls and intercept, in this order
    first_stage: FirstStage
    stage_one: np.ndarray  # coefficients of X on Z, the controls and a constant, (m + q + 1, p)

    @property
    def std_error(self) -> np.ndarray:
        """Of `coef`."""
        return np.sqrt(np.diag(self.covariance)[: len(self.coef)])


def with_ones(controls: np.ndarray | None, n: int) -> np.ndarray:
    """The controls and a column of ones."""
    return np.ones((n, 1)) if controls is None else np.column_stack([controls, np.ones(n)])


def _least_squares(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Coefficients of smallest norm, columns in units of their own size."""
    size = np.sqrt(np.square(A).mean(0))
    size = np.where(size > 0, size, 1.0)
    coefficients = np.linalg.lstsq(A / size, B, rcond=RANK)[0]
    return coefficients / (size if coefficients.ndim == 1 else size[:, None])


def rank(A: np.ndarray) -> int:
    """The number of linearly independent columns, each in units of its own size."""
    size = np.sqrt(np.square(A).mean(0))
    values = np.linalg.svd(A / np.where(size > 0, size, 1.0), compute_uv=False)
    return int((values > RANK * max(values[0], 1e-300)).sum()) if len(values) else 0


def check_varying(X: np.ndarray, controls: np.ndarray | None) -> None:
    """Raise a ValueError unless each treatment varies beyond the others and the controls."""
    known = with_ones(controls, len(X))
    own = rank(np.column_stack([known, X])) - rank(known)
    if own < X.shape[1]:
        raise ValueError(
            f"X has {X.shape[1]} treatments of which {own} vary independently of the controls: expected each to vary by "
            "itself"
        )


def check_identified(X: np.ndarray, Z: np.ndarray, controls: np.ndarray | None) -> None:
    """Raise a ValueError unless the excluded instruments identify the coefficients of X."""
    check_varying(X, controls)
    known = with_ones(controls, len(X))
    base = rank(known)
    excluded = rank(np.column_stack([known, Z])) - base
    if excluded < X.shape[1]:
        raise ValueError(
            f"Z has {excluded} instruments that are independent of each other and of the controls, and X has {X.shape[1]} "
            "treatments: a linear model needs at least as many instruments as treatments"
        )
    projected = rank(np.column_stack([known, _project(np.column_stack([Z, known]), X)])) - base
    if projected < X.shape[1]:
        raise ValueError(
            f"the instruments move only {projected} of the {X.shape[1]} treatments independently (rank condition): the "
            "linear model is not identified"
        )


def _project(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return A @ _least_squares(A, B)


def residual(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """What a regression of B on A leaves."""
    return B - _project(A, B)


def basis(A: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span those of A."""
    size = np.sqrt(np.square(A).mean(0))
    U, S, _ = np.linalg.svd(A / np.where(size > 0, size, 1.0), full_matrices=False)
    return U[:, S > RANK * S[0]]


def leverage(A: np.ndarray) -> np.ndarray:
    """How far the prediction of each row by a regression on A follows the row itself, from 0 to 1."""
    return np.square(basis(A)).sum(1)


def left_out_residual(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a regression of `b (n,)` on A leaves of each row when that row is left out (the residuals of HC3)."""
    return residual(A, b) / np.maximum(1 - leverage(A), 1e-8)


def two_stage(
    X: np.ndarray, y: np.ndarray, Z: np.ndarray, controls: np.ndarray | None = None, *, robust: bool = True
) -> TwoStage:
    """Two-stage least squares of `y (n,)` on treatments `X (n, p)` with instruments `Z (n, m)` and `controls (n, q)`."""
    check_identified(X, Z, controls)
    n, p = X.shape
    known = with_ones(controls, n)
    A = np.column_stack([X, known])
    full = np.column_stack([Z, known])
    stage_one = _least_squares(full, A)
    A_hat = full @ stage_one
    coefficients = _least_squares(A_hat, y)
    left = y - A @ coefficients
    inverse = _inverse(A_hat)
    if robust:
        middle = A_hat.T @ (np.square(left)[:, None] * A_hat)
        covariance = inverse @ middle @ inverse
    else:
        covariance = inverse * float(left @ left) / n
    return TwoStage(
        coefficients[:p],
        coefficients[p:-1],
        float(coefficients[-1]),
        covariance,
        first_stage(X, Z, controls),
        stage_one[:, :p],
    )


def _inverse(A: np.ndarray) -> np.ndarray:
    """`(A^T A)^-1` through the singular values of A in units of its columns."""
    size = np.sqrt(np.square(A).mean(0))
    size = np.where(size > 0, size, 1.0)
    _, S, Vh = np.linalg.svd(A / size, full_matrices=False)
    keep = S > RANK * S[0]
    V = Vh[keep].T / S[keep]
    return (V @ V.T) / size[:, None] / size


def first_stage(X: np.ndarray, Z: np.ndarray, controls: np.ndarray | None = None) -> FirstStage:
    """Partial R^2 of every treatment and the joint F of the excluded instruments, under equal variances."""
    n = len(X)
    known = with_ones(controls, n)
    full = np.column_stack([Z, known])
    restricted = np.square(X - _project(known, X)).sum(0)
    restricted = np.where(restricted > RANK**2 * np.square(X).sum(0), restricted, 0.0)  # what is left is rounding
    unrestricted = np.minimum(np.square(X - _project(full, X)).sum(0), restricted)
    q, rest = rank(full) - rank(known), n - rank(full)
    with np.errstate(divide="ignore", invalid="ignore"):
        partial = np.where(restricted > 0, 1 - unrestricted / restricted, 0.0)
        F = np.where(restricted > 0, (restricted - unrestricted) / max(q, 1) / (unrestricted / max(rest, 1)), 0.0)
    least = float(np.nan_to_num(F, nan=0.0, posinf=math.inf).min())
    return FirstStage(least, partial, (q, rest), f_tail(least, q, rest), _cragg_donald(X, known, full, q, rest))


def _cragg_donald(X: np.ndarray, known: np.ndarray, full: np.ndarray, q: int, rest: int) -> float:
    """The least eigenvalue of the matrix of F statistics: two treatments may each be moved well, and together only along
    one line (Cragg and Donald 1993)."""
    fitted = _project(full, X)
    moved, noise = fitted - _project(known, X), X - fitted
    A, B = moved.T @ moved / max(q, 1), noise.T @ noise / max(rest, 1)
    size = np.sqrt(np.diag(A + B))
    if not (size > 0).all():
        return 0.0
    # in the units of A + B, which is well conditioned unless treatments are collinear: a / (1 - a) is increasing
    values, vectors = np.linalg.eigh((A + B) / np.outer(size, size))
    if values[0] <= RANK:
        return 0.0
    root = vectors / np.sqrt(values)
    least = float(np.linalg.eigvalsh(root.T @ (A / np.outer(size, size)) @ root)[0])
    return max(least, 0.0) / (1 - least) if least < 1 else math.inf


def ordinary(X: np.ndarray, y: np.ndarray, controls: np.ndarray | None = None) -> np.ndarray:
    """What ordinary least squares gives for X."""
    return _least_squares(np.column_stack([X, with_ones(controls, len(X))]), y)[: X.shape[1]]


def anderson_rubin(
    X: np.ndarray,
    y: np.ndarray,
    Z: np.ndarray,
    controls: np.ndarray | None = None,
    b0: np.ndarray | float = 0.0,
    *,
    robust: bool = False,
) -> AndersonRubin:
    """Whether the instruments explain `y - X b0` beyond the controls: they must not if `b = b0`. The F of equal variances,
    or the Wald statistic over its degrees of freedom with a covariance that holds under heteroskedasticity (HC3)."""
    n = len(X)
    known = with_ones(controls, n)
    full = np.column_stack([Z, known])
    target = y - X @ np.broadcast_to(b0, (X.shape[1],))
    q, rest = rank(full) - rank(known), n - rank(full)
    if robust:
        U = basis(Z - _project(known, Z))  # the statistic does not depend on which basis
        left = left_out_residual(full, target)
        F = wald(U.T @ target, U.T @ (np.square(left)[:, None] * U)) / max(q, 1)
        return AndersonRubin(F, (q, rest), f_tail(F, q, rest))
    restricted = float(np.square(target - _project(known, target)).sum())
    unrestricted = float(np.square(target - _project(full, target)).sum())
    F = (restricted - unrestricted) / q / (unrestricted / rest) if unrestricted > 0 else math.inf
    return AndersonRubin(F, (q, rest), f_tail(F, q, rest))


def wald(b: np.ndarray, V: np.ndarray) -> float:
    """`b^T V^-1 b`; infinite where V is singular, unless b is zero."""
    if not np.isfinite(V).all() or np.linalg.matrix_rank(V) < len(V):
        return math.inf if np.abs(b).max() > 0 else 0.0
    return float(b @ np.linalg.solve(V, b))


def f_quantile(level: float, a: int, b: int) -> float:
    """The value that `F_{a,b}` is below with the probability `level`, by bisection of `f_tail`.

    >>> round(f_quantile(0.95, 1, 100), 3), round(f_quantile(0.9, 5, 1_000_000), 3)
    (3.936, 1.847)
    """
    low, high = 0.0, 1.0
    while f_tail(high, a, b) > 1 - level:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if f_tail(middle, a, b) > 1 - level else (low, middle)
    return high


def f_tail(F: float, a: int, b: int) -> float:
    """`P(F_{a,b} > F)` by the continued fraction of the incomplete beta function.

    >>> round(f_tail(4.0, 1, 100), 4), f_tail(0.0, 3, 50)
    (0.0482, 1.0)
    """
    if a < 1 or b < 1 or math.isnan(F):
        return float("nan")
    if F <= 0:
        return 1.0
    if math.isinf(F):
        return 0.0
    return _beta_tail(b / 2, a / 2, b / (b + a * F))


def _beta_tail(p: float, q: float, x: float) -> float:
    """The regularised incomplete beta function `I_x(p, q)` (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (p + 1) / (p + q + 2):
        return 1 - _beta_tail(q, p, 1 - x)
    front = math.exp(math.lgamma(p + q) - math.lgamma(p) - math.lgamma(q) + p * math.log(x) + q * math.log1p(-x)) / p
    c, d = 1.0, 1 / (1 - (p + q) * x / (p + 1))
    total = d
    for m in range(1, 10_000):
        for term in (
            m * (q - m) * x / ((p + 2 * m - 1) * (p + 2 * m)),
            -(p + m) * (p + q + m) * x / ((p + 2 * m) * (p + 2 * m + 1)),
        ):
            d, c = 1 / (1 + term * d), 1 + term / c
            total *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * total
