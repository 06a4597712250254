"""A linear probe in one line: frozen features, one pass, the whole ridge path, the best beta.

head = cf.probe(backbone, loader)               # leave-one-out chooses among 100 betas
head.path.beta, head.path.scores                # what was chosen, and from what
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import callers
from .features import evaluated
from .head import ClosedFormLinear
from .solver import path, route, rules
from .solver.batch import Batch, check_batch, extend
from .solver.linalg import Factor
from .solver.losses import Loss, OneHotSquared, Squared

# betas by default, from 1e-8 to 1e3 times the mean diagonal of the Gram matrix; fewer where each one takes many steps
COUNT, COUNT_IN_STEPS, LOWEST, HIGHEST = 100, 25, -8, 3
SETTLED = 1e-5  # the change of a layer in a step, as a share of it, that ends the steps
FOLDS = 5  # of the rows, where leaving out one at a time has no closed form


@dataclass(frozen=True)
class ProbePath:
    """What `probe` has chosen from: the betas in sum units, a score for each (the mean loss; less is better), the best."""

    betas: Tensor
    scores: Tensor
    beta: float
    by: str  # "leave-one-out", "validation" or "5 folds"


@torch.no_grad()
def probe(
    backbone: nn.Module,
    loader: Iterable,
    betas: Sequence[float] | Tensor | None = None,
    *,
    validation: Iterable | None = None,
    loss: Loss | None = None,
    bias: bool = True,
    inner_steps: int = 50,
) -> ClosedFormLinear:
    """A head solved on all the features of `loader` by ridge, with the beta that has the best score.

    One pass over the batches `(x, y)` or `(x, y, sample_weight)`, with the backbone in eval mode; then one decomposition of
    the features gives the layers and scores of all betas. The score is the leave-one-out error, exact for the squared loss,
    or the error on the batches of `validation`. `head.path` holds betas, scores and the choice. The features of the whole
    set are kept in memory while it works.

    betas: penalties in sum units, positive; by default 100 from 1e-8 to 1e3 times the mean diagonal of the Gram matrix.
    loss: by default the squared one, or for whole-number targets `OneHotSquared`. For those the intercept is not penalised,
        and layer and choice are those of scikit-learn's `RidgeCV` and `RidgeClassifierCV`. For another one, such as
        `CrossEntropy`, there are 25 betas by default and the bias is penalised with the rest, as in `refit_`. Every beta
        takes up to `inner_steps` steps from the last one's layer. Leave-one-out has no closed form there, so five folds of
        the rows take its place.
    """
    phi, y, weight, loss = _read(backbone, loader, loss)
    o = y.shape[1]
    head = ClosedFormLinear(
        phi.shape[1], o, bias, loss=loss, device=phi.device, dtype=phi.dtype if phi.dtype != torch.float16 else None
    )
    held_out = None if validation is None else _read(backbone, validation, loss, o)[:3]
    if loss.moments:
        whole = path.RidgePath(phi, y, weight, bias)
    else:
        whole = _Majorised(phi, y, weight, bias, loss, inner_steps)
    if len(phi) < FOLDS:
        raise ValueError(f"probe needs {FOLDS} samples or more to choose beta, got {len(phi)}")
    grid = _grid(betas, COUNT if loss.moments else COUNT_IN_STEPS, float(whole.diagonal), phi.device)
    if held_out is not None:
        by = "validation"
        layers = [whole.layer(float(b)) for b in grid] if isinstance(whole, path.RidgePath) else whole.layers(grid)
        scores = torch.stack([value / count for value, count in (_sums(W, *held_out, bias, loss) for W in layers)])
    elif isinstance(whole, path.RidgePath):
        scores, by = whole.leave_one_out(grid), "leave-one-out"
    else:
        scores, by = whole.in_folds(grid), f"{FOLDS} folds"
    best = int(torch.where(scores.isnan(), torch.inf, scores).argmin())
    beta = float(grid[best])
    order = grid.argsort()
    if len(grid) > 2 and best in (int(order[0]), int(order[-1])):
        callers.warn(
            f"the best beta, {beta:.3g}, is the {'smallest' if best == int(order[0]) else 'largest'} of the grid: "
            "try betas= that reach further"
        )
    head.rule = rules.Ridge(beta)
    head.set_weights_(whole.layer(beta) if isinstance(whole, path.RidgePath) else whole.layers(grid[best:])[0])
    head.path = ProbePath(grid.cpu(), scores.cpu(), beta, by)
    return head


def _read(
    backbone: nn.Module, loader: Iterable, loss: Loss | None, outputs: int | None = None
) -> tuple[Tensor, Tensor, Tensor | None, Loss]:
    """The features and targets of a whole loader, checked."""
    device = next((p.device for p in backbone.parameters()), None)
    features, targets, weights = [], [], []
    with evaluated(backbone):
        for x, y, *more in loader:
            phi = backbone(x if device is None else x.to(device))
            features.append(phi)
            targets.append(y.to(phi.device))
            weights.append(more[0].to(phi.device) if more and more[0] is not None else None)
    if not features:
        raise ValueError("probe saw no samples: the loader is empty")
    phi, y = torch.cat(features), torch.cat(targets)
    labels = not (y.is_floating_point() or y.is_complex()) and y.ndim == phi.ndim - 1
    loss = loss or (OneHotSquared() if labels else Squared())
    if labels and loss.labels:
        count = int(y.max()) + 1 if outputs is None else outputs
        y = loss.targets(y, (*phi.shape[:-1], max(count, 2)))
    elif y.ndim == phi.ndim - 1:
        y = y.unsqueeze(-1)
    elif loss.labels:
        y = loss.targets(y, (*phi.shape[:-1], y.shape[-1]))
    weight = None
    if any(part is not None for part in weights):
        ones = [torch.ones(len(f), device=f.device) if w is None else w for f, w in zip(features, weights)]
        weight = torch.cat(ones)
    return *check_batch(phi, y, weight, phi.shape[-1], y.shape[-1]), loss


def _grid(betas: Sequence[float] | Tensor | None, count: int, diagonal: float, device: torch.device) -> Tensor:
    dtype = route.precision(device)
    if betas is None:
        scale = diagonal or 1.0
        return scale * torch.logspace(LOWEST, HIGHEST, count, dtype=dtype, device=device)
    grid = torch.as_tensor(betas, dtype=dtype, device=device).reshape(-1)
    if not len(grid) or not bool(((grid > 0) & (grid < torch.inf)).all()):
        raise ValueError(f"betas must be positive and finite, one or more of them, got {betas!r}")
    return grid


def _sums(W: Tensor, phi: Tensor, y: Tensor, weight: Tensor | None, bias: bool, loss: Loss) -> tuple[Tensor, Tensor]:
    """The loss of a layer summed over samples (for several outputs their mean), and how much the samples count."""
    X = extend(phi, bias)[:, : W.shape[1]]
    value = loss.value(X @ W.T, y.to(X.dtype))
    value = value.mean(-1) if value.ndim == 2 else value
    mass = loss.mass(y)
    count = torch.ones_like(value) if weight is None else weight.to(value.dtype)
    return (count * value).sum(), (count if mass is None else count * mass).sum()


class _Majorised:
    """The layers of a loss that is not squared for any beta, by its quadratic bound."""

    def __init__(self, phi: Tensor, y: Tensor, weight: Tensor | None, bias: bool, loss: Loss, inner_steps: int):
        self.batch, self.steps = Batch(phi, y, weight, bias, loss), inner_steps
        self.moments = self.batch.moments(None)
        self.diagonal = self.moments.diagonal().mean()

    def layers(self, betas: Tensor) -> list[Tensor]:
        """One for every beta: from the largest on, each starts where the last one ended."""
        order = betas.argsort(descending=True)
        layers, W = {}, torch.zeros_like(self.moments.C).T
        for k, factor in zip(order.tolist(), path.factors(self.moments, betas[order])):
            layers[k] = W = self._minimised(factor, W)
        return [layers[k] for k in range(len(betas))]

    def _minimised(self, factor: Factor, W: Tensor) -> Tensor:
        """Steps of the bound from W, with Nesterov's momentum, which starts anew where it points uphill."""
        ahead, t = W, 1.0
        for _ in range(self.steps):
            new = factor(self.batch.refined(None, ahead, self.moments)).update
            change = new - W
            uphill = bool(((ahead - new) * change).sum() > 0)
            t, before = (1 + (1 + 4 * t * t) ** 0.5) / 2, t
            ahead, t = (new, 1.0) if uphill else (new + (before - 1) / t * change, t)
            W = new
            if bool(torch.linalg.vector_norm(change) <= SETTLED * torch.linalg.vector_norm(new)):
                break
        return W

    def in_folds(self, betas: Tensor) -> Tensor:
        """The mean loss of every row by the layer of the other folds: one value a beta."""
        phi, y, weight, bias, loss = (getattr(self.batch, name) for name in ("phi", "y", "weight", "bias", "loss"))
        total, count = torch.zeros_like(betas), torch.zeros_like(betas[0])
        for fold in folds(len(phi)):
            part = lambda tensor, rows: None if tensor is None else tensor[rows.to(tensor.device)]  # noqa: E731
            rest = [part(tensor, ~fold) for tensor in (phi, y, weight)]
            layers = _Majorised(*rest, bias, loss, self.steps).layers(betas)  # type: ignore[arg-type]  # phi and y are there
            held_out = [part(tensor, fold) for tensor in (phi, y, weight)]
            sums = [_sums(W, *held_out, bias, loss) for W in layers]  # type: ignore[arg-type]  # as above
            total += torch.stack([value for value, _ in sums])
            count += sums[0][1]
        return total / count


def folds(n: int) -> list[Tensor]:
    """Masks of the rows of every fold, the same for the same n."""
    number = torch.randperm(n, generator=torch.Generator().manual_seed(0)) % FOLDS
    return [number == k for k in range(FOLDS)]
