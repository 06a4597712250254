"""How the last layer is kept: parameters without gradient, a master copy where they are of low precision, the rule's memory.

Everything here is about not losing any of it when the module is moved, cast, saved or loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import callers
from .solver import route
from .solver.rules import Rule

_PREFIX = "memory_"  # of the buffers that hold the rule's memory
_AFRESH = "memory is that of another version of the rule, and starts afresh; the layer itself is loaded"
_LOW = (torch.bfloat16, torch.float16)  # a layer in one of these keeps a float32 master, or small updates would vanish

INITS: dict[str, Callable[[int, int], float]] = {
    "zeros": lambda d, o: 0.0,
    "lecun": lambda d, o: (1 / d) ** 0.5,
    "xavier": lambda d, o: (2 / (d + o)) ** 0.5,
    "he": lambda d, o: (2 / d) ** 0.5,
}


class StoredLinear(nn.Linear):
    """An `nn.Linear` without gradients that keeps a rule's memory, counters of solves and, if need be, a float32 master."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        rule: Rule,
        init: str,
        device: Any,
        dtype: torch.dtype | None,
    ):
        if init not in INITS:
            raise ValueError(f"init must be one of {', '.join(INITS)}, got {init!r}")
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"a head needs a floating point dtype, got {dtype}")
        self.init = init
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.requires_grad_(False)
        counter = torch.zeros((), dtype=torch.long, device=self.weight.device)
        self.step: Tensor
        self.attempts: Tensor
        self.master: Tensor | None
        self.register_buffer("step", counter)
        self.register_buffer("attempts", counter.clone())
        self.register_buffer("master", None)
        self._names: tuple[str, ...] = ()
        self._targets_seen = False  # whether anybody has solved this layer or set its weights
        self.rule = rule
        if self.weight.dtype in _LOW:
            self.master = self._storage().float()

    @property
    def rule(self) -> Rule:
        """What is remembered of earlier batches. A new rule starts with a fresh memory."""
        return self._rule

    @rule.setter
    def rule(self, rule: Rule) -> None:
        if not isinstance(rule, Rule):
            raise ValueError(f"rule must be a closedform rule such as Proximal(lam=1e3), got {rule!r}")
        acting = self._acting_as(rule)
        memory = acting.memory(self.features, self.out_features, self.weight.device)
        for name in self._names:
            del self._buffers[_PREFIX + name]
        self._rule, self._acting, self._names = rule, acting, tuple(memory)
        for name, tensor in memory.items():
            self.register_buffer(_PREFIX + name, tensor)
        self.step.zero_()
        self.attempts.zero_()

    def _acting_as(self, rule: Rule) -> Rule:
        """The rule as it solves this layer."""
        return rule

    @property
    def acting(self) -> Rule:
        """The rule as it solves this layer, for rules that differ by the loss."""
        return self._acting

    def __setstate__(self, state: dict) -> None:
        """A pickle of an earlier version goes on with the memories that it has, or afresh where the rule has others now."""
        super().__setstate__({"_acting": state["_rule"]} | state)
        shapes = {name: tensor.shape for name, tensor in self._memory().items()}
        fresh = self._acting.memory(self.features, self.out_features, torch.device("meta"))
        if shapes != {name: tensor.shape for name, tensor in fresh.items()}:
            callers.warn(_AFRESH)
            self._new_memory()

    @property
    def features(self) -> int:
        """The number of solved features: `in_features`, and one more for the bias."""
        return self.in_features + int(self.bias is not None)

    def reset_parameters(self) -> None:
        """Draw the weights anew, as `init` says, and forget everything."""
        with torch.no_grad():
            self.weight.normal_(0, INITS[self.init](self.in_features, self.out_features))
            if self.bias is not None:
                self.bias.zero_()
        self._reset_memory()

    @torch.no_grad()
    def take_over(self, absent: set[str]) -> None:
        """Put in order what a loader other than `load_state_dict` has written into the tensors: those named in `absent` it
        has not set. The layer has no gradient; a master that was not there is the layer; without the whole rest the memory
        is fresh."""
        self.requires_grad_(False)
        if self.master is not None and "master" in absent:
            self.master.copy_(self._storage_without_master())
        if absent - {"master"}:
            self._reset_memory()

    @staticmethod
    def is_memory(name: str) -> bool:
        """Whether an entry of the state_dict is what a head has beside a plain layer's weights."""
        return name in ("step", "attempts", "master") or (name.startswith(_PREFIX) and "." not in name)

    def _reset_memory(self) -> None:
        if "step" not in self._buffers:
            return  # nn.Linear's constructor draws the weights before there is a memory
        self.step.zero_()
        self.attempts.zero_()
        fresh = self._acting.memory(self.features, self.out_features, self.weight.device)
        for name, tensor in self._memory().items():
            tensor.copy_(fresh[name])

    def _new_memory(self) -> None:
        """The same in tensors of its own, where those that are there belong to somebody else, or to no device."""
        for name in ("step", "attempts"):
            self._buffers[name] = torch.zeros((), dtype=torch.long, device=self.weight.device)
        self.rule = self.rule

    @torch.no_grad()
    def set_weights_(self, W: Tensor) -> None:
        """Set weight and bias from one matrix `(out_features, in_features)` with the bias, if there is one, as one more
        column. Values that are not finite are refused."""
        expected = (self.out_features, self.features)
        if tuple(W.shape) != expected:
            raise ValueError(f"W must have shape {expected}, got {tuple(W.shape)}")
        if not bool(torch.isfinite(W).all()):
            raise ValueError("W has NaN or infinite values")
        self.check_own()
        self._targets_seen = True
        self._write_(W)

    @torch.no_grad()
    def append_outputs(self, outputs: int) -> None:
        """So many rows of zeros more; the memory is kept, and is fresh for what belongs to the new outputs alone."""
        if not isinstance(outputs, int) or isinstance(outputs, bool) or outputs < 1:
            raise ValueError(f"a head grows by one output or more, got {outputs!r}")
        self.check_own()
        old, memory = self._storage().clone(), self._memory()
        self.out_features += outputs
        self.weight = _longer(self.weight, outputs)
        if self.bias is not None:
            self.bias = _longer(self.bias, outputs)
        if self.master is not None:
            self.master = torch.cat([old, old.new_zeros(outputs, self.features)])
        fresh = self._acting.memory(self.features, self.out_features, self.weight.device)
        for name, tensor in memory.items():
            grown = fresh[name]
            grown[tuple(slice(size) for size in tensor.shape)] = tensor
            if name == "noise":  # what is known of the noise is that of the other outputs
                grown[..., tensor.shape[-1] :] = tensor.mean(-1, keepdim=True)
            self._buffers[_PREFIX + name] = grown

    def check_own(self) -> None:
        """Raise where the layer is no longer the module's own parameter, so that what is written into it would be lost."""
        if torch.compiler.is_compiling():
            return
        weight = self._parameters.get("weight")
        if weight is None:
            raise ValueError(
                "the head's weight is computed from other tensors (weight_norm, spectral_norm, pruning or another "
                "parametrisation), so a solve would be lost: take that off the head"
            )
        tensors = sys.modules.get("torch.distributed.tensor")  # imported by whoever has such a tensor
        if getattr(weight, "_fsdp_flattened", False) or (tensors is not None and isinstance(weight, tensors.DTensor)):
            raise ValueError(
                "the head's weight is sharded over processes, so a solve would be lost: keep the head whole on every "
                "process, with fully_shard(model, ignored_params=set(head.parameters())) or, for FSDP, "
                "ignored_states=[head]"
            )

    def _write_(self, W: Tensor) -> None:
        master, bias, d = self.master, self.bias, self.in_features
        if master is not None:
            master.copy_(W)
        self.weight.copy_(W if bias is None else W[:, :d])
        if bias is not None:
            bias.copy_(W[:, d])

    def _storage(self) -> Tensor:
        """The layer as one matrix in the dtype that it is kept in."""
        W = self._storage_without_master()
        return W if self.master is None else _reconciled(self.master, W)

    def _storage_without_master(self) -> Tensor:
        weight, bias = self.weight, self.bias
        return weight if bias is None else torch.cat([weight, bias[:, None]], 1)

    def _memory(self) -> dict[str, Tensor]:
        return {name: getattr(self, _PREFIX + name) for name in self._names}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StoredLinear:
        """Move or cast: the memory moves but keeps its precision, and a layer cast down keeps what it was as its master."""
        before, master = self._storage().detach(), self.master
        memory = {_PREFIX + name: tensor for name, tensor in self._memory().items()}
        for name in [*memory, "master"]:
            self._buffers[name] = None
        super()._apply(fn, recurse)
        device = self.weight.device
        for name, tensor in memory.items():
            moved = fn(tensor)
            self._buffers[name] = moved if moved.dtype == tensor.dtype else tensor.to(device, route.precision(device))
        with torch.no_grad():
            if self.weight.dtype in _LOW:
                source = self._storage() if before.is_meta else before
                self._buffers["master"] = source.to(device, torch.float32, copy=True)
            if master is not None and not before.is_meta:
                self._write_(before.to(device))
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict,
        prefix: str,
        local_metadata: dict,
        strict: bool,
        missing: list,
        unexpected: list,
        errors: list,
    ) -> None:
        """A plain layer's state loads too: the memory is then fresh, as it is where its tensors are others (those of an
        earlier version's default under cross-entropy are). A master goes where it is needed, and only there."""
        plain = prefix + "step" not in state_dict and prefix + "weight" in state_dict
        shapes = {prefix + _PREFIX + name: tensor.shape for name, tensor in self._memory().items()}
        foreign = any(name not in state_dict for name in shapes)  # another rule's, or none
        other = self._is_other_memory(state_dict, prefix, shapes)
        if other:
            for name in [name for name in state_dict if name.startswith(prefix + _PREFIX)]:
                del state_dict[name]
        exact = state_dict.pop(prefix + "master", None)
        had, self._buffers["master"] = self.master, None
        before = len(missing)
        steps = state_dict.get(prefix + "step")
        self._targets_seen |= steps is not None and not steps.is_meta and int(steps) > 0
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        self._buffers["master"] = had
        with torch.no_grad():
            if self.step.is_meta and not self.weight.is_meta:  # `assign=True` brought the weights only
                self._new_memory()
            if self.weight.dtype not in _LOW:
                self._buffers["master"] = None
            elif had is None or had.device != self.weight.device:
                self._buffers["master"] = had = self._storage_without_master().float()
            if other:
                missing[before:] = [name for name in missing[before:] if name not in shapes]
                callers.warn(prefix + _AFRESH)
            if plain:
                missing[before:] = [k for k in missing[before:] if k in (prefix + "weight", prefix + "bias")]
            if plain or other or (foreign and prefix + "step" in state_dict):
                self._new_memory() if local_metadata.get("assign_to_params_buffers") else self._reset_memory()
            names = ("weight", "bias")[: 1 + (self.bias is not None)]
            parts = [state_dict[prefix + name] for name in names if prefix + name in state_dict]
            if len(parts) == len(names) and (exact is not None or had is not None):
                W = torch.cat([part.reshape(len(part), -1) for part in parts], 1)
                W = W if exact is None else _reconciled(exact, W)
                if W.shape == (self.out_features, self.features):
                    self._write_(W.to(self.weight.device))

    def _is_other_memory(self, state_dict: dict, prefix: str, shapes: dict[str, torch.Size]) -> bool:
        """Whether a state has this very layer, with a memory of this rule that has other tensors or shapes."""
        same = all(
            name in state_dict and state_dict[name].shape == parameter.shape
            for name, parameter in ((prefix + "weight", self.weight), (prefix + "bias", self.bias))
            if parameter is not None
        )
        stored = {name.removeprefix(prefix + _PREFIX) for name in state_dict if name.startswith(prefix + _PREFIX)}
        whole = same and prefix + "step" in state_dict and (self.bias is not None or prefix + "bias" not in state_dict)
        if not whole or not self._acting.owns(stored, set(self._names)):
            return False
        return any(name not in state_dict or state_dict[name].shape != shape for name, shape in shapes.items())


