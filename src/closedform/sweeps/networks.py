"""The backbones that a stack knows: how their parameters are stacked, and the features of all models at once.

Models are the leading axis and rows the last one: features `(M, d, n)`. A row is a sample, or a point of a sample where the
last layer is shared over a grid. Parameters of a stack are those of the backbone, each with a leading model axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..models.fno import FNO1d, transforms


class Network(Protocol):
    width: int

    def params(self, backbones: Sequence[nn.Module]) -> list[Tensor]:
        """The parameters of all seeds, `(S, ...)`."""
        ...

    def prepared(self, X: Tensor) -> Tensor:
        """Inputs as `forward` wants them."""
        ...

    def forward(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """Features `(S K, d, rows)` of a batch `x (S, n, ...)`, which all models of a seed share."""
        ...

    def own(self, trained: Tensor, shape: torch.Size) -> Tensor:
        """One model's parameter as its backbone has it."""
        ...


def network(backbones: Sequence[nn.Module]) -> Network:
    """What a stack of these backbones, one a seed, has to know; a `ValueError` where it does not know them."""
    first = backbones[0]
    if not all(isinstance(backbone, (nn.Sequential, FNO1d)) for backbone in backbones):
        raise ValueError(f"a stack takes linear layers, each followed by GELU, or an FNO1d, got {first}")
    for backbone in backbones:
        if isinstance(backbone, nn.Sequential):
            pairs = [isinstance(module, (nn.Linear, nn.GELU)[k % 2]) for k, module in enumerate(backbone)]
            if not pairs or not all(pairs) or len(pairs) % 2:
                raise ValueError(f"a stack takes linear layers, each followed by GELU, got {backbone}")
        if [p.shape for p in backbone.parameters()] != [p.shape for p in first.parameters()]:
            raise ValueError(f"the backbones of a stack have the same sizes, got {first} and {backbone}")
    return Operator(first) if isinstance(first, FNO1d) else Perceptron(first)


class Perceptron:
    """Linear layers, each followed by GELU (`closedform.models.mlp`), on inputs `(S, n, f)`."""

    def __init__(self, backbone: nn.Module):
        layers = [module for module in backbone.children() if isinstance(module, nn.Linear)]
        self.width = layers[-1].out_features
        # the products of a GPU want rows of a multiple of 16 bytes; columns of zeros meet inputs of zero and stay zero
        self.inputs, self._padding = layers[0].in_features, -layers[0].in_features % 4

    def params(self, backbones: Sequence[nn.Module]) -> list[Tensor]:
        stacked = _stacked(backbones)
        return [F.pad(stacked[0], (0, self._padding)), *stacked[1:]]

    def prepared(self, X: Tensor) -> Tensor:
        return F.pad(X, (0, self._padding))

    def forward(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        weight, bias = params[:2]
        h = F.gelu(_shared(weight, bias, x.mT))
        for weight, bias in zip(params[2::2], params[3::2]):
            h = F.gelu(torch.baddbmm(bias[:, :, None], weight, h))
        return h

    def own(self, trained: Tensor, shape: torch.Size) -> Tensor:
        return trained if trained.shape == shape else trained[:, : self.inputs]


class Operator:
    """`closedform.models.fno.FNO1d` on fields `(S, n, N, channels)`; the rows are the points of all samples."""

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
        return _stacked(backbones)

    def prepared(self, X: Tensor) -> Tensor:
        if X.ndim != 4 or X.shape[3] != self.channels:
            raise ValueError(f"expected fields X (S, samples, points, {self.channels}), got {tuple(X.shape)}")
        return X

    def forward(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        S, n, N, _ = x.shape
        grid = torch.arange(N, device=x.device, dtype=x.dtype) / N
        fields = torch.cat([x, grid.view(1, 1, N, 1).expand(S, n, N, 1)], 3).flatten(1, 2).mT
        weight, bias = (params[at] for at in self._lift)
        h = _shared(weight, bias, fields)
        for places in self._places:
            spectral, weight, bias = (params[at] for at in places)
            waves = transforms(N, min(spectral.shape[1], N // 2 + 1), h.device, h.dtype)
            self._waves[N] = waves  # a captured graph has their addresses, not them
            h = Block.apply(h, n, spectral, weight, bias, *waves)
        return h

    def own(self, trained: Tensor, shape: torch.Size) -> Tensor:
        return trained


class Block(torch.autograd.Function):
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


def _stacked(backbones: Sequence[nn.Module]) -> list[Tensor]:
    return [torch.stack([p.detach() for p in column]) for column in zip(*(b.parameters() for b in backbones))]


def _shared(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """The first layer `(M, d, rows)` of inputs `x (S, f, rows)`: one product a seed, the same input for all its models."""
    S = x.shape[0]
    h = torch.baddbmm(bias.view(S, -1, 1), weight.view(S, -1, x.shape[1]), x)
    return h.view(weight.shape[0], weight.shape[1], x.shape[2])
