"""The model of one configuration of the CIFAR-100 experiment: backbone, head, loss, rule and optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...head import ClosedFormLinear
from ...solver.lambdas import follow_lr, relative
from ...solver.losses import CrossEntropy, GeneralizedSquared, Loss, OneHotSquared
from ...solver.rules import Kalman, Proximal, Ridge, Rule
from ..models.resnet import resnet18, resnet50
from .classifier import Classifier, DeviceImages

K, M = 5.0, 2.0  # of the generalised squared loss


def small() -> nn.Sequential:
    """A network for a CPU: 64 features, some seconds where a ResNet-18 takes minutes."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


NETS: dict[str, tuple[Callable[[], nn.Sequential], int]] = {
    "resnet18": (resnet18, 512),
    "resnet50": (resnet50, 2048),
    "small": (small, 64),
}


def loss_of(method: str) -> Loss:
    if "cross-entropy" in method:
        return CrossEntropy()
    return GeneralizedSquared(K, M) if method == "generalized" else OneHotSquared()


def rule_of(config: dict[str, Any], optimizer: torch.optim.Optimizer) -> Rule:
    """The paper's rules as they are; ours with a memory that lengthens as the learning rate falls."""
    method = config["method"]
    if method == "ridge":
        return Ridge(config["beta"])
    if method == "proximal":
        return Proximal(config["lam"])
    if method.startswith("kalman"):
        return Kalman(follow_lr(optimizer, forget=config["forget"]))
    return Proximal(relative(follow_lr(optimizer, config["ratio"])))


def classifier(config: dict[str, Any], data: DeviceImages) -> Classifier:
    """The model of a configuration, as its seed draws it."""
    torch.manual_seed(config["seed"])
    make, features = NETS[config["net"]]
    classes, device = data.split.classes, data.device
    backbone = make().to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    learned = config["method"] in ("cross-entropy", "l2")
    plain = ClosedFormLinear(features, classes, config["bias"], init=config["init"])
    head: nn.Linear = plain.to_linear().to(device) if learned else plain.to(device)
    parameters = [*backbone.parameters(), *(head.parameters() if learned else ())]
    gpu = device.type == "cuda"
    lr = torch.tensor(config["lr"], device=device) if gpu else config["lr"]  # a tensor is what a captured step reads
    if config["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True, fused=gpu)
    else:
        optimizer = torch.optim.Adam(parameters, lr=lr, fused=gpu, capturable=gpu)
    loss = loss_of(config["method"])
    if isinstance(head, ClosedFormLinear):
        weights = torch.cat([head.weight, *([head.bias[:, None]] if config["bias"] else [])], 1)
        head = ClosedFormLinear(
            features, classes, config["bias"], rule=rule_of(config, optimizer), loss=loss, device=device
        )
        head.set_weights_(weights)
    return Classifier(
        backbone,
        head,
        loss,
        optimizer,
        data,
        batch_size=config["batch_size"],
        epochs=config["epochs"],
        rate=lambda done: config["lr"] * 0.5 * (1 + math.cos(math.pi * done)),
        seed=config["seed"],
        algorithm=config["algorithm"],
        precision=config["precision"],
    )
