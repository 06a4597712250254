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
from ...solver.losses import Loss
from ...stack import loop
from ..data import cifar
from . import confidence

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
    optimizers: those of all parameters that are learned; they read their rate from the tensor `lr`.
    rate: the learning rate at a step of so many.
    precision: "bf16" runs the backbone under autocast; features, head and loss are float32 either way.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        loss: Loss,
        optimizers: Sequence[torch.optim.Optimizer],
        data: DeviceImages,
        *,
        lr: Tensor,
        batch_size: int,
        epochs: int,
        rate: Callable[[int, int], float],
        seed: int = 0,
        algorithm: int = 1,
        precision: str = "fp32",
    ):
        self.backbone, self.head, self.loss, self.optimizers, self.data = backbone, head, loss, optimizers, data
        self.lr, self.rate, self.seed, self.algorithm, self.precision = lr, rate, seed, algorithm, precision
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
        self.backbone.zero_grad()
        self.head.zero_grad()
        value.backward()
        for optimizer in self.optimizers:
            optimizer.step()
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
        self.lr.fill_(self.rate(self.t, self.total))
        if self._replay is None:
            self._replay = self._captured() if self.device.type == "cuda" else self._step
        self._replay()
        self.t += 1

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
        states = [v for optimizer in self.optimizers for state in optimizer.state.values() for v in state.values()]
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
        """Accuracies, each `(1, 1)`; a model that has diverged has -inf."""
        accuracies = {}
        for part in ("validation", "test"):
            f, y = self.outputs(part)
            sound = bool(torch.isfinite(f).all() & torch.isfinite(self.loss_sum))
            accuracies[part] = float((f.argmax(1) == y).double().mean()) if sound else -math.inf
        return _as_errors(accuracies)

    def measure_probabilities(self) -> dict[str, Tensor]:
        """The readings of `confidence` on every part, such as `test_mean`; and what a temperature fitted on the validation
        images makes of the outputs on the test images: `calibrated`, the mean largest probability, and `nll`, the
        cross-entropy. All NaN for a model that has diverged."""
        outputs = {part: self.outputs(part) for part in confidence.PARTS}
        if not all(bool(torch.isfinite(f).all()) for f, _ in outputs.values()):
            names = [f"{part}_{reading}" for part in outputs for reading in confidence.READINGS]
            return _as_errors(dict.fromkeys([*names, "calibrated", "nll"], math.nan))
        measured = {
            f"{part}_{reading}": value
            for part, (f, y) in outputs.items()
            for reading, value in confidence.readings(
                confidence.class_probabilities(f, self.loss), y, len(self.index)
            ).items()
        }
        (f, y), (g, labels) = outputs["validation"], outputs["test"]
        calibrated = probabilities.tempered(g.double(), probabilities.fit_temperature(f, y))
        measured["calibrated"] = float(calibrated.amax(1).mean())
        measured["nll"] = float(-calibrated.gather(1, labels[:, None]).clamp(min=1e-300).log().mean())
        return _as_errors(measured)

    # ---- To the end ------------------------------------------------------------------------------

    def train(
        self,
        *,
        marks: int = 10,
        probabilities: bool = True,
        checkpoint: Path | None = None,
        name: str = "",
        deadline: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[dict[str, float]]:
        """Train to the end with the loop of the stacks; one row for each of `marks` equal shares of the training, the last
        with the probabilities, if they are wanted. A model that has diverged is given up, and its last row stands for the
        marks that it did not reach.

        checkpoint: the file that holds the state in between. `deadline`, in terms of `time.perf_counter`, stops like Ctrl-C.
        """
        at = sorted({max(1, round(self.total * k / marks)) for k in range(1, marks + 1)})

        def over() -> bool:
            return deadline is not None and time.perf_counter() > deadline and self.t < self.total

        def step(t: int, total: int) -> None:
            if progress is not None:
                progress(t, total)
            if over():
                signal.raise_signal(signal.SIGINT)  # which the loop answers by a checkpoint

        try:
            history = loop.train(
                self,
                Classifier.measure,
                at=at,
                at_end=Classifier.measure_probabilities if probabilities else None,
                checkpoint=checkpoint,
                name=name,
                progress=step,
            )
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
        for k, optimizer in enumerate(self.optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                state |= {f"optimizer{k}.{index}.{name}": tensor for name, tensor in values.items()}
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"backbone": {}, "head": {}}
        for name, tensor in state.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = tensor
        self.backbone.load_state_dict(parts["backbone"])
        self.head.load_state_dict(parts["head"])
        for k, optimizer in enumerate(self.optimizers):
            memory: dict[int, dict[str, Tensor]] = {}
            for name, tensor in parts.get(f"optimizer{k}", {}).items():
                index, _, kind = name.partition(".")
                memory.setdefault(int(index), {})[kind] = tensor
            rates = [group["lr"] for group in optimizer.param_groups]
            optimizer.load_state_dict(optimizer.state_dict() | {"state": memory})
            for group, lr in zip(optimizer.param_groups, rates):
                group["lr"] = lr  # the tensor that a captured step and a schedule of lambda read
        self.loss_sum.copy_(state["loss_sum"])
        self.t = int(state["t"])


def _as_errors(measured: dict[str, float]) -> dict[str, Tensor]:
    return {name: torch.tensor([[value]], dtype=torch.float64) for name, value in measured.items()}
