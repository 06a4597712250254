"""Hugging Face transformers: a mixin for models, so that an unmodified `Trainer` solves their last layer.

    class Classifier(ClosedFormMixin, DistilBertForSequenceClassification):
        def __init__(self, config):
            super().__init__(config)
            replace_last_linear(self, "classifier", rule=Proximal(), loss=CrossEntropy())

    model = Classifier.from_pretrained(...)
    Trainer(model, args, train_dataset=...).train()

No callback of `Trainer` sees a batch, but the model does: in training mode it shows the head the labels before its own
forward. The loss that is differentiated is still the model's own, so take the head's to match (`CrossEntropy` for classes,
the squared one for regression). Checkpoints hold the head's memory, and `resume_from_checkpoint` goes on with it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ..extras import require
from ..head import ClosedFormLinear
from . import head_of

require("closedform.integrations.transformers", "transformers", "transformers")

IGNORED = -100  # the label of tokens that do not count


class ClosedFormMixin:
    """Stands before a model class of transformers that takes `labels` and has a `ClosedFormLinear` in it.

    `forward` keeps its signature, by which `Trainer` chooses the columns of a data set. A forward in training mode without
    labels is an error, since the layer could not be solved.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(self, torch.nn.Module)
        if self.training:
            head = head_of(self)
            head.observe(*self.solved_targets(head, self._labels(args, kwargs)))
        return super().__call__(*args, **kwargs)  # type: ignore[misc]  # the model that this is mixed into has it

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As ever. A head that the checkpoint does not have, or only as a plain layer, starts with a fresh memory, where
        transformers would leave what happened to be in the computer's; and it has no gradient, which transformers forgets.
        """
        wanted = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)  # type: ignore[misc]  # the model has it
        absent = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
        for path, head in model.named_modules():
            if isinstance(head, ClosedFormLinear):
                head.take_over({name for name in head.state_dict() if f"{path}.{name}" in absent})
        return (model, info) if wanted else model

    def solved_targets(self, head: ClosedFormLinear, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the head is solved for: targets, and sample weights or None. Override it where the model's labels are not
        those of its outputs one by one, as in a causal language model.

        Labels `(n,)` of a single output are targets `(n, 1)`; of tokens' labels `(n, length)` those of -100 do not count."""
        if not head.loss.labels:
            return (labels[:, None] if labels.ndim == 1 and head.out_features == 1 else labels), None
        if labels.is_floating_point() or labels.ndim == 1:
            return labels, None
        return labels.clamp(min=0), (labels != IGNORED).to(head.weight.dtype)

    def _labels(self, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        labels = kwargs.get("labels")
        if labels is None and args:
            forward = inspect.signature(self.forward)  # type: ignore[attr-defined]  # the model's
            labels = forward.bind_partial(*args).arguments.get("labels")
        if labels is None:
            raise ValueError(
                f"{type(self).__name__} got no labels in training mode, only {', '.join(kwargs) or 'positional arguments'}: "
                "the last layer is solved on them, so the data set needs a column 'labels' that reaches the model "
                "(Trainer's label smoothing and compute_loss_func take it away); call eval() to predict"
            )
        return labels
