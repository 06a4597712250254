"""Theorem 5.2: gradient flow of infinitely wide networks with a solved last layer (paper eq. 46 to 50), beta = 0.

In rows, with the tangent kernel `K (n, n)`, the layer `W*` and the unattainable part of the targets::

    d phi / dt = 2 K Y_perp W*                          (eq. 47, since Y_star^T (phi^+)^T = W*)
    d |Y_star|^2 / dt = 4 tr(A B) >= 0,                 A = Y_perp^T K Y_perp,   B = W* W*^T

The paper's eq. 50 has 2 tr(AB): a factor 2 is lost between its last two lines. What the proof also needs, that the rank
stays what it was, follows from a conserved matrix, since `phi^T Y_perp = 0`::

    d / dt (phi^T K^-1 phi) = 0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .. import extras
from .critical_points import best_layer, split


def velocity(phi: Tensor, Y: Tensor, K: Tensor) -> Tensor:
    """Eq. 47."""
    phi, Y, K = _checked(phi, Y, K)
    W = best_layer(phi, Y)
    return 2 * K @ (Y - phi @ W.T) @ W


def rate(phi: Tensor, Y: Tensor, K: Tensor) -> float:
    """`d |Y_star|^2 / dt = 4 tr(A B)`: eq. 50 with the factor that it lacks."""
    phi, Y, K = _checked(phi, Y, K)
    W = best_layer(phi, Y)
    perp = Y - phi @ W.T
    return 4 * float(((perp.T @ K @ perp) * (W @ W.T)).sum())


def conserved(phi: Tensor, K: Tensor) -> Tensor:
    """`phi^T K^-1 phi (d, d)`, the same at all times, so features of full rank stay of full rank."""
    phi, _, K = _checked(phi, phi, K)
    return phi.T @ torch.linalg.solve(K, phi)


@dataclass(frozen=True)
class Flow:
    """Features along the flow: times `t (T,)` and `phi (T, n, d)`."""

    t: Tensor
    phi: Tensor
    Y: Tensor
    K: Tensor

    @property
    def attained(self) -> Tensor:
        """`|Y_star|^2 / |Y|^2` at every time."""
        return torch.tensor([split(phi, self.Y).share for phi in self.phi], dtype=torch.float64)

    @property
    def missing(self) -> Tensor:
        """`|Y_perp|^2 / |Y|^2` at every time: the rest, and exact where it is tiny."""
        parts = [split(phi, self.Y).unattainable.square().sum() for phi in self.phi]
        total = self.Y.square().sum()
        return torch.stack(parts) / torch.where(total > 0, total, 1.0)  # of nothing, nothing is missing

    @property
    def drift(self) -> float:
        """The largest relative change of the conserved matrix: the error of the integration."""
        start = conserved(self.phi[0], self.K)
        return max(float((conserved(phi, self.K) - start).norm() / start.norm()) for phi in self.phi)


def integrate(
    phi: Tensor, Y: Tensor, K: Tensor, until: float, *, points: int = 100, first: float = 1e-3, tolerance: float = 1e-9
) -> Flow:
    """The kernel gradient flow from `phi (n, d)`, at `points` times from `first` to `until`, evenly on a logarithmic scale,
    after the start."""
    return integrate_at(phi, Y, K, times(until, points, first), tolerance=tolerance)


def integrate_at(phi: Tensor, Y: Tensor, K: Tensor, t: Tensor, *, tolerance: float = 1e-9) -> Flow:
    """The same at given times, the first of which is 0. The method is adaptive, with this relative tolerance."""
    phi, Y, K = _checked(phi, Y, K)
    shape = phi.shape

    def right(_: float, state: np.ndarray) -> np.ndarray:
        return velocity(torch.from_numpy(state).reshape(shape), Y, K).reshape(-1).numpy()

    extras.require("the flow of a kernel", "theory", "scipy")
    from scipy.integrate import solve_ivp

    start = phi.reshape(-1).numpy()
    solution = solve_ivp(
        right,
        (0.0, float(t[-1])),
        start,
        method="LSODA",
        t_eval=t.numpy(),
        rtol=tolerance,
        atol=tolerance * (float(np.abs(start).max()) or 1.0),
    )
    if not solution.success:
        raise RuntimeError(f"the flow could not be integrated: {solution.message}")
    return Flow(t, torch.from_numpy(solution.y.T.copy()).reshape(-1, *shape), Y, K)


def times(until: float, points: int, first: float = 1e-3) -> Tensor:
    """0, then `points` times from `first` to `until`, evenly on a logarithmic scale."""
    t = np.concatenate([[0.0], np.geomspace(first, until, points)])
    t[-1] = until  # geomspace may overshoot by a rounding error, which the integrator refuses
    return torch.from_numpy(t)


def _checked(phi: Tensor, Y: Tensor, K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = len(phi)
    if phi.ndim != 2 or Y.ndim != 2 or len(Y) != n or K.shape != (n, n):
        raise ValueError(
            f"the flow takes phi (n, d), Y (n, o) and K (n, n), got {tuple(phi.shape)}, {tuple(Y.shape)}, {tuple(K.shape)}"
        )
    return phi.detach().double(), Y.double(), K.double()
