"""The model of one configuration of the CIFAR-100 experiment: backbone, head, loss, rule, optimizers and rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...head import ClosedFormLinear
from ...solver import auto, evidence, lines, losses
from ...solver.lambdas import follow_lr, relative
from ...solver.losses import CrossEntropy, GeneralizedSquared, Loss, OneHotSquared, Squared
from ...solver.rules import Kalman, Proximal, Ridge, Rule
from ...stack.optimizers import cosine
from ..models.resnet import resnet18, resnet50
from . import optimizers
from .batches import DeviceBatches, DeviceImages
from .classifier import Classifier

K, M = 5.0, 2.0  # of the generalised squared loss
MANY = 100  # classes


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


WEIGHT_DECAY = {"sgd": 5e-4, "adamw": 0.05, "muon": 0.05}  # part of the gradient under SGD, decoupled under the others
LEARNED = ("cross-entropy", "l2")
FIXED = "etf"


def loss_of(method: str, smoothing: float = 0.0) -> Loss:
    if "cross-entropy" in method or method == FIXED:
        return CrossEntropy(label_smoothing=smoothing)
    if method != "generalized":
        return OneHotSquared(label_smoothing=smoothing)
    if smoothing:
        raise ValueError(f"the generalised squared loss takes whole labels, got label smoothing {smoothing}")
    return GeneralizedSquared(K, M)


def rule_of(config: dict[str, Any], optimizer: torch.optim.Optimizer) -> Rule:
    """The paper's rules as they are; ours with a memory that lengthens as the learning rate falls."""
    method = config["method"]
    if method == "ridge":
        return Ridge(config["beta"])
    if method == "proximal":
        return Proximal(relative(config["ratio"]) if config["lam"] is None else config["lam"])
    if method.startswith("auto"):
        return auto.Auto()
    if method.startswith("kalman"):
        return Kalman(follow_lr(optimizer, forget=config["forget"]))
    return Proximal(relative(follow_lr(optimizer, config["ratio"])))


def rule_name(rule: Rule, loss: Loss, outputs: int) -> str:
    """What a rule does under a loss, so that runs by another default can be told apart."""
    name = repr(rule.under(loss))
    if isinstance(rule, auto.Auto) and not isinstance(loss, Squared):
        name += f", bounded by {auto.BOUNDED_BATCHES}, {auto.BOUNDED_ROWS} both, {auto.BOUNDED_STEPS}"
        name += f", decay {auto.DECAY} without the bias"
        drawn = loss.guess(outputs) > 0 and loss.inner_steps == 1 and lines.whole_slack(loss, outputs) == 1
        name += f", drawn to zero by up to {evidence.LARGEST}" if drawn and not loss.numbers and rule.handicap else ""
        if isinstance(loss, CrossEntropy):
            name += f", steps of up to 1 / {losses.CLASSES_A_STEP} of the classes from {lines.TRUSTED} rows a feature"
    return name


def default_name(method: str) -> str | None:
    """The name of the default rule of now among many classes, for a method that takes the default; None for the others."""
    return rule_name(auto.Auto(), loss_of(method), MANY) if method.startswith("auto") else None


def simplex(classes: int, features: int, seed: int) -> Tensor:
    """A random simplex equiangular tight frame, `(classes, features)`: rows of length one, every two of them at the same
    angle, the largest that there is."""
    if features < classes:
        raise ValueError(f"{classes} rows at equal angles need as many features, got {features}")
    g = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(features, classes, generator=g, dtype=torch.float64)).Q.T
    return ((classes / (classes - 1)) ** 0.5 * (axes - axes.mean(0))).float()


def warm_cosine(lr: float, warm_up: float) -> Callable[[int, int], float]:
    """A rate that rises along a line over the share `warm_up` of the steps, then falls along half a cosine."""

    def rate(t: int, total: int) -> float:
        rise = warm_up * total
        if t < rise:
            return lr * (t + 1) / (rise + 1)
        return lr * cosine((t - rise) / max(total - rise, 1))

    return rate


def classifier(config: dict[str, Any], data: DeviceImages) -> Classifier:
    """The model of a configuration, as its seed draws it."""
    torch.manual_seed(config["seed"])
    make, features = NETS[config["net"]]
    classes, device, method = data.split.classes, data.device, config["method"]
    backbone = make().to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    plain = ClosedFormLinear(features, classes, config["bias"], init=config["init"])
    weights = torch.cat([plain.weight, *([plain.bias[:, None]] if config["bias"] else [])], 1)
    head: nn.Linear = plain.to_linear().to(device)
    if method == FIXED:
        with torch.no_grad():
            head.weight.copy_(simplex(classes, features, config["seed"]))
        head.requires_grad_(False)
    lr = torch.tensor(config["lr"], device=device)  # the base rate, which a memory that follows the rate starts from
    decay = config["weight_decay"]
    learned = head.parameters() if method in LEARNED else ()
    chosen = optimizers.make(config["optimizer"], backbone, learned, lr, decay, decay)
    loss = loss_of(method, config["smoothing"])
    if method not in (*LEARNED, FIXED):
        rule = rule_of(config, chosen[-1])  # Muon's rate is one; the optimizer beside it has the rate
        solved = ClosedFormLinear(features, classes, config["bias"], rule=rule, loss=loss, device=device)
        solved.set_weights_(weights.to(device))
        head = solved
    return Classifier(
        backbone,
        head,
        loss,
        chosen,
        DeviceBatches(data, config["batch_size"], config["seed"]),
        lr=lr,
        epochs=config["epochs"],
        rate=warm_cosine(config["lr"], config["warm_up"]),
        seed=config["seed"],
        algorithm=config["algorithm"],
        precision=config["precision"],
    )
