"""One run of the swap test: a backbone with a learned or a solved head, trained as a user would write it.

    phi = backbone(x)
    head.solve(phi, y)              # the solved head only
    loss = objective(head(phi), y)
    zero_grad(); loss.backward(); step()

Both heads see the same batches in the same order from the same first backbone, for the same number of steps, at a rate that
follows the same schedule. Validation and test error are measured at the same marks; the test error that counts is that of
the mark with the least validation error. On a GPU a step is a CUDA graph: batches, augmentation and rates of the whole run
lie in tables on the device, and the step counts by itself.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import closedform as cf
import swap_optimizers as optimizers
import swap_tasks
from closedform.paper.data import cifar
from closedform.paper.experiments.cifar100_model import rule_name

MARKS = 12
LOOK = 100  # steps between two looks at the clock


@dataclass(frozen=True, order=True)
class Run:
    task: str
    optimizer: str
    batch_size: int
    head: str  # "learned" or "solved"
    rung: int  # of the ladder of rates, two to a factor of ten; 0 is the task's middle rate
    seed: int
    quick: bool = False

    @property
    def name(self) -> str:
        size = "-quick" if self.quick else ""
        task = self.task.replace(" ", "_")
        return f"{task}-{self.optimizer}-{self.batch_size}-{self.head}-{self.rung}-{self.seed}{size}"


def rate_of(task: swap_tasks.Task, optimizer: str, rung: int) -> float:
    return task.rates[optimizer] * 10 ** (rung / 2)


def schedule(steps: int, rate: float, warm_up: float) -> Tensor:
    """A rate for each step: a linear rise over the share `warm_up`, then half a cosine to zero."""
    t = torch.arange(steps, dtype=torch.float64)
    rise = warm_up * steps
    fall = 0.5 * (1 + torch.cos(math.pi * (t - rise).clamp(min=0) / max(steps - rise, 1)))
    return (rate * torch.where(t < rise, (t + 1) / (rise + 1), fall)).float()


def solved_head(task: swap_tasks.Task, outputs: int, rule: cf.Rule | None = None) -> cf.ClosedFormLinear:
    """The layer that takes the place of `nn.Linear`, with the library's default rule unless another is named."""
    loss = cf.Squared() if task.loss == "squared" else cf.CrossEntropy()
    return cf.ClosedFormLinear(task.features, outputs, rule=rule, loss=loss)


def rule_of(head: nn.Module) -> str:
    """What the solved layer does."""
    return rule_name(head.rule, head.loss, head.out_features) if isinstance(head, cf.ClosedFormLinear) else repr(head)


