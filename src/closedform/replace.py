"""The last linear layer of somebody's model, found and replaced by a solved one.

head = replace_last_linear(model, example=x)          # follows a forward of `x` to the layer that makes the output
head = replace_last_linear(model, "classifier")       # or the one with this name
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union

import torch
from torch import Tensor, fx, nn

from . import pretrained
from .conv import ClosedFormConv1x1
from .head import ClosedFormLinear

Layer = Union[nn.Linear, nn.Conv1d, nn.Conv2d]
_HELP = "name= chooses a layer, example=x follows a forward of x to the one that makes the output"


def replace_last_linear(
    model: nn.Module, name: str | None = None, *, example: Any = None, **kwargs: Any
) -> ClosedFormLinear:
    """Replace the linear layer that makes the output of `model` by a `ClosedFormLinear`, in place, and return it. A
    convolution with a kernel of 1 becomes a `ClosedFormConv1x1`.

    name: the layer ("fc", "decoder.out").
    example: an input of the model: a tensor, a tuple of arguments or a dict of keyword arguments. One forward of it, in eval
        mode, is followed back from the output to the layer that makes it.

    Without either, a model with one such layer or with its layers in `nn.Sequential` is clear by itself, and of another one
    the code is traced (`torch.fx`). Where that does not work, the order of registration says too little, and a `ValueError`
    names the layers. Further keyword arguments are the head's (`rule=`, ...); its weights are those of the old layer unless
    `init=` is given.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "replace the layer before the model is wrapped in DistributedDataParallel, which has counted it"
        )
    if isinstance(model, nn.Linear):
        raise ValueError("the model is itself an nn.Linear; make a ClosedFormLinear in its place")
    if name is not None and example is not None:
        raise ValueError("name= and example= both choose the layer; give one of them")
    if name is not None:
        path = name
    else:
        layers = [path for path, module in model.named_modules() if _is_linear(module)]
        if not layers:
            raise ValueError(f"{type(model).__name__} has no nn.Linear to replace, and no 1x1 convolution")
        path = _by_order(model, layers) if example is None else _by_example(model, example)
    old = model.get_submodule(path)
    _check(path, old, model)
    head = _head_like(old, kwargs)  # type: ignore[arg-type]  # _check has looked at its type
    for other, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, child = other.rpartition(".")
            setattr(model.get_submodule(parent), child, head)
    pretrained.follow_loading(model)
    return head


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        plain = {*module.kernel_size, *module.stride} == {1} and module.groups == 1
        return plain and module.padding in ((0,) * len(module.stride), "same", "valid")
    return isinstance(module, nn.Linear)


def _check(path: str, old: nn.Module, model: nn.Module) -> None:
    hooked = " with hooks" if old._forward_hooks or old._forward_pre_hooks else ""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, ClosedFormLinear, ClosedFormConv1x1)
    if type(old) not in kinds or not _is_linear(old) or hooked:
        wide = f" with a kernel of {old.kernel_size}" if isinstance(old, (nn.Conv1d, nn.Conv2d)) else ""
        raise ValueError(
            f"{path} is a {type(old).__name__}{wide or hooked}, which a ClosedFormLinear cannot stand in for; "
            "name= chooses another layer"
        )
    for shared, parameter in model.named_parameters(remove_duplicate=False):
        owner = shared.rpartition(".")[0]
        if parameter is old.weight and model.get_submodule(owner) is not old:
            raise ValueError(f"the last linear layer shares its weight with {shared}: solving it would change both")


def _head_like(old: Layer, kwargs: dict[str, Any]) -> ClosedFormLinear:
    settings: dict[str, Any] = {"device": old.weight.device, "dtype": old.weight.dtype} | kwargs
    bias = old.bias is not None
    if isinstance(old, nn.Linear) and not isinstance(old, ClosedFormConv1x1):
        head = ClosedFormLinear(old.in_features, old.out_features, bias, **settings)
    else:
        dims = old.dims if isinstance(old, ClosedFormConv1x1) else len(old.kernel_size)
        o, d = old.weight.shape[:2]
        head = ClosedFormConv1x1(d, o, bias, dims=dims, **settings)
    if "init" not in kwargs:
        head.load_state_dict({key: value for key, value in old.state_dict().items() if key in ("weight", "bias")})
    return head.train(old.training)


