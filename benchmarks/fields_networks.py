"""Fourier neural operators on fields: neuraloperator's, and a small one of ours for machines that do not have it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from closedform import extras

NETWORKS = ("neuralop", "twin")
LAYERS = 4


def make(network: str, width: int, modes: int) -> nn.Module:
    if network == "twin":
        return Twin(width, modes)
    extras.require("this benchmark (or --network twin)", "operators", "neuralop")
    from neuralop.models import FNO

    return FNO(n_modes=(modes, modes), in_channels=1, out_channels=1, hidden_channels=width, n_layers=LAYERS)


def relative_error(network: str):
    """The mean over samples of `|prediction - truth| / |truth|`: neuraloperator's own loss, or the same written out."""
    if network == "twin":
        return lambda z, y: ((z - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()
    from neuralop.losses import LpLoss

    return LpLoss(d=2, p=2, reduction="mean").rel


class Twin(nn.Module):
    """Lifting, blocks of a spectral convolution beside a pointwise one, and a projection of two pointwise layers."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.lifting = nn.Sequential(nn.Conv2d(3, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1))
        self.spectral = nn.ModuleList(Spectral(width, modes // 2) for _ in range(LAYERS))
        self.pointwise = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(LAYERS))
        self.projection = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        axes = [torch.linspace(0, 1, size, dtype=x.dtype, device=x.device) for size in x.shape[2:]]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij")).expand(len(x), 2, *x.shape[2:])
        u = self.lifting(torch.cat([x, grid], 1))
        for k, (spectral, pointwise) in enumerate(zip(self.spectral, self.pointwise)):
            u = spectral(u) + pointwise(u)
            u = F.gelu(u) if k < LAYERS - 1 else u
        return self.projection(u)


class Spectral(nn.Module):
    """A product with a matrix of channels for every Fourier mode that is kept; two corners of the spectrum have them."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, dtype=torch.cfloat) / width)

    def forward(self, u: Tensor) -> Tensor:
        k = self.modes
        spectrum = torch.fft.rfft2(u)
        low = torch.einsum("bchw,cdhw->bdhw", spectrum[:, :, :k, :k], self.weight[0])
        high = torch.einsum("bchw,cdhw->bdhw", spectrum[:, :, -k:, :k], self.weight[1])
        middle = low.new_zeros(*low.shape[:2], u.shape[2] - 2 * k, k)
        kept = torch.cat([low, middle, high], 2)
        return torch.fft.irfft2(F.pad(kept, (0, spectrum.shape[3] - k)), s=u.shape[2:])
