"""Fourier neural operators side by side: what a stack has to know of `FNO1d`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ...stack.networks import shared_layer, stacked_parameters
from .fno import FNO1d, transforms


class StackedFNO:
    """`FNO1d` on fields `(S, n, N, channels)`; the rows are the points of all samples."""

    def __init__(self, backbone: FNO1d):
        self.width, self.channels, self.blocks = backbone.lift.out_features, backbone.channels, len(backbone.spectral)
        self._waves: dict[int, tuple[Tensor, Tensor]] = {}
        names = [name for name, _ in backbone.named_parameters()]
        self._lift = [names.index(f"lift.{part}") for part in ("weight", "bias")]
        self._places = [
            [
                names.index(f"{name}")
                for name in (f"spectral.{b}.weight", f"pointwise.{b}.weight", f"pointwise.{b}.bias")
            ]
            for b in range(self.blocks)
        ]

    def params(self, backbones: Sequence[nn.Module]) -> list[Tensor]:
        return stacked_parameters(backbones)

    def prepared(self, X: Tensor) -> Tensor:
        if X.ndim != 4 or X.shape[3] != self.channels:
            raise ValueError(f"expected fields X (S, samples, points, {self.channels}), got {tuple(X.shape)}")
        return X

    def forward(self, params: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Any]:
        own = [p.detach().requires_grad_() for p in params]
        with torch.enable_grad():
            phi = self._features(own, x)
        return phi.detach(), (phi, own)

    def backward(self, params: Sequence[Tensor], seen: Any, gradient: Tensor, out: Sequence[Tensor]) -> None:
        phi, own = seen
        for own_gradient, computed in zip(out, torch.autograd.grad(phi, own, gradient)):
            own_gradient.copy_(computed)

    def _features(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        S, n, N, _ = x.shape
        grid = torch.arange(N, device=x.device, dtype=x.dtype) / N
        fields = torch.cat([x, grid.view(1, 1, N, 1).expand(S, n, N, 1)], 3).flatten(1, 2).mT
        weight, bias = (params[at] for at in self._lift)
        h = shared_layer(weight, bias, fields)
        for places in self._places:
            spectral, weight, bias = (params[at] for at in places)
            waves = transforms(N, min(spectral.shape[1], N // 2 + 1), h.device, h.dtype)
            self._waves[N] = waves  # a captured graph has their addresses, not them
            h = FNOBlock.apply(h, n, spectral, weight, bias, *waves)
        return h

    def own(self, trained: Tensor, shape: torch.Size) -> Tensor:
        return trained


class FNOBlock(torch.autograd.Function):
    """`relu(synthesis(mix(analysis(h))) + weight h + bias)` of all models, for `h (M, d, n N)`.

    The gradient is written out because these products are bound by memory: sums are formed in place, and the bias, which is
    the mean of a field, is added to its Fourier coefficient zero (where its gradient is found, too).
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, n: int, spectral: Tensor, weight: Tensor, bias: Tensor, analysis: Tensor, synthesis: Tensor
    ) -> Tensor:
        M, d, rows = h.shape
        N, modes = synthesis.shape[1], synthesis.shape[0] // 2
        spectrum = _by_mode((h.view(-1, N) @ analysis).view(M, d, n, modes, 2))
        mixed = _by_field(spectrum @ torch.view_as_complex(spectral[:, :modes]))
        mixed[:, :, :, 0, 0] += bias[:, :, None]
        out = (mixed.view(-1, 2 * modes) @ synthesis).view(M, d, rows)
        out = out.baddbmm_(weight, h).relu_()
        ctx.save_for_backward(h, spectrum, spectral, weight, analysis, synthesis, out)
        ctx.n = n
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        h, spectrum, spectral, weight, analysis, synthesis, out = ctx.saved_tensors
        (M, d, _), (N, modes) = h.shape, (synthesis.shape[1], synthesis.shape[0] // 2)
        g = torch.ops.aten.threshold_backward(grads[0].contiguous(), out, 0)
        dmixed = (g.view(-1, N) @ synthesis.T).view(M, d, ctx.n, modes, 2)
        dbias = dmixed[:, :, :, 0, 0].sum(2)
        dmixed = _by_mode(dmixed)
        dspectral = torch.view_as_real((spectrum.mH @ dmixed).resolve_conj())
        if modes < spectral.shape[1]:
            dspectral = F.pad(dspectral, (0, 0, 0, 0, 0, 0, 0, spectral.shape[1] - modes))
        dspectrum = _by_field(dmixed @ torch.view_as_complex(spectral[:, :modes]).mH)
        dh = torch.bmm(weight.mT, g)
        dh.view(-1, N).addmm_(dspectrum.view(-1, 2 * modes), analysis.T)
        return dh, None, dspectral, torch.bmm(g, h.mT), dbias, None, None


def _by_mode(spectrum: Tensor) -> Tensor:
    """Coefficients `(M, d, n, modes, 2)` as complex matrices `(M, modes, n, d)`."""
    return torch.view_as_complex(spectrum).permute(0, 3, 2, 1).contiguous()


def _by_field(spectrum: Tensor) -> Tensor:
    return torch.view_as_real(spectrum.permute(0, 3, 2, 1).resolve_conj().contiguous())
