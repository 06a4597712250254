"""Backbones of the swap test that the library has no use for elsewhere. All return features with the channels last."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SmallConvolutions(nn.Module):
    """Features `(B, 2 width)` of images: two strided convolutions and a mean; the CPU's stand-in for a ResNet."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean((2, 3))


class UNet(nn.Module):
    """Features `(B, H, W, width)` of pictures `(B, 1, H, W)`: twice down, twice up, finer maps beside the coarse."""

    def __init__(self, width: int):
        super().__init__()
        self.down = nn.ModuleList([_double(1, width), _double(width, 2 * width), _double(2 * width, 4 * width)])
        self.up = nn.ModuleList([_double(6 * width, 2 * width), _double(3 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down[0](x)
        middle = self.down[1](F.avg_pool2d(fine, 2))
        x = self.down[2](F.avg_pool2d(middle, 2))
        x = self.up[0](torch.cat([_enlarged(x), middle], 1))
        return self.up[1](torch.cat([_enlarged(x), fine], 1)).permute(0, 2, 3, 1)


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GELU(),
    )


def _enlarged(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


class Transformer(nn.Module):
    """Features `(B, T, width)` of characters `(B, T)`; a position sees itself and what came before."""

    def __init__(self, alphabet: int, width: int, blocks: int, length: int):
        super().__init__()
        self.embedding = nn.Embedding(alphabet, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(_Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.position[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.norm(h)


class _Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.heads = max(1, width // 32)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        B, T, width = h.shape
        q, k, v = self.attend(self.before(h)).view(B, T, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.join(mixed.transpose(1, 2).reshape(B, T, width))
        return h + self.narrow(F.gelu(self.widen(self.between(h))))
