"""The tasks of the DFIV benchmark: the published figures, data, models of a setting, and how long a setting may train.

How many iterations a setting gets is no free choice: `iterations` gives as many as fit `SHARE` of the limit, a tenth of the
published time, by a model of the cost of an iteration in operations. It was fitted once (`python benchmarks/dfiv.py
--calibrate`) on the machine where the times are measured; so a search on any machine trains the same models.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from closedform.iv import DFIV, Data, Rules, Split, evaluation, networks, reestimated, train
from closedform.paper.data import demand, dsprites
from closedform.paper.data.iv import IVSample, StructuralPoints
from closedform.solver.lambdas import per_sample, relative

SHARE = 0.6  # of the limit, what a setting is meant to take: the model of the cost errs
HELD_OUT = 0.15  # of the rows of a task, in the search


@dataclass(frozen=True)
class Task:
    name: str
    design: str  # demand, or the structural function of sprites
    n: int
    published: tuple[float, ...]  # test errors of the published code, a seed each
    published_s: float | None  # seconds of its 100 iterations
    limit_s: float  # what ours may take

    @property
    def demand(self) -> bool:
        return self.design == "demand"


# At demand, n = 1000, the published time was not told. A full batch of a fifth of the rows takes a fifth of the time at the
# least, so a tenth of that is the strict limit; the limit of n = 5000 is the loose one.
_SMALL = (1689.0, 899.0, 924.0)
TASKS = (
    Task("sprites, the paper's f, n = 10000", "paper", 10000, (6.4,), 390.0, 39.0),
    Task("sprites, the paper's f, n = 5000", "paper", 5000, (8.8, 6.9, 9.0), 116.0, 11.6),
    Task("sprites, original f, n = 5000", "original", 5000, (1.96, 1.75, 3.02), 116.0, 11.6),
    Task("demand, n = 5000", "demand", 5000, (160.0, 196.0, 305.0), 16.0, 1.6),
    Task("demand, n = 1000", "demand", 1000, _SMALL, None, 0.32),
    Task("demand, n = 1000, loose limit", "demand", 1000, _SMALL, None, 1.6),
)
BY_NAME = {task.name: task for task in TASKS}


@dataclass(frozen=True)
class Setting:
    """Lambdas are relative to the mean square of the features in a batch, see `closedform.lambdas.relative`; networks are
    the widths of their layers, the last of them the features."""

    batch: int
    lr: float
    lam_1: float
    lam_2: float
    lam_12: float
    weight_decay: float
    T1: int
    fresh: bool
    order: str
    psi: str  # "linear", or widths such as "128-64"
    phi: str
    xi: str = ""
    pool: int = 0  # images are averaged over squares of so many pixels
    covariate_steps: int = 0
    ridge: float = 0.0  # of re-estimated layers, a sample, after standardisation; 0: the layers of training


def widths(text: str) -> list[int]:
    return [int(width) for width in text.split("-")]


# ---- Data ----------------------------------------------------------------------------------------


def matrix_digest() -> str:
    """Names the matrix of the original f, of which there is one where the file of the published code is at hand."""
    return hashlib.sha256(dsprites.matrix().tobytes()).hexdigest()[:16]


@functools.lru_cache(maxsize=2)
def draw(design: str, n: int, seed: int) -> IVSample:
    return demand.sample(n, seed) if design == "demand" else dsprites.sample(n, seed, design)


@functools.lru_cache(maxsize=2)
def points(design: str) -> tuple[StructuralPoints | None, StructuralPoints]:
    """Points to choose by, where there are any, and points to report."""
    if design == "demand":
        return None, demand.grid()
    return dsprites.validation_and_test(dsprites.grid(design))


class Problem:
    """Rows standardised by their own moments, and other rows by the same."""

    def __init__(self, sample: IVSample):
        self.mean_y, self.std_y = float(sample.y.mean()), float(sample.y.std())
        image = sample.X.shape[1] > 100
        self.X = (0.0, 1.0) if image else (sample.X.mean(0), sample.X.std(0))
        self.Z = sample.Z.mean(0), sample.Z.std(0)
        self.O = None if sample.O is None else (sample.O.mean(0), sample.O.std(0))
        self.data = self.scaled(sample)

    @staticmethod
    def _tensor(values: Any, moments: Any) -> torch.Tensor:
        return torch.as_tensor((values - moments[0]) / moments[1], dtype=torch.float32)

    def scaled(self, sample: IVSample) -> Data:
        y = self._tensor(sample.y, (self.mean_y, self.std_y))[:, None]
        O = None if self.O is None else self._tensor(sample.O, self.O)  # noqa: E741
        return Data(self._tensor(sample.X, self.X), self._tensor(sample.Z, self.Z), y, O)

    def error(self, model: DFIV, layers: evaluation.Layers, at: StructuralPoints) -> float:
        """Mean squared error of the structural function."""
        x = self._tensor(at.X, self.X)
        o = None if self.O is None else self._tensor(at.O, self.O)
        predicted = evaluation.predict(model, layers, x, o)
        return float(((predicted[:, 0].numpy() * self.std_y + self.mean_y - at.f) ** 2).mean())


# ---- Models --------------------------------------------------------------------------------------


def model_of(task: Task, setting: Setting, seed: int) -> DFIV:
    g = torch.Generator().manual_seed(seed)
    parts = []
    if task.demand:
        linear = setting.psi == "linear"
        parts += [(torch.nn.Identity(), 1) if linear else networks.beside([1, *widths(setting.psi)], g)]
    else:
        parts += [networks.pooled(dsprites.SIDE, setting.pool, widths(setting.psi), g)]
    parts += [networks.beside([3, *widths(setting.phi)], g)]
    if task.demand:
        parts += [networks.beside([2, *widths(setting.xi)], g)]
    return DFIV(
        *(net for net, _ in parts),
        widths=[width for _, width in parts],
        rules=Rules.proximal(relative(setting.lam_1), relative(setting.lam_2), relative(setting.lam_12)),
        lr=setting.lr,
        weight_decay=setting.weight_decay,
        T1=setting.T1,
        covariate_steps=setting.covariate_steps,
        order=setting.order,  # pyright: ignore[reportArgumentType]
        generator=g,
    )


def trained(task: Task, setting: Setting, problem: Problem, seed: int, count: int | None = None) -> tuple[DFIV, Split]:
    """A model after `count` iterations, or as many as the setting gets."""
    split = Split.halves(len(problem.data.y), seed)
    model = model_of(task, setting, seed)
    train(
        model,
        problem.data,
        split,
        iterations=count or iterations(task, setting),
        batch_size=setting.batch,
        lr=setting.lr,
        fresh=setting.fresh,
        seed=seed,
    )
    return model, split


def layers_of(setting: Setting, model: DFIV, problem: Problem, split: Split) -> evaluation.Layers:
    if not setting.ridge:
        return evaluation.online(model)
    return reestimated(model, problem.data, split, evaluation.BETA_1, per_sample(setting.ridge))


# ---- What an iteration costs ---------------------------------------------------------------------

# Seconds: of an iteration, of a gradient step with its solve, and of a million of: pixels read, multiplications of the
# networks, multiplications of the solves. By `calibrate` in dfiv.py.
COSTS = (0.7e-3, 0.97e-3, 1.4e-3, 4.6e-5, 7.3e-5)


def _solve(rows: int, features: int, outputs: int) -> float:
    small, large = min(rows, features), max(rows, features)
    return small**2 * large + small**3 / 3 + 2 * small * large * outputs


def _multiplications(inputs: int, text: str) -> int:
    sizes = [inputs, *widths(text)]
    return sum(a * b for a, b in zip(sizes, sizes[1:]))


def work(task: Task, setting: Setting) -> tuple[list[float], list[float]]:
    """What `COSTS` are the prices of: in an iteration, and in re-estimation."""
    s, step = setting, setting.order == "step"
    half = task.n // 2
    rows = min(s.batch, half)
    draws = s.T1 if s.fresh and rows < half else 1
    deep = s.psi != "linear"
    side = dsprites.SIDE // max(s.pool, 1)
    inputs, pixels = (1, 0) if task.demand else (side**2, dsprites.SIDE**2)
    psi = _multiplications(inputs, s.psi) if deep else 0
    d = (widths(s.psi)[-1] if deep else 0) + task.demand
    phi, k = _multiplications(3, s.phi), widths(s.phi)[-1] + 4
    xi, q = (_multiplications(2, s.xi), widths(s.xi)[-1] + 3) if task.demand else (0, 1)
    F = (d + 1) * q
    again = step + (s.covariate_steps > 0)  # psi and the layer inside, once more
    taken = draws + 1 + again  # batches of psi, one of them with its gradient
    nets = rows * (psi * (taken + 2) + phi * (s.T1 * (3 + step) + 2) + xi * (3 * max(1, s.covariate_steps) + again))
    solves = (s.T1 + 1 + again) * _solve(rows, k, d) + (1 + s.covariate_steps) * _solve(rows, F, 1)
    solves += 10.0 * rows * F * (1 + s.covariate_steps + step)
    steps = s.T1 + s.covariate_steps + deep + (task.demand and not s.covariate_steps) + 0.25 * step * (s.T1 + 1)
    an_iteration = [1.0, steps, taken * rows * pixels, nets, solves]
    ending = [0.0, 0.0, half * pixels, half * (psi + 2 * phi + xi), _solve(half, k, d) + _solve(half, F, 1)]
    scale = [1.0, 1.0, 1e-6, 1e-6, 1e-6]
    return [a * b for a, b in zip(an_iteration, scale)], [a * b for a, b in zip(ending, scale)]


def _price(amounts: list[float]) -> float:
    return sum(cost * amount for cost, amount in zip(COSTS, amounts))


def iterations(task: Task, setting: Setting) -> int:
    """As many as fit, with a re-estimation at the end; whether there is one does not change their number."""
    an_iteration, ending = work(task, setting)
    return max(1, int((SHARE * task.limit_s - _price(ending)) / _price(an_iteration)))
