"""Where a classifier's images come from: held on the device, or read from a folder while it trains.

Order and augmentation depend on the seed and the epoch alone, so a run that was stopped goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from ... import distributed
from ..data import cifar, imagefolder
from ..data.tinyimagenet import MEAN, STD

EVALUATED = 2048  # images on the device at a time
READ = 256  # images of a folder at a time, where they are measured
PARTS = ("train", "validation", "test")

Mix = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # images and labels to mixed images and rows of probabilities


class Batches(Protocol):
    """What a classifier asks of its images."""

    device: torch.device
    classes: int
    batch_size: int  # rows of a step in all processes together
    per_epoch: int
    measured: tuple[str, ...]  # the parts that accuracies are told of
    capturable: bool  # whether `batch` reads nothing but tensors that `load` fills in place

    def load(self, t: int) -> None:
        """Get ready the batch of step t."""
        ...

    def batch(self) -> tuple[Tensor, Tensor]:
        """That batch: images as the network takes them, labels `(n,)` or rows of probabilities `(n, classes)`."""
        ...

    def images(self, part: str) -> Iterator[tuple[Tensor, Tensor]]:
        """All images of a part as they are, with their labels, some at a time; of several processes each has its share."""
        ...


# ---- On the device -------------------------------------------------------------------------------


@dataclass
class DeviceImages:
    """The parts of a split on the device."""

    split: Any  # `x_PART`, `y_PART`, `mean`, `std` and `classes`, such as a `cifar.ImageSplit`
    device: torch.device
    parts: dict[str, tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        split, to = self.split, self.device
        self.parts = {
            part: (getattr(split, f"x_{part}").to(to), getattr(split, f"y_{part}").to(to))
            for part in PARTS
            if hasattr(split, f"x_{part}")
        }
        self.mean, self.std = split.mean.to(to), split.std.to(to)


class DeviceBatches:
    """Images that stay on the device in uint8; they are moved by some pixels and mirrored there."""

    def __init__(self, data: DeviceImages, batch_size: int, seed: int, mix: Mix | None = None):
        self.data, self.batch_size, self.seed, self.mix = data, batch_size, seed, mix
        self.device, self.classes = data.device, data.split.classes
        self.x, self.y = data.parts["train"]
        self.per_epoch = _per_epoch(len(self.x), batch_size)
        self.measured: tuple[str, ...] = tuple(part for part in data.parts if part != "train")
        self.capturable = mix is None
        self.index = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        self._order: dict[str, Tensor] = {}
        self._epoch = -1

    def load(self, t: int) -> None:
        epoch, k = divmod(t, self.per_epoch)
        if epoch != self._epoch:
            self._draw(epoch)
        self.index.copy_(self._order["order"][k * self.batch_size : (k + 1) * self.batch_size])

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

    def batch(self) -> tuple[Tensor, Tensor]:
        x = cifar.augment(self.x[self.index], self._order["shift"][self.index], self._order["flip"][self.index])
        x, y = cifar.normalise(x, self.data.mean, self.data.std), self.y[self.index]
        return (x, y) if self.mix is None else self.mix(x, y)

    def images(self, part: str) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.data.parts[part]
        for pixels, labels in zip(x.split(EVALUATED), y.split(EVALUATED)):
            yield cifar.normalise(pixels, self.data.mean, self.data.std), labels


def _per_epoch(images: int, batch_size: int) -> int:
    if batch_size > images:
        raise ValueError(f"batch size {batch_size} is larger than the training set of {images:,} images")
    return images // batch_size


# ---- From a folder -------------------------------------------------------------------------------


class _Order(Sampler):
    """The `(epoch, number)` of the images of this process, batch by batch, from the batch `start` of an epoch on."""

    def __init__(self, images: int, batch_size: int, per_epoch: int, seed: int):
        self.images, self.batch_size, self.per_epoch, self.seed = images, batch_size, per_epoch, seed
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        g = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        order = torch.randperm(self.images, generator=g)
        rank, world = distributed.place()
        share = self.batch_size // world
        for k in range(self.start, self.per_epoch):
            first = k * self.batch_size + rank * share
            yield [(self.epoch, number) for number in order[first : first + share].tolist()]


class FolderBatches:
    """Images read from a folder by worker processes. Under torchrun every process reads its share of each batch.

    transforms: what the images to train on and those to measure on go through, to uint8.
    workers: reading processes of each training process; with 0 it reads itself.
    """

    measured: tuple[str, ...] = ("validation",)
    capturable: bool = False

    def __init__(
        self,
        folder: imagefolder.ImageFolder,
        device: torch.device,
        batch_size: int,
        seed: int,
        transforms: tuple[imagefolder.Transform, imagefolder.Transform],
        workers: int = 0,
        mix: Mix | None = None,
    ):
        rank, world = distributed.place()
        if batch_size % world:
            raise ValueError(f"batch size {batch_size} cannot be shared equally by {world} processes")
        self.device, self.batch_size, self.classes, self.mix = device, batch_size, len(folder.classes), mix
        self.per_epoch = _per_epoch(len(folder.train), batch_size)
        self.mean, self.std = torch.tensor(MEAN, device=device), torch.tensor(STD, device=device)
        self._order = _Order(len(folder.train), batch_size, self.per_epoch, seed)
        mine = [(0, number) for number in range(rank, len(folder.validation), world)]
        shares = [mine[at : at + READ] for at in range(0, len(mine), READ)]
        self._training = self._loader(imagefolder.FolderImages(folder.train, transforms[0], seed), self._order, workers)
        self._validation = self._loader(
            imagefolder.FolderImages(folder.validation, transforms[1], seed), shares, workers
        )
        self._stream: Iterator[Any] = iter(())
        self._next = -1  # the step that the stream goes on with

    def _loader(self, images: imagefolder.FolderImages, order: Any, workers: int) -> DataLoader:
        # processes that are forked from one with a GPU and threads may hang
        context = "spawn" if workers else None
        return DataLoader(
            images,
            batch_sampler=order,
            num_workers=workers,
            multiprocessing_context=context,
            persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
        )

    def load(self, t: int) -> None:
        self._order.epoch, self._order.start = divmod(t, self.per_epoch)
        if t != self._next or self._order.start == 0:
            self._stream = iter(self._training)
        pixels, labels = next(self._stream)
        self._pixels, self._labels = (tensor.to(self.device, non_blocking=True) for tensor in (pixels, labels))
        self._next = t + 1

    def batch(self) -> tuple[Tensor, Tensor]:
        x = cifar.normalise(self._pixels, self.mean, self.std)
        return (x, self._labels) if self.mix is None else self.mix(x, self._labels)

    def images(self, part: str) -> Iterator[tuple[Tensor, Tensor]]:
        if part != "validation":
            raise ValueError(f"part is {part!r}; expected 'validation'")
        for pixels, labels in self._validation:
            yield cifar.normalise(pixels.to(self.device), self.mean, self.std), labels.to(self.device)
