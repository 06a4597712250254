"""Networks of finite width as in eq. 44 and their gradient flow (eq. 45): what the limit is a limit of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .. import extras
from . import flow
from .critical_points import best_layer

ACTIVATIONS = {"relu": torch.relu, "erf": torch.erf, "gelu": torch.nn.functional.gelu}


@dataclass(frozen=True)
class FiniteNetwork:
    """A fully connected network whose output, the features, are pre-activations.

    sizes: `(d_0, d_1, ..., d_L)`, inputs first and features last.
    """

    sizes: tuple[int, ...]
    activation: str = "relu"

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """All parameters as one vector of N(0, 1)."""
        count = sum((a + 1) * b for a, b in zip(self.sizes, self.sizes[1:]))
        return torch.randn(count, dtype=torch.float64, generator=generator)

    def features(self, parameters: Tensor, x: Tensor) -> Tensor:
        """`phi (n, d_L)`, eq. 44."""
        used, hidden = 0, x.double()
        for layer, (a, b) in enumerate(zip(self.sizes, self.sizes[1:])):
            if layer > 0:
                hidden = ACTIVATIONS[self.activation](hidden)
            weight = parameters[used : used + a * b].view(a, b)
            bias = parameters[used + a * b : used + a * b + b]
            hidden = hidden @ weight / a**0.5 + bias
            used += a * b + b
        return hidden

    def tangent_kernel(self, parameters: Tensor, x: Tensor, feature: int = 0) -> Tensor:
        """`(n, n)`: products of the parameter gradients of one feature."""
        parameters = parameters.detach().requires_grad_()
        phi = self.features(parameters, x)[:, feature]
        J = torch.stack([torch.autograd.grad(value, parameters, retain_graph=True)[0] for value in phi])
        return J @ J.T


def train(
    network: FiniteNetwork, parameters: Tensor, x: Tensor, Y: Tensor, t: Tensor, *, tolerance: float = 1e-6
) -> Tensor:
    """Features `(T, n, d)` at the times t along the gradient flow of `L*`, beta = 0, from the given parameters.

    The layer is solved at every instant and held for the gradient (Proposition 3.1)."""
    extras.require("the flow of a network", "theory", "scipy")
    from scipy.integrate import solve_ivp

    Y = Y.double()

    def right(_: float, state: np.ndarray) -> np.ndarray:
        theta = torch.from_numpy(state).requires_grad_()
        phi = network.features(theta, x)
        W = best_layer(phi.detach(), Y)
        (gradient,) = torch.autograd.grad((Y - phi @ W.T).square().sum(), theta)
        return -gradient.numpy()

    solution = solve_ivp(
        right, (0.0, float(t[-1])), parameters.numpy(), method="RK45", t_eval=t.numpy(), rtol=tolerance, atol=tolerance
    )
    if not solution.success:
        raise RuntimeError(f"the flow could not be integrated: {solution.message}")
    with torch.no_grad():
        return torch.stack([network.features(torch.from_numpy(state.copy()), x) for state in solution.y.T])


def distance_to_limit(network: FiniteNetwork, parameters: Tensor, x: Tensor, Y: Tensor, K: Tensor, t: Tensor) -> float:
    """How far the network's features stray from the limit's flow, which starts where the network does: the largest
    `|phi - phi_limit| / |phi_limit|` over the times t (the first of which is 0)."""
    phi = train(network, parameters, x, Y, t)
    limit = flow.integrate_at(phi[0], Y, K, t).phi
    return float(((phi - limit).flatten(1).norm(dim=1) / limit.flatten(1).norm(dim=1)).max())
