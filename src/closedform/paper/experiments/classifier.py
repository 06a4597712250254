"""One image classifier trained to its end: a captured step on a GPU, measured along the way, resumable at any step.

Order and augmentation of the images depend on the seed and the epoch alone, so a run that was stopped goes on as if it had
not been. On a CUDA device the whole step (reading the batch, augmentation, forward, solve, backward, update) is one CUDA
graph; the images stay on the device in uint8.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import probabilities
from ...head import ClosedFormLinear
from ...solver.losses import CrossEntropy, Loss
from ...stack import loop
from ..data import cifar

EVALUATED = 2048  # images at a time


class OutOfTime(KeyboardInterrupt):
    """The deadline has come; the checkpoint is written. Like Ctrl-C it is no failure of the run."""

    code = 3  # what the command exits with


@dataclass
class DeviceImages:
    """A split on the device."""

    split: cifar.ImageSplit
    device: torch.device
    parts: dict[str, tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        split, to = self.split, self.device
        self.parts = {
            part: (getattr(split, f"x_{part}").to(to), getattr(split, f"y_{part}").to(to))
            for part in ("train", "validation", "test")
        }
        self.mean, self.std = split.mean.to(to), split.std.to(to)


class Classifier:
    """A backbone with a head, learned (`nn.Linear`) or solved, and everything that one step of it needs.

    loss: what backbone and head minimise, as the mean over the samples of the loss summed over the classes.
    rate: the learning rate at a share of training done, 0 to 1.
    precision: "bf16" runs the backbone under autocast; features, head and loss are float32 either way.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        data: DeviceImages,
        *,
        batch_size: int,
        epochs: int,
        rate: Callable[[float], float],
        seed: int = 0,
        algorithm: int = 1,
        precision: str = "fp32",
    ):
        self.backbone, self.head, self.loss, self.optimizer, self.data = backbone, head, loss, optimizer, data
        self.rate, self.seed, self.algorithm, self.precision = rate, seed, algorithm, precision
        self.x, self.y = data.parts["train"]
        self.per_epoch = len(self.x) // batch_size
        if self.per_epoch == 0:
            raise ValueError(f"batch size {batch_size} is larger than the training set of {len(self.x):,} images")
        self.total, self.t = self.per_epoch * epochs, 0
        self.device = data.device
        self.index = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._order: dict[str, Tensor] = {}
        self._epoch = -1
        self._replay: Callable[[], Any] | None = None

    # ---- One step --------------------------------------------------------------------------------

    def _features(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return self.backbone(x.contiguous(memory_format=torch.channels_last)).float()

    def _step(self) -> None:
        x = cifar.augment(self.x[self.index], self._order["shift"][self.index], self._order["flip"][self.index])
        x, y = cifar.normalise(x, self.data.mean, self.data.std), self.y[self.index]
        phi = self._features(x)
        if self.algorithm == 1:
            self._solve(phi, y)
        value = self._objective(self.head(phi), y)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        if self.algorithm == 2:
            with torch.no_grad():
                phi = self._features(x)
            self._solve(phi, y)
        self.loss_sum += value.detach()

    def _solve(self, phi: Tensor, y: Tensor) -> None:
        if not isinstance(self.head, ClosedFormLinear):
            return
        if phi.device.type == "cpu" and not bool(torch.isfinite(phi).all()):
            return  # the head would raise, as it would not on a GPU; the loss is NaN, which ends the run at the next mark
        self.head.solve(phi, y)

    def _objective(self, z: Tensor, y: Tensor) -> Tensor:
        value = self.loss.value(z, self.loss.targets(y, tuple(z.shape)))
        return (value.sum(1) if value.ndim == 2 else value).mean()

    def _draw(self, epoch: int) -> None:
        """The order and the augmentation of an epoch, into tensors that a captured step reads."""
        g = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        n = len(self.x)
        drawn = {
            "order": torch.randperm(n, generator=g),
            "shift": torch.randint(0, 2 * cifar.SHIFT + 1, (n, 2), generator=g),
            "flip": torch.rand(n, generator=g) < 0.5,
        }
        for name, tensor in drawn.items():
            if name in self._order:
                self._order[name].copy_(tensor)
            else:
                self._order[name] = tensor.to(self.device)
        self._epoch = epoch

    def advance(self, steps: int = 1) -> None:
        """So many steps of training."""
        for _ in range(steps):
            self._advance()

    def _advance(self) -> None:
        epoch, k = divmod(self.t, self.per_epoch)
        if epoch != self._epoch:
            self._draw(epoch)
        size = len(self.index)
        self.index.copy_(self._order["order"][k * size : (k + 1) * size])
        self._set_rate(self.rate(self.t / self.total))
        if self._replay is None:
            self._replay = self._captured() if self.device.type == "cuda" else self._step
        self._replay()
        self.t += 1

    def _set_rate(self, value: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def _captured(self) -> Callable[[], Any]:
        """The step as a CUDA graph. The steps that warm it up are undone: tensors are set back in place, for the graph knows
        them by their addresses, and what the optimizer made on its first step becomes zero."""
        before = {id(tensor): tensor.detach().clone() for tensor in self._tensors()}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        with torch.no_grad():
            for tensor in self._tensors():
                if id(tensor) in before:
                    tensor.copy_(before[id(tensor)])
                else:
                    tensor.zero_()
        return graph.replay

    def _tensors(self) -> list[Tensor]:
        modules = [
            tensor for module in (self.backbone, self.head) for tensor in module.state_dict(keep_vars=True).values()
        ]
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*modules, self.loss_sum, *(value for value in states if isinstance(value, Tensor))]

    # ---- Measuring -------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, part: str) -> tuple[Tensor, Tensor]:
        """The outputs on all images of a part, and their labels."""
        x, y = self.data.parts[part]
        self.backbone.eval()
        pieces = [
            self.head(self._features(cifar.normalise(piece, self.data.mean, self.data.std)))
            for piece in x.split(EVALUATED)
        ]
        self.backbone.train()
        return torch.cat(pieces), y

    def measure(self) -> dict[str, Tensor]:
        """Accuracies, each `(1, 1)`; `confidence`, the mean over the test images of the largest probability (softmax for
        cross-entropy, the paper's shifted outputs for the squared losses); and what a temperature fitted on the validation
        images makes of it: `calibrated`, the same mean, and `nll`, the cross-entropy. A model that has diverged has accuracy
        -inf."""
        (f, y), (g, labels) = self.outputs("validation"), self.outputs("test")
        if not bool(torch.isfinite(f).all() & torch.isfinite(g).all() & torch.isfinite(self.loss_sum)):
            unknown = {"confidence": math.nan, "calibrated": math.nan, "nll": math.nan}
            return _as_errors({"validation": -math.inf, "test": -math.inf, **unknown})
        p = torch.softmax(g, 1) if isinstance(self.loss, CrossEntropy) else probabilities.shifted(g)
        temperature = probabilities.fit_temperature(f, y)
        calibrated = probabilities.tempered(g.double(), temperature)
        measured = {
            "validation": float((f.argmax(1) == y).double().mean()),
            "test": float((g.argmax(1) == labels).double().mean()),
            "confidence": float(p.amax(1).double().mean()),
            "calibrated": float(calibrated.amax(1).mean()),
            "nll": float(-calibrated.gather(1, labels[:, None]).clamp(min=1e-300).log().mean()),
        }
        return _as_errors(measured)

    # ---- To the end ------------------------------------------------------------------------------

    def train(
        self,
        *,
        checkpoint: Path | None = None,
        name: str = "",
        deadline: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[dict[str, float]]:
        """Train to the end with the loop of the stacks; one row a mark. A model that has diverged is given up, and its last
        row stands for the marks that it did not reach.

        checkpoint: the file that holds the state in between. `deadline`, in terms of `time.perf_counter`, stops like Ctrl-C.
        """
        at = loop.marks(self.total, min(50, self.total // self.per_epoch))

        def over() -> bool:
            return deadline is not None and time.perf_counter() > deadline and self.t < self.total

        def step(t: int, total: int) -> None:
            if progress is not None:
                progress(t, total)
            if over():
                signal.raise_signal(signal.SIGINT)  # which the loop answers by a checkpoint

        try:
            history = loop.train(self, Classifier.measure, at=at, checkpoint=checkpoint, name=name, progress=step)
        except KeyboardInterrupt:
            if over():
                raise OutOfTime from None
            raise
        rows = [
            {"step": step, "wall_s": wall_s, **{key: float(values[mark]) for key, values in history.errors.items()}}
            for mark, (step, wall_s) in enumerate(zip(history.steps, history.wall_s))
        ]
        return rows + [rows[-1] | {"step": step} for step in at if step > rows[-1]["step"]]

    # ---- What the loop asks of a stack; this one has one model -----------------------------------

    @property
    def candidates(self) -> list[Classifier]:
        return [self]

    def keep(self, candidates: Sequence[int]) -> None:
        """The only model there is stays."""

    def average_loss(self, steps: int) -> Tensor:
        """The mean objective of the last `steps` steps, `(1, 1)`; starts a new average."""
        mean = (self.loss_sum / max(steps, 1)).cpu().reshape(1, 1)
        self.loss_sum.zero_()
        return mean

    def state(self) -> dict[str, Tensor]:
        """Everything that training has changed, as tensors; `restore` takes it back."""
        state = {"t": torch.tensor(self.t), "loss_sum": self.loss_sum}
        for part in ("backbone", "head"):
            state |= {f"{part}.{name}": tensor for name, tensor in getattr(self, part).state_dict().items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{index}.{name}": tensor for name, tensor in values.items()}
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"backbone": {}, "head": {}, "optimizer": {}}
        for name, tensor in state.items():
            part, _, rest = name.partition(".")
            if part in parts:
                parts[part][rest] = tensor
        memory: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, _, kind = name.partition(".")
            memory.setdefault(int(index), {})[kind] = tensor
        self.backbone.load_state_dict(parts["backbone"])
        self.head.load_state_dict(parts["head"])
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": memory})
        for group, lr in zip(self.optimizer.param_groups, rates):
            group["lr"] = lr  # the tensor that a captured step and a schedule of lambda read
        self.loss_sum.copy_(state["loss_sum"])
        self.t = int(state["t"])


def _as_errors(measured: dict[str, float]) -> dict[str, Tensor]:
    return {name: torch.tensor([[value]], dtype=torch.float64) for name, value in measured.items()}
