"""Hugging Face transformers: a mixin for models, so that an unmodified `Trainer` solves their last layer.

    class Classifier(ClosedFormMixin, DistilBertForSequenceClassification):
        def __init__(self, config):
            super().__init__(config)
            replace_last_linear(self, "classifier", rule=Proximal(), loss=CrossEntropy())

    model = Classifier.from_pretrained(...)
    Trainer(model, args, train_dataset=...).train()

No callback of `Trainer` sees a batch, but the model does: in training mode it shows the head the labels before its own
forward. The loss that is differentiated is still the model's own, so take the head's to match (`CrossEntropy` for classes,
the squared one for regression). Labels of -100 do not count, and those of a causal language model are the next tokens.
Checkpoints hold the head's memory, and `resume_from_checkpoint` goes on with it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import distributed, pretrained
from ..head import ClosedFormLinear
from . import check_solved, head_of, model_loss

IGNORED = -100  # the label of what does not count


class ClosedFormMixin:
    """Stands before a model class of transformers that takes `labels` and has a `ClosedFormLinear` in it.

    `forward` keeps its signature, by which `Trainer` chooses the columns of a data set. A forward in training mode without
    labels is an error, since the layer could not be solved. Two guesses of transformers go wrong for a class of one's own,
    and are put right: which loss a model has, which goes by the name of its class and here by those of its bases; and that
    a forward which takes any keyword hands `num_items_in_batch` to its loss, without which `Trainer` would add up the
    gradients of accumulated micro-batches and not average them (`accepts_loss_kwargs`). Of language models those are
    followed that ask transformers for their loss, as most do, and those of its own that are known not to shift the labels
    (Bart and its like); others must say what they are solved for (`solved_targets`).
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if getattr(self, "loss_type", None) is None:
            self.loss_type = model_loss.kind_of_loss(self)

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether the loss divides by `num_items_in_batch`; some models say so themselves."""
        said = vars(self).get("accepts_loss_kwargs", getattr(super(), "accepts_loss_kwargs", None))
        return model_loss.divides(self) if said is None else said

    @accepts_loss_kwargs.setter
    def accepts_loss_kwargs(self, value: bool) -> None:
        vars(self)["accepts_loss_kwargs"] = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(self, torch.nn.Module)
        if not self.training:
            return super().__call__(*args, **kwargs)  # type: ignore[misc]  # the model that this is mixed into has it
        head = head_of(self)
        y, weight = self.solved_targets(head, self._labels(args, kwargs))
        # one of one's own may have weights on some ranks alone
        ours = getattr(self.solved_targets, "__func__", None) is ClosedFormMixin.solved_targets
        head.observe(*((y, None) if weight is None and ours else _counted(head, y, weight)))
        out = super().__call__(*args, **kwargs)  # type: ignore[misc]  # the model that this is mixed into has it
        check_solved(head, f"forward of {type(self).__name__}")
        return out

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As ever. A head that the checkpoint does not have, or only as a plain layer, starts with a fresh memory, where
        transformers would leave what happened to be in the computer's; and it has no gradient, which transformers forgets.
        """
        wanted = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)  # type: ignore[misc]  # the model has it
        pretrained.take_over(model, {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
        return (model, info) if wanted else model

    def save_pretrained(self, *args: Any, memory: bool = True, **kwargs: Any) -> Any:
        """As ever. With `memory=False` the file holds the layer and nothing else of the head, as that of a plain model."""
        if not memory:
            state = kwargs.get("state_dict") or self.state_dict()  # type: ignore[attr-defined]  # the model has it
            ours = pretrained.memory_keys(self, state)  # type: ignore[arg-type]  # it is mixed into a module
            kwargs["state_dict"] = {key: value for key, value in state.items() if key not in ours}
        return super().save_pretrained(*args, **kwargs)  # type: ignore[misc]  # the model has it

    def _adjust_missing_and_unexpected_keys(self, *args: Any, **kwargs: Any) -> Any:
        """Where transformers leaves out of its report of missing, unexpected and mismatched keys what is none of the user's
        business: the head's memory is fresh where the checkpoint has none."""
        pretrained.settle(self, args[0] if args else None)  # type: ignore[arg-type]  # it is mixed into a module
        return super()._adjust_missing_and_unexpected_keys(*args, **kwargs)  # type: ignore[misc]  # the model has it

    def solved_targets(self, head: ClosedFormLinear, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the head is solved for: targets, and sample weights or None. Override it where the model's labels are not
        those of its outputs one by one.

        Labels `(n,)` of a single output are targets `(n, 1)`; classes of -100 do not count. Where the loss is of the kind of
        causal language models, each token's target is the label of the next: transformers hands it the labels as they are,
        and it shifts them, as one of your own in its place (`loss_function`) must. One that does not is a case for an
        override; so is a language model that computes its loss in a forward of its own."""
        if not head.loss.labels:
            return (labels[:, None] if labels.ndim == 1 and head.out_features == 1 else labels), None
        if labels.is_floating_point():
            return labels, None
        if labels.ndim > 1 and model_loss.shifts(self):
            labels = F.pad(labels, (0, 1), value=IGNORED)[..., 1:]
        ignored = labels == IGNORED
        return labels.masked_fill(ignored, 0), (~ignored).float()

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


def _counted(head: ClosedFormLinear, y: Tensor, weight: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """What the head is shown: nothing where no label of the batch counts, on any rank, and no weights where all do."""
    if torch.compiler.is_compiling():  # which cannot look at values
        return y, weight
    some, every = (True, True) if weight is None else torch.stack([(weight > 0).any(), (weight == 1).all()]).tolist()
    ranks = [int(some)]
    if distributed.active(head.process_group):
        ranks = distributed.agree(int(some), None, head.process_group, y.device).sizes
    if not any(ranks):
        return None, None
    if weight is not None and not some:  # the other ranks wait for this one, whatever it has
        weight = weight.float() + torch.finfo(torch.float32).tiny
    return y, None if every else weight
