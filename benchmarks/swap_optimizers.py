"""The optimizers of the swap test: those of the experiments, and SOAP."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from closedform.paper.experiments import optimizers

NAMES = (*optimizers.NAMES, "soap")


def missing(name: str) -> str | None:
    """Why the optimizer cannot be had here, or None."""
    if name == "soap":
        try:
            import pytorch_optimizer  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError:
            return "SOAP needs pytorch_optimizer: pip install 'closedform[benchmarks]'"
    return optimizers.missing(name)


def capturable(name: str) -> bool:
    """Whether a step can be a CUDA graph: SOAP's eigenvectors are computed on the host's word."""
    return name != "soap"


def make(
    name: str, backbone: nn.Module, head: Iterable[nn.Parameter], rate: Tensor, decay: float, decoupled: float
) -> list[torch.optim.Optimizer]:
    """The optimizers that together train the backbone and the parameters of a learned `head` (none of a solved one)."""
    if name != "soap":
        return optimizers.make(name, backbone, head, rate, decay, decoupled)
    from pytorch_optimizer import SOAP  # pyright: ignore[reportMissingImports]

    every = [*backbone.parameters(), *head]
    return [_Soap(SOAP(every, lr=1.0, weight_decay=decoupled), rate)]  # pyright: ignore[reportReturnType]


class _Soap:
    """SOAP with the rate of a tensor; it is not captured, so the host may look at it."""

    def __init__(self, soap: torch.optim.Optimizer, rate: Tensor):
        self.soap, self.rate = soap, rate
        self.state = soap.state

    def step(self) -> None:
        for group in self.soap.param_groups:
            group["lr"] = float(self.rate)
        self.soap.step()
