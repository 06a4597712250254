"""What a model of Hugging Face transformers does with its labels, read from its class: which loss, and are they shifted.

A forward either asks transformers for `self.loss_function`, which goes by the kind in `loss_type`, or computes a loss of its
own. The forward that counts is the first among the bases that does either, and does not hand over to the next one.
"""

from __future__ import annotations

import inspect
import re
from types import CodeType
from typing import Any

from ..extras import require

require("closedform.integrations.transformers", "transformers", "transformers")

from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss  # noqa: E402 - only where it is installed

LANGUAGE = re.compile("Causal|LMHead|DoubleHeads|ConditionalGeneration")


def kind_of_loss(model: Any) -> str | None:
    """The `loss_type` that the names of the model's class and its bases tell."""
    known = re.search("|".join(LOSS_MAPPING), _names(model))
    # the fallback is that of transformers, which Trainer does not see
    return known.group() if known else "ForCausalLM" if _asks(model) else None


def divides(model: Any) -> bool:
    """Whether the loss takes `num_items_in_batch`, and the forward has a way to hand it on."""
    if not _asks(model):
        return False
    taken = inspect.signature(model.forward).parameters.values()
    keywords = any(argument.kind is argument.VAR_KEYWORD for argument in taken)
    return keywords and "num_items_in_batch" in inspect.signature(model.loss_function).parameters


def shifts(model: Any) -> bool:
    """Whether the loss compares a token's output with the label of the next; an encoder-decoder shifts its inputs."""
    if getattr(model.config, "is_encoder_decoder", False):
        return False
    if _asks(model):
        return LOSS_MAPPING.get(model.loss_type, ForCausalLMLoss) is ForCausalLMLoss
    kind, code = _forward(model)
    as_they_are = "CrossEntropyLoss" in code.co_names and not any("shift" in name for name in code.co_varnames)
    if LANGUAGE.search(_names(model)) and not (as_they_are and kind.__module__.startswith("transformers.")):
        raise ValueError(
            f"forward of {kind.__name__} does not ask for loss_function, so whether its loss shifts the labels by a token "
            f"cannot be told: override solved_targets(head, labels) in {type(model).__name__}, so that it does the same"
        )
    return False


def _asks(model: Any) -> bool:
    return "loss_function" in _forward(model)[1].co_names


def _forward(model: Any) -> tuple[type, CodeType]:
    """The first forward that asks for a loss or calls no other, and the class that it stands in."""
    for kind in type(model).__mro__:
        code = getattr(inspect.unwrap(vars(kind)["forward"]), "__code__", None) if "forward" in vars(kind) else None
        if code is not None and ("loss_function" in code.co_names or "forward" not in code.co_names):
            return kind, code
    raise TypeError(f"{type(model).__name__} has no forward")


def _names(model: Any) -> str:
    return " ".join(kind.__name__ for kind in type(model).__mro__)
