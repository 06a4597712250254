"""The equations of `benchmarks/equations.py`, each with a solution that is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from closedform.equations import Box, Condition, Field, Problem, features, towards

PI = math.pi


@dataclass
class Case:
    """A problem, its domain and its solution `(n, D) -> (n, unknowns)`.

    smooth: whether the solution has no layer, corner or front.
    sampler: the domain, where it is not the whole box.
    coefficients: the true numbers of an inverse problem.
    corners: points that are named to the network.
    """

    name: str
    problem: Problem
    box: Box
    exact: Callable[[Tensor], Tensor]
    smooth: bool = True
    sampler: Callable[[int, torch.Generator], Tensor] | None = None
    coefficients: tuple[float, ...] = ()
    corners: tuple[tuple[float, ...], ...] = ()

    def points(self, n: int = 10_000) -> Tensor:
        """Where errors are measured."""
        return (self.sampler or self.box.inside)(n, torch.Generator().manual_seed(2**20))

    def error(self, u: Callable[[Tensor], Tensor]) -> float:
        """The relative L2 error."""
        x = self.points()
        truth = self.exact(x)
        return float((u(x).double() - truth).norm() / truth.norm())


def applied(
    operator: Callable[..., Tensor], exact: Callable[[Tensor], Tensor], order: int = 2
) -> Callable[[Tensor], Tensor]:
    """What an operator gives for a known solution: the right-hand side of a problem that has this solution."""

    def target(x: Tensor) -> Tensor:
        table = features(exact, x, order=order).table()
        columns = next(iter(table.values())).shape[1]
        return operator(*(Field(x, {axes: entry[:, [k]] for axes, entry in table.items()}) for k in range(columns)))

    return target


def value(u: Field) -> Tensor:
    return u.value


def dirichlet(box: Box, exact: Callable[[Tensor], Tensor], share: float = 0.25) -> Condition:
    return Condition(box.faces(), value, exact, name="edge", share=share)


SQUARE = Box((0.0, 0.0), (1.0, 1.0))


def on_square(name: str, operator: Callable[[Field], Tensor], exact: Callable[[Tensor], Tensor], **options) -> Case:
    inside = Condition(
        SQUARE.inside, operator, applied(operator, exact), name="inside", linear=options.pop("linear", True)
    )
    return Case(name, Problem([inside, dirichlet(SQUARE, exact)]), SQUARE, exact, **options)


def poisson() -> Case:
    return on_square(
        "Poisson", lambda u: u.laplacian, lambda x: torch.exp(x[:, :1] * x[:, 1:]) * torch.sin(PI * x[:, :1])
    )


def poisson_fast() -> Case:
    """Four times the frequency."""

    def exact(x: Tensor) -> Tensor:
        return torch.sin(4 * PI * x[:, :1]) * torch.sin(4 * PI * x[:, 1:])

    return on_square("Poisson, frequency 4", lambda u: u.laplacian, exact)


L_BOX = Box((-1.0, -1.0), (1.0, 1.0))


def _in_l(x: Tensor) -> Tensor:
    return ~((x[:, 0] > 0) & (x[:, 1] < 0))


def _l_exact(x: Tensor) -> Tensor:
    angle = torch.atan2(x[:, 1:], x[:, :1])
    angle = torch.where(angle < -1e-12, angle + 2 * PI, angle.clamp(min=0))
    return x.square().sum(1, keepdim=True) ** (1 / 3) * torch.sin(2 / 3 * angle)


def _l_outer(n: int, generator: torch.Generator) -> Tensor:
    """A quarter of the faces of the box is not there."""
    outer = L_BOX.faces()(4 * (n // 3 + 1), generator)
    return outer[_in_l(outer)][:n]


def _l_legs(n: int, generator: torch.Generator) -> Tensor:
    """The two sides that meet at the corner."""
    along = torch.rand(n, generator=generator, dtype=torch.float64)
    right = torch.arange(n) % 2 == 0
    return torch.stack([along * right, -along * ~right], 1)


def l_shape() -> Case:
    """Laplace's equation around a corner that points inwards, where the gradient is not bounded."""
    inside = L_BOX.where(_in_l)

    def edge(n: int, generator: torch.Generator) -> Tensor:
        return torch.cat([_l_outer(n, generator), _l_legs(n // 2 + 1, generator)])

    conditions = [
        Condition(inside, lambda u: u.laplacian, name="inside"),
        Condition(edge, value, _l_exact, name="edge", share=0.25),
    ]
    return Case("Laplace, L-shaped", Problem(conditions), L_BOX, _l_exact, smooth=False, sampler=inside)


def l_shape_corner() -> Case:
    """The same with the corner named: points and features are drawn in towards it, and the equation is multiplied by the
    square of the distance, or what is left near the corner would count without bound."""
    inside, corner = L_BOX.where(_in_l), (0.0, 0.0)
    conditions = [
        Condition(towards(inside, corner), lambda u: u.x.square().sum(1, keepdim=True) * u.laplacian, name="inside"),
        Condition(_l_outer, value, _l_exact, name="outer edge", share=0.25),
        Condition(towards(_l_legs, corner), value, name="sides of the corner", share=0.25),
    ]
    return Case(
        "L-shaped, corner named",
        Problem(conditions),
        L_BOX,
        _l_exact,
        smooth=False,
        sampler=inside,
        corners=(corner,),
    )


def helmholtz(k: float = 20.0) -> Case:
    """A plane wave."""

    def exact(x: Tensor) -> Tensor:
        return torch.cos(k * (0.8 * x[:, :1] + 0.6 * x[:, 1:]))

    return on_square("Helmholtz", lambda u: u.laplacian + k**2 * u.value, exact)


def advection_diffusion(eps: float = 0.02) -> Case:
    """A layer of width `eps` at the outflow."""

    def exact(x: Tensor) -> Tensor:
        a, b = x[:, :1], x[:, 1:]
        layer = (torch.exp((a - 1) / eps) - math.exp(-1 / eps)) / (1 - math.exp(-1 / eps))
        return (a - layer) * torch.sin(PI * b)

    return on_square("Advection-diffusion", lambda u: u.dx(0) - eps * u.laplacian, exact, smooth=False)


def in_time(name: str, box: Box, conditions: list[Condition], exact: Callable[[Tensor], Tensor], **options) -> Case:
    return Case(name, Problem(conditions), box, exact, **options)


def heat(kappa: float = 0.1) -> Case:
    def exact(x: Tensor) -> Tensor:
        a, t = x[:, :1], x[:, 1:]
        first = torch.sin(PI * a) * torch.exp(-kappa * PI**2 * t)
        return first + 0.5 * torch.sin(3 * PI * a) * torch.exp(-9 * kappa * PI**2 * t)

    conditions = [
        Condition(SQUARE.inside, lambda u: u.dx(1) - kappa * u.second(0, 0), name="inside"),
        Condition(SQUARE.faces(0), value, name="ends", share=0.25),
        Condition(SQUARE.face(1, 0), value, exact, name="start", share=0.25),
    ]
    return in_time("Heat", SQUARE, conditions, exact)


def wave() -> Case:
    box = Box((0.0, 0.0), (1.0, 2.0))

    def exact(x: Tensor) -> Tensor:
        a, t = x[:, :1], x[:, 1:]
        return torch.sin(PI * a) * torch.cos(PI * t) + 0.5 * torch.sin(4 * PI * a) * torch.cos(4 * PI * t)

    conditions = [
        Condition(box.inside, lambda u: u.second(1, 1) - u.second(0, 0), name="inside"),
        Condition(box.faces(0), value, name="ends", share=0.25),
        Condition(box.face(1, 0), value, exact, name="start", share=0.25),
        Condition(box.face(1, 0), lambda u: u.dx(1), name="speed", share=0.25),
    ]
    return in_time("Wave", box, conditions, exact)


def plate() -> Case:
    """A clamped plate: four derivatives."""

    def exact(x: Tensor) -> Tensor:
        return (torch.sin(PI * x[:, :1]) * torch.sin(PI * x[:, 1:])).square()

    def load(u: Field) -> Tensor:
        return u.biharmonic

    conditions = [
        Condition(SQUARE.inside, load, applied(load, exact, order=4), name="inside"),
        Condition(SQUARE.faces(), value, name="edge", share=0.25),
        Condition(SQUARE.faces(0), lambda u: u.dx(0), name="slope across x", share=0.125),
        Condition(SQUARE.faces(1), lambda u: u.dx(1), name="slope across y", share=0.125),
    ]
    return Case("Biharmonic plate", Problem(conditions), SQUARE, exact)


def elasticity(lam: float = 1.0, mu: float = 0.5) -> Case:
    """Navier-Cauchy: two displacements."""

    def exact(x: Tensor) -> Tensor:
        a, b = x[:, :1], x[:, 1:]
        return torch.cat([torch.cos(2 * PI * a) * torch.sin(PI * b), torch.sin(PI * a) * b**4], 1)

    def along_x(u: Field, v: Field) -> Tensor:
        return mu * u.laplacian + (lam + mu) * (u.second(0, 0) + v.second(0, 1))

    def along_y(u: Field, v: Field) -> Tensor:
        return mu * v.laplacian + (lam + mu) * (u.second(0, 1) + v.second(1, 1))

    conditions = [
        Condition(SQUARE.inside, along_x, applied(along_x, exact), name="force along x"),
        Condition(SQUARE.inside, along_y, applied(along_y, exact), name="force along y"),
        Condition(SQUARE.faces(), lambda u, v: u.value, lambda x: exact(x)[:, :1], name="edge of u", share=0.25),
        Condition(SQUARE.faces(), lambda u, v: v.value, lambda x: exact(x)[:, 1:], name="edge of v", share=0.25),
    ]
    return Case("Elasticity", Problem(conditions, unknowns=("u", "v")), SQUARE, exact)


def nonlinear_poisson() -> Case:
    def exact(x: Tensor) -> Tensor:
        return 2 * torch.sin(PI * x[:, :1]) * torch.sin(2 * PI * x[:, 1:])

    return on_square("Nonlinear Poisson", lambda u: u.laplacian - u.value**3, exact, linear=False)


def burgers(nu: float, name: str, smooth: bool) -> Case:
    """From -sin(pi x); the solution by Cole and Hopf's integral."""
    box = Box((-1.0, 0.0), (1.0, 1.0))
    nodes, masses = (torch.from_numpy(part) for part in np.polynomial.hermite.hermgauss(200))

    def exact(x: Tensor) -> Tensor:
        a, t = x[:, :1], x[:, 1:]
        y = a - torch.sqrt(4 * nu * t) * nodes
        exponent = -torch.cos(PI * y) / (2 * PI * nu)
        density = masses * torch.exp(exponent - exponent.max(1, keepdim=True).values)
        return -(torch.sin(PI * y) * density).sum(1, keepdim=True) / density.sum(1, keepdim=True)

    def flow(u: Field) -> Tensor:
        return u.dx(1) + u.value * u.dx(0) - nu * u.second(0, 0)

    conditions = [
        Condition(box.inside, flow, name="inside", linear=False),
        Condition(box.faces(0), value, name="ends", share=0.25),
        Condition(box.face(1, 0), value, lambda x: -torch.sin(PI * x[:, :1]), name="start", share=0.25),
    ]
    return Case(name, Problem(conditions), box, exact, smooth=smooth)


def inverse() -> Case:
    """Two sources of unknown strength, and 30 measurements inside."""
    strengths = (3.0, -2.0)

    def shapes(x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x[:, :1], x[:, 1:]
        return torch.sin(PI * a) * torch.sin(PI * b), torch.sin(2 * PI * a) * torch.sin(PI * b)

    def exact(x: Tensor) -> Tensor:
        first, second = shapes(x)
        return strengths[0] * first / (2 * PI**2) + strengths[1] * second / (5 * PI**2)

    def balance(u: Field, a: Field, b: Field) -> Tensor:
        first, second = shapes(u.x)
        return u.laplacian + a.value * first + b.value * second

    sensors = SQUARE.inside(30, torch.Generator().manual_seed(7))
    conditions = [
        Condition(SQUARE.inside, balance, name="inside"),
        Condition(SQUARE.faces(), lambda u, a, b: u.value, name="edge", share=0.25),
        Condition(sensors, lambda u, a, b: u.value, exact(sensors), name="sensors"),
    ]
    problem = Problem(conditions, coefficients=("a", "b"))
    return Case("Inverse source", problem, SQUARE, exact, coefficients=strengths)


def poisson_5d() -> Case:
    box = Box((0.0,) * 5, (1.0,) * 5)

    def exact(x: Tensor) -> Tensor:
        return torch.sin(PI * x).mean(1, keepdim=True) + x.prod(1, keepdim=True)

    def source(x: Tensor) -> Tensor:
        return -(PI**2) * torch.sin(PI * x).mean(1, keepdim=True)

    inside = Condition(box.inside, lambda u: u.laplacian, source, name="inside")
    return Case("Poisson, 5 dimensions", Problem([inside, dirichlet(box, exact, share=0.5)]), box, exact)


CASES: dict[str, Callable[[], Case]] = {
    "poisson": poisson,
    "poisson_fast": poisson_fast,
    "l_shape": l_shape,
    "l_shape_corner": l_shape_corner,
    "helmholtz": helmholtz,
    "advection_diffusion": advection_diffusion,
    "heat": heat,
    "wave": wave,
    "plate": plate,
    "elasticity": elasticity,
    "inverse": inverse,
    "poisson_5d": poisson_5d,
    "nonlinear_poisson": nonlinear_poisson,
    "burgers": lambda: burgers(0.1 / PI, "Burgers", smooth=True),
    "burgers_steep": lambda: burgers(0.01 / PI, "Burgers, steep", smooth=False),
}
