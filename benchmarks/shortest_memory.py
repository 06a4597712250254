"""How many memories does the default need for cross-entropy, how short may they be, and how far may their steps go?

    python benchmarks/shortest_memory.py [--seconds 1200] [--out benchmarks/results]

A learned layer, and the default rule: as it is now; not drawn to zero by the evidence, which concerns up to eight
classes; and all without it: with layers that do not decay; with a short memory that does not grow beyond its 20 batches;
with the steps of the loss's quadratic bound, as long as the bound says (up to eight classes, and where a batch has fewer
rows than features, that is what it does now); with the longer steps however few rows there are; with the shorter of its
two memories alone; and with the seven that it has where targets are numbers. All at the middle rate of the swap test's
ladder, one seed. Validation errors at the best of twelve marks: cross-entropy on the tables (an MLP of two layers of 128,
batch size 256), the share of wrong labels on 4,000 images of CIFAR-100 (four convolutions to 256 features, batch sizes 32
and 512, 12 epochs). It needs the files of `CLOSEDFORM_DATA`.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import common
import swap_tasks
import swap_train
from closedform.paper.data import store
from closedform.solver import auto, evidence, lines, losses
from closedform.stack.networks import mlp


@dataclass(frozen=True)
class Default:
    """What a default does where targets are yes and no."""

    forget: tuple[float, ...] = auto.FORGET_CLASSES
    hold: tuple[float, ...] = auto.HOLD_CLASSES
    classes: float = losses.CLASSES_A_STEP  # before a step may be longer than that of the bound
    trusted: tuple[float, float] = lines.TRUSTED
    steps: tuple[float, float] = auto.BOUNDED_STEPS
    decay: float = auto.DECAY
    largest: float = 0.0  # that a layer may be drawn to zero by the evidence

    def take(self) -> None:
        auto.FORGET_CLASSES, auto.HOLD_CLASSES = self.forget, self.hold
        auto.BOUNDED_STEPS, auto.DECAY = self.steps, self.decay
        losses.CLASSES_A_STEP, lines.TRUSTED, evidence.LARGEST = self.classes, self.trusted, self.largest


RULES = {
    "learned": Default(),
    "now": Default(largest=evidence.LARGEST),
    "no evidence": Default(),
    "no decay": Default(decay=0.0),
    "no growth": Default(steps=(auto.BOUNDED_STEPS[0], math.inf)),
    "steps of the bound": Default(classes=math.inf),
    "longer steps on few rows": Default(trusted=(-2.0, -1.0)),
    "the shorter alone": Default(auto.FORGET_CLASSES[:1], auto.HOLD_CLASSES[:1]),
    "seven memories": Default(auto.FORGET, auto.HOLD),
}


class Convolutions(nn.Module):
    """Features `(B, 256)` of images."""

    def __init__(self):
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((3, 24, 2), (24, 48, 1), (48, 96, 2), (96, 256, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean((2, 3))


def classes() -> list[str]:
    """The tables with classes."""
    path = store.data_file(swap_tasks.PMLB)
    if path is None:
        raise FileNotFoundError(f"{swap_tasks.PMLB} is not there; expected it in the folder CLOSEDFORM_DATA")
    with np.load(path, allow_pickle=False) as file:
        return sorted(name[:-2] for name in file.files if name.endswith("/y") and file[name].dtype.kind == "i")


def table(name: str, seed: int) -> swap_tasks.Data:
    """A table standardised by its training rows; a fifth of the others than the test rows is for validation."""
    x, y, test, source = swap_tasks._rows(name, seed)
    y = np.unique(y, return_inverse=True)[1]
    order = np.random.RandomState(seed).permutation(np.flatnonzero(~test))
    held, train = np.split(order, [len(order) // 5])
    mean, std = x[train].mean(0), x[train].std(0)
    x = (x - mean) / np.where(std > 1e-9, std, 1.0)
    parts = (train, held, np.flatnonzero(test))
    return swap_tasks.Data(*((torch.tensor(x[k]).float(), torch.tensor(y[k])) for k in parts), source=source)


def images(seed: int) -> swap_tasks.Data:
    """A tenth of CIFAR-100; few of its test images, which nothing here looks at."""
    data = swap_tasks._images(5_000, seed)
    return replace(data, test=(data.test[0][:256], data.test[1][:256]))


def task(name: str) -> swap_tasks.Task:
    if name == "cifar100":
        return swap_tasks.Task(
            name, "cross-entropy", images, lambda data: Convolutions(), 256,
            lambda data: 100, {32: 12, 512: 12}, {"sgd": 0.2, "adamw": 3e-3, "muon": 3e-3}, weight_decay=5e-4,
            decoupled_decay=0.05, warm_up=0.1, augmented=True,
        )  # fmt: skip
    rows = len(table(name, 0).train[0])
    epochs = max(5, min(40, 3000 * 256 // rows))
    return swap_tasks.Task(
        name, "likelihood", partial(table, name), lambda data: mlp([data.train[0].shape[1], 128, 128]), 128,
        lambda data: 1 + max(int(part[1].max()) for part in (data.train, data.test)), {256: epochs}, swap_tasks.RATES,
    )  # fmt: skip


def error(name: str, optimizer: str, batch_size: int, rule: str) -> float | None:
    """The validation error, None where the run diverges."""
    RULES[rule].take()
    one = task(name)
    run = swap_train.Run(name, optimizer, batch_size, "learned" if rule == "learned" else "solved", 0, 0)
    training = swap_train.Training(run, one, one.load(0), "cpu")
    row = swap_train.train_together([training], math.inf, capture=False)[0]
    return row["validation"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing after so many")
    parser.add_argument("--tasks", nargs="+", help="names of tables, cifar100 (default: all)")
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "adamw"], choices=["sgd", "adamw", "muon"])
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="folder of the JSON file")
    args = parser.parse_args()
    args.device, start = "cpu", time.perf_counter()
    torch.set_num_threads(1)
    rows = []
    for optimizer in args.optimizers:
        for name in args.tasks or ["cifar100", *classes()]:
            if time.perf_counter() - start > args.seconds:
                print(f"{name}, {optimizer}: no time left")
                continue
            for size in task(name).epochs:
                errors = {rule: error(name, optimizer, size, rule) for rule in RULES}
                least = errors["learned"]
                ratios = {rule: value / least if value and least else None for rule, value in errors.items()}
                row = {"task": name, "optimizer": optimizer, "batch_size": size, "errors": errors, "ratios": ratios}
                rows.append(row)
                shown = ", ".join(f"{rule} {value:.3f}" for rule, value in list(ratios.items())[1:] if value)
                print(f"{name:20}{optimizer:7}{size:4} learned {least or math.nan:.4f}, {shown}", flush=True)
                common.save(args, "shortest_memory", "validation errors by the memories for cross-entropy", rows)


if __name__ == "__main__":
    main()
