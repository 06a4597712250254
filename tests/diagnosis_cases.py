"""A healthy last layer, and data as a loader has them, for the tests of diagnoses."""

import closedform as cf
from closedform.theory import critical_points as cp

from .helpers import head, problem


def whole(phi, y, size=10):
    return [(phi[i : i + size], y[i : i + size]) for i in range(0, len(phi), size)]


def healthy(n=400, d=20):
    phi, y = problem(n, d, 2, condition=30.0)
    y = cp.split(phi, y).attainable + 0.1 * y
    layer = head(d, 2, cf.Kalman(lam=1e-3))
    for _ in range(40):
        layer.solve(phi, y)
    return phi, y, layer
