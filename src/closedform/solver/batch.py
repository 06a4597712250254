"""A batch as it came, and the system that it states.

`Batch` holds features and targets and states its system against a layer: few rows stay rows, many become moments, piece by
piece, so that float64 copies never grow with the batch. A loss other than the squared one is replaced by its quadratic bound
(see `closedform.losses`): its working targets are fitted, and half its curvature is a sample weight.

Everything may have a leading model axis: features `(M, n, d)`, targets `(M, n, o)`, layers `(M, o, D)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .. import distributed
from . import lines, route
from .losses import GeneralizedSquared, Loss, Squared
from .systems import ClassRows, Moments, Rows, System

_ARRAYS = 6  # of the size of the outputs, there at once while residuals are made: the softmax, its gradient, ...
_FEW = 1 << 16  # numbers, up to which calls cost more than a pass over the memory


@dataclass
class Batch:
    """Features `phi (..., n, d)`, targets `y (..., n, o)` and sample weights `(..., n)`; with `bias` the features get a
    column of ones.

    sizes: the rows on every rank where the batch is spread over `group`.
    residual: what the layer as it is leaves over, `y - phi W^T`, where the caller has it already.
    exact: whether the layer asks for all of float64's digits; see `route.precision`.
    later: whether it is known beforehand that this is not the first batch, so that nothing has to be set up.
    """

    phi: Tensor
    y: Tensor
    weight: Tensor | None = None
    bias: bool = True
    loss: Loss = field(default_factory=Squared)
    group: distributed.ProcessGroup = False
    sizes: list[int] | None = None
    residual: Tensor | None = None
    exact: bool = True
    later: bool = False
    _gathered: Batch | None = None
    _counted: int | Tensor | None = None

    @property
    def features(self) -> int:
        """D, the number of features with the bias counted in."""
        return self.phi.shape[-1] + int(self.bias)

    @property
    def total(self) -> int:
        """N, the number of rows on all ranks."""
        return self.phi.shape[-2] if self.sizes is None else sum(self.sizes)

    @property
    def inner_steps(self) -> int:
        """How many systems are solved one after the other, each but the first made by `refined`."""
        return self.loss.inner_steps

    def system(self, W: Tensor | None, dtype: torch.dtype | None = None) -> System:
        """The system of the residuals against the layer `W (..., o, D)` (None: zeros), by rows where they are few."""
        dtype = route.precision(self.phi.device) if dtype is None else dtype
        if self._by_rows:
            return self.whole._rows(W, 0, self.total, None, dtype)
        return self.moments(W, dtype)

    def systems(self, W: Tensor, layers: Tensor) -> System:
        """The system against each of several layers `(K, o, D)`, of which `W` is a mean. Of many rows under the squared loss
        its residuals say it all: those of the layers differ by products with moments, and as few of them are much better
        than their mean, nothing cancels."""
        if self._by_rows or not self.squared or not route.residuals_once(self.total):
            return self.system(layers)
        moments = self.moments(W).moved(layers - W)
        if self.sizes is None:
            moments.rows = lambda: self._rows(layers, 0, self.phi.shape[-2], None, moments.dtype)
        return moments

    def refined(self, W: Tensor | None, W_k: Tensor, system: System) -> System:
        """The system once more, with the loss bounded at the layer `W_k` instead of at `W`: the residuals are new, the
        features are not."""
        if isinstance(system, Rows):
            return self.whole._rows(W, 0, self.total, W_k, system.dtype)
        C = None
        for part in self._pieces(W, system.dtype, W_k):
            C = _added(C, part.wide[..., : self.features].mT, part.E)
        assert C is not None
        if self.sizes is not None:
            C = distributed.add_up(C, self.group)
        rows = None if system.rows is None else lambda: self._rows(W, 0, self.phi.shape[-2], W_k, system.dtype)
        return replace(system, C=C, rows=rows)

    @property
    def squared(self) -> bool:
        """Whether the loss is solved exactly, not through a quadratic bound."""
        return isinstance(self.loss, (Squared, GeneralizedSquared))

    @property
    def numbers(self) -> bool:
        """Whether targets are fitted as numbers, not as yes and no."""
        return self.loss.numbers

    def errors(self, W: Tensor, system: System) -> Tensor:
        """The mean loss of several layers `W (K, o, D)`, `(K,)`; `system` is stated against them."""
        if self.squared:
            return system.ee.mean(-1) / system.n
        whole = self.whole if isinstance(system, Rows) else self
        total = sum(whole._loss(W, low, high) for low, high in whole.bounds())
        assert isinstance(total, Tensor)
        if self.sizes is not None and whole is self:
            total = distributed.add_up(total, self.group)
        return total / system.n

    def _loss(self, W: Tensor, low: int, high: int) -> Tensor:
        X = extend(self.phi[low:high], self.bias)[:, : self.features]
        z = X @ W.to(X.dtype).mT
        value = self.loss.value(z, self.y[low:high].to(X.dtype).expand_as(z)).to(X.dtype)
        value = value.mean(-1) if value.ndim == z.ndim else value  # one a sample, or one an output
        return (value if self.weight is None else value * self.weight[low:high].to(X.dtype)).sum(-1)

    @property
    def counted(self) -> int | Tensor:
        """How many rows count, on all ranks: not those that the loss or the weights leave out. Added up once."""
        if self._counted is None:
            self._counted = self._count()
        return self._counted

    def _count(self) -> int | Tensor:
        ranks = self.sizes is not None
        mass = None if type(self.loss).mass is Loss.mass else self.loss.mass(self.y)
        if self.weight is None and (type(self.loss).mass is Loss.mass if ranks else mass is None):
            return self.total
        counts = self.phi.new_ones(self.phi.shape[-2], dtype=route.precision(self.phi.device))
        for one in (self.weight, mass):
            counts = counts if one is None else counts * (one > 0)
        return distributed.add_up(counts.sum(), self.group) if ranks else counts.sum()

    @property
    def slack(self) -> float | Tensor:
        """How much longer than that of its quadratic bound a step may be."""
        return lines.slack(self.loss, self.y.shape[-1], self.counted, self.features)

    @property
    def stretches(self) -> bool:
        """Whether a step may be longer than that at all, by what is known without a look at the numbers."""
        return lines.slack(self.loss, self.y.shape[-1], self.total, self.features) > 1  # pyright: ignore[reportReturnType]

    @property
    def guess(self) -> float:
        """The mean loss of a layer of zeros, where the evidence says how strongly weights are drawn to zero; else 0."""
        few = self.inner_steps == 1 and lines.whole_slack(self.loss, self.y.shape[-1]) == 1
        return self.loss.guess(self.y.shape[-1]) if few and not self.numbers else 0.0

    @property
    def freedom(self) -> int:
        """How many parameters the outputs have for every feature."""
        return self.loss.freedom(self.y.shape[-1])

    def length(self, W: Tensor, dW: Tensor, system: System, C: Tensor) -> Tensor:
        """How far several layers `W (K, o, D)` go along their steps `dW`, `(K,)`; `system` is stated against W, and C is its
        right-hand side."""
        return lines.length(lines.Line(self, W, dW, system, C))

    def along(self, W: Tensor, dW: Tensor, low: int, high: int) -> lines.Along:
        """These rows along the steps `dW` of several layers."""
        X = extend(self.phi[low:high], self.bias)[:, : self.features]
        y = self.y[low:high]
        weight, mass = (None if one is None else one.to(X.dtype) for one in (self.weight, self.loss.mass(y)))
        return lines.Along(
            outputs(X, W), outputs(X, dW), y.to(X.dtype), None if weight is None else weight[low:high], mass
        )

    @property
    def _by_rows(self) -> bool:
        return route.by_rows(self.total, self.features, self.exact) or isinstance(self.loss, GeneralizedSquared)

    @property
    def whole(self) -> Batch:
        """The rows of all ranks, exchanged once."""
        if self.sizes is None:
            return self
        if self._gathered is not None:
            return self._gathered
        # in one dtype, whatever each rank has
        dtype, sizes = route.precision(self.phi.device), self.sizes
        gather = lambda tensor: distributed.gather_rows(tensor.to(dtype), sizes, self.group)  # noqa: E731
        weight = None if self.weight is None else gather(self.weight)
        self._gathered = Batch(gather(self.phi), gather(self.y), weight, self.bias, self.loss)
        return self._gathered

    def _rows(self, W: Tensor | None, low: int, high: int, W_k: Tensor | None, dtype: torch.dtype) -> Rows:
        phi, y = self.phi, self.y
        if high - low < phi.shape[-2]:  # a view of all rows would cost as much as a small product
            phi, y = phi[..., low:high, :], y[..., low:high, :]
        padded = extend(phi, self.bias, dtype)
        X = padded if padded.shape[-1] == self.features else padded[..., : self.features]
        blocks = self._in_blocks(X, y, W)
        if self.residual is not None and W is not None and W_k is None:
            E = self.residual[..., low:high, :].to(dtype)
        elif blocks:
            E = self._residuals(X, y, W, W if W_k is None else W_k)
        else:
            E = self._residual(X, y.to(dtype), W, W if W_k is None else W_k)
        count, weight = high - low, None
        if self.weight is not None:
            weight = self.weight[..., low:high].to(dtype)
        mass = self.loss.mass(y)
        if mass is not None:
            weight = mass.to(dtype) if weight is None else weight * mass.to(dtype)
        if weight is not None:
            count = weight.sum(-1)
        if isinstance(self.loss, GeneralizedSquared):
            root = 1.0 if weight is None else weight.sqrt()[:, None]
            return ClassRows(root * X, root * E, count, self.bias, None, y.argmax(1), self.loss.constant_k)
        bound = self.loss.curvature / 2
        if weight is None and bound == 1:
            return Rows(X, E, count, self.bias, padded)
        root = bound**0.5 if weight is None else (bound * weight).sqrt().unsqueeze(-1)
        own = blocks and self.residual is None  # nobody else has these residuals
        padded = root * padded
        X = padded if padded.shape[-1] == self.features else padded[..., : self.features]
        return Rows(X, E.mul_(root) if own else root * E, count, self.bias, padded)

    def _in_blocks(self, X: Tensor, y: Tensor, W: Tensor | None) -> bool:
        """Whether the residuals are so large that they are made some rows at a time."""
        grad = y.requires_grad or X.requires_grad or (W is not None and W.requires_grad)
        if torch.compiler.is_compiling() or grad or y.ndim > 2:
            return False
        return y.shape[0] > route.block(y.shape[1], y.device, _ARRAYS)

    def _residuals(self, X: Tensor, y: Tensor, W: Tensor | None, W_k: Tensor | None) -> Tensor:
        """`_residual` some rows at a time, so that nothing but the result has the size of all outputs."""
        rows = route.block(y.shape[1], y.device, _ARRAYS)
        E = X.new_empty(*(() if W is None else W.shape[:-2]), *y.shape)
        for low in range(0, y.shape[0], rows):
            part = slice(low, low + rows)
            E[..., part, :] = self._residual(X[part], y[part].to(X.dtype), W, W_k)
        return E

    def _residual(self, X: Tensor, y: Tensor, W: Tensor | None, W_k: Tensor | None) -> Tensor:
        """What is left to fit at W of the working targets at W_k."""
        if isinstance(self.loss, (Squared, GeneralizedSquared)):
            t = y if isinstance(self.loss, Squared) else self.loss.m * y
            return t if W is None else t - outputs(X, W)
        z = None if W is None else outputs(X, W)
        z_k = z if W_k is W else None if W_k is None else outputs(X, W_k)
        t = self.loss.working_target(torch.zeros_like(y) if z_k is None else z_k, y)
        return t if z is None else t - z

    def bounds(self) -> list[tuple[int, int]]:
        """The rows that are upcast together."""
        n = self.phi.shape[-2]
        if torch.compiler.is_compiling():  # a loop over pieces would be unrolled for every new n
            return [(0, n)]
        return [(low, min(low + self._piece, n)) for low in range(0, max(n, 1), self._piece)]

    def _pieces(self, W: Tensor | None, dtype: torch.dtype, W_k: Tensor | None = None) -> Iterator[Rows]:
        for low, high in self.bounds():
            yield self._rows(W, low, high, W_k, dtype)

    def moments(self, W: Tensor | None, dtype: torch.dtype | None = None) -> Moments:
        """The moments of the residuals against `W`, however few rows there are."""
        dtype = route.precision(self.phi.device) if dtype is None else dtype
        total = None
        for part in self._parts(W, dtype):
            if total is None:
                total = part.moments()
            else:
                total.rows = None
                total.squares, total.n = total.ee + part.ee, total.n + part.n
                if isinstance(part, Rows):
                    total.G += part.gram()
                    total.C = _added(total.C, part.X.mT, part.E)
                else:
                    total.G += part.G
                    total.C += part.C
        assert total is not None
        if self.sizes is None:
            total.rows = lambda: self._rows(W, 0, self.phi.shape[-2], None, dtype)
            return total
        return reduced(total, self.group)

    def _parts(self, W: Tensor | None, dtype: torch.dtype) -> Iterator[System]:
        n = self.phi.shape[-2]
        if self.weight is None or self.residual is None or n > self._piece:
            yield from self._pieces(W, dtype)
            return
        # the residuals are there: weights need no root
        X, E = extend(self.phi, self.bias, dtype), self.residual.to(dtype)
        weight = self.weight.to(dtype)
        XT = (X * weight.unsqueeze(-1)).mT
        squares = lambda: (weight.unsqueeze(-1) * E.square()).sum(-2)  # noqa: E731
        yield Moments(XT @ X, XT @ E, squares, weight.sum(-1), self.bias)

    @property
    def _piece(self) -> int:
        models = math.prod(self.phi.shape[:-2])
        rows = route.piece(models, self.features, self.phi.device)
        return rows if models > 1 else min(rows, route.block(self.y.shape[-1], self.phi.device))


def _added(total: Tensor | None, XT: Tensor, E: Tensor) -> Tensor:
    """`total + XT E`, in place where that is possible: for many outputs every copy counts."""
    if total is None or total.ndim > 2 or total.requires_grad or E.requires_grad or XT.requires_grad:
        return XT @ E if total is None else total + XT @ E
    return total.addmm_(XT, E)


def outputs(X: Tensor, W: Tensor) -> Tensor:
    """`X W^T` in the dtype of X. Several layers `(K, o, D)` on features that they share, `(n, D)`, are one product, which
    reads the features once; where there are more outputs than features, their order in memory counts for more."""
    W = W.to(X.dtype)
    if X.ndim != 2 or W.ndim != 3 or W.shape[:2].numel() > X.shape[1]:
        return X @ W.mT
    return (X @ W.flatten(0, 1).mT).unflatten(1, W.shape[:2]).transpose(0, 1)


def extend(phi: Tensor, bias: bool, dtype: torch.dtype | None = None) -> Tensor:
    """The rows in the solver's dtype, with a 1 at the end of each for the bias; then zeros up to a multiple of eight where
    that makes products faster. Rows that are stored feature by feature stay so."""
    *lead, n, d = phi.shape
    dtype = route.precision(phi.device) if dtype is None else dtype
    if phi.requires_grad or torch.compiler.is_compiling():
        return torch.nn.functional.pad(phi.to(dtype), (0, 1), value=1.0) if bias else phi.to(dtype)
    if not bias and phi.dtype == dtype and (lead or phi.device.type == "cpu"):
        return phi
    D = d + int(bias)
    transposed = d > 1 and phi.stride(-1) != 1
    if phi.device.type == "cpu" and not (lead or transposed) and phi.numel() < _FEW:  # two passes, but fewer calls
        return torch.nn.functional.pad(phi.to(dtype), (0, 1), value=1.0) if bias else phi.to(dtype)
    width = D if lead or phi.device.type == "cpu" else -(-D // 8) * 8
    X = torch.empty(*lead, *((width, n) if transposed else (n, width)), dtype=dtype, device=phi.device)
    X = X.mT if transposed else X
    X[..., :d] = phi
    if bias:
        X[..., d] = 1
    if width > D:
        X[..., D:] = 0
    return X


def reduced(moments: Moments, group: distributed.ProcessGroup) -> Moments:
    """The moments of all ranks together, in one exchange."""
    count = torch.as_tensor(moments.n, dtype=moments.dtype, device=moments.G.device).reshape(1)
    parts = [moments.G, moments.C, moments.ee, count]
    total = distributed.add_up(torch.cat([part.reshape(-1) for part in parts]), group)
    G, C, ee, n = (sums.view(part.shape) for sums, part in zip(total.split([p.numel() for p in parts]), parts))
    return Moments(G, C, ee, n[0], moments.bias)


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
    if route.may_branch(phi):
        for name, tensor in (("phi", phi), ("y", y), ("sample_weight", weight)):
            # a finite sum has finite terms, and takes no memory to find; whole numbers are finite
            if tensor is None or not tensor.is_floating_point() or math.isfinite(tensor.sum()):
                continue
            bad = (~torch.isfinite(tensor.reshape(phi.shape[0], -1))).any(1).nonzero()
            if len(bad):
                raise ValueError(f"{name} has NaN or infinite values (first in row {int(bad[0])} of {phi.shape[0]})")
        if weight is not None and bool((weight < 0).any()):
            raise ValueError(f"sample_weight must not be negative, got {float(weight.min())}")
        if weight is not None and not bool((weight > 0).any()):
            raise ValueError("no samples: every sample_weight is zero")
    return phi, y, weight
