"""Class probabilities from the outputs of a squared loss, which are neither positive nor do they add up to one.

>>> f = torch.tensor([[0.1, 0.7, 0.3]])
>>> shifted(f)
tensor([[0.0000, 0.7500, 0.2500]])
>>> tempered(f, temperature=0.1).argmax(1)
tensor([1])
"""

from __future__ import annotations

import torch
from torch import Tensor

from .solver.losses import CrossEntropy


def shifted(f: Tensor) -> Tensor:
    """The paper's "Class confidence": `p_c = (f_c - min f) / sum_c' (f_c' - min f)`; equal where all outputs are."""
    p = f - f.amin(-1, keepdim=True)
    total = p.sum(-1, keepdim=True)
    return torch.where(total == 0, 1 / f.shape[-1], p / total)


def tempered(f: Tensor, temperature: float | Tensor) -> Tensor:
    """`softmax(f / temperature)`."""
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise ValueError(f"the temperature is {temperature}; expected a positive number")
    return torch.softmax(f / temperature, -1)


@torch.no_grad()
def fit_temperature(f: Tensor, y: Tensor, steps: int = 60) -> float:
    """The temperature at which `tempered` has the least cross-entropy on held-out outputs `f (n, classes)` with labels
    `y (n,)`, or rows of probabilities `(n, classes)`.

    The labels are smoothed by 1 / (n + 1), as Platt did: where all of a few samples are right, no temperature would be too
    low otherwise. The cross-entropy is convex in `1 / temperature`, so the root of its derivative is bracketed and the
    bracket halved. Where the outputs are worse than nothing, the highest temperature that was tried is returned: their
    spread times 1e4.
    """
    rows = CrossEntropy().targets(y, tuple(f.shape)) if f.ndim == 2 else y
    if f.ndim != 2 or f.shape[0] == 0 or rows.shape != f.shape:
        raise ValueError(
            f"outputs (n, classes) and whole-number labels (n,), or rows of probabilities, are needed, got {tuple(f.shape)} "
            f"and {tuple(y.shape)} of {y.dtype}"
        )
    f = f.double() - f.double().mean(1, keepdim=True)
    if not bool(torch.isfinite(f).all()):
        raise ValueError("the outputs have NaN or infinite values")
    own = (f * rows).sum(1)
    if not bool(torch.isfinite(own).all()):  # a GPU does not look at labels, and has NaN for one that is no class
        raise ValueError(f"labels must be 0 to {f.shape[1] - 1}, and rows add up to 1")
    own = own * (1 - 1 / (f.shape[0] + 1))  # the outputs have mean 0, so the smoothed part adds nothing
    spread = float(f.square().mean().sqrt())
    if spread == 0:
        return 1.0

    def slope(inverse: float) -> float:
        """The derivative of the cross-entropy in `1 / temperature`."""
        return float(((torch.softmax(f * inverse, 1) * f).sum(1) - own).mean())

    low, high = 1e-4 / spread, 1e4 / spread
    if slope(low) >= 0:
        return 1 / low
    if slope(high) <= 0:
        return 1 / high
    for _ in range(steps):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / (low * high) ** 0.5
