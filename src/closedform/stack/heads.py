"""The last layers of models side by side: a rule, its memory, and the guard."""

from __future__ import annotations

import torch
from torch import Tensor

from ..solver import guard, route
from ..solver.batch import Batch
from ..solver.rules import Rule


class Heads:
    """Solved layers `W (M, o, D)` of several models, or one, `(o, D)`; with `bias` the last column is that.

    rule: of all models together, see `solver.stacks.side_by_side`.
    exact: whether all of float64's digits are asked for; see `solver.route.precision`.
    """

    def __init__(self, W: Tensor, rule: Rule, *, bias: bool = True, exact: bool = True):
        self.W, self.rule, self.bias, self.exact = W, rule, bias, exact
        *lead, o, D = W.shape
        self.memory = rule.memory(D, o, W.device, *lead)
        self.step = torch.zeros(
            (), dtype=torch.long, device=W.device
        )  # of one layer the accepted solves, else all of them
        self.rejected = torch.zeros(lead, dtype=torch.long, device=W.device)
        self._later = False

    @torch.no_grad()
    def solve(self, phi: Tensor, y: Tensor, weight: Tensor | None = None, residual: Tensor | None = None) -> None:
        """Take in a batch of features `(M, n, d)` and targets `(M, n, o)`. A model whose solve fails, or is not finite,
        keeps its layer and its memory.

        residual: `y - phi W^T`, where the caller has it already."""
        batch = Batch(phi, y, weight, self.bias, residual=residual, exact=self.exact, later=self._later)
        new = self.rule.update(
            self.W.to(route.precision(self.W.device)) if self.exact else self.W, batch, self.memory, self.step
        )
        take = guard.accepted(new.ok, new.W, new.memory, self.W.dtype)
        self.W.copy_(guard.chosen(take, new.W, self.W))
        for name, tensor in new.memory.items():
            otherwise = self.memory[name] if new.reset is None or name not in new.reset else new.reset[name]
            self.memory[name].copy_(guard.chosen(take, tensor, otherwise))
        self.step += 1 if take.ndim else take
        self.rejected += ~take
        if "prior" in self.memory and not self._later:
            self.restored()

    def restored(self) -> None:
        """To be called after the state was written: looks whether every model has taken in a batch, after which nothing has
        to be set up. (Never while a graph is being captured, which cannot wait.)"""
        capturing = self.W.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        prior = self.memory.get("prior")
        self._later = not capturing and prior is not None and bool((prior > 0).all())

    def state(self) -> dict[str, Tensor]:
        """What training changes beside the layers."""
        return {"step": self.step, "rejected": self.rejected, **self.memory}

    def variance(self, X: Tensor) -> Tensor:
        """Predictive variance of every output for extended features `(M, n, D)`, where the rule keeps a covariance."""
        return self.rule.variance(X, self.memory)  # pyright: ignore[reportAttributeAccessIssue]
