"""One step of a Kalman filter's matrix: what is forgotten, what a batch adds, and the gain.

The matrix is the inverse covariance A (information) or the covariance P, for all outputs the same::

    information  A <- gamma A + X^T X + leak                         gain  A^-1 X^T
    covariance   P <- P / gamma + q I,  then the rows of X and leak  gain  P X^T (X P X^T + I)^-1

**The leak.** Forgetting inflates the variance of directions that no batch shows (dead units, features of low rank) without
end, until rounding errors count as data. So a trace of precision is given back to the diagonal, to 8 features a step in
turn, which costs no more than a few rows: to the features `i = 8 t, ..., 8 t + 7` modulo D in step t > 0,

    leak_i = D / 8 * max(1e-8 (1 - gamma) prior_i, 1e-11 (X^T X)_ii)         (D / min(D, 8) for few features)

In the long run no direction has less than 1e-8 of the prior's precision, nor less than 1e-11 of what the data say of single
features, which is as far as float64 can tell them apart. Beside the formula without it that makes a difference of about
1e-8 of the prior divided by the smallest precision of the data.

Everything may have a leading model axis, with a gamma a model.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import class_systems, linalg, route
from .linalg import Factor, Solved
from .systems import ClassRows, Moments, Rows, System, rows_of

LEAK = 1e-8  # of the prior's precision, never forgotten
TOLD_APART = 1e-11  # of the data's precision: less cannot be told from rounding
LEAKING = 8  # features a step, in turn


class Absorbed(NamedTuple):
    """The filter's matrix after a batch, and the solve for its residuals."""

    matrix: Tensor
    solve: Factor


def absorb(
    form: route.Form,
    matrix: Tensor,
    system: System,
    prior: Tensor,
    gamma: float | Tensor,
    drift: float,
    step: Tensor,
    first: Tensor | None = None,
    held: Tensor | None = None,
) -> Absorbed:
    """Predict and take in a batch. Before the first one `matrix` is zero, and the prior stands in for it.

    first: which features have seen no batch yet, `(..., D)`; None where it is known that all of them have.
    held: precision that every step adds to the features, `(..., D)`, in the information form alone."""
    leak = _leak(prior, gamma, system, step)
    if form == "information":
        A = _predicted_information(matrix, gamma, drift)
        added = leak.on_diagonal(prior)
        added = added if held is None else added + held
        absorbed = _information(A, added if first is None else torch.where(first, prior, added), system)
    else:
        grown = torch.full_like(prior, drift)
        if first is not None:
            grown = torch.where(first, 1 / torch.maximum(prior, leak.floor), grown)
        absorbed = _covariance(_predicted_covariance(matrix, gamma, grown), leak, system)
    alike = system.diagonal().ndim == prior.ndim  # not where several filters share the features of one model
    if first is None or not alike or isinstance(system, ClassRows) or not route.may_branch(step):
        return absorbed
    # the first step is a proximal one, and has that one's ways with ill-conditioned systems
    return Absorbed(absorbed.matrix, linalg.factor(system, prior)) if bool(first.all()) else absorbed


def restarted(form: route.Form, matrix: Tensor, prior: Tensor, system: System) -> Tensor:
    """The matrix after a solve that failed: that of the prior where the batch was finite, else the old one."""
    total = system.C.sum((-2, -1)) + system.diagonal().sum(-1)
    again = ((total - total == 0) & (prior > 0).all(-1)).to(matrix.dtype)
    kept = matrix * (1 - again)[..., None, None]
    start = prior if form == "information" else 1 / prior
    kept.diagonal(dim1=-2, dim2=-1).add_(torch.where(again.unsqueeze(-1) > 0, start, torch.zeros_like(start)))
    return kept


