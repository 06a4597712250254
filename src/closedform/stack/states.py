"""What training changes as one flat dict of tensors, which an archive holds: parts under prefixes, torch's optimizers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def prefixed(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A part of a larger state.

    >>> prefixed("head", {"weight": torch.zeros(1)}).keys()
    dict_keys(['head.weight'])
    """
    return {f"{name}.{key}": tensor for key, tensor in state.items()}


def under(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The inverse of `prefixed`."""
    return {key[len(name) + 1 :]: tensor for key, tensor in state.items() if key.startswith(f"{name}.")}


@torch.no_grad()
def take_back(own: dict[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy a state into the tensors that `own` names; a state of other models changes nothing."""
    wrong = set(own) ^ set(state) or {name for name in own if own[name].shape != state[name].shape}
    if wrong:
        raise ValueError(f"this state is of other models: {', '.join(sorted(wrong)[:3])} do not agree")
    for name, tensor in own.items():
        tensor.copy_(state[name])


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The memory of one of torch's optimizers; not its settings."""
    memory = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, values in memory.items() for name, tensor in values.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """The inverse of `optimizer_state`. The rates stay as they are: captured steps and schedules read those tensors.

    An archive keeps no order of the numbers in memory, and torch's fused steps want that of the parameter (`channels_last`).
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    memory: dict[int, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        index, _, name = key.partition(".")
        like = parameters[int(index)]
        memory.setdefault(int(index), {})[name] = (
            torch.empty_like(like, dtype=tensor.dtype).copy_(tensor) if tensor.shape == like.shape else tensor
        )
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(optimizer.state_dict() | {"state": memory})
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate
