"""The backbones that a stack knows: the features of all models at once, and the gradient of them written out.

Models are the leading axis and rows the last one: features `(M, d, n)`. A row is a sample, or a point of a sample where the
last layer is shared over a grid. Parameters of a stack are those of the backbone, each with a leading model axis.

The backward pass is written out (a linear layer and an activation, again and again): the networks are so small that most of
a step's time would go into autograd's calls. `tests/test_networks.py` holds it against autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_aten = torch.ops.aten


class Activation(NamedTuple):
    module: type[nn.Module]
    forward: Callable
    backward: Callable  # takes the gradient, what went in and what came out


ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation(nn.GELU, _aten.gelu, lambda g, h, a: _aten.gelu_backward(g, h)),
    "silu": Activation(nn.SiLU, _aten.silu, lambda g, h, a: _aten.silu_backward(g, h)),
    "relu": Activation(nn.ReLU, torch.relu, lambda g, h, a: _aten.threshold_backward(g, a, 0)),
    "tanh": Activation(nn.Tanh, torch.tanh, lambda g, h, a: _aten.tanh_backward(g, a)),
}


def check_activation(name: Any) -> None:
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")


class Network(Protocol):
    width: int

    def params(self, backbones: Sequence[nn.Module]) -> list[Tensor]:
        """The parameters of all seeds, `(S, ...)`."""
        ...

    def prepared(self, X: Tensor) -> Tensor:
        """Inputs as `forward` wants them."""
        ...

    def forward(self, params: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Any]:
        """Features `(S K, d, rows)` of a batch `x (S, n, ...)`, which all models of a seed share, and what `backward` has to
        know of them."""
        ...

    def backward(self, params: Sequence[Tensor], seen: Any, gradient: Tensor, out: Sequence[Tensor]) -> None:
        """From the gradient of the features to that of the parameters, which is written into `out`."""
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
            _layers(backbone)
        if type(backbone) is not type(first) or [p.shape for p in backbone.parameters()] != [
            p.shape for p in first.parameters()
        ]:
            raise ValueError(f"the backbones of a stack have the same sizes, got {first} and {backbone}")
    return first.stacked() if isinstance(first, Stackable) else Perceptron.of(first)


def _layers(backbone: nn.Module) -> tuple[list[nn.Linear], str]:
    """The linear layers of a perceptron, and the activation that follows each of them."""
    modules = list(backbone) if isinstance(backbone, nn.Sequential) else []
    linear, others = modules[0::2], modules[1::2]
    kinds = [name for name, kind in ACTIVATIONS.items() if others and all(type(m) is kind.module for m in others)]
    if not kinds or len(modules) % 2 or not all(isinstance(module, nn.Linear) for module in linear):
        raise ValueError(
            f"a stack takes linear layers, each followed by the same one of {', '.join(ACTIVATIONS)}, or a backbone with "
            f"`stacked()`, got {backbone}"
        )
    return linear, kinds[0]  # pyright: ignore[reportReturnType]


def mlp(sizes: Sequence[int], *, generator: torch.Generator | None = None, activation: str = "gelu") -> nn.Sequential:
    """`sizes` are the input, hidden and feature widths; an activation after every layer, weights LeCun normal, biases zero.

    >>> mlp([435, 256, 256, 256])(torch.zeros(2, 435)).shape
    torch.Size([2, 256])
    """
    check_activation(activation)
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"an mlp needs an input and at least one layer, each of width 1 or more, got {list(sizes)}")
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")  # not drawn twice
        nn.init.normal_(layer.weight, std=inputs**-0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, ACTIVATIONS[activation].module()]
    return nn.Sequential(*layers)


class Perceptron:
    """Linear layers, each followed by an activation (`mlp`), on inputs `(S, n, f)`."""

    def __init__(self, inputs: int, width: int, activation: str):
        self.width, self.inputs, self.activation = width, inputs, ACTIVATIONS[activation]
        # the products of a GPU want rows of a multiple of 16 bytes; columns of zeros meet inputs of zero and stay zero
        self._padding = -inputs % 4

    @classmethod
    def of(cls, backbone: nn.Module) -> Perceptron:
        layers, activation = _layers(backbone)
        return cls(layers[0].in_features, layers[-1].out_features, activation)

    def params(self, backbones: Sequence[nn.Module]) -> list[Tensor]:
        stacked = stacked_parameters(backbones)
        return [F.pad(stacked[0], (0, self._padding)), *stacked[1:]]

    def prepared(self, X: Tensor) -> Tensor:
        return F.pad(X, (0, self._padding))

    def forward(self, params: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Any]:
        layers = forward_layers(shared_layer(params[0], params[1], x.mT), params[2:], self.activation)
        return layers[-1][1], (x, layers)

    def backward(self, params: Sequence[Tensor], seen: Any, gradient: Tensor, out: Sequence[Tensor]) -> None:
        x, layers = seen
        g = backward_layers(layers, gradient, params, self.activation, out)
        S, f = x.shape[0], x.shape[2]
        torch.bmm(g.view(S, -1, g.shape[2]), x, out=out[0].view(S, -1, f))

    def own(self, trained: Tensor, shape: torch.Size) -> Tensor:
        return trained if trained.shape == shape else trained[:, : self.inputs]


class Parameters:
    """The parameters of all models as views of one tensor, and their gradient as views of another: an optimizer's step is
    then one operation however many layers there are."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device):
        shapes = [t.shape for t in tensors]
        # views begin at multiples of 16 bytes, as the products of a GPU want them
        sizes = [-(-t.numel() // 4) * 4 for t in tensors]
        self.flat = torch.zeros(sum(sizes), dtype=tensors[0].dtype, device=device)
        self.gradient = torch.zeros_like(self.flat)
        self.views, self.gradients = (
            [v[: s.numel()].view(s) for v, s in zip(t.split(sizes), shapes)] for t in self._both
        )
        for view, tensor in zip(self.views, tensors):
            view.copy_(tensor)

    @property
    def _both(self) -> tuple[Tensor, Tensor]:
        return self.flat, self.gradient

    def selected(self, rows: Callable[[Tensor], Tensor]) -> Parameters:
        """Some of the models: `rows` takes those out of a tensor with all models first."""
        return Parameters([rows(view) for view in self.views], self.flat.device)

    def like(self) -> list[Tensor]:
        """Zeros shaped as the parameters, as views of one tensor."""
        return Parameters([torch.zeros_like(view) for view in self.views], self.flat.device).views


def stacked_parameters(backbones: Sequence[nn.Module]) -> list[Tensor]:
    return [torch.stack([p.detach() for p in column]) for column in zip(*(b.parameters() for b in backbones))]


def shared_layer(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """The first layer `(M, d, rows)` of inputs `x (S, f, rows)`: one product a seed, the same input for all its models."""
    S = x.shape[0]
    h = torch.baddbmm(bias.view(S, -1, 1), weight.view(S, -1, x.shape[1]), x)
    return h.view(weight.shape[0], weight.shape[1], x.shape[2])


def forward_layers(h: Tensor, params: Sequence[Tensor], activation: Activation) -> list[tuple[Tensor, Tensor]]:
    """What goes into and comes out of the activation of every layer: `h` at the first, `params` are those of the others."""
    layers = [(h, activation.forward(h))]
    for weight, bias in zip(params[0::2], params[1::2]):
        h = torch.baddbmm(bias.unsqueeze(2), weight, layers[-1][1])
        layers.append((h, activation.forward(h)))
    return layers


def backward_layers(
    layers: Sequence[tuple[Tensor, Tensor]],
    gradient: Tensor,
    params: Sequence[Tensor],
    activation: Activation,
    out: Sequence[Tensor],
) -> Tensor:
    """From the gradient of the features to that of what went into the first activation, which is returned. The gradients of
    all weights and biases but the first weight are written into `out`, which is as `params`, all layers of them."""
    g = gradient
    for k in range(len(layers) - 1, -1, -1):
        g = activation.backward(g, *layers[k])
        torch.sum(g, 2, out=out[2 * k + 1])
        if k:
            torch.bmm(g, layers[k - 1][1].mT, out=out[2 * k])
            g = torch.bmm(params[2 * k].mT, g)
    return g
