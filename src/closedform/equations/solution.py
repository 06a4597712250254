"""What `solve` returns: a function, its derivatives, and how far to trust it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .fields import Axes, Field
from .jets import features
from .problem import Problem

_CHUNK = 8192  # points at a time, so that a picture of a million pixels fits in memory


@dataclass
class Solution:
    """A solved problem. Called with points `(n, D)` it gives the unknown functions there, `(n, unknowns)`.

    weights: those of the last layer, `(unknowns, d + 1)`, the bias last.
    coefficients: the unknown numbers of an inverse problem, by name.
    residuals: for each condition the root mean square of `operator(u) - target` at points that no solve has used (at its own
        points, where they are fixed).
    row_norms: for each condition the root mean square of the norms of its rows, which it was divided by.
    relative_residual: the residuals of all conditions, balanced as in the solve, in relation to the targets.
    spread: the relative difference, at fresh points of all conditions, from the solution without an eighth of the features.
        Where the solution is smooth it is of the order of the error; at fronts and corners it can be far off.
    beta: the ridge penalty that was chosen, relative to the sum of the squared rows; 0 is the minimum-norm solution.
    losses: the loss of every training step.
    """

    problem: Problem
    backbone: Callable[[Tensor], Tensor]
    weights: Tensor
    coefficients: dict[str, float]
    residuals: dict[str, float]
    row_norms: dict[str, float]
    relative_residual: float
    spread: float
    beta: float
    rows: int
    losses: list[float]
    seconds: float

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        parts = []
        for part in self._points(x).split(_CHUNK):
            phi = features(self.backbone, part, order=0).extended().value
            parts.append(phi @ self.weights.T)
        return torch.cat(parts)

    @torch.no_grad()
    def fields(self, x: Tensor, derivatives: Iterable[Axes]) -> list[Field]:
        """Every unknown function with these derivatives at the points, as the operators see it: entries `(n, 1)`."""
        u = features(self.backbone, self._points(x), derivatives=derivatives).extended()
        return [u.contracted(weights) for weights in self.weights]

    def _points(self, x: Tensor) -> Tensor:
        x = torch.as_tensor(x).to(self.weights)
        if x.ndim != 2 or x.shape[1] != self.problem.dimension:
            raise ValueError(f"points must have the shape (n, {self.problem.dimension}), got {tuple(x.shape)}")
        return x

    def __str__(self) -> str:
        lines = [
            f"{', '.join(self.problem.unknowns)} by {self.weights.shape[1]} features from {self.rows} rows in "
            f"{self.seconds:.1f} s; beta {self.beta:g}",
            f"  relative residual {self.relative_residual:.1e} at points that were not used",
            f"  relative spread without an eighth of the features {self.spread:.1e}",
        ]
        lines += [f"  {name}: residual {value:.1e}" for name, value in self.residuals.items()]
        lines += [f"  {name} = {value:.6g}" for name, value in self.coefficients.items()]
        return "\n".join(lines)
