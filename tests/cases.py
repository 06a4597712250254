"""The grid that the tests of mathematics run over."""

from __future__ import annotations

import itertools

import pytest

SHAPES = {"n<d": (5, 9), "n=d": (9, 9), "n=d+1": (10, 9), "n>d": (30, 9), "n=1": (1, 4), "d=1": (6, 1)}
OUTPUTS = (1, 3)

shapes = pytest.mark.parametrize(
    ("n", "d", "o", "bias"),
    [
        pytest.param(n, d, o, bias, id=f"{name}-o={o}-{'bias' if bias else 'nobias'}")
        for (name, (n, d)), o, bias in itertools.product(SHAPES.items(), OUTPUTS, (True, False))
    ],
)
conditions = pytest.mark.parametrize("condition", [1.0, 1e3, 1e6, 1e9, 1e12])
lams = pytest.mark.parametrize("lam", [1e-12, 1e-6, 1e-3, 1.0, 1e3])
