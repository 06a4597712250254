"""Tiny ImageNet-200: 100,000 small images in 200 classes of ImageNet, and 10,000 to judge by.

They come from the folder `CLOSEDFORM_DATA`: mosaics (`tinyimagenet/*.webp`, 100 x 100 images of 48 x 48 each, recompressed)
with `tinyimagenet_labels.npz`. Every part of the training images has 50 of each class.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import mosaics, store

CLASSES, SIZE, PARTS, PART = 200, 48, 10, 10_000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels, as everybody takes them


@dataclass(frozen=True)
class ImageSet:
    """Images in uint8 and labels in int64; `mean` and `std (3,)` of the channels."""

    x_train: Tensor
    y_train: Tensor
    x_validation: Tensor
    y_validation: Tensor
    mean: Tensor
    std: Tensor
    classes: int


def load(parts: int = PARTS) -> ImageSet:
    """The first `parts` of the ten training parts, and the labelled validation images."""
    if not 1 <= parts <= PARTS:
        raise ValueError(f"parts is {parts}; expected 1 to {PARTS}")
    if (labels := store.data_file("tinyimagenet/tinyimagenet_labels.npz")) is None:
        raise FileNotFoundError(
            "Tiny ImageNet is not on this machine: set the environment variable CLOSEDFORM_DATA to a folder that has "
            "tinyimagenet/tinyimagenet_labels.npz and the mosaics beside it"
        )
    known = store.read(labels)
    names = [*(f"train_{k}" for k in range(parts)), "validation"]
    y = [known.get(f"y_{name}", np.empty(0)) for name in names]
    for name, some in zip(names, y):
        if some.shape != (PART,) or some.min() < 0 or some.max() >= CLASSES:
            raise ValueError(f"{labels} has no {PART:,} labels from 0 to {CLASSES - 1} under the name y_{name}")
    with ThreadPoolExecutor() as pool:  # Pillow decodes without holding the interpreter
        x = list(pool.map(_tiles, names))
    return ImageSet(
        torch.from_numpy(np.concatenate(x[:-1])),
        torch.from_numpy(np.concatenate(y[:-1]).astype(np.int64)),
        torch.from_numpy(x[-1]),
        torch.from_numpy(y[-1].astype(np.int64)),
        torch.tensor(MEAN),
        torch.tensor(STD),
        CLASSES,
    )


def _tiles(name: str) -> np.ndarray:
    file = f"tinyimagenet/tinyimagenet_{name}.webp"
    if (path := store.data_file(file)) is None:
        raise FileNotFoundError(f"the folder CLOSEDFORM_DATA has a part of Tiny ImageNet, but not {file}")
    return mosaics.tiles(path, SIZE)
