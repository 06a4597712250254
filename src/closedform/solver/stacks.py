"""One rule for a stack of models whose rules differ in their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import lambdas
from .lambdas import Lambda, per_sample
from .rules import Kalman, Penalised, Proximal, Ridge, Rule


class _Mixed(Penalised):
    """`Ridge`, `Proximal` and `Ema` of different models."""

    def __init__(self, keep: Tensor, mix: Tensor, lam: lambdas.SideBySide):
        self.keep, self.mix, self._lam = keep, mix, lam

    @property
    def coefficient(self) -> Lambda | per_sample:
        return self._lam


class _Forgetting:
    """The forgetting factors of several filters, `(M,)`, some of which follow the learning rate of their model."""

    def __init__(self, forget: Tensor, follow: Tensor, rate: Tensor | None):
        self.forget, self.follow, self.rate = forget, follow, rate

    def __call__(self, step: Tensor) -> Tensor:
        if self.rate is None:
            return self.forget
        share = torch.where(self.follow, self.rate.to(self.forget.dtype).clamp(lambdas.FLOOR, 1.0), 1.0)
        return 1 - (1 - self.forget) * share


def check_side_by_side(rule: Rule) -> None:
    """Raise a `ValueError` where a stack of models cannot take this rule."""
    if not isinstance(rule, (Penalised, Kalman)):
        raise ValueError(f"a stack takes Ridge, Proximal, Ema and Kalman, got {rule}")
    lam = rule.lam if isinstance(rule, Kalman) else rule.coefficient
    lam = lam.lam if isinstance(lam, per_sample) else lam
    if callable(lam) or (isinstance(lam, lambdas.relative) and callable(lam.ratio)):
        raise ValueError(f"a stack takes no function of the step as a lambda (use follow=True), got {rule}")
    if isinstance(lam, (int, float)) and lam == 0:
        raise ValueError(f"a stack needs a positive lambda or beta, got {rule}")
    if isinstance(rule, Kalman):
        if callable(rule.forget):
            raise ValueError(f"a stack takes no function of the step as forget (use follow=True), got {rule}")
        if rule.drift > 0:
            raise ValueError(f"a stack takes no drift, got {rule}")


def side_by_side(
    rules: Sequence[Rule],
    features: int,
    bias: bool,
    *,
    follow: Sequence[bool] | None = None,
    rate: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Rule:
    """One rule for a stack of models, of one kind: penalised ones, or Kalman filters (all in the information form).

    follow: which models' memories lengthen as their learning rate falls (as by `lambdas.follow_lr`); rate: those rates as
        shares of their base, `(M,)`, a tensor that the caller writes before each solve.
    """
    for rule in rules:
        check_side_by_side(rule)
    kind = {"dtype": torch.float64, "device": device}
    filtered = [rule for rule in rules if isinstance(rule, Kalman)]
    if filtered:
        if len(filtered) < len(rules):
            raise ValueError("Kalman filters stand side by side with Kalman filters only")
        forget = torch.tensor([rule.forget for rule in filtered], **kind)
        follows = torch.tensor([False] * len(rules) if follow is None else list(follow), device=device)
        prior = lambdas.SideBySide([rule.lam for rule in filtered], features, bias, device=device)
        return Kalman(_Forgetting(forget, follows, rate), lam=prior, form="information")
    penalised = [rule for rule in rules if isinstance(rule, Penalised)]
    lam = lambdas.SideBySide(
        [rule.coefficient for rule in penalised], features, bias, follow=follow, rate=rate, device=device
    )
    keep, mix = (torch.tensor([getattr(rule, name) for rule in penalised], **kind) for name in ("keep", "mix"))
    if bool((mix == 1).all()) and bool((keep == keep[0]).all()):
        return Proximal(lam) if keep[0] else Ridge(lam)
    return _Mixed(keep[:, None, None], mix[:, None, None], lam)
