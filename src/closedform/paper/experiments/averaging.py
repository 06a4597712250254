"""A slow copy of a network, which many recipes measure instead of the network itself."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ...head import ClosedFormLinear


class Average(nn.Module):
    """An exponential average of the weights of a backbone and its last layer: `a <- a + (1 - d) (w - a)` after every step,
    where d is `decay`, and less in the first steps: `(1 + t) / (10 + t)`."""

    count: Tensor

    def __init__(self, backbone: nn.Module, head: nn.Linear, decay: float):
        super().__init__()
        if not 0 < decay < 1:
            raise ValueError(f"the decay of an average must be between 0 and 1, got {decay}")
        self.decay = decay
        plain = head.to_linear() if isinstance(head, ClosedFormLinear) else copy.deepcopy(head)
        self.backbone, self.head = copy.deepcopy(backbone).requires_grad_(False), plain.requires_grad_(False)
        self.register_buffer("count", torch.zeros((), device=head.weight.device))

    @torch.no_grad()
    def update(self, backbone: nn.Module, head: nn.Linear) -> None:
        share = 1 - torch.clamp((1 + self.count) / (10 + self.count), max=self.decay)
        own = [*self.backbone.state_dict().values(), self.head.weight, self.head.bias]
        now = [*backbone.state_dict().values(), head.weight, head.bias]
        for average, value in zip(own, now):
            if average.is_floating_point():
                average.lerp_(value, share)
            else:
                average.copy_(value)
        self.count += 1
