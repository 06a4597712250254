"""Heads in models of Hugging Face transformers, whose `from_pretrained` writes tensors past `load_state_dict`.

It makes a model without memory, takes from the checkpoint what is there, and leaves in the other tensors what happened to
be in the computer's; then it lists those. A head's memory must start fresh instead, and is none of the user's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn

from .head import ClosedFormLinear

_HOOK = "_adjust_missing_and_unexpected_keys"  # called by transformers at the end of loading, before its report


def heads(model: nn.Module) -> list[tuple[str, ClosedFormLinear]]:
    """The heads of a model, with their paths."""
    return [(path, part) for path, part in model.named_modules() if isinstance(part, ClosedFormLinear)]


def follow_loading(model: nn.Module) -> None:
    """Put heads in order when transformers has loaded this very model; any other model is left alone."""
    if hasattr(model, _HOOK) and _HOOK not in vars(model):
        setattr(model, _HOOK, partial(_loaded, model))


def _loaded(model: Any, *args: Any, **kwargs: Any) -> Any:
    settle(model, args[0] if args else None)
    return getattr(type(model), _HOOK)(model, *args, **kwargs)


def settle(model: nn.Module, info: Any) -> None:
    """Heads without what the checkpoint does not have, and a report that does not name their memory.

    info: transformers' lists of missing, unexpected and mismatched keys."""
    if not hasattr(info, "missing_keys") or not hasattr(info, "mismatched_keys"):
        return
    take_over(model, {*info.missing_keys, *(key for key, *_ in info.mismatched_keys)})
    unexpected, mismatched = info.unexpected_keys, info.mismatched_keys
    ours = memory_keys(model, {*info.missing_keys, *unexpected, *(key for key, *_ in mismatched)})
    info.missing_keys = {key for key in info.missing_keys if key not in ours}
    info.unexpected_keys = {key for key in unexpected if key not in ours}
    info.mismatched_keys = {entry for entry in mismatched if entry[0] not in ours}


def take_over(model: nn.Module, absent: set[str]) -> None:
    """Every head without those of its tensors that are absent from a checkpoint."""
    for path, head in heads(model):
        head.take_over({name for name in head.state_dict() if f"{path}.{name}" in absent})


def memory_keys(model: nn.Module, keys: Iterable[str]) -> set[str]:
    """Those of the keys that hold what a head remembers, and not its weights."""
    return {key for path, head in heads(model) for key in keys if head.is_memory(key.removeprefix(f"{path}."))}
