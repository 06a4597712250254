"""The features that reach the head: of a backbone, or of a whole model with the head inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def check_order(head: nn.Module, model: nn.Module) -> None:
    """Raise where the arguments are not the head first and then what makes its features."""
    if not isinstance(head, nn.Linear) or not isinstance(model, nn.Module):
        raise ValueError(
            f"the order is (head, model, loader): expected a linear layer and a module, got {type(head).__name__} and "
            f"{type(model).__name__}"
        )


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """`model` in eval mode, without gradient and as written where it is compiled; the modes are put back afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), _eager(model):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def features_of(model: nn.Module, head: nn.Linear) -> Iterator[Callable[[Tensor], Tensor]]:
    """A function from inputs to what the head sees of them, with the model `evaluated`. `model` makes the features, or is
    the whole model with the head inside."""
    seen: list[Tensor] = []
    buried = any(module is head for module in model.modules())
    hook = head.register_forward_pre_hook(lambda _, args: seen.append(args[0])) if buried else None

    def features(x: Tensor) -> Tensor:
        phi = model(x.to(head.weight.device))
        if buried and not seen:
            raise ValueError(f"forward of {type(model).__name__} ended without one of its {type(head).__name__}")
        return seen.pop() if buried else phi

    try:
        with evaluated(model):
            yield features
    finally:
        if hook is not None:
            hook.remove()


@contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    """Nothing in `model` runs compiled: code from before a hook was there is taken again without it."""
    if hasattr(torch.compiler, "set_stance"):  # torch 2.6
        with torch.compiler.set_stance("force_eager"):
            yield
        return
    compiled = [module for module in model.modules() if isinstance(module, torch._dynamo.OptimizedModule)]
    forwards = [module.forward for module in compiled]
    in_place = {module: module._compiled_call_impl for module in model.modules() if module not in compiled}
    try:
        for module in compiled:
            module.forward = module._orig_mod.__call__
        for module in in_place:
            module._compiled_call_impl = None
        yield
    finally:
        for module, forward in zip(compiled, forwards):
            module.forward = forward
        for module, call in in_place.items():
            module._compiled_call_impl = call
