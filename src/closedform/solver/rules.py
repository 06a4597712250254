"""What the last layer remembers of earlier batches.

A rule is a small immutable object with hyperparameters only. Its `update` is a pure function of the old layer `W (o, D)`
(extended by the bias), the batch, the rule's memory (tensors that the head keeps) and the step; it returns the new layer,
the new memory and whether the solve succeeded. lambda and beta are in **sum** units (see `closedform.lambdas`).

Layers, batches and memories may have a leading model axis, for models side by side (`closedform.solver.stacks`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from . import class_systems, filters, lambdas, linalg, route
from .lambdas import Lambda, per_sample
from .linalg import Factor, Solved
from .systems import ClassRows, System

if TYPE_CHECKING:
    from .losses import Loss

Memory = dict[str, Tensor]


class Source(Protocol):
    """A batch or accumulated statistics: whatever can state its system against a layer."""

    @property
    def bias(self) -> bool:
        """Whether the last feature is the bias's."""
        ...

    @property
    def inner_steps(self) -> int: ...

    @property
    def squared(self) -> bool: ...

    @property
    def numbers(self) -> bool:
        """Whether targets are fitted as numbers, not as yes and no."""
        ...

    @property
    def stretches(self) -> bool:
        """Whether a step may be longer than that of its quadratic bound."""
        ...

    @property
    def guess(self) -> float:
        """The mean loss of a layer of zeros, where the evidence says how strongly weights are drawn to zero; else 0."""
        ...

    @property
    def freedom(self) -> int:
        """How many parameters the outputs have for every feature; asked for where there is a guess."""
        ...

    @property
    def counted(self) -> int | Tensor:
        """How many rows count, on all ranks; asked for where targets are no numbers."""
        ...

    def system(self, W: Tensor | None, dtype: torch.dtype | None = None) -> System: ...

    def systems(self, W: Tensor, layers: Tensor) -> System:
        """The system against each of several layers `(K, o, D)`, of which `W` is a mean."""
        ...

    def refined(self, W: Tensor | None, W_k: Tensor, system: System) -> System: ...

    def errors(self, W: Tensor, system: System) -> Tensor:
        """The mean loss of several layers `W (K, o, D)`, `(K,)`; `system` is stated against them."""
        ...

    def length(self, W: Tensor, dW: Tensor, system: System, C: Tensor) -> Tensor:
        """How far several layers `W` go along their steps `dW`, `(K,)`, where there is slack; C is the right-hand side."""
        ...


class Step(NamedTuple):
    """What a rule makes of a batch.

    reset: the memory where the solve does not count, if it is not the old one: a filter that fails on a finite batch would
        fail on the next one as well, and starts anew."""

    W: Tensor
    memory: Memory
    ok: Tensor
    reset: Memory | None = None


def _value(
    lam: Lambda | per_sample, memory: Memory, system: System, step: Tensor, name: str, *, positive: bool = True
) -> float | Tensor:
    value = lambdas.resolve(lam, system, step, memory.get("lam"))
    if isinstance(value, Tensor) and not route.may_branch(step):
        return value  # what is wrong with it, the guard notices
    if not torch.compiler.is_compiling() and not isinstance(lam, lambdas.SideBySide):
        lambdas.check(value, name, positive=positive)
    return float(value) if isinstance(value, Tensor) and value.ndim == 0 else value


def majorise(
    batch: Source, W: Tensor | None, system: System, solve: Factor, solution: Solved | None = None, steps: int = 1
) -> Solved:
    """The update of `W` (None: zeros) after all inner steps. Each solves the quadratic bound of the loss at the layer that
    the last one found, from the same W and with the same factor; the first is at W itself, or at what `solution` makes of
    it."""
    for _ in range(steps):
        if solution is not None:
            dW = solution.update
            system = batch.refined(W, dW if W is None else W + dW, system)
        solution = solve(system)
    assert solution is not None
    return solution


def moved(W: Tensor, update: Tensor) -> Tensor:
    """`W + update`, in the memory of `update` where nothing is differentiated: of many outputs every copy counts."""
    if torch.compiler.is_compiling() or W.requires_grad or update.requires_grad or W.shape != update.shape:
        return W + update
    return update.add_(W)


