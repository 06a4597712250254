"""How strongly the last layer holds on to its past: the values that lambda (and beta) may take.

Units. Every lambda and beta in this package is in the paper's **sum** units: it stands beside a loss (`|y - z|^2`, or what
`closedform.solver.losses` writes for another one) that is summed, not averaged, over the batch. `per_sample(lam)` turns a
per-sample value into these units by multiplying it by the batch size.

A lambda is one of

* a float,
* a tensor of one value a feature (`in_features` of them, or one more for the bias; without that one the bias gets their
  mean),
* a schedule: any function of the step (a 0-dim integer tensor that counts accepted solves from 0) that returns either,
* `relative(ratio)`: relative to the features of the batch,
* `"auto"`: `relative(10)`.

>>> import torch
>>> linear(1.0, 3.0, steps=4)(torch.tensor(2)).item()
2.0
>>> inverse_time(8.0, rate=1.0)(torch.tensor(3)).item()
32.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeVar, Union

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from .systems import System

Schedule = Callable[[Tensor], Union[float, Tensor]]
Lambda = Union[float, Tensor, Schedule, "relative", "SideBySide", Literal["auto"]]

AUTO_RATIO = 10.0
FLOOR = 1e-3  # of the learning rate that a memory follows: a rate of zero must not freeze the layer


@dataclass(frozen=True)
class per_sample:  # noqa: N801 - reads as a function at the call site
    """`lam` for one sample: multiplied by the batch size (by the sum of the sample weights, where there are any)."""

    lam: float | Tensor | Schedule

    def __post_init__(self) -> None:
        if isinstance(self.lam, (str, relative)):
            raise ValueError(f"per_sample takes a number, a tensor or a function of the step, got {self.lam!r}")
        check(self.lam, "per_sample's lambda", positive=False)


@dataclass(frozen=True)
class _Ramp:
    """From `start` to `end` in `steps` steps, then `end`."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a schedule needs at least one step, got steps={self.steps}")

    def _done(self, step: Tensor) -> Tensor:
        return (step.double() / self.steps).clamp(max=1.0)


class linear(_Ramp):  # noqa: N801
    """From `start` to `end` in `steps` steps along a line, then `end`."""

    def __call__(self, step: Tensor) -> Tensor:
        return self.start + (self.end - self.start) * self._done(step)


Share = TypeVar("Share", float, Tensor)


def half_cosine(done: Share) -> Share:
    """From 1 to 0 along half a cosine as `done` goes from 0 to 1.

    >>> half_cosine(0.0), round(half_cosine(0.5), 3), half_cosine(1.0)
    (1.0, 0.5, 0.0)
    """
    cos = torch.cos(math.pi * done) if isinstance(done, Tensor) else math.cos(math.pi * done)
    return 0.5 * (1 + cos)


class cosine(_Ramp):  # noqa: N801
    """From `start` to `end` in `steps` steps along half a cosine, then `end`."""

    def __call__(self, step: Tensor) -> Tensor:
        return self.end + (self.start - self.end) * half_cosine(self._done(step))


@dataclass(frozen=True)
class inverse_time:  # noqa: N801
    """`lam (1 + rate t)`: the step of the layer, about 1 / lambda, falls like 1 / t."""

    lam: float
    rate: float

    def __call__(self, step: Tensor) -> Tensor:
        return self.lam * (1 + self.rate * step.double())


