"""Modules of several models as one, for autograd: every linear layer is a stack of layers, and rows have a model axis first.

`stack.networks` writes the backward pass out, for the networks that it knows. Here is what autograd needs where the way from
the features to the loss is long, as in Algorithm 3.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .networks import ACTIVATIONS

_PLAIN = (nn.Sequential, nn.Identity, nn.Linear, *(activation.module for activation in ACTIVATIONS.values()))


class Linears(nn.Module):
    """The linear layers of M models: `(M, n, inputs)` to `(M, n, outputs)`."""

    def __init__(self, layers: Sequence[nn.Linear]):
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)

    @torch.no_grad()
    def take_out(self, layers: Sequence[nn.Linear]) -> None:
        """Copy the weights into the layers that they came from."""
        for layer, weight, bias in zip(layers, self.weight, self.bias):
            layer.weight.copy_(weight.T)
            layer.bias.copy_(bias[0])


def stackable(module: nn.Module) -> bool:
    """Whether every part is a linear layer, works entry by entry, or says of itself that it works on the last axis alone."""
    if any(isinstance(part, nn.Linear) and part.bias is None for part in module.modules()):
        return False
    # asked of the class itself: a subclass may differ
    return all(type(part) in _PLAIN or vars(type(part)).get("on_last_axis", False) for part in module.modules())


def side_by_side(modules: Sequence[nn.Module]) -> nn.Module:
    """One module of modules that have the same layers and are `stackable`."""
    stack = copy.deepcopy(modules[0])
    for name, layers in _layers(modules):
        parent, _, own = name.rpartition(".")
        setattr(stack.get_submodule(parent), own, Linears(layers))
    return stack


def take_out(stack: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Copy the weights of a stack into the modules that it was made of."""
    for name, layers in _layers(modules):
        linears = stack.get_submodule(name)
        assert isinstance(linears, Linears)
        linears.take_out(layers)


def _layers(modules: Sequence[nn.Module]) -> list[tuple[str, list[nn.Linear]]]:
    """The linear layers of all modules, by name."""
    names = [name for name, part in modules[0].named_modules() if isinstance(part, nn.Linear)]
    return [(name, [module.get_submodule(name) for module in modules]) for name in names]  # pyright: ignore[reportReturnType]
