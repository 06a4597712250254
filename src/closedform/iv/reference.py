"""Algorithm 3 of the paper letter by letter: slow, obvious, and what `DFIV` is tested against.

As in `closedform.solver.reference`, columns are samples: `Phi (k, n)`, `Psi (d, n)`, `W (d, k)`, `w (1, D)`, `y (1, n)`.
Gradients are those of autograd through the inverse. The paper has no controls; with them the stage-two features of a sample
are `[psi, 1] (x) [xi, 1]`, and xi is learned by the loss of stage two, together with psi.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Network = Callable[[Tensor], Tensor]


def solve(Phi: Tensor, Y: Tensor, W_t: Tensor, lam: float, method: str = "proximal") -> Tensor:
    """The minimiser of `|W Phi - Y|^2 + lam |W - W_t|^2`, for ridge with 0 in place of `W_t`."""
    eye = torch.eye(Phi.shape[0], dtype=Phi.dtype)
    right = Y @ Phi.T
    if method == "proximal":
        right = right + lam * W_t
    return right @ torch.linalg.inv(Phi @ Phi.T + lam * eye)


def with_ones(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones(1, features.shape[1], dtype=features.dtype)])


def stage_two_features(Psi: Tensor, Xi: Tensor | None) -> Tensor:
    """`[psi, 1]`, or `[psi, 1] (x) [xi, 1]`, a column a sample."""
    Psi = with_ones(Psi)
    if Xi is None:
        return Psi
    Xi = with_ones(Xi)
    return torch.stack([torch.kron(Psi[:, i], Xi[:, i]) for i in range(Psi.shape[1])], 1)


@dataclass
class State:
    """The two layers."""

    W: Tensor
    w: Tensor


@dataclass
class GradientStep:
    """A plain gradient step `theta <- theta - alpha grad`, or that of an optimizer over the same parameters."""

    parameters: Sequence[Tensor]
    rule: torch.optim.Optimizer

    def __call__(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, list(self.parameters))
        for parameter, gradient in zip(self.parameters, gradients):
            parameter.grad = gradient
        self.rule.step()


def iteration(
    state: State,
    psi: Network,
    phi: Network,
    xi: Network | None,
    first: Sequence[tuple[Tensor, Tensor]],
    second: tuple[Tensor, Tensor, Tensor | None],
    *,
    lam_1: float,
    lam_2: float,
    lam_12: float,
    T1: int,
    T2: int,
    step_Z: GradientStep,
    step_X: GradientStep,
    method: str = "proximal",
) -> None:
    """One pass of the while loop of Algorithm 3. `first` holds a batch `(x, z)` of stage one, or one for each of the T1
    steps, the last of which then serves stage two; `second` is `(z, y, o)`."""
    z2, y2, o2 = second
    y2 = y2.reshape(1, -1)
    for t in range(T1):
        x1, z1 = first[t % len(first)]
        Psi = psi(x1).T.detach()
        loss = ((state.W @ with_ones(phi(z1).T) - Psi) ** 2).sum()  # the penalty is zero at W_t1-1
        step_Z(loss)
        state.W = solve(with_ones(phi(z1).T.detach()), Psi, state.W, lam_1, method)
    x1, z1 = first[-1]
    Phi1, Phi2 = with_ones(phi(z1).T.detach()), with_ones(phi(z2).T.detach())

    def features() -> Tensor:
        W_star = solve(Phi1, psi(x1).T, state.W, lam_12, method)
        return stage_two_features(W_star @ Phi2, None if xi is None or o2 is None else xi(o2).T)

    for _ in range(T2):
        loss = ((state.w @ features() - y2) ** 2).sum()
        step_X(loss)
        state.w = solve(features().detach(), y2, state.w, lam_2, method)
