"""One run of `benchmarks/fields.py`: an operator with its own last layer, or with that layer solved, trained alike.

    head = cf.replace_last_linear(model, example=x)    # the solved one only
    head.observe(y, weight)                            # a weight a field: the relative error divides by its norm
    loss = relative_error(model(x), y)
    zero_grad(); loss.backward(); step()

Both see the same batches from the same first weights, for the same number of steps, at the same falling rate. On a GPU a
step is a CUDA graph where the network allows it.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache

import torch
from torch import Tensor

import closedform as cf
import fields_data
import fields_networks
from swap_train import schedule

HEADS = ("learned", "solved")
MIDDLE_RATE, DECAY, LOOK = 3e-3, 1e-4, 100


@dataclass(frozen=True)
class Size:
    counts: tuple[int, int, int]  # training, validation, test
    side: int
    width: int
    modes: int
    batch_size: int
    epochs: int


FULL = Size((1000, 100, 200), 64, 32, 16, 16, 40)
QUICK = Size((256, 64, 64), 32, 16, 12, 16, 12)


@dataclass(frozen=True, order=True)
class Run:
    equation: str
    network: str
    head: str  # "learned" or "solved"
    rung: int  # of the ladder of rates, two to a factor of ten
    seed: int
    quick: bool

    @property
    def name(self) -> str:
        size = "-quick" if self.quick else ""
        return f"{self.equation}-{self.network}-{self.head}-{self.rung}-{self.seed}{size}"

    @property
    def size(self) -> Size:
        return QUICK if self.quick else FULL

    @property
    def rate(self) -> float:
        return MIDDLE_RATE * 10 ** (self.rung / 2)


@lru_cache(maxsize=4)
def loaded(equation: str, size: Size, seed: int, device: str) -> fields_data.Fields:
    return fields_data.load(equation, size.counts, size.side, seed, device).to(device)


class Training:
    """The state of one run on its device."""

    def __init__(self, run: Run, device: str):
        self.run, self.device, size = run, device, run.size
        self.data = loaded(run.equation, size, run.seed, device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            self.model = fields_networks.make(run.network, size.width, size.modes)
        self.start = _digest(self.model)
        self.model.to(device)
        x, y = self.data.train
        self.head = cf.replace_last_linear(self.model, example=x[:1]) if run.head == "solved" else None
        self.relative_error = fields_networks.relative_error(run.network)
        squares = self.decoded(y).square().flatten(1).sum(1)
        self.weights = squares.mean() / squares
        batches = len(x) // size.batch_size
        self.steps = batches * size.epochs
        draw = torch.Generator().manual_seed(run.seed)
        orders = [torch.randperm(len(x), generator=draw)[: batches * size.batch_size] for _ in range(size.epochs)]
        self.order = torch.cat(orders).reshape(self.steps, size.batch_size).to(device)
        self.rates = schedule(self.steps, run.rate, 0.0).to(device)
        self.rate = self.rates[0].clone()
        self.t = torch.zeros(1, dtype=torch.long, device=device)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(parameters, lr=self.rate, weight_decay=DECAY, capturable=device == "cuda")
        self.advance: Callable[[], object] = self.step
        self.captured = False

    def decoded(self, y: Tensor) -> Tensor:
        return self.data.mean + self.data.deviation * y

    def step(self) -> None:
        rows = self.order.index_select(0, self.t).squeeze(0)
        self.rate.copy_(self.rates.index_select(0, self.t).squeeze(0))
        self.t.add_(1).remainder_(self.steps)
        x, y = (part.index_select(0, rows) for part in self.data.train)
        if self.head is not None:
            self.head.observe(y, self.weights.index_select(0, rows))
        loss = self.relative_error(self.decoded(self.model(x)), self.decoded(y))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def capture(self) -> str | None:
        """Make the step a CUDA graph, or say why it cannot be one. What the tries have changed is undone in place, for the
        graph knows tensors by their addresses; what the optimizer has made on its first step becomes zero."""
        before = {name: tensor.detach().clone() for name, tensor in self._state().items()}
        stream, reason = torch.cuda.Stream(), None
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.step()
            self.advance, self.captured = graph.replay, True
        except RuntimeError as wrong:
            reason = str(wrong).splitlines()[0]
        self._undo(before)
        torch.cuda.synchronize()
        return reason

    @torch.no_grad()
    def _undo(self, before: dict[str, Tensor]) -> None:
        for name, tensor in self._state().items():
            if name in before:
                tensor.copy_(before[name])
            else:
                tensor.zero_()

    def _state(self) -> dict[str, Tensor]:
        """Everything that a step changes. By name and not by identity: a network may make the tensors of its state anew."""
        named = {f"model.{name}": value for name, value in self.model.state_dict(keep_vars=True).items()}
        for k, state in enumerate(self.optimizer.state.values()):
            named |= {f"optimizer.{k}.{name}": value for name, value in state.items()}
        named |= {"t": self.t, "rate": self.rate}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}

    @torch.no_grad()
    def error(self, part: tuple[Tensor, Tensor]) -> float:
        """The mean relative L2 error."""
        self.model.eval()
        total = 0.0
        for x, y in zip(*(side.split(50) for side in part)):
            total += len(x) * float(self.relative_error(self.decoded(self.model(x)), self.decoded(y)))
        self.model.train()
        return total / len(part[0])

    def record(self, seconds: float) -> dict:
        """What is kept of a finished run; a run that has diverged has no errors."""
        errors = {name: self.error(getattr(self.data, name)) for name in ("validation", "test")}
        if not all(map(math.isfinite, errors.values())):
            errors = dict.fromkeys(errors)
        return {
            **asdict(self.run),
            "rate": self.run.rate,
            **errors,
            "size": asdict(self.run.size),
            "steps": self.steps,
            "start": self.start,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "rule": None if self.head is None else repr(self.head.rule),
            "rejected": 0 if self.head is None else int(self.head.rejected),
            "captured": self.captured,
            "seconds": round(seconds, 3),
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "closedform": cf.__version__,
        }


def _digest(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in model.parameters():
        digest.update(torch.view_as_real(tensor.detach()).numpy().tobytes() if tensor.is_complex() else
                      tensor.detach().numpy().tobytes())  # fmt: skip
    return digest.hexdigest()[:16]


def train(run: Run, device: str, deadline: float = math.inf, capture: bool = True) -> dict | None:
    """The record of a run; None where the deadline (of `time.time`) comes first."""
    training = Training(run, device)
    if device == "cuda" and capture and (reason := training.capture()) is not None:
        print(f"{run.name} is not captured: {reason}", flush=True)
    begin = time.perf_counter()
    for step in range(training.steps):
        try:
            training.advance()
        except ValueError as wrong:  # the solved layer's features are not finite, which on a GPU nobody looks at
            if "NaN" not in str(wrong):
                raise
            return training.record(time.perf_counter() - begin)
        if step % LOOK == 0 and time.time() > deadline:
            return None
    if device == "cuda":
        torch.cuda.synchronize()
    return training.record(time.perf_counter() - begin)
