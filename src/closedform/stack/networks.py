"""The backbones that a stack knows: how their parameters are stacked, and the features of all models at once.

Models are the leading axis and rows the last one: features `(M, d, n)`. A row is a sample, or a point of a sample where the
last layer is shared over a grid. Parameters of a stack are those of the backbone, each with a leading model axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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


@runtime_checkable
class Stackable(Protocol):
    """A backbone that knows how to stand beside others of its kind."""

    def stacked(self) -> Network: ...


def network(backbones: Sequence[nn.Module]) -> Network:
    """What a stack of these backbones, one a seed, has to know; a `ValueError` where it does not know them."""
    first = backbones[0]
    for backbone in backbones:
        if not isinstance(backbone, Stackable):
            pairs = isinstance(backbone, nn.Sequential) and [
                isinstance(module, (nn.Linear, nn.GELU)[k % 2]) for k, module in enumerate(backbone)
            ]
            if not pairs or not all(pairs) or len(pairs) % 2:
                raise ValueError(
                    f"a stack takes linear layers, each followed by GELU, or a backbone with `stacked()`, got {backbone}"
                )
        if type(backbone) is not type(first) or [p.shape for p in backbone.parameters()] != [
            p.shape for p in first.parameters()
        ]:
            raise ValueError(f"the backbones of a stack have the same sizes, got {first} and {backbone}")
    return first.stacked() if isinstance(first, Stackable) else Perceptron(first)


def mlp(sizes: Sequence[int], *, generator: torch.Generator | None = None) -> nn.Sequential:
    """`sizes` are the input, hidden and feature widths; GELU after every layer, weights LeCun normal, biases zero.

    >>> mlp([435, 256, 256, 256])(torch.zeros(2, 435)).shape
    torch.Size([2, 256])
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"an mlp needs an input and at least one layer, each of width 1 or more, got {list(sizes)}")
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")  # not drawn twice
        nn.init.normal_(layer.weight, std=inputs**-0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.GELU()]
    return nn.Sequential(*layers)


class Perceptron:
    """Linear layers, each followed by GELU (`mlp`), on inputs `(S, n, f)`."""

    def __init__(self, backbone: nn.Module):
        layers = [module for module in backbone.children() if isinstance(module, nn.Linear)]
        self.width = layers[-1].out_features
        # the products of a GPU want rows of a multiple of 16 bytes; columns of zeros meet inputs of zero and stay zero
        self.inputs, self._padding = layers[0].in_features, -layers[0].in_features % 4

    def params(self, backbones: Sequence[nn.Module]) -> list[Tensor]:
        stacked = stacked_parameters(backbones)
        return [F.pad(stacked[0], (0, self._padding)), *stacked[1:]]

    def prepared(self, X: Tensor) -> Tensor:
        return F.pad(X, (0, self._padding))

    def forward(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        weight, bias = params[:2]
        h = F.gelu(shared_layer(weight, bias, x.mT))
        for weight, bias in zip(params[2::2], params[3::2]):
            h = F.gelu(torch.baddbmm(bias[:, :, None], weight, h))
        return h

    def own(self, trained: Tensor, shape: torch.Size) -> Tensor:
        return trained if trained.shape == shape else trained[:, : self.inputs]


def stacked_parameters(backbones: Sequence[nn.Module]) -> list[Tensor]:
    return [torch.stack([p.detach() for p in column]) for column in zip(*(b.parameters() for b in backbones))]


def shared_layer(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """The first layer `(M, d, rows)` of inputs `x (S, f, rows)`: one product a seed, the same input for all its models."""
    S = x.shape[0]
    h = torch.baddbmm(bias.view(S, -1, 1), weight.view(S, -1, x.shape[1]), x)
    return h.view(weight.shape[0], weight.shape[1], x.shape[2])
