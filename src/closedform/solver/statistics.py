"""Batches and streams of them, as the solver sees them.

`Batch` holds features and targets as they came and makes the linear system of them: few rows stay rows, many become
moments, piece by piece, so that float64 copies never grow with the batch. A loss other than the squared one is replaced by
its quadratic bound (see `closedform.solver.losses`): its working targets are fitted, and half its curvature is a sample weight.

`Statistics` adds batches up to the sufficient statistics of the squared loss, which can be merged, decayed, summed over
processes and solved at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .. import distributed
from . import lambdas, linalg
from .linalg import ClassRows, Moments, Rows, System
from .losses import GeneralizedSquared, Loss, Squared

CHUNK = 8192  # rows upcast at a time on the way to moments


@dataclass
class Batch:
    """Features `phi (n, d)`, targets `y (n, o)` and sample weights `(n,)`; with `bias` the features get a column of ones.

    `sizes` are the rows on every rank where the batch is spread over `group`.
    """

    phi: Tensor
    y: Tensor
    weight: Tensor | None = None
    bias: bool = True
    loss: Loss = field(default_factory=Squared)
    group: distributed.ProcessGroup = False
    sizes: list[int] | None = None
    _gathered: Batch | None = None

    @property
    def features(self) -> int:
        """D, the number of features with the bias counted in."""
        return self.phi.shape[1] + int(self.bias)

    @property
    def total(self) -> int:
        """N, the number of rows on all ranks."""
        return self.phi.shape[0] if self.sizes is None else sum(self.sizes)

    @property
    def inner_steps(self) -> int:
        """How many systems are solved one after the other, each but the first made by `refined`."""
        return self.loss.inner_steps

    def system(self, W: Tensor | None) -> System:
        """The system of the residuals against the layer `W (o, D)` (None: zeros), by rows where they are few."""
        if self._by_rows:
            return self._all._rows(W, 0, self.total)
        return self._moments(W)

    def refined(self, W: Tensor | None, W_k: Tensor, system: System) -> System:
        """The system once more, with the loss bounded at the layer `W_k` instead of at `W`: the residuals are new, the
        features are not."""
        if isinstance(system, Rows):
            return self._all._rows(W, 0, self.total, W_k)
        C = sum((part.wide.T @ part.E)[: self.features] for part in self._pieces(W, W_k))
        assert isinstance(C, Tensor)
        if self.sizes is not None:
            C = distributed.add_up(C, self.group)
        rows = None if system.rows is None else lambda: self._rows(W, 0, self.phi.shape[0], W_k)
        return replace(system, C=C, rows=rows)

    @property
    def _by_rows(self) -> bool:
        return self.total <= self.features or isinstance(self.loss, GeneralizedSquared)

    @property
    def _all(self) -> Batch:
        """The rows of all ranks, exchanged once."""
        if self.sizes is None:
            return self
        if self._gathered is not None:
            return self._gathered
        # in one dtype, whatever each rank has
        dtype, sizes = linalg.solve_dtype(self.phi.device), self.sizes
        gather = lambda tensor: distributed.gather_rows(tensor.to(dtype), sizes, self.group)  # noqa: E731
        weight = None if self.weight is None else gather(self.weight)
        self._gathered = Batch(gather(self.phi), gather(self.y), weight, self.bias, self.loss)
        return self._gathered

    def _rows(self, W: Tensor | None, low: int, high: int, W_k: Tensor | None = None) -> Rows:
        padded = extend(self.phi[low:high], self.bias)
        X = padded[:, : self.features]
        y = self.y[low:high].to(X.dtype)
        E = self._residual(X, y, W, W if W_k is None else W_k)
        count, weight = high - low, None
        if self.weight is not None:
            weight = self.weight[low:high].to(X.dtype)
            count = weight.sum()
        if isinstance(self.loss, GeneralizedSquared):
            root = 1.0 if weight is None else weight.sqrt()[:, None]
            return ClassRows(root * X, root * E, count, self.bias, None, y.argmax(1), self.loss.k)
        bound = self.loss.curvature / 2
        if weight is None and bound == 1:
            return Rows(X, E, count, self.bias, padded)
        root = bound**0.5 if weight is None else (bound * weight).sqrt()[:, None]
        return Rows(root * X, root * E, count, self.bias)

    def _residual(self, X: Tensor, y: Tensor, W: Tensor | None, W_k: Tensor | None) -> Tensor:
        """What is left to fit at W of the working targets at W_k."""
        if isinstance(self.loss, (Squared, GeneralizedSquared)):
            t = y if isinstance(self.loss, Squared) else self.loss.m * y
            return t if W is None else t - X @ W.T
        z = None if W is None else X @ W.T
        z_k = z if W_k is W else None if W_k is None else X @ W_k.T
        t = self.loss.working_target(torch.zeros_like(y) if z_k is None else z_k, y)
        return t if z is None else t - z

    def _pieces(self, W: Tensor | None, W_k: Tensor | None = None) -> Iterator[Rows]:
        n = self.phi.shape[0]
        # compiled, a loop over pieces would be unrolled for every new n
        if torch.compiler.is_compiling():
            pieces = [(0, n)]
        else:
            pieces = [(low, min(low + CHUNK, n)) for low in range(0, max(n, 1), CHUNK)]
        for low, high in pieces:
            yield self._rows(W, low, high, W_k)

    def _moments(self, W: Tensor | None) -> Moments:
        total = None
        for rows in self._pieces(W):
            part = rows.moments()
            if total is None:
                total = part
            else:
                total.G += part.G
                total.C += part.C
                total.ee += part.ee
                total.n = total.n + part.n
        assert total is not None
        if self.sizes is None:
            total.rows = lambda: self._rows(W, 0, self.phi.shape[0])
            return total
        return reduced(total, self.group)


def extend(phi: Tensor, bias: bool) -> Tensor:
    """The rows in the solver's dtype, with a 1 at the end of each for the bias; then zeros up to a multiple of eight where
    that makes products faster."""
    n, d = phi.shape
    dtype = linalg.solve_dtype(phi.device)
    if phi.device.type == "cpu" or phi.requires_grad or torch.compiler.is_compiling():
        return torch.nn.functional.pad(phi.to(dtype), (0, 1), value=1.0) if bias else phi.to(dtype)
    X = torch.empty(n, -(-(d + int(bias)) // 8) * 8, dtype=dtype, device=phi.device)
    X[:, :d] = phi
    if X.shape[1] > d:
        X[:, d:] = 0
    if bias:
        X[:, d] = 1
    return X


def reduced(moments: Moments, group: distributed.ProcessGroup) -> Moments:
    """The moments of all ranks together, in one exchange."""
    D, o = moments.C.shape
    count = torch.as_tensor(moments.n, dtype=moments.dtype, device=moments.G.device).reshape(1)
    packed = torch.cat([moments.G.reshape(-1), moments.C.reshape(-1), moments.ee, count])
    G, C, ee, n = distributed.add_up(packed, group).split([D * D, D * o, o, 1])
    return Moments(G.view(D, D), C.view(D, o), ee, n[0], moments.bias)


class Statistics:
    """Streaming sufficient statistics of a least-squares problem, in float64.

    >>> phi, y = torch.randn(100, 3), torch.randn(100, 2)
    >>> whole, first, second = Statistics(3, 2), Statistics(3, 2), Statistics(3, 2)
    >>> _ = whole.add(phi, y), first.add(phi[:40], y[:40]), second.add(phi[40:], y[40:])
    >>> torch.allclose(first.merge(second).solve(beta=1.0), whole.solve(beta=1.0))
    True
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, device: torch.device | str | None = None
    ):
        if in_features < 1 or out_features < 1:
            raise ValueError(f"statistics need features and outputs, got {in_features} and {out_features}")
        self.bias = bias
        D = in_features + int(bias)
        kind = {"device": device, "dtype": linalg.solve_dtype(torch.device(device or "cpu"))}
        self.moments = Moments(
            torch.zeros(D, D, **kind), torch.zeros(D, out_features, **kind), torch.zeros(out_features, **kind), 0, bias
        )

    @property
    def n(self) -> int | float | Tensor:
        """The number of samples seen, or the sum of their weights."""
        return self.moments.n

    @torch.no_grad()
    def add(self, phi: Tensor, y: Tensor, sample_weight: Tensor | None = None) -> Statistics:
        """Take in a batch."""
        o = self.moments.C.shape[1]
        phi, y, sample_weight = check_batch(phi, y, sample_weight, self.moments.C.shape[0] - int(self.bias), o)
        return self._add(Batch(phi, y, sample_weight, self.bias)._moments(None))

    def merge(self, other: Statistics) -> Statistics:
        """Take in what another one has seen."""
        if other.moments.C.shape != self.moments.C.shape or other.bias != self.bias:
            raise ValueError(
                f"statistics of shapes {tuple(self.moments.C.shape)} (bias={self.bias}) and "
                f"{tuple(other.moments.C.shape)} (bias={other.bias}) cannot be merged"
            )
        return self._add(other.moments)

    def _add(self, part: Moments) -> Statistics:
        m = self.moments
        self.moments = Moments(m.G + part.G, m.C + part.C, m.ee + part.ee, m.n + part.n, self.bias)
        return self

    def decay(self, factor: float) -> Statistics:
        """Forget: multiply everything by `factor`, as if every sample had that weight."""
        if not 0 <= factor < math.inf:
            raise ValueError(f"decay takes a factor that is zero or positive and finite, got {factor}")
        m = self.moments
        self.moments = Moments(m.G * factor, m.C * factor, m.ee * factor, m.n * factor, self.bias)
        return self

    def all_reduce(self, process_group: distributed.ProcessGroup = None) -> Statistics:
        """Sum over the processes of the group; nothing where there is only one."""
        if distributed.active(process_group):
            self.moments = reduced(self.moments, process_group)
        return self

    inner_steps = 1  # the squared loss is its own bound

    def refined(self, W: Tensor | None, W_k: Tensor, system: System) -> System:
        return system

    def system(self, W: Tensor | None) -> Moments:
        """The moments of the residuals against the layer `W`: `X^T (Y - X W^T)`."""
        m = self.moments
        if W is None:
            return m
        C = m.C - m.G @ W.T
        return Moments(m.G, C, m.ee - (W.T * (m.C + C)).sum(0), m.n, self.bias)

    def solve(self, beta: lambdas.Lambda | lambdas.per_sample) -> Tensor:
        """The ridge solution `W (o, D)`, the bias in its last column; beta in sum units. `head.set_weights_` takes it."""
        lambdas.check(beta, "beta", positive=False)
        value = lambdas.resolve(beta, self.moments, torch.zeros((), dtype=torch.long, device=self.moments.G.device))
        return linalg.ridge(self.moments, value).update


