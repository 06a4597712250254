"""Appendix B: the proximal layer as a Kalman filter that forgets its covariance, and what that costs.

Model: targets `Y_t = phi_t W_t^T + noise` of variance `sigma_Y^2`, and a last layer that walks, `W_{t+1} = W_t + step` of
variance `sigma_W^2` in every entry. Collapsing the belief to its mean before every step gives the proximal update with

    lambda = sigma_Y^2 / sigma_W^2                                                       (`lam_of`)

All outputs share one `d x d` covariance P. In units of `sigma_Y^2`, with `q = sigma_W^2 / sigma_Y^2 = 1 / lambda`, the error
of *any* update `W <- W + (K E)^T` has the covariance (Joseph's form; a Lyapunov recursion for a fixed rule)

    P <- (I - K phi) (P + q I) (I - K phi)^T + K K^T                                     (`absorb`)

whose smallest choice is the Riccati recursion: `K = P' phi^T (phi P' phi^T + I)^-1` with `P' = P + q I`. The collapsed
filter takes `P' = I / lambda` in that gain whatever the truth is, so its error is larger by an amount that these two
recursions predict for any sequence of features, before a single target is drawn (`predict`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


def lam_of(noise: float, step: float) -> float:
    """lambda for targets with noise of variance `noise` and a layer that walks by steps of variance `step`."""
    if not (noise > 0 and step > 0):
        raise ValueError(f"variances must be positive, got noise={noise} and step={step}")
    return noise / step


class Walk(NamedTuple):
    """Batches from a last layer that walks: `phi (T, n, d)`, `Y (T, n, o)` and the true `W (T, o, d)`."""

    phi: Tensor
    Y: Tensor
    W: Tensor


@dataclass(frozen=True)
class StateSpaceModel:
    """The paper's state-space model: `noise` is sigma_Y^2, `step` sigma_W^2, `prior` the variance of W_1's entries."""

    noise: float
    step: float
    prior: float = 1.0

    def __post_init__(self) -> None:
        if not (self.noise > 0 and self.step > 0 and self.prior > 0):
            raise ValueError(
                f"variances must be positive, got noise={self.noise}, step={self.step}, prior={self.prior}"
            )

    @property
    def lam(self) -> float:
        return lam_of(self.noise, self.step)

    @property
    def q(self) -> float:
        """The drift of the rule `Kalman(forget=1, drift=q, lam=noise / prior)`."""
        return self.step / self.noise

    def simulate(self, phi: Tensor, outputs: int, generator: torch.Generator | None = None) -> Walk:
        """Targets for the features `phi (T, n, d)`. Outputs are independent, so many of them are many repetitions."""
        phi = phi.double()
        T, n, d = phi.shape

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        start = self.prior**0.5 * normal(1, outputs, d)
        W = torch.cat([start, self.step**0.5 * normal(T - 1, outputs, d)]).cumsum(0)
        return Walk(phi, phi @ W.mT + self.noise**0.5 * normal(T, n, outputs), W)

    def predict(self, phi: Tensor, lam: float | None = None) -> Tensor:
        """Error covariance `(T, d, d)` of each output's weights after every batch: of the full filter (`lam=None`), or of
        the collapsed one (the proximal rule) with this lambda. No target is looked at."""
        d = phi.shape[2]
        eye = torch.eye(d, dtype=torch.float64)
        P, path = self.prior / self.noise * eye, []
        for t, X in enumerate(phi.double()):
            P = P if t == 0 else P + self.q * eye
            P = absorb(P, X, gain(P if lam is None else eye / lam, X))
            path.append(P)
        return self.noise * torch.stack(path)


def gain(belief: Tensor, X: Tensor) -> Tensor:
    """`K (d, n)` of the update that takes `belief` for the covariance before the batch `X (n, d)`."""
    S = X @ belief @ X.T + torch.eye(len(X), dtype=X.dtype)
    return torch.linalg.solve(S, X @ belief).T


def absorb(P: Tensor, X: Tensor, K: Tensor) -> Tensor:
    """Joseph's form: the covariance after an update with any gain."""
    M = torch.eye(len(P), dtype=P.dtype) - K @ X
    return M @ P @ M.T + K @ K.T


def spread(X: Tensor, covariance: Tensor, noise: float) -> Tensor:
    """Predictive variance `(m,)` of a new target at each row of `X (m, d)`: noise plus the layer's own doubt."""
    return noise + ((X @ covariance) * X).sum(1)


def coverage(error: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
    """The share of errors that lie in the central interval of each nominal level, were they normal with this variance."""
    z = (error.abs() / variance.sqrt()).flatten()
    half = torch.special.ndtri((1 + levels.double()) / 2)
    return (z[None] <= half[:, None]).double().mean(1)
