"""A fit of `DFIVRegressor`, from checked arrays to fitted attributes: splits, choices, members, diagnostics."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from ..arrays import moments, one_thread
from . import Data, Split, anderson_rubin, average, choice, evaluation, line, linear
from .choice import Ridges, Trial
from .inputs import Observations, Ticker, check_beyond, excluded, mark, scaled
from .members import Design, Member
from .summary import (
    IDENTIFIED,
    Summary,
    deep_part,
    linear_part,
    warn_of_contradiction,
    warn_of_few_values,
    warn_of_unidentified,
)

if TYPE_CHECKING:
    from .dfiv import DFIVRegressor

ROWS = 60  # below these the halves of a deep fit are too small to mean anything
HELD = 5  # held-out rows, below which no choice can be made; and rows of a stage
LEVEL = 0.95  # of the interval in the summary's first sentence
WIDE = 50  # more treatments than these are pixels, about which a linear model has nothing to say


def attributes(
    settings: DFIVRegressor,
    rows: Observations,
    *,
    names: list[str],
    columns: dict[str, list[str] | None] | None = None,
    groups: np.ndarray | None = None,
    of_treatment: bool = True,
    as_line: bool = False,
    designs: list[Design] | None = None,
    ridges: Ridges | None = None,
) -> dict[str, Any]:
    """The attributes of a fit. Rows of one group (those with the same number in `groups`) stay in one stage.
    `of_treatment` says that the effect of the treatment is wanted, and not that of a control: then the line is taken where
    the instruments hardly move what another model would say of it. `as_line`, `designs` and `ridges` are those of a fit
    that has chosen them before; None chooses."""
    X, y, Z, controls = rows
    which = excluded(Z, controls)
    own = Z[:, which]
    check_beyond(own, controls)
    shape = {"n_features_in_": X.shape[1], "_controls": 0 if controls is None else controls.shape[1], "_names": names}
    shape |= {"_columns": columns or {}, "_instruments": Z.shape[1], "_own": which}
    shape |= {"_rows": [len(X), mark(rows)], "_sample": average.kept_rows(X, controls)}
    own_rows = Observations(X, y, own, controls)
    if settings.features == "linear":
        fit = linear.two_stage(X, y, own, controls)
        return shape | _linear_attributes(fit) | {"summary_": linear_part(*own_rows, names)}
    if as_line:
        return shape | _line_attributes(own_rows, linear_part(*own_rows, names), [], (len(X), len(X), 0))
    needed = ROWS if groups is None else ROWS // 2  # a draw with replacement has fewer different rows
    groups = np.arange(len(X)) if groups is None else groups
    count = len(np.unique(groups))
    if count < needed:
        raise ValueError(
            f"a deep fit needs at least {needed} different rows, got {count}; features='linear' needs fewer"
        )
    if settings.backbone is None and X.shape[1] <= WIDE:  # pixels may be constant
        linear.check_varying(X, controls)
    instruments = own if controls is None else np.column_stack([own, controls])
    parts = {"_x": X, "_z": instruments, "_y": y[:, None]} | ({} if controls is None else {"_w": controls})
    scales = {name: moments(part, np.ones(len(X))) for name, part in parts.items()}
    data = Data(*(scaled(part, scales[name]) for name, part in parts.items()))
    seed = int(check_random_state(settings.random_state).randint(2**31 - 1))
    with one_thread():
        trained, tried, splits, held = train(settings, data, groups, designs, ridges, seed)
        summary = linear_part(*own_rows, names) if X.shape[1] <= WIDE else _nothing_linear(len(X))
        stages, values = (len(splits[0].first), len(splits[0].second), len(held)), len(np.unique(own, axis=0))
        if trained:
            deep = diagnosed(copy.deepcopy(summary), trained, tried, data, splits, held, values)
            if of_treatment and _has_line(tried) and _hardly_identified(deep):
                warn_of_unidentified(summary, deep)
                trained = []
            else:
                summary = deep
        if not trained:
            warn_of_few_values(summary, values)
            return shape | _line_attributes(own_rows, summary, tried, stages)
        # the choices are made: the layers that predict may have the held-out rows too, half in each stage
        splits = [_with_held(split, held, groups, swap=bool(k % 2)) for k, split in enumerate(splits)]
        trained = [choice.refitted(member, data, split) for member, split in zip(trained, splits)]
        covariances = [average.covariance(member, data, split) for member, split in zip(trained, splits)]
    return shape | scales | {"members_": trained, "summary_": summary, "_covariances": covariances}


def _linear_attributes(fit: linear.TwoStage) -> dict[str, Any]:
    attributes = {"coef_": fit.coef, "intercept_": fit.intercept, "control_coef_": fit.controls}
    return attributes | {"std_error_": fit.std_error, "covariance_": fit.covariance, "_stage_one": fit.stage_one}


def _line_attributes(
    rows: Observations, summary: Summary, tried: list[Trial], stages: tuple[int, int, int]
) -> dict[str, Any]:
    """Of a fit that has taken the line, with the losses of all candidates."""
    X, _, own, controls = rows
    fit = line.fitted(*rows)
    attributes = _linear_attributes(fit)
    exact = line.excess(X, own, controls) == 0
    if anderson_rubin.needed(X, own, controls, fit.first_stage):
        attributes["_moments"] = anderson_rubin.moments(*rows)
        if anderson_rubin.ends(attributes["_moments"], summary.degrees[1], LEVEL) is None:
            warn_of_contradiction(summary, LEVEL)
    summary.used = f"line, {'two-stage least squares' if exact else 'jackknifed limited information'} on all rows"
    summary.tried, summary.stages = _named(tried), stages
    return attributes | {"summary_": summary}


def _hardly_identified(summary: Summary) -> bool:
    """Whether the instruments are not strong, and move little of the structural function beyond the controls: what a curve
    says of the effect would come from its ridge, and from curves of the controls that serve as instruments."""
    return summary.first_stage_f < linear.STRONG and not (summary.identified or 0.0) >= IDENTIFIED


def _has_line(tried: list[Trial]) -> bool:
    """Whether a line took part in the comparison, and was identified."""
    return any(trial.design is None and math.isfinite(trial.loss) for trial in tried)


def iterations(settings: DFIVRegressor) -> int:
    """Of a member."""
    return int(settings.max_iter) if settings.max_iter != "auto" else 100 if settings.backbone is None else 300


def base_design(settings: DFIVRegressor, data: Data, rows: int) -> Design:
    sizes, widths, rate = settings.hidden_layer_sizes, settings.n_features, settings.learning_rate
    if isinstance(widths, str):
        widths = (8, 32, 48 if len(data.X) > 4000 else 16)
    if isinstance(rate, str):
        rate = 0.01 if settings.backbone is None else 0.003
    d, k, q = (int(width) for width in widths)
    return Design(
        inputs=data.X.shape[1],
        instruments=data.Z.shape[1],
        controls=0 if data.O is None else data.O.shape[1],
        treatment="backbone" if settings.backbone is not None else "linear",
        hidden=(64, 64) if isinstance(sizes, str) else tuple(int(size) for size in sizes),
        widths=(d, k, q),
        rule=settings.rule,
        inner=choice.INNER[0],
        iterations=iterations(settings),
        batch=min(int(settings.batch_size), rows),
        learning_rate=float(rate),
        weight_decay=float(settings.weight_decay),
        seed=0,
    )


def train(
    settings: DFIVRegressor,
    data: Data,
    groups: np.ndarray,
    designs: list[Design] | None,
    ridges: Ridges | None,
    seed: int,
) -> tuple[list[Member], list[Trial], list[Split], Tensor]:
    """Members (none where the line is taken), the models compared, the split of each member and the rows held out."""
    order = np.random.default_rng(seed).permutation(np.unique(groups))
    count = round(settings.validation_fraction * len(order))
    if count < HELD or len(order) - count < 2 * HELD:
        raise ValueError(
            f"validation_fraction {settings.validation_fraction:g} of {len(order)} rows holds out {count} and leaves "
            f"{len(order) - count}: expected at least {HELD} held out and {2 * HELD} left for the stages"
        )
    held, rest = _rows_of(groups, order[:count]), order[count:]

    def split(pair: int) -> Split:
        mixed = rest if pair == 0 else np.random.default_rng([seed, pair]).permutation(rest)
        half = len(mixed) // 2
        return Split(_rows_of(groups, mixed[:half]), _rows_of(groups, mixed[half:]))

    first = split(0)
    base = base_design(settings, data, min(len(first.first), len(first.second)))
    kind = "backbone" if settings.backbone is not None else settings.treatment
    if designs is None:
        designs = choice.candidates(base, kind, settings.lam_inner)
    choose_line = ridges is None and kind == "auto" and base.inputs <= WIDE
    designs = [replace(design, seed=seed, batch=base.batch) for design in designs]
    total = base.iterations * (len(designs) + settings.members - 1)
    tick = Ticker(total) if settings.verbose else None
    rival = line.Rival.of(data) if choose_line else None
    best, tried = choice.chosen(designs, data, first, held, settings.backbone, tick, ridges, rival)
    if best is None:
        if tick is not None:
            tick.close()
        return [], tried, [first], held
    others = range(1, settings.members)
    splits = [split(k // 2) for k in others]
    splits = [Split(part.second, part.first) if k % 2 else part for k, part in zip(others, splits)]
    designs = [replace(best.member.design, seed=(seed + 1000 * k) % 2**31) for k in others]
    firsts = None if ridges is None else [ridges[min(k, len(ridges) - 1)][0] for k in others]
    contenders = [best, *choice.fitted(designs, data, splits, held, settings.backbone, tick, firsts)]
    splits = [first, *splits]
    if tick is not None:
        tick.close()
    return choice.pooled(contenders, None if ridges is None else ridges[0][1]), tried, splits, held


@torch.no_grad()
def diagnosed(
    summary: Summary,
    trained: list[Member],
    tried: list[Trial],
    data: Data,
    splits: list[Split],
    held: Tensor,
    values: int,
) -> Summary:
    """The summary, completed by means over the members; `values` is the number of different instruments.

    What the instruments move is measured on all rows that a member's stage one has not seen: the held-out ones alone are
    so few in a small table that the share is a matter of luck.

    The controls are taken out first, by a regression on their features over the rows of stage one: shares and differences
    between members are of what is left, or they would be about the controls. The layers of training are compared by their
    mean over the controls, because their values for single rows have the noise of the last batches. Where no features are
    learned they are never taken, and not compared."""
    rows = data.rows(held)
    R2, shares, share_errors, effects, curves = [], [], [], [], []
    for member, split in zip(trained, splits):
        unseen, before = data.rows(torch.cat([held, split.second])), data.rows(split.first)
        layers = member.layers
        predicted = layers.phi(member.phi(unseen.Z).double()) @ layers.W.T + layers.b
        f = member.structural(unseen.X, unseen.O)

        def known(part: Data, member: Member = member) -> Tensor:
            psi = member.layers.psi(member.psi(part.X).double())
            return torch.cat([psi, member.structural(part.X, part.O)[:, None]], 1)

        target = known(unseen)
        by_controls = target.mean(0)
        if member.xi is not None and unseen.O is not None and before.O is not None:
            xi = evaluation.scale_of(member.xi(before.O).double())
            C, c = evaluation.fit(xi(member.xi(before.O).double()), known(before), evaluation.BETA_1)
            by_controls = xi(member.xi(unseen.O).double()) @ C.T + c
        beyond, target = target - by_controls, target[:, :-1]
        left = beyond.square().mean(0).clamp(min=1e-30)
        R2.append(1 - (target - predicted).square().mean(0) / left[:-1])
        R2[-1][left[:-1] <= 1e-12] = 0.0
        error = (f - member.expected(unseen.Z, unseen.O)).square()
        share = 1 - float(error.mean() / left[-1])
        shares.append(max(0.0, share))
        share_errors.append(float((error - (1 - share) * beyond[:, -1].square()).std() / left[-1]) / len(f) ** 0.5)
        own = beyond[: len(held), -1]
        effects.append((own - own.mean()).numpy())
        if not member.design.fixed:  # else the layers of training take no part in the choice
            curves.append([member.curve(rows.X, rows.O, pair).numpy() for pair in (member.online, member.again)])
    first = trained[0]
    layers = "layers of training" if first.ridge == 0 else f"re-estimated layers, ridge {first.ridge:g} a row"
    return deep_part(
        summary,
        stages=(len(splits[0].first), len(splits[0].second), len(held)),
        feature_r2=torch.stack(R2).mean(0).numpy(),
        identified=float(np.mean(shares)),
        identified_error=float(np.mean(share_errors)),
        effects=effects,
        curves=curves,
        outcome=rows.y[:, 0].numpy(),
        outcome_expected=torch.stack([m.expected(rows.Z, rows.O) for m in trained]).mean(0).numpy(),
        controlled=rows.O is not None,
        values=values,
        tried=_named(tried),
        used=f"{_name(first.design)}, {layers}; {len(trained)} members",
    )


def _name(design: Design | None) -> str:
    if design is None:
        return "line"
    return design.treatment if design.rule == "ridge" else f"{design.treatment}, inner lambda {design.inner:g}"


def _named(tried: list[Trial]) -> list[tuple[str, float]]:
    return [(_name(design) + (f", {note}" if note else ""), loss) for design, loss, note in tried]


def _nothing_linear(n: int) -> Summary:
    return Summary("deep", n, (0, 0, 0), [], math.nan, math.nan, (0, 0), [], math.nan, math.nan, None, None, [])


def _with_held(split: Split, held: Tensor, groups: np.ndarray, *, swap: bool) -> Split:
    """The split with half of the held-out groups in each stage, in the other one where `swap`."""
    own = groups[held.numpy()]
    half = torch.from_numpy(np.isin(own, np.unique(own)[::2]))
    one, two = (held[~half], held[half]) if swap else (held[half], held[~half])
    return Split(torch.cat([split.first, one]), torch.cat([split.second, two]))


def _rows_of(groups: np.ndarray, chosen: np.ndarray) -> Tensor:
    return torch.from_numpy(np.flatnonzero(np.isin(groups, chosen)))
