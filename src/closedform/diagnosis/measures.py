"""What a diagnosis is made of: sums over the data, the solves that are tried on it, and what both amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..head import ClosedFormLinear
from ..solver import guard, linalg, route
from ..solver.batch import Batch, check_batch, extend
from ..solver.losses import Squared
from ..solver.statistics import Statistics

SOLVES = 64  # that are tried, on the first batches of a loader


def read(batch: object, features: Callable[[Tensor], Tensor], head: nn.Linear) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the head sees of a batch, checked."""
    parts = list(batch) if isinstance(batch, (tuple, list)) else []
    tensors = [isinstance(part, Tensor) for part in parts]
    if tensors not in ([True, True], [True, True, True]) and not (tensors == [True, True, False] and parts[2] is None):
        got = ", ".join(type(part).__name__ for part in parts) or type(batch).__name__
        raise ValueError(f"a batch must be (x, y) or (x, y, sample_weight), all tensors, got {got}")
    phi = features(parts[0])
    weight = parts[2].to(phi.device) if len(parts) == 3 and parts[2] is not None else None
    return checked(head, phi, parts[1].to(phi.device), weight)


def checked(head: nn.Linear, phi: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """A batch with the targets of the squared loss, which all of this is about."""
    if isinstance(head, ClosedFormLinear):
        if not isinstance(head.loss, Squared):
            raise ValueError(f"a diagnosis is about the squared loss; this head has {head.loss}")
        y = head.loss.targets(y, (*phi.shape[:-1], head.out_features))
    return check_batch(phi, y, weight, head.in_features, head.out_features)


@contextmanager
def same_random_numbers(backbone: nn.Module, head: nn.Linear) -> Iterator[None]:
    """A DataLoader draws a seed, and maybe an order, from torch's generator: a look at the run must not change it."""
    tensors = [head.weight, *backbone.parameters()]
    devices = sorted({t.get_device() for t in tensors if t.device.type == "cuda"})
    with torch.random.fork_rng(devices):
        yield


class MeasureSums:
    """Moments of all batches, of features extended by a one whether or not the head has a bias.

    With a bias they are about the first batch's means, of features and targets: sums of squares of numbers far from zero
    would bury their variation in rounding errors."""

    def __init__(self, head: nn.Linear):
        self.head, self.rows, self.eps = head, 0, 0.0
        self.statistics = Statistics(head.in_features, head.out_features, True, device=head.weight.device)
        self.means: tuple[Tensor, Tensor] | None = None

    def add(self, phi: Tensor, y: Tensor, weight: Tensor | None) -> None:
        dtype = route.precision(phi.device)
        if self.rows == 0 and self.head.bias is not None:
            self.means = phi.to(dtype).mean(0), y.to(dtype).mean(0)
        mu, nu = self.means or (0.0, 0.0)
        self.eps = max(self.eps, torch.finfo(phi.dtype).eps)
        self.rows += len(phi) if weight is None else int((weight > 0).sum())
        self.statistics.add(phi.to(dtype) - mu, y.to(dtype) - nu, weight)

    def layer(self, W: Tensor, targets: bool = True) -> Tensor:
        """A layer (or a difference of two, without the targets' shift) as it acts on what is added up here."""
        if self.means is None:
            return W
        d, (mu, nu) = self.head.in_features, self.means
        shift = W[:, :d] @ mu - (nu if targets else 0.0)
        return torch.cat([W[:, :d], (W[:, d] + shift)[:, None]], 1)

    def back(self, matrix: Tensor) -> Tensor:
        """`T^T M`, where the features as they came are `X T` for the X that is added up here."""
        if self.means is None:
            return matrix
        d, (mu, _) = self.head.in_features, self.means
        return torch.cat([matrix[:d] + mu[:, None] * matrix[d:], matrix[d:]])


@dataclass(frozen=True)
class Trial:
    """A solve of the head's rule on one batch, which the head does not take."""

    dW: Tensor  # (o, D)  # noqa: N815
    weight: float  # of its rows together
    gain: float  # what it takes off the squared error of its own rows


class Trials:
    """Solves on the first batches that go by, or on pieces of `size` rows of what goes by."""

    def __init__(self, head: nn.Linear, size: int | None):
        self.head, self.size = head, size
        self.done: list[Trial] = []
        self.waiting: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, phi: Tensor, y: Tensor, weight: Tensor | None) -> None:
        if not isinstance(self.head, ClosedFormLinear) or len(self.done) >= SOLVES:
            return
        if self.size is None:
            self.done.append(_try(self.head, phi, y, weight))
            return
        ones = torch.ones(len(phi), dtype=route.precision(phi.device), device=phi.device)
        weight = ones if weight is None else weight
        self.waiting.append((phi, y, weight))
        while sum(len(part[0]) for part in self.waiting) >= self.size and len(self.done) < SOLVES:
            rows = [torch.cat(parts) for parts in zip(*self.waiting)]
            self.done.append(_try(self.head, *(part[: self.size] for part in rows)))
            phi, y, weight = (part[self.size :] for part in rows)
            self.waiting = [(phi, y, weight)]


def _try(head: ClosedFormLinear, phi: Tensor, y: Tensor, weight: Tensor | None) -> Trial:
    """Rules are pure functions, so the head stays as it is. A solve that would be rejected moves nothing."""
    W = _matrix(head)
    batch = Batch(phi, y, weight, head.bias is not None, head.loss)
    step = head.acting.update(head._storage().to(W.dtype), batch, head._memory(), head.step)
    new = step.W.to(head.weight.dtype).to(W.dtype)
    dW = torch.where(guard.accepted(step.ok, new, step.memory, new.dtype), new - W, torch.zeros_like(W))
    X = extend(phi, head.bias is not None)[:, : head.features]
    E = y.to(X.dtype) - X @ W.T
    taken = (E.square() - (E - X @ dW.T).square()).sum(1)
    if weight is None:
        return Trial(dW, len(phi), float(taken.sum()))
    return Trial(dW, float(weight.sum()), float((weight * taken).sum()))


