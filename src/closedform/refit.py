"""The last layer solved once more, on a whole data set, when training has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from . import distributed
from .features import check_order, features_of
from .solver import class_systems, lambdas, linalg, route, rules
from .solver.batch import Batch, check_batch
from .solver.linalg import Solved
from .solver.statistics import Statistics
from .solver.systems import ClassRows

if TYPE_CHECKING:
    from .head import ClosedFormLinear


@torch.no_grad()
def refit_(
    head: ClosedFormLinear,
    model: nn.Module,
    loader: Iterable,
    beta: lambdas.Lambda | lambdas.per_sample = 0.0,
    inner_steps: int = 50,
) -> ClosedFormLinear:
    """Solve the head once on a whole data set: ridge with `beta` (sum units) in one pass over `loader`.

    After training the head is one step of the backbone behind; this catches it up. `model` makes the features, or is the
    whole model with the head inside. Batches are `(x, y)` or `(x, y, sample_weight)`. The model runs in eval mode, so
    that BatchNorm and Dropout act as they will at prediction; the modes are put back afterwards. With several processes
    each reads its own share and all end with the same layer. The rule's memory is left as it is.

    For the squared loss the pass adds up moments, which squares the condition number of the features: past 1e8 take a `beta`
    above zero. For other losses it keeps the features of the whole set, on the head's device; the loss is then majorised
    `inner_steps` times from the layer as it is, and never increases. `GeneralizedSquared` is solved exactly.
    """
    check_order(head, model)
    lambdas.check(beta, "beta", positive=False)
    if inner_steps < 1:
        raise ValueError(f"inner_steps must be 1 or more, got {inner_steps}")
    device = head.weight.device
    statistics = Statistics(head.in_features, head.out_features, head.bias is not None, device=device)
    kept: list[tuple[Tensor, Tensor, Tensor | None]] = []
    error = None
    try:
        with features_of(model, head) as features:
            for x, y, *weights in loader:
                phi = features(x)
                phi, y = head._arranged(phi, y.to(phi.device))
                y = head.loss.targets(y, (*phi.shape[:-1], head.out_features))
                weight = weights[0].to(phi.device) if weights else None
                if head.loss.moments:
                    statistics.add(phi, y, weight)
                else:
                    kept.append(check_batch(phi, y, weight, head.in_features, head.out_features))
    except ValueError as bad:
        error = str(bad)
    rows = sum(phi.shape[0] for phi, _, _ in kept) if kept else int(error is not None or float(statistics.n) > 0)
    weighted, sizes = any(weight is not None for _, _, weight in kept), None
    if distributed.active(head.process_group):
        sizes, weighted = distributed.agree(rows, error, head.process_group, device, weighted)
    elif error is not None:
        raise ValueError(error)
    if (rows if sizes is None else sum(sizes)) == 0:
        raise ValueError("refit_ saw no samples: the loader is empty")
    if head.loss.moments:
        statistics.all_reduce(head.process_group)
        head.set_weights_(statistics.solve(beta))
        return head
    batch = _joined(kept, head, weighted)
    batch.group, batch.sizes = (False, None) if sizes is None else (head.process_group, sizes)
    system = batch.system(None)
    value = lambdas.resolve(beta, system, torch.zeros((), dtype=torch.long, device=device))
    if isinstance(system, ClassRows):
        W = class_systems.ridge(system, value).update
    else:
        start = head._storage().to(route.precision(device))
        factor = linalg.factor(system, value)
        solution = Solved(start, torch.ones((), dtype=torch.bool, device=device))
        W = rules.majorise(batch, None, system, factor, solution, inner_steps).update
    head.set_weights_(W)
    return head


def _joined(parts: list[tuple[Tensor, Tensor, Tensor | None]], head: ClosedFormLinear, weighted: bool) -> Batch:
    if not parts:  # another process has samples
        phi = head.weight.new_zeros(0, head.in_features)
        parts = [(phi, head.weight.new_zeros(0, head.out_features), None)]
    ones = lambda phi: torch.ones(phi.shape[0], dtype=route.precision(phi.device), device=phi.device)  # noqa: E731
    weight = torch.cat([ones(phi) if w is None else w for phi, _, w in parts]) if weighted else None
    phi, y = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    return Batch(phi, y, weight, head.bias is not None, head.loss)
