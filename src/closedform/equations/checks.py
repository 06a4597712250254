"""What is wrong with a backbone, found before any work, in a sentence each; and the names by which checkpoints are known."""

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

POINTS = 64  # of each condition that are looked at
_SLACK = 1e-6  # between derivatives by forward and by reverse mode, relative


def check_backbone(problem: Problem, backbone: nn.Module, trained: bool) -> int:
    """The number of the backbone's features, where it can serve the problem; a ValueError where it cannot."""
    if not isinstance(backbone, nn.Module):
        raise ValueError(f"the backbone must be an nn.Module, got {type(backbone).__name__}")
    for tensor in [*backbone.parameters(), *backbone.buffers()]:
        if tensor.is_floating_point() and tensor.dtype != torch.float64:
            raise ValueError(
                f"the backbone has {tensor.dtype} parameters or buffers, but equations need float64: call "
                f"backbone.double()"
            )
    if trained and not any(parameter.requires_grad for parameter in backbone.parameters()):
        raise ValueError("the backbone has no parameters to train; steps=0 solves on its features as they are")
    jets.check_statistics(backbone)
    batches = [batch.to(device_of(backbone)) for batch in problem.draw(POINTS, torch.Generator().manual_seed(0))]
    features = _check_features(problem, backbone, batches[0].x[:2])
    for at, (batch, (own, partner)) in enumerate(zip(batches, problem.derivatives)):
        check_derivatives(backbone, batch.x[:2], own)
        if batch.partner is not None:
            check_derivatives(backbone, batch.partner[:2], partner)
        if problem.conditions[at].linear:
            _check_rows(problem, backbone, at, batch)
    return features


@torch.no_grad()
def _check_features(problem: Problem, backbone: nn.Module, x: Tensor) -> int:
    try:
        phi, again = backbone(x), backbone(x)
    except Exception as wrong:
        raise ValueError(f"the backbone does not take points of dimension {problem.dimension}: {wrong}") from wrong
    if not isinstance(phi, Tensor) or phi.ndim != 2 or len(phi) != len(x) or phi.shape[1] == 0:
        got = tuple(phi.shape) if isinstance(phi, Tensor) else type(phi).__name__
        raise ValueError(f"the backbone must make ({len(x)}, features) of {len(x)} points, got {got}")
    if not bool(phi.isfinite().all()):
        raise ValueError("the backbone's features are not finite at points of the problem")
    if not torch.allclose(phi, again, rtol=1e-6, atol=1e-9):
        raise ValueError(
            "the backbone gives other features the second time; where it has dropout, call backbone.eval()"
        )
    return phi.shape[1]


@torch.no_grad()
def _check_rows(problem: Problem, backbone: nn.Module, at: int, batch: PointBatch) -> None:
    if not bool(problem.rows(at, problem.features(backbone, at, batch), batch).any()):
        raise ValueError(
            f"the operator of {problem.conditions[at].name!r} is zero for all features at {len(batch.x)} points; they need "
            f"derivatives of its order (those of nn.ReLU end at the first)"
        )


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
        fast = entry.detach()
        if not bool(fast.isfinite().all()):
            raise ValueError(f"the backbone's derivatives along {axes} are not finite at points of the problem")
        try:
            slow = _by_reverse_mode(backbone, x, axes)
        except RuntimeError:  # reverse mode does not go as far, which says nothing against forward mode
            continue
        gap = float((fast.sum(1) - slow).abs().max())
        if not gap <= _SLACK * float(1 + slow.abs().max() + fast.abs().sum(1).max()):
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


def device_of(backbone: nn.Module) -> torch.device:
    """Where the backbone is."""
    tensors = [*backbone.parameters(), *backbone.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")


def fingerprint(problem: Problem, backbone: nn.Module) -> str:
    """Names a problem and the make of a backbone, so that a checkpoint of another pair is not taken for theirs."""
    digest = hashlib.sha256(str(backbone).encode())
    for name, tensor in [*backbone.named_parameters(), *backbone.named_buffers()]:
        digest.update(repr((name, tensor.shape)).encode())
    batches = problem.draw(8, torch.Generator().manual_seed(0))
    for condition, batch, derivatives in zip(problem.conditions, batches, problem.derivatives):
        value = problem.apply(condition, trial(problem, batch, 0, (set(), set())))
        target = batch.target if isinstance(batch.target, Tensor) else torch.tensor(batch.target)
        parts = (part.flatten()[:64].tolist() for part in (batch.x, value, target))
        numbers = [f"{number:.6g}" for part in parts for number in part]
        digest.update(repr((condition.name, condition.linear, condition.weight, derivatives, numbers)).encode())
    return digest.hexdigest()[:12]


def weights_digest(tensors: Iterable[Tensor]) -> str:
    """Names weights, bit for bit."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]
