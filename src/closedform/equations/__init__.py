"""Differential equations by networks whose last layer is solved.

A linear differential operator acts on a network with a linear last layer through its features, `L[phi W^T] = L[phi] W^T`,
so the weights are the solution of a least-squares problem with a row for every point.

The equation `u'' = -u` with `u(0) = 0` and `u'(0) = 1`:

>>> import torch
>>> from closedform.equations import Box, Condition, Problem, network, solve
>>> line = Box([0.0], [3.0])
>>> start = torch.zeros(1, 1)
>>> problem = Problem([
...     Condition(line.inside, lambda u: u.second(0, 0) + u.value),
...     Condition(start, lambda u: u.value, 0.0),
...     Condition(start, lambda u: u.dx(0), 1.0),
... ])
>>> solution = solve(problem, network(line, features=32, scale=2.0), steps=0)
>>> x = torch.linspace(0, 3, 50, dtype=torch.float64)[:, None]
>>> bool((solution(x) - torch.sin(x)).abs().max() < 1e-8)
True
"""

from .domains import Box, towards
from .fields import Field
from .jets import Sine, features
from .networks import best_network, network
from .problem import Condition, Problem
from .slabs import March, march
from .solution import Solution
from .solving import solve

__all__ = [
    "Box",
    "Condition",
    "Field",
    "March",
    "Problem",
    "Sine",
    "Solution",
    "best_network",
    "features",
    "march",
    "network",
    "solve",
    "towards",
]