def objective(task: swap_tasks.Task, z: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(z, y) if task.loss == "squared" else F.cross_entropy(z.flatten(0, -2), y.flatten())


class Training:
    """The state of one run on its device."""

    def __init__(
        self,
        run: Run,
        task: swap_tasks.Task,
        data: swap_tasks.Data,
        device: str,
        make_head: Callable[[swap_tasks.Task, int], nn.Linear] = solved_head,
    ):
        self.run, self.task, self.data, self.device = run, task, data, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            backbone = task.backbone(data)
            outputs = task.outputs(data)
            learned = nn.Linear(task.features, outputs)  # drawn after the backbone, which is then the same for both
        self.learned = run.head == "learned"
        head = learned if self.learned else make_head(task, outputs)
        self.start = _digest(*backbone.state_dict().values())
        images = task.augmented and device == "cuda"
        layout = {"memory_format": torch.channels_last} if images else {}
        self.backbone, self.head = backbone.to(device, **layout), head.to(device)
        self.layout = torch.channels_last if images else torch.contiguous_format
        self._draw()
        rates = schedule(self.steps, rate_of(task, run.optimizer, run.rung), task.warm_up)
        self.rates, self.rate = rates.to(device), rates[0].clone().to(device)
        self.t = torch.zeros(1, dtype=torch.long, device=device)
        self.optimizers = optimizers.make(
            run.optimizer,
            self.backbone,
            self.head.parameters() if self.learned else (),
            self.rate,
            task.weight_decay,
            task.decoupled_decay,
        )
        self.curve: list[tuple[int, float, float]] = []
        self.diverged = False
        self.stream = torch.cuda.Stream() if device == "cuda" else None
        self.replay: Callable[[], object] | None = None

    def _draw(self) -> None:
        """The batches of the whole run, and how their images are moved."""
        g = torch.Generator().manual_seed(1_000_003 * self.run.seed + 17)
        n, size, epochs = len(self.data.train[0]), self.run.batch_size, self.task.epochs[self.run.batch_size]
        per_epoch = n // size
        if per_epoch == 0:
            raise ValueError(f"batch size {size} is larger than the {n} training samples of {self.task.name}")
        self.steps = epochs * per_epoch
        order = [torch.randperm(n, generator=g)[: per_epoch * size].view(per_epoch, size) for _ in range(epochs)]
        tables = {"order": torch.cat(order)}
        if self.task.augmented:
            shape = tables["order"].shape
            tables["shift"] = torch.randint(0, 2 * cifar.SHIFT + 1, (*shape, 2), generator=g, dtype=torch.uint8)
            tables["flip"] = torch.rand(shape, generator=g) < 0.5
        self.batches = _digest(*tables.values())
        self.tables = {name: table.to(self.device) for name, table in tables.items()}

    # ---- One step --------------------------------------------------------------------------------

    def features(self, x: Tensor) -> Tensor:
        if self.data.channels is not None:
            x = cifar.normalise(x, *self.data.channels).contiguous(memory_format=self.layout)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.task.bf16 and self.device == "cuda"):
            phi = self.backbone(x)
        return phi.float()

    def step(self) -> None:
        row = {name: table.index_select(0, self.t).squeeze(0) for name, table in self.tables.items()}
        self.rate.copy_(self.rates.index_select(0, self.t).squeeze(0))
        self.t.add_(1)
        x, y = (part.index_select(0, row["order"]) for part in self.data.train)
        if self.task.augmented:
            x = cifar.augment(x, row["shift"].long(), row["flip"])
        phi = self.features(x)
        if not self.learned:
            if self.device == "cpu" and not bool(torch.isfinite(phi).all()):
                self.diverged = True  # the head would raise, as it would not on a GPU
                return
            self.head.solve(phi, y)
        loss = objective(self.task, self.head(phi), y)
        self.backbone.zero_grad()
        self.head.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def capture(self) -> None:
        """Make the step a CUDA graph. The steps that warm it up are undone in place, for the graph knows tensors by their
        addresses; what the optimizers have made on their first step becomes zero."""
        assert self.stream is not None
        before = {id(tensor): tensor.detach().clone() for tensor in self._state()}
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.step()
        with torch.no_grad():
            for tensor in self._state():
                if id(tensor) in before:
                    tensor.copy_(before[id(tensor)])
                else:
                    tensor.zero_()
        torch.cuda.synchronize()
        self.replay = graph.replay

    def _state(self) -> list[Tensor]:
        modules = [v for module in (self.backbone, self.head) for v in module.state_dict(keep_vars=True).values()]
        states = [v for optimizer in self.optimizers for state in optimizer.state.values() for v in state.values()]
        return [*modules, self.t, self.rate, *(value for value in states if isinstance(value, Tensor))]

    def advance(self) -> None:
        if self.stream is None:
            self.step()
            return
        with torch.cuda.stream(self.stream):
            (self.replay or self.step)()

    # ---- Measuring -------------------------------------------------------------------------------

    @torch.no_grad()
    def error(self, part: tuple[Tensor, Tensor]) -> float:
        x, y = part
        size = min(max(2**20 // x[0].numel(), 16), 2048)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for a, b in zip(x.split(size), y.split(size)):
            total += errors(self.task, self.head(self.features(a)), b).double().sum()
        return float(total) / (y.numel())

    def mark(self, step: int) -> None:
        self.backbone.eval()
        with torch.cuda.stream(self.stream):  # None on the CPU, where it does nothing
            values = self.error(self.data.validation), self.error(self.data.test)
        self.backbone.train()
        self.diverged = self.diverged or not all(map(math.isfinite, values))
        if not self.diverged:
            self.curve.append((step, *values))

    def record(self, seconds: float) -> dict:
        """What is kept of a finished run. A run that has diverged has no errors."""
        ended = {"validation": None, "test": None}
        if not self.diverged:
            _, validation, test = min(self.curve, key=lambda row: row[1])
            ended = {"validation": validation, "test": test}
        rule = None if self.learned else rule_of(self.head)
        parameters = sum(p.numel() for p in self.backbone.parameters())
        return {
            **asdict(self.run),
            "rate": rate_of(self.task, self.run.optimizer, self.run.rung),
            **ended,
            "constant": constant_error(self.task, self.data),
            "curve": self.curve,
            "steps": self.steps,
            "samples": self.steps * self.run.batch_size,
            "start": self.start,
            "batches": self.batches,
            "parameters": parameters,
            "rule": rule,
            "rejected": int(self.head.rejected) if isinstance(self.head, cf.ClosedFormLinear) else 0,
            "source": self.data.source,
            "captured": self.replay is not None,
            "seconds": round(seconds, 3),
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "closedform": cf.__version__,
        }


def errors(task: swap_tasks.Task, z: Tensor, y: Tensor) -> Tensor:
    """The error of every output (squared loss) or of every label."""
    if task.loss == "squared":
        return F.mse_loss(z, y, reduction="none")
    if task.loss == "likelihood":
        return F.cross_entropy(z.flatten(0, -2), y.flatten(), reduction="none")
    # what is not finite has no largest output, and must not count as a label
    return torch.where(torch.isfinite(z).all(-1), (z.argmax(-1) != y).float(), math.nan)


def constant_error(task: swap_tasks.Task, data: swap_tasks.Data) -> float:
    """The validation error of the best constant prediction."""
    (_, y), (_, held) = data.train, data.validation
    if task.loss == "squared":
        return float((held - y.flatten(0, -2).mean(0)).square().mean())
    share = torch.bincount(y.flatten(), minlength=int(held.max()) + 1).double() / y.numel()
    if task.loss == "likelihood":
        return float(-share.clamp(min=1 / y.numel()).log()[held.flatten()].mean())
    return float((held != share.argmax()).double().mean())


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=4)
def loaded(task: str, seed: int, quick: bool, device: str) -> swap_tasks.Data:
    return swap_tasks.tasks(quick)[task].load(seed).to(device)


def train(runs: list[Run], device: str, deadline: float = math.inf, capture: bool = True) -> list[dict]:
    """Train runs of one task, optimizer and batch size side by side, on a GPU each on a stream of its own, and return their
    records; none where the deadline (of `time.time`) comes first."""
    task = swap_tasks.tasks(runs[0].quick)[runs[0].task]
    trainings = [Training(run, task, loaded(run.task, run.seed, run.quick, device), device) for run in runs]
    return train_together(trainings, deadline, capture and optimizers.capturable(runs[0].optimizer))


def train_together(trainings: list[Training], deadline: float, capture: bool) -> list[dict]:
    start = time.perf_counter()
    if trainings[0].device == "cuda" and capture:
        for training in trainings:
            training.capture()
    if trainings[0].device == "cuda":
        torch.cuda.synchronize()  # what was made on one stream is used on others
    steps = min(training.steps for training in trainings)
    assert steps == max(training.steps for training in trainings), "runs side by side take equally many steps"
    marks = {round(steps * k / MARKS) for k in range(1, MARKS + 1)}
    for step in range(1, steps + 1):
        for training in trainings:
            if not training.diverged:
                training.advance()
                if step in marks:
                    training.mark(step)
        if step % LOOK == 0 and time.time() > deadline:
            return []
    seconds = (time.perf_counter() - start) / len(trainings)
    return [training.record(seconds) for training in trainings]
