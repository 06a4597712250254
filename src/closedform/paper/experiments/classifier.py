"""One image classifier trained to its end: a captured step on a GPU, measured along the way, resumable at any step.

`batches` says where its images come from. Where they are on a CUDA device, the whole step (reading the batch, augmentation,
forward, solve, backward, update) is one CUDA graph. Under torchrun all processes train one model: gradients are averaged,
and the batches of all are solved as one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import __version__, distributed, probabilities
from ...head import ClosedFormLinear
from ...solver.losses import Loss
from ...stack import measuring
from ...stack.loop import Checkpoint
from ...stack.states import optimizer_state, prefixed, restore_optimizer, under
from ..sweeps.work import OutOfTime
from . import confidence
from .averaging import Average
from .batches import Batches


class Classifier:
    """A backbone with a head, learned (`nn.Linear`) or solved, and everything that one step of it needs.

    loss: what backbone and head minimise, as the mean over the samples of the loss summed over the classes.
    optimizers: those of all parameters that are learned; they read their rate from the tensor `lr`.
    rate: the learning rate at a step of so many.
    precision: "bf16" runs the backbone under autocast; features, head and loss are float32 either way.
    clip: changes the gradients before the optimizers use them.
    average: follows the weights, and is measured too.
    captured: whether a step on a CUDA device is a CUDA graph, where the batches allow it.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        loss: Loss,
        optimizers: Sequence[torch.optim.Optimizer],
        batches: Batches,
        *,
        lr: Tensor,
        epochs: int,
        rate: Callable[[int, int], float],
        seed: int = 0,
        algorithm: int = 1,
        precision: str = "fp32",
        clip: Callable[[], None] | None = None,
        average: Average | None = None,
        captured: bool = True,
    ):
        self.backbone, self.head, self.loss, self.optimizers, self.batches = backbone, head, loss, optimizers, batches
        self.lr, self.rate, self.seed, self.algorithm, self.precision = lr, rate, seed, algorithm, precision
        self.clip, self.average = clip, average
        self.total, self.t = batches.per_epoch * epochs, 0
        self.device = batches.device
        self.captured = captured and batches.capturable and self.device.type == "cuda"
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._replay: Callable[[], Any] | None = None
        self._shared_backbone, self._shared_head = _shared(backbone), _shared(head)

    # ---- One step --------------------------------------------------------------------------------

    def _features(self, x: Tensor, backbone: nn.Module | None = None) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return (backbone or self.backbone)(x.contiguous(memory_format=torch.channels_last)).float()

    def _step(self) -> None:
        x, y = self.batches.batch()
        phi = self._features(x, self._shared_backbone)
        if self.algorithm == 1:
            self._solve(phi, y)
        value = self._objective(self._shared_head(phi), y)
        self.backbone.zero_grad()
        self.head.zero_grad()
        value.backward()
        if self.clip is not None:
            self.clip()
        for optimizer in self.optimizers:
            optimizer.step()
        if self.algorithm == 2:
            with torch.no_grad():
                phi = self._features(x)
            self._solve(phi, y)
        if self.average is not None:
            self.average.update(self.backbone, self.head)
        self.loss_sum += value.detach()

    def _solve(self, phi: Tensor, y: Tensor) -> None:
        if not isinstance(self.head, ClosedFormLinear):
            return
        if phi.device.type == "cpu" and self._any(not bool(torch.isfinite(phi).all())):
            return  # the head would raise, as it would not on a GPU; the loss is NaN, which ends the run at the next mark
        self.head.solve(phi, y)

    def _objective(self, z: Tensor, y: Tensor) -> Tensor:
        value = self.loss.value(z, self.loss.targets(y, tuple(z.shape)))
        return (value.sum(1) if value.ndim == 2 else value).mean()

    def advance(self, steps: int = 1) -> None:
        """So many steps of training."""
        for _ in range(steps):
            self._advance()

    def _advance(self) -> None:
        self.batches.load(self.t)
        self.lr.fill_(self.rate(self.t, self.total))
        if self._replay is None:
            self._replay = self._captured() if self.captured else self._step
        rank, world = distributed.place()
        seed = (1_000_003 * self.seed + self.t) * world + rank
        torch.manual_seed(seed)  # for what is random in the network: a step does not depend on those before it
        np.random.seed(seed % 2**32)  # for what mixes images
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
        modules = [tensor for module in self._parts().values() for tensor in module.state_dict(keep_vars=True).values()]
        states = [v for optimizer in self.optimizers for state in optimizer.state.values() for v in state.values()]
        return [*modules, self.loss_sum, *(value for value in states if isinstance(value, Tensor))]

    # ---- Measuring -------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, part: str, average: bool = False) -> tuple[Tensor, Tensor]:
        """The outputs on all images of a part (of this process's share of them), and their labels; those of the average of
        the weights, if that is asked for."""
        model = self.average if average and self.average is not None else self
        model.backbone.eval()
        pieces = [(model.head(self._features(x, model.backbone)), y) for x, y in self.batches.images(part)]
        model.backbone.train()
        f, y = zip(*pieces)
        return torch.cat(f), torch.cat(y)

    def measure(self) -> dict[str, Tensor]:
        """Accuracies, each `(1, 1)`; a model that has diverged has -inf. Those of the average of the weights are called
        `validation_average`."""
        accuracies = {}
        for part in self.batches.measured:
            for average in (False, True) if self.average is not None else (False,):
                f, y = self.outputs(part, average)
                sound = torch.isfinite(f).all() & torch.isfinite(self.loss_sum)
                counts = torch.stack([(f.argmax(1) == y).sum(), torch.tensor(len(y), device=self.device), ~sound])
                right, images, unsound = self._sum(counts).tolist()
                name = f"{part}_average" if average else part
                accuracies[name] = right / images if not unsound else -math.inf
        return _as_errors(accuracies)

    def _sum(self, tensor: Tensor) -> Tensor:
        """Over all processes."""
        return distributed.add_up(tensor, None) if distributed.active(None) else tensor

    def _any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return bool(self._sum(torch.tensor(int(flag), device=self.device)))

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
                confidence.class_probabilities(f, self.loss), y, self.batches.batch_size
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
        every_s: float = 60.0,
        name: str = "",
        deadline: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[dict[str, float]]:
        """Train to the end with the loop of all; one row for each of `marks` equal shares of the training, the last
        with the probabilities, if they are wanted. A model that has diverged is given up, and its last row stands for the
        marks that it did not reach.

        checkpoint: the file that holds the state in between, which all processes must see. `deadline`, in terms of
        `time.perf_counter`, stops like Ctrl-C.
        """
        at = sorted({max(1, round(self.total * k / marks)) for k in range(1, marks + 1)})

        late = False

        def over() -> bool:
            return deadline is not None and time.perf_counter() > deadline and self.t < self.total

        def agreed(asked: bool) -> bool:
            nonlocal late
            asked, late = (bool(n) for n in self._sum(torch.tensor([asked, over()]).int().to(self.device)).tolist())
            return asked or late

        file = None
        if checkpoint is not None:
            file = Checkpoint(checkpoint, name, every_s, writes=distributed.place()[0] == 0)
        try:
            history = measuring.train(
                self,
                Classifier.measure,
                at=at,
                at_end=Classifier.measure_probabilities if probabilities else None,
                checkpoint=file,
                progress=progress,
                agreed=agreed,
                every_step=distributed.active(None),
            )
        except KeyboardInterrupt:
            if late:
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
        mean = self._sum(self.loss_sum) / (max(steps, 1) * distributed.place()[1])
        self.loss_sum.zero_()
        return mean.cpu().reshape(1, 1)

    def _parts(self) -> dict[str, nn.Module]:
        parts: dict[str, nn.Module] = {"backbone": self.backbone, "head": self.head}
        return parts if self.average is None else parts | {"average": self.average}

    def state(self) -> dict[str, Tensor]:
        """Everything that training has changed, as tensors; `restore` takes it back."""
        state = {"t": torch.tensor(self.t), "loss_sum": self.loss_sum}
        for name, module in self._parts().items():
            state |= prefixed(name, module.state_dict())
        for k, optimizer in enumerate(self.optimizers):
            state |= prefixed(f"optimizer{k}", optimizer_state(optimizer))
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, module in self._parts().items():
            module.load_state_dict(under(state, name))
        for k, optimizer in enumerate(self.optimizers):
            restore_optimizer(optimizer, under(state, f"optimizer{k}"))
        self.loss_sum.copy_(state["loss_sum"])
        self.t = int(state["t"])


