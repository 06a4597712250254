"""Differential equations: a solved last layer against a learned one, equal seconds on one core.

Five ways to each problem of `equations_problems.py`:

* solved: `best_network` with 1,024 features (shared among the unknowns) and one solve, without training the backbone;
* trained: the same with fewer features, and the backbone trained between solves;
* learned: the network of `solved` with an ordinary last layer, trained as a physics-informed network is: Adam for two thirds
  of the time, then L-BFGS, float64;
* DeepXDE: its default (four layers of 50 tanh units, Adam at 1e-3, float32, points fixed), where it is installed;
* spectral: products of Chebyshev polynomials in place of the network's features, by the same least squares, in two
  dimensions; finite differences on the L-shaped domain.

Errors are relative L2 at 10,000 points of their own. Seconds are of one core's processor time, which other work on the
machine does not lengthen. `learned` and `DeepXDE` have as many as the slower of the two solved ways took, and at least 12.
One seed.

A run that was stopped goes on with the problems that are missing. Rows that other code of the solver or other settings have
made are dropped: a table has one version of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import closedform.equations
from closedform.equations import Box, Field, Problem, best_network, solve
from closedform.equations.fields import Lazy
from closedform.equations.problem import PointBatch
from closedform.files import atomic
from common import RESULTS, code, environment
from equations_problems import CASES, Case

QUESTION = (
    "How small is the error of a solved last layer on differential equations, against a learned one in equal time?"
)
FEATURES, TRAINED_FEATURES, STEPS, LEAST_S = 1024, 192, 120, 12.0
QUICK = ("poisson", "advection_diffusion", "nonlinear_poisson")
Curve = list[tuple[float, float]]  # seconds, relative error


# ---- Solved ------------------------------------------------------------------------------------------


def solved(case: Case, features: int) -> tuple[dict, nn.Sequential]:
    begin = time.process_time()
    backbone = best_network(case.problem, case.box, features, corners=case.corners)
    chosen_s = time.process_time() - begin
    solution = solve(case.problem, backbone, steps=0)
    seconds = time.process_time() - begin
    first = next(layer for layer in backbone if isinstance(layer, nn.Linear))
    slopes = first.weight.detach().abs().max(0).values.tolist()
    row = {
        "error": case.error(solution),
        "seconds": seconds,
        "choosing_s": chosen_s,
        "features": features,
        "activation": type(backbone[-1]).__name__,
        "slopes": [round(slope, 2) for slope in slopes],
        "relative_residual": solution.relative_residual,
        "spread": solution.spread,
        "beta": solution.beta,
    }
    if case.coefficients:
        row["coefficients"] = solution.coefficients
    return row, backbone


def trained(case: Case, features: int, steps: int) -> dict:
    """With errors along the way: the clock stands still while they are measured."""
    begin, paused = time.process_time(), 0.0
    backbone = best_network(case.problem, case.box, features, corners=case.corners)
    curve: Curve = []

    def measure(step: int, total: int, loss: float) -> None:
        nonlocal paused
        if step % max(1, total // 5) == 0 and step < total:
            before = time.process_time()
            now = solve(case.problem, backbone, steps=0)
            solved_s = time.process_time() - before
            curve.append((before - begin - paused + solved_s, case.error(now)))
            paused += time.process_time() - before

    before = time.process_time()
    untrained = solve(case.problem, backbone, steps=0)
    curve.append((time.process_time() - begin, case.error(untrained)))
    paused += time.process_time() - before
    solution = solve(case.problem, backbone, steps=steps, progress=measure)
    seconds = time.process_time() - begin - paused
    curve.append((seconds, case.error(solution)))
    return {
        "error": curve[-1][1],
        "untrained_error": curve[0][1],
        "seconds": seconds,
        "features": features,
        "steps": steps,
        "relative_residual": solution.relative_residual,
        "spread": solution.spread,
        "curve": curve,
    }


# ---- Learned -----------------------------------------------------------------------------------------


class Learned(nn.Module):
    """The same features with a layer that learns."""

    def __init__(self, backbone: nn.Sequential, problem: Problem):
        super().__init__()
        self.problem, self.backbone = problem, backbone
        width = backbone[-2].out_features
        self.head = nn.Linear(width, len(problem.unknowns), dtype=torch.float64)
        self.numbers = nn.Parameter(torch.zeros(len(problem.coefficients), dtype=torch.float64))

    def weights(self) -> Tensor:
        layer = torch.cat([self.head.weight, self.head.bias[:, None]], 1)
        return torch.cat([layer.flatten(), self.numbers])

    def loss(self, batches: list[PointBatch]) -> Tensor:
        """The sum of the mean squared residuals, as usual."""
        parts = [
            self.problem.residual(at, self.problem.features(self.backbone, at, batch), self.weights(), batch)
            for at, batch in enumerate(batches)
        ]
        return torch.stack([part.square().mean() for part in parts]).sum()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.head(self.backbone(x))


def learned(case: Case, backbone: nn.Sequential, seconds: float, points: int = 1024) -> dict:
    torch.manual_seed(0)
    model, curve, clock = Learned(backbone, case.problem), [], _Clock()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    steps = 0
    while clock.seconds() < 2 / 3 * seconds:
        adam.zero_grad()
        model.loss(case.problem.draw(points, generator)).backward()
        adam.step()
        steps += 1
        _mark(curve, clock, seconds, case, model)
    batches = case.problem.draw(points, generator)
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=10, history_size=50, line_search_fn="strong_wolfe")
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def closure() -> Tensor:
        lbfgs.zero_grad()
        loss = model.loss(batches)
        loss.backward()
        return loss

    while clock.seconds() < seconds:
        loss = lbfgs.step(closure)
        if not torch.isfinite(loss):  # what a user would do: the last sound state
            for parameter, old in zip(model.parameters(), before):
                parameter.data.copy_(old)
            break
        before = [parameter.detach().clone() for parameter in model.parameters()]
        _mark(curve, clock, seconds, case, model)
    curve.append((clock.seconds(), case.error(model)))
    return {"error": curve[-1][1], "seconds": clock.seconds(), "adam_steps": steps, "curve": curve}


class _Clock:
    """Seconds of work; what happens in `pause` does not count."""

    def __init__(self) -> None:
        self._begin = time.process_time()

    def seconds(self) -> float:
        return time.process_time() - self._begin

    @contextlib.contextmanager
    def pause(self):
        before = time.process_time()
        yield
        self._begin += time.process_time() - before


def _mark(curve: Curve, clock: _Clock, seconds: float, case: Case, model: Callable[[Tensor], Tensor]) -> None:
    """A point of the curve, ten times in all."""
    if clock.seconds() > (len(curve) + 1) * seconds / 10:
        now = clock.seconds()
        with clock.pause():
            curve.append((now, case.error(model)))


# ---- DeepXDE -----------------------------------------------------------------------------------------


def deepxde(case: Case, seconds: float) -> dict | None:
    """Its defaults on the same conditions. Operators of ours act on its outputs through a field of its derivatives."""
    if case.coefficients:
        return None
    os.environ["DDE_BACKEND"] = "pytorch"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            import deepxde as dde
    except ImportError:
        return None
    torch.set_default_device("cpu")
    problem, D, o = case.problem, case.box.dimension, len(case.problem.unknowns)
    generator = torch.Generator().manual_seed(0)
    batches = problem.draw(1024, generator)

    def fields(x: Tensor, y: Tensor) -> list[Field]:
        def entry(k: int, axes: tuple[int, ...]) -> Tensor:
            value = y[:, k : k + 1]
            for axis in axes:
                value = torch.autograd.grad(value.sum(), x, create_graph=True)[0][:, axis : axis + 1]
            return value

        return [Field(x, Lazy(lambda axes, k=k: entry(k, axes))) for k in range(o)]

    def constraint(at: int):
        x, _, target = batches[at]
        values = torch.as_tensor(target, dtype=torch.float64).expand(len(x), 1).numpy()
        operator = problem.conditions[at].operator
        return dde.icbc.PointSetOperatorBC(
            x.numpy(), values, lambda inputs, outputs, X: operator(*fields(inputs, outputs))
        )

    geometry = dde.geometry.Hypercube(list(case.box.low), list(case.box.high))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        dde.config.set_random_seed(0)
        # every condition, the equation too, is a set of points with an operator; its own equation has one point and is zero
        constraints = [constraint(at) for at in range(len(batches))]
        data = dde.data.PDE(geometry, lambda x, y: 0 * y[:, :1], constraints, num_domain=1, num_boundary=0)
        net = dde.nn.FNN([D] + [50] * 4 + [o], "tanh", "Glorot normal")
        model = dde.Model(data, net)
        model.compile("adam", lr=1e-3)
        curve, clock, steps = [], _Clock(), 0

        def predict(x: Tensor) -> Tensor:
            return torch.from_numpy(model.predict(x.numpy().astype("float32")))

        while clock.seconds() < seconds:
            model.train(iterations=20, display_every=10**9, verbose=0)
            steps += 20
            _mark(curve, clock, seconds, case, predict)
        curve.append((clock.seconds(), case.error(predict)))
    return {"error": curve[-1][1], "seconds": clock.seconds(), "adam_steps": steps, "curve": curve}


# ---- What people had before networks -----------------------------------------------------------------


class Chebyshev(nn.Module):
    """Products of Chebyshev polynomials on a box in two dimensions, as a backbone without parameters."""

    def __init__(self, box: Box, degree: int):
        super().__init__()
        self.low, self.high = torch.tensor([box.low, box.high], dtype=torch.float64)
        self.degree = degree

    def forward(self, x: Tensor) -> Tensor:
        z = (2 * x - self.low - self.high) / (self.high - self.low)
        terms = [torch.ones_like(z), z]
        for _ in range(self.degree - 1):
            terms.append(2 * z * terms[-1] - terms[-2])
        a, b = torch.stack(terms, -1).unbind(1)
        return (a[:, :, None] * b[:, None, :]).flatten(1)[:, 1:]  # the constant is the layer's bias


def spectral(case: Case, degree: int) -> dict | None:
    if case.box.dimension != 2 or case.sampler is not None:
        return None
    begin = time.process_time()
    solution = solve(case.problem, Chebyshev(case.box, degree), steps=0)
    return {"error": case.error(solution), "seconds": time.process_time() - begin, "degree": degree}


def finite_differences(case: Case, cells: int = 400) -> dict:
    """Laplace's equation on the L-shaped domain by the five-point formula, bilinear in between."""
    import numpy as np
    from scipy.interpolate import RegularGridInterpolator
    from scipy.sparse import coo_matrix
    from scipy.sparse.linalg import spsolve

    begin = time.process_time()
    axis = np.linspace(-1, 1, cells + 1)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    inside = (abs(x) < 1 - 1e-9) & (abs(y) < 1 - 1e-9) & ~((x > -1e-9) & (y < 1e-9))
    u = case.exact(torch.from_numpy(np.stack([x.ravel(), y.ravel()], 1))).numpy().reshape(x.shape)
    number = np.full(x.shape, -1)
    number[inside] = np.arange(inside.sum())
    i, j = np.nonzero(inside)
    rows, columns, values, right = [number[i, j]], [number[i, j]], [np.full(len(i), 4.0)], np.zeros(len(i))
    for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        there = number[i + di, j + dj]
        known = there < 0
        right[known] += u[i + di, j + dj][known]
        rows.append(number[i, j][~known])
        columns.append(there[~known])
        values.append(np.full((~known).sum(), -1.0))
    matrix = coo_matrix((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))).tocsr()
    u[inside] = spsolve(matrix, right)
    table = RegularGridInterpolator((axis, axis), u)
    error = case.error(lambda points: torch.from_numpy(table(points.numpy()))[:, None])
    return {"error": error, "seconds": time.process_time() - begin, "cells": cells}