class follow_lr:  # noqa: N801 - reads as a function at the call site
    """A memory that lengthens as the learning rate of `optimizer` falls.

    `follow_lr(opt, lam)` is a lambda: `lam_t = lam lr_0 / lr_t`.
    `follow_lr(opt, forget=gamma)` is a forgetting factor for `Kalman`: `1 - gamma_t = (1 - gamma) min(1, lr_t / lr_0)`.

    `lr_0` is the base rate: what a scheduler noted as `max_lr` or `initial_lr`, else the rate at the time of this call.
    `lr_t` is floored at `floor * lr_0`, so that a rate of zero does not freeze the layer. Compiled or captured, the
    optimizer needs a tensor learning rate (`lr=torch.tensor(0.1)`): a Python number is frozen into a CUDA graph and makes
    `torch.compile` compile anew at every step.
    """

    def __init__(
        self, optimizer: Optimizer, lam: float | None = None, *, forget: float | None = None, floor: float = FLOOR
    ):
        if (lam is None) == (forget is None):
            raise ValueError(f"follow_lr takes either lam or forget, got lam={lam} and forget={forget}")
        if lam is not None:
            check(lam, "follow_lr's lambda")
        if forget is not None:
            check_forget(forget)
        self.optimizer = optimizer  # not its group, which loading a state replaces
        self.lam, self.forget, self.floor = lam, forget, floor
        group = optimizer.param_groups[0]
        self.base = float(group.get("max_lr", group.get("initial_lr", group["lr"])))
        if not self.base > 0:
            raise ValueError(f"follow_lr needs a positive base learning rate, got {self.base}")

    def __call__(self, step: Tensor) -> float | Tensor:
        ratio = self.optimizer.param_groups[0]["lr"] / self.base
        if isinstance(ratio, Tensor):
            ratio = ratio.to(step.device, torch.float64).clamp(min=self.floor)
            capped = ratio.clamp(max=1.0)
        else:
            ratio = max(ratio, self.floor)
            capped = min(ratio, 1.0)
        if self.lam is not None:
            return self.lam / ratio
        assert self.forget is not None
        return 1 - (1 - self.forget) * capped

    def __repr__(self) -> str:
        value = f"lam={self.lam}" if self.forget is None else f"forget={self.forget}"
        return f"follow_lr({type(self.optimizer).__name__}, {value})"

    def __deepcopy__(self, memo: dict) -> follow_lr:
        return self  # a copied head follows the same optimizer; copying that would copy the model again


@dataclass(frozen=True)
class relative:  # noqa: N801
    """Scale-free: `ratio` times the mean diagonal of the batch's Gram matrix, `ratio tr(phi^T phi) / d`, and for the bias
    `ratio` times its own diagonal, the batch size. `"auto"` is `relative(10)`.

    About `ratio` batches are then remembered in the average direction, whatever the scale of the features: multiplying all
    features by s divides the solved weights by s and leaves predictions as they were. For a loss other than the squared one
    the Gram matrix is that of its quadratic bound, with half the curvature as a sample weight, so the units of the loss do
    not matter either.

    ratio: a number, or a function of the step such as `follow_lr(optimizer, 10)`.
    per_feature: every feature by its own diagonal, so that the scale of each one by itself does not matter either. A
        feature that is zero on the whole batch gets the mean.
    """

    ratio: float | Schedule = AUTO_RATIO
    per_feature: bool = False

    def __post_init__(self) -> None:
        if not callable(self.ratio):
            if not isinstance(self.ratio, Real):
                raise ValueError(f"relative's ratio is a number or a function of the step, got {self.ratio!r}")
            check(self.ratio, "relative's ratio")

    def of(self, system: System, step: Tensor) -> Tensor:
        """One value a feature, `(..., D)`."""
        ratio = self.ratio(step) if callable(self.ratio) else self.ratio
        return units(system, self.per_feature) * ratio


def units(system: System, per_feature: bool = False) -> Tensor:
    """What a relative lambda is a multiple of, `(..., D)`."""
    diagonal = system.diagonal()
    d = diagonal.shape[-1] - int(system.bias)
    mean = diagonal[..., :d].mean(-1, keepdim=True)
    mean = torch.where(mean > 0, mean, 1.0)
    if per_feature:
        mean = torch.where(diagonal > 0, diagonal, mean)[..., :d]
    if not system.bias:
        return mean.expand(*mean.shape[:-1], d)
    scale = diagonal.clone()
    scale[..., :d] = mean
    return scale


