"""A whole grid of instrumental-variable models (Algorithm 3 of the paper) trained as one, on one seed's rows.

Every parameter and every solved layer gets a leading model axis, as in `closedform.stack.models`, and models are the
leading axis and rows the last one: features `(M, d, n)`. All models see the same batches, so the first layer of each network
is one product. The gradient through `W*(theta_X)` is written out: with `S = (X X^T + lam)^-1 X` of the stage-one batch,

    psi_hat = W* X_2,    W* = keep W + (psi - keep W X) S^T,    so    d psi = (d psi_hat X_2^T) S

Each model equals `closedform.iv.train` with the order "step" and one stage-one batch for all T1 steps, to rounding, as long
as its solves succeed. One whose solve fails inside stage two keeps its weights in that step, but its moments of Adam decay
and its steps are counted on, which `closedform.iv.train` leaves as they were. One that diverges disturbs no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..solver import linalg
from ..solver.batch import Batch
from ..solver.lambdas import per_sample
from ..solver.rules import Kalman, Penalised
from ..solver.stacks import check_side_by_side, side_by_side
from ..solver.systems import least_squares
from ..stack import optimizers
from ..stack.heads import Heads
from ..stack.models import WARM, _products
from ..stack.networks import Parameters, Perceptron
from ..stack.states import take_back
from . import DFIV, Data, Rules, Split, evaluation
from .loop import batches
from .networks import Pool

MEMORY = {"cuda": 1 << 31, "cpu": 1 << 26}  # bytes of the widest layer, when features of many rows are made


@dataclass(frozen=True)
class IVCandidate:
    """One model: how its layers are solved, and its learning rate."""

    lr: float
    rules: Rules

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"a candidate needs a positive learning rate, got lr={self.lr}")
        for rule in (self.rules.first, self.rules.inner, self.rules.second):
            check_side_by_side(rule)
            if isinstance(rule, Kalman):
                raise ValueError(f"a stack of instrumental-variable models takes Ridge and Proximal, got {rule}")


class Points(NamedTuple):
    """Treatments and the structural function there, in the units of the training outcomes."""

    X: Tensor
    f: Tensor


class _Net:
    """A network of all models with its optimizer; images are averaged before they come here."""

    def __init__(self, net: nn.Module, count: int, decay: float, device: torch.device):
        self.pool = net[0] if isinstance(net, nn.Sequential) and isinstance(net[0], Pool) else nn.Identity()
        body = net[1] if isinstance(net, nn.Sequential) and isinstance(net[0], Pool) else net
        self.stacked = Perceptron.of(body)
        self.width = self.stacked.width
        self.widest = max(p.shape[0] for p in body.parameters())
        self.params = Parameters([p.repeat_interleave(count, 0) for p in self.stacked.params([body])], device)
        self.optimizer = optimizers.Adam(decay=decay)
        self.states = [self.optimizer.state(p) for p in self.params.views]

    def prepared(self, X: Tensor) -> Tensor:
        with torch.no_grad():
            return self.stacked.prepared(self.pool(X))

    def __call__(self, x: Tensor) -> Tensor:
        """Features `(M, d, n)` of prepared rows `(n, f)`."""
        return self.seen(x)[0]

    def seen(self, x: Tensor) -> tuple[Tensor, Any]:
        """The features, and what `descend` has to know of them."""
        return self.stacked.forward(self.params.views, x[None])

    def descend(self, seen: Any, gradient: Tensor, lr: Tensor, t: Tensor) -> None:
        """A step along the gradient of the features; models whose gradient is not finite keep their weights, though
        their moments decay as by a gradient of zero."""
        finite = torch.isfinite(gradient.sum((1, 2)))
        gradient = torch.where(finite[:, None, None], gradient, 0.0).to(self.params.flat.dtype)
        rate = torch.where(finite, lr, 0.0)
        self.stacked.backward(self.params.views, seen, gradient, self.params.gradients)
        for p, g, state in zip(self.params.views, self.params.gradients, self.states):
            self.optimizer.update_(p, g, state, rate, t)

    def select(self, index: Tensor) -> None:
        self.params = self.params.selected(lambda p: p.index_select(0, index))
        self.states = [tuple(s.index_select(0, index) for s in states) for states in self.states]


class IVStack:
    """K models of one seed.

    model: a `DFIV` with the networks and layers that all start from, and their T1 and T2; weight decay and rules come from
        here.
    data, split: as for `closedform.iv.train`, in the units that the networks take.
    measured: points by name; `measure` tells the mean squared errors there by re-estimated layers, and by those of training
        under the name and " online".
    total: iterations of the whole training.
    tf32: whether the networks' products may round their factors to TF32 on a GPU.
    """

    def __init__(
        self,
        model: DFIV,
        candidates: Sequence[IVCandidate],
        data: Data,
        split: Split,
        measured: dict[str, Points],
        *,
        batch_size: int,
        total: int,
        weight_decay: float = 0.1,
        beta_1: per_sample = evaluation.BETA_1,
        beta_2: per_sample = evaluation.BETA_2,
        seed: int = 0,
        tf32: bool = False,
        device: torch.device | str = "cpu",
    ):
        if not candidates:
            raise ValueError("a stack needs models, got no candidates")
        if model.xi is not None or data.y.shape[1] != 1:
            raise ValueError("a stack of instrumental-variable models has one outcome and no covariates")
        self.device = torch.device(device)
        self.T1, self.T2, self.batch_size, self.total, self.tf32 = model.T1, model.T2, batch_size, total, tf32
        K = len(candidates)
        self.psi = _Net(model.psi, K, weight_decay, self.device)
        self.phi = _Net(model.phi, K, weight_decay, self.device)
        self.W = model.first.W.expand(K, -1, -1).to(self.device).clone()
        self.w = model.second.W.expand(K, -1, -1).to(self.device).clone()
        self.beta_1, self.beta_2 = beta_1, beta_2
        self._X, self._Z = (net.prepared(x.to(self.device)) for net, x in ((self.psi, data.X), (self.phi, data.Z)))
        self._y = data.y.to(self.device)
        self._split = split
        self._points = {
            name: Points(self.psi.prepared(at.X.to(self.device)), at.f.to(self.device).double())
            for name, at in measured.items()
        }
        self._seed = seed
        self.t = 0
        self._steps = torch.zeros(2, dtype=torch.int64, device=self.device)  # of phi and of psi
        sizes = min(batch_size, len(split.first)), min(batch_size, len(split.second))
        self._rows = [torch.empty(size, dtype=torch.int64, device=self.device) for size in sizes]
        self._loss = torch.zeros(K, dtype=torch.float64, device=self.device)
        self._arrange(list(candidates))
        self._draw()

    def _arrange(self, candidates: list[IVCandidate]) -> None:
        self.candidates = candidates
        self.lr = torch.tensor([c.lr for c in candidates], dtype=torch.float64, device=self.device)

        def heads(name: str, W: Tensor) -> Heads:
            rules = [getattr(c.rules, name) for c in candidates]
            # the one of the bias is a feature like the others
            return Heads(W, side_by_side(rules, W.shape[2], False, device=self.device), bias=False)

        self._first, self._inner, self._second = (
            heads("first", self.W),
            heads("inner", self.W),
            heads("second", self.w),
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager = 0

    def _draw(self) -> None:
        """The batches from here on, as `closedform.iv.train` draws them."""
        self._batches = (
            batches(self._split.first, self.batch_size, 2 * self._seed),
            batches(self._split.second, self.batch_size, 2 * self._seed + 1),
        )
        for _ in range(self.t):
            for drawn in self._batches:
                next(drawn)

    # ---- Training --------------------------------------------------------------------------------

    def advance(self, steps: int) -> None:
        """Train all models for this many iterations."""
        if self.t + steps > self.total:
            raise ValueError(f"{steps} steps from step {self.t} on go past the end of the training, total={self.total}")
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            for _ in range(steps):
                for rows, drawn in zip(self._rows, self._batches):
                    rows.copy_(next(drawn))
                self._advance()
                self.t += 1

    def _advance(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        with _products(self.tf32):
            if self.device.type != "cuda" or self._eager < WARM:
                self._step()
                self._eager += 1
                return
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()  # a captured step has memory of its own
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
        graph.replay()
        self._graph = graph

    @torch.no_grad()
    def _step(self) -> None:
        one, two = self._rows
        x1, z1, z2 = self._X.index_select(0, one), self._Z.index_select(0, one), self._Z.index_select(0, two)
        y = self._y.index_select(0, two).double().T[None]
        targets = self.psi(x1).double()
        for _ in range(self.T1):
            self._stage_one(z1, targets)
        X1, X2 = _ones(self.phi(z1)), _ones(self.phi(z2))
        star = self._star(X1)
        for _ in range(self.T2):
            self._stage_two(x1, X2, star, y)

    def _stage_one(self, z: Tensor, targets: Tensor) -> None:
        phi, seen = self.phi.seen(z)
        residual = self.W @ _ones(phi) - targets
        self.phi.descend(seen, 2 * self.W[:, :, :-1].mT @ residual, self.lr, self._steps[0])
        self._steps[0] += 1
        self._first.solve(_ones(self.phi(z)).mT, targets.mT)

    def _star(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """`W*` as a function of psi: `W* = base + psi S^T`, which is the layer that the inner rule solves for targets of
        zero, and how it answers to each of the targets."""
        M, _, n = X.shape
        rule, d = self._inner.rule, self.W.shape[1]
        assert isinstance(rule, Penalised)
        at_zero = Batch(X.mT, torch.zeros(M, n, d, dtype=X.dtype, device=X.device), bias=False)
        base, _, ok, _ = rule.update(self.W, at_zero, {}, self._inner.step)
        eye = torch.eye(n, dtype=X.dtype, device=X.device).expand(M, n, n)
        answers = Batch(X.mT, eye, bias=False).system(None)
        ST = linalg.ridge(answers, rule.coefficient.of(answers, self._inner.step)).update.mT  # pyright: ignore
        return torch.where(ok[:, None, None], base, torch.nan), ST.mT

    def _stage_two(self, x1: Tensor, X2: Tensor, star: tuple[Tensor, Tensor], y: Tensor) -> None:
        base, answers = star  # (M, d, D) and (M, n, D)

        def predicted(psi: Tensor) -> Tensor:
            return (base + psi.double() @ answers) @ X2

        psi, seen = self.psi.seen(x1)
        w = self.w[:, :, :-1]
        residual = w @ predicted(psi) + self.w[:, :, -1:] - y
        self._loss += residual.square().mean((1, 2))
        self.psi.descend(seen, (2 * w.mT @ residual) @ X2.mT @ answers.mT, self.lr, self._steps[1])
        self._steps[1] += 1
        features = _ones(predicted(self.psi(x1)))
        self._second.solve(features.mT, y.mT.expand(len(features), -1, -1))

    # ---- What one wants to know ------------------------------------------------------------------

    @torch.no_grad()
    def measure(self) -> dict[str, Tensor]:
        """Mean squared errors `(1, K)` at the points; infinite where a model has diverged."""
        with _products(self.tf32):
            again = self._reestimated()
            errors = {}
            for name, at in self._points.items():
                psi = self._features(self.psi, at.X)
                for suffix, predict in (("", again), (" online", self._online)):
                    error = (predict(psi) - at.f).square().mean(1)
                    errors[name + suffix] = torch.nan_to_num(error, nan=torch.inf, posinf=torch.inf)[None].cpu()
        return errors

    def _online(self, psi: Tensor) -> Tensor:
        return (self.w[:, :, :-1] @ psi + self.w[:, :, -1:])[:, 0]

    def _features(self, net: _Net, x: Tensor) -> Tensor:
        """Features `(M, d, n)` in float64, some rows at a time."""
        chunk = max(1, MEMORY[self.device.type] // (4 * net.widest * len(self.candidates)))
        return torch.cat([net(part).double() for part in x.split(chunk)], 2)

    def _reestimated(self) -> Callable[[Tensor], Tensor]:
        """The structural function by layers solved on all rows, as `closedform.iv.reestimated` does it."""
        one, two = (rows.to(self.device) for rows in (self._split.first, self._split.second))
        psi, phi = self._features(self.psi, self._X[one]), self._features(self.phi, self._Z[one])
        mean, scale = _moments(psi)
        mean_z, scale_z = _moments(phi)
        W, b = _ridge((phi - mean_z) / scale_z, (psi - mean) / scale, self.beta_1)
        del psi, phi
        predicted = W @ ((self._features(self.phi, self._Z[two]) - mean_z) / scale_z) + b
        y = self._y[two].double().T[None].expand(len(predicted), -1, -1)
        w, c = _ridge(predicted, y, self.beta_2)
        return lambda psi: (w @ ((psi - mean) / scale) + c)[:, 0]

    def average_loss(self, steps: int) -> Tensor:
        """The mean squared error of stage two's batches over the last `steps` iterations, `(1, K)`; starts a new average."""
        loss = torch.nan_to_num(self._loss / max(steps * self.T2, 1), nan=torch.inf, posinf=torch.inf)[None].cpu()
        self._loss.zero_()
        return loss

    # ---- Keeping and dropping --------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything that training has changed, as tensors; `restore` takes it back."""
        state = {"W": self.W, "w": self.w, "loss": self._loss, "t": torch.tensor(self.t), "steps": self._steps}
        for name, net in (("psi", self.psi), ("phi", self.phi)):
            for i, (p, states) in enumerate(zip(net.params.views, net.states)):
                state[f"{name}.{i}"] = p
                state |= {f"{name}.{i}.{j}": s for j, s in enumerate(states)}
        return state

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        take_back(self.state(), state)
        self.t = int(state["t"])
        self._draw()

    @torch.no_grad()
    def keep(self, candidates: Sequence[int]) -> None:
        """Go on with these candidates only; they count from 0 anew, in this order."""
        self._graph = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        index = torch.tensor(list(candidates), device=self.device)
        self.W, self.w, self._loss = (x.index_select(0, index) for x in (self.W, self.w, self._loss))
        for net in (self.psi, self.phi):
            net.select(index)
        self._arrange([self.candidates[k] for k in candidates])


def _ones(features: Tensor) -> Tensor:
    """Features `(M, k, n)` in float64 with a row of ones."""
    return nn.functional.pad(features.double(), (0, 0, 0, 1), value=1.0)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every feature, as `evaluation.scale_of`: a constant one is divided by infinity."""
    mean, deviation = x.mean(2, keepdim=True), x.std(2, unbiased=False, keepdim=True)
    return mean, torch.where(deviation <= 1e-12 * (1 + mean.abs()), torch.inf, deviation)


def _ridge(X: Tensor, Y: Tensor, beta: per_sample) -> tuple[Tensor, Tensor]:
    """`Y ~ W X + b` with an intercept that is not penalised."""
    assert isinstance(beta.lam, (int, float))
    x, y = X.mean(2, keepdim=True), Y.mean(2, keepdim=True)
    update, ok = linalg.ridge(least_squares((X - x).mT, (Y - y).mT), beta.lam * X.shape[2])
    W = torch.where(ok[:, None, None], update, torch.nan)
    return W, y - W @ x
