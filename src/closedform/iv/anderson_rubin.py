"""Anderson and Rubin's interval of the slope of a line with one treatment: it holds however weak the instruments are.

A slope t is inside where the instruments say nothing about `y - x t` beyond the controls, by a test that holds under
heteroskedasticity (HC3). On an orthonormal basis of the instruments

    (a - b t)^T V(t)^-1 (a - b t) <= c,    V(t) = C - 2 D t + E t^2

with the quantile c of F times the number q of instruments. With one instrument that is a quadratic inequality. With several
it says that `V(t) - (a - b t) (a - b t)^T / c` has no negative eigenvalue. So t can only go in or out where this quadratic
matrix polynomial is singular, which is an eigenvalue problem of size 2 q.

>>> rng = np.random.default_rng(0)
>>> Z, (u, e) = rng.standard_normal((500, 5)), rng.standard_normal((2, 500))
>>> x = Z.sum(1) + u; y = 2 * x + 3 * u + e
>>> np.round(ends(moments(x[:, None], y, Z, None), 494, 0.9), 1)
array([1.8, 2.1])
>>> ends(moments(u[:, None], y, Z, None), 494, 0.9)  # instruments that say nothing about the treatment
(-inf, inf)
"""

from __future__ import annotations

import math

import numpy as np

from . import linear
from .linear import FirstStage

# Below so many standard deviations of F above one, which it is on average with useless instruments, intervals from standard
# errors are too short. Settled by coverage on simulated draws other than those of benchmarks/iv_coverage.py.
FAR = 7.0
FULL = 1 - 1e-8  # leverage of a row that the instruments fit whatever it holds: nothing is known of its variance


def needed(X: np.ndarray, Z: np.ndarray, controls: np.ndarray | None, first: FirstStage) -> bool:
    """Whether the interval should be this one: of one treatment, with one instrument or several weak ones."""
    q = first.degrees[0]
    if X.shape[1] > 1 or math.sqrt(q / 2) * (first.F - 1) >= FAR:
        return X.shape[1] == q == 1
    full = np.column_stack([Z, linear.with_ones(controls, len(X))])
    return q == 1 or float(linear.leverage(full).max()) < FULL


def moments(X: np.ndarray, y: np.ndarray, Z: np.ndarray, controls: np.ndarray | None) -> np.ndarray:
    """What the interval is made of at any level: a, b, C, D and E side by side, `(q, 2 + 3 q)`."""
    known = linear.with_ones(controls, len(X))
    full = np.column_stack([Z, known])
    U = linear.basis(linear.residual(known, Z))
    u, v = (linear.left_out_residual(full, part) for part in (y, X[:, 0]))
    covariances = (U.T @ (products[:, None] * U) for products in (u * u, u * v, v * v))
    return np.column_stack([U.T @ y, U.T @ X[:, 0], *covariances])


def ends(numbers: np.ndarray, rest: int, level: float) -> tuple[float, float] | None:
    """The least interval that holds all slopes inside, from the `moments` and the degrees of freedom that are left: the
    whole line where the set has no bounds, and None where no slope is inside: the instruments contradict each other."""
    q = len(numbers)
    a, b = numbers[:, 0], numbers[:, 1]
    C, D, E = (numbers[:, 2 + k * q : 2 + (k + 1) * q] for k in range(3))
    c = q * linear.f_quantile(level, q, rest)
    if linear.wald(b, E) <= c:  # the statistic at infinity
        return -math.inf, math.inf
    if q == 1:
        return _of_one(numbers[0], c)

    def inside(t: float) -> bool:
        V = C - 2 * D * t + E * t * t
        if np.linalg.eigvalsh(V)[0] <= linear.RANK * float(np.trace(C + E * t * t)):
            return False  # rounding: the instruments explain all of some part of y - x t
        return linear.wald(a - b * t, V) <= c

    edges = _edges(a, b, C, D, E, c)
    within = [k for k in range(len(edges) - 1) if inside((edges[k] + edges[k + 1]) / 2)]
    return (float(edges[within[0]]), float(edges[within[-1] + 1])) if within else None


def _of_one(numbers: np.ndarray, c: float) -> tuple[float, float]:
    """`(a - b t)^2 <= c (C - 2 D t + E t^2)`, which holds for `a / b` and not at infinity."""
    a, b, C, D, E = numbers.tolist()
    square, half, rest = b * b - c * E, a * b - c * D, a * a - c * C
    root = math.sqrt(max(half * half - square * rest, 0.0))
    return (half - root) / square, (half + root) / square


def _edges(a: np.ndarray, b: np.ndarray, C: np.ndarray, D: np.ndarray, E: np.ndarray, c: float) -> np.ndarray:
    """Slopes in ascending order between which nothing goes in or out. Real parts of complex eigenvalues are among them: they
    do no harm, and rounding cannot lose a pair of close edges."""
    q, middle = len(a), float(a @ b) / float(b @ b)  # two-stage least squares
    V, g = C - 2 * D * middle + E * middle**2, a - b * middle
    scale = math.sqrt(max(float(np.trace(V)), 0.0) / (float(np.trace(E)) or 1.0)) or 1.0
    # with t = middle + scale / m: m^2 constant + m first + second is singular
    constant = V - np.outer(g, g) / c
    first = scale * (2 * (E * middle - D) + (np.outer(g, b) + np.outer(b, g)) / c)
    second = scale**2 * (E - np.outer(b, b) / c)
    solved = np.linalg.lstsq(constant, np.column_stack([second, first]), rcond=None)[0]
    m = np.linalg.eigvals(np.vstack([np.eye(q, 2 * q, q), -solved]))
    return np.sort(middle + scale * (1 / m[m != 0]).real)
