"""What is going on in the last layer of a real run: the quantities of the paper's theory, measured, with advice.

    print(cf.diagnose(backbone, head, loader))         # one page of text; .plot("head.png") draws it

    watch = cf.Diagnostics(head, every=200)
    for x, y in loader:
        phi = backbone(x)
        watch(phi, y)                                  # before the solve: what is it about to gain?
        head.solve(phi, y)

Three questions are answered. What can the features do (their spectrum, effective rank and dead units; the share of the
target that they can attain, paper eq. 39)? What does solving gain over a gradient step (Theorem 5.3)? And does lambda fit
the features: how much of the past does the head remember, and how far does one solve move it?
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from . import diagnosis_plot, diagnosis_text, lambdas, linalg
from .head import ClosedFormLinear
from .linalg import Moments
from .losses import Squared
from .rules import Ema, Kalman, Proximal, Ridge, Rule
from .statistics import Statistics, check_batch, extend, features_of
from .theory.one_step import bound, variation

NOTHING = 1e-12  # a gain, or a variation, below this share of the whole is rounding error


@dataclass(frozen=True)
class Diagnosis:
    """The state of a last layer. Eigenvalues and lambda are in sum units, for one batch of `batch_size` samples."""

    samples: int
    batch_size: float
    features: int  # without the bias
    outputs: int
    bias: bool
    rule: Rule | None  # None for a plain nn.Linear
    solves: int  # accepted
    rejected: int
    eigenvalues: Tensor  # of a batch's Gram matrix, bias included, largest first; those at rounding level are zero
    residual: (
        Tensor  # how the reachable part of the residual is spread over the eigenvectors; sums to 1, or is all zero
    )
    dead: int  # features that are zero on every sample
    constant: int  # features that do not vary, but are not zero
    error: float  # mean squared error of the layer as it is
    best_error: float  # of the best layer for these features, which `refit_` finds
    attainable: float  # share of the target (of its variation, with a bias) that the features can express
    lam: float  # lambda or beta of the rule, averaged over features; NaN for a plain layer
    lam_ratio: float  # the same over the mean diagonal of a batch's Gram matrix
    memory: float  # effective number of batches that the layer remembers, in the average direction

    @property
    def rank(self) -> int:
        return int((self.eigenvalues > 0).sum())

    @property
    def effective_rank(self) -> float:
        """`exp` of the entropy of the singular values, as shares of their sum: how many directions really count."""
        s = self.eigenvalues[self.eigenvalues > 0].sqrt()
        p = s / s.sum()
        return float(torch.exp(-(p * p.log()).sum())) if len(s) else 0.0

    @property
    def variation(self) -> float:
        """The coefficient of variation in the bound of Theorem 5.3; NaN where a solve has nothing to gain."""
        return variation(self.eigenvalues, self.residual) if bool(self.residual.any()) else math.nan

    @property
    def gradient_share(self) -> float:
        """The bound itself: at most this share of what a closed-form step gains can one gradient step on the layer gain."""
        return bound(self.eigenvalues, self.residual) if bool(self.residual.any()) else math.nan

    @property
    def moved(self) -> float:
        """How far one solve moves the layer towards its batch's own solution, as a share of the reachable residual:
        `E[s / (s + lam)]`, s eigenvalues."""
        return float((self.residual * (1 - self._kept)).sum()) if self._open else math.nan

    @property
    def solve_share(self) -> float:
        """What one solve of the rule gains, in the same units as `gradient_share`: a share of what the full closed-form step
        gains, which has no lambda. By design it is small where the rule averages over many batches."""
        return float((self.residual * (1 - self._kept**2)).sum()) if self._open else math.nan

    @property
    def held(self) -> float:
        """The lambda of the next solve: for `Kalman` the precision that the average direction has gathered by now."""
        return (self.memory - 1) * self.lam / self.lam_ratio if isinstance(self.rule, Kalman) else self.lam

    @property
    def _kept(self) -> Tensor:
        """The share of the residual that one solve leaves in each direction: `lam / (s + lam)`, all of it where s = 0."""
        s, lam = self.eigenvalues, self.held
        return torch.where(s > 0, lam / (s + lam), torch.ones_like(s))

    @property
    def _open(self) -> bool:
        """Whether there is a rule, and something for it to gain."""
        return not math.isnan(self.lam) and bool(self.residual.any())

    @property
    def lag(self) -> float:
        """The share of the layer's error that the best layer for these features would take off."""
        return (self.error - self.best_error) / self.error if self.error > 0 else 0.0

    @property
    def width(self) -> int:
        """Features with the bias counted in."""
        return self.features + int(self.bias)

    @property
    def advice(self) -> list[str]:
        """What to do about it, most pressing first; empty where nothing stands out."""
        return diagnosis_text.advice(self)

    def __str__(self) -> str:
        return diagnosis_text.page(self)

    def plot(self, path: str | Path) -> Path:
        """Two panels: the spectrum with lambda beside it, and what one step closes of the residual in each direction."""
        return diagnosis_plot.spectrum(self, Path(path))


