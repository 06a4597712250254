"""A multilayer perceptron as a feature extractor: linear layers, each followed by an activation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


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
