"""One training step of every method in the paper, side by side.

Each function takes the same arguments and does one step of the backbone: `(backbone, head, optimizer, x, y) -> loss`. The
loss is the head's own (see `closedform.solver.losses`), as a mean: over samples and outputs for the squared loss, as torch's
functions have it for the others. So learning rates refer to that mean, while lambda and beta stay in sum units; a constant
factor on the whole objective does not move its minimiser. The returned loss is detached.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from .head import ClosedFormLinear
from .solver import lambdas, rules
from .solver.batch import Batch, extend


def algorithm1(backbone: nn.Module, head: ClosedFormLinear, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Algorithm 1: solve the layer on the batch, then step the backbone on the same batch with the new layer.

    The paper writes it as "step on batch t, then solve on batch t + 1"; the loop is the same, and since a batch's features
    serve both, it takes one forward and one backward. With a `Ridge` or `Ema` head it is the paper's eq. 12 or the
    moving-average baseline.
    """
    phi = backbone(x)
    head.solve(phi, y)
    return _descend(head.loss(head(phi), y), optimizer)


def algorithm2(backbone: nn.Module, head: ClosedFormLinear, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Algorithm 2: step the backbone with the old layer, then solve the layer on the same batch with the new backbone."""
    head._targets_seen = True  # the first forward comes before the first solve
    loss = _descend(head.loss(head(backbone(x)), y), optimizer)
    with torch.no_grad():
        phi = backbone(x)
    head.solve(phi, y)
    return loss


def ridge(backbone: nn.Module, head: ClosedFormLinear, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """The paper's eq. 12: Algorithm 1 with a layer that remembers nothing."""
    _require(head, rules.Ridge)
    return algorithm1(backbone, head, optimizer, x, y)


def ema(backbone: nn.Module, head: ClosedFormLinear, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """The related work's moving average of ridge solutions."""
    _require(head, rules.Ema)
    return algorithm1(backbone, head, optimizer, x, y)


def l2(backbone: nn.Module, head: nn.Linear, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """The squared loss with a learned layer (paper eq. 4); the optimizer holds the head's parameters too."""
    return _descend(F.mse_loss(head(backbone(x)), y), optimizer)


def cross_entropy(backbone: nn.Module, head: nn.Linear, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy with a learned layer; `y` are class indices."""
    return _descend(F.cross_entropy(head(backbone(x)), y), optimizer)


def backpropagate_through(
    backbone: nn.Module, head: ClosedFormLinear, optimizer: Optimizer, x: Tensor, y: Tensor
) -> Tensor:
    """What earlier work did: differentiate the regularised loss through the solution itself (paper eq. 16).

    The gradient is that of `algorithm1` (Propositions 3.1 and 4.1), at several times the cost. Only for `Ridge` and
    `Proximal`, whose layer minimises the loss that is differentiated.
    """
    rule = _require(head, rules.Ridge, rules.Proximal)
    phi = backbone(x)
    outputs = (*phi.shape[:-1], head.out_features)
    targets = head.loss.targets(y, outputs).reshape(-1, head.out_features).double()
    batch = Batch(phi.reshape(-1, phi.shape[-1]), targets, None, head.bias is not None, head.loss)
    if isinstance(rule, rules.Ridge):
        W_t, coefficient = None, rule.beta
    else:
        assert isinstance(rule, rules.Proximal)
        W_t, coefficient = head._storage().double().clone(), rule.lam
    system = batch.system(W_t)
    with torch.no_grad():  # a lambda that depends on the batch is a constant of the loss
        lam = lambdas.resolve(coefficient, system, head.step, head._memory().get("lam"))
    dW = rules.fit(batch, W_t, system, lam).update
    W = dW if W_t is None else W_t + dW
    values = head.loss.value(extend(batch.phi, batch.bias) @ W.T, targets)
    objective = values.sum() + (lam * dW.square()).sum()
    head.solve(phi.detach(), y)
    _descend(objective / values.numel(), optimizer)
    return values.detach().mean()


def _descend(loss: Tensor, optimizer: Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _require(head: ClosedFormLinear, *kinds: type[rules.Rule]) -> rules.Rule:
    if not isinstance(head.rule, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"this step needs a head with the rule {names}, got {head.rule}")
    return head.rule


STEPS: dict[str, Callable[..., Tensor]] = {
    "algorithm1": algorithm1,
    "algorithm2": algorithm2,
    "ridge": ridge,
    "ema": ema,
    "l2": l2,
    "cross_entropy": cross_entropy,
    "backpropagate_through": backpropagate_through,
}