def fit(batch: Source, W: Tensor | None, system: System, lam: float | Tensor) -> Solved:
    """Minimise the loss plus `lam |dW|^2`, for the squared losses exactly."""
    if isinstance(system, ClassRows):
        return class_systems.ridge(system, lam)
    return majorise(batch, W, system, linalg.factor(system, lam), steps=batch.inner_steps)


def _positive(ok: Tensor, lam: Lambda | per_sample, value: float | Tensor) -> Tensor:
    """Where a user's own tensor or schedule gives a lambda that is not positive, the solve does not count. What is relative
    to the features is positive by itself."""
    if not isinstance(value, Tensor) or isinstance(lam, (str, lambdas.relative, lambdas.SideBySide)):
        return ok
    return ok & (value > 0).all()


class Small(NamedTuple):
    """Ridge or proximal with one lambda: see `closedform.solver.cuda.solve_`."""

    lam: float | Tensor | None  # None: `ratio` times the mean diagonal of the Gram matrix
    from_zero: bool
    ratio: float = lambdas.AUTO_RATIO


class Filters(NamedTuple):
    """Kalman filters side by side: see `closedform.solver.cuda_filters`."""

    form: route.Form
    forget: tuple[float, ...] | Tensor  # `(K,)` in float64, where it changes with the steps
    hold: tuple[float, ...] = (0.0,)
    lam: float = 0.0  # of the prior; where it is not positive, `ratio` times the features' own scale
    ratio: float = lambdas.AUTO_RATIO
    weighed: bool = False  # by their errors (`Auto`), with the next ones; else one filter is the layer
    shortest: tuple[float, ...] = (0.0,)  # the forgetting factors that the handicap goes by
    discount: float = 0.0
    handicap: float = 0.0


def _lambda_memory(lam: Lambda | per_sample, device: torch.device | None) -> Memory:
    """A tensor lambda is kept with the head, so that it moves to the head's device and is saved with it."""
    lam = lam.lam if isinstance(lam, per_sample) else lam
    if not isinstance(lam, Tensor):
        return {}
    return {"lam": lam.detach().to(device, route.precision(torch.device(device or "cpu")), copy=True).reshape(-1)}


class Rule(ABC):
    """Base of the rules. The memory that `update` returns holds only the entries that changed."""

    def under(self, loss: Loss) -> Rule:
        """The rule as it is for a layer with this loss."""
        return self

    def owns(self, stored: set[str], names: set[str]) -> bool:
        """Whether a memory with the entries `stored` is this rule's, whose own one has `names`, be it of other shapes."""
        return stored == names

    def memory(
        self, features: int, outputs: int, device: torch.device | None = None, models: int | None = None
    ) -> Memory:
        """Fresh memory for `features` extended features: tensors that the head keeps, saves and loads; with a leading axis
        for so many models."""
        return {}

    def small(self, n: int, memory: Memory, step: Tensor) -> Small | None:
        """The rule in the form that the kernels for small batches take, or None where it has no such form."""
        return None

    def filters(self, features: int, step: Tensor) -> Filters | None:
        """The rule in the form that the kernels for filters take, or None where it has no such form."""
        return None

    @abstractmethod
    def update(self, W: Tensor, batch: Source, memory: Memory, step: Tensor) -> Step:
        """The layer after this batch."""


