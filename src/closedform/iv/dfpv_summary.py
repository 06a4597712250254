"""The summary of a fitted `DFPVRegressor`: what Z says about W, the treatment's effect, and warnings."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Printed by `str`; `warnings` lists reasons to doubt the fit. `bridge` is the summary of the instrumental-variable fit,
    in which W are the treatments, Z the instruments, and A (with C) the controls."""

    treatments: list[str]
    effect: list[float] | None  # of A by a linear bridge, None where that is not identified
    effect_error: list[float] | None  # robust
    ordinary: list[float]  # what regression on A (and C) finds
    controlled: bool  # whether there are observed controls C
    bridge: Summary

    @staticmethod
    def of(plain: dict[str, Any]) -> ProxySummary:
        """The inverse of `dataclasses.asdict`, also after JSON."""
        fields: dict[str, Any] = {**plain, "bridge": Summary.of(plain["bridge"])}
        return ProxySummary(**fields)

    @property
    def warnings(self) -> list[str]:
        bridge, warnings = self.bridge, []
        deep = bridge.kind == "deep"
        beyond = f"beyond {self._known}"
        moved = deep and min(bridge.identified or 0.0, max(bridge.feature_r2, default=0.0)) >= MOVED
        if bridge.treatments and bridge.first_stage_f < linear.WEAK and not moved:
            warnings.append(
                f"weak proxies: the F of Z for W {beyond} is {bridge.first_stage_f:.1f}, below {linear.WEAK:g}. Z says "
                "too little about W, so the confounding is removed in part at best, and intervals are too short."
            )
        if self.effect is None:
            warnings.append(
                "Z does not identify a linear bridge (it has fewer proxies than W, or they say the same about W)."
            )
        if deep and bridge.disagreement is not None and not bridge.disagreement <= APART:
            warnings.append(
                f"the members, fitted to exchanged halves, disagree by {bridge.disagreement:.0%} of the variance of W's "
                f"effect in the bridge function {beyond}: the estimate depends on the split of the rows."
            )
        if deep and not (bridge.gap or 0.0) <= GAP:
            warnings.append(
                f"the layers of training and re-estimated ones differ by {bridge.gap:.0%} of the variance of W's mean "
                "effect in the bridge function: the layers are badly determined."
            )
        if deep and not (bridge.identified or 0.0) >= IDENTIFIED:
            warnings.append(
                f"ill-posed: Z moves only {bridge.identified:.0%} of the variance of the bridge function {beyond}. The rest "
                "of its shape comes from smoothness (the ridge), not from data."
            )
        if bridge.values is not None and bridge.values <= FEW:
            warnings.append(
                f"Z takes only {bridge.values} different values: it can tell at most as many values of the confounder "
                "apart, and the rest of the bridge function comes from how A shifts them, and from smoothness."
            )
        return warnings

    @property
    def _known(self) -> str:
        return "A and C" if self.controlled else "A"

    def __str__(self) -> str:
        bridge = self.bridge
        stages = "{:,} in stage one, {:,} in stage two, {:,} held out".format(*bridge.stages)
        deep = bridge.kind == "deep"
        lines = [
            f"{'Deep feature' if deep else 'Linear'} proxy variables: {bridge.rows:,} rows{f' ({stages})' if deep else ''}",
            "",
            f"What Z says about W, beyond {self._known} (linear)",
        ]
        if bridge.treatments:
            lines.append(
                f"  F({bridge.degrees[0]}, {bridge.degrees[1]})  {bridge.first_stage_f:.2f}, p = {bridge.first_stage_p:.2g} "
                "(equal variances)"
            )
            if len(bridge.treatments) > 1:
                lines.append(f"  Cragg-Donald F of W together  {bridge.cragg_donald:.2f}")
            lines += [f"  {name}: partial R2 of Z {r2:.4f}" for name, r2 in zip(bridge.treatments, bridge.partial_r2)]
        else:
            lines.append("  left out: W has too many columns")
        lines += ["", "What A does (linear bridge)"]
        for at, name in enumerate(self.treatments):
            regression = f"regression on {self._known} {self.ordinary[at]:.4f}"
            if self.effect is None or self.effect_error is None:
                lines.append(f"  {name}: not identified; {regression}")
                continue
            low, high = (self.effect[at] + sign * 1.96 * self.effect_error[at] for sign in (-1, 1))
            lines.append(f"  {name}: {self.effect[at]:.4f} (robust 95 % {low:.4f} to {high:.4f}); {regression}")
        if deep:
            r2 = ", ".join(f"{value:.2f}" for value in sorted(bridge.feature_r2, reverse=True))
            lines += [
                "",
                "Bridge function (held-out rows)",
                f"  R2 of each feature of W given Z, beyond {self._known}: {r2}",
                f"  R2 of the outcome given {self._known} and Z: {bridge.outcome_r2:.3f}",
                f"  Z moves {bridge.identified:.0%} of the variance of the bridge function, beyond {self._known}",
            ]
            if bridge.disagreement is not None:
                apart = f"{bridge.disagreement:.1%} of the variance of W's effect"
                lines.append(f"  members disagree by {apart}, beyond {self._known}")
            lines.append(
                f"  layers of training and re-estimated ones differ by {bridge.gap:.1%} of the variance of W's mean effect"
            )
            lines.append(f"  model of W: {bridge.used}")
            lines += [f"    {name}: held-out loss {loss:.5g}" for name, loss in bridge.tried]
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
