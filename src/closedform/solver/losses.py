"""What the last layer minimises.

The squared loss is solved exactly. Any other loss of *bounded curvature* is solved through a quadratic upper bound, with the
same factorisation. Write f for the loss of one sample as a function of its outputs z, and c for a bound on the largest
eigenvalue of its second derivative. Then, at any z_k and with g = f'(z_k)::

    f(z) <= f(z_k) + <g, z - z_k> + (c/2) |z - z_k|^2 = (c/2) |t - z|^2 + const,     t = z_k - g / c

so `t`, the *working target*, takes the place of the targets, and c/2 is one more sample weight. Repeating it (`inner_steps`)
with the same factor never increases the regularised loss, and converges to its minimiser where f is convex.

A loss of your own needs its value, the gradient of that and a bound (and `labels = True`, if it is one of classes)::

    @dataclass(frozen=True)
    class LogCosh(losses.Loss):
        inner_steps: int = 5
        curvature = 1.0

        def value(self, z, y):
            r = (z - y).abs()
            return r + F.softplus(-2 * r) - math.log(2)

        def gradient(self, z, y):
            return torch.tanh(z - y)

>>> loss = CrossEntropy()
>>> z, y = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]])
>>> loss.working_target(z, y)               # z - (softmax(z) - y) / (1/2)
tensor([[ 1., -1.]])
>>> loss(z, torch.tensor([0]))              # integer labels too: F.cross_entropy
tensor(0.6931)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from .route import may_branch


class Loss(ABC):
    """A loss of bounded curvature. The instances are immutable.

    curvature: c, at least the largest eigenvalue of the second derivative of `value` (of one sample) in its outputs.
    inner_steps: how often the bound is taken anew in one solve.
    numbers: False for a loss that asks which of some classes it is (cross-entropy, `Logistic`): the default rule then has
        other memories and ways, see `closedform.solver.auto`. A loss of your own for classes should say so.
    """

    curvature: float = 2.0
    inner_steps: int = 1
    moments: ClassVar[bool] = False  # whether `X^T X` and `X^T Y` say all there is to know of a batch
    labels: ClassVar[bool] = False  # whether integer class labels stand for their one-hot rows
    numbers: ClassVar[bool] = True  # whether targets are fitted as numbers, not as yes and no

    @abstractmethod
    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """The loss of outputs `z (n, o)`: one value a sample `(n,)`, or one an output `(n, o)` where it is a sum of these.
        What the layer minimises is their sum over the batch."""

    @abstractmethod
    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        """The derivative of `value` in `z`, `(n, o)`."""

    def working_target(self, z: Tensor, y: Tensor) -> Tensor:
        """The targets of the squared loss that bounds this one at `z`, up to the factor c/2 and a constant."""
        gradient = self.gradient(z, y)
        if gradient.shape != z.shape:
            name, shape = type(self).__name__, tuple(gradient.shape)
            raise ValueError(f"{name}.gradient gave shape {shape}; expected that of the outputs, {tuple(z.shape)}")
        return z - gradient / self.curvature

    def slack(self, outputs: int) -> float:
        """How many times longer than that of the loss's bound a step of `Auto` may be where `inner_steps` is 1; at most 16
        is taken. See `closedform.solver.lines`."""
        return 1.0

    def guess(self, outputs: int) -> float:
        """The mean loss of a layer of zeros, where that is known beforehand; else 0. See `closedform.solver.evidence`."""
        return 0.0

    def freedom(self, outputs: int) -> int:
        """How many parameters the outputs have for every feature."""
        return outputs

    def mass(self, y: Tensor) -> Tensor | None:
        """What each row of the targets `(..., n, o)` counts, `(..., n)`, where that is not 1: one more sample weight. The
        `gradient` has it in itself."""
        return None

    def targets(self, y: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The targets as an array of `shape (..., o)`, checked; what does not fit is left for the caller to refuse."""
        whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
        return one_hot(y, shape[-1]) if self.labels and whole and tuple(y.shape) == shape[:-1] else y

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        """The mean of `value`, to train the backbone with; differentiable in `z`."""
        target = self.targets(y, tuple(z.shape))
        if target.shape != z.shape:
            labels = f" or, for class labels, {tuple(z.shape[:-1])} of whole numbers" if self.labels else ""
            raise ValueError(
                f"y must have the outputs' shape {tuple(z.shape)}{labels}; got {tuple(y.shape)}, {y.dtype}"
            )
        return self.value(z, target).mean()

    def check(self) -> None:
        """A `ValueError` if the bound or the number of inner steps is none."""
        _check_steps(self.inner_steps)
        if not isinstance(self.curvature, (int, float)) or not 0 < self.curvature < math.inf:
            raise ValueError(f"the curvature of a loss must be positive and finite, got {self.curvature!r}")


