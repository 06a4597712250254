"""The last layer of a network on fields: a 1x1 convolution whose weights are solved.

In a loop:

    head = ClosedFormConv1x1(32, 3, rule=Proximal(lam=10.0))    # was nn.Conv2d(32, 3, kernel_size=1)
    phi = unet(image)                                           # (B, 32, H, W)
    head.solve(phi, y)                                          # y (B, 3, H, W)
    loss = F.mse_loss(head(phi), y)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .head import ClosedFormLinear
from .state import watched


class ClosedFormConv1x1(ClosedFormLinear):
    """A `ClosedFormLinear` shared over space, for fields with channels first: `(B, C, H, W)`, or `(B, C, N)` with `dims=1`.

    A batch of B fields is `B H W` samples for the solve, and lambda and beta stand beside their sum. Its state_dict loads
    into `nn.Conv2d(C, o, kernel_size=1)` (`nn.Conv1d` with `dims=1`; `strict=False`: the rule's memory is extra), and such a
    layer's loads into this. Everything else is as in `ClosedFormLinear`; targets have the shape of the output, or without
    the channels where the loss takes labels; sample weights have a value a point, `(B, H, W)`, or a value a field, `(B,)`.
    A model may put the points of its fields in a row before this layer, as `neuraloperator`'s do: with `dims=1` targets and
    weights of more dimensions are put in a row too.

    >>> head = ClosedFormConv1x1(3, 1)
    >>> head.solve(torch.randn(2, 3, 8, 8), torch.randn(2, 1, 8, 8))
    >>> head(torch.zeros(5, 3, 4, 4)).shape
    torch.Size([5, 1, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True, *, dims: int = 2, **kwargs: Any):
        if type(dims) is not int or dims not in (1, 2):
            raise ValueError(f"dims must be 1 (fields of N points) or 2 (H x W), got {dims!r}")
        super().__init__(in_channels, out_channels, bias, **kwargs)
        self.dims = dims

    def _check_phi(self, phi: Tensor) -> None:
        if phi.ndim != 2 + self.dims:
            shape = ("(B, C, N)", "(B, C, H, W)")[self.dims - 1]
            single = "; a single field needs phi[None]" if phi.ndim == 1 + self.dims else ""
            raise ValueError(f"phi must be {shape} for dims={self.dims}, got shape {tuple(phi.shape)}{single}")
        if phi.shape[1] != self.in_features:
            last = "; are its channels last?" if phi.shape[-1] == self.in_features else ""
            raise ValueError(
                f"phi must have {self.in_features} channels in its second dimension, got {tuple(phi.shape)}{last}"
            )

    def _arranged(self, phi: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self._check_phi(phi)
        if self.dims == 1 and y.ndim > 3:
            y = y.flatten(2)
        labels = y.ndim == phi.ndim - 1 and not y.is_floating_point()
        expected = (phi.shape[0], self.out_features, *phi.shape[2:])
        if not labels and tuple(y.shape) != expected:
            raise ValueError(f"y must have shape {expected} to go with phi {tuple(phi.shape)}, got {tuple(y.shape)}")
        return phi.movedim(1, -1), y if labels else y.movedim(1, -1)

    def _check(self, phi: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        if isinstance(weight, Tensor) and isinstance(phi, Tensor) and phi.ndim == 2 + self.dims:
            if weight.shape == phi.shape[:1]:
                weight = weight.reshape(-1, *[1] * self.dims).expand(len(phi), *phi.shape[2:])
            elif self.dims == 1 and weight.ndim > 2:
                weight = weight.flatten(1)
        return super()._check(phi, y, weight)

    def forward(self, phi: Tensor) -> Tensor:
        self._check_phi(phi)
        self._solve_observed(phi)
        if phi.dtype == self.weight.dtype and not torch.is_autocast_enabled(phi.device.type):
            convolve = (F.conv1d, F.conv2d)[self.dims - 1]
            kernel = self.weight.view(*self.weight.shape, *[1] * self.dims)
            return watched(convolve(phi, kernel, self.bias), self.weight)
        out = super().forward(phi.movedim(1, -1)).movedim(-1, 1)
        return out.contiguous() if phi.is_contiguous() else out

    def variance(self, phi: Tensor) -> Tensor:
        self._check_phi(phi)
        return super().variance(phi.movedim(1, -1)).movedim(-1, 1)

    @torch.no_grad()
    def to_conv(self) -> nn.Conv1d | nn.Conv2d:
        """A plain convolution with a copy of the weights."""
        kind = {"device": self.weight.device, "dtype": self.weight.dtype}
        make = (nn.Conv1d, nn.Conv2d)[self.dims - 1]
        conv = make(self.in_features, self.out_features, 1, bias=self.bias is not None, **kind)
        conv.load_state_dict({key: self.state_dict()[key] for key in conv.state_dict()})
        return conv.train(self.training)

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        weight = destination[prefix + "weight"]
        destination[prefix + "weight"] = weight.reshape(*weight.shape, *[1] * self.dims)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.ndim == 2 + self.dims and weight.shape[2:].numel() == 1:
            state_dict[prefix + "weight"] = weight.flatten(1)  # a copy of the caller's dict, as PyTorch makes it
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dims={self.dims}"
