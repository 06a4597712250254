"""All or nothing: a solve is taken whole, or the layer and the rule's memory stay as they were.

A solve counts as accepted where its factor exists and every number of the new layer, *as it will be stored*, and of the new
memory is finite. Nothing here looks at values from the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from . import route
from .batch import Batch
from .losses import CrossEntropy, Squared

if TYPE_CHECKING:
    from .rules import Rule, Source, Step


_PART = 1 << 22  # numbers that are added up at a time
_SMALL = 1 << 15  # numbers of a tensor whose sum takes no longer than its launch


class Layer(NamedTuple):
    """What a solve changes: weight `(o, d)`, bias `(o,)` or None, and the counters of accepted and of all solves."""

    weight: Tensor
    bias: Tensor | None
    step: Tensor
    attempts: Tensor


def solve_(
    layer: Layer,
    rule: Rule,
    source: Source,
    memory: Mapping[str, Tensor],
    stored: Callable[[], Tensor],
    write: Callable[[Tensor], None],
) -> None:
    """Solve a layer on a batch and take the result, all or nothing: by fused kernels where the route allows them, else by
    the rule.

    stored: gives the layer as one matrix `(o, D)` in the dtype that it is kept in; write takes such a matrix."""
    kernels = _kernels(layer)
    if kernels is not None and _fused_(kernels, layer, rule, source, memory):
        return
    kept, dtype = _upcast(stored())
    new = rule.update(kept, source, dict(memory), layer.step)
    del kept  # of many outputs every copy counts
    if kernels is not None and not new.memory and dtype == layer.weight.dtype:
        kernels.accept_(layer, new.W, new.ok)
        return
    accept_(layer, new, memory, dtype, stored, write)


def _upcast(W: Tensor) -> tuple[Tensor, torch.dtype]:
    """The layer in the solver's precision, and the dtype that it is kept in."""
    return W.to(route.precision(W.device)), W.dtype


def accept_(
    layer: Layer,
    new: Step,
    memory: Mapping[str, Tensor],
    dtype: torch.dtype,
    stored: Callable[[], Tensor],
    write: Callable[[Tensor], None],
) -> None:
    """Take the layer and the memory that a rule has made, or leave both; count the solve."""
    W = new.W.to(dtype)
    take = accepted(new.ok, W, new.memory, layer.weight.dtype)
    if not _seen(take):
        write(chosen(take, W, stored()))
    elif bool(take):
        write(W)
    for name, tensor in new.memory.items():
        otherwise = memory[name] if new.reset is None or name not in new.reset else new.reset[name]
        _write(memory[name], take, tensor, otherwise)
    layer.step.add_(take)
    layer.attempts.add_(1)


def _kernels(layer: Layer) -> ModuleType | None:
    """The kernels for CUDA, where they can write this layer. Imported late, since Triton takes its time."""
    if layer.weight.device.type != "cuda" or torch.compiler.is_compiling():
        return None
    from . import cuda

    return cuda if cuda.usable(layer.weight, layer.bias) else None


def _fused_(kernels: ModuleType, layer: Layer, rule: Rule, source: Source, memory: Mapping[str, Tensor]) -> bool:
    """The whole solve by the kernels for one lambda and few rows or few features, or by those for filters, where they
    apply."""
    if not isinstance(source, Batch) or source.weight is not None or source.sizes is not None:
        return False
    squared = isinstance(source.loss, Squared)
    if squared and route.fused(*source.phi.shape):
        small = rule.small(source.phi.shape[0], dict(memory), layer.step)
        if small is not None:
            kernels.solve_(layer, source.phi, source.y, small.lam, small.ratio, small.from_zero)
            return True
    plain = isinstance(source.loss, CrossEntropy) and source.loss.weight is None and source.loss.inner_steps == 1
    side = rule.filters(source.features, layer.step) if squared or plain else None
    if side is None or not route.fused_filters(side.form, len(source.phi), source.features, source.y.shape[1]):
        return False
    from . import cuda_filters

    cuda_filters.solve_(layer, source.phi, source.y, source.loss, memory, side)
    return True


def accepted(ok: Tensor, W: Tensor, memory: Mapping[str, Tensor], stored: torch.dtype) -> Tensor:
    """Whether a solve counts, for every model: a truth value of the shape of `ok`, `()` or `(M,)`.

    W: the new layers `(..., o, D)`; `stored` is the dtype in which they are kept, where a number may overflow.
    """
    total = _sum(W.to(stored), ok.ndim)
    for tensor in _joined(list(memory.values()), ok.ndim):
        total = total + _sum(tensor, ok.ndim)
    if _seen(ok):  # fewer calls
        return ok if math.isfinite(total) else torch.zeros_like(ok)
    return ok & (total - total == 0)  # what is not finite, minus itself, is NaN


def _joined(tensors: list[Tensor], models: int) -> list[Tensor]:
    """The small tensors as one: on a device every sum is a launch or two."""
    small = [tensor for tensor in tensors if tensor.numel() <= _SMALL]
    if len(small) < 2 or len({tensor.dtype for tensor in small}) > 1:
        return tensors
    large = [tensor for tensor in tensors if tensor.numel() > _SMALL]
    return [torch.cat([tensor.flatten(models) for tensor in small], -1), *large]


def _sum(tensor: Tensor, models: int) -> Tensor:
    """The sum of all numbers of a model, in float64, where finite float32 numbers cannot overflow."""
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    dims = tuple(range(models, tensor.ndim))
    if not dims:
        return tensor.to(wide)
    if tensor.dtype != wide and not models and tensor.numel() > _PART and route.may_branch(tensor):
        # on the CPU a sum in another dtype makes a copy in that dtype first
        return torch.stack([part.sum(dtype=wide) for part in tensor.split(max(1, _PART // tensor[0].numel()))]).sum()
    return tensor.sum(dims, dtype=wide)


def chosen(take: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The new tensor of the models whose solve counts, the old one of the others."""
    if _seen(take):
        return new if bool(take) else old  # no copy
    if route.may_branch(take) and bool(take.all()):
        return new
    return torch.where(_beside(take, new), new, old)


def _seen(take: Tensor) -> bool:
    """Whether this is one model's answer, and the host may look at it."""
    return not take.ndim and route.may_branch(take)


def _write(to: Tensor, take: Tensor, new: Tensor, old: Tensor) -> None:
    """Write what is chosen; on a device in one launch."""
    if route.may_branch(take) or torch.compiler.is_compiling() or not to.dtype == new.dtype == old.dtype:
        to.copy_(chosen(take, new, old))
    else:
        torch.where(_beside(take, new), new, old, out=to)


def _beside(take: Tensor, tensor: Tensor) -> Tensor:
    """The truth values of all models, to go with a tensor of theirs."""
    return take.reshape(take.shape + (1,) * (tensor.ndim - take.ndim))
