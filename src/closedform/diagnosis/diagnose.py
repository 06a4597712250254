"""What is going on in the last layer of a real run: the quantities of the paper's theory, measured, with advice.

    print(cf.diagnose(head, backbone, loader))         # one page of text; .plot("head.png") draws it

    watch = cf.Diagnostics(head, every=200)
    for x, y in loader:
        phi = backbone(x)
        watch(phi, y)                                  # before the solve: what is it about to gain?
        head.solve(phi, y)

Three questions are answered. What can the features do (their spectrum, effective rank and dead units; the share of the
target that they can attain, paper eq. 39)? What does solving gain over a gradient step (Theorem 5.3)? Does lambda fit the
features: how much of the past does the head remember, and what does a solve of its rule gain? The last answer is measured:
the rule is applied to real batches, without touching the head, and judged on the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from ..features import check_order, features_of
from ..head import ClosedFormLinear
from ..solver import lambdas, linalg, route
from ..solver.auto import Auto
from ..solver.rules import Ema, Kalman, Proximal, Ridge, Rule
from ..solver.systems import Rows
from ..theory.one_step import bound, variation
from . import measures, plot, text

NOTHING = 1e-12  # a gain, or a variation, below this share of the whole is rounding error


@dataclass(frozen=True)
class Diagnosis:
    """The state of a last layer. Eigenvalues and lambda are in sum units, for one batch of `batch_size` samples."""

    samples: int  # rows; those of weight zero do not count
    batch_size: float  # rows of a training batch
    features: int  # without the bias
    outputs: int
    bias: bool
    rule: Rule | None  # None for a plain nn.Linear
    solves: int  # accepted
    rejected: int
    eigenvalues: Tensor  # of a batch's Gram matrix, bias included, largest first; those at rounding level are zero
    residual: Tensor  # spread of the reachable part of the residual over the eigenvectors; sums to 1, or is all zero
    closed: Tensor  # share of its square that a solve closes in each, mean of those tried; NaN where there is none
    directions: int  # that the features have, however weak: the degrees of freedom of a fit
    dead: int  # features that are zero on every sample
    constant: int  # features that do not vary, but are not zero
    error: float  # mean squared error of the layer as it is
    best_error: float  # of the best layer for these features on these samples, which `refit_` finds
    attainable: float  # share of the target (of its variation, with a bias) that the features can express: adjusted for
    # the degrees of freedom of the fit, so that noise counts as nothing; NaN where samples are no more than directions
    lam: float  # lambda or beta of the rule, averaged over features; NaN for a plain layer
    lam_ratio: float  # the same over the mean diagonal of a batch's Gram matrix
    memory: float  # effective number of batches that the layer remembers, in the average direction
    moved: float  # how far a solve of the rule takes the layer towards the data's best one, mean of those tried
    gains: Tensor  # of every solve tried: what it takes off the error, as a share of what the best layer takes off
    held_out: (
        bool  # whether `gains` are on the data that the solve has not seen, or, for lack of others, on its own batch
    )

    @property
    def rank(self) -> int:
        return int((self.eigenvalues > 0).sum())

    @property
    def lost(self) -> int:
        """Directions at the rounding level of sums of products, which are left out; dead and constant features aside."""
        still = self.constant if self.bias else max(0, self.constant - 1)
        return max(0, min(self.samples, self.width - self.dead - still) - self.rank)

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
    def solve_share(self) -> float:
        """What one solve of the rule gains, the mean of `gains`: a share of what the full closed-form step on all the data
        gains, which has no lambda. By design it is small where the rule averages over many batches. NaN where none was tried
        or nothing is left to gain."""
        return float(self.gains.mean()) if len(self.gains) else math.nan

    @property
    def floor(self) -> float:
        """`best_error` with the degrees of freedom of the fit counted: what a layer on these features can be expected to
        reach on other samples, at best. NaN where samples are no more than directions."""
        free = self.samples - self.directions
        return self.best_error * self.samples / free if free > 0 else math.nan

    @property
    def lag(self) -> float:
        """The share of the layer's error above `floor`; NaN where that is."""
        return max(0.0, (self.error - self.floor) / self.error) if self.error > 0 else 0.0

    @property
    def width(self) -> int:
        """Features with the bias counted in."""
        return self.features + int(self.bias)

    @property
    def advice(self) -> list[str]:
        """What to do about it, most pressing first; empty where nothing stands out."""
        return text.advice(self)

    def __str__(self) -> str:
        return text.page(self)

    def plot(self, path: str | Path) -> Path:
        """Two panels: the spectrum with lambda beside it, and what one step closes of the residual in each direction."""
        return plot.spectrum(self, Path(path))