def noise(old: Tensor, system: System, dW: Tensor, gamma: float | Tensor, step: Tensor) -> Tensor:
    """The noise level of every output, `(..., o)`.

    `E^T S^-1 E`, the innovations in units of their predicted spread, estimate it. The first of them measure how wrong the
    prior was instead, so the average leans to the later ones: weights grow like t^2."""
    n = system.n.unsqueeze(-1) if isinstance(system.n, Tensor) and system.n.ndim else system.n
    innovation = (system.ee - (system.C * dW.mT).sum(-2)).clamp(min=0) / n
    share = torch.clamp(3 / (step.to(old.dtype) + 3), min=1 - gamma)
    return old + (share.unsqueeze(-1) if share.ndim else share) * (innovation - old)


def draws(form: route.Form, matrix: Tensor, Z: Tensor) -> Tensor:
    """Vectors with the covariance P from vectors `Z (..., D)` of independent standard normal numbers, by one factor: of the
    inverse, `A = L L^T` and `L^-T z`, or of P itself."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt()
    L, _ = linalg.factor_shifted_(scale.unsqueeze(-1) * matrix * scale.unsqueeze(-2), 0.0)
    rows = Z.reshape(-1, Z.shape[-1])
    if form == "covariance":
        return ((rows @ L.mT) / scale).reshape(Z.shape)
    solved = torch.linalg.solve_triangular(L.mT, rows.mT, upper=True).mT
    return (solved * scale).reshape(Z.shape)


def spread(form: route.Form, matrix: Tensor, X: Tensor) -> Tensor:
    """`x^T P x` for every row of `X (..., n, D)`."""
    if form == "covariance":
        return ((X @ matrix) * X).sum(-1).clamp(min=0)
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt()
    L, _ = linalg.factor_shifted_(scale.unsqueeze(-1) * matrix * scale.unsqueeze(-2), 0.0)
    return torch.linalg.solve_triangular(L, (X * scale.unsqueeze(-2)).mT, upper=False).square().sum(-2)


class _Leak(NamedTuple):
    """Precision given back to a few features: `value` at the features `index`. `floor` is what rounding cannot tell from
    nothing."""

    index: Tensor
    value: Tensor
    floor: Tensor

    def on_diagonal(self, prior: Tensor) -> Tensor:
        return torch.zeros_like(prior).index_copy(-1, self.index, self.value)

    def as_rows(self, D: int) -> Tensor:
        """Measurements of single features that find no error."""
        *lead, count = self.value.shape
        rows = self.value.new_zeros(*lead, count, D)
        return rows.scatter(-1, self.index.unsqueeze(-1).expand(*lead, count, 1), self.value.sqrt().unsqueeze(-1))


def _leak(prior: Tensor, gamma: float | Tensor, system: System, step: Tensor) -> _Leak:
    D = prior.shape[-1]
    count = min(LEAKING, D)
    index = (step * count + torch.arange(count, device=prior.device)) % D
    floor = TOLD_APART * system.diagonal()
    kept = (1 - gamma).unsqueeze(-1) if isinstance(gamma, Tensor) and gamma.ndim else 1 - gamma
    value = torch.maximum(prior[..., index] * (LEAK * kept), floor[..., index]) * (D / count * (step > 0))
    return _Leak(index, value, floor)


def _beside(gamma: float | Tensor, matrix: Tensor) -> float | Tensor:
    """The forgetting factors of all models as a factor of their matrices."""
    return gamma[:, None, None] if isinstance(gamma, Tensor) and gamma.ndim and matrix.ndim > 2 else gamma


def _predicted_information(A: Tensor, gamma: float | Tensor, q: float) -> Tensor:
    """`A <- (I + q gamma A)^-1 gamma A`, which for q = 0 is `gamma A`."""
    A = _beside(gamma, A) * A
    if q > 0:
        L, _ = torch.linalg.cholesky_ex(torch.eye(A.shape[-1], dtype=A.dtype, device=A.device) + q * A)
        A = linalg.cholesky_solve(A, L)
        A = (A + A.mT) / 2
    return A


def _predicted_covariance(P: Tensor, gamma: float | Tensor, grown: Tensor) -> Tensor:
    """`P <- P / gamma`, and what its diagonal grows by."""
    P = P / _beside(gamma, P)
    P.diagonal(dim1=-2, dim2=-1).add_(grown)
    return P


def _class_mean(rows: ClassRows) -> float:
    """What a sample counts on average over the classes: the one matrix that all of them share cannot know more."""
    return 1 + (rows.k - 1) / rows.E.shape[1]


def _information(A: Tensor, added: Tensor, system: System) -> Absorbed:
    if isinstance(system, ClassRows):
        G = system.gram()
        A = A.diagonal_scatter(A.diagonal() + added)
        scale = (A.diagonal() + G.diagonal()).rsqrt()
        L, ok = linalg.factor_shifted_(scale[:, None] * (A + G) * scale, 0.0)
        of_classes = lambda rows: Solved(class_systems.factored(rows, L / scale[:, None]), ok)  # noqa: E731
        return Absorbed(A + _class_mean(system) * G, of_classes)
    A = A.add_(system.moments().G)
    A.diagonal(dim1=-2, dim2=-1).add_(added)
    solve = linalg.raised(A)  # a factor does not mind the features' scales

    def solved(other: System) -> Solved:
        dW, ok = solve(other.C)
        return Solved(dW.mT, ok)

    return Absorbed(A, solved)


def _covariance(P: Tensor, leak: _Leak, system: System) -> Absorbed:
    if isinstance(system, ClassRows):
        return _covariance_of_classes(P, leak, system)
    D = P.shape[-1]
    rounding = torch.finfo(P.dtype).eps * P.diagonal(dim1=-2, dim2=-1)
    if isinstance(system, Moments) or route.by_inverse(system.X):
        # P <- (P^-1 + G)^-1
        A, sound = _inverse(P)
        A += system.moments().G
        A.diagonal(dim1=-2, dim2=-1).add_(leak.on_diagonal(rounding))
        posterior, ok = _inverse(A)
        sound = sound & ok
        solve: Factor = lambda other: Solved((posterior @ other.C).mT, sound)  # noqa: E731
        P = posterior
    else:
        single = leak.as_rows(D)
        X = torch.cat([system.X.expand(*single.shape[:-2], *system.X.shape[-2:]), single], -2)
        XP = X @ P
        KT, ok = linalg.shifted_(XP @ X.mT, 1.0)(XP)
        n = system.X.shape[-2]
        solve = lambda other: Solved(rows_of(other).E.mT @ KT[..., :n, :], ok)  # noqa: E731
        # Joseph's form: the plain one, M, plus what rounding took from it
        plus = torch.addmm if P.ndim == 2 else torch.baddbmm
        M = plus(P, KT.mT, XP, alpha=-1)
        P = plus(M, plus(KT.mT, M, X.mT, alpha=-1), KT)
        del M  # copies of P fill the memory
    P = (P + P.mT).div_(2)
    P.diagonal(dim1=-2, dim2=-1).add_(rounding)
    return Absorbed(P, solve)


def _inverse(K: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of a positive definite matrix, in units where its diagonal is 1, and whether it is one."""
    scale = K.diagonal(dim1=-2, dim2=-1).rsqrt()
    inverse, ok = linalg.inverse_(scale.unsqueeze(-1) * K * scale.unsqueeze(-2))
    return inverse.mul_(scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2)), ok


def _covariance_of_classes(P: Tensor, leak: _Leak, rows: ClassRows) -> Absorbed:
    once, solve = _covariance(P, leak, Rows(rows.X, rows.E))
    ok = solve(rows).ok
    remembered, _ = _covariance(P, leak, Rows(_class_mean(rows) ** 0.5 * rows.X, rows.E))
    slack = once.diagonal_scatter(once.diagonal() * (1 + linalg.rounding(P.shape[0], P.dtype)))
    R, info = torch.linalg.cholesky_ex(slack)
    return Absorbed(remembered, lambda other: Solved(class_systems.by_covariance(other, R), ok & (info == 0)))
