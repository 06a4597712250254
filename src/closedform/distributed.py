"""Several processes, one last layer: what is exchanged so that every rank solves the same system.

With the joined batch of N rows and D extended features, ranks either gather the rows (N <= D: N (D + o) numbers) or add up
the moments (N > D: D (D + o) numbers), whichever are fewer, and then compute the same thing from the same bits. On the wire
an all-reduce sends a number twice and a gather once, so between N = D and 2 D rows would still be the fewer bytes; the
moments are taken there because they make the smaller system. benchmarks/communication.py measures both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    ProcessGroup = Union[dist.ProcessGroup, Literal[False], None]
else:
    ProcessGroup = Any  # a torch built without torch.distributed has no such class


def active(group: ProcessGroup) -> bool:
    """Whether there is anybody to exchange with: `None` means the default group where one is initialised."""
    if group is False or not (dist.is_available() and dist.is_initialized()):
        return False
    return dist.get_world_size(group) > 1


def place() -> tuple[int, int]:
    """The rank of this process, and how many there are: `(0, 1)` where it is alone."""
    return (dist.get_rank(), dist.get_world_size()) if active(None) else (0, 1)


class Shared:
    """Holds a process group, which cannot be copied, inside a module, which may be."""

    def __init__(self, value: ProcessGroup):
        self.value: ProcessGroup = value

    def __deepcopy__(self, memo: dict) -> Shared:
        return self


class Agreement(NamedTuple):
    sizes: list[int]  # rows on every rank
    weighted: bool  # whether any rank has sample weights


def agree(rows: int, error: str | None, group: ProcessGroup, device: torch.device, weighted: bool = False) -> Agreement:
    """What all ranks must know before they exchange anything. If any rank has an error, every rank raises it, so that none
    waits in vain."""
    assert group is not False
    mine = torch.tensor([rows, error is not None, weighted], device=device)
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everybody, mine, group=group)
    table = torch.stack(everybody).tolist()
    failed = [rank for rank, (_, bad, _) in enumerate(table) if bad]
    if error is not None:
        raise ValueError(error)
    if failed:
        raise ValueError(
            f"rank {failed[0]} of the process group rejected its batch, so no rank solved; see its message"
        )
    return Agreement([n for n, _, _ in table], any(has for _, _, has in table))


def gather_rows(tensor: Tensor, sizes: list[int], group: ProcessGroup) -> Tensor:
    """The rows of all ranks in rank order; ranks may hold different numbers of them."""
    assert group is not False
    padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])
    padded[: tensor.shape[0]] = tensor
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:n] for part, n in zip(parts, sizes)])


def add_up(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over all ranks."""
    assert group is not False
    total = tensor.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total
