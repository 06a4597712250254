"""How sure a classifier is: several readings of the paper's table of "maximum probabilities".

The paper says that it tracks "the maximum probability of a correct class". It does not say over which images, nor whether
"maximum" is over the classes of an image or over the images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ... import probabilities
from ...solver.losses import CrossEntropy, Loss

PARTS = ("train", "validation", "test")
READINGS = {
    "mean": "the mean over the images of the largest probability",
    "own": "the mean over the images of the probability of the correct class",
    "right": "the mean of the largest probability over the images that are classified correctly",
    "tenth": "the mean of the largest probability over the tenth of the images where it is largest",
    "batch": "the largest probability of a correct class in a batch, its mean over the batches",
    "highest": "the largest probability of a correct class over all images",
}


def class_probabilities(f: Tensor, loss: Loss) -> Tensor:
    """Softmax of outputs `f (n, classes)` for cross-entropy, the paper's shifted outputs for the squared losses."""
    return torch.softmax(f, 1) if isinstance(loss, CrossEntropy) else probabilities.shifted(f)


def readings(p: Tensor, y: Tensor, batch_size: int) -> dict[str, float]:
    """All `READINGS` of probabilities `p (n, classes)` with labels `y (n,)`; the batches are consecutive, and NaN stands
    for a mean over no images."""
    largest, own = p.amax(1).double(), p.gather(1, y[:, None])[:, 0].double()
    values = {
        "mean": largest.mean(),
        "own": own.mean(),
        "right": largest[p.argmax(1) == y].mean(),
        "tenth": largest.topk(max(1, len(largest) // 10)).values.mean(),
        "batch": torch.stack([part.amax() for part in own.split(batch_size)]).mean(),
        "highest": own.amax(),
    }
    return {name: float(values[name]) for name in READINGS}
