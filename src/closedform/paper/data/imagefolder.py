"""A folder of images as everybody has ImageNet: `train/CLASS/*.JPEG` and `val/CLASS/*.JPEG`, read one by one.

What is random about an image (its crop, its augmentation) comes from the seed, the epoch and the number of the image alone.
So neither the number of workers nor a restart changes what a network sees.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ...extras import require

ENDINGS = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
Transform = Callable[[Any], Any]  # of a Pillow image to uint8 `(3, height, width)`


@dataclass(frozen=True)
class Files:
    """Paths of images relative to `folder`, as bytes, which take little memory in many workers, and their labels."""

    folder: Path
    names: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ImageFolder:
    """The classes in alphabetical order, and the files of both parts."""

    classes: tuple[str, ...]
    train: Files
    validation: Files


def load(folder: Path) -> ImageFolder:
    """List the images of a folder that has class folders in `train` and in `val`."""
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise ValueError(
                f"{folder} has no folder {part!r}; expected train/CLASS/*.JPEG and val/CLASS/*.JPEG with the same classes"
            )
    names = {part: _subfolders(folder / part) for part in ("train", "val")}
    for part, classes in names.items():
        if not classes:
            raise ValueError(f"{folder / part} has no class folders; expected one for every class, with its images")
    if names["train"] != names["val"]:
        one, other = set(names["train"]), set(names["val"])
        lonely = sorted(one ^ other)
        where = "train" if lonely[0] in one else "val"
        raise ValueError(
            f"the class folders of {folder} differ: {len(lonely)} of them are in one part alone, such as {lonely[0]!r} in "
            f"{where}; expected the same in train and val"
        )
    classes = tuple(names["train"])
    return ImageFolder(classes, _files(folder / "train", classes), _files(folder / "val", classes))


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path, classes: Sequence[str]) -> Files:
    names: list[bytes] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        with os.scandir(folder / name) as entries:
            images = sorted(entry.name for entry in entries if entry.name.lower().endswith(ENDINGS))
        if not images:
            raise ValueError(f"the class folder {folder / name} has no images ({', '.join(ENDINGS)})")
        names += [os.fsencode(f"{name}/{image}") for image in images]
        labels += [label] * len(images)
    return Files(folder, np.array(names), np.array(labels, np.int64))


class FolderImages(Dataset):
    """Images by `(epoch, number)`, as uint8 `(3, height, width)` with the label."""

    def __init__(self, files: Files, transform: Transform, seed: int):
        require("reading images", "imagenet", "PIL")
        self.files, self.transform, self.seed = files, transform, seed

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        from PIL import Image

        epoch, number = key
        path = self.files.folder / os.fsdecode(self.files.names[number])
        digest = hashlib.blake2b(f"{self.seed} {epoch} {number}".encode(), digest_size=4).digest()
        _seed(int.from_bytes(digest, "little"))
        try:
            with Image.open(path) as image:
                return torch.as_tensor(self.transform(image.convert("RGB"))), int(self.files.labels[number])
        except Exception as error:  # Pillow raises many kinds on damaged bytes
            raise ValueError(f"{path} cannot be read as an image: {error}") from error

    def __len__(self) -> int:
        return len(self.files)


def _seed(value: int) -> None:
    """Transforms draw from any of these."""
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


# ---- Plain transforms, which need nothing but Pillow ---------------------------------------------


@dataclass(frozen=True)
class RandomCrop:
    """A random part of the image, of `least` to all of its area and of its shape, scaled to `size` and mirrored half of the
    time."""

    size: int
    least: float = 0.25

    def __call__(self, image: Any) -> np.ndarray:
        side = random.uniform(self.least, 1.0) ** 0.5
        width, height = side * image.width, side * image.height
        left, top = random.uniform(0, image.width - width), random.uniform(0, image.height - height)
        pixels = _pixels(image, self.size, (left, top, left + width, top + height))
        return np.ascontiguousarray(pixels[:, :, ::-1]) if random.random() < 0.5 else pixels


@dataclass(frozen=True)
class CentralCrop:
    """The middle square of the image, `share` of its shorter side, scaled to `size`."""

    size: int
    share: float = 0.9

    def __call__(self, image: Any) -> np.ndarray:
        half, x, y = self.share * min(image.size) / 2, image.width / 2, image.height / 2
        return _pixels(image, self.size, (x - half, y - half, x + half, y + half))


def _pixels(image: Any, size: int, box: tuple[float, float, float, float]) -> np.ndarray:
    from PIL import Image

    scaled = image.resize((size, size), Image.Resampling.BICUBIC, box)
    return np.ascontiguousarray(np.asarray(scaled).transpose(2, 0, 1))
