"""What the last layer remembers of earlier batches.

A rule is a small immutable object with hyperparameters only. Its `update` is a pure function of the old layer `W (o, D)`
(extended by the bias), the batch, the rule's memory (tensors that the head keeps) and the step; it returns the new layer,
the new memory and whether the solve succeeded. lambda and beta are in **sum** units (see `closedform.solver.lambdas`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from . import class_systems, lambdas, linalg
from .lambdas import Lambda, per_sample
from .linalg import ClassRows, Moments, Solution, System

Memory = dict[str, Tensor]


class Source(Protocol):
    """A batch or accumulated statistics: whatever can state its system against a layer."""

    @property
    def inner_steps(self) -> int: ...

    def system(self, W: Tensor | None) -> System: ...

    def refined(self, W: Tensor | None, W_k: Tensor, system: System) -> System: ...


class Step(NamedTuple):
    W: Tensor
    memory: Memory
    ok: Tensor


def _value(
    lam: Lambda | per_sample, memory: Memory, system: System, step: Tensor, name: str, *, positive: bool = True
) -> float | Tensor:
    value = lambdas.resolve(lam, system, step, memory.get("lam"))
    if isinstance(value, Tensor) and not linalg.may_branch(step):
        return value  # what is wrong with it, the guard notices
    if not torch.compiler.is_compiling():
        lambdas.check(value, name, positive=positive)
    return float(value) if isinstance(value, Tensor) and value.ndim == 0 else value


def majorise(
    batch: Source,
    W: Tensor | None,
    system: System,
    solve: Callable[[System], Tensor],
    dW: Tensor | None = None,
    steps: int | None = None,
) -> Tensor:
    """The update of `W` (None: zeros) after all inner steps. Each solves the quadratic bound of the loss at the layer that
    the last one found, from the same W and with the same factor; the first is at W itself, or at `W + dW`."""
    for number in range(batch.inner_steps if steps is None else steps):
        if number > 0 or dW is not None:
            assert dW is not None
            system = batch.refined(W, dW if W is None else W + dW, system)
        dW = solve(system)
    assert dW is not None
    return dW


def fit(batch: Source, W: Tensor | None, system: System, lam: float | Tensor) -> Solution:
    """Minimise the loss plus `lam |dW|^2`, for the squared losses exactly."""
    if isinstance(system, ClassRows):
        return class_systems.ridge(system, lam)
    factor = linalg.factor(system, lam)
    return Solution(majorise(batch, W, system, factor.solve), factor.ok)


class Small(NamedTuple):
    """Ridge or proximal with one lambda: see `closedform.solver.cuda.solve_`."""

    lam: float | Tensor | None  # None: `ratio` times the mean diagonal of the Gram matrix
    from_zero: bool
    ratio: float = lambdas.AUTO_RATIO


def _small(lam: Lambda | per_sample, n: int, memory: Memory, step: Tensor, from_zero: bool) -> Small | None:
    value = lambdas.value_at(lam, n, step, memory.get("lam"))
    if value is None:
        if not isinstance(lam, lambdas.relative):
            return Small(None, from_zero)
        return None if lam.per_feature or callable(lam.ratio) else Small(None, from_zero, lam.ratio)
    if isinstance(value, Tensor):
        return Small(value.to(step.device, torch.float64), from_zero) if value.ndim == 0 else None
    return Small(value, from_zero) if value > 0 else None


def _lambda_memory(lam: Lambda | per_sample, device: torch.device | None) -> Memory:
    """A tensor lambda is kept with the head, so that it moves to the head's device and is saved with it."""
    lam = lam.lam if isinstance(lam, per_sample) else lam
    if not isinstance(lam, Tensor):
        return {}
    return {"lam": lam.detach().to(device, linalg.solve_dtype(torch.device(device or "cpu")), copy=True).reshape(-1)}


