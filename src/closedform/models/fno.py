"""A Fourier neural operator in one dimension, as a feature extractor (Li et al. 2021; the paper's second backbone)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SpectralConv1d(nn.Module):
    """A convolution by its Fourier coefficients: the lowest `modes` of them are mixed over the channels, the others dropped.

    Coefficients are those of the function, not of the grid (`norm="forward"`), so the same weights serve every resolution.
    """

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.modes = modes
        # real and imaginary parts, since optimizers, casts and captured graphs know real parameters best
        self.weight = nn.Parameter(torch.rand(modes, width, width, 2) / width)

    def forward(self, x: Tensor) -> Tensor:
        """`x (B, N, width)` to the same shape."""
        N = x.shape[1]
        # half precision has no transforms for most lengths
        with torch.autocast(x.device.type, enabled=False):
            spectrum = torch.fft.rfft(
                x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, dim=1, norm="forward"
            )
            modes = min(self.modes, spectrum.shape[1])
            weight = torch.view_as_complex(self.weight[:modes].to(spectrum.real.dtype).contiguous())
            mixed = torch.einsum("bki,kio->bko", spectrum[:, :modes], weight)
            return torch.fft.irfft(mixed, N, dim=1, norm="forward").to(x.dtype)


class FNO1d(nn.Module):
    """Features `(B, N, width)` of fields `(B, N)` or `(B, N, channels)` on any grid of the periodic domain.

    The field and the grid's coordinate are lifted to `width` channels; each of `blocks` blocks adds a spectral convolution
    and a linear map of every point, followed by ReLU. A last layer is shared over the points.

    >>> FNO1d(width=8, modes=3, blocks=2)(torch.zeros(5, 32)).shape
    torch.Size([5, 32, 8])
    """

    def __init__(self, width: int = 128, modes: int = 16, blocks: int = 4, channels: int = 1):
        super().__init__()
        if min(width, modes, blocks, channels) < 1:
            raise ValueError(f"expected positive sizes, got {width=}, {modes=}, {blocks=}, {channels=}")
        self.channels = channels
        self.lift = nn.Linear(channels + 1, width)
        self.spectral = nn.ModuleList(SpectralConv1d(width, modes) for _ in range(blocks))
        self.pointwise = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, u: Tensor) -> Tensor:
        if u.ndim == 2:
            u = u.unsqueeze(2)
        if u.ndim != 3 or u.shape[2] != self.channels:
            raise ValueError(f"expected fields (B, N) or (B, N, {self.channels}), got {tuple(u.shape)}")
        grid = torch.arange(u.shape[1], device=u.device, dtype=u.dtype) / u.shape[1]
        h = self.lift(torch.cat([u, grid.expand(u.shape[0], -1).unsqueeze(2)], 2))
        for spectral, pointwise in zip(self.spectral, self.pointwise):
            h = F.relu(spectral(h) + pointwise(h))
        return h
