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


def shifted(f: Tensor) -> Tensor:
    """The paper's "Class confidence": `p_c = (f_c - min f) / sum_c' (f_c' - min f)`; equal where all outputs are."""
    p = f - f.amin(-1, keepdim=True)
    total = p.sum(-1, keepdim=True)
    return torch.where(total > 0, p / total, 1 / f.shape[-1])


def tempered(f: Tensor, temperature: float | Tensor) -> Tensor:
    """`softmax(f / temperature)`."""
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
    if f.ndim != 2 or f.shape[0] == 0 or not (y.shape == f.shape or y.shape == f.shape[:1]):
        raise ValueError(f"outputs (n, classes) and labels (n,) are needed, got {tuple(f.shape)} and {tuple(y.shape)}")
    f = f.double() - f.double().mean(1, keepdim=True)
    if not bool(torch.isfinite(f).all()):
        raise ValueError("the outputs have NaN or infinite values")
    own = (f * y).sum(1) if y.shape == f.shape else f.gather(1, y.long()[:, None])[:, 0]
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