def check_batch(
    phi: Tensor, y: Tensor, weight: Tensor | None, in_features: int, out_features: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The batch with leading dimensions flattened, or a `ValueError` that says what is wrong with it."""
    for name, value in (("phi", phi), ("y", y), ("sample_weight", weight)):
        if not isinstance(value, Tensor) and not (value is None and name == "sample_weight"):
            raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")
    if not phi.is_floating_point():
        raise ValueError(f"phi must be floating point, got {phi.dtype}")
    if phi.ndim == 0 or phi.shape[-1] != in_features:
        raise ValueError(f"phi must have {in_features} features in its last dimension, got shape {tuple(phi.shape)}")
    expected = (*phi.shape[:-1], out_features)
    if tuple(y.shape) != expected:
        hint = "; y.unsqueeze(-1) would fit" if (*y.shape, 1) == expected else ""
        if out_features > 1 and tuple(y.shape) in (expected[:-1], (*expected[:-1], 1)):
            hint = f"; class labels are whole numbers of shape {expected[:-1]}, and go with a loss of classes"
        raise ValueError(f"y must have shape {expected} to go with phi {tuple(phi.shape)}, got {tuple(y.shape)}{hint}")
    if y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"y must be real numbers, got {y.dtype}; y.float() may be what you want")
    if phi.device != y.device:
        raise ValueError(f"phi and y must be on one device, got {phi.device} and {y.device}")
    if phi.ndim != 2:
        phi, y = phi.reshape(-1, in_features), y.reshape(-1, out_features)
    if phi.shape[0] == 0:
        raise ValueError(f"no samples: phi has shape {(*expected[:-1], in_features)}")
    if weight is not None:
        if weight.numel() != phi.shape[0] or tuple(weight.shape) != expected[:-1]:
            raise ValueError(f"sample_weight must have shape {expected[:-1]}, got {tuple(weight.shape)}")
        weight = weight.reshape(-1)
    if linalg.may_branch(phi):
        for name, tensor in (("phi", phi), ("y", y), ("sample_weight", weight)):
            # a finite sum has finite terms, and takes no memory to find
            if tensor is None or math.isfinite(tensor.sum()):
                continue
            bad = (~torch.isfinite(tensor.reshape(phi.shape[0], -1))).any(1).nonzero()
            if len(bad):
                raise ValueError(f"{name} has NaN or infinite values (first in row {int(bad[0])} of {phi.shape[0]})")
        if weight is not None and bool((weight < 0).any()):
            raise ValueError(f"sample_weight must not be negative, got {float(weight.min())}")
        if weight is not None and not bool((weight > 0).any()):
            raise ValueError("no samples: every sample_weight is zero")
    return phi, y, weight
