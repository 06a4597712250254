"""The members of a tabular estimator: small perceptrons with solved last layers, trained side by side.

Networks, optimizer and solves are those of `closedform.stack`. The members see the same rows with different weights. A row
of weight zero takes no part in a member's step, but its residual is computed with the rest, *before* the layer takes in the
batch: a held-out error that costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..solver import lambdas
from ..solver.rules import Kalman, Proximal, Rule
from ..solver.stacks import side_by_side
from ..stack.heads import Heads
from ..stack.networks import Parameters
from ..stack.optimizers import Adam
from ..stack.periodic import PeriodicPerceptron

BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Memory:
    """What the last layers remember: `Proximal` or `Kalman`, following the learning rate; or "learned", a last layer that
    the optimizer moves like the rest.

    ratio: of lambda to the mean diagonal of the batch's Gram matrix (`lambdas.relative`), where `lam` is None; one for all
        members, or for each in turn.
    """

    kind: Literal["proximal", "kalman", "learned"] = "proximal"
    lam: float | None = None
    ratio: float | tuple[float, ...] = lambdas.AUTO_RATIO
    forget: float | tuple[float, ...] = 0.99

    def rules(self, members: int) -> list[Rule]:
        """One a member."""
        ratios, forgets = (v if isinstance(v, tuple) else (v,) for v in (self.ratio, self.forget))
        lams = [lambdas.relative(ratios[k % len(ratios)]) if self.lam is None else self.lam for k in range(members)]
        if self.kind == "kalman":
            return [Kalman(forgets[k % len(forgets)], lam=lam) for k, lam in enumerate(lams)]
        return [Proximal(lam) for lam in lams]


class Networks:
    """`members` perceptrons with `outputs` outputs; the head of each is `(outputs, features + 1)`, the bias last.

    network: what one member is; see `stack.periodic`. The features are those of the last hidden layer and the inputs.
    """

    def __init__(
        self,
        network: PeriodicPerceptron,
        outputs: int,
        *,
        members: int,
        memory: Memory,
        weight_decay: Sequence[float],
        seed: int,
        learning_rate: float,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        self.config = {
            "network": network,
            "outputs": outputs,
            "members": members,
            "memory": memory,
            "weight_decay": list(weight_decay),
            "seed": seed,
            "learning_rate": learning_rate,
            "device": device,
            "dtype": dtype,
        }
        self.members, self.outputs, self.memory = members, outputs, memory
        self.network = network
        self.width, self.device, self.dtype, self.base = network.width, device, dtype, learning_rate
        generator = torch.Generator().manual_seed(seed)
        # one member after the other, so that a member does not depend on how many follow
        drawn = [network.drawn(generator) for _ in range(members)]
        self.params = Parameters([torch.stack(column).to(dtype) for column in zip(*drawn)], device)
        W = torch.zeros(members, outputs, self.width + 1, device=device, dtype=dtype)
        self._rate = torch.ones(members, dtype=torch.float64, device=device)
        self._heads: Heads | None = None
        self.optimizer = Adam(*BETAS, decay=self._decay(weight_decay))
        self._states = [self.optimizer.state(self.params.flat)]
        if memory.kind == "learned":
            scale = self.width**-0.5
            first = torch.randn(members, self.width, outputs, generator=generator, dtype=torch.float64) * scale
            W[:, :, : self.width].copy_(first.mT)
            self._states.append(self.optimizer.state(W))
        else:
            follow = [True] * members
            rule = side_by_side(
                memory.rules(members), self.width + 1, True, follow=follow, rate=self._rate, device=device
            )
            self._heads = Heads(W, rule, exact=dtype != torch.float32)
        self.head = W
        self.steps = torch.zeros((), dtype=torch.long)
        self._updates = torch.zeros((), dtype=torch.long)  # of this schedule

    def _decay(self, weight_decay: Sequence[float]) -> float | Tensor:
        """One number a parameter, where there is any decay."""
        if not any(weight_decay):
            return 0.0
        each = torch.tensor(list(weight_decay), device=self.device, dtype=self.dtype)
        views = self.params.views
        return Parameters([each.view(-1, *[1] * (v.ndim - 1)).expand_as(v) for v in views], self.device).flat

    def __getstate__(self) -> dict[str, Any]:  # views of one tensor would come back as many
        return {"config": self.config, "state": {name: tensor.cpu().clone() for name, tensor in self.state().items()}}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["config"])
        self.restore(saved["state"])

    # ---- One step --------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, factor: float) -> tuple[Tensor, Tensor]:
        """Solve the last layers on a batch, then step the rest (the paper's Algorithm 1).

        weight: `(members or 1, n, 1)`. factor: the learning rate over its base.
        Returns the weighted squared error of each member after the solve, summed over rows and outputs, and the residuals
        `(members, n, outputs)` before it.
        """
        phi, seen = self.network.forward(self.params.views, x[None])
        targets = y.T
        before = residual = self._residual(phi, targets)
        if self._heads is not None:
            self._rate.fill_(factor)
            own = None if weight is None else weight[:, :, 0].expand(self.members, -1)
            expanded = y.expand(self.members, *y.shape)
            self._heads.solve(phi.mT, expanded, own, residual=before.mT)
            residual = self._residual(phi, targets)
        weighted = residual if weight is None else residual * weight.mT
        g = weighted * (-2 / y.numel())
        W = self.head[:, :, : self.width]
        self.network.backward(self.params.views, seen, torch.bmm(W.mT, g), self.params.gradients)
        rate, t = self.base * factor, int(self._updates)
        self.optimizer.update_(self.params.flat, self.params.gradient, self._states[0], rate, t)
        if self._heads is None:
            gradient = torch.cat([torch.bmm(g, phi.mT), g.sum(2, keepdim=True)], 2)
            Adam(*BETAS).update_(self.head, gradient, self._states[1], rate, t)
        self.steps += 1
        self._updates += 1
        return (weighted * residual).sum((1, 2)), before.mT

    def _residual(self, phi: Tensor, targets: Tensor) -> Tensor:
        """What the layers leave over, `(members, outputs, n)`."""
        return torch.baddbmm(targets - self.head[:, :, self.width :], self.head[:, :, : self.width], phi, alpha=-1)

    # ---- What a fitted estimator needs -----------------------------------------------------------

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """`(n, members * width)` in float64, so that a prediction does not depend on the rows beside it."""
        phi, _ = self.network.forward([view.double() for view in self.params.views], x.double()[None])
        return phi.permute(2, 0, 1).flatten(1)

    @torch.no_grad()
    def draw_to(self, layer: Tensor, share: float) -> None:
        """Move every member's layer by this share of the way to one that sees the inputs alone, `(o, inputs + 1)`."""
        beside = layer.shape[1]
        self.head.mul_(1 - share)
        self.head[:, :, -beside:] += share * layer.to(self.head.dtype)

    def layer(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted mean of the members as one linear layer on their features: `(outputs, members * width)` and
        `(outputs,)`."""
        head = self.head.double() * shares[:, None, None].to(self.device)
        return head[:, :, : self.width].movedim(0, 1).flatten(1).contiguous(), head[:, :, self.width].sum(0)

    @torch.no_grad()
    def predictions(self, phi: Tensor) -> Tensor:
        """Of each member alone, from features: `(members, n, outputs)`."""
        return torch.bmm(self._extended(phi), self.head.double().mT)

    def _extended(self, phi: Tensor) -> Tensor:
        own = phi.unflatten(1, (self.members, self.width)).movedim(1, 0)
        return torch.nn.functional.pad(own, (0, 1), value=1.0)

    def variance(self, phi: Tensor, shares: Tensor) -> Tensor:
        """Predictive variance `(n, outputs)` of the members' mixture."""
        own, between = self.variances(phi, shares)
        return own + between

    @torch.no_grad()
    def variances(self, phi: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Its parts: the members' own, which grows with the noise, and the variance between them."""
        assert self._heads is not None
        X = self._extended(phi)
        own = self._heads.variance(X)
        means, shares = torch.bmm(X, self.head.double().mT), shares[:, None, None].to(self.device)
        between = (means - (shares * means).sum(0)).square()
        return (shares * own).sum(0), (shares * between).sum(0)

    @torch.no_grad()
    def scale_noise(self, factor: Tensor) -> None:
        """Multiply the noise of every output, under the Kalman rule."""
        assert self._heads is not None
        self._heads.memory["noise"].mul_(factor.to(self.device))

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, as tensors; `restore` takes it back."""
        state = self.weights() | {"steps": self.steps, "adam.steps": self._updates}
        if self._heads is not None:
            state |= {f"head.{name}": tensor for name, tensor in self._heads.state().items()}
        for k, moments in enumerate(self._states):
            state |= {f"adam.{k}.{name}": tensor for name, tensor in zip(("first", "second"), moments)}
        return state

    def weights(self) -> dict[str, Tensor]:
        """What a prediction needs, each with the members first."""
        weights = {f"param.{k}": view for k, view in enumerate(self.params.views)} | {"head": self.head}
        if self._heads is not None:
            weights |= {f"head.{name}": tensor for name, tensor in self._heads.memory.items()}
        return weights

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        own = self.state()
        wrong = set(own) ^ set(state) or {name for name in own if own[name].shape != state[name].shape}
        if wrong:
            raise ValueError(f"this state is of other networks: {', '.join(sorted(wrong)[:3])} do not agree")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        if self._heads is not None:
            self._heads.restored()

    def forget_optimizer(self) -> None:
        """Start a new schedule from the present weights."""
        for moments in self._states:
            for tensor in moments:
                tensor.zero_()
        self._updates.zero_()