class SideBySide:
    """The lambdas of a stack of models, one a model: each a number, a vector, `per_sample`, `relative` or "auto", and each
    the same at every step or longer as the learning rate of its model falls.

    rate: the learning rates as shares of their base, `(M,)`, a tensor that the stack writes before a solve.
    """

    def __init__(
        self,
        lams: Sequence[Lambda | per_sample],
        features: int,
        bias: bool,
        *,
        follow: Sequence[bool] | None = None,
        rate: Tensor | None = None,
        device: torch.device | str = "cpu",
    ):
        follow = [False] * len(lams) if follow is None else follow
        base = torch.empty(len(lams), features, dtype=torch.float64)
        kind = torch.zeros(len(lams), 1, dtype=torch.int64)  # 0 a number, 1 relative, 2 relative by feature
        each = torch.zeros(len(lams), 1, dtype=torch.float64)  # 1 where it is times the number of samples
        for row, lam in enumerate(lams):
            lam = relative() if isinstance(lam, str) else lam
            if isinstance(lam, per_sample):
                lam, each[row] = lam.lam, 1.0
            elif isinstance(lam, relative):
                kind[row] = 2 if lam.per_feature else 1
                lam = lam.ratio
            if not isinstance(lam, (int, float, Tensor)):
                raise ValueError(f"a stack takes no function of the step as a lambda (use follow=True), got {lam!r}")
            values = torch.as_tensor(lam, dtype=torch.float64, device="cpu").reshape(-1)
            if len(values) == features - 1 and bias and features > 2:
                values = torch.cat([values, values.mean().reshape(1)])
            if len(values) not in (1, features):
                raise ValueError(
                    f"a vector lambda has one value a feature, got {len(values)} for {features} (with the bias)"
                )
            base[row] = values
        self.base, self.kind, self.each = base.to(device), kind.to(device), each.to(device)
        self.follow = torch.tensor(list(follow), device=device).unsqueeze(1)
        self.rate = rate
        self._follows, self._all_follow, self._relative = any(follow), all(follow), bool((kind > 0).any())
        self._by_feature, self._by_sample = bool((kind == 2).any()), bool(each.any())
        self._plain = bool((kind == 1).all())  # all of them relative to the mean: the usual case, and the quick one
        smallest = float(base.min()) if self._plain else None
        self._trace = None if smallest is None else features / smallest

    def of(self, system: System, step: Tensor) -> Tensor:
        """One value a feature, `(M, D)`."""
        lam = self.base.to(system.dtype)
        if self._follows:
            assert self.rate is not None
            share = self.rate.to(lam.dtype).clamp(min=FLOOR).unsqueeze(1)
            lam = lam / (share if self._all_follow else torch.where(self.follow, share, 1.0))
        if self._plain:
            return units(system) * lam
        if self._by_sample:
            n = system.n.unsqueeze(-1) if isinstance(system.n, Tensor) and system.n.ndim else system.n
            lam = lam * (1 + (n - 1) * self.each.to(lam.dtype))
        if not self._relative:
            return lam
        scale = units(system)
        if self._by_feature:
            scale = torch.where(self.kind == 2, units(system, per_feature=True), scale)
        return torch.where(self.kind > 0, lam * scale, lam)

    def trace_bound(self) -> float | None:
        """A bound on `tr(X^T X) / lam` that is known before the features are seen."""
        if self._trace is None or not self._follows:
            return self._trace
        assert self.rate is not None
        if self.rate.device.type != "cpu":
            return None  # a look at it would wait for the device
        largest = max(FLOOR, float(self.rate.max()))
        return self._trace * (largest if self._all_follow else max(1.0, largest))


