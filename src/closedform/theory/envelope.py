"""Propositions 3.1 and 4.1: the gradient of the backbone needs no backpropagation through the solution; the Hessian does.

>>> torch.manual_seed(0)
<torch._C.Generator object at ...>
>>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).double()
>>> x, Y = torch.randn(20, 3, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
>>> envelope_gap(net, x, Y, lam=1.0).gap < 1e-12
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .critical_points import best_layer, checked, loss


@dataclass(frozen=True)
class EnvelopeGap:
    """Two gradients of the backbone's parameters, flattened, and how far apart they are, relative to the first unless
    that is zero."""

    through: Tensor  # of L*(theta), differentiated through W*(theta)
    held: Tensor  # of the batch's squared error with the layer held at W*
    gap: float


def envelope_gap(
    backbone: nn.Module, x: Tensor, Y: Tensor, lam: float, W_t: Tensor | None = None, *, off: Tensor | float = 0.0
) -> EnvelopeGap:
    """Compare the gradient through the solution with the one that holds the layer.

    `W_t=None` is the ridge loss with `beta = lam` (Proposition 3.1), else the proximal loss (Proposition 4.1), where the
    gradient that is held may leave the regulariser out: it does not depend on theta. lam is in sum units. `off` is added to
    the layer in both, to see what a layer loses that is not the minimiser.

    The backbone runs in the mode and the precision that it is in, and its buffers (BatchNorm's statistics) are left as they
    were; the solve is float64. Parameters that the features do not depend on count with a gradient of zero.
    """
    parameters = {name: p for name, p in backbone.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("the backbone has no parameters that require a gradient")
    if not 0 <= lam < float("inf"):
        raise ValueError(f"lam must be zero or positive and finite, got {lam}")
    if Y.ndim != 2:
        raise ValueError(f"Y must be (n, o), got {tuple(Y.shape)}")
    buffers = {name: buffer.clone() for name, buffer in backbone.named_buffers()}
    phi = torch.func.functional_call(backbone, buffers, (x,))
    phi, Y = checked(phi, Y.to(phi.device))
    shape = (Y.shape[1], phi.shape[1])
    origin = phi.new_zeros(shape) if W_t is None else W_t.to(phi)
    if origin.shape != shape:
        raise ValueError(f"W_t must have shape {shape}, got {tuple(origin.shape)}")
    W = origin + best_layer(phi, Y - phi @ origin.T, lam) + off
    squared = (Y - phi @ W.T).square().sum()
    held = (Y - phi @ W.detach().T).square().sum()
    both = [_flat(loss, [*parameters.values()]) for loss in (squared + lam * (W - origin).square().sum(), held)]
    size, gap = float(both[0].norm()), float((both[0] - both[1]).norm())
    return EnvelopeGap(both[0], both[1], gap / size if size > 0 else gap)


def hessians(phi: Tensor, Y: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Second derivatives in the features, `(n d, n d)`: of `L*`, and of the loss with the layer held at `W*`.

    The second is positive semi-definite, always. The first is it less a positive semi-definite matrix (what the layer's
    own movement takes off), so it can be indefinite: at features orthogonal to Y the held Hessian is zero and the true one
    negative. This is the paper's remark that the propositions do not extend to second derivatives.
    """
    phi, Y = checked(phi.detach(), Y, beta)
    W = best_layer(phi, Y, beta)
    return _hessian(lambda p: loss(p, Y, beta), phi), _hessian(lambda p: (Y - p @ W.T).square().sum(), phi)


def _hessian(function: Callable[[Tensor], Tensor], phi: Tensor) -> Tensor:
    H = torch.autograd.functional.hessian(function, phi)
    assert isinstance(H, Tensor)
    return H.reshape(phi.numel(), phi.numel())


def _flat(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """The gradient as one float64 vector."""
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).double().flatten() for p, g in zip(parameters, gradients)]
    )
