"""Algorithm 3 of the paper, fast: two networks and two solved layers that take turns.

Stage one fits `phi(z) W^T ~ psi(x)` on its batch, stage two fits `y ~ [psi_hat(z), 1] (x) [xi(o), 1] w` on another one with
`psi_hat(z) = phi(z) W*(theta_X)^T`, the stage-one layer solved for the features as they are. Rows are samples.

The gradient of psi's weights goes through `W*(theta_X)`. That layer is linear in psi, so the system is factored without a
graph and the gradient is one more solve with the same factor (see `closedform.solver.linalg`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..solver.batch import Batch
from ..solver.rules import Kalman, Proximal, Ridge, Rule
from ..solver.stacks import side_by_side
from ..stack import modules as stacked_modules
from ..stack.heads import Heads
from ..stack.states import optimizer_state, prefixed, restore_optimizer, take_back, under

First = tuple[Tensor, Tensor]  # x, z
Second = tuple[Tensor, Tensor, "Tensor | None"]  # z, y, o


@dataclass(frozen=True)
class Rules:
    """How the layers are solved: W at the end of an inner step of stage one (lambda_1), `W*(theta_X)` inside stage two
    (lambda_12), and w (lambda_2). Any rule of `closedform` will do, but a Kalman filter as `inner` is that of `first`, one
    step on: it reads that memory and never writes it."""

    first: Rule = field(default_factory=Proximal)
    inner: Rule = field(default_factory=lambda: Proximal(1e-4))
    second: Rule = field(default_factory=Proximal)

    def __post_init__(self) -> None:
        if isinstance(self.inner, Kalman) and self.inner != self.first:
            raise ValueError(
                f"a Kalman rule inside stage two must be that of stage one, got {self.inner} and {self.first}"
            )

    @staticmethod
    def proximal(lam_1: Any, lam_2: Any, lam_12: Any = 1e-4) -> Rules:
        """The paper's method."""
        return Rules(Proximal(lam_1), Proximal(lam_12), Proximal(lam_2))

    @staticmethod
    def ridge(beta_1: Any, beta_2: Any) -> Rules:
        """The original DFIV in minibatches: every penalty is a ridge, and beta_1 serves inside stage two as well."""
        return Rules(Ridge(beta_1), Ridge(beta_1), Ridge(beta_2))


def layer(rule: Rule, features: int, outputs: int, generator: torch.Generator | None) -> Heads:
    """A solved layer `W (o, D)` in float64, drawn as LeCun has it; the bias is a feature like the others."""
    W = torch.randn(outputs, features, generator=generator, dtype=torch.float64) / math.sqrt(features)
    return Heads(W, rule, bias=False)


def ones(features: Tensor) -> Tensor:
    """`[features, 1]` in float64."""
    return nn.functional.pad(features.double(), (0, 1), value=1.0)


def products(psi: Tensor, xi: Tensor | None, intercept: bool = True) -> Tensor:
    """Stage-two features `[psi, 1]`, or `[psi, 1] (x) [xi, 1]`, of width `(d + 1) (q + 1)`; without an intercept psi has no
    column of ones.

    >>> products(torch.tensor([[2.0, 3.0]]), torch.tensor([[5.0]]))
    tensor([[10.,  2., 15.,  3.,  5.,  1.]], dtype=torch.float64)
    """
    psi = ones(psi) if intercept else psi.double()
    return psi if xi is None else (psi[..., :, None] * ones(xi)[..., None, :]).flatten(-2)