def trace_bound(lam: object, features: int) -> float | None:
    """A bound on `tr(X^T X) / lam` for so many features that is known before they are seen, or None."""
    if isinstance(lam, SideBySide):
        return lam.trace_bound()
    lam = relative() if isinstance(lam, str) else lam
    if isinstance(lam, relative) and not callable(lam.ratio) and not lam.per_feature:
        return features / lam.ratio
    return None


def value_at(
    lam: Lambda | per_sample, n: int | float | Tensor, step: Tensor, stored: Tensor | None = None
) -> float | Tensor | None:
    """The value of `lam` at this step for a batch of size `n`: a float or a tensor; None for what the features decide.

    `stored` is a tensor lambda as the head keeps it, on the right device."""
    if isinstance(lam, (str, relative, SideBySide)):
        return None
    scale = None
    if isinstance(lam, per_sample):
        lam, scale = lam.lam, n
    if isinstance(lam, Tensor) and stored is not None:
        lam = stored.reshape(lam.shape)
    elif callable(lam):
        lam = lam(step)
        if not isinstance(lam, (int, float, Tensor)):
            raise ValueError(f"a schedule must return a number or a tensor, got {lam!r}")
    return lam if scale is None else lam * scale


def resolve(lam: Lambda | per_sample, system: System, step: Tensor, stored: Tensor | None = None) -> float | Tensor:
    """`lam` as the system takes it: a float, a 0-dim tensor, or one value a feature (and bias)."""
    value = value_at(lam, system.n, step, stored)
    if value is None:
        return (relative() if isinstance(lam, str) else lam).of(system, step)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, Tensor):
        value = value.to(device=step.device, dtype=system.dtype)
        if value.ndim == 1:
            return _with_bias(value, system)
        if value.ndim != 0:
            raise ValueError(f"a lambda tensor has 0 or 1 dimensions, got shape {tuple(value.shape)}")
    return value


def _with_bias(lam: Tensor, system: System) -> Tensor:
    size = system.diagonal().shape[0]
    if system.bias and lam.shape[0] == size - 1:
        lam = torch.cat([lam, lam.mean().reshape(1)])
    if lam.shape[0] != size:
        expected = f"{size - 1} (features) or {size} (features and bias)" if system.bias else f"{size} (features)"
        raise ValueError(f"a vector lambda has one value a feature: expected {expected}, got {lam.shape[0]}")
    return lam


def check(lam: object, name: str, *, positive: bool = True) -> None:
    """Raise a `ValueError` where `lam` cannot be a lambda (`positive`) or a beta (zero allowed)."""
    if isinstance(lam, per_sample):
        lam = lam.lam
    if isinstance(lam, str):
        if lam != "auto":
            raise ValueError(f'{name} is a number, a tensor, a function of the step or "auto", got "{lam}"')
        return
    if callable(lam) or isinstance(lam, (relative, SideBySide)):
        return
    if isinstance(lam, Tensor):
        if lam.device.type != "cpu":
            return  # a look at the values would wait for the device; the guard of the solve rejects what is wrong
        bad = not bool(torch.isfinite(lam).all()) or not bool((lam > 0).all() if positive else (lam >= 0).all())
        if not bad and not positive and lam.numel() and bool((lam == 0).any()) and lam.ndim > 0:
            raise ValueError(f"{name}: a vector needs positive values, got {lam.tolist()}")
        shown = lam.tolist()
    else:
        if not isinstance(lam, Real):
            raise ValueError(f'{name} is a number, a tensor, a function of the step or "auto", got {lam!r}')
        value = float(lam)
        bad = not math.isfinite(value) or (value <= 0 if positive else value < 0)
        shown = value
    if bad:
        raise ValueError(f"{name} must be {'positive' if positive else 'zero or positive'} and finite, got {shown}")


def check_forget(forget: float | Tensor) -> None:
    """Raise a `ValueError` where `forget` is no forgetting factor."""
    if not isinstance(forget, (int, float, Tensor)) or not 0 < float(forget) <= 1:
        raise ValueError(f"forget must be in (0, 1], got {forget}")
