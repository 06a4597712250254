"""Small perceptrons with solved last layers, trained side by side without autograd.

A table's networks are so small that most of a step's time goes into calling operations. So the backward pass is written out
(a linear layer and an activation, again and again), the optimizer has one flat tensor, and several networks are one batch
of matrix products. `tests/test_networks.py` holds them against `ClosedFormLinear`, autograd and `torch.optim`.

The members of the batch see the same rows with different weights. A row of weight zero takes no part in a member's step, but
its residual is computed with the rest, *before* the layer takes in the batch: a held-out error that costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..solver import lambdas

_aten = torch.ops.aten


class Activation(NamedTuple):
    forward: Callable
    backward: Callable


# backward takes the gradient, what went in and what came out
ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation(_aten.gelu, lambda g, h, a: _aten.gelu_backward(g, h)),
    "silu": Activation(_aten.silu, lambda g, h, a: _aten.silu_backward(g, h)),
    "relu": Activation(torch.relu, lambda g, h, a: _aten.threshold_backward(g, a, 0)),
    "tanh": Activation(torch.tanh, lambda g, h, a: _aten.tanh_backward(g, a)),
}

BETAS, EPSILON = (0.9, 0.95), 1e-8
FLOOR = 1e-3  # of the learning rate that the memory follows, as in `lambdas.follow_lr`
LEAK = 1e-8  # of the prior's precision that is never forgotten, as in `rules.Kalman`
# Up to this ratio of the Gram's trace to lambda, rounding to float32 changes the Gram by less than a tenth of lambda
FLOAT32_TRACE = 1e6


@dataclass(frozen=True)
class Memory:
    """What the last layers remember: `Proximal` or `Kalman` as in `closedform.solver.rules`, following the learning rate; or
    "learned", a last layer that the optimizer moves like the rest.

    ratio: of lambda to the mean diagonal of the batch's Gram matrix (`lambdas.relative`), where `lam` is None; one for all
        members, or for each in turn.
    """

    kind: Literal["proximal", "kalman", "learned"] = "proximal"
    lam: float | None = None
    ratio: float | tuple[float, ...] = lambdas.AUTO_RATIO
    forget: float | tuple[float, ...] = 0.99


class Adam:
    """`torch.optim.Adam` for one tensor, without the calls around it, which would take longer than its arithmetic."""

    def __init__(self, parameter: Tensor, gradient: Tensor):
        self.parameter, self.gradient = parameter, gradient
        self.first, self.second = torch.zeros_like(parameter), torch.zeros_like(parameter)
        self.steps = torch.zeros((), dtype=torch.long)

    def step(self, rate: float) -> None:
        self.steps += 1
        t = int(self.steps)
        self.first.lerp_(self.gradient, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(self.gradient, self.gradient, value=1 - BETAS[1])
        root = math.sqrt(1 - BETAS[1] ** t)
        self.parameter.addcdiv_(
            self.first, self.second.sqrt().add_(EPSILON * root), value=-rate * root / (1 - BETAS[0] ** t)
        )

    def state(self) -> dict[str, Tensor]:
        return {"first": self.first, "second": self.second, "steps": self.steps}


class Networks:
    """`members` perceptrons `inputs -> hidden -> outputs`; the head of each is `(features + 1, outputs)`, the bias last."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        members: int,
        activation: str,
        memory: Memory,
        weight_decay: Sequence[float],
        seed: int,
        learning_rate: float,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        sizes = [inputs, *hidden]
        self.config = {
            "inputs": inputs,
            "hidden": list(hidden),
            "outputs": outputs,
            "members": members,
            "activation": activation,
            "memory": memory,
            "weight_decay": list(weight_decay),
            "seed": seed,
            "learning_rate": learning_rate,
            "device": device,
            "dtype": dtype,
        }
        self.members, self.outputs, self.memory, self._activation = members, outputs, memory, activation
        self.width, self.device, self.dtype = sizes[-1], device, dtype
        self.base = learning_rate
        generator = torch.Generator().manual_seed(seed)
        drawn = []  # one member after the other, so that a member does not depend on how many follow
        for _ in range(members):
            parts = []
            for a, b in zip(sizes, sizes[1:]):
                parts += [torch.randn(a * b, generator=generator, dtype=torch.float64) * a**-0.5, torch.zeros(b)]
            drawn.append(torch.cat(parts))
        self.flat = torch.stack(drawn).to(device, dtype)
        gradient = torch.zeros_like(self.flat)
        self._weights, self._biases = self._views(self.flat, sizes)
        self._weight_grads, self._bias_grads = self._views(gradient, sizes)
        self.head = torch.zeros(members, self.width + 1, outputs, device=device, dtype=dtype)
        self._adam = [Adam(self.flat, gradient)]
        if memory.kind == "learned":
            self.head[:, : self.width].copy_(
                torch.randn(members, self.width, outputs, generator=generator, dtype=torch.float64) * self.width**-0.5
            )
            self._adam.append(Adam(self.head, torch.zeros_like(self.head)))
        self._decay = torch.tensor(list(weight_decay), device=device, dtype=dtype)[:, None]
        self._decays = bool(self._decay.any())
        self.steps = torch.zeros((), dtype=torch.long)
        if memory.kind == "kalman":
            D = self.width + 1
            self.information = torch.zeros(members, D, D, device=device, dtype=torch.float64)
            self.prior = torch.zeros(members, D, device=device, dtype=torch.float64)
        self.noise = torch.zeros(members, outputs, device=device, dtype=torch.float64)
        self._ratio = _each(memory.ratio, members).to(device, dtype)
        self._forget = _each(memory.forget, members).to(device, torch.float64)
        self._smallest = float(self._ratio.min())
        self._average = torch.zeros(self.width + 1, self.width + 1, device=device, dtype=dtype)
        self._average[:-1, :-1] = 1 / self.width
        self._average[-1, -1] = 1

    def _views(self, flat: Tensor, sizes: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        weights, biases, at = [], [], 0
        for a, b in zip(sizes, sizes[1:]):
            weights.append(flat[:, at : at + a * b].unflatten(1, (a, b)))
            at += a * b
            biases.append(flat[:, None, at : at + b])
            at += b
        return weights, biases

    @property
    def activation(self) -> Activation:
        return ACTIVATIONS[self._activation]

    def __getstate__(self) -> dict[str, Any]:  # views of one tensor would come back as many
        return {"config": self.config, "state": {name: tensor.cpu().clone() for name, tensor in self.state().items()}}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["config"])
        self.restore(saved["state"])

    # ---- One step --------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
        """Solve the last layers on a batch, then step the rest (the paper's Algorithm 1).

        weight: `(members or 1, n, 1)`. factor: the learning rate over its base.
        Returns the weighted squared error of each member after the solve, summed over rows and outputs, and the residuals
        `(members, n, outputs)` before it.
        """
        layers = self._forward(x)
        X = self._extended(layers[-1][1])
        before = torch.baddbmm(y.expand(self.members, *y.shape), X, self.head, alpha=-1)
        XT = (X if weight is None else X * weight).mT
        residual = before if self.memory.kind == "learned" else self._solve(X, XT, before, weight, factor)
        weighted = residual if weight is None else residual * weight
        scale = -2 / y.numel()
        if self.memory.kind == "learned":
            torch.bmm(XT, residual, out=self._adam[1].gradient).mul_(scale)
        self._backward(x, layers, torch.bmm(weighted * scale, self.head[:, : self.width].mT))
        rate = self.base * factor
        if self._decays:
            self.flat.mul_(1 - rate * self._decay)
        for adam in self._adam:
            adam.step(rate)
        self.steps += 1
        return (weighted * residual).sum((1, 2)), before

    def _forward(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What goes into every activation and what comes out."""
        layers, a = [], x.expand(self.members, *x.shape)
        for W, b in zip(self._weights, self._biases):
            h = torch.baddbmm(b, a, W)
            a = self.activation.forward(h)
            layers.append((h, a))
        return layers

    def _extended(self, phi: Tensor) -> Tensor:
        return torch.nn.functional.pad(phi, (0, 1), value=1.0)

    def _backward(self, x: Tensor, layers: list[tuple[Tensor, Tensor]], g: Tensor) -> None:
        for k in range(len(layers) - 1, -1, -1):
            h, a = layers[k]
            g = self.activation.backward(g, h, a)
            below = layers[k - 1][1] if k else x.expand(self.members, *x.shape)
            self._weight_grads[k].copy_(torch.bmm(below.mT, g))
            torch.sum(g, 1, keepdim=True, out=self._bias_grads[k])
            if k:
                g = torch.bmm(g, self._weights[k].mT)

    # ---- The solves ------------------------------------------------------------------------------

    def _solve(self, X: Tensor, XT: Tensor, residual: Tensor, weight: Tensor | None, factor: float) -> Tensor:
        """Update the heads; returns the residual after it. A factor that fails, or an update that is not finite, leaves a
        member's head as it was."""
        if self.memory.kind == "kalman":
            change, bad = self._kalman(X, XT, residual, weight, factor)
        else:
            change, bad = self._proximal(X, XT, residual, factor)
        total = change.sum((1, 2))
        wrong = (total - total + bad) != 0  # what is not finite, minus itself, is NaN, which is not 0
        change.masked_fill_(wrong[:, None, None], 0.0)
        self.head += change
        return torch.baddbmm(residual, X, change, alpha=-1)

    def _proximal(self, X: Tensor, XT: Tensor, residual: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """Paper eq. 14 in residual form. A lambda that is relative to the Gram's mean diagonal can be so large that float32
        does; a given lambda may be small, and gets float64."""
        length = 1 / max(factor, FLOOR)
        double = self.memory.lam is not None or self.width / (self._smallest * length) > FLOAT32_TRACE
        if double:
            X, XT = X.double(), XT.double()
        G = torch.bmm(XT, X)
        diagonal = G.diagonal(dim1=1, dim2=2)
        floor = diagonal * (4 * G.shape[1] * torch.finfo(G.dtype).eps)
        if self.memory.lam is None:
            lam = self._relative(diagonal).mul_(self._ratio * length)
            diagonal += torch.maximum(lam, floor)
        else:
            diagonal += floor.clamp_(min=self.memory.lam * length)
        L, info = torch.linalg.cholesky_ex(G)
        return torch.cholesky_solve(torch.bmm(XT, residual.to(G.dtype)), L).to(self.dtype), info

    def _kalman(
        self, X: Tensor, XT: Tensor, residual: Tensor, weight: Tensor | None, factor: float
    ) -> tuple[Tensor, Tensor]:
        """The information form of `rules.Kalman`: `A <- gamma A + X^T X`, `dW = A^-1 X^T E`, in float64."""
        X, XT, E = X.double(), XT.double(), residual.double()
        gamma = 1 - (1 - self._forget) * min(1.0, max(factor, FLOOR))
        G = torch.bmm(XT, X)
        if self.steps == 0:
            lam = self.memory.lam
            diagonal = G.diagonal(dim1=1, dim2=2)
            self.prior.copy_(
                self._relative(diagonal) * self._ratio.double() if lam is None else torch.full_like(diagonal, lam)
            )
            A = torch.diag_embed(self.prior) + G
        else:
            A = self.information * gamma[:, :, None] + G
            A.diagonal(dim1=1, dim2=2).add_(self.prior * (LEAK * (1 - gamma)))
        scale = A.diagonal(dim1=1, dim2=2).rsqrt()[:, :, None]
        C = torch.bmm(XT, E)
        scaled = scale * A * scale.mT
        scaled.diagonal(dim1=1, dim2=2).add_(4 * A.shape[1] * torch.finfo(A.dtype).eps)
        L, info = torch.linalg.cholesky_ex(scaled)
        change = scale * torch.cholesky_solve(scale * C, L)
        ok = (info == 0) & torch.isfinite(change).all(2).all(1)
        self.information.copy_(torch.where(ok[:, None, None], A, self.information))
        # E^T (I - X A^-1 X^T) E / n estimates the noise: the innovation, weighted by what it should have been
        count = float(X.shape[1]) if weight is None else weight.double().sum(1).clamp(min=1e-300)
        squares = E.square().sum(1) if weight is None else (weight.double() * E.square()).sum(1)
        innovation = (squares - (C * change).sum(1)).clamp(min=0) / count
        share = (1 - gamma).clamp(min=3 / (int(self.steps) + 3))
        self.noise.copy_(torch.where(ok[:, None], self.noise + share * (innovation - self.noise), self.noise))
        return change.to(self.dtype), ~ok

    def _relative(self, diagonal: Tensor) -> Tensor:
        """`lambdas.relative(1)` for extended features: the mean of the diagonal, and for the bias its own. As one product,
        since calls cost more than arithmetic; features that are all zero get a small number, and a solution of zero."""
        return (diagonal @ self._average.to(diagonal.dtype)).clamp_(min=1e-30)

    # ---- What a fitted estimator needs -----------------------------------------------------------

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """`(n, members * width)` in float64, so that a prediction does not depend on the rows beside it."""
        a = x.double().expand(self.members, *x.shape)
        for W, b in zip(self._weights, self._biases):
            a = self.activation.forward(torch.baddbmm(b.double(), a, W.double()))
        return a.movedim(0, 1).flatten(1)

    def layer(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted mean of the members as one linear layer on their features: `(outputs, members * width)` and
        `(outputs,)`."""
        head = self.head.double() * shares[:, None, None].to(self.device)
        return head[:, : self.width].flatten(0, 1).T.contiguous(), head[:, self.width].sum(0)

    @torch.no_grad()
    def predictions(self, phi: Tensor) -> Tensor:
        """Of each member alone, from features: `(members, n, outputs)`."""
        return torch.bmm(self._members(phi), self.head.double())

    def _members(self, phi: Tensor) -> Tensor:
        return self._extended(phi.unflatten(1, (self.members, self.width)).movedim(1, 0))

    @torch.no_grad()
    def variance(self, phi: Tensor, shares: Tensor) -> Tensor:
        """Predictive variance `(n, outputs)` of the members' mixture: their own, and the variance between them."""
        X = self._members(phi)
        scale = self.information.diagonal(dim1=1, dim2=2).rsqrt()[:, :, None]
        scaled = scale * self.information * scale.mT
        scaled.diagonal(dim1=1, dim2=2).add_(4 * scaled.shape[1] * torch.finfo(scaled.dtype).eps)
        L, _ = torch.linalg.cholesky_ex(scaled)
        spread = torch.linalg.solve_triangular(L, scale * X.mT, upper=False).square().sum(1)
        own = (1 + spread)[:, :, None] * self.noise[:, None]
        means, shares = torch.bmm(X, self.head.double()), shares[:, None, None].to(self.device)
        between = (means - (shares * means).sum(0)).square()
        return (shares * (own + between)).sum(0)

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, as tensors; `restore` takes it back."""
        state = self.weights() | {"steps": self.steps}
        for k, adam in enumerate(self._adam):
            state |= {f"adam.{k}.{name}": tensor for name, tensor in adam.state().items()}
        return state

    def weights(self) -> dict[str, Tensor]:
        """What a prediction needs, each with the members first."""
        weights = {"flat": self.flat, "head": self.head, "noise": self.noise}
        if self.memory.kind == "kalman":
            weights |= {"information": self.information, "prior": self.prior}
        return weights

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        own = self.state()
        wrong = set(own) ^ set(state) or {name for name in own if own[name].shape != state[name].shape}
        if wrong:
            raise ValueError(f"this state is of other networks: {', '.join(sorted(wrong)[:3])} do not agree")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def forget_optimizer(self) -> None:
        """Start a new schedule from the present weights."""
        for adam in self._adam:
            for tensor in adam.state().values():
                tensor.zero_()


def _each(values: float | tuple[float, ...], members: int) -> Tensor:
    """One value a member, `(members, 1)`, in turn."""
    values = values if isinstance(values, tuple) else (values,)
    return torch.tensor([[values[k % len(values)]] for k in range(members)], dtype=torch.float64)


def cosine(done: float) -> float:
    """The learning rate over its base when this share of training is done.

    >>> cosine(0.0), cosine(1.0)
    (1.0, 0.0)
    """
    return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def check_activation(name: Any) -> None:
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
