"""Derivatives of all features of a backbone, by forward mode.

A derivative is named by its axes: `()` is the value, `(0,)` the first coordinate's derivative, `(0, 1)` a mixed second one.
The ones that are asked for come with all that they are made of: whoever wants `(0, 0)` has `(0,)` and `()` as well. One pass
carries them all through the network, a linear layer takes each as it takes the value, and a function applied to each entry
takes them by the formula of Faa di Bruno::

    d_alpha s(z) = sum over the partitions of alpha into blocks of  s^(number of blocks)(z) prod_block d_block z

This is done for `nn.Sequential` of linear layers and activations. Any other backbone, or the front of one up to the last
layer that is neither, goes through nested `torch.func.jvp`, which gives the same numbers with more work.

>>> backbone = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh()).double()
>>> backbone[0].weight.data.fill_(1.0)
tensor([[1.]], dtype=torch.float64)
>>> u = features(backbone, torch.zeros(1, 1, dtype=torch.float64), order=3)       # tanh x = x - x^3 / 3 + ...
>>> u.value.item(), u.dx(0).item(), u.d(0, 0, 0).item()
(0.0, 1.0, -2.0)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from .fields import Field

Axes = tuple[int, ...]
MAX_ORDER = 4
_ENTRYWISE = (nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus, nn.Mish, nn.LogSigmoid, nn.Softsign, nn.Identity)


class Sine(nn.Module):
    """`sin(x)` entry by entry: an activation for solutions that oscillate."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


def features(
    backbone: Callable[[Tensor], Tensor], x: Tensor, order: int = 2, derivatives: Iterable[Axes] | None = None
) -> Field:
    """The features `(n, d)` of the points `x (n, D)` and their derivatives, differentiable in the backbone's parameters.

    order: all derivatives up to this one, at most 4, where `derivatives` does not say which.
    derivatives: the ones to compute, each by its axes, as in `[(0, 0), (1, 1)]` for a Laplacian.

    The backbone maps each point by itself: one with batch statistics has no derivatives at a point.
    """
    if x.ndim != 2:
        raise ValueError(f"points must be a tensor (n, D), got shape {tuple(x.shape)}")
    if not 0 <= order <= MAX_ORDER:
        raise ValueError(f"the order of a derivative must be at most {MAX_ORDER}, got {order}")
    check_statistics(backbone)
    if derivatives is None:
        derivatives = itertools.combinations_with_replacement(range(x.shape[1]), order)
    wanted = closure(derivatives)
    front, layers = split(backbone)
    start = _coordinates(x, wanted) if front is None else _nested(front, x, wanted)
    return Field(x, _jet(layers, start, wanted))


def closure(derivatives: Iterable[Axes]) -> list[Axes]:
    """These derivatives and all that they are made of, from the value upwards.

    >>> closure([(1, 0)])
    [(), (0,), (1,), (0, 1)]
    """
    parts: set[Axes] = {()}
    for axes in derivatives:
        if len(axes) > MAX_ORDER:
            raise ValueError(f"the order of a derivative must be at most {MAX_ORDER}, got one along the axes {axes}")
        for size in range(1, len(axes) + 1):
            parts.update(itertools.combinations(sorted(axes), size))
    return sorted(parts, key=lambda axes: (len(axes), axes))


def check_statistics(backbone: Callable[[Tensor], Tensor]) -> None:
    """A ValueError where a backbone looks at several points at once."""
    parts = backbone.modules() if isinstance(backbone, nn.Module) else ()
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in parts):
        raise ValueError("the backbone has batch statistics in training mode; call backbone.eval() or leave them out")


# ---- Sequences of linear layers and activations ------------------------------------------------------


def split(backbone: Callable[[Tensor], Tensor]) -> tuple[Callable[[Tensor], Tensor] | None, list[nn.Module]]:
    """The front of a backbone, None where there is none, and the layers behind it, which the formulas below know."""
    parts = _in_sequence(backbone)
    end = max((k + 1 for k, part in enumerate(parts) if not _known(part)), default=0)
    if end == len(parts):
        return backbone, []
    return (nn.Sequential(*parts[:end]) if end else None), parts[end:]


def _in_sequence(backbone: Callable) -> list:
    if not isinstance(backbone, nn.Sequential):
        return [backbone]
    if type(backbone).forward is not nn.Sequential.forward or _hooked(backbone):
        return [backbone]  # it does more than its layers
    return [layer for part in backbone for layer in _in_sequence(part)]


def _known(layer: Callable) -> bool:
    return isinstance(layer, nn.Module) and type(layer) in (nn.Linear, Sine, *_ENTRYWISE) and not _hooked(layer)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _coordinates(x: Tensor, wanted: list[Axes]) -> dict[Axes, Tensor]:
    """The points themselves, whose first derivatives are the same at all of them."""
    z: dict[Axes, Tensor] = {(): x}
    for (axis,) in [axes for axes in wanted if len(axes) == 1]:
        unit = torch.zeros(1, x.shape[1], dtype=x.dtype, device=x.device)
        unit[0, axis] = 1
        z[(axis,)] = unit
    return z


