"""Streams of batches as the sufficient statistics of the squared loss.

`Statistics` adds batches up; the sums can be merged, subtracted, decayed, summed over processes, saved and solved at any
time.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from .. import archive, distributed
from . import lambdas, linalg, route
from .batch import Batch, check_batch, reduced
from .systems import Moments, System

KIND = "statistics"  # the key of the header of a file, with the version of its form


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
        kind = {"device": device, "dtype": route.precision(torch.device(device or "cpu"))}
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
        return self._add(Batch(phi, y, sample_weight, self.bias).moments(None))

    def merge(self, other: Statistics) -> Statistics:
        """Take in what another one has seen."""
        self._check_like(other)
        return self._add(other.moments)

    def subtract(self, other: Statistics) -> Statistics:
        """Forget what another one has seen, exactly: rows that were added before are as if they had never been there. Only
        rounding stays, of the size of what was there."""
        self._check_like(other)
        if float(other.n) > float(self.n) * (1 + 1e-12):
            raise ValueError(f"statistics of {float(self.n):g} samples cannot forget {float(other.n):g}")
        m = other.moments
        return self._add(Moments(-m.G, -m.C, -m.ee, -m.n, self.bias))

    def _check_like(self, other: Statistics) -> None:
        if other.moments.C.shape != self.moments.C.shape or other.bias != self.bias:
            raise ValueError(
                f"statistics of shapes {tuple(self.moments.C.shape)} (bias={self.bias}) and "
                f"{tuple(other.moments.C.shape)} (bias={other.bias}) do not go together"
            )

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

    def save(self, path: str | Path) -> Path:
        """Write to a file that holds numbers and a checksum, and no code; `Statistics.load` reads it."""
        m = self.moments
        n = torch.as_tensor(m.n, dtype=torch.float64)
        return archive.write(Path(path), {KIND: 1, "bias": self.bias}, {"G": m.G, "C": m.C, "ee": m.ee, "n": n})

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str | None = None) -> Statistics:
        """What `save` wrote; another file is refused with a `ValueError`."""
        header, tensors = archive.read(Path(path))
        if header.get(KIND) != 1 or set(tensors) != {"G", "C", "ee", "n"} or tensors["C"].ndim != 2:
            raise ValueError(f"{path} holds no statistics of this version of closedform")
        bias = bool(header.get("bias"))
        D, o = tensors["C"].shape
        shapes = {"G": (D, D), "C": (D, o), "ee": (o,), "n": ()}
        if D - bias < 1 or o < 1 or any(tuple(tensors[name].shape) != shape for name, shape in shapes.items()):
            raise ValueError(f"{path} holds statistics whose shapes do not go together")
        if not all(t.is_floating_point() and bool(torch.isfinite(t).all()) for t in tensors.values()):
            raise ValueError(f"{path} holds statistics with NaN or infinite values")
        self = cls(D - int(bias), o, bias, device=device)
        kind = {"device": self.moments.G.device, "dtype": self.moments.dtype}
        G, C, ee = (tensors[name].to(**kind) for name in ("G", "C", "ee"))
        n = float(tensors["n"])
        self.moments = Moments(G, C, ee, int(n) if n.is_integer() else n, bias)
        return self

    inner_steps = 1  # the squared loss is its own bound
    squared = True
    numbers = True
    stretches = False
    guess, freedom = 0.0, 0

    @property
    def counted(self) -> int:
        return int(self.moments.n)

    def refined(self, W: Tensor | None, W_k: Tensor, system: System) -> System:
        return system

    def errors(self, W: Tensor, system: System) -> Tensor:
        """The mean squared errors of several layers, `(K,)`."""
        return system.ee.mean(-1) / system.n

    def length(self, W: Tensor, dW: Tensor, system: System, C: Tensor) -> Tensor:
        return torch.ones_like(W[:, 0, 0])

    def system(self, W: Tensor | None, dtype: torch.dtype | None = None) -> Moments:
        """The moments of the residuals against the layer `W`: `X^T (Y - X W^T)`."""
        return self.moments if W is None else self.moments.moved(W)

    def systems(self, W: Tensor, layers: Tensor) -> Moments:
        return self.system(layers)

    def solve(self, beta: lambdas.Lambda | lambdas.per_sample) -> Tensor:
        """The ridge solution `W (o, D)`, the bias in its last column; beta in sum units. `head.set_weights_` takes it."""
        lambdas.check(beta, "beta", positive=False)
        value = lambdas.resolve(beta, self.moments, torch.zeros((), dtype=torch.long, device=self.moments.G.device))
        return linalg.ridge(self.moments, value).update
