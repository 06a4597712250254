"""The airline demand design of Hartford et al. (2017): how many tickets are sold at which price, time and kind of customer.

    s ~ U{1..7}, t ~ U(0, 10), c, v ~ N(0, 1)           kind, time of year, fuel cost, what moves price and demand
    e = rho v + sqrt(1 - rho^2) N(0, 1)                 price p and noise e share v: rho is the confounding
    p = 25 + (c + 3) psi(t) + v
    y = f(p, t, s) + e,    f = 100 + (10 + p) s psi(t) - 2 p

The treatment is p, the covariates are (t, s), the instruments (c, t, s). The test is a grid of 2,800 points.

>>> sample(1000).X.shape, grid().f.shape
((1000, 1), (2800,))
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .iv import IVSample, StructuralPoints

RHO = 0.5


def psi(t: np.ndarray) -> np.ndarray:
    return 2 * ((t - 5) ** 4 / 600 + np.exp(-4 * (t - 5) ** 2) + t / 10 - 2)


def structural(p: np.ndarray, t: np.ndarray, s: np.ndarray) -> np.ndarray:
    return 100 + (10 + p) * s * psi(t) - 2 * p


def sample(n: int, seed: int = 0, rho: float = RHO) -> IVSample:
    """`n` rows drawn by `seed`."""
    if n < 1 or not -1 <= rho <= 1:
        raise ValueError(f"expected n of at least 1 and rho in [-1, 1], got n={n} and rho={rho}")
    rng = np.random.default_rng(seed)
    s = rng.integers(1, 8, n).astype(np.float64)
    t = rng.uniform(0, 10, n)
    c, v = rng.standard_normal(n), rng.standard_normal(n)
    e = rho * v + np.sqrt(1 - rho**2) * rng.standard_normal(n)
    p = 25 + (c + 3) * psi(t) + v
    f = structural(p, t, s)
    return IVSample(p[:, None], np.stack([c, t, s], 1), f + e, np.stack([t, s], 1), f)


def grid() -> StructuralPoints:
    """Price 10 to 25 and time 0 to 10 in 20 steps each, and the seven kinds."""
    p, t, s = (
        axis.ravel()
        for axis in np.meshgrid(np.linspace(10, 25, 20), np.linspace(0, 10, 20), np.arange(1.0, 8), indexing="ij")
    )
    return StructuralPoints(p[:, None], np.stack([t, s], 1), structural(p, t, s))


# ---- Proxies instead of instruments ----------------------------------------------------------------


class ProxySample(NamedTuple):
    """Treatments A, proxies Z and W of the confounder, and outcomes."""

    A: np.ndarray
    Z: np.ndarray
    W: np.ndarray
    y: np.ndarray


def proxies(n: int, seed: int = 0) -> ProxySample:
    """`n` rows of the demand design with proxies (Xu et al. 2021b): demand d is unseen, and moves price and sales.

    d ~ U(0, 10),  Z = (2 sin(pi d / 5), 2 cos(pi d / 5)) + N(0, 1)       fuel prices
    W = 7 psi(d) + 45 + N(0, 1)                                           views of the page
    A = 35 + (Z_1 + 3) psi(d) + Z_2 + N(0, 1)                             the price
    y = A min(exp((W - A) / 10), 5) - 5 psi(d) + N(0, 1)                  sales
    """
    if n < 1:
        raise ValueError(f"expected n of at least 1, got {n}")
    rng = np.random.default_rng(seed)
    d = rng.uniform(0, 10, n)
    angle = np.pi * d / 5
    Z = np.stack([2 * np.sin(angle), 2 * np.cos(angle)], 1) + rng.standard_normal((n, 2))
    W = 7 * psi(d) + 45 + rng.standard_normal(n)
    A = 35 + (Z[:, 0] + 3) * psi(d) + Z[:, 1] + rng.standard_normal(n)
    y = _sales(A, W) - 5 * psi(d) + rng.standard_normal(n)
    return ProxySample(A[:, None], Z, W[:, None], y)


def _sales(price: np.ndarray, views: np.ndarray) -> np.ndarray:
    return price * np.minimum(np.exp((views - price) / 10), 5)


def proxy_curve(prices: np.ndarray) -> np.ndarray:
    """The mean of y if the price were set, by quadrature.

    >>> proxy_curve(np.array([20.0, 30.0])).round(1)
    array([61.3, 42.7])
    """
    d = (np.arange(2000) + 0.5) / 200
    nodes, weights = np.polynomial.hermite_e.hermegauss(21)
    views = 7 * psi(d)[:, None] + 45 + nodes
    weights = weights / weights.sum() / len(d)
    means = [(_sales(np.asarray(p), views) * weights).sum() for p in np.asarray(prices, dtype=np.float64)]
    return np.array(means) - 5 * psi(d).mean()
