"""A problem is conditions: points, an operator on the unknown functions there, and what it should give.

An operator is a function of the unknowns and returns a tensor with a row a point (or a single row, for an integral).
Where it is linear, its value on the features is the matrix of a least-squares problem for the weights of the last layer::

    L[phi W^T] = L[phi] W^T
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Union

import torch
from torch import Tensor

from .domains import Sampler
from .fields import Axes, Field, constant
from .jets import features
from .probing import probe

Operator = Callable[..., Tensor]
Target = Union[float, Tensor, Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Condition:
    """What holds at points: `operator(u) = target`.

    points: a sampler `(n, generator) -> (n, D)`, or a tensor of fixed points (measurements, the nodes of an integral).
    operator: a function of the problem's unknowns, in their order, then of its coefficients; each is a `Field`.
    target: a number, a function of the points, or a tensor with a value a row.
    weight: multiplies the balanced rows. Conditions are balanced by the norms of their rows, so 1 is mostly right.
    partner: a map from points to their partners, which the operator sees as `u.partner`.
    linear: whether the operator is linear; where it is not, each solve is a step of Newton's method.
    share: how many points of a sampler to draw, in relation to the other conditions.
    name: how reports and errors call it.
    """

    points: Tensor | Sampler
    operator: Operator
    target: Target = 0.0
    weight: float = 1.0
    partner: Callable[[Tensor], Tensor] | None = None
    linear: bool = True
    share: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        if not all(0 < number < float("inf") for number in (self.weight, self.share)):
            raise ValueError(
                f"a condition needs a weight and a share that are positive and finite, got {self.weight} and {self.share}"
            )


class PointBatch(NamedTuple):
    """The points of one condition, with what the operator should give there: a number, or a value a row `(r, 1)`."""

    x: Tensor
    partner: Tensor | None
    target: float | Tensor

    def to(self, device: torch.device) -> PointBatch:
        partner = None if self.partner is None else self.partner.to(device)
        target = self.target.to(device) if isinstance(self.target, Tensor) else self.target
        return PointBatch(self.x.to(device), partner, target)


@dataclass
class Problem:
    """Conditions on one or several unknown functions.

    unknowns: the names of the functions; the operators take them in this order.
    coefficients: the names of unknown numbers (of an inverse problem), which the operators take after the functions, as
        constant fields. They join the solve, so the operators must be linear in functions and coefficients together.
    """

    conditions: Sequence[Condition]
    unknowns: Sequence[str] = ("u",)
    coefficients: Sequence[str] = ()
    derivatives: list[tuple[list[Axes], list[Axes]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for what in ("unknowns", "coefficients"):
            if isinstance(names := getattr(self, what), str):
                raise ValueError(f"{what} must be a sequence of names, as in ({names!r},), got the text {names!r}")
        if isinstance(self.conditions, Condition):
            raise ValueError("a problem needs a list of conditions, got a single one")
        if not self.conditions or not self.unknowns:
            raise ValueError(
                f"a problem needs conditions and unknowns, got {len(self.conditions)} and {len(self.unknowns)}"
            )
        named = [replace(c, name=c.name or f"condition {k}") for k, c in enumerate(self.conditions)]
        if len({c.name for c in named}) < len(named):
            raise ValueError(f"two conditions have one name: {sorted(c.name for c in named)}")
        self.conditions = named
        batches = self.draw(64, torch.Generator().manual_seed(0))
        dimension = batches[0].x.shape[1]
        for condition, batch in zip(named, batches):
            if batch.x.shape[1] != dimension:
                raise ValueError(
                    f"{condition.name!r} has points of dimension {batch.x.shape[1]}, but those of {named[0].name!r} have "
                    f"dimension {dimension}"
                )
        self.dimension = dimension
        self.derivatives = [probe(self, condition, batch) for condition, batch in zip(named, batches)]

    @property
    def linear(self) -> bool:
        return all(condition.linear for condition in self.conditions)

    @property
    def arguments(self) -> int:
        """How many functions and coefficients the operators take."""
        return len(self.unknowns) + len(self.coefficients)

    # ---- Points ----

    def draw(self, n: int, generator: torch.Generator) -> list[PointBatch]:
        """Points of every condition: `n` of a sampler whose share is 1, all of the fixed ones."""
        return [self._draw(condition, max(1, round(n * condition.share)), generator) for condition in self.conditions]

    def _draw(self, condition: Condition, n: int, generator: torch.Generator) -> PointBatch:
        fixed, target = not callable(condition.points), condition.target
        x = condition.points(n, generator) if callable(condition.points) else condition.points
        x = _numbers(x, f"the points of {condition.name!r}")
        if x.ndim != 2 or len(x) == 0:
            raise ValueError(f"the points of {condition.name!r} must be a tensor (n, D), n > 0, got {tuple(x.shape)}")
        target = target(x) if callable(target) else target
        if getattr(target, "ndim", None) == 0:
            target = float(target)  # pyright: ignore[reportArgumentType]  # a tensor or an array of one number
        if not isinstance(target, (int, float)):
            target = _numbers(target, f"the target of {condition.name!r}")
            if not fixed and not callable(condition.target):
                raise ValueError(
                    f"{condition.name!r} has a sampler, so its target must be a number or a function of the points"
                )
            target = target.reshape(len(target), -1)
        elif not abs(target) < float("inf"):
            raise ValueError(f"the target of {condition.name!r} must be finite, got {target}")
        partner = None
        if condition.partner is not None:
            partner = _numbers(condition.partner(x), f"the partners of {condition.name!r}")
            if partner.shape != x.shape:
                raise ValueError(
                    f"the partners of {condition.name!r} have the shape {tuple(partner.shape)}, its points {tuple(x.shape)}"
                )
        return PointBatch(x, partner, target)

    # ---- Operators ----

    def apply(self, condition: Condition, fields: Sequence[Field]) -> Tensor:
        """The operator on these functions and coefficients."""
        try:
            value = condition.operator(*fields)
        except TypeError as wrong:
            raise ValueError(
                f"the operator of {condition.name!r} fails for {len(self.unknowns)} unknowns and {len(self.coefficients)} "
                f"coefficients: {wrong}"
            ) from wrong
        if not isinstance(value, Tensor) or value.ndim != 2:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"the operator of {condition.name!r} returns {shape}; expected a tensor with a row for each point and a "
                f"column for each feature (coefficients that vary have the shape (n, 1), as u.x[:, :1] has)"
            )
        return value

    # ---- Features, rows and residuals ----

    def features(self, backbone: Callable[[Tensor], Tensor], at: int, batch: PointBatch) -> Field:
        """The features of a condition's points, extended by the constant, with the derivatives that its operator takes."""
        own, partner = self.derivatives[at]
        there = None
        if partner and batch.partner is not None:
            there = features(backbone, batch.partner, derivatives=partner)
        u = features(backbone, batch.x, derivatives=own)
        return Field(u.x, u.table(), there).extended()

    def width(self, features: int) -> int:
        """The number of weights and coefficients to solve for; the constant is one of the features."""
        return len(self.unknowns) * features + len(self.coefficients)

    def guessed_fields(self, at: int, guess: Callable[[Tensor], Tensor], batch: PointBatch) -> list[Field]:
        """Functions that are known by a formula `(n, D) -> (n, unknowns)`, and coefficients that are 1."""
        own, partner = self.derivatives[at]
        here = features(guess, batch.x, derivatives=own)
        there = None
        if partner and batch.partner is not None:
            there = features(guess, batch.partner, derivatives=partner)
        if here.value.shape[1] != len(self.unknowns):
            raise ValueError(
                f"the start has {here.value.shape[1]} columns, but the problem has {len(self.unknowns)} unknowns"
            )
        units = torch.eye(len(self.unknowns), dtype=torch.float64, device=batch.x.device)
        functions = [Field(here.x, here.table(), there).contracted(unit) for unit in units]
        return functions + self.zero(batch)[len(functions) :]

    def solved_fields(self, u: Field, weights: Tensor, batch: PointBatch) -> list[Field]:
        """The unknowns and coefficients that these weights make."""
        o, d = len(self.unknowns), u.value.shape[1]
        blocks = weights[: o * d].reshape(o, d)
        functions = [u.contracted(block) for block in blocks]
        return functions + [constant(batch.x, c, batch.partner) for c in weights[o * d :].unbind()]

    def zero(self, batch: PointBatch) -> list[Field]:
        """Where Newton's method starts: functions that are 0 and coefficients that are 1, as a product of both would have no
        slope at all where both are 0."""
        values = [0.0] * len(self.unknowns) + [1.0] * len(self.coefficients)
        return [constant(batch.x, value, batch.partner) for value in values]

    def unit_fields(self, u: Field, batch: PointBatch) -> list[list[Field]]:
        """For every unknown and coefficient the arguments of an operator where it alone is not zero."""
        units = []
        for k in range(self.arguments):
            arguments = [constant(batch.x, 0.0, batch.partner) for _ in range(self.arguments)]
            arguments[k] = u if k < len(self.unknowns) else constant(batch.x, 1.0, batch.partner)
            units.append(arguments)
        return units

    def rows(self, at: int, u: Field, batch: PointBatch) -> Tensor:
        """The operator of a linear condition on every feature of every unknown, then on the coefficients."""
        condition, d = self.conditions[at], u.value.shape[1]
        blocks = [self.apply(condition, arguments) for arguments in self.unit_fields(u, batch)]
        length = max(len(block) for block in blocks)
        widths = [d] * len(self.unknowns) + [1] * len(self.coefficients)
        return torch.cat([block.expand(length, width) for block, width in zip(blocks, widths)], 1)

    def residual(self, at: int, u: Field, weights: Tensor, batch: PointBatch) -> Tensor:
        """What the operator gives for these weights, less what it should."""
        value = self.apply(self.conditions[at], self.solved_fields(u, weights, batch))
        return value - batch.target


def _numbers(values: object, what: str) -> Tensor:
    """Points or targets in float64."""
    try:
        numbers = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as wrong:
        raise ValueError(f"{what} must be a tensor, got {type(values).__name__}") from wrong
    if not bool(numbers.isfinite().all()):
        raise ValueError(f"{what} must be finite, got NaN or infinity among them")
    return numbers