class Rule(ABC):
    """Base of the rules. The memory that `update` returns holds only the entries that changed."""

    def memory(self, features: int, outputs: int, device: torch.device | None = None) -> Memory:
        """Fresh memory for `features` extended features: tensors that the head keeps, saves and loads."""
        return {}

    def small(self, n: int, memory: Memory, step: Tensor) -> Small | None:
        """The rule in the form that the kernels for small batches take, or None where it has no such form."""
        return None

    @abstractmethod
    def update(self, W: Tensor, batch: Source, memory: Memory, step: Tensor) -> Step:
        """The layer after this batch."""


@dataclass(frozen=True)
class Ridge(Rule):
    """`W = argmin |Y - phi W^T|^2 + beta |W|^2` on each batch alone (paper eq. 2 and 12); beta in sum units.

    `beta=0` gives the minimum-norm least-squares solution.
    """

    beta: Lambda | per_sample = 1.0

    def __post_init__(self) -> None:
        lambdas.check(self.beta, "beta", positive=False)

    def memory(self, features: int, outputs: int, device: torch.device | None = None) -> Memory:
        return _lambda_memory(self.beta, device)

    def small(self, n: int, memory: Memory, step: Tensor) -> Small | None:
        return _small(self.beta, n, memory, step, from_zero=True)

    def update(self, W: Tensor, batch: Source, memory: Memory, step: Tensor) -> Step:
        system = batch.system(None)
        solution = fit(batch, None, system, _value(self.beta, memory, system, step, "beta", positive=False))
        return Step(solution.update, {}, solution.ok)


@dataclass(frozen=True)
class Proximal(Rule):
    """`W = argmin |Y - phi W^T|^2 + lam |W - W_t|^2` (paper eq. 13 and 14); lam in sum units."""

    lam: Lambda | per_sample = "auto"

    def __post_init__(self) -> None:
        lambdas.check(self.lam, "lambda")

    def memory(self, features: int, outputs: int, device: torch.device | None = None) -> Memory:
        return _lambda_memory(self.lam, device)

    def small(self, n: int, memory: Memory, step: Tensor) -> Small | None:
        return _small(self.lam, n, memory, step, from_zero=False)

    def update(self, W: Tensor, batch: Source, memory: Memory, step: Tensor) -> Step:
        system = batch.system(W)
        solution = fit(batch, W, system, _value(self.lam, memory, system, step, "lambda"))
        return Step(W + solution.update, {}, solution.ok)


@dataclass(frozen=True)
class Ema(Rule):
    """A moving average of ridge solutions, `W = momentum W_t + (1 - momentum) W_ridge`: the baseline of the paper's related
    work. Layer and backbone then no longer minimise one loss, and the envelope theorem does not hold. beta in sum units.
    """

    beta: Lambda | per_sample = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        lambdas.check(self.beta, "beta", positive=False)
        if not isinstance(self.momentum, (int, float)) or not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    def memory(self, features: int, outputs: int, device: torch.device | None = None) -> Memory:
        return _lambda_memory(self.beta, device)

    def update(self, W: Tensor, batch: Source, memory: Memory, step: Tensor) -> Step:
        system = batch.system(None)
        ridge = fit(batch, None, system, _value(self.beta, memory, system, step, "beta", positive=False))
        return Step(self.momentum * W + (1 - self.momentum) * ridge.update, {}, ridge.ok)


