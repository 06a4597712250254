"""Problems with chosen properties, and measures of how wrong an answer is."""

from __future__ import annotations

import torch
from torch import Tensor

import closedform as cf
from closedform.solver import reference


def features(n: int, d: int, *, condition: float = 10.0, rank: int | None = None, seed: int = 0) -> Tensor:
    """`(n, d)` in float64 with singular values from 1 down to 1 / condition, of the given rank."""
    g = torch.Generator().manual_seed(seed)
    k = min(n, d)
    U = torch.linalg.qr(torch.randn(n, k, generator=g, dtype=torch.float64))[0]
    V = torch.linalg.qr(torch.randn(d, k, generator=g, dtype=torch.float64))[0]
    S = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), k, dtype=torch.float64)
    if rank is not None:
        S[rank:] = 0
    return U * S @ V.T


def problem(n: int, d: int, o: int, *, condition: float = 10.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features, and targets that are partly linear in them."""
    g = torch.Generator().manual_seed(seed + 1000)
    phi = features(n, d, condition=condition, seed=seed)
    W = torch.randn(o, d, generator=g, dtype=torch.float64)
    return phi, phi @ W.T + 0.1 * torch.randn(n, o, generator=g, dtype=torch.float64)


def head(d: int, o: int, rule=None, *, bias: bool = True, seed: int = 0, dtype=torch.float64, **kwargs):
    """A head with random weights and bias."""
    layer = cf.ClosedFormLinear(d, o, bias, rule=rule, dtype=dtype, **kwargs)
    g = torch.Generator().manual_seed(seed + 2000)
    layer.set_weights_(torch.randn(o, layer.features, generator=g, dtype=torch.float64))
    return layer


def matrix(layer) -> Tensor:
    """Weight and bias of a layer as one float64 matrix, copied."""
    parts = [layer.weight] if layer.bias is None else [layer.weight, layer.bias[:, None]]
    return torch.cat([p.detach().double() for p in parts], 1).clone()


def columns(phi: Tensor, bias: bool) -> Tensor:
    """The paper's `Phi`, with the row of ones where there is a bias."""
    Phi = reference.columns(phi)
    return reference.with_bias(Phi) if bias else Phi


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach(), b.detach()
    return float((a - b).norm() / b.norm().clamp(min=1e-300))


def backbone(inputs: int = 3, width: int = 6, seed: int = 0, dtype=torch.float64) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.Tanh(), torch.nn.Linear(8, width), torch.nn.Tanh())
    return net.to(dtype)


def batches(count: int, n: int = 5, inputs: int = 3, outputs: int = 2, seed: int = 0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(n, inputs, generator=g, dtype=torch.float64).to(dtype),
            torch.randn(n, outputs, generator=g, dtype=torch.float64).to(dtype),
        )
        for _ in range(count)
    ]


class Model(torch.nn.Module):
    """A head buried inside a model."""

    def __init__(self, rule=None, dtype=torch.float64):
        super().__init__()
        self.backbone = backbone(dtype=dtype)
        self.fc = cf.ClosedFormLinear(6, 2, rule=rule, dtype=dtype)

    def forward(self, x):
        return self.fc(self.backbone(x))
