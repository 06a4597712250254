"""Lightning: the callback that shows the head each batch's targets, and the one that refits it when training has ended.

    model.net[-1]                                        # a ClosedFormLinear, anywhere in the LightningModule
    trainer = Trainer(callbacks=[ClosedFormCallback(), RefitHead(beta=1e-3)])

Automatic optimization, gradient clipping, mixed precision and DDP are as without them: the head has no gradient, solves in
float64 whatever the precision, and with several processes on the joined batch of all. What `accumulate_grad_batches` means
is told in `closedform.integrations`. Checkpoints hold the head's memory, since it is part of the model's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from .. import lambdas
from ..extras import require
from ..refit import refit_
from . import Targets, head_of, targets_of

require("closedform.integrations.lightning", "lightning", "lightning")

from lightning.pytorch import LightningModule, Trainer  # noqa: E402 - only where it is installed
from lightning.pytorch.callbacks import Callback  # noqa: E402


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
        if head._observed is not None:
            head.observe(None)
            raise ValueError(
                f"training_step of {type(pl_module).__name__} ended without a forward of the ClosedFormLinear in training "
                "mode, so it was not solved: call it there"
            )
        pl_module.log("closedform/rejected", head.rejected.float(), on_step=True, on_epoch=False)
        pl_module.log("closedform/norm", head.weight.norm(), on_step=True, on_epoch=False)


class RefitHead(Callback):
    """Solves the head once more on the whole training set when training has ended: `closedform.refit_`.

    The last solve saw the last batch and the backbone before its last step; this catches up, in one pass over the training
    loader (with DDP each process reads its share). A checkpoint written during training is from before it: save with
    `trainer.save_checkpoint` after `fit`.

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

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        head_of(pl_module, self.name)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # the features of prediction, in its precision
        with trainer.precision_plugin.forward_context():
            refit_(head_of(pl_module, self.name), pl_module, self._batches(trainer.train_dataloader), self.beta)

    def _batches(self, loader: Any) -> Iterator[tuple[Tensor, ...]]:
        for batch in loader:
            y, weight = targets_of(batch, self.targets)
            if self.inputs is None and not isinstance(batch, (tuple, list)):
                raise ValueError(
                    f"RefitHead cannot tell what of a {type(batch).__name__} is the input: give it inputs="
                )
            x = batch[0] if self.inputs is None else self.inputs(batch)
            yield (x, y) if weight is None else (x, y, weight)
