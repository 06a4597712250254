"""How far a filter goes along its step when its loss is not the squared one.

The quadratic bound of a loss holds everywhere, so it is steep: among 100 classes that are equally likely fifty times as
steep as the loss itself. A filter that takes the bound for the loss is right about the direction of its step, and far too
cautious about its length. So it looks along the step dW: it goes to the minimum over t of

    f(W + t dW) + rho past t^2 / 2        past = 2 <dW, A dW> - own

where f is the loss of the batch as it is, A the matrix of the filter with the batch in it (in halves of the bound's
curvature), `own` the batch's share in that curvature along dW, and rho the ratio of the loss's curvature along dW to that
of the bound, measured between t = 0 and t = 1 on this batch and taken to hold for the earlier ones, which are `past`. As
the bound is one, rho <= 1; it is not taken to be less than the loss says (`Loss.slack`), for rows that the network has
learned by heart have hardly any curvature left. If the loss were quadratic, the minimum would be at t = 1 / rho. If it is
still downhill there, that is the step; else three chords between 1 and 1 / rho come close to where the slope is zero. Where
rows are learned by heart the slope bends, and chords over a long way end beyond the zero: so no way is over `LONGEST`.

All that trusts the batch to say what the loss is like. One with fewer rows than features cannot: whatever the step does on
it, the step was made for it. Steps that were longer there grew the layer without end, and the training fell apart. So such a
batch has the steps of the bound; with more rows it has a power of the slack, and soon the whole, see `TRUSTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .. import distributed
from .route import may_branch
from .systems import Rows, System

if TYPE_CHECKING:
    from .batch import Batch
    from .losses import Loss

CHORDS = 3
LONGEST = 16.0
# rows a feature: up to the first a step is that of the bound, from the second on it has its whole slack
TRUSTED = 1.0, 1.5
_NUMBERS = 2**16  # of the outputs that are looked at together on a CPU, which its cache holds


def whole_slack(loss: Loss, outputs: int) -> float:
    """How many times longer than that of the loss's bound a step may be, by a batch of many rows."""
    return min(max(1.0, loss.slack(outputs)), LONGEST)


def slack(loss: Loss, outputs: int, rows: float | Tensor, features: int) -> float | Tensor:
    """The same by a batch of so many rows that count."""
    few, many = TRUSTED
    trusted = (rows / features - few) / (many - few)
    trusted = trusted.clamp(0, 1) if isinstance(trusted, Tensor) else min(max(trusted, 0), 1)
    return whole_slack(loss, outputs) ** trusted


class Along(NamedTuple):
    """Of some rows the outputs of several layers, what their steps add to them, and the targets."""

    z: Tensor  # (K, n, o)
    dz: Tensor  # (K, n, o)
    y: Tensor  # (n, o)
    weight: Tensor | None  # of the samples
    mass: Tensor | None  # what the loss counts each row by besides

    def split(self) -> Iterator[Along]:
        """Some rows at a time."""
        K, n, o = self.z.shape
        rows = max(1, _NUMBERS // max(K * o, 1))
        if self.z.device.type != "cpu" or torch.compiler.is_compiling() or n <= rows:
            yield self
            return
        for low in range(0, n, rows):
            part = slice(low, low + rows)
            weight, mass = (None if one is None else one[part] for one in (self.weight, self.mass))
            yield Along(self.z[:, part], self.dz[:, part], self.y[part], weight, mass)


class Line:
    """The loss of a batch along `W + t dW` for several layers `(K, o, D)`; `system` is stated against W, and `C (K, D, o)`
    is its right-hand side."""

    def __init__(self, batch: Batch, W: Tensor, dW: Tensor, system: System, C: Tensor):
        whole = batch.whole if isinstance(system, Rows) else batch
        self.batch, self.W, self.dW = whole, W, dW
        self.downhill = 2 * (dW * C.mT).sum((-2, -1))  # minus the slope at 0: C is minus half the gradient
        self.exchange = batch.sizes is not None and whole is batch
        self.parts = whole.bounds()
        self.kept = whole.along(W, dW, *self.parts[0]) if len(self.parts) == 1 else None

    def _sum(self, values: Callable[[Along], Tensor]) -> Tensor:
        """Over all rows, `(K,)`."""
        total = torch.zeros_like(self.W[:, 0, 0])
        for part in self.parts:
            for rows in (self.kept or self.batch.along(self.W, self.dW, *part)).split():
                each = values(rows)
                total = total + (each if rows.weight is None else each * rows.weight).sum(-1)
        return distributed.add_up(total, self.batch.group) if self.exchange else total

    def slope(self, t: Tensor) -> Tensor:
        """The derivative in t, `(K,)`."""
        gradient, t = self.batch.loss.gradient, t[:, None, None]
        return self._sum(lambda rows: (gradient(rows.z + t * rows.dz, rows.y) * rows.dz).sum(-1))

    def bound(self) -> Tensor:
        """The second derivative in t of the loss's quadratic bound, `(K,)`."""

        def squares(rows: Along) -> Tensor:
            each = rows.dz.square().sum(-1)
            return each if rows.mass is None else each * rows.mass

        return self.batch.loss.curvature * self._sum(squares)


def length(line: Line) -> Tensor:
    """t of every layer, `(K,)`, from 1 to the slack of the loss. What is not finite in a line gives no number."""
    slack = line.batch.slack
    one = torch.ones_like(line.W[:, 0, 0])
    whole, own = line.downhill, line.bound()
    near = line.slope(one)
    past = (whole - own).clamp(min=0)
    rho = torch.where(own > 0, ((near + whole) / own).clamp(min=1 / slack).clamp(max=1.0), one)
    slope = lambda t: line.slope(t) + t * rho * past  # noqa: E731
    low, below = one, (near + rho * past).clamp(max=0)  # positive where the loss's bound is none: no further, then
    high = t = 1 / rho
    above = slope(high)
    done = above <= 0
    for chord in range(CHORDS):
        if may_branch(t) and bool(done.all()):
            return high
        t = torch.where(done, high, low - below * (high - low) / (above - below))
        if chord < CHORDS - 1:
            here = slope(t)
            left = (here <= 0) & ~done
            right = (here > 0) & ~done
            low, below = torch.where(left, t, low), torch.where(left, here, below)
            high, above = torch.where(right, t, high), torch.where(right, here, above)
    return t