class DFIV:
    """The networks `psi` (of treatments), `phi` (of instruments) and `xi` (of covariates, or None) and the layers between
    them; `step` is one pass of Algorithm 3's loop. Several models of one shape can stand side by side (`beside`): their
    batches, features and layers have a leading model axis.

    order: "step" is the paper's, a gradient step and then the solve; "solve" solves first and steps at the layers that it
        found, which takes psi once and not twice an iteration.
    covariate_steps: of xi alone, each with a solve of w, before the step of psi (as the published code of DFIV does); xi
        then has no part in that step.
    intercept: of stage two. Differences of features have none: a constant of the function is a difference of its own.
    """

    def __init__(
        self,
        psi: nn.Module,
        phi: nn.Module,
        xi: nn.Module | None = None,
        *,
        widths: Sequence[int],
        outputs: int = 1,
        rules: Rules | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        T1: int = 20,
        T2: int = 1,
        covariate_steps: int = 0,
        order: Literal["step", "solve"] = "step",
        intercept: bool = True,
        generator: torch.Generator | None = None,
    ):
        if T1 < 1 or T2 < 1 or covariate_steps < 0:
            raise ValueError(
                f"T1 and T2 are from 1 on and covariate_steps from 0 on, got {T1}, {T2} and {covariate_steps}"
            )
        if order not in ("step", "solve"):
            raise ValueError(f'order must be "step" or "solve", got {order!r}')
        if len(widths) != 2 + (xi is not None):
            raise ValueError(f"widths are the features of each network, {2 + (xi is not None)} numbers, got {widths}")
        self.psi, self.phi, self.xi = psi, phi, xi
        self.rules = Rules() if rules is None else rules
        self.T1, self.T2, self.covariate_steps, self.order = T1, T2, covariate_steps, order
        self.intercept = intercept
        self.skipped = 0  # gradient steps whose loss was not finite
        d, k, q = (*widths, 0)[:3]
        self.widths = d, k, q
        self.first = layer(self.rules.first, k + 1, d, generator)
        width = (d + int(intercept)) * (q + 1 if xi is not None else 1)
        self.second = layer(self.rules.second, width, outputs, generator)
        self.lr, self.weight_decay = lr, weight_decay
        self.optimizers = self._optimizers()

    def _optimizers(self) -> list[torch.optim.Optimizer | None]:
        groups = [list(self.phi.parameters()), list(self.psi.parameters())]
        if self.xi is not None and self.covariate_steps:
            groups.append(list(self.xi.parameters()))
        elif self.xi is not None:
            groups[1] += list(self.xi.parameters())
        return [adamw(parameters, self.lr, self.weight_decay) for parameters in groups]

    # ---- Side by side ------------------------------------------------------------------------------

    @staticmethod
    def beside(models: Sequence[DFIV]) -> DFIV:
        """Models of one shape as one; `take_out` copies what it has learned back into them."""
        stack = copy.copy(models[0])
        nets = [stacked_modules.side_by_side(group) for group in zip(*(model.modules() for model in models))]
        stack.psi, stack.phi, stack.xi = (*nets, None)[:3]  # pyright: ignore[reportAttributeAccessIssue]
        first, second = (torch.stack([getattr(m, name).W for m in models]) for name in ("first", "second"))
        widths = {"first": first.shape[2], "inner": first.shape[2], "second": second.shape[2]}
        stack.rules = Rules(
            **{k: side_by_side([getattr(m.rules, k) for m in models], width, False) for k, width in widths.items()}
        )
        stack.first = Heads(first, stack.rules.first, bias=False)
        stack.second = Heads(second, stack.rules.second, bias=False)
        stack.optimizers = stack._optimizers()
        return stack

    def take_out(self, models: Sequence[DFIV]) -> None:
        """Copy networks and layers into the models that this one was made of by `beside`."""
        for net, group in zip(self.modules(), zip(*(model.modules() for model in models))):
            stacked_modules.take_out(net, group)
        for k, model in enumerate(models):
            model.first.W.copy_(self.first.W[k])
            model.second.W.copy_(self.second.W[k])

    # ---- One iteration -----------------------------------------------------------------------------

    def step(self, first: Sequence[First], second: Second) -> None:
        """One outer iteration. `first` holds one batch `(x, z)` for all T1 inner steps, or T1 fresh ones, of which the last
        also serves stage two; `second` is `(z, y, o)`."""
        if len(first) not in (1, self.T1):
            raise ValueError(f"expected one stage-one batch or T1={self.T1} of them, got {len(first)}")
        self._stage_one(first)
        x1, z1 = first[-1]
        with torch.no_grad():
            phi1, phi2 = ones(self.phi(z1)), ones(self.phi(second[0]))
        if self.covariate_steps and self.xi is not None:
            self._covariates(x1, phi1, phi2, second)
        for _ in range(self.T2):
            self._stage_two(x1, phi1, phi2, second)

    def _stage_one(self, first: Sequence[First]) -> None:
        """Lines 6 to 10: theta_Z by a gradient step at the layer as it is, then the layer."""
        with torch.no_grad():
            targets = [self.psi(x).double() for x, _ in first]
        for t in range(self.T1):
            at = t % len(first)
            z, psi = first[at][1], targets[at]
            if self.order == "solve":
                phi = ones(self.phi(z))
                self.first.solve(phi.detach(), psi)
                self._descend(0, phi @ self.first.W.mT - psi)
            else:
                self._descend(0, ones(self.phi(z)) @ self.first.W.mT - psi)
                with torch.no_grad():
                    self.first.solve(ones(self.phi(z)), psi)

    def inner(self, phi1: Tensor, psi1: Tensor) -> Tensor:
        """`W*(theta_X)`: the stage-one layer solved with the rule `inner`, differentiable in psi1."""
        first, rule = self.first, self.rules.inner
        memory = first.memory if isinstance(rule, Kalman) else rule.memory(phi1.shape[-1], self.widths[0])
        return rule.update(first.W, Batch(phi1, psi1, bias=False), memory, first.step).W

    def _stage_two(self, x1: Tensor, phi1: Tensor, phi2: Tensor, second: Second) -> None:
        """Lines 11 to 15: theta_X by a gradient step through `W*(theta_X)`, then w."""
        _, y, o = second
        y = y.double()

        def features() -> Tensor:
            psi_hat = phi2 @ self.inner(phi1, self.psi(x1).double()).mT
            return products(psi_hat, None if self.xi is None else self._xi(o), self.intercept)

        if self.order == "solve":
            F = features()
            self.second.solve(F.detach(), y)
            self._descend(1, F @ self.second.W.mT - y)
        else:
            self._descend(1, features() @ self.second.W.mT - y)
            with torch.no_grad():
                self.second.solve(features(), y)

    def _xi(self, o: Tensor | None) -> Tensor:
        assert self.xi is not None
        _check_given(o)
        if self.covariate_steps:
            with torch.no_grad():
                return self.xi(o)
        return self.xi(o)

    def _covariates(self, x1: Tensor, phi1: Tensor, phi2: Tensor, second: Second) -> None:
        _, y, o = second
        assert self.xi is not None
        _check_given(o)
        y = y.double()
        with torch.no_grad():
            psi_hat = phi2 @ self.inner(phi1, self.psi(x1).double()).mT
        for _ in range(self.covariate_steps):
            F = products(psi_hat, self.xi(o), self.intercept)
            self.second.solve(F.detach(), y)
            self._descend(2, F @ self.second.W.mT - y)

    def _descend(self, which: int, residual: Tensor) -> None:
        optimizer = self.optimizers[which]
        if optimizer is not None and not descend(optimizer, residual.square().sum((-2, -1))):
            self.skipped += 1

    # ---- What it knows -----------------------------------------------------------------------------

    @torch.no_grad()
    def features(self, x: Tensor, o: Tensor | None = None) -> Tensor:
        """Stage-two features at a treatment."""
        return products(self.psi(x), None if self.xi is None else self._xi(o), self.intercept)

    def predict(self, x: Tensor, o: Tensor | None = None) -> Tensor:
        """The structural function by the layer as it is: the paper's *online* evaluation."""
        return self.features(x, o) @ self.second.W.T

    def modules(self) -> Iterable[nn.Module]:
        return (net for net in (self.psi, self.phi, self.xi) if net is not None)

    def set_lr(self, lr: float) -> None:
        for optimizer in self._trained():
            optimizer.param_groups[0]["lr"] = lr

    def _trained(self) -> list[torch.optim.Optimizer]:
        return [optimizer for optimizer in self.optimizers if optimizer is not None]

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, as tensors."""
        state = {}
        for k, net in enumerate(self.modules()):
            state |= prefixed(f"network{k}", net.state_dict())
        for k, optimizer in enumerate(self._trained()):
            state |= prefixed(f"optimizer{k}", optimizer_state(optimizer))
        return state | self._layers()

    def restore(self, state: dict[str, Tensor]) -> None:
        take_back(self._layers(), {name: state[name] for name in self._layers()})
        for k, net in enumerate(self.modules()):
            net.load_state_dict(under(state, f"network{k}"))
        for k, optimizer in enumerate(self._trained()):
            restore_optimizer(optimizer, under(state, f"optimizer{k}"))
        self.first.restored()
        self.second.restored()

    def _layers(self) -> dict[str, Tensor]:
        layers = {"first": self.first, "second": self.second}
        return {f"{k}.{name}": x for k, heads in layers.items() for name, x in {"W": heads.W, **heads.state()}.items()}


def _check_given(o: Tensor | None) -> None:
    if o is None:
        raise ValueError("there are no covariates o, and the model has a network xi of them: expected o as well")


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> bool:
    """A gradient step of the optimizer's parameters, or False where the loss is not finite: a solve that failed must not
    reach the weights. Of several models with a loss each, `(M,)`, those whose loss is finite step."""
    parameters = optimizer.param_groups[0]["params"]
    sound = torch.isfinite(loss)
    whole = bool(sound.all())
    if not whole and not bool(sound.any()):
        return False
    total = loss.sum() if whole else loss[sound].sum()
    for parameter, gradient in zip(parameters, torch.autograd.grad(total, parameters)):
        parameter.grad = gradient
    if whole:
        optimizer.step()
        return True
    kept = [parameter.detach()[~sound] for parameter in parameters]
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad[~sound] = 0.0  # through a failed solve not even the gradient of another loss need be zero
    optimizer.step()
    with torch.no_grad():
        for parameter, before in zip(parameters, kept):
            parameter[~sound] = before
    return False


def adamw(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer | None:
    """None for a network without weights, such as `nn.Identity`."""
    if not parameters:
        return None
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)
