"""Run by test_lightning.py in a process of its own: the callbacks under DDP, two processes over gloo.

The processes are forked, so that Lightning is imported once; that needs a parent that has never run a backward."""

import sys
from pathlib import Path

import lightning.pytorch as L
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from closedform.integrations.lightning import ClosedFormCallback, RefitHead
from tests.helpers import batches
from tests.lightning_cases import STEPS, module, net


class Save(L.Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_fit_end(self, trainer, pl_module):
        torch.save(pl_module.model.state_dict(), self.folder / f"{trainer.global_rank}.pt")


class Halves(L.LightningDataModule):
    """Rank r has the r-th half of each joined batch of eight, in order; Lightning's own sampler would shuffle."""

    def train_dataloader(self):
        halves = [tuple(part.split(4)[self.trainer.global_rank] for part in pair) for pair in batches(STEPS, n=8)]
        return torch.utils.data.DataLoader(halves, batch_size=None)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    trainer = L.Trainer(
        callbacks=[ClosedFormCallback(), RefitHead(beta=0.1), Save(folder)],
        accelerator="cpu",
        devices=2,
        strategy="ddp_fork",
        use_distributed_sampler=False,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module(L, net()), datamodule=Halves())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
