"""Differential equations whose last layer is solved: Poisson on a square, and a layer that the network must find.

    python examples/poisson.py [--quick]

A linear operator acts on a network through its features, so the weights of the last layer are a least-squares solution, with
a row for every point: inside, the operator on the features; on the edge, the features themselves. Beside it the same
network, trained as a physics-informed network usually is, its last layer learned by Adam.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor, nn

from closedform.equations import Box, Condition, Field, Problem, best_network, network, solve

SQUARE = Box((0.0, 0.0), (1.0, 1.0))


def exact(x: Tensor) -> Tensor:
    return torch.sin(math.pi * x[:, :1]) * torch.sin(2 * math.pi * x[:, 1:])


def poisson() -> Problem:
    """The Laplacian is known inside, the value on the edge."""
    return Problem(
        [
            Condition(SQUARE.inside, lambda u: u.laplacian, lambda x: -5 * math.pi**2 * exact(x), name="inside"),
            Condition(SQUARE.faces(), lambda u: u.value, 0.0, name="edge", share=0.25),
        ]
    )


def boundary_layer(eps: float = 0.02) -> Problem:
    """Flow to the right with a little diffusion: the solution is flat and falls to 0 over a width of `eps`."""

    def balance(u: Field) -> Tensor:
        return u.dx(0) - eps * u.second(0, 0)

    ends = torch.tensor([[0.0], [1.0]])
    return Problem(
        [
            Condition(Box([0.0], [1.0]).inside, balance, name="inside"),
            Condition(ends, lambda u: u.value, torch.tensor([1.0, 0.0]), name="ends"),
        ]
    )


def learned(problem: Problem, backbone: nn.Sequential, steps: int) -> nn.Sequential:
    """An ordinary physics-informed network: a gradient step for all layers."""
    model = nn.Sequential(*backbone, nn.Linear(backbone[0].out_features, 1, dtype=torch.float64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        weights = torch.cat([model[-1].weight, model[-1].bias[:, None]], 1).flatten()
        loss = torch.zeros((), dtype=torch.float64)
        for at, batch in enumerate(problem.draw(512, generator)):
            u = problem.features(model[:-1], at, batch)
            loss = loss + problem.residual(at, u, weights, batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def main(quick: bool = False) -> dict[str, float]:
    x = torch.rand(2000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def error(u) -> float:
        with torch.no_grad():
            return float((u(x) - exact(x)).norm() / exact(x).norm())

    errors, features = {}, 128 if quick else 512
    begin = time.perf_counter()
    backbone = best_network(poisson(), SQUARE, features, trial_features=128)
    solution = solve(poisson(), backbone, steps=0)
    errors["solved"] = error(solution)
    print(f"Poisson, solved: relative error {errors['solved']:.1e} in {time.perf_counter() - begin:.1f} s\n{solution}")

    begin = time.perf_counter()
    errors["learned"] = error(learned(poisson(), backbone, 50 if quick else 1000))
    print(f"Poisson, learned: relative error {errors['learned']:.1e} in {time.perf_counter() - begin:.1f} s")

    line = torch.linspace(0, 1, 500, dtype=torch.float64)[:, None]
    layer = (1 - torch.exp((line - 1) / 0.02)) / (1 - math.exp(-1 / 0.02))
    for name, steps in (("untrained", 0), ("trained", 150)):
        u = solve(boundary_layer(), network(Box([0.0], [1.0]), 16, scale=4.0), steps=steps, points=128, lr=0.05)
        errors[name] = float((u(line) - layer).norm() / layer.norm())
        print(f"boundary layer, 16 features, {name}: relative error {errors[name]:.1e}")
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    main(parser.parse_args().quick)
