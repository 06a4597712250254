"""A whole grid of models trained as one.

Every parameter gets a leading model axis, seeds by candidates: `M = S K` models. Models of one seed see the same batch, so
their first layers are one product; the other layers, the solves of the last one and the optimizer's update are batched.
A step has no branch and no wait for the device, so on CUDA it is captured once and replayed::

    stack = Stack([mlp([435, 256, 256, 256], generator=...) for seed in seeds], candidates, outputs=12, batch_size=32, ...)
    stack.feed(X, Y)                    # (S, N, f) and (S, N, o): the training set of every seed
    stack.advance(1000)
    errors = stack.evaluate(X_test, Y_test)      # (S, K) mean squared errors

A Fourier neural operator (`closedform.paper.models.fno`) has fields instead, (S, N, points, channels) and
(S, N, points, o), and a last layer that all points share.

Each model equals the same one trained alone with `closedform.training` to rounding; `module` takes it out. Models do not
mix, so one that diverges (its parameters become NaN) disturbs no other, and `keep` drops it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..solver.lambdas import half_cosine
from ..solver.rules import Kalman, Rule
from ..solver.stacks import check_side_by_side, side_by_side
from ..state import INITS
from . import optimizers
from .heads import Heads
from .networks import Parameters, network
from .states import take_back

WARM = 3  # eager steps before a capture, which CUDA libraries use to set themselves up


@dataclass(frozen=True)
class Candidate:
    """One model of every seed: how its last layer is treated, and its learning rate.

    rule: as for `ClosedFormLinear`; None for a layer that the optimizer learns.
    cosine: the rate falls to zero along half a cosine; else it is constant.
    follow: the rule's memory lengthens as the rate falls, as by `lambdas.follow_lr`.
    """

    lr: float
    rule: Rule | None = None
    init: str = "zeros"
    cosine: bool = False
    follow: bool = False

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"a candidate needs a positive learning rate, got lr={self.lr}")
        if self.init not in INITS:
            raise ValueError(f"init must be one of {', '.join(INITS)}, got {self.init!r}")
        if self.rule is not None:
            check_side_by_side(self.rule)
        elif self.follow:
            raise ValueError("follow=True needs a rule whose memory can follow the rate, got rule=None")


class Stack:
    """S seeds by K candidates as one model.

    backbones: one network a seed: an `mlp`, or a module with `stacked()`, such as `closedform.paper.models.fno.FNO1d`.
    algorithm: the paper's 1 (solve, then step) or 2 (step, then solve on the same batch).
    reduction: the loss is the mean over samples (and their points) and the "mean" or "sum" over outputs. Learning rates
        refer to it.
    total: the number of steps that a cosine rate takes.
    tf32: whether the backbone's products may round their factors to TF32 on a GPU. The solves are in float64 regardless.
    """

    def __init__(
        self,
        backbones: Sequence[nn.Module],
        candidates: Sequence[Candidate],
        outputs: int,
        *,
        batch_size: int,
        total: int,
        seeds: Sequence[int] | None = None,
        optimizer: Literal["sgd", "adam"] = "sgd",
        bias: bool = True,
        algorithm: Literal[1, 2] = 1,
        reduction: Literal["mean", "sum"] = "mean",
        tf32: bool = False,
        device: torch.device | str = "cpu",
    ):
        if not candidates or not backbones:
            raise ValueError(f"a stack needs models, got {len(backbones)} seeds and {len(candidates)} candidates")
        self.seeds = list(range(len(backbones))) if seeds is None else list(seeds)
        if len(self.seeds) != len(backbones):
            raise ValueError(f"one backbone a seed: got {len(backbones)} for the seeds {self.seeds}")
        self.outputs, self.bias, self.algorithm, self.reduction = outputs, bias, algorithm, reduction
        self.batch_size, self.total, self.tf32 = batch_size, total, tf32
        self.device = torch.device(device)
        self.optimizer = optimizers.OPTIMIZERS[optimizer]()
        self._templates = [copy.deepcopy(backbone).cpu() for backbone in backbones]
        self._network = network(backbones)
        self.width = self._network.width
        self.features = self.width + int(bias)
        S, K = len(backbones), len(candidates)
        stacked = [p.repeat_interleave(K, 0) for p in self._network.params(backbones)]
        dtype = stacked[0].dtype
        self.params = Parameters(stacked, self.device)
        head = torch.zeros(S, K, outputs, self.features, dtype=dtype)
        for s, seed in enumerate(self.seeds):
            for k, candidate in enumerate(candidates):
                generator = _generator(seed, -1)  # not the stream that a caller may have drawn the backbone from
                drawn = torch.randn(outputs, self.width, generator=generator, dtype=dtype)
                head[s, k, :, : self.width] = drawn * INITS[candidate.init](self.width, outputs)
        self.head = head.to(self.device)
        self.t, self._N = 0, 0
        self._t = torch.zeros((), dtype=torch.int64, device=self.device)
        self._cosine = half_cosine(torch.arange(total + 1, dtype=torch.float64) / total).to(self.device)
        self.train_loss = torch.zeros(S, K, dtype=torch.float64, device=self.device)
        self._arrange(list(candidates))

    def _arrange(self, candidates: list[Candidate]) -> None:
        """Sort the models into learned, solved and filtered ones, and set up what each group needs."""
        kinds = [0 if c.rule is None else 2 if isinstance(c.rule, Kalman) else 1 for c in candidates]
        order = sorted(range(len(candidates)), key=lambda k: kinds[k])
        self.candidates = [candidates[k] for k in order]
        self._place = {k: place for place, k in enumerate(order)}  # where the caller's k-th candidate is
        S, K = len(self.seeds), len(candidates)
        self._cut = kinds.count(0), kinds.count(0) + kinds.count(1)
        self._select(order)
        lr = torch.tensor([c.lr for c in self.candidates], dtype=torch.float64, device=self.device)
        self._lr = lr.expand(S, K).contiguous()
        self._decays = torch.tensor([c.cosine for c in self.candidates], device=self.device).expand(S, K).contiguous()
        self._groups: dict[str, Heads] = {}
        self._rates: dict[str, Tensor] = {}  # as shares of their base, for memories that follow them
        for name, models in (("solved", slice(*self._cut)), ("filtered", slice(self._cut[1], K))):
            own = self.candidates[models]
            if own:
                W = self.head[:, models].flatten(0, 1).clone()
                self._rates[name] = torch.ones(len(W), dtype=torch.float64, device=self.device)
                rule = side_by_side(
                    [c.rule for c in own if c.rule is not None] * S,
                    self.features,
                    self.bias,
                    follow=[c.follow for c in own] * S,
                    rate=self._rates[name],
                    device=self.device,
                )
                self._groups[name] = Heads(W, rule, bias=self.bias)
        self._learned = self.head[:, : self._cut[0]]
        self._states = [self.optimizer.state(p) for p in (*self.params.views, self._learned)]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager = 0

    def _models(self, group: str) -> slice:
        """The places of a group's models."""
        return slice(*self._cut) if group == "solved" else slice(self._cut[1], len(self.candidates))

    def _select(self, models: list[int]) -> None:
        """Keep these models of every seed, in this order."""
        S = len(self.seeds)
        index = torch.tensor(models, device=self.device)
        self.params = self.params.selected(lambda p: p.unflatten(0, (S, -1)).index_select(1, index).flatten(0, 1))
        self.head = self.head.index_select(1, index)
        self.train_loss = self.train_loss.index_select(1, index)

    # ---- Training --------------------------------------------------------------------------------

    def feed(self, X: Tensor, Y: Tensor) -> None:
        """The training data of every seed, `X (S, N, f)` and `Y (S, N, o)`, or fields with their points in between; the last
        incomplete batch is dropped."""
        S, N = X.shape[:2]
        fits = Y.shape == (*X.shape[:-1], self.outputs)
        if S != len(self.seeds) or not fits or N < self.batch_size:
            raise ValueError(
                f"expected X ({len(self.seeds)}, N, ..., f) and Y ({len(self.seeds)}, N, ..., {self.outputs}) with N at "
                f"least the batch size {self.batch_size}, got {tuple(X.shape)} and {tuple(Y.shape)}"
            )
        self._X, self._Y = self._prepared(X).flatten(0, 1), Y.to(self.device).flatten(0, 1)
        self._N, self.steps_per_epoch = N, N // self.batch_size
        self._order = torch.empty(S, N, dtype=torch.int64, device=self.device)
        self._epoch = -1

    def _prepared(self, X: Tensor) -> Tensor:
        return self._network.prepared(X.to(self.device))

    def _shuffle(self) -> None:
        """The order of this epoch, a function of the seed and the epoch alone, so that a resumed run sees the same."""
        epoch = self.t // self.steps_per_epoch
        if epoch != self._epoch:
            orders = [torch.randperm(self._N, generator=_generator(seed, epoch)) for seed in self.seeds]
            starts = torch.arange(len(self.seeds))[:, None] * self._N
            self._order.copy_(torch.stack(orders) + starts)
            self._epoch = epoch

    def advance(self, steps: int) -> None:
        """Train all models for this many steps."""
        if self._N == 0:
            raise ValueError("a stack needs data before it can train: call feed(X, Y)")
        if self.t + steps > self.total:
            raise ValueError(f"{steps} steps from step {self.t} on go past the end of the training, total={self.total}")
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            self._advance(steps)

    def _advance(self, steps: int) -> None:
        for _ in range(steps):
            self._shuffle()
            if self._graph is not None:
                self._graph.replay()
            elif self.device.type == "cuda" and self._eager >= WARM:
                self._capture()
            else:
                with _products(self.tf32):
                    self._step()
                self._eager += 1
            self.t += 1

    def _capture(self) -> None:
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with _products(self.tf32), torch.cuda.graph(graph):
            self._step()
        graph.replay()
        self._graph = graph

    def _batch(self) -> tuple[Tensor, Tensor]:
        start = self._t % self.steps_per_epoch * self.batch_size
        index = self._order.index_select(1, start + torch.arange(self.batch_size, device=self.device))
        shape = index.shape
        x = self._X.index_select(0, index.flatten()).unflatten(0, shape)
        return x, _rows(self._Y.index_select(0, index.flatten()).unflatten(0, shape))

    @torch.no_grad()
    def _step(self) -> None:
        x, y = self._batch()
        factor = torch.where(self._decays, self._cosine.index_select(0, self._t.view(1)), 1.0)
        phi, seen = self._network.forward(self.params.views, x)
        if self.algorithm == 1:
            self._solve(phi, y, factor)
        learned = self._descend(phi, seen, y)
        rate = self._lr * factor
        rates = [rate.flatten()] * len(self.params.views) + [rate[:, : self._cut[0]]]
        gradients = (*self.params.gradients, learned)
        for p, g, state, lr in zip((*self.params.views, self._learned), gradients, self._states, rates):
            self.optimizer.update_(p, g, state, lr, self._t)
        if self.algorithm == 2:
            self._solve(self._forward(x), y, factor)
        self._t += 1

    def _forward(self, x: Tensor) -> Tensor:
        """Features `(S K, d, n)` of a batch `x (S, n, f)`."""
        return self._network.forward(self.params.views, x)[0]

    def _predict(self, phi: Tensor) -> Tensor:
        """`(S, K, o, n)`."""
        W = self.head.flatten(0, 1)
        z = torch.bmm(W[:, :, : self.width], phi)
        return (z + W[:, :, self.width :] if self.bias else z).unflatten(0, self.head.shape[:2])

    def _descend(self, phi: Tensor, seen: Any, y: Tensor) -> Tensor:
        """The gradient of the loss in the backbones, left with the parameters, and in the learned layers."""
        S, K, o, n = *self.head.shape[:3], y.shape[2]
        residual = self._predict(phi) - y[:, None]
        self.train_loss += residual.square().mean((2, 3))
        g = residual * (2 / (n * o) if self.reduction == "mean" else 2 / n)
        W = self.head.flatten(0, 1)[:, :, : self.width]
        self._network.backward(self.params.views, seen, torch.bmm(W.mT, g.flatten(0, 1)), self.params.gradients)
        learned = self._cut[0]
        g, features = g[:, :learned], phi.unflatten(0, (S, K))[:, :learned]
        dW = g @ features.mT
        return torch.cat([dW, g.sum(3, keepdim=True)], 3) if self.bias else dW

    def _solve(self, phi: Tensor, y: Tensor, factor: Tensor) -> None:
        S, K = self.head.shape[:2]
        phi = phi.unflatten(0, (S, K)).mT
        for name, heads in self._groups.items():
            models = self._models(name)
            self._rates[name].copy_(factor[:, models].flatten())
            heads.W.copy_(self.head[:, models].flatten(0, 1))
            targets = y.mT[:, None].expand(-1, len(heads.W) // S, -1, -1).flatten(0, 1)
            heads.solve(phi[:, models].flatten(0, 1), targets)
            self.head[:, models] = heads.W.unflatten(0, (S, -1))

    # ---- What one wants to know ------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, X: Tensor, Y: Tensor) -> Tensor:
        """Mean squared errors `(S, K)` on `X (S, N, f)`, `Y (S, N, o)`, or fields, in the order of the candidates as given;
        infinite where a model has diverged."""
        memory = (1 << 30) if self.device.type == "cuda" else (1 << 26)
        chunk = max(1, memory // (self.width * math.prod(X.shape[2:-1]) * self.head.shape[:2].numel() * 4))
        total = torch.zeros(self.head.shape[:2], dtype=torch.float64, device=self.device)
        with _products(self.tf32):
            for x, y in zip(X.split(chunk, 1), Y.split(chunk, 1)):
                predicted = self._predict(self._forward(self._prepared(x)))
                total += (predicted - _rows(y.to(self.device))[:, None]).double().square().sum((2, 3))
        return self._as_given(torch.nan_to_num(total / Y[0].numel(), nan=float("inf"), posinf=float("inf")))

    def average_loss(self, steps: int) -> Tensor:
        """The mean squared error on the training batches of the last `steps` steps, `(S, K)`; starts a new average."""
        loss = self._as_given(torch.nan_to_num(self.train_loss / max(steps, 1), nan=float("inf"), posinf=float("inf")))
        self.train_loss.zero_()
        return loss

    def _as_given(self, values: Tensor) -> Tensor:
        places = torch.tensor([self._place[k] for k in sorted(self._place)], device=values.device)
        return values.index_select(1, places).cpu()

    def module(self, seed: int, candidate: int) -> tuple[nn.Module, nn.Linear]:
        """One model by itself: the backbone and the last layer; `seed` and `candidate` count from 0."""
        place = self._place[candidate]
        backbone = copy.deepcopy(self._templates[seed])
        with torch.no_grad():
            for own, stacked in zip(backbone.parameters(), self.params.views):
                trained = stacked.unflatten(0, self.head.shape[:2])[seed, place]
                own.copy_(self._network.own(trained, own.shape))
            W = self.head[seed, place].cpu()
            layer = nn.Linear(self.width, self.outputs, bias=self.bias, dtype=W.dtype)
            layer.weight.copy_(W[:, : self.width])
            if self.bias:
                layer.bias.copy_(W[:, self.width])
        return backbone, layer

    # ---- Keeping and dropping --------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything that training has changed, as tensors; `restore` takes it back."""
        state = {"head": self.head, "train_loss": self.train_loss, "t": torch.tensor(self.t)}
        state |= {f"param.{i}": p for i, p in enumerate(self.params.views)}
        state |= {f"optimizer.{i}.{j}": s for i, states in enumerate(self._states) for j, s in enumerate(states)}
        for group, heads in self._groups.items():
            state |= {f"{group}.{name}": tensor for name, tensor in heads.state().items()}
        return state

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        take_back(self.state(), state)
        self.t = int(state["t"])
        self._t.fill_(self.t)
        for heads in self._groups.values():
            heads.restored()

    @torch.no_grad()
    def keep(self, candidates: Sequence[int]) -> None:
        """Go on with these candidates only; they count from 0 anew, in this order."""
        state = self.state()
        S, K = self.head.shape[:2]
        places = [self._place[k] for k in candidates]
        kept = [self.candidates[place] for place in places]
        groups = {"solved": range(*self._cut), "filtered": range(self._cut[1], K), "learned": range(self._cut[0])}
        self._select(places)
        self._arrange(kept)
        # `_arrange` has made fresh memory; its order of models is found again by name
        sorted_places = [places[k] for k in sorted(self._place, key=self._place.__getitem__)]
        last = f"optimizer.{len(self.params.views)}"

        def rows(name: str, tensor: Tensor) -> Tensor:
            """The models that stay, of a tensor with a row a model (a learned layer's has a seed first)."""
            group = "learned" if name.startswith(last) else name.partition(".")[0]
            those = list(groups.get(group, range(K)))
            index = torch.tensor([those.index(p) for p in sorted_places if p in those], device=self.device)
            by_seed = tensor if group == "learned" else tensor.unflatten(0, (S, -1))
            chosen = by_seed.index_select(1, index.long())
            return chosen if group == "learned" else chosen.flatten(0, 1)

        for name, tensor in self.state().items():
            if name.startswith(("optimizer", *groups)):
                tensor.copy_(rows(name, state[name]) if state[name].ndim else state[name])
        for heads in self._groups.values():
            heads.restored()


class _products:  # noqa: N801 - reads as a function at the call site
    """Whether products of float32 matrices may round to TF32, for the time of a step."""

    def __init__(self, tf32: bool):
        self.tf32 = tf32

    def __enter__(self) -> None:
        self.before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.tf32

    def __exit__(self, *exc: object) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self.before


def _rows(Y: Tensor) -> Tensor:
    """Targets `(S, n, ..., o)` as `(S, o, rows)`."""
    return Y.flatten(1, -2).mT


def _generator(seed: int, epoch: int) -> torch.Generator:
    """The random numbers of an epoch; those of epoch -1 draw the last layers."""
    return torch.Generator().manual_seed((seed + 1) * 1_000_003 + epoch)