def _longer(parameter: Tensor, rows: int) -> nn.Parameter:
    zeros = parameter.new_zeros(rows, *parameter.shape[1:])
    return nn.Parameter(torch.cat([parameter, zeros]), requires_grad=False)


def _reconciled(master: Tensor, W: Tensor) -> Tensor:
    """The master, but where the layer was changed from outside (an average, say) and no longer is its rounded value, the
    layer. Bits are compared, since a compiler may skip the rounding in a comparison of numbers."""
    if W.dtype not in _LOW:
        return W.to(master.dtype)
    return torch.where(master.to(W.dtype).view(torch.int16) == W.view(torch.int16), master, W.to(master.dtype))


def watched(out: Tensor, weight: Tensor) -> Tensor:
    """`out`, made with `weight`; its backward first looks whether `weight` was written since, and says so in plain words."""
    node = None if torch.compiler.is_compiling() else out.grad_fn
    if node is not None:
        version = weight._version
        node.register_prehook(lambda _: _check_version(weight, version))
    return out


def _check_version(weight: Tensor, version: int) -> None:
    if weight._version != version:
        raise RuntimeError(
            "the head was solved between a forward and its backward, so the layer that the forward used is gone: "
            "call head.solve(phi, y) before head(phi), and backward before the next solve"
        )


class CastLinear(torch.autograd.Function):
    """`F.linear` in another dtype than the layer's. It saves the layer itself, not the cast copy, so that a solve between
    forward and backward is noticed (PyTorch raises), as it is without a cast."""

    generate_vmap_rule = True

    @staticmethod
    def forward(phi: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        with torch.autocast(phi.device.type, enabled=False):
            return F.linear(phi.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        (weight,) = ctx.saved_tensors
        (grad,) = grads
        return (grad @ weight.to(grad.dtype)).to(ctx.dtype), None, None, None
