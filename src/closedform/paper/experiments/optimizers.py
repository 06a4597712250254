"""SGD, AdamW and Muon that read their rate from one tensor, so that a captured step follows the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

NAMES = ("sgd", "adamw", "muon")
_TorchMuon: Any = getattr(torch.optim, "Muon", torch.optim.Optimizer)  # an older torch has none, see `missing`


def missing(name: str) -> str | None:
    """Why the optimizer cannot be had here, or None."""
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        return f"Muon came with torch 2.9; this is {torch.__version__}"
    return None


def make(
    name: str, backbone: nn.Module, head: Iterable[nn.Parameter], rate: Tensor, decay: float, decoupled: float
) -> list[torch.optim.Optimizer]:
    """The optimizers that together train the backbone and the parameters of a learned `head` (none of a solved one).

    decay: the weight decay of SGD, which is part of the gradient. decoupled: that of the others, which is not."""
    gpu = rate.device.type == "cuda"
    every = [*backbone.parameters(), *head]
    if name == "sgd":
        return [torch.optim.SGD(every, lr=rate, momentum=0.9, nesterov=True, weight_decay=decay, fused=gpu)]
    if name == "adamw":
        return [torch.optim.AdamW(every, lr=rate, weight_decay=decoupled, capturable=gpu)]
    if name != "muon":
        raise ValueError(f"the optimizer is {name!r}; expected {', '.join(NAMES)}")
    if (why := missing(name)) is not None:
        raise ValueError(why)
    matrices = [module.weight for module in backbone.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    known = {id(weight) for weight in matrices}
    others = [parameter for parameter in every if id(parameter) not in known]
    muon = Muon(matrices, rate, decoupled)
    return [muon, torch.optim.AdamW(others, lr=rate, weight_decay=decoupled, capturable=gpu)] if others else [muon]


class Muon(_TorchMuon):
    """torch's Muon for matrices and for the kernels of convolutions, as matrices of one row an output.

    torch's reads its rate on the host, which a captured step may not. Its step is proportional to the rate, so a step of
    rate one is taken, and then `rate` of it. Steps have the size of AdamW's (`match_rms_adamw`), so one rate serves both.
    """

    def __init__(self, weights: Sequence[Tensor], rate: Tensor, weight_decay: float):
        self.weights, self.rate = weights, rate
        self.matrices = [_matrix(weight.detach()) for weight in weights]
        for weight, matrix in zip(weights, self.matrices):
            assert weight.data_ptr() == matrix.data_ptr(), "a copy of the weights would be trained"
        super().__init__(self.matrices, lr=1.0, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")

    @torch.no_grad()
    def step(self, closure=None):
        for weight, matrix in zip(self.weights, self.matrices):
            assert weight.grad is not None
            matrix.grad = _matrix(weight.grad)
        before = [matrix.clone() for matrix in self.matrices]
        super().step(closure)
        for matrix, old in zip(self.matrices, before):
            matrix.copy_(torch.lerp(old, matrix, self.rate))


def _matrix(weight: Tensor) -> Tensor:
    """A view with one row an output. Its columns are in the order of the memory, on which Muon's step does not depend."""
    if weight.ndim == 4 and not weight.is_contiguous():
        weight = weight.permute(0, 2, 3, 1)
    return weight.flatten(1)