class Penalised(Rule):
    """A penalty and no other memory than the layer itself: `W <- (1 - mix) W + mix (keep W + dW)`, where dW minimises the
    loss that `keep W` leaves over plus `lam |dW|^2`. keep is 1 for `Proximal`, 0 for `Ridge`; mix is 1 but for `Ema`."""

    keep: float | Tensor
    mix: float | Tensor
    _name = "lambda"

    @property
    @abstractmethod
    def coefficient(self) -> Lambda | per_sample: ...

    def memory(
        self, features: int, outputs: int, device: torch.device | None = None, models: int | None = None
    ) -> Memory:
        return _lambda_memory(self.coefficient, device)

    def small(self, n: int, memory: Memory, step: Tensor) -> Small | None:
        if isinstance(self.keep, Tensor) or isinstance(self.mix, Tensor) or self.mix != 1:
            return None
        lam, from_zero = self.coefficient, self.keep == 0
        value = lambdas.value_at(lam, n, step, memory.get("lam"))
        if value is None:
            lam = lambdas.relative() if isinstance(lam, str) else lam
            if not isinstance(lam, lambdas.relative) or lam.per_feature or callable(lam.ratio):
                return None
            return Small(None, from_zero, lam.ratio)
        if isinstance(value, Tensor):
            return Small(value.to(step.device, torch.float64), from_zero) if value.ndim == 0 else None
        return Small(value, from_zero) if value > 0 else None

    def update(self, W: Tensor, batch: Source, memory: Memory, step: Tensor) -> Step:
        lam, keep, mix = self.coefficient, self.keep, self.mix
        bound = None if getattr(batch, "exact", True) else lambdas.trace_bound(lam, W.shape[-1])
        old = keep * W if isinstance(keep, Tensor) else W if keep else None
        system = batch.system(old, route.precision(W.device, bound))
        value = _value(lam, memory, system, step, self._name, positive=self._name == "lambda")
        update, ok = fit(batch, old, system, value)
        ok = _positive(ok, lam, value)
        new = update if old is None else moved(old, update)
        return Step(new if isinstance(mix, float) and mix == 1 else (1 - mix) * W + mix * new, {}, ok)


@dataclass(frozen=True)
class Ridge(Penalised):
    """`W = argmin |Y - phi W^T|^2 + beta |W|^2` on each batch alone (paper eq. 2 and 12); beta in sum units.

    `beta=0` gives the minimum-norm least-squares solution.
    """

    beta: Lambda | per_sample = 1.0
    keep, mix, _name = 0.0, 1.0, "beta"

    def __post_init__(self) -> None:
        lambdas.check(self.beta, "beta", positive=False)

    @property
    def coefficient(self) -> Lambda | per_sample:
        return self.beta


@dataclass(frozen=True)
class Proximal(Penalised):
    """`W = argmin |Y - phi W^T|^2 + lam |W - W_t|^2` (paper eq. 13 and 14); lam in sum units."""

    lam: Lambda | per_sample = "auto"
    keep, mix = 1.0, 1.0

    def __post_init__(self) -> None:
        lambdas.check(self.lam, "lambda")

    @property
    def coefficient(self) -> Lambda | per_sample:
        return self.lam


