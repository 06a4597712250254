"""The summary of a fitted `DFIVRegressor`: how strong the instruments are, what they identify, and warnings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import linear

# Thresholds of the warnings
GAP = 0.1  # of the effect's variance: the most by which layers of training and re-estimated layers may differ
APART = 0.1  # of the effect's variance: the most by which members may disagree
FEW = 10  # different instruments
LITTLE = 0.01  # of the outcome's variance: an effect that varies less counts as varying so much
IDENTIFIED = 0.1  # of the structural function's variance: the least that the instruments should move
MOVED = 0.3  # of that, and of a learned feature: instruments that move so much on held-out rows are not weak

BLIND = (
    "Models were compared by how well they predict the outcome given the instruments, on held-out rows. That loss cannot "
    "see any function g with E[g(X)|Z] = 0: such a g may be added to the structural function without a trace in the data."
)


@dataclass
class Summary:
    """Printed by `str`; `warnings` lists reasons to doubt the fit."""

    kind: str  # "linear" or "deep"
    rows: int
    stages: tuple[int, int, int]  # rows of stage one, of stage two, held out
    treatments: list[str]
    first_stage_f: float
    first_stage_p: float
    degrees: tuple[int, int]
    partial_r2: list[float]
    anderson_rubin_f: float
    anderson_rubin_p: float
    two_stage: list[float] | None  # coefficients of the linear model, None where it is not identified
    two_stage_error: list[float] | None
    ordinary: list[float]
    feature_r2: list[float] = field(default_factory=list)  # of the treatment's features, on held-out rows
    identified: float | None = None  # share of the structural function's variance that the instruments move
    gap: float | None = None  # mean squared difference of online and re-estimated mean effects, over their variance
    outcome_r2: float | None = None  # of the outcome given instruments, on held-out rows
    tried: list[tuple[str, float]] = field(default_factory=list)  # models compared, and their losses
    used: str = ""
    warnings: list[str] = field(default_factory=list)
    cragg_donald: float = math.nan  # F of the combination of treatments that the instruments move least
    controlled: bool = False  # whether feature_r2 and identified are partial: beyond what the controls say
    disagreement: float | None = None  # variance between the members' effects over that of their mean
    values: int | None = None  # different instruments
    identified_error: float = 0.0  # standard error of identified
    answer: list[str] = field(default_factory=list)  # a sentence for each treatment

    def _linear_lines(self) -> list[str]:
        lines = [
            "Linear part (controls taken out)",
            f"  first-stage F({self.degrees[0]}, {self.degrees[1]})  {self.first_stage_f:.2f}, p = {self.first_stage_p:.2g} "
            "(equal variances)",
        ]
        if len(self.treatments) > 1:
            lines.append(f"  Cragg-Donald F of the treatments together  {self.cragg_donald:.2f}")
        for at, name in enumerate(self.treatments):
            lines.append(f"  {name}: partial R2 of the instruments {self.partial_r2[at]:.4f}")
            ordinary = f"ordinary least squares {self.ordinary[at]:.4f}"
            if self.two_stage is not None and self.two_stage_error is not None:
                low, high = (self.two_stage[at] + sign * 1.96 * self.two_stage_error[at] for sign in (-1, 1))
                lines.append(
                    f"  {name}: two-stage least squares {self.two_stage[at]:.4f} (95 % {low:.4f} to {high:.4f}); {ordinary}"
                )
            else:
                lines.append(f"  {name}: {ordinary}; two-stage least squares is not identified")
        lines.append(
            f"  Anderson-Rubin test of no effect: F = {self.anderson_rubin_f:.2f}, p = {self.anderson_rubin_p:.3g} "
            "(robust, and valid however weak the instruments)"
        )
        return lines

    def _choice_lines(self) -> list[str]:
        losses = [f"    {name}: held-out loss {loss:.5g}" for name, loss in self.tried]
        return [f"  model of the treatment: {self.used}", *losses]

    @property
    def beyond(self) -> str:
        return ", beyond the controls" if self.controlled else ""

    @staticmethod
    def of(plain: dict[str, Any]) -> Summary:
        """The inverse of `dataclasses.asdict`, also after JSON, which has lists for tuples."""
        summary = Summary(**plain)
        summary.stages, summary.degrees = tuple(summary.stages), tuple(summary.degrees)  # pyright: ignore[reportAttributeAccessIssue]
        summary.tried = [(str(name), float(loss)) for name, loss in summary.tried]
        return summary

    def __str__(self) -> str:
        first, second, held = self.stages
        lines = [*self.answer, ""] if self.answer else []
        lines += [
            f"{'Linear' if self.kind == 'linear' else 'Deep feature'} instrumental variables: {self.rows:,} rows"
            + (
                ""
                if self.kind == "linear"
                else f" ({first:,} in stage one, {second:,} in stage two, {held:,} held out)"
            ),
            "",
            *(
                self._linear_lines()
                if self.treatments
                else ["Linear part left out: the treatment has too many columns"]
            ),
        ]
        if self.kind == "deep":
            r2 = ", ".join(f"{value:.2f}" for value in sorted(self.feature_r2, reverse=True))
            lines += ["", "Learned features (rows that a member's stage one has not seen)"]
            lines.append(f"  R2 of each feature of the treatment given the instruments{self.beyond}: {r2}")
            lines.append(f"  R2 of the outcome given the instruments and the controls: {self.outcome_r2:.3f}")
            variance = f"{self.identified:.0%} of the variance of the structural function"
            lines.append(f"  the instruments move {variance}{self.beyond} (standard error {self.identified_error:.0%})")
            if self.disagreement is not None:
                lines.append(f"  members disagree by {self.disagreement:.1%} of the effect's variance{self.beyond}")
            if self.gap is not None:
                apart = f"{self.gap:.1%} of the effect's variance"
                lines.append(f"  layers of training and re-estimated ones differ by {apart}")
            lines += [*self._choice_lines(), "", BLIND]
        elif self.tried:
            lines += ["", "Choice of the model", *self._choice_lines(), "", BLIND]
        lines += [f"\nWarning: {text}" for text in self.warnings]
        return "\n".join(lines)


def linear_part(X: np.ndarray, y: np.ndarray, Z: np.ndarray, controls: np.ndarray | None, names: list[str]) -> Summary:
    """The diagnostics of the linear model, which every fit has, with their warnings."""
    first = linear.first_stage(X, Z, controls)
    test = linear.anderson_rubin(X, y, Z, controls, robust=True)
    ordinary = linear.ordinary(X, y, controls).tolist()
    try:
        fit = linear.two_stage(X, y, Z, controls)
        coefficients, errors = fit.coef.tolist(), fit.std_error.tolist()
    except ValueError:
        coefficients = errors = None
    summary = Summary(
        "linear", len(X), (len(X), len(X), 0), names, first.F, first.p, first.degrees, first.partial_r2.tolist(),
        test.F, test.p, coefficients, errors, ordinary, cragg_donald=first.cragg_donald,
    )  # fmt: skip
    if X.shape[1] > 1 and first.cragg_donald < linear.WEAK <= first.F:
        summary.warnings.append(
            f"jointly weak instruments: Cragg and Donald's F is {first.cragg_donald:.1f}, below {linear.WEAK:g}. The "
            "instruments move each treatment well enough, but all of them together; some combination of the coefficients of "
            "a linear model is hardly identified."
        )
    if first.F < linear.WEAK:
        short = "its interval is" if X.shape[1] == 1 else "intervals from standard errors are"
        summary.warnings.append(
            f"weak instruments: the first-stage F is {first.F:.1f}, below {linear.WEAK:g}. Two-stage least squares leans "
            f"towards ordinary least squares, and {short} too short; the Anderson-Rubin test still holds, and so does an "
            "interval made of it."
        )
    if coefficients is None:
        summary.warnings.append(
            "the instruments do not identify a linear model (too few of them, or they move the treatments together)."
        )
    return summary


def deep_part(
    summary: Summary,
    *,
    stages: tuple[int, int, int],
    feature_r2: np.ndarray,
    identified: float,
    identified_error: float = 0.0,
    effects: list[np.ndarray],
    curves: list[list[np.ndarray]],
    outcome: np.ndarray,
    outcome_expected: np.ndarray,
    controlled: bool,
    values: int,
    tried: list[tuple[str, float]],
    used: str,
) -> Summary:
    """Adds the diagnostics of the learned features, with their warnings.

    effects: the members' predictions on held-out rows, with the part of the controls taken out.
    curves: the members' predictions averaged over the controls, by the layers of training and by re-estimated ones; none
    where no features are learned.
    identified: a mean over the members, and its standard error.
    values: the number of different instruments."""
    summary.kind, summary.stages, summary.tried, summary.used, summary.controlled = (
        "deep",
        stages,
        tried,
        used,
        controlled,
    )
    summary.feature_r2, summary.identified, summary.identified_error = feature_r2.tolist(), identified, identified_error
    little = LITTLE * float(outcome.var())
    if curves:
        summary.gap = float(np.mean([np.square(a - b).mean() / max(float(b.var()), little) for a, b in curves]))
    summary.outcome_r2 = 1 - float(np.square(outcome - outcome_expected).mean()) / max(float(outcome.var()), 1e-300)
    moved = max(summary.feature_r2, default=0.0)
    if summary.treatments and summary.first_stage_f < linear.WEAK:
        summary.warnings = [text for text in summary.warnings if not text.startswith("weak instruments")]
        if min(identified, moved) >= MOVED:
            summary.warnings.append(
                "a straight line through the instruments says little about the treatment (first-stage F "
                f"{summary.first_stage_f:.1f}, below {linear.WEAK:g}): do not use two-stage least squares or its interval. "
                f"The learned features do better: the instruments explain up to {moved:.0%} of their variance."
            )
        else:
            summary.warnings.append(
                f"weak instruments: the first-stage F is {summary.first_stage_f:.1f}, below {linear.WEAK:g}, and learned "
                f"features find little more (R2 at most {max(moved, 0.0):.2f} on held-out rows). Two-stage least squares "
                "leans towards ordinary least squares, the deep fit (which splits the rows) is spread widely, and intervals "
                "are too short; the Anderson-Rubin test still holds."
            )
    if len(effects) > 1:
        together = np.stack(effects)
        summary.disagreement = float(together.var(0, ddof=1).mean()) / max(float(together.mean(0).var()), little)
        if not summary.disagreement <= APART:
            summary.warnings.append(
                f"the members, fitted to exchanged halves, disagree by {summary.disagreement:.0%} of the effect's variance"
                f"{summary.beyond}: the estimate depends on the split of the rows; do not trust its shape."
            )
    if summary.gap is not None and not summary.gap <= GAP:
        mean = " on average over the controls" if controlled else ""
        summary.warnings.append(
            f"the layers of training and re-estimated ones differ by {summary.gap:.0%} of the effect's variance{mean}: the "
            "layers are badly determined; more rows or fewer features may help."
        )
    if not summary.identified >= IDENTIFIED:
        summary.warnings.append(
            f"ill-posed: the instruments move only {summary.identified:.0%} of the variance of the estimated structural "
            f"function{summary.beyond}. The rest of its shape comes from smoothness (the ridge), not from data."
        )
    warn_of_few_values(summary, values)
    return summary


def warn_of_unidentified(summary: Summary, deep: Summary) -> None:
    """That a line was taken, although another model was ahead on held-out rows."""
    summary.warnings.append(
        f"ill-posed: {deep.used.partition(', re-estimated')[0]} was ahead on held-out rows, but the instruments move only "
        f"{deep.identified:.0%} of the variance of its structural function{deep.beyond}. What it says of the effect would "
        "come from its ridge and from curves of the controls, so the line is taken."
    )


def warn_of_contradiction(summary: Summary, level: float) -> None:
    """That the set which Anderson and Rubin's interval should hold is empty."""
    summary.warnings.append(
        f"the instruments contradict each other: at {level:.0%} the Anderson-Rubin test rejects every slope, so some of "
        "them are not valid or the effect is not a line. The interval is from standard errors, and may be far too short."
    )


