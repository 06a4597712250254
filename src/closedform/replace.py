"""The last linear layer of somebody's model, found and replaced by a solved one.

head = replace_last_linear(model, example=x)          # follows a forward of `x` to the layer that makes the output
head = replace_last_linear(model, "classifier")       # or the one with this name
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
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
        mode, is followed back from the output to the layer that makes it. The output has to hold values of that layer, in
        any shape and order: a model that changes them, for example by a softmax, is refused.

    Without either, a model with one such layer or with its layers in `nn.Sequential` is clear by itself, and of another one
    the code is traced (`torch.fx`). Where that does not work, the order of registration says too little, and a `ValueError`
    names the layers. It is also an error if another layer with weights comes after the last linear one. A softmax has no
    weights, so only `example=` notices it.

    Further keyword arguments are the head's (`rule=`, ...); its weights are those of the old layer unless `init=` is given.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "replace the layer before the model is wrapped in DistributedDataParallel, which has counted it"
        )
    if _is_linear(model):
        dense = isinstance(model, nn.Linear)
        layer, solved = ("an nn.Linear", "ClosedFormLinear") if dense else ("a 1x1 convolution", "ClosedFormConv1x1")
        raise ValueError(f"the model is itself {layer}; make a {solved} in its place")
    if name is not None and example is not None:
        raise ValueError("name= and example= both choose the layer; give one of them")
    kind = type(model).__name__
    layers = [path for path, module in model.named_modules() if _is_linear(module)]
    if name is not None:
        path = name
    elif layers:
        path = _by_order(model, layers) if example is None else _by_example(model, example)
    else:
        hint = next(filter(None, map(_conv3d_hint, model.modules())), "")
        raise ValueError(f"{kind} has no nn.Linear to replace, and no 1x1 convolution{hint}")
    try:
        old = model.get_submodule(path)
    except AttributeError:
        raise ValueError(f"{kind} has no layer {path!r}; its linear layers: {', '.join(layers) or 'none'}") from None
    _check(path, old, model)
    head = _head_like(old, kwargs)  # type: ignore[arg-type]  # _check has looked at its type
    for other, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, child = other.rpartition(".")
            setattr(model.get_submodule(parent), child, head)
    pretrained.follow_loading(model)
    return head


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (isinstance(module, (nn.Conv1d, nn.Conv2d)) and _is_pointwise(module))


def _is_pointwise(conv: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> bool:
    plain = {*conv.kernel_size, *conv.stride} == {1} and conv.groups == 1
    return plain and conv.padding in ((0,) * len(conv.stride), "same", "valid")


def _conv3d_hint(module: nn.Module) -> str:
    unsupported = isinstance(module, nn.Conv3d) and _is_pointwise(module)
    return " (nn.Conv3d is not supported, nn.Conv1d and nn.Conv2d are)" if unsupported else ""


def _check(path: str, old: nn.Module, model: nn.Module) -> None:
    hooked = " with hooks" if old._forward_hooks or old._forward_pre_hooks else ""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, ClosedFormLinear, ClosedFormConv1x1)
    if type(old) not in kinds or not _is_linear(old) or hooked:
        wide = f" with a kernel of {old.kernel_size}" if isinstance(old, (nn.Conv1d, nn.Conv2d)) else ""
        raise ValueError(
            f"{path} is a {type(old).__name__}{wide or hooked}, which a ClosedFormLinear cannot stand in for"
            f"{_conv3d_hint(old)}; name= chooses another layer"
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
    try:
        trace = _Trace(model)
    except Exception:  # tracing runs code that was not written for it, so anything may go wrong
        trace = None
    if len(layers) == 1 or _in_sequence(model):
        path = layers[-1]
    else:
        last = trace.last() if trace else []
        if len(last) != 1:
            raise ValueError(
                f"{type(model).__name__} has several linear layers, and which of them makes the output cannot be told "
                f"from the order of registration: {', '.join(layers)}; {_HELP}"
            )
        path = last[0]
    follower = trace.follower(path) if trace else _follower_in_sequence(model, path)
    if follower:
        hint = _conv3d_hint(dict(model.named_modules()).get(follower, model))
        raise ValueError(
            f"{path} does not make the output of {type(model).__name__}, since {follower} comes after it and has weights "
            f"of its own{hint}; name={path!r} replaces it all the same if your targets are those of its own output"
        )
    return path


def _in_sequence(model: nn.Module) -> bool:
    """Whether every module that holds linear layers in more than one place calls them one after the other."""
    for module in model.modules():
        holders = [child for child in module.children() if any(map(_is_linear, child.modules()))]
        if len(holders) > 1 and type(module) is not nn.Sequential:
            return False
    return True


def _follower_in_sequence(model: nn.Module, path: str) -> str | None:
    """The next layer with weights behind `path` in an `nn.Sequential`."""
    parent, _, child = path.rpartition(".")
    while child:
        sequence = model.get_submodule(parent)
        if type(sequence) is nn.Sequential:
            children = dict(sequence.named_children())
            for later in list(children)[list(children).index(child) + 1 :]:
                if list(children[later].parameters()):
                    return f"{parent}.{later}" if parent else later
        parent, _, child = parent.rpartition(".")
    return None


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_linear(m) or super().is_leaf_module(m, module_qualified_name)


class _Trace:
    """What the code of `model` calls; a copy is traced, since code may keep or change what it is called with."""

    def __init__(self, model: nn.Module):
        self.twin = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
        self.nodes = list(_Tracer().trace(self.twin).nodes)

    def last(self) -> list[str]:
        """The layers that the code ends in, and the parameters that are used by themselves."""

        def is_end(node: fx.Node) -> bool:
            return node.op == "get_attr" or any(p.ndim > 1 for p in self._parameters(node))

        return [str(node.target) for node in self._back_to(is_end) if is_end(node)]

    def follower(self, path: str) -> str | None:
        """The next layer with weights between the layer `path` and the output."""

        def is_layer(node: fx.Node) -> bool:
            return node.op == "call_module" and node.target == path

        before_output, after_layer = set(self._back_to(is_layer)), set()
        for node in self.nodes:
            if is_layer(node):
                after_layer.add(node)
            elif not after_layer.isdisjoint(node.all_input_nodes):
                after_layer.add(node)
                layer = self._layer_with_weights(node)
                if node in before_output and layer:
                    return layer
        return None

    def _layer_with_weights(self, node: fx.Node) -> str | None:
        if self._parameters(node):
            return str(node.target)
        # The tracer goes into a layer that is not torch.nn's own, down to its parameters.
        sources = {str(source.target) for source in node.all_input_nodes if source.op == "get_attr"}
        names = (name for name, _ in self.twin.named_parameters(remove_duplicate=False) if name in sources)
        return next((name.rpartition(".")[0] or name for name in names), None)

    def _parameters(self, node: fx.Node) -> list[nn.Parameter]:
        return list(self.twin.get_submodule(str(node.target)).parameters()) if node.op == "call_module" else []

    def _back_to(self, is_end: Callable[[fx.Node], bool]) -> list[fx.Node]:
        """The nodes that the output is made of, those for which `is_end` holds included, and nothing before these."""
        stack, reached = [node for node in self.nodes if node.op == "output"], {}
        while stack:
            node = stack.pop()
            if node not in reached:
                reached[node] = None
                stack.extend(() if is_end(node) else node.all_input_nodes)
        return list(reached)


# ---- With an example -----------------------------------------------------------------------------


class _Mark(torch.autograd.Function):
    """A copy, as a node of its own in the graph; the model may change it in place, and the layer's output is still there."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


