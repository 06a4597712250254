"""What is wrong with a backbone or a problem, found before any work, in a sentence each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from . import jets
from .jets import Axes
from .probing import trial

if TYPE_CHECKING:
    from .problem import PointBatch, Problem

_SLACK = 1e-6  # between derivatives by forward and by reverse mode, relative


def check_backbone(problem: Problem, backbone: nn.Module, trained: bool) -> int:
    """The number of the backbone's features, where it can serve the problem; a ValueError where it cannot."""
    if not isinstance(backbone, nn.Module):
        raise ValueError(f"the backbone must be an nn.Module, got {type(backbone).__name__}")
    tensors = [*backbone.parameters(), *backbone.buffers()]
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.dtype != torch.float64:
            raise ValueError(
                f"the backbone has {tensor.dtype} parameters or buffers, but equations need float64: call backbone.double()"
            )
    if trained and not any(parameter.requires_grad for parameter in backbone.parameters()):
        raise ValueError("the backbone has no parameters to train; steps=0 solves on its features as they are")
    batches = [
        batch.to(tensors[0].device if tensors else torch.device("cpu")).first(2)
        for batch in problem.draw(8, torch.Generator().manual_seed(0))
    ]
    x = batches[0].x
    try:
        with torch.no_grad():
            phi, again = backbone(x), backbone(x)
    except Exception as wrong:
        raise ValueError(f"the backbone does not take points of dimension {problem.dimension}: {wrong}") from wrong
    if phi.ndim != 2 or len(phi) != len(x) or phi.shape[1] == 0:
        raise ValueError(f"the backbone must make ({len(x)}, features) of {len(x)} points, got {tuple(phi.shape)}")
    if not torch.equal(phi, again):
        raise ValueError(
            "the backbone gives other features the second time; where it has dropout, call backbone.eval()"
        )
    for (own, partner), batch in zip(problem.derivatives, batches):
        check_derivatives(backbone, batch.x, own)
        if batch.partner is not None:
            check_derivatives(backbone, batch.partner, partner)
    return phi.shape[1]


def check_derivatives(backbone: nn.Module, x: Tensor, derivatives: Iterable[Axes]) -> None:
    """A ValueError where forward mode, by which features are differentiated, and reverse mode do not agree. torch's layer
    norm is one that has wrong second derivatives by the former. Linear layers and activations need no such look."""
    front, _ = jets.split(backbone)
    if front is None:
        return
    try:
        table = jets.features(backbone, x, derivatives=derivatives).table()
    except NotImplementedError as missing:
        raise ValueError(f"a layer of the backbone has no derivatives by forward mode: {missing}") from missing
    for axes, entry in table.items():
        entry = entry.detach()
        slow = _by_reverse_mode(backbone, x, axes)
        gap = float((entry.sum(1) - slow).abs().max())
        if not gap <= _SLACK * float(1 + slow.abs().max() + entry.abs().sum(1).max()):
            raise ValueError(
                f"the backbone's derivatives along {axes} differ by {gap:.1e} between forward and reverse mode, so torch "
                "has a wrong one for a layer of it (nn.LayerNorm has); write that layer with elementary operations"
            )


def _by_reverse_mode(backbone: Callable[[Tensor], Tensor], x: Tensor, axes: Axes) -> Tensor:
    """The derivative of the sum of all features, `(n,)`."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        value = backbone(x).sum(1)
        for axis in axes:
            if not value.requires_grad:
                return torch.zeros_like(value)
            (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True, allow_unused=True)
            value = torch.zeros_like(value) if slope is None else slope[:, axis]
    return value.detach()


def fingerprint(problem: Problem, backbone: nn.Module) -> str:
    """Names a problem and a backbone with its weights, so that a checkpoint of another pair is not taken for theirs."""
    digest = hashlib.sha256(str(backbone).encode())
    for tensor in backbone.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for condition, batch, derivatives in zip(
        problem.conditions, problem.draw(8, torch.Generator().manual_seed(0)), problem.derivatives
    ):
        value = problem.apply(condition, trial(problem, batch, 0, (set(), set())))
        numbers = [*batch.x.flatten().tolist(), *value.flatten().tolist(), condition.weight, *_target(batch)]
        text = (condition.name, condition.linear, derivatives, [f"{number:.6g}" for number in numbers])
        digest.update(repr(text).encode())
    return digest.hexdigest()[:12]


def _target(batch: PointBatch) -> list[float]:
    return batch.target.flatten().tolist() if isinstance(batch.target, Tensor) else [batch.target]