def _jet(layers: list[nn.Module], z: dict[Axes, Tensor], wanted: list[Axes]) -> dict[Axes, Tensor]:
    """Every derivative through every layer. One that is zero everywhere, as second ones are before the first activation,
    is left out."""
    for layer in layers:
        z = _linear(layer, z) if isinstance(layer, nn.Linear) else _entrywise(layer, z, wanted)
    n, d = z[()].shape
    return {axes: z[axes].expand(n, d) if axes in z else z[()].new_zeros(n, d) for axes in wanted}


def _linear(layer: nn.Linear, z: dict[Axes, Tensor]) -> dict[Axes, Tensor]:
    lengths = [part.shape[0] for part in z.values()]
    products = (torch.cat(list(z.values())) @ layer.weight.T).split(lengths)
    out = dict(zip(z, products))
    if layer.bias is not None:
        out[()] = out[()] + layer.bias
    return out


def _entrywise(layer: nn.Module, z: dict[Axes, Tensor], wanted: list[Axes]) -> dict[Axes, Tensor]:
    s = _scalar_derivatives(layer, z[()], order=len(wanted[-1]))
    out: dict[Axes, Tensor] = {(): s[0]}
    for axes in wanted[1:]:
        terms = []
        for blocks, count in partitions(axes).items():
            if all(block in z for block in blocks):
                product = functools.reduce(torch.mul, (z[block] for block in blocks))
                terms.append(s[len(blocks)] * (product if count == 1 else count * product))
        if terms:
            out[axes] = functools.reduce(torch.add, terms)
    return out


@functools.cache
def partitions(axes: Axes) -> Mapping[tuple[Axes, ...], int]:
    """The ways to cut the axes into blocks, each with how often it occurs.

    >>> partitions((0, 0, 1)) == {((0, 0, 1),): 1, ((0, 0), (1,)): 1, ((0,), (0, 1)): 2, ((0,), (0,), (1,)): 1}
    True
    """

    def cut(items: Axes) -> Iterable[list[Axes]]:
        if not items:
            yield []
            return
        first, rest = items[0], items[1:]
        for blocks in cut(rest):
            yield [(first,), *blocks]
            for at in range(len(blocks)):
                yield [*blocks[:at], (first, *blocks[at]), *blocks[at + 1 :]]

    counts: dict[tuple[Axes, ...], int] = {}
    for blocks in cut(axes):
        key = tuple(sorted(tuple(sorted(block)) for block in blocks))
        counts[key] = counts.get(key, 0) + 1
    return counts


def _scalar_derivatives(layer: nn.Module, z: Tensor, order: int) -> list[Tensor]:
    """`s(z), s'(z), ...` of a function applied to each entry."""
    if isinstance(layer, nn.Tanh):
        t = torch.tanh(z)
        first = 1 - t * t
        second = -2 * t * first
        known = [t, first, second]
        if order > 2:
            known.append(-2 * (first * first + t * second))
            known.append(-2 * (3 * first * second + t * known[3]))
        return known[: order + 1]
    if isinstance(layer, Sine):
        sin, cos = torch.sin(z), torch.cos(z)
        return [sin, cos, -sin, -cos, sin][: order + 1]
    ones = torch.ones_like(z)
    table = _chain(layer, z, (0,) * order, lambda axis: ones)
    return [table[(0,) * k] for k in range(order + 1)]


# ---- Any backbone ------------------------------------------------------------------------------------


def _nested(backbone: Callable[[Tensor], Tensor], x: Tensor, wanted: list[Axes]) -> dict[Axes, Tensor]:
    """By `torch.func.jvp` inside `torch.func.jvp`: each chain of axes that is not part of a longer one is one pass."""

    def unit(axis: int) -> Tensor:
        direction = torch.zeros_like(x)
        direction[:, axis] = 1
        return direction

    table: dict[Axes, Tensor] = {}
    for axes in wanted:
        if not any(axes != longer and _part_of(axes, longer) for longer in wanted):
            table = _chain(backbone, x, axes, unit) | table
    return table


def _chain(
    function: Callable[[Tensor], Tensor], x: Tensor, chain: Axes, direction: Callable[[int], Tensor]
) -> dict[Axes, Tensor]:
    """All derivatives along parts of a chain of axes."""

    def level(depth: int) -> Callable[[Tensor], dict[Axes, Tensor]]:
        if depth == 0:
            return lambda points: {(): function(points)}
        axis, inner = chain[depth - 1], level(depth - 1)

        def pushed(points: Tensor) -> dict[Axes, Tensor]:
            values, slopes = torch.func.jvp(inner, (points,), (direction(axis),))[:2]
            return values | {tuple(sorted((*axes, axis))): slope for axes, slope in slopes.items()}

        return pushed

    return level(len(chain))(x)


def _part_of(axes: Axes, longer: Axes) -> bool:
    return all(axes.count(axis) <= longer.count(axis) for axis in axes)