def diagnose(
    head: nn.Linear,
    model: nn.Module,
    loader: Iterable,
    *,
    batches: int | None = None,
    batch_size: int | None = None,
) -> Diagnosis:
    """Diagnose the head on the data of `loader` (its first `batches` only, if given).

    `model` makes the features, or is the whole model with the head inside, as in `refit_`; it runs in eval mode, and the
    head and torch's random numbers are left as they are. Batches are `(x, y)` or `(x, y, sample_weight)`. A plain
    `nn.Linear` is diagnosed too: what would a solve gain? With several processes each looks at what it reads.

    batch_size: rows of a *training* batch, by default those of the loader's. What lambda, the memory and a solve amount to
        depends on it.

    The data are added up as sums of products, about the first batch's means where the head has a bias. That squares the
    condition number of the features: directions weaker than about 1e-7 of the strongest are lost, and the page says so.
    """
    check_order(head, model)
    for name, value in (("batches", batches), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    sums, trials, count = measures.MeasureSums(head), measures.Trials(head, batch_size), 0
    with measures.same_random_numbers(model, head), features_of(model, head) as features:
        for batch in islice(loader, batches):
            phi, y, weight = measures.read(batch, features, head)
            sums.add(phi, y, weight)
            trials.add(phi, y, weight)
            count += 1
    if count == 0:
        raise ValueError("diagnose saw no samples: the loader is empty")
    return _diagnosis(head, measures.by_moments(sums, trials.done), batch_size or sums.rows / count)


@torch.no_grad()
def diagnose_batch(head: nn.Linear, phi: Tensor, y: Tensor) -> Diagnosis:
    """Diagnose the head on the features and targets of one batch: cheap enough to do now and then during training.

    With no more samples than features, every target is attainable on them, and nothing is said of that."""
    phi, y, _ = measures.checked(head, phi.detach(), y, None)
    trials = measures.Trials(head, None)
    trials.add(phi, y, None)
    if route.by_rows(len(phi), head.in_features):
        return _diagnosis(head, measures.by_rows(head, phi, y, trials.done), len(phi))
    sums = measures.MeasureSums(head)
    sums.add(phi, y, None)
    return _diagnosis(head, measures.by_moments(sums, trials.done), len(phi))


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
        """Count a step; returns the diagnosis at every `every`-th one, else None."""
        step = self.calls
        self.calls += 1
        if step % self.every:
            return None
        self.history.append((step, diagnose_batch(self.head, phi, y)))
        return self.history[-1][1]

    def plot(self, path: str | Path) -> Path:
        """The quantities that matter over the steps."""
        return plot.history(self.history, Path(path))


# ---- Measuring -----------------------------------------------------------------------------------


def _diagnosis(head: nn.Linear, m: measures.Measured, batch_size: float) -> Diagnosis:
    d, o, n = head.in_features, head.out_features, m.weight
    bias = head.bias is not None
    solved = head if isinstance(head, ClosedFormLinear) else None
    zero = m.diagonal[:d] == 0
    # a mean is right to a few roundings, and features that came in float32 vary by theirs
    still = (m.spread <= (16 * m.eps) ** 2 * m.diagonal[:d]) & ~zero
    gain, mass = float(m.gain), m.mass.sum()
    left = gain > NOTHING * float(m.total + m.error) and float(mass) > 0
    best, total = max(0.0, float(m.error) - gain), float(m.total)
    free = m.rows - m.directions
    attainable = math.nan if free <= 0 else 1.0
    if free > 0 and total > 0:
        attainable = min(1.0, max(0.0, 1 - (best / free) / (total / (m.rows - int(bias)))))
    scale = batch_size / m.rows
    lam, ratio, memory = math.nan, math.nan, math.nan
    if solved is not None:
        lam, ratio, memory = _held(solved, m.diagonal * scale, n * scale)
    gains, held_out = _gains(m, gain) if left else (torch.zeros(0), False)
    closed = torch.full_like(m.w, math.nan)
    if left and m.solves:
        after = torch.stack([after for _, _, after in m.solves]).mean(0)
        closed = torch.where(m.mass > 0, 1 - after / m.mass, closed)
    return Diagnosis(
        samples=m.rows,
        batch_size=batch_size,
        features=d,
        outputs=o,
        bias=bias,
        rule=None if solved is None else solved.rule,
        solves=0 if solved is None else int(solved.step),
        rejected=0 if solved is None else int(solved.rejected),
        eigenvalues=(m.w * scale).cpu(),
        residual=(m.mass / mass if left else torch.zeros_like(m.mass)).cpu(),
        closed=closed.cpu(),
        directions=m.directions,
        dead=int(zero.sum()),
        constant=int(still.sum()),
        error=float(m.error) / (n * o),
        best_error=best / (n * o),
        attainable=attainable,
        lam=lam,
        lam_ratio=ratio,
        memory=memory,
        moved=sum(along for along, _, _ in m.solves) / len(m.solves) / gain if left and m.solves else math.nan,
        gains=gains,
        held_out=held_out,
    )


def _gains(m: measures.Measured, full: float) -> tuple[Tensor, bool]:
    """Of every solve tried, a share of the full gain: on the other rows, where there are any."""
    held_out = all(trial.weight < (1 - NOTHING) * m.weight for trial in m.trials)
    shares = []
    for trial, (_, gain, _) in zip(m.trials, m.solves):
        if held_out:
            shares.append((gain - trial.gain) / (m.weight - trial.weight) * m.weight / full)
        else:
            shares.append(gain / full)
    return torch.tensor(shares, dtype=torch.float64), held_out and bool(shares)


def _held(head: ClosedFormLinear, diagonal: Tensor, weight: float) -> tuple[float, float, float]:
    """lambda (or beta), its ratio to the mean diagonal of a batch's Gram matrix, and the batches remembered; NaN for a rule
    that is not one of ours. `weight` is that of a batch."""
    rule, d = head.rule, head.in_features
    if isinstance(rule, Auto) and int(head.step) > 0:
        return math.nan, math.nan, head.memory_.length
    if not isinstance(rule, (Ridge, Proximal, Ema, Kalman)):
        return math.nan, math.nan, math.nan
    mean = float(diagonal[:d].mean())
    value = rule.beta if isinstance(rule, (Ridge, Ema)) else rule.lam
    # one row with this diagonal, which is all that a lambda looks at: no D x D matrix for that
    system = Rows(diagonal.sqrt()[None], diagonal[None, :0], weight, head.bias is not None)
    resolved = lambdas.resolve(value, system, head.step, head._memory().get("lam"))
    if isinstance(rule, Kalman) and int(head.step) > 0:
        resolved = head._memory()["prior"]  # was resolved on the first batch, and is not looked up again
    if isinstance(resolved, Tensor):
        resolved = float(resolved.reshape(-1)[:d].mean())
    return resolved, resolved / mean if mean > 0 else math.inf, _memory(head, resolved, mean)


def _memory(head: ClosedFormLinear, lam: float, mean: float) -> float:
    """The information that the layer holds, in batches: `tr A / tr G`, where a batch brings G.

    Proximal holds `A = lam I + G`, so that old batches fade by `lam / (lam + s)` each. Kalman's A is the one that it has
    stored; before its first solve, the one that it will have after it."""
    rule = head.rule
    if mean <= 0:
        return math.inf
    if isinstance(rule, Proximal) or (isinstance(rule, Kalman) and int(head.step) == 0):
        return 1 + lam / mean
    if isinstance(rule, Ema):
        return 1 / (1 - rule.momentum)
    if not isinstance(rule, Kalman):
        return 1.0
    memory = head._memory()
    A = memory["information"] if "information" in memory else _inverse(memory["covariance"])
    return float(A.diagonal()[: head.in_features].mean()) / mean


def _inverse(P: Tensor) -> Tensor:
    L, _ = torch.linalg.cholesky_ex(P.diagonal_scatter(P.diagonal() * (1 + linalg.rounding(len(P), P.dtype))))
    return torch.cholesky_inverse(L)
