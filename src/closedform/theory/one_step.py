"""Theorem 5.3: how much of what a closed-form step gains can one gradient step on the last layer gain?

>>> phi = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
>>> step = one_step(phi, Y=torch.ones(2, 1, dtype=torch.float64), W=torch.zeros(1, 2, dtype=torch.float64))
>>> step.probability                        # the residual lies in both directions alike
tensor([0.5000, 0.5000], dtype=torch.float64)
>>> round(step.bound, 4)                    # E[s^2]^2 / E[s^4] = 2.5^2 / 8.5
0.7353
>>> abs(step.ratio - step.bound) < 1e-12    # which the best learning rate attains
True

With P summed over equal singular values (eq. 55) or not, the two moments are the same: repeated values need no care.
Directions of singular value zero have no part in P, since neither step can gain anything there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .critical_points import noise


@dataclass(frozen=True)
class OneStep:
    """The two steps compared; beta = 0, the loss a sum over samples.

    ratio: `(L(W) - L(W_GD)) / (L(W) - L(W_CF))` at the best learning rate, from the gradient and the Hessian.
    bound: `1 / (1 + Var(s^2) / E[s^2]^2)`, from the singular values s; the theorem says `ratio <= bound` for every rate.
    learning_rate: the best one, eq. 53, for the loss summed over samples (not averaged).
    gain: `L(W) - L(W_CF)`, what the closed form takes off the loss.
    singular, probability: the singular values and the weight that P gives them.
    """

    ratio: float
    bound: float
    learning_rate: float
    gain: float
    singular: Tensor
    probability: Tensor

    @property
    def variation(self) -> float:
        """The coefficient of variation of `s^2` under P."""
        return variation((self.singular / self.singular[0]) ** 2, self.probability)

    def ratio_at(self, learning_rate: float) -> float:
        """The ratio at any other rate: a parabola in it, whose top is `ratio`."""
        relative = learning_rate / self.learning_rate
        return self.ratio * relative * (2 - relative)


def one_step(phi: Tensor, Y: Tensor, W: Tensor) -> OneStep:
    """Compare one step from `W (o, d)` on features `phi (n, d)` and targets `Y (n, o)`."""
    # a layer that was solved in a lower precision is the best one to that precision
    eps = max(torch.finfo(t.dtype).eps if t.is_floating_point() else 0.0 for t in (phi, Y, W))
    eps = max(eps, torch.finfo(torch.float64).eps)
    phi, Y, W = (t.detach().double() for t in (phi, Y, W))
    if phi.ndim != 2 or Y.ndim != 2 or W.shape != (Y.shape[1], phi.shape[1]) or len(phi) != len(Y):
        raise ValueError(
            f"one_step takes phi (n, d), Y (n, o) and W (o, d), got {tuple(phi.shape)}, {tuple(Y.shape)}, {tuple(W.shape)}"
        )
    if phi.numel() == 0 or not bool((phi != 0).any()):
        raise ValueError("without features that are not zero no step gains anything, so there is nothing to compare")
    E = Y - phi @ W.T
    if not bool(torch.isfinite(E).all()):
        raise ValueError("one_step takes finite numbers, got NaN or infinite ones")
    U, S, _ = torch.linalg.svd(phi, full_matrices=False)
    top = float(S[0])  # in units of which the squares below neither overflow nor vanish
    keep = S > noise(S, phi)
    S, mass = S[keep], (U[:, keep].T @ E).square().sum(1)
    gain = float(mass.sum())
    rounding = max(phi.shape) * eps * float(Y.norm() + S[0] * W.norm())
    if gain <= rounding**2:
        raise ValueError("W minimises the loss already, so there is nothing to compare")
    probability = mass / gain
    small = phi / top
    g = (E.T @ small).square().sum()  # |gradient|^2 / 4, over the square of the unit
    curvature = (E.T @ small @ small.T).square().sum()  # gradient . Hessian . gradient / 8, over its fourth power
    return OneStep(
        ratio=float(g**2 / curvature) / gain,
        bound=bound((S / top) ** 2, probability),
        learning_rate=float(g / curvature) / 2 / top / top,
        gain=gain,
        singular=S,
        probability=probability,
    )


def variation(eigenvalues: Tensor, probability: Tensor) -> float:
    """`sqrt(Var) / mean` of the squared singular values."""
    mean = (probability * eigenvalues).sum()
    return float(((probability * (eigenvalues - mean) ** 2).sum()).sqrt() / mean)


def bound(eigenvalues: Tensor, probability: Tensor) -> float:
    """The theorem's right-hand side."""
    return 1 / (1 + variation(eigenvalues, probability) ** 2)