# ---- All of them -------------------------------------------------------------------------------------


def compare(name: str, quick: bool) -> dict:
    case = CASES[name]()
    features, least = (192, 3.0) if quick else (FEATURES // len(case.problem.unknowns), LEAST_S)
    row: dict = {"problem": name, "title": case.name, "linear": case.problem.linear, "smooth": case.smooth}
    row["solved"], backbone = solved(case, features)
    row["trained"] = trained(case, 96 if quick else TRAINED_FEATURES, 20 if quick else STEPS)
    seconds = max(least, row["solved"]["seconds"], row["trained"]["seconds"])
    row["learned"] = learned(case, backbone, seconds)
    row["deepxde"] = deepxde(case, seconds)
    row["spectral"] = finite_differences(case) if name.startswith("l_shape") else spectral(case, 12 if quick else 22)
    return row


def version(quick: bool) -> str:
    """Names what makes the rows: the settings and the code of the solver, the problems and the peers, without comments and
    docstrings."""
    here = [Path(__file__), Path(__file__).with_name("equations_problems.py")]
    sources = [*sorted(Path(closedform.equations.__file__).parent.glob("*.py")), *here]
    return code(sources, quick, FEATURES, TRAINED_FEATURES, STEPS, LEAST_S)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three problems and few features: a minute")
    parser.add_argument("--only", nargs="*", choices=CASES, help="these problems, once more where they are there")
    parser.add_argument("--out", type=Path, help="benchmarks/results/equations.json otherwise (--quick: none)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    out = args.out or (None if args.quick else RESULTS / "equations.json")
    made_by = version(args.quick)
    rows: dict[str, dict] = {}
    if out is not None and out.is_file():
        rows = {row["problem"]: row for row in json.loads(out.read_text())["rows"] if row.get("made_by") == made_by}
    names = QUICK if args.quick else list(CASES)
    for name in args.only or [name for name in names if name not in rows]:
        rows[name] = row = compare(name, args.quick) | {"made_by": made_by}
        errors = {way: row[way]["error"] for way in ("solved", "trained", "learned", "deepxde", "spectral") if row[way]}
        print(f"{row['title']:24s}", *(f"{way} {error:.1e}" for way, error in errors.items()), flush=True)
        body = {
            "question": QUESTION,
            "environment": environment("cpu"),
            "rows": [rows[key] for key in CASES if key in rows],
        }
        if out is not None:
            with atomic(out) as file:
                text = json.dumps(body, separators=(",", ":")).replace('{"problem"', '\n{"problem"')
                file.write(text.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
