"""ResNet-18 and ResNet-50 backbones for 32 x 32 images.

The layers and their parameter counts are torchvision's, except for the stem: a 3 x 3 convolution of stride 1 and no
pooling, as is usual for CIFAR. The modules return *features* `(B, feature_dim)`; the head is yours to add::

    >>> import torch
    >>> from closedform.paper.models.resnet import resnet18
    >>> backbone = resnet18(feature_dim=128)
    >>> backbone(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 128])
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


class _Residual(nn.Module):
    """`relu(body(x) + shortcut(x))`, with a projection where the shapes differ."""

    def __init__(self, body: nn.Sequential, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(_conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _basic(in_channels: int, width: int, stride: int) -> tuple[_Residual, int]:
    body = nn.Sequential(
        _conv(in_channels, width, 3, stride),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        _conv(width, width, 3),
        nn.BatchNorm2d(width),
    )
    return _Residual(body, in_channels, width, stride), width


def _bottleneck(in_channels: int, width: int, stride: int) -> tuple[_Residual, int]:
    body = nn.Sequential(
        _conv(in_channels, width, 1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        _conv(width, width, 3, stride),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        _conv(width, 4 * width, 1),
        nn.BatchNorm2d(4 * width),
    )
    return _Residual(body, in_channels, 4 * width, stride), 4 * width


def _resnet(block, depths: tuple[int, int, int, int], feature_dim: int | None) -> nn.Sequential:
    layers: list[nn.Module] = [_conv(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    channels = 64
    for stage, depth in enumerate(depths):
        for i in range(depth):
            residual, channels = block(channels, 64 * 2**stage, 2 if stage > 0 and i == 0 else 1)
            layers.append(residual)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if feature_dim is not None:
        layers += [nn.Linear(channels, feature_dim), nn.ReLU(inplace=True)]
    for layer in layers:
        for module in layer.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(*layers)


def resnet18(feature_dim: int | None = None) -> nn.Sequential:
    """ResNet-18 features: 512 of them, or `feature_dim` through one more linear layer and a ReLU (the paper's "last
    layer dim" of its wall-clock tables)."""
    return _resnet(_basic, (2, 2, 2, 2), feature_dim)


def resnet50(feature_dim: int | None = None) -> nn.Sequential:
    """ResNet-50 features: 2048 of them, or `feature_dim` through one more linear layer and a ReLU."""
    return _resnet(_bottleneck, (3, 4, 6, 3), feature_dim)
