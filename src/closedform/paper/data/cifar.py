"""CIFAR-100: 60,000 colour images of 32 x 32 in 100 classes, and their augmentation on the device they are on.

>>> from closedform.paper.data import cifar
>>> split = cifar.load(source="synthetic", limit=100)
>>> split.x_train.shape, split.y_train.shape, split.classes
(torch.Size([80, 3, 32, 32]), torch.Size([80]), 10)

The images are those of Krizhevsky (2009). They come from the folder `CLOSEDFORM_DATA`: mosaics (`cifar100/*.webp`, lossless,
100 x 100 images each, with `cifar100_labels.npz`), the official folder `cifar-100-python` or its archive; else from the
archive in our cache, which is downloaded if need be and compared with its published checksum.
"""

from __future__ import annotations

import hashlib
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...files import atomic
from . import mosaics, store

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
ARCHIVE, FOLDER = "cifar-100-python.tar.gz", "cifar-100-python"
MD5 = {
    ARCHIVE: "eb9058c3a382ffc7106e4002c42a8d85",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
CLASSES, TRAINING, TEST = 100, 50_000, 10_000
PARTS = (*(f"train_{k}" for k in range(5)), "test")
SYNTHETIC, SYNTHETIC_CLASSES = 2000, 10
SHIFT = 4  # pixels by which `augment` moves an image at most


class Images(NamedTuple):
    """Images `(n, 3, 32, 32)` in uint8 and labels `(n,)`."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class ImageSplit(store.ThreeParts):
    """Images in uint8, labels in int64; `mean` and `std (3,)` of the training images' channels, for `normalise`."""

    mean: Tensor
    std: Tensor
    classes: int


def load(
    seed: int = 0,
    limit: int | None = None,
    *,
    source: Literal["cifar100", "synthetic"] = "cifar100",
    read: Callable[[], tuple[Images, Images]] | None = None,
) -> ImageSplit:
    """The training images split 80/20 at random into training and validation (the paper's split), and the test images.

    `limit` keeps only this many of the training images, the first of the seed's permutation. `source="synthetic"` takes
    generated images instead, `limit` of them or 2,000, and half as many for the test; they do not depend on the seed. `read`
    takes the place of `images`, for a caller who has them already.
    """
    if source == "synthetic":
        n = SYNTHETIC if limit is None else limit
        pool, test, classes = synthetic(n), synthetic(n // 2, seed=1), SYNTHETIC_CLASSES
    elif source == "cifar100":
        (pool, test), classes = (read or images)(), CLASSES
    else:
        raise ValueError(f"source is {source!r}; expected 'cifar100' or 'synthetic'")
    n = len(pool.y) if limit is None else limit
    if not 10 <= n <= len(pool.y):
        raise ValueError(f"limit is {limit}; expected 10 to {len(pool.y):,}")
    order = np.random.RandomState(seed).permutation(len(pool.y))[:n]
    training, validation = (Images(pool.x[part], pool.y[part]) for part in np.split(order, [n * 8 // 10]))
    mean, std = moments(training.x)
    (x, y), (x_v, y_v), (x_t, y_t) = (
        (torch.from_numpy(part.x), torch.from_numpy(part.y.astype(np.int64))) for part in (training, validation, test)
    )
    return ImageSplit(x, y, x_v, y_v, x_t, y_t, torch.from_numpy(mean).float(), torch.from_numpy(std).float(), classes)


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel of images in uint8, in units of 255, without a copy in floats."""
    counts = np.zeros((3, 256), np.int64)
    for piece in np.array_split(x, -(-len(x) // 1024)):  # bincount makes eight bytes of each
        counts += np.stack([np.bincount(piece[:, channel].reshape(-1), minlength=256) for channel in range(3)])
    share, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ values
    return mean, np.sqrt(share @ values**2 - mean**2)


def normalise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images in uint8 as float32 of mean 0 and deviation 1 in every channel."""
    return (x.float() / 255 - mean[:, None, None]) / std[:, None, None]


def augment(x: Tensor, shift: Tensor, flip: Tensor) -> Tensor:
    """Every image moved by its own `shift (n, 2)`, 0 to 2 `SHIFT` pixels down and right of its padded corner, and mirrored
    where `flip (n,)` says so; what comes in from outside is 0.

    `SHIFT` leaves an image where it was. The draws are arguments, so that a captured or resumed run sees the same ones.
    """
    n, _, height, width = x.shape
    padded = F.pad(x, (SHIFT,) * 4)
    rows = shift[:, :1] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(n, width)
    columns = shift[:, 1:] + torch.where(flip[:, None], width - 1 - columns, columns)
    image = torch.arange(n, device=x.device)[:, None, None]
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def images() -> tuple[Images, Images]:
    """All training and all test images, from wherever they are (see above)."""
    if (labels := store.data_file("cifar100/cifar100_labels.npz")) is not None:
        return _mosaics(labels)
    if store.data_file(f"{FOLDER}/train") is not None:
        return _pickled(lambda name: open(_required_file(f"{FOLDER}/{name}"), "rb"))
    archive = store.data_file(ARCHIVE) or store.cache_folder() / ARCHIVE
    if not archive.is_file():
        _download(archive)
    if (md5 := _md5(archive)) != MD5[ARCHIVE]:
        raise ValueError(f"{archive} has the MD5 sum {md5}; expected {MD5[ARCHIVE]}: remove it to download it again")
    with tarfile.open(archive) as tar:

        def member(name: str) -> BinaryIO:
            file = tar.extractfile(f"{FOLDER}/{name}")
            assert file is not None
            return BytesIO(file.read())

        return _pickled(member)


def synthetic(n: int, seed: int = 0) -> Images:
    """`n` generated images in ten classes: each class has a pattern of waves, moved by some pixels, in noise."""
    waves = np.random.RandomState(0)
    frequency, phase = waves.uniform(-0.6, 0.6, (SYNTHETIC_CLASSES, 3, 2)), waves.uniform(0, 6, (SYNTHETIC_CLASSES, 3))
    random = np.random.RandomState(seed + 1)
    y = np.arange(n) % SYNTHETIC_CLASSES
    moved = random.randint(-4, 5, (n, 2))
    grid = np.stack(np.meshgrid(np.arange(32), np.arange(32), indexing="ij"), -1)  # (32, 32, 2)
    angle = (
        np.einsum("nckm,nijm->ncij", frequency[y][:, :, None], grid + moved[:, None, None]) + phase[y][..., None, None]
    )
    pixels = 128 + 60 * np.sin(angle) + random.normal(0, 40, angle.shape)
    return Images(pixels.clip(0, 255).astype(np.uint8), y)


def _required_file(name: str) -> Path:
    path = store.data_file(name)
    if path is None:
        raise FileNotFoundError(f"the folder CLOSEDFORM_DATA has a part of CIFAR-100, but not {name}")
    return path


def _mosaics(labels: Path) -> tuple[Images, Images]:
    y = store.read(labels)
    parts = []
    for part in PARTS:
        if y.get(f"y_{part}", np.empty(0)).shape != (10_000,):
            raise ValueError(f"{labels} has no 10,000 labels under the name y_{part}")
        parts.append(Images(mosaics.tiles(_required_file(f"cifar100/cifar100_{part}.webp"), 32), y[f"y_{part}"]))
    return Images(*(np.concatenate(arrays) for arrays in zip(*parts[:-1]))), parts[-1]


def _pickled(opened: Callable[[str], BinaryIO]) -> tuple[Images, Images]:
    """The official files, each a pickled dictionary: its checksum is compared first, and only arrays are made of it."""
    parts = []
    for name, count in (("train", TRAINING), ("test", TEST)):
        with opened(name) as file:
            content = file.read()
        if (md5 := hashlib.md5(content, usedforsecurity=False).hexdigest()) != MD5[name]:
            raise ValueError(f"the file {name!r} of CIFAR-100 has the MD5 sum {md5}; expected {MD5[name]}")
        body = _Arrays(BytesIO(content), encoding="bytes").load()
        x, y = np.asarray(body[b"data"], np.uint8), np.asarray(body[b"fine_labels"])
        if x.shape != (count, 3072) or y.shape != (count,):
            raise ValueError(
                f"the file {name!r} of CIFAR-100 has shapes {x.shape} and {y.shape}; expected {count} images"
            )
        parts.append(Images(x.reshape(count, 3, 32, 32), y))
    return parts[0], parts[1]


class _Arrays(pickle.Unpickler):
    """Makes arrays and Python's own types, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.zeros(0).__reduce__()[0]  # where numpy keeps it has changed over the years
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not an array")


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _download(path: Path) -> None:
    try:
        with atomic(path) as target, urlopen(URL, timeout=60) as source:
            digest = hashlib.md5(usedforsecurity=False)
            while block := source.read(2**20):
                digest.update(block)
                target.write(block)
            if (md5 := digest.hexdigest()) != MD5[ARCHIVE]:
                raise ValueError(f"the download from {URL} has the MD5 sum {md5}; expected {MD5[ARCHIVE]}")
    except (URLError, TimeoutError, ConnectionError) as error:
        raise FileNotFoundError(
            f"CIFAR-100 is not on this machine and cannot be downloaded ({error}): set the environment variable "
            f"CLOSEDFORM_DATA to a folder that has {ARCHIVE}"
        ) from error
