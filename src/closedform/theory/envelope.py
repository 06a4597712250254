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

from .critical_points import best_layer, loss


@dataclass(frozen=True)
class EnvelopeGap:
    """Two gradients of the backbone's parameters, flattened, and how far apart they are relative to the first."""

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
    """
    parameters = [p for p in backbone.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the backbone has no parameters that require a gradient")
    phi = backbone(x)
    origin = torch.zeros(Y.shape[1], phi.shape[1], dtype=phi.dtype) if W_t is None else W_t
    W = origin + best_layer(phi, Y - phi @ origin.T, lam) + off
    squared = (Y - phi @ W.T).square().sum()
    through = _flat(torch.autograd.grad(squared + lam * (W - origin).square().sum(), parameters, retain_graph=True))
    held = _flat(torch.autograd.grad((Y - phi @ W.detach().T).square().sum(), parameters))
    return EnvelopeGap(through, held, float((through - held).norm() / through.norm()))


def hessians(phi: Tensor, Y: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Second derivatives in the features, `(n d, n d)`: of `L*`, and of the loss with the layer held at `W*`.

    The second is positive semi-definite, always. The first is it less a positive semi-definite matrix (what the layer's
    own movement takes off), so it can be indefinite: at features orthogonal to Y the held Hessian is zero and the true one
    negative. This is the paper's remark that the propositions do not extend to second derivatives.
    """
    W = best_layer(phi, Y, beta).detach()
    return _hessian(lambda p: loss(p, Y, beta), phi), _hessian(lambda p: (Y - p @ W.T).square().sum(), phi)


def _hessian(function: Callable[[Tensor], Tensor], phi: Tensor) -> Tensor:
    H = torch.autograd.functional.hessian(function, phi)
    assert isinstance(H, Tensor)
    return H.reshape(phi.numel(), phi.numel())


def _flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients])
