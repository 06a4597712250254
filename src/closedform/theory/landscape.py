"""Figure 1: a network of two parameters, `f(x) = W sigma(theta x)`, its loss and the curve `W*(theta)` (eq. 1, 2 and 5).

>>> import torch
>>> x, y = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([1.0, 2.0, 0.5])
>>> picture = Landscape(x, y)
>>> picture.best(2.0).item()                       # relu(2 x) = (2, 4, 0), so W = 10 / 20
0.5
>>> picture.loss(0.5, 2.0).item()                  # what no theta > 0 can reach: the point with x < 0
0.25

**A peculiarity of the paper's picture.** relu is positively homogeneous, so without regularisation the loss along the curve
depends on the sign of theta only: one solve arrives, and the gradient along the curve is zero on each side. With beta > 0
it falls as theta grows, without end (the paper's first remark in its appendix on the modified loss). `activation="tanh"`
gives a curve along which there is something to descend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Union

import torch
from torch import Tensor

Number = Union[float, Tensor]

# each activation with its derivative; relu's at 0 is 0, as in autograd
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (torch.relu, lambda u: (u > 0).to(u.dtype)),
    "tanh": (torch.tanh, lambda u: 1 - torch.tanh(u) ** 2),
}


class Path(NamedTuple):
    """Where a descent went: `steps + 1` points, the start first, and the loss at each."""

    theta: Tensor
    W: Tensor
    loss: Tensor


@dataclass(frozen=True)
class Landscape:
    """Data `x (n,)`, `y (n,)` for the two-parameter network; beta in sum units."""

    x: Tensor
    y: Tensor
    activation: str = "relu"
    beta: float = 0.0

    def __post_init__(self) -> None:
        if self.x.shape != self.y.shape or self.x.ndim != 1:
            raise ValueError(f"x and y must be vectors of one length, got {tuple(self.x.shape)}, {tuple(self.y.shape)}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if self.beta < 0:
            raise ValueError(f"beta must be zero or positive, got {self.beta}")
        object.__setattr__(self, "x", self.x.double())
        object.__setattr__(self, "y", self.y.double())

    def features(self, theta: Number) -> Tensor:
        """`sigma(theta x)`, one more dimension than theta."""
        return ACTIVATIONS[self.activation][0](_tensor(theta)[..., None] * self.x)

    def loss(self, W: Number, theta: Number) -> Tensor:
        """Eq. 1."""
        W = _tensor(W)
        return ((self.y - W[..., None] * self.features(theta)) ** 2).sum(-1) + self.beta * W**2

    def best(self, theta: Number) -> Tensor:
        """`W*(theta)`, eq. 2; where all features are zero, the smallest solution, 0."""
        phi = self.features(theta)
        scale = (phi**2).sum(-1) + self.beta
        return torch.where(scale > 0, (phi * self.y).sum(-1) / scale, torch.zeros_like(scale))

    def curve_loss(self, theta: Number) -> Tensor:
        """`L*(theta)`, eq. 5."""
        return self.loss(self.best(theta), theta)

    def gradient(self, W: Number, theta: Number) -> tuple[Tensor, Tensor]:
        """`(dL/dW, dL/dtheta)`."""
        W, theta = _tensor(W), _tensor(theta)
        phi = self.features(theta)
        slope = ACTIVATIONS[self.activation][1](theta[..., None] * self.x) * self.x
        error = W[..., None] * phi - self.y
        return 2 * (error * phi).sum(-1) + 2 * self.beta * W, 2 * (error * W[..., None] * slope).sum(-1)

    def descend_both(self, W: float, theta: float, lr: float, steps: int) -> Path:
        """Gradient descent in two dimensions, eq. 4 with one learning rate."""
        w, t = _tensor(W), _tensor(theta)
        points = [(t, w)]
        for _ in range(steps):
            dw, dt = self.gradient(w, t)
            w, t = w - lr * dw, t - lr * dt
            points.append((t, w))
        return self._path(points)

    def descend_curve(self, theta: float, lr: float, steps: int) -> Path:
        """Descent along the curve, eq. 9: solve W, then step theta with W held (Proposition 3.1)."""
        t = _tensor(theta)
        points = [(t, self.best(t))]
        for _ in range(steps):
            t = t - lr * self.gradient(self.best(t), t)[1]
            points.append((t, self.best(t)))
        return self._path(points)

    def _path(self, points: list[tuple[Tensor, Tensor]]) -> Path:
        theta, W = (torch.stack(part) for part in zip(*points))
        return Path(theta, W, self.loss(W, theta))


def _tensor(value: Number) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)
