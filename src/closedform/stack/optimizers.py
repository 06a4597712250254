"""The optimizers of a stack: torch's SGD and Adam with a learning rate for every model, or one number for all.

A state is a tuple of tensors shaped like the parameter; an update is in place, and waits for nothing. On a CUDA device it is
one Triton kernel, which reads and writes each number once. (Its constants are compiled in: as arguments they would arrive
in float32, where 1 - 0.999 has lost a dozen bits.)
"""

# Triton is a language of its own inside Python, which a type checker does not know, and is only there in CUDA builds:
# pyright: reportIndexIssue=false, reportMissingImports=false, reportOptionalMemberAccess=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..solver.lambdas import half_cosine

try:
    import triton
    import triton.language as tl
except ImportError:  # a build without CUDA
    triton = None

State = tuple[Tensor, ...]
_BLOCK = 1024


def _fused(*tensors: Tensor) -> bool:
    return triton is not None and all(t.is_cuda and t.is_contiguous() for t in tensors) and tensors[0].numel() > 0


def _like(rate: Tensor, p: Tensor) -> Tensor:
    """One number a model as a factor of `p`, in p's dtype."""
    return rate.to(p.dtype).reshape(*rate.shape, *[1] * (p.ndim - rate.ndim))


@dataclass(frozen=True)
class SGD:
    """`v <- mu v + g`, `p <- p - lr (g + mu v)`: `torch.optim.SGD(momentum=mu, nesterov=True)`."""

    momentum: float = 0.9

    def state(self, p: Tensor) -> State:
        return (torch.zeros_like(p, requires_grad=False),)

    @torch.no_grad()
    def update_(self, p: Tensor, g: Tensor, state: State, lr: Tensor, t: Tensor) -> None:
        """`lr` has one value a model: the leading dimensions of `p`; `t` counts the steps before this one."""
        (v,) = state
        if _fused(p, g, v):
            size = p.numel() // lr.numel()
            grid = lr.numel(), triton.cdiv(size, _BLOCK)
            with torch.cuda.device(p.device):
                _sgd[grid](p, g, v, lr.contiguous(), size, momentum=self.momentum, BLOCK=_BLOCK)
            return
        rate = _like(lr, p)
        v.mul_(self.momentum).add_(g)
        p.addcmul_(g, rate, value=-1).addcmul_(v, rate, value=-self.momentum)


@dataclass(frozen=True)
class Adam:
    """`torch.optim.Adam` with its defaults, or `torch.optim.AdamW` with a weight decay."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float | Tensor = 0.0  # a tensor, shaped like the parameter, where models differ in it

    def state(self, p: Tensor) -> State:
        return torch.zeros_like(p, requires_grad=False), torch.zeros_like(p, requires_grad=False)

    @torch.no_grad()
    def update_(self, p: Tensor, g: Tensor, state: State, lr: Tensor | float, t: Tensor | int) -> None:
        """As for SGD; a rate that is a number is that of all models, and `t` is then a number too."""
        m, v = state
        if not isinstance(lr, Tensor):
            t = int(t)
            first, root = 1 - self.beta1 ** (t + 1), (1 - self.beta2 ** (t + 1)) ** 0.5
            if isinstance(self.decay, Tensor):
                p.addcmul_(p, self.decay, value=-lr)
            elif self.decay:
                p.mul_(1 - lr * self.decay)
            m.lerp_(g, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            p.addcdiv_(m, v.sqrt().add_(self.eps * root), value=-lr * root / first)
            return
        assert isinstance(t, Tensor)
        assert not isinstance(self.decay, Tensor)
        steps = (t + 1).double()
        first, second = 1 - self.beta1**steps, 1 - self.beta2**steps
        if _fused(p, g, m, v):
            size = p.numel() // lr.numel()
            grid = lr.numel(), triton.cdiv(size, _BLOCK)
            rate, root, keep = (lr / first).contiguous(), second.rsqrt(), (1 - lr * self.decay).contiguous()
            betas = {"beta1": self.beta1, "beta2": self.beta2}
            with torch.cuda.device(p.device):
                _adam[grid](p, g, m, v, rate, root, keep, size, **betas, eps=self.eps, BLOCK=_BLOCK)
            return
        if self.decay:
            p.mul_(_like(1 - lr * self.decay, p))
        m.lerp_(g, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        denominator = v.sqrt().mul_(second.rsqrt().to(p.dtype)).add_(self.eps)
        p.addcdiv_(m * _like(lr / first, p), denominator, value=-1)


def cosine(done: float) -> float:
    """The learning rate over its base when this share of training is done: half a cosine from 1 to 0."""
    return half_cosine(min(done, 1.0))


OPTIMIZERS = {"sgd": SGD, "adam": Adam}


if triton is not None:

    @triton.jit
    def _sgd(p, g, v, lr, size, momentum: tl.constexpr, BLOCK: tl.constexpr):
        model = tl.program_id(0).to(tl.int64)
        offset = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        at, mask = model * size + offset, offset < size
        gradient = tl.load(g + at, mask=mask)
        speed = tl.load(v + at, mask=mask) * momentum + gradient
        rate = tl.load(lr + model).to(gradient.dtype)
        tl.store(v + at, speed, mask=mask)
        tl.store(p + at, tl.load(p + at, mask=mask) - rate * (gradient + momentum * speed), mask=mask)

    @triton.jit
    def _adam(
        p, g, m, v, lr, root, keep, size,
        beta1: tl.constexpr, beta2: tl.constexpr, eps: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        model = tl.program_id(0).to(tl.int64)
        offset = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        at, mask = model * size + offset, offset < size
        gradient = tl.load(g + at, mask=mask)
        mean = tl.load(m + at, mask=mask)
        mean += (gradient - mean) * (1 - beta1)
        square = tl.load(v + at, mask=mask) * beta2 + gradient * gradient * (1 - beta2)
        rate = tl.load(lr + model).to(gradient.dtype)
        tl.store(m + at, mean, mask=mask)
        tl.store(v + at, square, mask=mask)
        step = rate * mean / (tl.sqrt(square) * tl.load(root).to(gradient.dtype) + eps)
        kept = tl.load(p + at, mask=mask) * tl.load(keep + model).to(gradient.dtype)
        tl.store(p + at, kept - step, mask=mask)
