r"""Several machines, one last layer: DistributedDataParallel under torchrun, with a restart from the last checkpoint.

    python examples/several_machines.py [--quick]             # one process
    torchrun --nproc-per-node 2 examples/several_machines.py  # two, on one machine

On two machines, the same on each; they meet at the first one's address and share the folder of the checkpoint:

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # or a machine that comes back waits forever: pytorch issue 135712
    torchrun --nnodes 2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d --rdzv-id a-name \
        --rdzv-endpoint 10.0.0.1:29400 examples/several_machines.py --folder /shared/run

Where host names do not lead to the right network, add `--local-addr` with each machine's own address and `--rdzv-conf
is_host=1` on the first (0 on the others), and set GLOO_SOCKET_IFNAME (with GPUs: NCCL_SOCKET_IFNAME). If a process or a
machine other than the first dies, torchrun starts all processes anew once it is back, and they go on from the checkpoint to
the weights of an undisturbed run: all that counts is in the checkpoint, and a step's rows are a function of the step.
What a step sends: benchmarks/communication.py.
"""

from __future__ import annotations

import argparse
import os
from inspect import signature
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import closedform as cf
from closedform.files import atomic

# Off: a solved layer and its memory are the same on all ranks by construction. (The new name is torch 2.13's.)
KNOWN = signature(DistributedDataParallel).parameters
SYNC = "forward_sync_buffers" if "forward_sync_buffers" in KNOWN else "broadcast_buffers"


def network() -> nn.Sequential:
    head = cf.ClosedFormLinear(32, 1, rule=cf.Kalman(0.99))
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), head)


def data(n: int = 2048) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 4, generator=torch.Generator().manual_seed(0)) * 4 - 2
    return x, torch.sin(2 * x[:, :1]) * torch.cos(x[:, 1:2]) + x[:, 2:3] * x[:, 3:]


def rows(step: int, batch: int, rank: int, world: int) -> Tensor:
    """This rank's share of the joined batch of a step."""
    order = torch.randperm(2048, generator=torch.Generator().manual_seed(step))
    return order[:batch].tensor_split(world)[rank]


def train(folder: Path, steps: int, batch: int = 64, every: int = 20) -> float:
    """The mean squared error on all rows, after training from the checkpoint in `folder`, where there is one."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(0)
    model, (x, y) = network(), data()
    parallel = DistributedDataParallel(model, **{SYNC: False}) if world > 1 else model
    optimizer, checkpoint, first = torch.optim.Adam(parallel.parameters(), lr=3e-3), folder / "checkpoint.pt", 0
    if checkpoint.exists():  # every rank reads it before any can write the next: a step needs them all
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        print(f"rank {rank} of {world}: on from step {first}", flush=True)
    for step in range(first, steps):
        mine = rows(step, batch, rank, world)
        model[-1].observe(y[mine])
        loss = F.mse_loss(parallel(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and ((step + 1) % every == 0 or step + 1 == steps):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            with atomic(checkpoint) as file:
                torch.save(state, file)
    with torch.no_grad():
        return float(F.mse_loss(model.eval()(x), y))


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/several_machines"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--quick", dest="steps", action="store_const", const=60)
    options = parser.parse_args(arguments)
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
    print(f"mean squared error: {(error := train(options.folder, options.steps)):.5f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    return error


if __name__ == "__main__":
    main()
