"""skorch: the callback that shows the head each batch's targets.

    net = NeuralNetRegressor(Model, callbacks=[ClosedFormCallback()])     # Model has a ClosedFormLinear in it
    net.fit(X, y)

It has parameters only, so `clone`, grid searches and pipelines work as with any other callback.
"""

from __future__ import annotations

from typing import Any

from ..extras import require
from . import check_solved, head_of

require("closedform.integrations.skorch", "skorch", "skorch")

from skorch import NeuralNet  # noqa: E402 - only where it is installed
from skorch.callbacks import Callback  # noqa: E402
from skorch.dataset import unpack_data  # noqa: E402
from skorch.utils import to_tensor  # noqa: E402


class ClosedFormCallback(Callback):
    """Solves the head of `net.module_` on every training batch, before the loss is computed.

    The history gets `rejected_solves`, after each epoch: solves that failed and were not taken, since the head was made.

    name: the head's path in the module, where there are several.
    """

    def __init__(self, name: str | None = None):
        self.name = name

    def on_train_begin(self, net: NeuralNet, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        head_of(net.module_, self.name)

    def on_batch_begin(self, net: NeuralNet, batch: Any = None, training: bool | None = None, **kwargs: Any) -> None:
        if training:
            y: Any = to_tensor(unpack_data(batch)[1], device=net.device)
            head_of(net.module_, self.name).observe(y)

    def on_batch_end(self, net: NeuralNet, batch: Any = None, training: bool | None = None, **kwargs: Any) -> None:
        if training:
            head = head_of(net.module_, self.name)
            check_solved(head, f"forward of {type(getattr(net.module_, '_orig_mod', net.module_)).__name__}")

    def on_epoch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        net.history.record("rejected_solves", int(head_of(net.module_, self.name).rejected))
