"""A Fourier neural operator in one dimension, as a feature extractor (Li et al. 2021; the paper's second backbone)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from ...stack.networks import Network


@lru_cache(maxsize=64)
def transforms(N: int, modes: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Matrices `(N, 2 modes)` from values on N points to the real and imaginary parts of their lowest Fourier coefficients,
    and `(2 modes, N)` back.

    Of a transform only `modes` coefficients are wanted. As products with these matrices they cost `N modes` a channel, which
    for the few modes of an operator is less than a fast transform that makes all of them: half the time of a step at 16
    modes of 256 points. Coefficients are those of the function, not of the grid: the mean is the zeroth.

    >>> analysis, synthesis = transforms(8, 2, torch.device("cpu"), torch.float64)
    >>> wave = 3 + torch.cos(2 * math.pi * torch.arange(8).double() / 8)
    >>> torch.allclose(wave @ analysis, torch.tensor([3, 0, 0.5, 0]).double())
    True
    >>> torch.allclose(wave @ analysis @ synthesis, wave)
    True
    """
    # kept for all callers, so never made as inference tensors, which a later training step may not save
    with torch.inference_mode(False):
        # k j modulo N, so that large grids lose no digits
        angles = 2 * math.pi / N * (torch.arange(N)[:, None] * torch.arange(modes) % N).double()
        waves = torch.stack([angles.cos(), -angles.sin()], 2)
        # a coefficient stands for its conjugate too, except the first and, on an even grid, the last
        weights = torch.full((modes, 1), 2.0, dtype=torch.float64)
        weights[[0, N // 2] if N % 2 == 0 and modes > N // 2 else [0]] = 1.0
        analysis, synthesis = (waves / N).flatten(1), (waves * weights).flatten(1).T.contiguous()
        return analysis.to(device, dtype), synthesis.to(device, dtype)


class SpectralConv1d(nn.Module):
    """A convolution by its Fourier coefficients: the lowest `modes` of them are mixed over the channels, the others dropped.

    The same weights serve every resolution.
    """

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.modes = modes
        # real and imaginary parts, since optimizers, casts and captured graphs know real parameters best
        self.weight = nn.Parameter(torch.rand(modes, width, width, 2) / width)

    def forward(self, x: Tensor) -> Tensor:
        """`x (B, N, width)` to the same shape."""
        B, N, width = x.shape
        modes = min(self.modes, N // 2 + 1)
        # half precision has no complex numbers
        with torch.autocast(x.device.type, enabled=False):
            h = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
            analysis, synthesis = transforms(N, modes, h.device, h.dtype)
            parts = (analysis.T @ h).view(B, modes, 2, width)
            spectrum = torch.complex(parts[:, :, 0], parts[:, :, 1])
            weight = torch.view_as_complex(self.weight[:modes].to(h.dtype).contiguous())
            mixed = torch.einsum("bki,kio->bko", spectrum, weight)
            mixed = torch.view_as_real(mixed).transpose(2, 3).reshape(B, 2 * modes, width)
            return (synthesis.T @ mixed).to(x.dtype)


class FNO1d(nn.Module):
    """Features `(B, N, width)` of fields `(B, N)` or `(B, N, channels)` on any grid of the periodic domain.

    The field and the grid's coordinate are lifted to `width` channels; each of `blocks` blocks adds a spectral convolution
    and a linear map of every point, followed by ReLU. A last layer is shared over the points; its Gram products are added up
    in pieces, except inside `torch.compile`, where their float64 copies grow with N.

    >>> FNO1d(width=8, modes=3, blocks=2)(torch.zeros(5, 32)).shape
    torch.Size([5, 32, 8])
    """

    def __init__(self, width: int = 128, modes: int = 16, blocks: int = 4, channels: int = 1):
        super().__init__()
        sizes = {"width": width, "modes": modes, "blocks": blocks, "channels": channels}
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")
        self.channels = channels
        self.lift = nn.Linear(channels + 1, width)
        self.spectral = nn.ModuleList(SpectralConv1d(width, modes) for _ in range(blocks))
        self.pointwise = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, u: Tensor) -> Tensor:
        if u.ndim == 2:
            u = u.unsqueeze(2)
        if u.ndim != 3 or u.shape[2] != self.channels:
            short = "(B, N) or " if self.channels == 1 else ""
            raise ValueError(f"expected fields {short}(B, N, {self.channels}), got {tuple(u.shape)}")
        if u.shape[1] < 1:
            raise ValueError(f"expected fields on at least one point, got {tuple(u.shape)}")
        dtype = self.lift.weight.dtype
        if u.dtype != dtype and not torch.is_autocast_enabled(u.device.type):
            raise ValueError(f"the fields are {u.dtype}, but the network is {dtype}: expected fields.to({dtype})")
        # half precision cannot count to 8,192
        exact = torch.promote_types(u.dtype, torch.float32)
        grid = (torch.arange(u.shape[1], device=u.device, dtype=exact) / u.shape[1]).to(u.dtype)
        h = self.lift(torch.cat([u, grid.expand(u.shape[0], -1).unsqueeze(2)], 2))
        for spectral, pointwise in zip(self.spectral, self.pointwise):
            h = F.relu(spectral(h) + pointwise(h))
        return h

    def stacked(self) -> Network:
        """For `closedform.stack`: how many of these stand side by side."""
        from .fno_stack import StackedFNO

        return StackedFNO(self)
