"""The members of `DFIVRegressor`: how they are trained and chosen.

Rows that no member trains on choose, by the loss of the outcome given the instruments: the lambda inside stage two, whether
the treatment enters linearly, and which layers predict (those of training, or re-estimated with one of several ridges, the
same for all members). The ridge of stage one is chosen by the loss of stage one. Of all that are as good as the best, by
`evaluation.as_good`, the simplest is taken: what the loss cannot see should not decide.

Where no outcome has had a part in the features (a line or a sieve, no controls), the rows of stage two are cross-validated
as well: many more than the held-out ones, so that the simple need not be preferred by so much. Learned features are compared
with the one that was chosen so, on the held-out rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..solver.lambdas import per_sample, relative
from ..solver.rules import Kalman, Proximal
from . import DFIV, Data, Layers, Rules, Split, evaluation, networks, reestimated, train
from .line import Rival
from .loop import can_stand_side_by_side, train_side_by_side
from .members import SIEVES, Design, Member, build

FIRST = (100.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # ridges of stage one, a row, from strong to weak
# Of stage two. Weaker ones were taken now and then for their luck on held-out rows, and gave wild curves
RIDGES = (100.0, 1.0, 1e-1, 1e-2, 1e-3)
SIEVE = 10  # treatments, up to which a sieve is tried
MARGIN = 0.5  # standard errors, by which the simpler of two ridges may be behind in cross-validation; held out, by one
FOLDS = 5  # of the rows that stage one has not seen, where the layer of stage two is cross-validated
INNER = (1e-2, 1.0)  # lambda_12, relative to the features
LAM_1, LAM_2 = 10.0, 1.0  # relative to the features
BACKBONE_LAM_2, BACKBONE_T1 = 10.0, 5  # images ask for a longer memory, and more of stage one
FORGET = 0.99
Ridges = list[tuple[float, float]]  # of stage one and of stage two, for every member
DIVERGED = "training diverged: expected finite features and losses; try a smaller learning_rate"


class Trial(NamedTuple):
    """A design that was compared, None for the line, with its mean loss on rows that it was not fitted to, and a note on how
    these were chosen."""

    design: Design | None
    loss: float
    note: str = ""


def _rules(design: Design) -> Rules:
    inner = relative(design.inner)
    if design.rule == "ridge":
        return Rules.ridge(relative(0.1), relative(0.1))
    if design.rule == "kalman":
        return Rules(Kalman(FORGET), Proximal(inner), Kalman(FORGET))
    lam_2 = BACKBONE_LAM_2 if design.treatment == "backbone" else LAM_2
    return Rules.proximal(relative(LAM_1), relative(lam_2), inner)


def fitted(
    designs: Sequence[Design],
    data: Data,
    splits: Sequence[Split],
    held: Tensor,
    backbone: nn.Module | None,
    tick: Callable[[], None] | None = None,
    firsts: Sequence[float | None] | None = None,
) -> list[Contender]:
    """Train members, those of one shape side by side, and solve for the layers that each may take; `firsts` are the ridges
    of stage one, None chooses them."""
    models = [_model(design, backbone) for design in designs]
    groups: dict[Design, list[int]] = {}
    for k, design in enumerate(designs):
        groups.setdefault(replace(design, inner=0.0, seed=0), []).append(k)
    for shape, group in groups.items():
        alike, own_splits = [models[k] for k in group], [splits[k] for k in group]
        if len(group) > 1 and can_stand_side_by_side(alike, own_splits, shape.batch):
            _train(alike, data, own_splits, [designs[k] for k in group], tick)
        else:
            for k in group:
                _train([models[k]], data, [splits[k]], [designs[k]], tick)
    firsts = [None] * len(designs) if firsts is None else firsts
    return [_contender(*parts, data, held) for parts in zip(designs, models, splits, firsts)]


def _train(
    models: Sequence[DFIV],
    data: Data,
    splits: Sequence[Split],
    designs: Sequence[Design],
    tick: Callable[[], None] | None,
) -> None:
    design = designs[0]

    def after(t: int) -> None:
        if tick is not None:
            for _ in models:
                tick()

    options = {"iterations": design.iterations, "batch_size": design.batch, "lr": design.learning_rate}
    options |= {"fresh": design.treatment != "backbone", "after": after}
    if len(models) == 1:
        train(models[0], data, splits[0], seed=design.seed, **options)
    else:
        train_side_by_side(models, data, splits, seeds=[design.seed for design in designs], **options)


def _model(design: Design, backbone: nn.Module | None) -> DFIV:
    psi, phi, xi, widths = build(design, backbone)
    image = design.treatment == "backbone"
    return DFIV(
        psi,
        phi,
        xi,
        widths=widths,
        rules=_rules(design),
        lr=design.learning_rate,
        weight_decay=design.weight_decay,
        T1=BACKBONE_T1 if image else 2,
        covariate_steps=4 if design.controls else 0,
        order="solve",
        generator=torch.Generator().manual_seed(design.seed + 1),
    )


def _contender(design: Design, model: DFIV, split: Split, first: float | None, data: Data, held: Tensor) -> Contender:
    psi, phi, xi = model.psi, model.phi, model.xi
    for net in model.modules():
        net.eval().requires_grad_(False)
    rows = data.rows(held)
    if not all(bool(value.isfinite().all()) for net in model.modules() for value in net.state_dict().values()):
        raise ValueError(DIVERGED)
    features = [
        evaluation.outputs(net, part)
        for net, part in ((psi, data.X), (phi, data.Z), (xi, data.O))
        if net and part is not None
    ]
    if not all(bool(((part - part.mean(0)) ** 2).mean(0).isfinite().all()) for part in features):
        raise ValueError(DIVERGED)
    online = evaluation.online(model)

    def again(one: float, two: float, split: Split = split) -> Layers:
        free = design.unpenalised
        return reestimated(model, data, split, per_sample(one), per_sample(two), free, calibrated=True)

    crossed = None
    unseen = torch.cat([held, split.second])
    if first is None:
        known = data.rows(unseen) if design.fixed else rows
        by_ridge = [evaluation.treatment_losses(model, again(ridge, RIDGES[0]), known) for ridge in FIRST]
        first = FIRST[evaluation.as_good(by_ridge).index(True)]
        if design.fixed:
            crossed = _crossed(model, data, split.first, unseen, lambda part, ridge: again(first, ridge, part))
    choices = [*((ridge, again(first, ridge)) for ridge in RIDGES), (0.0, online)]  # the layers of training come last
    losses = [evaluation.outcome_losses(model, layers, rows) for _, layers in choices]
    if not any(bool(loss.mean() < torch.inf) for loss in losses):
        raise ValueError(DIVERGED)
    return Contender(Member(design, psi, phi, xi, online, online, 0.0, losses[-1], first), choices, losses, crossed)


def _crossed(
    model: DFIV, data: Data, first: Tensor, unseen: Tensor, solved: Callable[[Split, float], Layers]
) -> list[Tensor]:
    """For every ridge of stage two the losses of the outcome on the rows that stage one has not seen, each by layers that
    were solved without it. Held-out rows alone, a seventh of all, do not tell a bend from a line until it is large."""
    losses = [torch.zeros(len(unseen), dtype=torch.float64) for _ in RIDGES]
    for out in _folds(len(unseen)):
        rows, split = data.rows(unseen[out]), Split(first, unseen[~out])
        for loss, ridge in zip(losses, RIDGES):
            loss[out] = evaluation.outcome_losses(model, solved(split, ridge), rows)
    return losses


def _folds(rows: int) -> list[Tensor]:
    """Which of the rows each fold leaves out."""
    return [torch.arange(rows) % FOLDS == fold for fold in range(FOLDS)]


@dataclass
class Contender:
    """Trained networks with every pair of layers that may be taken, and the losses of each on the held-out rows."""

    member: Member
    choices: list[tuple[float, Layers]]  # a ridge of stage two, 0 for the layers of training, and its layers
    losses: list[Tensor]
    crossed: list[Tensor] | None  # cross-validated losses of the re-estimated layers, where the features allow it

    def taking(self, at: int) -> Member:
        """The member that predicts with the layers `at`."""
        best = evaluation.as_good(self.losses[:-1]).index(True)  # of those that are re-estimated
        ridge, layers = self.choices[at]
        return replace(self.member, layers=layers, ridge=ridge, losses=self.losses[at], again=self.choices[best][1])


def pooled(contenders: list[Contender], ridge: float | None = None) -> list[Member]:
    """One choice of layers for all: by the mean of their losses, row by row. Each by itself would follow its own noise.
    `ridge` takes the layers of this ridge instead (0 for the layers of training)."""
    if ridge is not None:
        at = [value for value, _ in contenders[0].choices].index(ridge)
    elif contenders[0].crossed is not None:
        at = evaluation.as_good(_all_crossed(contenders), MARGIN).index(True)
    else:
        means = [torch.stack(losses).mean(0) for losses in zip(*(contender.losses for contender in contenders))]
        at = evaluation.as_good(means).index(True)
    return [contender.taking(at) for contender in contenders]


def chosen(
    designs: list[Design],
    data: Data,
    split: Split,
    held: Tensor,
    backbone: nn.Module | None,
    tick: Callable[[], None] | None = None,
    ridges: Ridges | None = None,
    line: Rival | None = None,
) -> tuple[Contender | None, list[Trial]]:
    """The best of several designs, which come from simple to complex, and the losses of all. Before them comes the line,
    where there is one; None in place of the best says that it is the line."""
    first, ridge = (None, None) if ridges is None else ridges[0]
    contenders = fitted(designs, data, [split] * len(designs), held, backbone, tick, [first] * len(designs))
    losses = [pooled([contender], ridge)[0].losses for contender in contenders]
    crossed = {k: _least(_all_crossed([c])) for k, c in enumerate(contenders) if c.crossed is not None}
    rivals: list[Contender | None] = [*contenders]
    if line is not None:
        rivals.append(None)
        losses.append(line.losses(torch.cat([split.first, split.second]), held))
        if crossed:
            unseen = torch.cat([held, split.second])
            crossed[len(contenders)] = line.crossed(split.first, unseen, _folds(len(unseen)))
    left = sorted(range(len(rivals)), key=lambda k: rivals[k] is not None)  # the line is the simplest
    fixed = [k for k in left if k in crossed]
    if fixed:  # of these the best by cross-validation goes on; with learned features only held-out rows can compare it
        winner = fixed[evaluation.as_good([crossed[k] for k in fixed], 0.0).index(True)]
        left = [k for k in left if k == winner or k not in fixed]
    good = evaluation.as_good([losses[k] for k in left])
    best = rivals[left[good.index(True)]]
    trials = []
    for k, rival in enumerate(rivals):
        design = None if rival is None else rival.member.design
        if len(fixed) == len(rivals):  # the losses that have decided
            trials.append(Trial(design, float(crossed[k].mean()), "cross-validated"))
        else:
            note = "" if k in left else "behind in cross-validation"
            trials.append(Trial(design, float(losses[k].mean()), note))
    return best, trials


def _all_crossed(contenders: list[Contender]) -> list[Tensor]:
    """Cross-validated losses by ridge, those of all members in a row."""
    return [torch.cat(losses) for losses in zip(*(contender.crossed or [] for contender in contenders))]


def _least(losses: list[Tensor]) -> Tensor:
    """The losses of the simplest ridge that is as good as the best."""
    return losses[evaluation.as_good(losses, MARGIN).index(True)]


def refitted(member: Member, data: Data, split: Split) -> Member:
    """The member with its layers solved on other rows of both stages; the layers of training stay as they are."""
    if member.ridge == 0:
        return member
    betas = per_sample(member.first), per_sample(member.ridge)
    return replace(member, layers=reestimated(member, data, split, *betas, member.design.unpenalised, calibrated=True))


def candidates(base: Design, treatment: str, inner: float | str) -> list[Design]:
    """What "auto" compares, from simple to complex."""
    treatments = (treatment,)
    sieves = tuple(SIEVES) if base.inputs <= networks.BUMPED and not base.controls else ("sieve",)
    if treatment == "sieve":
        treatments = sieves
    if treatment == "auto":
        treatments = ("linear", *sieves, "deep") if base.inputs <= SIEVE else ("linear", "deep")
        if base.inputs == 1 and not base.controls:  # of one column a sieve has every curve, and many rows choose it
            treatments = ("linear", *sieves)
    values = INNER if inner == "auto" or base.rule == "ridge" else (float(inner),)
    if base.rule == "ridge":
        values = values[:1]  # it has no lambda inside stage two
    designs = [replace(base, treatment=kind, inner=value) for kind in treatments for value in values]
    # the lambda inside stage two is about learning features: where none are learned one value will do
    return [design for design in designs if design.inner == values[0] or not (design.fixed or design.sieve)]
