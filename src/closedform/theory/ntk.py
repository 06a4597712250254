"""Kernels of infinitely wide, fully connected networks in the paper's parametrisation (appendix C.2, eq. 44).

With weights and biases N(0, 1) and a factor `1 / sqrt(width)` in front of every weight matrix, the pre-activations of layer
l + 1 are in the limit independent Gaussian processes (the NNGP kernel S), and gradient flow moves them by the tangent kernel
T, layer by layer::

    S_1 = x x'^T / d_0 + 1                       T_1 = S_1
    S_{l+1} = E[sigma(u) sigma(v)] + 1           T_{l+1} = S_{l+1} + T_l * E[sigma'(u) sigma'(v)],   (u, v) ~ N(0, S_l)

The expectations are in closed form below. The features are the *pre-activations* of the last layer: the paper's features
have one more non-linearity around them (`phi = sigma(...)`), whose tangent kernel depends on the random initialisation and
has no deterministic limit. relu lacks the second derivative that the paper assumes; its kernels are none the worse for it.

>>> x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
>>> kernels(x, depth=1).nngp
tensor([[2., 0.],
        [0., 2.]], dtype=torch.float64)
>>> kernels(x, depth=2, activation="relu").ntk          # on the diagonal S_2 = 2/2 + 1, T_2 = 2 + 2/2
tensor([[3.0000, 1.3183],
        [1.3183, 3.0000]], dtype=torch.float64)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Kernels(NamedTuple):
    nngp: Tensor  # (n, n) covariance of each feature at initialisation
    ntk: Tensor  # (n, n) tangent kernel, the same at all times


def kernels(x: Tensor, depth: int, activation: str = "relu") -> Kernels:
    """Both kernels on the inputs `x (n, d_0)` for `depth` layers of weights, so `depth - 1` hidden layers."""
    if depth < 1:
        raise ValueError(f"a network has at least one layer of weights, got depth={depth}")
    if activation not in DUALS:
        raise ValueError(f"activation must be one of {', '.join(DUALS)}, got {activation!r}")
    if x.ndim != 2:
        raise ValueError(f"x must be (n, inputs), got {tuple(x.shape)}")
    x = x.double()
    S = x @ x.T / x.shape[1] + 1
    T = S
    for _ in range(depth - 1):
        product, slope = DUALS[activation](S)
        S = product + 1
        T = S + T * slope
    return Kernels(S, T)


def features(nngp: Tensor, d: int, generator: torch.Generator | None = None) -> Tensor:
    """Random features `(n, d)` of an infinitely wide network: d independent draws of its Gaussian process."""
    w, V = torch.linalg.eigh(nngp)
    noise = torch.randn(len(nngp), d, dtype=torch.float64, generator=generator)
    return (V * w.clamp(min=0).sqrt()) @ noise


def relu_dual(S: Tensor) -> tuple[Tensor, Tensor]:
    """`E[relu(u) relu(v)]` and `E[relu'(u) relu'(v)]`: the arc-cosine kernels of order one and zero."""
    a, b = _variances(S)
    scale = (a * b).sqrt()
    angle = (S / scale).clamp(-1, 1).acos()
    slope = (math.pi - angle) / (2 * math.pi)
    return scale * angle.sin() / (2 * math.pi) + S * slope, slope


def erf_dual(S: Tensor) -> tuple[Tensor, Tensor]:
    """`E[erf(u) erf(v)]` and the same of the derivatives."""
    a, b = _variances(S)
    outer = (1 + 2 * a) * (1 + 2 * b)
    return 2 / math.pi * (2 * S / outer.sqrt()).asin(), 4 / math.pi / (outer - 4 * S**2).sqrt()


def gelu_dual(S: Tensor) -> tuple[Tensor, Tensor]:
    """`E[gelu(u) gelu(v)]` with `gelu(u) = u N(u)`, N the normal distribution function, and the same of the derivatives.

    By Stein's identity `E[u g] = a E[g_u] + c E[g_v]`, applied until only `E[N(u) N(v)]` and R, the expected product of the
    two densities, are left.
    """
    a, b = _variances(S)
    outer = (1 + a) * (1 + b)
    R = 1 / (2 * math.pi * (outer - S**2).sqrt())
    both = 0.25 + (S / outer.sqrt()).asin() / (2 * math.pi)
    product = a * R * (b - S**2 / (1 + a)) + S * both + S**2 * R / (1 + b)
    slope = both + S * R * (1 / (1 + a) + 1 / (1 + b) + 1 / (outer - S**2))
    return product, slope


def _variances(S: Tensor) -> tuple[Tensor, Tensor]:
    diagonal = S.diagonal()
    return diagonal[:, None], diagonal[None, :]


DUALS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {"relu": relu_dual, "erf": erf_dual, "gelu": gelu_dual}