# ---- Without an example --------------------------------------------------------------------------


def _by_order(model: nn.Module, layers: list[str]) -> str:
    if len(layers) == 1 or _in_sequence(model):
        return layers[-1]
    try:
        last = _traced(model)
    except Exception:  # tracing runs code that was not written for it, so anything may go wrong
        last = []
    if len(last) == 1:
        return last[0]
    raise ValueError(
        f"{type(model).__name__} has several linear layers, and which of them makes the output cannot be told from the "
        f"order of registration: {', '.join(layers)}; {_HELP}"
    )


def _in_sequence(model: nn.Module) -> bool:
    """Whether every module that holds linear layers in more than one place calls them one after the other."""
    for module in model.modules():
        holders = [child for child in module.children() if any(map(_is_linear, child.modules()))]
        if len(holders) > 1 and type(module) is not nn.Sequential:
            return False
    return True


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_linear(m) or super().is_leaf_module(m, module_qualified_name)


def _traced(model: nn.Module) -> list[str]:
    """The layers that the code of `model` ends in; a copy is traced, since code may keep what it is called with."""
    kept: Iterable[Tensor] = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in kept})
    graph = _Tracer().trace(twin)
    (output,) = (node for node in graph.nodes if node.op == "output")
    last: list[str] = []
    stack, seen = list(output.all_input_nodes), set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "call_module" and any(p.ndim > 1 for p in twin.get_submodule(str(node.target)).parameters()):
            last.append(str(node.target))
        elif node.op == "get_attr":
            last.append(str(node.target))  # a parameter that is used by itself
        else:
            stack.extend(node.all_input_nodes)
    return last


# ---- With an example -----------------------------------------------------------------------------


class _Mark(torch.autograd.Function):
    """The identity, as a node of its own in the graph."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


def _by_example(model: nn.Module, example: Any) -> str:
    marks: dict[Any, str] = {}

    def hook(path: str) -> Any:
        def mark(_: nn.Module, __: Any, out: Tensor) -> Tensor:
            marked = _Mark.apply(out if out.requires_grad else out.detach().requires_grad_())
            marks[marked.grad_fn] = path
            return marked

        return mark

    modes = {module: module.training for module in model.modules()}
    hooks = [part.register_forward_hook(hook(path)) for path, part in model.named_modules() if _is_linear(part)]
    names = {parameter: path for path, parameter in model.named_parameters()}
    model.eval()
    try:
        with torch.enable_grad():
            if isinstance(example, Mapping):
                out = model(**example)
            else:
                out = model(*example) if isinstance(example, (tuple, list)) else model(example)
    finally:
        for handle in hooks:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    last = _nearest([t.grad_fn for t in _tensors(out) if t.grad_fn is not None], marks, names)
    kind = type(model).__name__
    if not last:
        raise ValueError(f"the output of {kind} cannot be followed back to a linear layer; name= chooses one")
    others = [path for path in last if path not in marks.values()]
    if others:
        raise ValueError(
            f"the output of {kind} is made by {others[0]}, not by a linear layer; name= chooses another layer"
        )
    if len(last) > 1:
        raise ValueError(f"the output of {kind} is made by several layers ({', '.join(last)}); name= chooses one")
    return last[0]


def _nearest(nodes: list[Any], marks: dict[Any, str], names: Mapping[Any, str]) -> list[str]:
    """What the graph reaches first on the way back from the output: marked layers, or other matrices of parameters."""
    last: dict[str, None] = {}
    stack, seen = nodes, set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)  # of the node at the end of a path: a parameter
        if node in marks:
            last[marks[node]] = None
        elif variable is not None and variable in names and variable.ndim > 1:
            last[names[variable]] = None
        else:
            stack.extend(before for before, _ in node.next_functions if before is not None)
    return list(last)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
