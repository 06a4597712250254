"""A diagnosis in words: one page of text, and advice that a user can act on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..solver.rules import Ema, Kalman, Proximal, Ridge

if TYPE_CHECKING:
    from .diagnose import Diagnosis


def _rejected(d: Diagnosis) -> Iterable[str]:
    if d.rejected:
        yield (
            f"{d.rejected} of {d.solves + d.rejected} solves were rejected and left the head as it was. Look for NaN or "
            "infinite features or targets, most often a learning rate that is too high."
        )


def _unsolved(d: Diagnosis) -> Iterable[str]:
    if d.rule is not None and d.solves == 0:
        yield "The head has not been solved yet: call head.solve(phi, y) at every step, or observe(y) before the forward."


def _few(d: Diagnosis) -> Iterable[str]:
    if d.samples <= d.width:
        yield (
            f"There are {d.samples} samples for {d.width} features, so any target is attainable on them. "
            "Diagnose on more batches to learn about the features."
        )
    elif d.samples < 10 * d.width:
        yield (
            f"{d.samples} samples are few for {d.width} features: what is attainable and the best layer's error are "
            "estimates (degrees of freedom are counted). Ten times as many samples as features make them firm."
        )


def _frozen(d: Diagnosis) -> Iterable[str]:
    if 300 < d.lam_ratio < math.inf and isinstance(d.rule, Proximal):
        yield (
            f"lambda is {_power(d.lam_ratio)} times the Gram of a batch: the head hardly moves, a solve takes it "
            f"{_percent(d.moved)} of the way. Proximal('auto') would take lambda = {10 * d.lam / d.lam_ratio:.3g} here."
        )
    if max(300, 10 * d.solves) < d.memory < math.inf and isinstance(d.rule, Kalman):
        yield (
            f"The filter holds the information of {_power(d.memory)} batches as they are now, after {d.solves} solves: the "
            "head hardly moves. Its prior is too strong (a smaller lam, or 'auto'), or the features have shrunk since "
            "(a smaller forget)."
        )
    if 10 < d.lam_ratio < math.inf and isinstance(d.rule, (Ridge, Ema)):
        yield f"beta is {_power(d.lam_ratio)} times the Gram of a batch: it shrinks the layer towards zero. Lower it."


def _chasing(d: Diagnosis) -> Iterable[str]:
    if d.memory < 3 and d.lam_ratio < 1 and d.batch_size < 3 * d.width and isinstance(d.rule, (Ridge, Proximal)):
        name = "beta" if isinstance(d.rule, Ridge) else "lambda"
        yield (
            f"A batch has {d.batch_size:.0f} samples for {d.width} features and {name} is only {d.lam_ratio:.2g} times its "
            "Gram: every solve fits its own batch and forgets the last. Take larger batches, Proximal('auto') or Kalman()."
        )


def _lagging(d: Diagnosis) -> Iterable[str]:
    if d.samples > 2 * d.width and d.lag > 0.5:
        yield (
            f"The head is not the best layer for its features, which can reach a mean squared error of {d.floor:.3g} where "
            f"this one has {d.error:.3g}. At the end of training, cf.refit_ corrects that.{_during(d)}"
        )


def _during(d: Diagnosis) -> str:
    """What would help before the end, by the solves that were tried; nothing for a head that was never solved, or about
    whose regularisation there is advice already."""
    if d.solves == 0 or not d.held_out or any(_frozen(d)) or any(_chasing(d)):
        return ""
    shorter, longer = _MEMORY.get(type(d.rule), ("", ""))
    losing = float((d.gains < 0).double().mean())
    if losing < 0.1 and d.memory > 3 and shorter:
        return f" A solve still gains on data that it has not seen, so the head follows too slowly: {shorter} helps."
    if losing > 0.3 and longer:
        return f" {_percent(losing)} of solves lose on data that they have not seen: a longer memory helps, {longer}."
    return ""


# what shortens and what lengthens the memory of each rule
_MEMORY: dict[type, tuple[str, str]] = {
    Ridge: ("", "Proximal('auto'), or Kalman()"),
    Proximal: ("a smaller lambda", "a larger lambda, or Kalman()"),
    Ema: ("a smaller momentum", "a larger momentum, or Kalman()"),
    Kalman: ("a smaller forget", "a larger forget, or less drift"),
}


def _unattainable(d: Diagnosis) -> Iterable[str]:
    if d.samples > 2 * d.width and d.attainable < 0.5:
        yield (
            f"No last layer can express more than {_percent(d.attainable)} of the target with these features: the backbone "
            "has to learn the rest (train longer, raise its learning rate or width)."
        )


def _dead(d: Diagnosis) -> Iterable[str]:
    if d.dead > 0.05 * d.features:
        yield (
            f"{d.dead} of {d.features} features are zero on every sample. Dead units come from a learning rate that is too "
            "high or from relu; a smaller rate, normalisation or GELU keeps them alive."
        )
    if d.constant > 0.05 * d.features:
        yield f"{d.constant} of {d.features} features are constant and say no more than a bias: saturated units?"


def _collapsed(d: Diagnosis) -> Iterable[str]:
    possible = min(d.samples, d.width)
    if possible >= 10 and d.effective_rank < max(1.5, 0.05 * possible):
        yield (
            f"The features count as {d.effective_rank:.1f} directions of {possible}: they have collapsed. Normalise them, "
            "or weaken weight decay."
        )


def _worth(d: Diagnosis) -> Iterable[str]:
    if d.gradient_share < 0.2:
        yield (
            f"The residual meets a steep spectrum: a gradient step on the last layer, at its best rate, would gain at most "
            f"{_percent(d.gradient_share)} of what a full solve gains."
        )
    if d.gradient_share > 0.9:
        yield (
            f"The residual meets a flat spectrum: a gradient step at its best rate would gain up to "
            f"{_percent(d.gradient_share)} of a closed-form step. Solving mostly saves tuning that rate."
        )


# most pressing first
_CHECKS = (_rejected, _unsolved, _few, _frozen, _chasing, _lagging, _unattainable, _dead, _collapsed, _worth)


def advice(d: Diagnosis) -> list[str]:
    """What to do about it, most pressing first; empty where nothing stands out."""
    return [text for check in _CHECKS for text in check(d)]


def page(d: Diagnosis) -> str:
    """Everything that was measured, and the advice."""
    top, low = float(d.eigenvalues[0]), float(d.eigenvalues[d.rank - 1]) if d.rank else 0.0
    spectrum = f"{top:.3g} to {low:.3g} (condition {_power(top / low)})" if d.rank else "all zero"
    lam, rule = "none", "learned by gradient steps (nn.Linear)"
    if d.rule is not None:
        name = "beta" if isinstance(d.rule, (Ridge, Ema)) else "lambda"
        lam = f"{name} = {d.lam:.4g}, {_power(d.lam_ratio)} times the mean diagonal of a batch's Gram"
        lam = "-" if math.isnan(d.lam) else lam
        rule = f"{d.rule}, {d.solves} solves, {d.rejected} rejected"
    rank = f"{d.rank} of {d.width}, effectively {d.effective_rank:.1f}"
    if d.lost:
        rank += f"; {d.lost} at rounding level, too weak for sums of products (a condition past 1e7)"
    elif d.rank and top > 1e12 * low:
        rank += "; the weakest are near rounding level in sums of products"
    rows = [
        ("data", f"{d.samples} samples"),
        (
            "batch",
            f"{d.batch_size:.0f} samples; regularisation, solves and memory are for this size (batch_size= sets it)",
        ),
        ("layer", f"{d.features} features{' and a bias' if d.bias else ''}, {d.outputs} outputs"),
        ("rule", rule),
        ("", ""),
        ("spectrum", spectrum),
        ("rank", rank),
        ("dead, constant", f"{d.dead}, {d.constant} of {d.features} features"),
        ("attainable", _attainable(d)),
        ("error", f"{d.error:.4g} (mean squared); best layer {_best(d)}"),
        ("", ""),
        ("gradient step", _gradient(d)),
        ("regularisation", lam),
        ("one solve", _solve(d)),
        ("memory", "-" if math.isnan(d.memory) else f"about {d.memory:.3g} batch{'' if d.memory < 1.005 else 'es'}"),
    ]
    lines = ["The last layer", "=============="] + [f"{name:<15} {text}".rstrip() for name, text in rows]
    lines += ["", "Advice", "------"]
    for text in d.advice or ["Nothing stands out."]:
        lines += _wrapped(text)
    return "\n".join(lines)


def _gradient(d: Diagnosis) -> str:
    if math.isnan(d.gradient_share):
        return "nothing left to gain: the layer is the best one"
    share, variation = _percent(d.gradient_share), f"coefficient of variation {d.variation:.3g}"
    return f"gains at most {share} of what a full solve (lambda = 0) gains ({variation})"


def _attainable(d: Diagnosis) -> str:
    if math.isnan(d.attainable):
        return "unknown: there are no more samples than directions"
    return f"{_percent(d.attainable)} of the target{' about its mean' if d.bias else ''}, degrees of freedom counted"


def _best(d: Diagnosis) -> str:
    return f"{d.best_error:.4g}" + ("" if math.isnan(d.floor) else f", on other samples about {d.floor:.4g}")


def _solve(d: Diagnosis) -> str:
    """What the solves that were tried gained."""
    if d.rule is None:
        return "-"
    if math.isnan(d.solve_share):
        if bool(d.residual.any()):
            return f"not tried: the data hold no batch of {d.batch_size:.0f} samples"
        return "-"
    if not d.held_out:
        share = f"gains {_percent(d.solve_share)} of a full solve's gain on its own batch"
        return f"{share}, and goes {_percent(d.moved)} of the way"
    losing = _percent(float((d.gains < 0).double().mean()))
    return (
        f"gains {_percent(d.solve_share)} of a full solve's gain on unseen data "
        f"({len(d.gains)} tried: median {_percent(float(d.gains.median()))}, {losing} lose)"
    )


def _wrapped(text: str, width: int = 100) -> list[str]:
    lines, line = [], "*"
    for word in text.split():
        if len(line) + len(word) + 1 > width:
            lines.append(line)
            line = " "
        line += " " + word
    return [*lines, line]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 0.999 or share == 1 else f"{100 * share:.5g} %"


def _power(value: float) -> str:
    return f"{value:.0e}".replace("e+0", "e").replace("e+", "e") if value >= 1e4 else f"{value:.3g}"