def _by_example(model: nn.Module, example: Any) -> str:
    marks: dict[Any, str] = {}
    layer_outputs: dict[str, list[Tensor]] = {}

    def hook(path: str) -> Any:
        def mark(_: nn.Module, __: Any, out: Tensor) -> Tensor:
            marked = _Mark.apply(out if out.requires_grad else out.detach().requires_grad_())
            marks[marked.grad_fn] = path
            layer_outputs.setdefault(path, []).append(out.detach())
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
    outputs = [tensor for tensor in _tensors(out) if tensor.grad_fn is not None]
    matrices = {parameter: path for parameter, path in names.items() if parameter.ndim > 1}
    last = _nearest([tensor.grad_fn for tensor in outputs], marks, matrices)
    kind = type(model).__name__
    if not last:
        raise ValueError(f"the output of {kind} cannot be followed back to a linear layer; name= chooses one")
    others = [path for path in last if path not in marks.values()]
    if others:
        hint = _conv3d_hint(model.get_submodule(others[0].rpartition(".")[0]))
        raise ValueError(
            f"the output of {kind} is made by {others[0]}, not by a linear layer{hint}; name= chooses another layer"
        )
    if len(last) > 1:
        raise ValueError(f"the output of {kind} is made by several layers ({', '.join(last)}); name= chooses one")
    path = last[0]
    whole = torch.cat([values.flatten() for values in layer_outputs[path]])
    # A fresh normalisation changes few values or none, but its weights stand between the layer and the output.
    if not any(_nearest([y.grad_fn], marks, names) == [path] and _is_part(y, whole) for y in outputs):
        raise ValueError(
            f"{kind} changes the output of {path} on the way to its own output, for example by a softmax; "
            f"name={path!r} replaces the layer if your targets are those of its own output"
        )
    return path


def _is_part(part: Tensor, whole: Tensor) -> bool:
    """Whether the numbers in `part` are among those in `whole`, as often and up to rounding, in any shape and order."""
    if part.is_meta:
        return True  # there are no numbers to compare
    rounding = max(torch.finfo(part.dtype).eps, torch.finfo(whole.dtype).eps)
    part, whole = _sorted_numbers(part), _sorted_numbers(whole)
    first = torch.searchsorted(whole, part - rounding * part.abs())
    end = torch.searchsorted(whole, part + rounding * part.abs(), right=True)
    rank = torch.arange(len(part))
    # Each number takes the first one in its range that is free; as ranges rise with the numbers, no choice is better.
    taken = (first - rank).cummax(0).values + rank
    return bool((taken < end).all())


def _sorted_numbers(values: Tensor) -> Tensor:
    values = values.detach().cpu()
    values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    return values.flatten().double().nan_to_num().sort().values


def _nearest(nodes: list[Any], marks: dict[Any, str], names: Mapping[Any, str]) -> list[str]:
    """What the graph reaches first on the way back from the output: marked layers, or parameters in `names`."""
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
        elif variable is not None and variable in names:
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
