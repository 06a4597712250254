"""Run by test_lightning.py in a process of its own: the callbacks under DDP, two processes over gloo.

The processes are forked, so that Lightning is imported once; that needs a parent that has never run a backward."""

import sys
from pathlib import Path

import lightning.pytorch as L
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from closedform.integrations.lightning import ClosedFormCallback, RefitHead
from tests.helpers import batches
from tests.test_lightning import STEPS, module, net


class Save(L.Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_fit_end(self, trainer, pl_module):
        torch.save(pl_module.model.state_dict(), self.folder / f"{trainer.global_rank}.pt")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    # the sampler gives rank r the samples r, r + 2, ...: here halves of the joined batches of eight
    halves = [(x.split(4)[rank], y.split(4)[rank]) for x, y in batches(STEPS, n=8) for rank in range(2)]
    trainer = L.Trainer(
        callbacks=[ClosedFormCallback(), RefitHead(beta=0.1), Save(folder)],
        accelerator="cpu",
        devices=2,
        strategy="ddp_fork",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module(L, net()), torch.utils.data.DataLoader(halves, batch_size=None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
