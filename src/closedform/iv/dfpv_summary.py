"""What a fitted `DFPVRegressor` has to say: how much Z tells of W beyond the treatment, and what the treatment does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from . import linear
from .summary import APART, FEW, GAP, IDENTIFIED, MOVED, Summary

BLIND = (
    "Models were compared by how well they predict the outcome given A and Z, on held-out rows. That loss cannot see any "
    "function g of W and A with E[g(W, A)|A, Z] = 0. Nor can data show whether a bridge function exists."
)


@dataclass
class ProxySummary:
    """Printed by `str`; `warnings` lists what should give pause. `bridge` is that of the instrumental-variable fit, in which
    W are the treatments, Z the instruments, and A (with C) the controls."""

    treatments: list[str]
    effect: list[float] | None  # of A by a linear bridge, None where that is not identified
    effect_error: list[float] | None  # robust
    ordinary: list[float]  # what regression on A (and C) finds
    controlled: bool  # whether there are observed controls C
    bridge: Summary

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(plain: dict[str, Any]) -> ProxySummary:
        made = ProxySummary(**plain)
        made.bridge = Summary.of(plain["bridge"])
        return made

    @property
    def warnings(self) -> list[str]:
        told, found = self.bridge, []
        deep = told.kind == "deep"
        beyond = f"beyond {self._given}"
        moved = deep and min(told.identified or 0.0, max(told.feature_r2, default=0.0)) >= MOVED
        if told.treatments and told.first_stage_f < linear.WEAK and not moved:
            found.append(
                f"weak proxies: the F of Z for W {beyond} is {told.first_stage_f:.1f}, below {linear.WEAK:g}. Z tells too "
                "little of what W is, so confounding is undone in part at best, and intervals are too short."
            )
        if self.effect is None:
            found.append("Z does not identify a linear bridge (fewer proxies than W has, or they tell the same of W).")
        if deep and told.disagreement is not None and not told.disagreement <= APART:
            found.append(
                f"the members, fitted to exchanged halves, differ by {told.disagreement:.0%} of the variance of what W does "
                f"in the bridge function {beyond}: the estimate depends on the split of the rows."
            )
        if deep and not (told.gap or 0.0) <= GAP:
            found.append(
                f"the layers of training and re-estimated ones differ by {told.gap:.0%} of the variance of what W does in "
                "the bridge function on average: the layers are badly determined."
            )
        if deep and not (told.identified or 0.0) >= IDENTIFIED:
            found.append(
                f"ill-posed: Z moves only {told.identified:.0%} of the variance of the bridge function {beyond}. The rest "
                "of its shape rests on smoothness (the ridge), not on data."
            )
        if told.values is not None and told.values <= FEW:
            found.append(
                f"Z takes only {told.values} different values: it tells at most as many kinds of the confounder apart, and "
                "the rest of the bridge function comes from how A shifts them, and from smoothness."
            )
        return found

    @property
    def _given(self) -> str:
        return "A and C" if self.controlled else "A"

    def __str__(self) -> str:
        told = self.bridge
        stages = "{:,} in stage one, {:,} in stage two, {:,} held out".format(*told.stages)
        deep = told.kind == "deep"
        lines = [
            f"{'Deep feature' if deep else 'Linear'} proxy variables: {told.rows:,} rows{f' ({stages})' if deep else ''}",
            "",
            f"What Z tells of W, beyond {self._given} (linear)",
        ]
        if told.treatments:
            lines.append(
                f"  F({told.degrees[0]}, {told.degrees[1]})  {told.first_stage_f:.2f}, p = {told.first_stage_p:.2g} "
                "(equal variances)"
            )
            if len(told.treatments) > 1:
                lines.append(f"  Cragg-Donald F of W together  {told.cragg_donald:.2f}")
            lines += [f"  {name}: partial R2 of Z {r2:.4f}" for name, r2 in zip(told.treatments, told.partial_r2)]
        else:
            lines.append("  left out: W has too many columns")
        lines += ["", "What A does (linear bridge)"]
        for at, name in enumerate(self.treatments):
            regression = f"regression on {self._given} {self.ordinary[at]:.4f}"
            if self.effect is None or self.effect_error is None:
                lines.append(f"  {name}: not identified; {regression}")
                continue
            low, high = (self.effect[at] + sign * 1.96 * self.effect_error[at] for sign in (-1, 1))
            lines.append(f"  {name}: {self.effect[at]:.4f} (robust 95 % {low:.4f} to {high:.4f}); {regression}")
        if deep:
            r2 = ", ".join(f"{value:.2f}" for value in sorted(told.feature_r2, reverse=True))
            lines += [
                "",
                "Bridge function (held-out rows)",
                f"  R2 of each feature of W given Z, beyond {self._given}: {r2}",
                f"  outcome given {self._given} and Z: R2 {told.outcome_r2:.3f}",
                f"  of the bridge function Z moves {told.identified:.0%} of the variance, beyond {self._given}",
            ]
            if told.disagreement is not None:
                lines.append(f"  members: {told.disagreement:.1%} of what W does apart, beyond {self._given}")
            lines.append(
                f"  online against re-estimated layers: {told.gap:.1%} of the variance of W's mean effect apart"
            )
            used = told.used.replace("treatment", "W")
            lines += [
                f"  model: {used}",
                *(f"    {name.replace('treatment', 'W')}: held-out loss {loss:.5g}" for name, loss in told.tried),
            ]
            lines += ["", BLIND]
        lines += [f"\nWarning: {text}" for text in self.warnings]
        return "\n".join(lines)


def summarised(
    bridge: Summary, A: np.ndarray, y: np.ndarray, Z: np.ndarray, W: np.ndarray, C: np.ndarray | None, names: list[str]
) -> ProxySummary:
    """The summary of a fitted bridge function with what A does by a linear one."""
    p, q = A.shape[1], W.shape[1]
    effect = errors = None
    if bridge.treatments:
        try:
            fit = linear.two_stage(W, y, Z, A if C is None else np.column_stack([A, C]))
            effect = fit.controls[:p].tolist()
            errors = np.sqrt(np.diag(fit.covariance)[q : q + p]).tolist()
        except ValueError:
            pass
    return ProxySummary(names, effect, errors, linear.ordinary(A, y, C).tolist(), C is not None, bridge)
