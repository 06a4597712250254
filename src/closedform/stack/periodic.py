"""Perceptrons side by side that see some of their inputs through waves as well, and whose last layer sees the inputs too.

A perceptron is slow to learn functions with many ups and downs of one input (an hour of the day, a code). Cosines of the
input with learned frequencies and phases make them easy: of each such input there are `waves` cosines, mixed into `MIXED`
numbers that stand beside the inputs (the embedding of Gorishniy et al. with the bias and the densely connected input of
Holzmueller et al.). The last layer sees the features and the inputs, or other numbers that come with them for it alone: so a
solve contains the ridge regression on those.

The backward pass is written out, as in `networks`; `tests/test_periodic.py` holds it against autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .networks import ACTIVATIONS, Activation, backward_layers, forward_layers, shared_layer

MIXED = 3  # numbers that the cosines of one input become
FREQUENCY = 0.1  # the spread of the first frequencies, in turns a unit of the input
# The waves learn this much faster than the rest: a frequency has a longer way to go. They are kept divided by it, so that
# one step of the optimizer serves all parameters.
SPEED = 5.0


class PeriodicPerceptron:
    """Models `(M, ...)` on inputs `(1, n, inputs)`; `columns` are those with waves. The features are `(M, width, n)`, those
    of the last hidden layer first and then the inputs; or, where there are numbers for the last layer `alone`, these, which
    stand behind the inputs: `(1, n, inputs + alone)`.

    Parameters, in this order and each with the models first: where there are columns, frequencies `(M, c, waves)`, phases,
    the mix `(M, c, MIXED, waves)` and the first layer's weight for it `(M, h, c MIXED)`; then weight and bias of each layer.
    """

    def __init__(
        self, inputs: int, columns: Sequence[int], waves: int, hidden: Sequence[int], activation: str, alone: int = 0
    ):
        self.inputs, self.columns, self.waves, self.hidden = inputs, list(columns), waves, list(hidden)
        self.name, self.alone = activation, alone
        self.width = self.hidden[-1] + (alone or inputs)
        self.first = 4 if self.columns else 0  # parameters before those of the layers
        self._all = self.columns == list(range(inputs))

    @property
    def activation(self) -> Activation:  # looked up, since a network is pickled and torch's functions are not
        return ACTIVATIONS[self.name]

    @property
    def seen_inputs(self) -> int:
        """How many numbers the first layer sees."""
        return self.inputs + MIXED * len(self.columns)

    def drawn(self, generator: torch.Generator) -> list[Tensor]:
        """The first parameters of one model, in float64."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(math.prod(shape), generator=generator, dtype=torch.float64).view(shape)

        count, sizes = len(self.columns), [self.inputs, *self.hidden]
        waves: list[Tensor] = []
        layers: list[Tensor] = []
        for k, (a, b) in enumerate(zip(sizes, sizes[1:])):
            W = normal(a, b).T * (a if k else self.seen_inputs) ** -0.5
            layers += [W, torch.zeros(b, dtype=torch.float64)]
        if count:
            phases = torch.rand(count * self.waves, generator=generator, dtype=torch.float64).view(count, self.waves)
            waves = [
                normal(count, self.waves) * (FREQUENCY / SPEED),
                (2 * phases - 1) * (math.pi / SPEED),
                normal(count, MIXED, self.waves) * (self.waves**-0.5 / SPEED),
                normal(count * MIXED, self.hidden[0]).T * self.seen_inputs**-0.5,
            ]
        return [*waves, *layers]

    def module(self, generator: torch.Generator) -> PeriodicModule:
        """One model as a module with first parameters of its own."""
        return PeriodicModule(self, [p.float() for p in self.drawn(generator)])

    def forward(self, params: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Any]:
        layers = params[self.first :]
        x, last = self.parts(x)
        h = shared_layer(layers[0], layers[1], x.mT)
        waves = None
        if self.columns:
            waves = self._waves(params, x)
            h = torch.baddbmm(h, params[3], waves[2])
        seen = forward_layers(h, layers[2:], self.activation)
        phi = seen[-1][1]
        return torch.cat([phi, last.mT.expand(len(phi), -1, -1)], 1), (x, waves, seen)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer sees, and what the last one does."""
        return (x[..., : self.inputs], x[..., self.inputs :]) if self.alone else (x, x)

    def _waves(self, params: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The angles and their cosines `(M, c, waves, n)`, and the mix of the cosines `(M, c MIXED, n)`."""
        frequency, phase, mix = params[:3]
        angle = torch.addcmul(phase.unsqueeze(3), frequency.unsqueeze(3), self._chosen(x), value=2 * math.pi)
        angle.mul_(SPEED)
        cosine = angle.cos()
        M, c = frequency.shape[:2]
        mixed = torch.bmm(mix.view(M * c, MIXED, -1), cosine.view(M * c, self.waves, -1)).mul_(SPEED)
        return angle, cosine, mixed.view(M, c * MIXED, -1)

    def _chosen(self, x: Tensor) -> Tensor:
        """The columns with waves, `(c, 1, n)`."""
        columns = x[0] if self._all else x[0][:, self.columns]
        return columns.T.unsqueeze(1)

    def backward(self, params: Sequence[Tensor], seen: Any, gradient: Tensor, out: Sequence[Tensor]) -> None:
        """From the gradient of the features to that of the parameters, which is written into `out`."""
        x, waves, layers = seen
        places = out[self.first :]
        g = backward_layers(layers, gradient[:, : self.hidden[-1]], params[self.first :], self.activation, places)
        torch.mm(g.flatten(0, 1), x[0], out=places[0].flatten(0, 1))
        if waves is not None:
            self._backward_waves(params, x, waves, g, out)

    def _backward_waves(
        self, params: Sequence[Tensor], x: Tensor, waves: Any, g: Tensor, out: Sequence[Tensor]
    ) -> None:
        angle, cosine, mixed = waves
        torch.bmm(g, mixed.mT, out=out[3])
        M, c = angle.shape[:2]
        g = torch.bmm(params[3].mT, g).view(M * c, MIXED, -1)
        torch.bmm(g, cosine.view(M * c, self.waves, -1).mT, out=out[2].view(M * c, MIXED, -1)).mul_(SPEED)
        g = torch.bmm(params[2].view(M * c, MIXED, -1).mT, g).view_as(angle)
        g.mul_(angle.sin_()).mul_(-SPEED * SPEED)
        torch.sum(g, 3, out=out[1])
        torch.sum(g.mul_(self._chosen(x)), 3, out=out[0]).mul_(2 * math.pi)


class PeriodicModule(nn.Module):
    """One model of a `PeriodicPerceptron` for autograd: `(n, inputs)` to features `(n, width)`, written as plainly as the
    first lines of this file say it."""

    def __init__(self, network: PeriodicPerceptron, params: Sequence[Tensor]):
        super().__init__()
        self.network, self.params = network, nn.ParameterList(params)

    def forward(self, x: Tensor) -> Tensor:
        params, columns = list(self.params), self.network.columns
        layers = params[self.network.first :]
        x, last = self.network.parts(x)
        seen, weight = [x], layers[0]
        if columns:
            frequency, phase, mix, beside = params[:4]
            cosines = torch.cos(SPEED * (2 * math.pi * frequency * x[:, columns, None] + phase))
            seen.append(torch.einsum("ncw,cmw->ncm", cosines, SPEED * mix).flatten(1))
            weight = torch.cat([weight, beside], 1)
        h = self.network.activation.forward(torch.cat(seen, 1) @ weight.T + layers[1])
        for W, b in zip(layers[2::2], layers[3::2]):
            h = self.network.activation.forward(h @ W.T + b)
        return torch.cat([h, last], 1)
