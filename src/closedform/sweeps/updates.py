"""The optimizers of a stack: torch's SGD and Adam with a learning rate for every model.

A state is a tuple of tensors shaped like the parameter; an update is in place, and waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class SGD:
    """`v <- mu v + g`, `p <- p - lr (g + mu v)`: `torch.optim.SGD(momentum=mu, nesterov=True)`."""

    momentum: float = 0.9

    def state(self, p: Tensor) -> State:
        return (torch.zeros_like(p, requires_grad=False),)

    @torch.no_grad()
    def update_(self, p: Tensor, g: Tensor, state: State, lr: Tensor, t: Tensor) -> None:
        (v,) = state
        v.mul_(self.momentum).add_(g)
        p.addcmul_(g, lr, value=-1).addcmul_(v, lr, value=-self.momentum)


@dataclass(frozen=True)
class Adam:
    """`torch.optim.Adam` with its defaults."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def state(self, p: Tensor) -> State:
        return torch.zeros_like(p, requires_grad=False), torch.zeros_like(p, requires_grad=False)

    @torch.no_grad()
    def update_(self, p: Tensor, g: Tensor, state: State, lr: Tensor, t: Tensor) -> None:
        m, v = state
        m.lerp_(g, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        steps = (t + 1).double()
        first, second = 1 - self.beta1**steps, 1 - self.beta2**steps
        denominator = v.sqrt().div_(second.sqrt().to(p.dtype)).add_(self.eps)
        p.addcdiv_(m * (lr / first.to(p.dtype)), denominator, value=-1)


OPTIMIZERS = {"sgd": SGD, "adam": Adam}
