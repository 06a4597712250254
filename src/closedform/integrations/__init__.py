"""A solved last layer inside other people's training loops: `lightning`, `transformers` and `skorch`.

Each of them is `head.observe(y)` at the right moment and holds nothing: the layer and its memory live in the model, and are
saved, loaded and resumed with it. With the same seed and data each gives the weights of the plain loop

    for x, y in loader:
        head.observe(y)
        loss = criterion(model(x), y)
        opt.zero_grad(); loss.backward(); opt.step()

Where gradients are accumulated over micro-batches, each micro-batch is solved as it comes, since none of these loops shows
the coming ones: lambda then stands beside a micro-batch's sum. For a solve on all of them at once see `head.accumulate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union

from torch import Tensor, nn

from ..head import ClosedFormLinear

Targets = Union[str, Callable[[Any], Any], None]


def head_of(model: nn.Module, name: str | None = None) -> ClosedFormLinear:
    """The solved layer in `model`: the only one, or the one called `name`, with or without what torch.compile adds to it."""
    if isinstance(model, ClosedFormLinear) and name is None:
        return model
    heads = {_uncompiled(path): part for path, part in model.named_modules() if isinstance(part, ClosedFormLinear)}
    kind = type(getattr(model, "_orig_mod", model)).__name__
    if name is not None:
        if _uncompiled(name) not in heads:
            raise ValueError(f"{kind} has no ClosedFormLinear called {name!r}; it has {', '.join(heads) or 'none'}")
        return heads[_uncompiled(name)]
    if not heads:
        raise ValueError(
            f"{kind} has no ClosedFormLinear, so there is nothing to solve: put one in place of its last layer, "
            "for example with closedform.replace_last_linear(model)"
        )
    if len(heads) > 1:
        raise ValueError(f"{kind} has several ClosedFormLinear layers ({', '.join(heads)}): name= chooses one")
    return next(iter(heads.values()))


def check_solved(head: ClosedFormLinear, step: str) -> None:
    """Raise where the targets shown to the head still wait after `step`."""
    if head._observed is not None:
        head.observe(None)
        raise ValueError(
            f"{step} ended without a forward of the ClosedFormLinear in training mode, so it was not solved: call it there"
        )


def targets_of(batch: Any, targets: Targets = None) -> tuple[Tensor, Tensor | None]:
    """The targets in a batch, and the sample weights or None.

    `targets` is a function of the batch that returns `y` or `(y, sample_weight)`, or a key of the batch; without it the
    batch must be `(x, y)` or `(x, y, sample_weight)`."""
    parts: Any = None
    if callable(targets):
        parts = targets(batch)
    elif targets is not None:
        parts = batch.get(targets) if isinstance(batch, Mapping) else None
    elif isinstance(batch, (tuple, list)) and len(batch) in (2, 3):
        parts = tuple(batch[1:])
    y, weight = (*parts, None)[:2] if isinstance(parts, (tuple, list)) and parts else (parts, None)
    if not isinstance(y, Tensor) or not (weight is None or isinstance(weight, Tensor)):
        wanted = "(x, y) or (x, y, sample_weight)" if targets is None else f"targets={targets!r} to find a tensor in it"
        raise ValueError(
            f"no targets found in a batch that is {_outline(batch)}: expected {wanted}; "
            "targets= takes a key, or a function of the batch that returns y or (y, sample_weight)"
        )
    return y, weight


def input_of(batch: Any, inputs: Callable[[Any], Tensor] | None = None) -> Tensor:
    """The tensor in a batch that the model takes: what the function `inputs` finds there, or without it the first part."""
    if inputs is None and not isinstance(batch, (tuple, list)):
        raise ValueError(f"RefitHead cannot tell what of a {type(batch).__name__} is the input: give it inputs=")
    x = batch[0] if inputs is None else inputs(batch)
    if not isinstance(x, Tensor):
        raise ValueError(
            f"RefitHead calls forward with one tensor, but the inputs found in a batch are a {type(x).__name__}: give it "
            "inputs=, or leave RefitHead out, and refit after training with closedform.Statistics"
        )
    return x


def check_starts_anew(loader: Any, iterator: Iterator) -> None:
    """Raise where `loader`, which is being read through `iterator`, cannot be read again."""
    # Python's own iterators do not start again, as those of others may when asked for anew
    if type(iterator).__module__ in ("builtins", "itertools") and iter(loader) is iterator:
        raise ValueError(
            f"RefitHead reads the training data again at the end, but the loader, a {type(loader).__name__}, can be read "
            "only once: give a DataLoader, or something else whose __iter__ starts anew"
        )


def _uncompiled(path: str) -> str:
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _outline(batch: Any) -> str:
    kind = type(batch).__name__
    if isinstance(batch, Mapping):
        return f"a {kind} with the keys {', '.join(map(str, batch)) or 'none'}"
    if isinstance(batch, (tuple, list)):
        return f"a {kind} of {', '.join(type(part).__name__ for part in batch) or 'nothing'}"
    return f"a {kind}"