def _float(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dtype of at least float32: a loss in bfloat16 has two digits."""
    dtype = torch.promote_types(torch.promote_types(z.dtype, y.dtype), torch.float32)
    return z.to(dtype), y.to(dtype)


def _check_steps(steps: int) -> None:
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"inner_steps must be a whole number of 1 or more, got {steps!r}")


def _check_smoothing(label_smoothing: float) -> None:
    if not isinstance(label_smoothing, (int, float)) or not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing!r}")


def _valid(y: Tensor, valid: Tensor, expected: str) -> Tensor:
    """`y`; where rows are not valid, a `ValueError` where that is free, else NaN, which the guard of the solve rejects."""
    if may_branch(y):
        if not bool(valid.all()):
            row = int((~valid).reshape(-1).nonzero()[0])
            raise ValueError(f"y must be {expected}; row {row} of {valid.numel()} is not")
        return y
    return torch.where(valid.unsqueeze(-1), y, float("nan"))


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Rows of zeros with a one at each label, in float32. A label that is no class is an error where a look at values is
    free, else a row of NaN."""
    if may_branch(y):
        return _marks(y, classes).float()
    valid = (y >= 0) & (y < classes)
    rows = (y.unsqueeze(-1) == torch.arange(classes, device=y.device)).float()
    return torch.where(valid.unsqueeze(-1), rows, float("nan"))


def _marks(y: Tensor, classes: int) -> Tensor:
    """Rows of zeros with a one at each label, in bytes, where a look at values is free."""
    valid = (y >= 0) & (y < classes)
    if not bool(valid.all()):
        raise ValueError(f"labels must be 0 to {classes - 1}, got {int(y[~valid][0])}")
    return (y.unsqueeze(-1) == torch.arange(classes)).view(torch.uint8)


class _Classes(Loss):
    """A loss of class labels: integers `(...)`, or rows `(..., classes)`."""

    labels = True

    def targets(self, y: Tensor, shape: tuple[int, ...]) -> Tensor:
        if tuple(y.shape) != shape or y.is_complex():
            return super().targets(y, shape)
        return self._rows(y if y.is_floating_point() else y.float())

    def _rows(self, y: Tensor) -> Tensor:
        return y

    @staticmethod
    def _smoothed(y: Tensor, shape: tuple[int, ...], label_smoothing: float) -> Tensor:
        if label_smoothing == 0 or tuple(y.shape) != shape:
            return y
        return y * (1 - label_smoothing) + label_smoothing / shape[-1]


@dataclass(frozen=True)
class Squared(Loss):
    """`|y - z|^2`, summed over samples and outputs (paper eq. 1). Solved exactly."""

    moments = True

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(*_float(z, y), reduction="none")

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return 2 * (z - y)

    def working_target(self, z: Tensor, y: Tensor) -> Tensor:
        return y


@dataclass(frozen=True)
class OneHotSquared(_Classes, Squared):
    """The squared loss on one-hot labels, the paper's classification: integer labels `(...)` or rows `(..., classes)`.

    The predicted class is the largest output. `label_smoothing` s moves the targets to `(1 - s) y + s / classes`.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        _check_smoothing(self.label_smoothing)

    def targets(self, y: Tensor, shape: tuple[int, ...]) -> Tensor:
        return self._smoothed(super().targets(y, shape), shape, self.label_smoothing)


@dataclass(frozen=True)
class GeneralizedSquared(_Classes):
    """`k (z_c - m)^2 + sum_{j != c} z_j^2` for a sample of class c (paper appendix A.3); k = m = 1 is the squared loss on
    one-hot labels.

    Targets are integer labels or one-hot rows. Under `Ridge`, `Proximal` and `Ema` the solve is exact, all classes by one
    shared factor (see `closedform.solver.class_systems`). Under `Kalman` each step is exact for the shared covariance that
    it starts from; what is remembered is one matrix for all classes, which counts each sample with the mean of its weights
    over the classes, `1 + (k - 1) / classes`. (Exactly, every class has a matrix of its own.)
    """

    k: float = 1.0
    m: float = 1.0
    _digits: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("k", "m"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        object.__setattr__(self, "_digits", repr(float(self.k)))

    @property
    def constant_k(self) -> float:
        """k, as a number that torch.compile takes for a constant: the number of steps that a solve takes depends on it. (A
        text is always one; a number of which two were seen is a variable.)"""
        return float(self._digits)

    @property
    def curvature(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 2.0 * max(self.k, 1.0)

    def _rows(self, y: Tensor) -> Tensor:
        return _valid(y, (y.amax(-1) == 1) & (y.abs().sum(-1) == 1), "class labels or one-hot rows")

    def weights(self, y: Tensor) -> Tensor:
        """What each output of each sample counts: `(n, o)`, k for the own class."""
        return 1 + (self.k - 1) * y

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        z, y = _float(z, y)
        return self.weights(y) * F.mse_loss(z, self.m * y, reduction="none")

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return 2 * self.weights(y) * (z - self.m * y)


# Where all of o classes are equally likely the bound of cross-entropy is o / 2 times as steep as the loss. A step may be a
# quarter as many times as long: rows that the network has learned by heart look flatter than new ones are.
CLASSES_A_STEP = 8


@dataclass(frozen=True)
class CrossEntropy(_Classes):
    """`-sum_c w_c y_c log softmax(z)_c`, summed over samples: integer labels, or rows of probabilities (soft labels).

    Its curvature is at most 1/2. With `Auto` one inner step is the best: it goes as far as the loss of the batch goes down
    (among more than eight classes, where a batch has more rows than features), which more steps of the bound do not.

    `label_smoothing` s moves the targets to `(1 - s) y + s / classes`. As in torch, samples with the label `ignore_index`
    do not count, and `weight` has one value a class: a sample counts as much as its class, one with a soft label as much as
    its classes on average. The loss itself is torch's mean.
    """

    inner_steps: int = 1
    label_smoothing: float = 0.0
    ignore_index: int = -100
    weight: Sequence[float] | Tensor | None = None
    curvature = 0.5
    numbers = False
    _on_devices: dict[tuple[torch.device, torch.dtype], Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        _check_steps(self.inner_steps)
        _check_smoothing(self.label_smoothing)
        if not isinstance(self.ignore_index, Integral) or isinstance(self.ignore_index, bool):
            raise ValueError(f"ignore_index must be a whole number, got {self.ignore_index!r}")
        if self.weight is not None:
            weight = tuple(torch.as_tensor(self.weight, dtype=torch.float64, device="cpu").reshape(-1).tolist())
            if not all(0 <= w < math.inf for w in weight) or not any(weight):
                raise ValueError(f"weight must be zero or positive for every class, and not all zero, got {weight}")
            object.__setattr__(self, "weight", weight)  # plain numbers, which can be compared

    def _class_weights(self, device: torch.device, dtype: torch.dtype, classes: int) -> Tensor | None:
        if self.weight is None:
            return None
        if len(self.weight) != classes:
            raise ValueError(f"weight has {len(self.weight)} values, but there are {classes} classes")
        if torch.compiler.is_compiling():
            return torch.tensor(self.weight, dtype=dtype, device=device)
        key = (device, dtype)  # copied once: a copy to a device waits for it
        if key not in self._on_devices:
            self._on_devices[key] = torch.tensor(self.weight, dtype=dtype, device=device)
        return self._on_devices[key]

    def targets(self, y: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Rows that hold the class weights too: the row of an ignored sample is zero."""
        ignored = y == self.ignore_index if self._are_labels(y, shape) else None
        if ignored is not None and may_branch(y):
            if y.numel() and bool(ignored.all()):
                raise ValueError(f"no samples: every label is {self.ignore_index}, which ignore_index leaves out")
            ignored = ignored if bool(ignored.any()) else None
        plain = y if ignored is None else y.masked_fill(ignored, 0)
        if self._are_labels(y, shape) and may_branch(y) and self.weight is None and self.label_smoothing == 0:
            rows = _marks(plain, shape[-1])  # a byte a number: for a vocabulary these rows are large
        else:
            rows = super().targets(plain, shape)
        if tuple(rows.shape) != shape:
            return rows
        rows = self._smoothed(rows, shape, self.label_smoothing)
        weight = self._class_weights(y.device, rows.dtype, shape[-1])
        rows = rows if weight is None else rows * weight
        return rows if ignored is None else rows.masked_fill(ignored.unsqueeze(-1), 0)

    def slack(self, outputs: int) -> float:
        return max(1.0, outputs / CLASSES_A_STEP)

    def guess(self, outputs: int) -> float:
        return math.log(outputs) if self.weight is None else 0.0

    def freedom(self, outputs: int) -> int:
        return outputs - 1  # a shift of all outputs says nothing

    def mass(self, y: Tensor) -> Tensor | None:
        if self.weight is not None:
            return y.sum(-1)
        seen = y.amax(-1) > 0  # a sum of bytes would make a copy in whole numbers of eight
        return None if may_branch(y) and bool(seen.all()) else seen.float()

    def _rows(self, y: Tensor) -> Tensor:
        slack = 1e-2  # of probabilities in bfloat16
        valid = (y.amin(-1) >= 0) & ((y.sum(-1, dtype=torch.float32) - 1).abs() < slack)
        return _valid(y, valid, "class labels or rows of probabilities that add up to 1")

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        if z.ndim != 2:  # torch has the classes in the second dimension
            return self.value(z.reshape(-1, z.shape[-1]), y.reshape(-1, z.shape[-1])).reshape(z.shape[:-1])
        return F.cross_entropy(*_float(z, y), reduction="none")

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return y.sum(-1, keepdim=True) * torch.softmax(z, -1) - y

    def working_target(self, z: Tensor, y: Tensor) -> Tensor:
        if self.weight is None:
            return super().working_target(z, y)
        mass = y.sum(-1, keepdim=True)  # the bound of a sample that counts so much is as many times as steep
        return z - self.gradient(z, y) / (self.curvature * torch.where(mass > 0, mass, 1.0))

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        if not self._are_labels(y, tuple(z.shape)):
            return super().__call__(z, y)
        classes = z.shape[-1]
        valid = ((y >= 0) & (y < classes)) | (y == self.ignore_index)
        if may_branch(y) and not bool(valid.all()):
            raise ValueError(f"labels must be 0 to {classes - 1}, got {int(y[~valid][0])}")
        z = z.reshape(-1, classes).to(torch.promote_types(z.dtype, torch.float32))
        weight = self._class_weights(z.device, z.dtype, classes)
        y = torch.where(valid, y, 0).reshape(-1).long()
        mean = F.cross_entropy(z, y, weight, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing)
        return mean if may_branch(y) else torch.where(valid.all(), mean, float("nan"))

    @staticmethod
    def _are_labels(y: Tensor, shape: tuple[int, ...]) -> bool:
        whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
        return whole and tuple(y.shape) == shape[:-1]


@dataclass(frozen=True)
class Logistic(Loss):
    """`log(1 + exp(z)) - y z` for every output, summed: several labels a sample, each yes (1), no (0) or in between.

    Its curvature is at most 1/4."""

    inner_steps: int = 1
    curvature = 0.25
    numbers = False

    def __post_init__(self) -> None:
        _check_steps(self.inner_steps)

    def targets(self, y: Tensor, shape: tuple[int, ...]) -> Tensor:
        if tuple(y.shape) != shape or y.is_complex():
            return y
        y = y if y.is_floating_point() else y.float()
        return _valid(y, ((y >= 0) & (y <= 1)).all(-1), "0, 1 or in between")

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(*_float(z, y), reduction="none")

    def guess(self, outputs: int) -> float:
        return math.log(2)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(z) - y


@dataclass(frozen=True)
class Huber(Loss):
    """`r^2 / 2` for residuals of at most `delta`, `delta (|r| - delta / 2)` beyond, for every output, summed.

    Its curvature is at most 1. Half of the squared loss where no residual is large."""

    delta: float = 1.0
    inner_steps: int = 1
    curvature = 1.0

    def __post_init__(self) -> None:
        _check_steps(self.inner_steps)
        if not isinstance(self.delta, (int, float)) or self.delta is True or not 0 < self.delta < math.inf:
            raise ValueError(f"delta must be positive and finite, got {self.delta!r}")

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        return F.huber_loss(*_float(z, y), reduction="none", delta=self.delta)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return (z - y).clamp(-self.delta, self.delta)