def warn_of_few_values(summary: Summary, values: int) -> None:
    """Notes the number of different instruments, with a warning where there are few."""
    summary.values = values
    if values <= FEW:
        shape = "they could hardly tell a curve from this line"
        if summary.kind == "deep":
            shape = "the shape of the curve comes from how the controls shift the first stage, and from smoothness"
        summary.warnings.append(
            f"the excluded instruments take only {values} different values: without controls they identify at most {values} "
            f"numbers, so {shape}."
        )


def answers(
    summary: Summary, estimate: np.ndarray, low: np.ndarray, high: np.ndarray, interval: str, level: float
) -> list[str]:
    """The average effect of every treatment in one sentence, in the units of the data, beside the linear estimates."""
    sentences = []
    for k, name in enumerate(summary.treatments):
        linear_ones = f"ordinary least squares says {summary.ordinary[k]:.4g}"
        if summary.two_stage is not None:
            linear_ones = f"two-stage least squares says {summary.two_stage[k]:.4g} and {linear_ones}"
        unbounded = "" if math.isfinite(high[k] - low[k]) else ": the instruments are too weak to bound the effect"
        sentences.append(
            f"One unit more of {name} changes the outcome by {estimate[k]:.4g} on average ({level:.0%} interval "
            f"{low[k]:.4g} to {high[k]:.4g}, {interval}{unbounded}); {linear_ones}."
        )
    return sentences
