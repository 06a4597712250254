"""The model of one configuration of the ImageNet experiment: a network without normalisers, its head and its recipe.

timm brings the network, adaptive gradient clipping, RandAugment, mixup and cutmix. The small `twin` needs none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...head import ClosedFormLinear
from ..data import imagefolder
from .averaging import Average
from .batches import Batches, Mix
from .cifar100_model import LEARNED, loss_of, rule_of, warm_cosine
from .classifier import Classifier

TWIN, TWIN_FEATURES = "twin", 32


def timm() -> Any:
    """timm, or an ImportError that says how to get it."""
    try:
        import timm  # pyright: ignore[reportMissingImports]
        import timm.data  # pyright: ignore[reportMissingImports]
        import timm.utils  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as missing:  # torchvision for another torch raises a RuntimeError
        raise ImportError(
            f"NFNets and their recipe need timm and a torchvision for torch {torch.__version__} ({missing}): "
            "pip install 'closedform[imagenet]'"
        ) from None
    return timm


class Twin(nn.Module):
    """A small network for a CPU, without normalisers as NFNets are: some thousand weights, with gains and biases."""

    def __init__(self, features: int = TWIN_FEATURES):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, features, 3, 2, 1)
        self.gain = nn.Parameter(torch.ones(features, 1, 1))
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        return (self.gain * torch.relu(self.second(torch.relu(self.first(x))))).mean((2, 3))


def backbone_of(config: dict[str, Any]) -> tuple[nn.Module, int]:
    """The network as its seed draws it, and how many features it has."""
    torch.manual_seed(config["seed"])
    if config["net"] == TWIN:
        return Twin(), TWIN_FEATURES
    network = timm().create_model(
        config["net"], num_classes=0, drop_rate=config["dropout"], drop_path_rate=config["drop_path"]
    )
    return network, network.num_features


def groups(modules: list[nn.Module], weight_decay: float) -> list[dict[str, Any]]:
    """The learned parameters with weight decay on all but gains and biases."""
    named = [pair for module in modules for pair in module.named_parameters() if pair[1].requires_grad]
    exempt = [name.endswith(("gain", "bias")) or parameter.ndim < 2 for name, parameter in named]
    return [
        {"params": [p for (_, p), free in zip(named, exempt) if free == kind], "weight_decay": decay}
        for kind, decay in ((False, weight_decay), (True, 0.0))
    ]


def mix_of(config: dict[str, Any], classes: int) -> Mix | None:
    """Mixup and cutmix in turn. The labels become rows of probabilities; the loss smooths them, as it does whole labels."""
    if not config["mixup"] and not config["cutmix"]:
        return None
    return timm().data.Mixup(
        mixup_alpha=config["mixup"], cutmix_alpha=config["cutmix"], label_smoothing=0.0, num_classes=classes
    )


def transforms_of(config: dict[str, Any]) -> tuple[imagefolder.Transform, imagefolder.Transform]:
    """What images of a folder go through, to train on and to measure on."""
    if not config["randaugment"]:
        return imagefolder.RandomCrop(config["size"]), imagefolder.CentralCrop(config["test_size"])
    create = timm().data.create_transform
    shared = {"interpolation": "bicubic", "use_prefetcher": True}  # which leaves them in uint8
    return (
        create(config["size"], is_training=True, auto_augment=config["randaugment"], **shared),
        create(config["test_size"], is_training=False, crop_pct=0.9, **shared),
    )


def classifier(config: dict[str, Any], batches: Batches, captured: bool = True) -> Classifier:
    """The model of a configuration, as its seed draws it. The last layer starts from zeros."""
    backbone, features = backbone_of(config)
    device, method, classes = batches.device, config["method"], batches.classes
    backbone = backbone.to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    head: nn.Linear = ClosedFormLinear(features, classes, device=device)
    learned = [backbone]
    if method in LEARNED:
        head = head.to_linear().requires_grad_(True)
        learned.append(head)
    lr = torch.tensor(config["lr"], device=device)  # the base rate, which a memory that follows the rate starts from
    optimizer = torch.optim.SGD(
        groups(learned, config["weight_decay"]), lr=lr, momentum=0.9, nesterov=True, fused=device.type == "cuda"
    )
    loss = loss_of(method, config["smoothing"])
    if method not in LEARNED:
        head = ClosedFormLinear(features, classes, rule=rule_of(config, optimizer), loss=loss, device=device)
    return Classifier(
        backbone,
        head,
        loss,
        [optimizer],
        batches,
        lr=lr,
        epochs=config["epochs"],
        rate=warm_cosine(config["lr"], config["warm_up"] / config["epochs"]),
        seed=config["seed"],
        precision=config["precision"],
        clip=_clip(backbone, config["clip"]),
        average=Average(backbone, head, config["average"]) if config["average"] else None,
        captured=captured,
    )


def _clip(backbone: nn.Module, factor: float) -> Callable[[], None] | None:
    """Adaptive gradient clipping of the backbone, not of the head."""
    if not factor:
        return None
    if not 0 < factor < math.inf:
        raise ValueError(f"the factor of adaptive clipping must be positive, got {factor}")
    clip, parameters = timm().utils.adaptive_clip_grad, list(backbone.parameters())
    return lambda: clip(parameters, factor)
