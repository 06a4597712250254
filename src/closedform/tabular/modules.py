"""Any `nn.Module` as the backbone of an estimator: autograd, `torch.optim` and `ClosedFormLinear`.

The same steps as `networks.Networks`, for one member, and the plain form that those are tested against.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..head import ClosedFormLinear
from ..solver.lambdas import follow_lr, relative
from ..solver.rules import Kalman, Proximal, Rule
from .networks import BETAS, Memory


class Modules:
    """A copy of `backbone`, a head on its features, and Adam for whichever parameters require a gradient."""

    members = 1

    def __init__(
        self,
        backbone: nn.Module,
        outputs: int,
        *,
        example: Tensor,
        memory: Memory | Rule,
        weight_decay: float,
        learning_rate: float,
        seed: int,
        device: torch.device,
    ):
        self.config = {
            "backbone": backbone,
            "outputs": outputs,
            "example": example,
            "memory": memory,
            "weight_decay": weight_decay,
            "learning_rate": learning_rate,
            "seed": seed,
            "device": device,
        }
        self.device, self.outputs, self.memory, self.base = device, outputs, memory, learning_rate
        self.backbone = copy.deepcopy(backbone).to(device)
        parameters = list(self.backbone.parameters())
        self.dtype = parameters[0].dtype if parameters else torch.float32
        self.width = self._width(example)
        learned = [p for p in parameters if p.requires_grad]
        self.optimizer = torch.optim.Adam(learned, lr=learning_rate, betas=BETAS) if learned else None
        self._decay = weight_decay
        self.steps = torch.zeros((), dtype=torch.long)
        with self._own_draws(seed):
            self.head = self._head(memory, seed)

    @contextlib.contextmanager
    def _own_draws(self, seed: int) -> Iterator[None]:
        """What is drawn inside is a function of the seed, and what others draw later does not change."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def _head(self, memory: Memory | Rule, seed: int) -> nn.Linear:
        kind = {"device": self.device, "dtype": self.dtype}
        if isinstance(memory, Rule) or memory.kind != "learned":
            rule = memory if isinstance(memory, Rule) else self._rule(memory)
            return ClosedFormLinear(self.width, self.outputs, rule=rule, **kind)
        head = nn.Linear(self.width, self.outputs, **kind)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            drawn = torch.randn(self.outputs, self.width, generator=generator, dtype=torch.float64)
            head.weight.copy_(drawn * self.width**-0.5)
            head.bias.zero_()
        if self.optimizer is None:
            self.optimizer = torch.optim.Adam(head.parameters(), lr=self.base, betas=BETAS)
        else:
            self.optimizer.add_param_group({"params": list(head.parameters())})
        return head

    def _width(self, example: Tensor) -> int:
        self.backbone.eval()
        expected = f"the backbone must map (n, {example.shape[1]}) to features (n, d)"
        try:
            with torch.no_grad():
                phi = self.backbone(example.to(self.device, self.dtype))
        except RuntimeError as bad:
            raise ValueError(f"{expected}, and fails on {len(example)} such rows: {bad}") from bad
        if not isinstance(phi, Tensor) or phi.ndim != 2 or len(phi) != len(example):
            shape = tuple(phi.shape) if isinstance(phi, Tensor) else type(phi).__name__
            raise ValueError(f"{expected}, got {shape}")
        return phi.shape[1]

    def _rule(self, memory: Memory) -> Rule:
        """As in `Networks`: the memory lengthens as the learning rate falls. A backbone that does not learn has a rate too,
        of an optimizer that moves nothing."""
        optimizer = self.optimizer or torch.optim.SGD([torch.zeros(1)], lr=self.base)
        ratio, forget = (v[0] if isinstance(v, tuple) else v for v in (memory.ratio, memory.forget))
        if memory.kind == "kalman":
            prior = relative(ratio) if memory.lam is None else memory.lam
            return Kalman(forget=follow_lr(optimizer, forget=forget), lam=prior)
        if memory.lam is not None:
            return Proximal(follow_lr(optimizer, memory.lam))
        return Proximal(relative(follow_lr(optimizer, ratio)))

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "state": {name: tensor.cpu().clone() for name, tensor in self.state().items()}}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["config"])
        self.restore(saved["state"])

    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
        """As in `Networks`. What the backbone draws (dropout) is a function of the seed and the step."""
        with self._own_draws((self.config["seed"] * 1_000_003 + int(self.steps)) % 2**63):
            self.steps += 1
            return self._step(x, y, weight, factor)

    def _step(self, x: Tensor, y: Tensor, weight: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
        self.backbone.train()
        rate = self.base * factor
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        phi = self.backbone(x)
        with torch.no_grad():
            before = y - self.head(phi)
        w = None if weight is None else weight[0, :, 0]
        if isinstance(self.head, ClosedFormLinear):
            self.head.solve(phi, y, w)
        squares = (self.head(phi) - y).square()
        error = (squares if w is None else squares * w[:, None]).sum()
        if self.optimizer is not None and (phi.requires_grad or not isinstance(self.head, ClosedFormLinear)):
            self.optimizer.zero_grad()
            (error / y.numel()).backward()
            if self._decay:
                with torch.no_grad():
                    for parameter in self.optimizer.param_groups[0]["params"]:
                        parameter.mul_(1 - rate * self._decay)
            self.optimizer.step()
        return error.detach()[None], before[None]

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """`(n, width)` in float64, the backbone in eval mode.

        The backbone keeps its precision, so the last digits of a feature may depend on the rows beside it."""
        self.backbone.eval()
        return self.backbone(x.to(self.dtype)).double()

    def layer(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        return self.head.weight.detach().double(), self.head.bias.detach().double()

    @torch.no_grad()
    def predictions(self, phi: Tensor) -> Tensor:
        weight, bias = self.layer(torch.ones(1))
        return (phi @ weight.T + bias)[None]

    def variance(self, phi: Tensor, shares: Tensor) -> Tensor:
        assert isinstance(self.head, ClosedFormLinear)
        return self.head.variance(phi)

    def state(self) -> dict[str, Tensor]:
        state = {f"backbone.{name}": tensor for name, tensor in self.backbone.state_dict().items()}
        state |= {f"head.{name}": tensor for name, tensor in self.head.state_dict().items()}
        if self.optimizer is not None:
            for k, parameter in enumerate(p for group in self.optimizer.param_groups for p in group["params"]):
                for name in ("step", "exp_avg", "exp_avg_sq"):
                    kept = self.optimizer.state[parameter]
                    if name not in kept:
                        kept[name] = torch.zeros(()) if name == "step" else torch.zeros_like(parameter)
                    state[f"adam.{k}.{name}"] = kept[name]
        state["steps"] = self.steps
        return {name: tensor.detach() for name, tensor in state.items()}

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.state().items() if not name.startswith(("adam.", "steps"))}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        own = self.state()
        wrong = set(own) ^ set(state) or {name for name in own if own[name].shape != state[name].shape}
        if wrong:
            raise ValueError(f"this state is of another backbone: {', '.join(sorted(wrong)[:3])} do not agree")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def forget_optimizer(self) -> None:
        if self.optimizer is not None:
            self.optimizer.state.clear()
