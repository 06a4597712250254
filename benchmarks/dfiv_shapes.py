"""Eight shapes of a structural function that `dfiv_designs.py` draws with `--shapes`, and simple estimators beside ours.

`x = z + u / 2` and `y = f(x) + 2 u + e / 10` with z, u, e standard normal, where a shape does not say otherwise. Errors are
mean squared, of f less its mean, at points where the treatment is likely.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from closedform.iv import DFIVRegressor

hermite = np.polynomial.hermite_e.hermevander


class Draw(NamedTuple):
    """Rows, and points with the structural function there."""

    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    W: np.ndarray | None
    at: np.ndarray
    at_controls: np.ndarray | None
    f: np.ndarray


def _curve(f: Callable[[np.ndarray], np.ndarray], noise: Callable[[np.ndarray], np.ndarray] | None = None) -> Callable:
    def draw(n: int, rng: np.random.Generator) -> Draw:
        z, u, e = rng.standard_normal((3, n))
        x = z + u / 2
        y = f(x) + (2 * u if noise is None else 2 * u * noise(z)) + e / 10
        at = np.linspace(-1.5, 1.5, 41)
        return Draw(x[:, None], y, z[:, None], None, at[:, None], None, f(at))

    return draw


def _by_covariate(n: int, rng: np.random.Generator) -> Draw:
    """A threshold in the treatment, in one direction or the other by the sign of a control."""
    z, u, e, w = rng.standard_normal((4, n))
    x = z + u / 2 + w / 2

    def f(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.sign(w) * (x > 0)

    at, at_w = rng.uniform(-1.5, 1.5, (2, 400))
    return Draw(x[:, None], f(x, w) + 2 * u + e / 10, z[:, None], w[:, None], at[:, None], at_w[:, None], f(at, at_w))


def _wide(n: int, rng: np.random.Generator) -> Draw:
    """Twenty treatments, each with an instrument; the wave is in their mean."""
    p = 20
    Z, u, e = rng.standard_normal((n, p)), rng.standard_normal(n), rng.standard_normal(n)
    X = Z + u[:, None] / 2

    def f(X: np.ndarray) -> np.ndarray:
        return np.sin(X.sum(1) / p**0.5)

    at = rng.standard_normal((400, p))
    return Draw(X, f(X) + 2 * u + e / 10, Z, None, at, None, f(at))


def _many_weak(n: int, rng: np.random.Generator) -> Draw:
    """A line, thirty instruments that each say a little."""
    Z = rng.standard_normal((n, 30))
    u, e = rng.standard_normal((2, n))
    x = 0.1 * Z.sum(1) + u
    at = np.linspace(-1.5, 1.5, 41)
    return Draw(x[:, None], 2 * x + 2 * u + e / 10, Z, None, at[:, None], None, 2 * at)


SHAPES: dict[str, Callable[[int, np.random.Generator], Draw]] = {
    "line": _curve(lambda x: 2 * x),
    "kink": _curve(np.abs),
    "step": _curve(lambda x: 1.0 * (x > 0)),
    "sine": _curve(lambda x: np.sin(2 * x)),
    "threshold x covariate": _by_covariate,
    "high-dimensional treatment": _wide,
    "many weak instruments": _many_weak,
    "heteroskedastic": _curve(np.abs, lambda z: np.abs(z) + 0.2),
}


def _powers(X: np.ndarray, W: np.ndarray | None, degree: int = 3) -> np.ndarray:
    columns = X if W is None else np.column_stack([X, W])
    return np.column_stack([np.ones(len(X)), *(hermite(column / 2, degree)[:, 1:] for column in columns.T)])


def cubic(draw: Draw) -> np.ndarray:
    """Two-stage least squares on cubic polynomials of each column."""
    A, B = _powers(draw.X, draw.W), _powers(draw.Z, draw.W)
    w = np.linalg.lstsq(B @ np.linalg.lstsq(B, A, rcond=None)[0], draw.y, rcond=None)[0]
    return _powers(draw.at, draw.at_controls) @ w


def kernel(draw: Draw) -> np.ndarray:
    """Kernel instrumental variables: both stages by kernel ridge on halves of the rows, ridges by the other half's loss."""

    def gram(a: np.ndarray, b: np.ndarray, width: float) -> np.ndarray:
        return np.exp(-np.square(a[:, None] - b[None]).sum(2) / (2 * width**2))

    def joined(a: np.ndarray, b: np.ndarray | None) -> np.ndarray:
        return a if b is None else np.column_stack([a, b])

    X, Z, at = joined(draw.X, draw.W), joined(draw.Z, draw.W), joined(draw.at, draw.at_controls)
    n = len(X) // 2
    widths = [np.median(np.sqrt(np.square(part[:200, None] - part[None, :200]).sum(2))) for part in (X, Z)]
    mean = draw.y.mean()
    K, Kz, Kz2 = gram(X[:n], X[:n], widths[0]), gram(Z[:n], Z[:n], widths[1]), gram(Z[:n], Z[n:], widths[1])
    K12 = gram(X[:n], X[n:], widths[0])

    def first(ridge: float) -> np.ndarray:
        return np.linalg.solve(Kz + n * ridge * np.eye(n), Kz2)

    def loss_1(ridge: float) -> float:
        G = first(ridge)
        return float(-2 * (K12 * G).sum() + (G * (K @ G)).sum())

    ridges = 10.0 ** np.arange(-6, 1)
    ridge_1 = min(ridges, key=loss_1)
    P = K @ first(ridge_1)  # (first rows, second rows)
    own = K @ np.linalg.solve(Kz + n * ridge_1 * np.eye(n), Kz)

    def second(ridge: float) -> np.ndarray:
        return np.linalg.solve(P @ P.T + len(draw.y[n:]) * ridge * K + 1e-9 * np.eye(n), P @ (draw.y[n:] - mean))

    def loss_2(ridge: float) -> float:
        return float(np.square(draw.y[:n] - mean - second(ridge) @ own).mean())

    return gram(at, X[:n], widths[0]) @ second(min(ridges, key=loss_2)) + mean


def measured(name: str, n: int, seed: int) -> dict:
    """Errors of all methods on one draw."""
    draw = SHAPES[name](n, np.random.default_rng([seed, 7]))
    settings = {"auto": {}, "deep": {"treatment": "deep"}, "2SLS": {"features": "linear"}}
    predictions, seconds, used = {"cubic sieve": cubic(draw), "kernel": kernel(draw)}, 0.0, ""
    for method, options in settings.items():
        start = time.process_time()
        model = DFIVRegressor(**options, random_state=seed).fit(draw.X, draw.y, Z=draw.Z, W=draw.W)
        if method == "auto":
            seconds, used = time.process_time() - start, model.summary().used
        predictions[method] = model.predict(draw.at, draw.at_controls)
    f = draw.f - draw.f.mean()
    errors = {method: float(np.square(p - p.mean() - f).mean()) for method, p in predictions.items()}
    return {"seed": seed, "errors": errors, "used": used, "cpu_s": seconds}


def joined(name: str, n: int, draws: list[dict]) -> dict:
    """The mean errors of all methods over the draws of a shape, and ours over the least of the others. On single draws some
    method has luck, so that the least of four is no measure there."""
    means = {method: float(np.mean([draw["errors"][method] for draw in draws])) for method in draws[0]["errors"]}
    best = min(value for method, value in means.items() if method != "auto")
    return {"shape": name, "n": n, "means": means, "over_best": means["auto"] / best, "draws": draws}