def diagnose(backbone: nn.Module, head: nn.Linear, loader: Iterable, *, batches: int | None = None) -> Diagnosis:
    """Diagnose the head on the data of `loader` (its first `batches` only, if given).

    `backbone` makes the features, or is the whole model with the head inside; it runs in eval mode and the head is left as
    it is. Batches are `(x, y)` or `(x, y, sample_weight)`. A plain `nn.Linear` is diagnosed too: what would a solve gain?
    With several processes each looks at what it reads.
    """
    statistics = Statistics(head.in_features, head.out_features, True, device=head.weight.device)
    count = 0
    with features_of(backbone, head) as features:
        for x, y, *weight in islice(loader, batches):
            phi = features(x)
            statistics.add(phi, _targets(head, phi, y.to(phi.device)), weight[0].to(phi.device) if weight else None)
            count += 1
    if count == 0:
        raise ValueError("diagnose saw no samples: the loader is empty")
    return _from_moments(head, statistics.moments, float(statistics.n) / count)


@torch.no_grad()
def diagnose_batch(head: nn.Linear, phi: Tensor, y: Tensor) -> Diagnosis:
    """Diagnose the head on the features and targets of one batch: cheap enough to do now and then during training.

    With no more samples than features, every target is attainable, and what is said of that says nothing."""
    phi, y, _ = check_batch(phi.detach(), _targets(head, phi, y), None, head.in_features, head.out_features)
    n, d = phi.shape
    X = extend(phi, True)[:, : d + 1]
    Y = y.to(X.dtype)
    if n > d:
        return _from_moments(head, Moments(X.T @ X, X.T @ Y, Y.square().sum(0), n, True), n)
    if head.bias is None:
        X = X[:, :d]
    E = Y - X @ _matrix(head).T
    w, U = torch.linalg.eigh(X @ X.T)
    w, U = w.flip(0), U.flip(1)
    w = torch.where(w > w[0] * max(X.shape) * torch.finfo(w.dtype).eps, w, 0.0)
    mass = torch.where(w > 0, (U.T @ E).square().sum(1), 0.0)
    centred = phi.to(X.dtype) - phi.to(X.dtype).mean(0)
    return _assemble(head, w, mass, E.square().sum(), _total(Y, head), X.square().sum(0), centred.square().sum(0), n, n)


class Diagnostics:
    """Diagnose the head on the batch at hand every `every` steps; `history` holds `(step, Diagnosis)`.

    At other steps a call does nothing but count. benchmarks/diagnose_overhead.py measures its share of a training step.
    """

    def __init__(self, head: nn.Linear, every: int = 200):
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.head, self.every = head, every
        self.calls = 0
        self.history: list[tuple[int, Diagnosis]] = []

    def __call__(self, phi: Tensor, y: Tensor) -> Diagnosis | None:
        """Take note of a step; returns the diagnosis where one was made."""
        step = self.calls
        self.calls += 1
        if step % self.every:
            return None
        self.history.append((step, diagnose_batch(self.head, phi, y)))
        return self.history[-1][1]

    def plot(self, path: str | Path) -> Path:
        """The quantities that matter over the steps."""
        return diagnosis_plot.history(self.history, Path(path))


# ---- Measuring -----------------------------------------------------------------------------------


def _targets(head: nn.Linear, phi: Tensor, y: Tensor) -> Tensor:
    """The targets of the squared loss, which all of this is about."""
    if not isinstance(head, ClosedFormLinear):
        return y
    if not isinstance(head.loss, Squared):
        raise ValueError(f"a diagnosis is about the squared loss; this head has {head.loss}")
    return head.loss.targets(y, (*phi.shape[:-1], head.out_features))


def _matrix(head: nn.Linear) -> Tensor:
    W = head.weight if head.bias is None else torch.cat([head.weight, head.bias[:, None]], 1)
    return W.detach().to(linalg.solve_dtype(W.device))


def _total(Y: Tensor, head: nn.Linear) -> Tensor:
    """What there is to explain: the targets' squares, about their mean where the layer has a bias."""
    return (Y if head.bias is None else Y - Y.mean(0)).square().sum()