@dataclass(frozen=True)
class Ema(Penalised):
    """A moving average of ridge solutions, `W = momentum W_t + (1 - momentum) W_ridge`: the baseline of the paper's related
    work. Layer and backbone then no longer minimise one loss, and the envelope theorem does not hold. beta in sum units.
    """

    beta: Lambda | per_sample = 1.0
    momentum: float = 0.9
    keep, _name = 0.0, "beta"

    def __post_init__(self) -> None:
        lambdas.check(self.beta, "beta", positive=False)
        if not isinstance(self.momentum, (int, float)) or not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    @property
    def mix(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 1 - self.momentum

    @property
    def coefficient(self) -> Lambda | per_sample:
        return self.beta


@dataclass(frozen=True)
class Kalman(Rule):
    """The filter of the paper's appendix B without its last simplification: the covariance is kept.

    With isotropic noise that covariance is `P (x) I_o` with one `D x D` matrix P for all outputs, kept as it is or as its
    inverse A (`form`; by default A up to 512 features, where a factor of it is cheap, and P beyond, where an update by few
    rows is cheaper). `forget` (gamma) is a number in (0, 1] or a function of the step, `drift` (q) the variance that the
    layer gains a step, `lam` the precision of the prior, `P_0 = I / lam`, in sum units::

        information  A <- gamma A + phi^T phi                        W <- W + (A^-1 phi^T E)^T
        covariance   P <- P / gamma + q I                            S = phi P phi^T + I,  K = P phi^T S^-1
                     P <- (I - K phi) P (I - K phi)^T + K K^T        W <- W + (K E)^T

    There is no predict step before the first batch. `Proximal` is this filter with P set back to `I / lam` at every step.
    A trace of precision is never forgotten (`closedform.solver.filters`, with its formula). For a loss other than the
    squared one phi is that of its quadratic bound, `sqrt(c/2)` times the features.
    """

    forget: float | lambdas.Schedule = 0.99
    drift: float = 0.0
    lam: Lambda | per_sample = "auto"
    form: route.Form | None = None

    def __post_init__(self) -> None:
        if not callable(self.forget):
            lambdas.check_forget(self.forget)
        if not isinstance(self.drift, (int, float)) or not 0 <= self.drift < float("inf"):
            raise ValueError(f"drift must be zero or positive and finite, got {self.drift}")
        if self.form not in ("information", "covariance", None):
            raise ValueError(f'form must be "information", "covariance" or None, got {self.form!r}')
        lambdas.check(self.lam, "lambda")

    def _form(self, features: int) -> route.Form:
        return self.form or route.filter_form(features)

    def memory(
        self, features: int, outputs: int, device: torch.device | None = None, models: int | None = None
    ) -> Memory:
        kind = {"device": device, "dtype": route.precision(torch.device(device or "cpu"))}
        lead = () if models is None else (models,)
        return _lambda_memory(self.lam, device) | {
            self._form(features): torch.zeros(*lead, features, features, **kind),
            "prior": torch.zeros(*lead, features, **kind),
            "noise": torch.zeros(*lead, outputs, **kind),
        }

    def filters(self, features: int, step: Tensor) -> Filters | None:
        lam = lambdas.relative() if isinstance(self.lam, str) else self.lam
        form = self._form(features)
        if self.drift > 0:
            return None
        if isinstance(lam, lambdas.relative) and not lam.per_feature and not callable(lam.ratio):
            prior, ratio = 0.0, float(lam.ratio)
        elif isinstance(lam, (int, float)):
            prior, ratio = float(lam), lambdas.AUTO_RATIO
        else:
            return None
        if not callable(self.forget):
            return Filters(form, (float(self.forget),), lam=prior, ratio=ratio)
        gamma = self.forget(step)
        if not isinstance(gamma, Tensor):
            lambdas.check_forget(gamma)
            gamma = torch.full((1,), gamma, dtype=torch.float64, device=step.device)
        if gamma.numel() > 1:
            return None
        return Filters(form, gamma.to(step.device, torch.float64).reshape(1), lam=prior, ratio=ratio)

    def update(self, W: Tensor, batch: Source, memory: Memory, step: Tensor) -> Step:
        form = self._form(W.shape[-1])
        system = batch.system(W)
        if form == "information" and not isinstance(system, ClassRows):
            system = system.moments()
        gamma = self.forget(step) if callable(self.forget) else self.forget
        if route.may_branch(step) and not (isinstance(gamma, Tensor) and gamma.ndim):
            lambdas.check_forget(gamma)
        prior, first = memory["prior"], None
        if not getattr(batch, "later", False):
            first = prior <= 0  # nothing has been taken in yet
            prior = torch.where(first, _value(self.lam, memory, system, step, "lambda"), prior)
        state = filters.absorb(form, memory[form], system, prior, gamma, self.drift, step, first)
        solution = state.solve(system)
        noise = filters.noise(memory["noise"], system, solution.update, gamma, step)
        if batch.inner_steps > 1:
            solution = majorise(batch, W, system, state.solve, solution, batch.inner_steps - 1)
        new = {form: state.matrix, "prior": prior, "noise": noise}
        reset = {form: filters.restarted(form, memory[form], memory["prior"], system)}
        return Step(moved(W, solution.update), new, solution.ok & (prior > 0).all(-1), reset)

    def variance(self, X: Tensor, memory: Memory) -> Tensor:
        """Predictive variance `sigma^2 (1 + x^T P x)` of every output for extended features `X (..., n, D)`."""
        form = self._form(X.shape[-1])
        return (1 + filters.spread(form, memory[form], X)).unsqueeze(-1) * memory["noise"].unsqueeze(-2)

    def draws(
        self, W: Tensor, n: int, memory: Memory, step: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """n layers from the posterior around `W (o, D)`: `(n, o, D)`."""
        form = self._form(W.shape[-1])
        Z = torch.randn(n, *W.shape, dtype=W.dtype, device=W.device, generator=generator)
        return W + memory["noise"].sqrt().unsqueeze(-1) * filters.draws(form, memory[form], Z)