Form = Literal["information", "covariance"]


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
    For a loss other than the squared one phi is that of its quadratic bound, `sqrt(c/2)` times the features.
    """

    forget: float | lambdas.Schedule = 0.99
    drift: float = 0.0
    lam: Lambda | per_sample = "auto"
    form: Form | None = None

    def __post_init__(self) -> None:
        if not callable(self.forget):
            lambdas.check_forget(self.forget)
        if not isinstance(self.drift, (int, float)) or not 0 <= self.drift < float("inf"):
            raise ValueError(f"drift must be zero or positive and finite, got {self.drift}")
        if self.form not in ("information", "covariance", None):
            raise ValueError(f'form must be "information", "covariance" or None, got {self.form!r}')
        lambdas.check(self.lam, "lambda")

    def _form(self, features: int) -> Form:
        return self.form or ("information" if features <= 512 else "covariance")

    def memory(self, features: int, outputs: int, device: torch.device | None = None) -> Memory:
        kind = {"device": device, "dtype": linalg.solve_dtype(torch.device(device or "cpu"))}
        return _lambda_memory(self.lam, device) | {
            self._form(features): torch.zeros(features, features, **kind),
            "prior": torch.zeros(features, **kind),
            "noise": torch.zeros(outputs, **kind),
        }

    def update(self, W: Tensor, batch: Source, memory: Memory, step: Tensor) -> Step:
        form = self._form(W.shape[1])
        system = batch.system(W)
        first = step == 0
        gamma = self.forget(step) if callable(self.forget) else self.forget
        if linalg.may_branch(step):
            lambdas.check_forget(gamma)
        lam = _value(self.lam, memory, system, step, "lambda")
        prior = torch.where(first, lam, memory["prior"])
        leak = _leak(prior, gamma, step)
        if form == "information":
            A = torch.where(first, torch.diag(prior), _predict_information(memory[form], gamma, self.drift))
            matrix, gain, ok = _absorb_information(A, system, leak)
        else:
            P = torch.where(first, torch.diag(1 / prior), _predict_covariance(memory[form], gamma, self.drift))
            matrix, gain, ok = _absorb_covariance(P, system, leak)
        dW = gain(system)
        # E^T S^-1 E, the innovations in units of their predicted spread, estimate the noise. The first of them measure how
        # wrong the prior was instead, so the average leans to the later ones: weights grow like t^2.
        innovation = (system.ee - (system.C * dW.T).sum(0)).clamp(min=0) / system.n
        share = torch.clamp(3 / (step.to(prior.dtype) + 3), min=1 - gamma)
        if batch.inner_steps > 1:
            dW = majorise(batch, W, system, gain, dW, batch.inner_steps - 1)
        new = {form: matrix, "prior": prior, "noise": memory["noise"] + share * (innovation - memory["noise"])}
        return Step(W + dW, new, ok & (prior > 0).all())

    def variance(self, X: Tensor, memory: Memory) -> Tensor:
        """Predictive variance `sigma^2 (1 + x^T P x)` of every output for extended features `X (n, D)`."""
        form = self._form(X.shape[1])
        if form == "covariance":
            spread = ((X @ memory[form]) * X).sum(1)
        else:
            solved, _ = linalg.solve_shifted_(memory[form].clone(), 0.0, X.T)
            spread = (X * solved.T).sum(1)
        return (1 + spread.clamp(min=0))[:, None] * memory["noise"]


class _Leak(NamedTuple):
    """Precision given back to a few features of the prior: `value` at the features `index`."""

    index: Tensor
    value: Tensor


LEAK = 1e-8
LEAKING = 32  # features a step, in turn


def _leak(prior: Tensor, gamma: float | Tensor, step: Tensor) -> _Leak:
    """Forgetting inflates the variance of directions that no batch shows (dead units, features of low rank) without end,
    until rounding errors count as data. So a trace of the prior is never forgotten: in the long run no direction has less
    than `LEAK` of its precision. Features get theirs in turn, a few a step, which costs no more than a small batch."""
    D = prior.shape[0]
    count = min(LEAKING, D)
    index = (step * count + torch.arange(count, device=prior.device)) % D
    return _Leak(index, prior[index] * (LEAK * D / count * (1 - gamma)) * (step > 0))


def _predict_information(A: Tensor, gamma: float | Tensor, q: float) -> Tensor:
    """`A <- (I + q gamma A)^-1 gamma A`, which for q = 0 is `gamma A`."""
    A = gamma * A
    if q > 0:
        L, _ = torch.linalg.cholesky_ex(torch.eye(A.shape[0], dtype=A.dtype, device=A.device) + q * A)
        A = linalg.cholesky_solve(A, L)
        A = (A + A.T) / 2
    return A


def _predict_covariance(P: Tensor, gamma: float | Tensor, q: float) -> Tensor:
    P = P / gamma
    return P.diagonal_scatter(P.diagonal() + q)


Gain = Callable[[System], Tensor]  # from the residuals of a system to the update (o, D)


def _class_mean(rows: ClassRows) -> float:
    """What a sample counts on average over the classes: the one matrix that all of them share cannot know more."""
    return 1 + (rows.k - 1) / rows.E.shape[1]


def _absorb_information(A: Tensor, system: System, leak: _Leak) -> tuple[Tensor, Gain, Tensor]:
    if isinstance(system, ClassRows):
        G = system.gram()
        A = A.diagonal_scatter(A.diagonal().index_add(0, leak.index, leak.value))
        scale = (A.diagonal() + G.diagonal()).rsqrt()
        L, ok = linalg.factor_shifted_(scale[:, None] * (A + G) * scale, 0.0)
        return A + _class_mean(system) * G, lambda rows: class_systems.factored(rows, L / scale[:, None]), ok
    A = A + system.moments().G
    A = A.diagonal_scatter(A.diagonal().index_add(0, leak.index, leak.value))
    scale = A.diagonal().rsqrt()
    L, ok = linalg.factor_shifted_(scale[:, None] * A * scale, 0.0)
    return A, lambda other: linalg.cholesky_solve(scale[:, None] * other.C, L).T * scale, ok


def _absorb_covariance(P: Tensor, system: System, leak: _Leak) -> tuple[Tensor, Gain, Tensor]:
    if isinstance(system, ClassRows):
        once, _, ok = _absorb_covariance(P, linalg.Rows(system.X, system.E), leak)
        root = _class_mean(system) ** 0.5
        remembered, _, _ = _absorb_covariance(P, linalg.Rows(root * system.X, system.E), leak)
        slack = 4 * P.shape[0] * torch.finfo(P.dtype).eps * once.diagonal()
        R, info = torch.linalg.cholesky_ex(once.diagonal_scatter(once.diagonal() + slack))
        return remembered, lambda rows: class_systems.by_covariance(rows, R), ok & (info == 0)
    D = P.shape[0]
    rounding = torch.finfo(P.dtype).eps * P.diagonal()
    gain: Gain
    if isinstance(system, Moments):
        # P <- (P^-1 + G)^-1 = R (I + R^T G R)^-1 R^T with R a factor of P
        G = system.G.diagonal_scatter(system.G.diagonal().index_add(0, leak.index, leak.value))
        R, info = torch.linalg.cholesky_ex(P.diagonal_scatter(P.diagonal() + 4 * D * rounding))
        solved, ok = linalg.solve_shifted_(R.T @ G @ R, 1.0, R.T)
        P, ok = R @ solved, ok & (info == 0)
        posterior = P
        gain = lambda other: (posterior @ other.C).T  # noqa: E731
    else:
        # the leak is measurements of single features that find no error
        seen = torch.zeros(len(leak.index), D, dtype=P.dtype, device=P.device)
        X = torch.cat([system.X, seen.scatter(1, leak.index[:, None], leak.value.sqrt()[:, None])])
        XP = X @ P
        L, ok = linalg.factor_shifted_(XP @ X.T, 1.0)
        KT = linalg.cholesky_solve(XP, L)
        n = system.X.shape[0]
        gain = lambda other: linalg.rows_of(other).E.T @ KT[:n]  # noqa: E731
        M = P - KT.T @ XP
        P = M + (KT.T - M @ X.T) @ KT  # Joseph's form: the plain one plus what rounding took from it
    P = (P + P.T) / 2
    return P.diagonal_scatter(P.diagonal() + rounding), gain, ok