@dataclass(frozen=True)
class Measured:
    """MeasureSums over all the data that the solves were tried on."""

    rows: int
    weight: float
    w: Tensor  # eigenvalues of the Gram matrix, largest first; zero at rounding level
    mass: Tensor  # squared residual along each
    gain: Tensor  # what the best layer takes off the squared error
    directions: int  # that the features have, however weak: the degrees of freedom of a fit
    error: Tensor  # squared error
    total: Tensor  # what there is to explain: the targets' squares, about their mean where there is a bias
    diagonal: Tensor  # of the Gram matrix
    spread: Tensor  # squares of the features about their means
    eps: float  # of the features as they came
    # of every solve tried: its step along the best one's, what it gains on all the data, and `mass` after it
    solves: list[tuple[float, float, Tensor]]
    trials: list[Trial]


def _matrix(head: nn.Linear) -> Tensor:
    W = head.weight if head.bias is None else torch.cat([head.weight, head.bias[:, None]], 1)
    return W.detach().to(route.precision(W.device))


def by_moments(sums: MeasureSums, trials: list[Trial]) -> Measured:
    head, m = sums.head, sums.statistics.moments
    n, d, bias = float(m.n), head.in_features, head.bias is not None
    D = d + int(bias)
    spread = (m.G.diagonal()[:d] - m.G[d, :d] ** 2 / n).clamp(min=0)
    G, C, W = m.G[:D, :D], m.C[:D], sums.layer(_matrix(head))
    CE = C - G @ W.T
    gram = sums.back(sums.back(G).T)
    w, V = torch.linalg.eigh(gram)
    w, V = w.flip(0), V.flip(1)
    w = torch.where(w > linalg.noise(w[0], D), w, 0.0)

    def mass(CE: Tensor) -> Tensor:
        return torch.where(w > 0, (V.T @ sums.back(CE)).square().sum(1) / w, 0.0)

    # in units in which every feature has the same square, scales and means of features are no condition
    scale = torch.where(G.diagonal() > 0, G.diagonal().rsqrt(), 0.0)
    even = scale[:, None] * G * scale
    rank = int((w > 0).sum())
    solves = []
    for trial in trials:
        dW = sums.layer(trial.dW, targets=False)
        moved = G @ dW.T
        along = float((dW.T * CE).sum())
        solves.append((along, 2 * along - float((dW.T * moved).sum()), mass(CE - moved)))
    return Measured(
        rows=sums.rows,
        weight=n,
        w=w,
        mass=mass(CE),
        gain=_reachable(even, scale[:, None] * CE),
        directions=rank if rank == min(D, sums.rows) else _directions(even),
        error=(m.ee.sum() - (W.T * (C + CE)).sum()).clamp(min=0),
        total=(m.ee - m.C[d] ** 2 / n if bias else m.ee).sum(),
        diagonal=gram.diagonal(),
        spread=spread,
        eps=sums.eps,
        solves=solves,
        trials=trials,
    )


def _reachable(G: Tensor, CE: Tensor) -> Tensor:
    """`tr(CE^T G^+ CE)`, what the best layer takes off the squared error, for a Gram matrix of unit diagonal."""
    shift = linalg.rounding(len(G), G.dtype)  # or no factor would exist where features depend on each other
    L, _ = torch.linalg.cholesky_ex(G.diagonal_scatter(G.diagonal() + shift))
    solved = torch.cholesky_solve(CE, L)
    # it takes a little off weak directions, and a second round gives that back
    solved = solved + torch.cholesky_solve(CE - G @ solved, L)
    return (CE * solved).sum().clamp(min=0)


def _directions(G: Tensor) -> int:
    """The rank of a Gram matrix of unit diagonal."""
    w = torch.linalg.eigvalsh(G)
    return int((w > linalg.noise(w[-1], len(G))).sum())


def by_rows(head: nn.Linear, phi: Tensor, y: Tensor, trials: list[Trial]) -> Measured:
    """The same for no more rows than features: by the Gram matrix of the samples."""
    X = extend(phi, head.bias is not None)[:, : head.in_features + int(head.bias is not None)]
    Y = y.to(X.dtype)
    E = Y - X @ _matrix(head).T
    w, U = torch.linalg.eigh(X @ X.T)
    w, U = w.flip(0), U.flip(1)
    w = torch.where(w > linalg.noise(w[0], max(X.shape)), w, 0.0)
    coefficients = torch.where((w > 0)[:, None], U.T @ E, 0.0)
    solves = []
    for trial in trials:
        moved = torch.where((w > 0)[:, None], U.T @ (X @ trial.dW.T), 0.0)
        solves.append((float((moved * coefficients).sum()), trial.gain, (coefficients - moved).square().sum(1)))
    centred = phi.to(X.dtype) - phi.to(X.dtype).mean(0)
    return Measured(
        rows=len(X),
        weight=len(X),
        w=w,
        mass=coefficients.square().sum(1),
        gain=coefficients.square().sum(),
        directions=int((w > 0).sum()),
        error=E.square().sum(),
        total=(Y if head.bias is None else Y - Y.mean(0)).square().sum(),
        diagonal=X.square().sum(0),
        spread=centred.square().sum(0),
        eps=torch.finfo(phi.dtype).eps,
        solves=solves,
        trials=trials,
    )
