"""Lightning: the callback that shows the head each batch's targets, and the one that refits it when training has ended.

    model.net[-1]                                        # a ClosedFormLinear, anywhere in the LightningModule
    trainer = Trainer(callbacks=[ClosedFormCallback(), RefitHead(beta=1e-3)])

Automatic optimization, gradient clipping, mixed precision and DDP are as without them: the head has no gradient, solves in
float64 whatever the precision, and with several processes on the joined batch of all. What `accumulate_grad_batches` means
is told in `closedform.integrations`. Checkpoints hold the head's memory, since it is part of the model's state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..extras import require
from ..features import features_of
from ..refit import refit_
from ..solver import lambdas
from ..solver.batch import check_batch
from . import Targets, check_solved, check_starts_anew, head_of, input_of, targets_of

require("closedform.integrations.lightning", "lightning", "lightning")

from lightning.pytorch import LightningModule, Trainer  # noqa: E402 - only where it is installed
from lightning.pytorch.callbacks import Callback  # noqa: E402
from lightning.pytorch.utilities import rank_zero_info  # noqa: E402


class ClosedFormCallback(Callback):
    """Solves the head on every training batch, before the loss is computed.

    It logs `closedform/rejected` (solves that failed and were not taken, since the head was made; more than a few mean that
    something is not finite) and `closedform/norm` (of the weights; a jump is a lambda that is too small).

    targets: where a batch's targets are, if it is not `(x, y)` or `(x, y, sample_weight)`: a key, or a function of the
        batch that returns `y` or `(y, sample_weight)`.
    name: the head's path in the module, where there are several.
    """

    def __init__(self, targets: Targets = None, name: str | None = None):
        self.targets, self.name = targets, name

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        head_of(pl_module, self.name)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        head_of(pl_module, self.name).observe(*targets_of(batch, self.targets))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        head = head_of(pl_module, self.name)
        check_solved(head, f"training_step of {type(pl_module).__name__}")
        pl_module.log("closedform/rejected", head.rejected.float(), on_step=True, on_epoch=False)
        pl_module.log("closedform/norm", head.weight.norm(), on_step=True, on_epoch=False)


class RefitHead(Callback):
    """Solves the head once more on the whole training set when training has ended: `closedform.refit_`.

    The last solve saw the last batch and the backbone before its last step; this catches up, in one pass over the training
    loader (with DDP each process reads its share), whose batches go through the hooks and the precision of training. Of a
    stream that does not know its length it reads as many batches as the longest epoch of training had. What would fail then
    is tried on the first batch. The checkpoints of `ModelCheckpoint` were written before, and hold the head as it was, so
    that training goes on from them unchanged: `trainer.save_checkpoint` after `fit` saves the new one.

    beta: the ridge penalty, in sum units.
    targets, name: as for `ClosedFormCallback`.
    inputs: a function from a batch to the tensor that the module's `forward` takes; the batch's first part if not given.
    """

    def __init__(
        self,
        beta: lambdas.Lambda | lambdas.per_sample = 0.0,
        targets: Targets = None,
        inputs: Callable[[Any], Tensor] | None = None,
        name: str | None = None,
    ):
        lambdas.check(beta, "beta", positive=False)
        self.beta: lambdas.Lambda | lambdas.per_sample = beta
        self.targets, self.inputs, self.name = targets, inputs, name
        self._read = 0  # batches, in the longest epoch

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        head_of(pl_module, self.name)
        kind = type(pl_module)
        if kind.forward is LightningModule.forward:
            raise ValueError(
                f"{kind.__name__} has no forward(), by which RefitHead would make the features: define it, so that the "
                "module predicts from a batch's inputs"
            )
        try:
            (taken := inspect.signature(kind.forward)).bind(pl_module, None)
        except TypeError:
            raise ValueError(
                f"forward{taken} of {kind.__name__} cannot be called with one tensor, as RefitHead does: leave RefitHead "
                "out, and refit after training with closedform.Statistics"
            ) from None
        self._read = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        first, self._read = self._read == 0, max(self._read, batch_idx + 1)
        if not first:
            return
        loaders: Any = trainer.fit_loop._combined_loader
        for loader, iterator in zip(loaders.flattened, loaders._iterator.iterators):
            check_starts_anew(loader, iterator)
        head = head_of(pl_module, self.name)
        x, y, *weight = self._parts(batch)
        devices = [pl_module.device] if pl_module.device.type == "cuda" else []
        with torch.random.fork_rng(devices), trainer.precision_plugin.forward_context():
            with features_of(pl_module, head) as features:
                phi, y = head._arranged(features(x), y)
            y = head.loss.targets(y, (*phi.shape[:-1], head.out_features))
        # shapes and types: what an untrained network makes need not be finite
        check_batch(torch.zeros_like(phi), y, weight[0] if weight else None, head.in_features, head.out_features)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # the features of prediction, in its precision
        with trainer.precision_plugin.forward_context():
            refit_(head_of(pl_module, self.name), pl_module, self._batches(trainer, pl_module), self.beta)
        if trainer.checkpoint_callbacks:
            rank_zero_info(
                "RefitHead: checkpoints written so far hold the layer from before; trainer.save_checkpoint(path) saves it"
            )

    def _batches(self, trainer: Trainer, module: LightningModule) -> Iterator[tuple[Tensor, ...]]:
        """An epoch of what `training_step` sees."""
        loader, count = trainer.fit_loop._combined_loader, trainer.num_training_batches
        assert loader is not None
        for batch, *_ in islice(loader, self._read if count == float("inf") else int(count)):
            batch = module._on_before_batch_transfer(trainer.precision_plugin.convert_input(batch))
            yield self._parts(trainer.strategy.batch_to_device(batch))

    def _parts(self, batch: Any) -> tuple[Tensor, ...]:
        y, weight = targets_of(batch, self.targets)
        x = input_of(batch, self.inputs)
        return (x, y) if weight is None else (x, y, weight)