def _from_moments(head: nn.Linear, m: Moments, batch_size: float) -> Diagnosis:
    """From moments of features extended by a one, whether or not the head has a bias."""
    n, d = float(m.n), head.in_features
    diagonal = m.G.diagonal()[:d]
    spread = (diagonal - m.G[d, :d] ** 2 / n).clamp(min=0)
    total = m.ee.sum() if head.bias is None else (m.ee - m.C[d] ** 2 / n).sum()
    D = d + int(head.bias is not None)
    G, C, W = m.G[:D, :D], m.C[:D], _matrix(head)
    CE = C - G @ W.T
    error = (m.ee.sum() - (W.T * (C + CE)).sum()).clamp(min=0)
    w, V = torch.linalg.eigh(G)
    w, V = w.flip(0), V.flip(1)
    w = torch.where(w > w[0] * D * torch.finfo(w.dtype).eps, w, 0.0)
    mass = torch.where(w > 0, (V.T @ CE).square().sum(1) / w, 0.0)
    return _assemble(head, w, mass, error, total, G.diagonal(), spread, n, batch_size)


def _assemble(
    head: nn.Linear,
    w: Tensor,
    mass: Tensor,
    error: Tensor,
    total: Tensor,
    diagonal: Tensor,
    spread: Tensor,
    n: float,
    batch_size: float,
) -> Diagnosis:
    """w: eigenvalues over all samples; mass: squared residual along each; diagonal: of the Gram; spread: of the features
    about their means."""
    d, o = head.in_features, head.out_features
    zero = diagonal[:d] == 0
    still = (spread <= NOTHING * diagonal[:d]) & ~zero
    gain = mass.sum()
    left = gain > NOTHING * (total + error)
    best = (error - gain).clamp(min=0)
    solved = head if isinstance(head, ClosedFormLinear) else None
    lam, ratio, memory = math.nan, math.nan, math.nan
    if solved is not None:
        lam, ratio, memory = _held(solved, diagonal * (batch_size / n), batch_size)
    return Diagnosis(
        samples=round(n),
        batch_size=batch_size,
        features=d,
        outputs=o,
        bias=head.bias is not None,
        rule=None if solved is None else solved.rule,
        solves=0 if solved is None else int(solved.step),
        rejected=0 if solved is None else int(solved.rejected),
        eigenvalues=(w * (batch_size / n)).cpu(),
        residual=torch.where(left, mass / gain, torch.zeros_like(mass)).cpu(),
        dead=int(zero.sum()),
        constant=int(still.sum()),
        error=float(error) / (n * o),
        best_error=float(best) / (n * o),
        attainable=1 - float(best / total) if float(total) > 0 else 1.0,
        lam=lam,
        lam_ratio=ratio,
        memory=memory,
    )


def _held(head: ClosedFormLinear, diagonal: Tensor, batch_size: float) -> tuple[float, float, float]:
    """lambda (or beta), its ratio to the mean diagonal of a batch's Gram matrix, and the batches remembered; NaN for a rule
    that is not one of ours."""
    rule, d = head.rule, head.in_features
    if not isinstance(rule, (Ridge, Proximal, Ema, Kalman)):
        return math.nan, math.nan, math.nan
    mean = float(diagonal[:d].mean())
    value = rule.beta if isinstance(rule, (Ridge, Ema)) else rule.lam
    system = Moments(torch.diag(diagonal), diagonal[:, None], diagonal[:1], batch_size, head.bias is not None)
    resolved = lambdas.resolve(value, system, head.step, head._memory().get("lam"))
    if isinstance(resolved, Tensor):
        resolved = float(resolved.reshape(-1)[:d].mean())
    return resolved, resolved / mean if mean > 0 else math.inf, _memory(rule, resolved, mean, head.step)


def _memory(rule: Rule, lam: float, mean: float, step: Tensor) -> float:
    """The information that the layer holds, in batches: `a / s` for a direction in which a batch brings s.

    Proximal holds `a = lam + s`, so that old batches fade by `lam / (lam + s)` each. For Kalman a follows the filter's own
    recursion from the prior on."""
    if mean <= 0:
        return math.inf
    if isinstance(rule, Proximal):
        return 1 + lam / mean
    if isinstance(rule, Ema):
        return 1 / (1 - rule.momentum)
    if not isinstance(rule, Kalman):
        return 1.0
    gamma, q, count = float(rule.forget(step) if callable(rule.forget) else rule.forget), rule.drift, max(1, int(step))
    if q == 0:
        fresh = float(count) if gamma == 1 else (1 - gamma**count) / (1 - gamma)
        return fresh + gamma ** (count - 1) * lam / mean
    a = lam + mean
    for _ in range(count - 1):
        before, a = a, mean + gamma * a / (1 + q * gamma * a)
        if abs(a - before) < 1e-9 * a:
            break
    return a / mean