def _shared(module: nn.Module) -> nn.Module:
    """The module with gradients that are averaged over all processes; itself where there is one, or nothing to learn."""
    if not distributed.active(None) or not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    return nn.parallel.DistributedDataParallel(module)


def trained(
    model: Classifier,
    key: str,
    *,
    marks: int,
    probabilities: bool = False,
    folder: Path | None = None,
    every_s: float = 60.0,
    deadline: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train a model to its end, and return what is noted of it: a row for every mark, and where it ran.

    folder: of the checkpoint, `key` its name. deadline: a time of `time.time`; then the run is put aside with an
    `OutOfTime`.
    """
    checkpoint = None if folder is None else folder / f"{key}.checkpoint"
    left = None if deadline is None else time.perf_counter() + deadline - time.time()
    gpu = model.device.type == "cuda"
    with torch.backends.cudnn.flags(enabled=True, benchmark=gpu):  # all batches are of one size
        rows = model.train(
            marks=marks,
            probabilities=probabilities,
            checkpoint=checkpoint,
            every_s=every_s,
            name=key,
            deadline=left,
            progress=progress,
        )
    if checkpoint is not None and distributed.place()[0] == 0:
        checkpoint.unlink(missing_ok=True)
    return {
        "rows": rows,
        "rejected": int(model.head.rejected) if isinstance(model.head, ClosedFormLinear) else 0,
        "device": torch.cuda.get_device_name(model.device) if gpu else "cpu",
        "torch": torch.__version__,
        "closedform": __version__,
    }


def _as_errors(measured: dict[str, float]) -> dict[str, Tensor]:
    return {name: torch.tensor([[value]], dtype=torch.float64) for name, value in measured.items()}
