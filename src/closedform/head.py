"""The last layer itself: an `nn.Linear` whose weights are solved.

    head = ClosedFormLinear(512, 12, rule=Proximal(lam=1e3))
    phi = backbone(x)
    head.solve(phi, y)
    loss = F.mse_loss(head(phi), y)

`solve` never builds a graph and never waits for a device. It takes the new layer and the rule's new memory only where the
solve succeeded and everything is finite; otherwise the head stays as it was and `rejected` counts one more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import callers, distributed
from .solver import guard, route
from .solver.auto import Auto, MemoryChoice
from .solver.batch import Batch, check_batch, extend
from .solver.losses import Loss, Squared
from .solver.rules import Kalman, Rule, Source
from .solver.statistics import Statistics
from .state import CastLinear, StoredLinear, watched

# what to try where solves are rejected or features are no longer finite
_REMEDIES = "try a lower learning rate for the backbone, targets scaled to a variance of 1, or a larger lambda"


class ClosedFormLinear(StoredLinear):
    """A linear layer whose weights are solved in closed form on each batch instead of learned by gradient steps.

    Weight and bias are parameters without gradient, updated in place by `solve` (or by the forward after `observe`), so
    optimizers, weight decay and clipping leave them alone. The state_dict holds the rule's memory as well; it loads into
    an `nn.Linear` with `strict=False`, and an `nn.Linear`'s loads into this (the memory is then fresh).

    rule: what is remembered of earlier batches: `Auto` (the default: several memories, of which the best predictor is the
        layer), `Ridge`, `Proximal`, `Ema`, `Kalman`. Their lambda and beta are in sum units: not divided by the batch size.
    loss: what is minimised: `Squared` (the default), `OneHotSquared`, `GeneralizedSquared`, `CrossEntropy`, `Logistic`,
        `Huber`, or one of your own (see `closedform.losses`). The losses of classes take integer labels. lambda and beta
        stand beside the loss as it is written there, summed over the batch.
    init: "zeros", "lecun", "xavier" or "he" (normal, as in the paper; the bias is always zero).
    process_group: None uses the default group where one is initialised, False solves on each process alone.
    """

    _loss: Loss
    path: Any = None  # what `closedform.probe` has chosen from, where it made the head

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rule: Rule | None = None,
        loss: Loss | None = None,
        init: str = "zeros",
        process_group: distributed.ProcessGroup = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"a head needs features and outputs, got in_features={in_features}, out_features={out_features}"
            )
        if not isinstance(bias, bool):
            raise ValueError(f"bias must be True or False, got {bias!r}; the rule is a keyword: rule=...")
        self.loss = Squared() if loss is None else loss
        super().__init__(in_features, out_features, bias, Auto() if rule is None else rule, init, device, dtype)
        self._group = distributed.Shared(process_group)
        self._observed: tuple[Tensor, Tensor | None] | None = None
        self._waiting: list[Batch] = []
        self._collapsed: Statistics | None = None
        self._failed: str | None = None
        self._warned_of_rejection = False

    @property
    def loss(self) -> Loss:
        """What the solve fits. Under another loss a rule may have other memories, which then start afresh."""
        return self._loss

    @loss.setter
    def loss(self, loss: Loss) -> None:
        if not isinstance(loss, Loss):
            raise ValueError(f"loss must be a closedform loss such as Squared(), got {loss!r}")
        loss.check()
        before = self.__dict__.get("_loss", loss)
        if loss != before and (self._waiting or self._collapsed is not None):
            raise ValueError("the loss cannot change while accumulated batches wait; call commit() or discard() first")
        self.__dict__["_loss"] = loss  # nn.Module's constructor may not have run
        try:
            if "_rule" in self.__dict__ and self._acting_as(self._rule) != self.acting:
                self.rule = self._rule
        except BaseException:
            self.__dict__["_loss"] = before
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss":  # torch's losses are modules, which nn.Module would keep without a word
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __setstate__(self, state: dict) -> None:
        state = dict(state)
        if "loss" in state:  # of an earlier version
            state["_loss"] = state.pop("loss")
        super().__setstate__(state)

    def _acting_as(self, rule: Rule) -> Rule:
        return rule.under(self.loss)

    @property
    def process_group(self) -> distributed.ProcessGroup:
        return self._group.value

    def reset_parameters(self) -> None:
        """Draw the weights anew, as `init` says, and forget everything."""
        super().reset_parameters()
        if "_waiting" in self.__dict__:  # nn.Linear's constructor draws the weights first of all
            self.discard()
            self._observed = None

    # ---- Solving ---------------------------------------------------------------------------------

    @property
    def rejected(self) -> Tensor:
        """How many solves were rejected because they failed or were not finite."""
        return self.attempts - self.step

    @torch.no_grad()
    def solve(self, phi: Tensor, y: Tensor, sample_weight: Tensor | None = None) -> None:
        """Solve the layer on a batch: features `phi (..., in_features)`, targets `y (..., out_features)` or, where the loss
        is one of classes, integer labels `y (...)`.

        Leading dimensions are flattened, so a layer shared over a grid solves on all its points. With several processes
        the batches of all ranks are solved as one.
        """
        self._targets_seen = True
        batch = self._batch(phi, y, sample_weight)
        if torch.is_autocast_enabled(phi.device.type):
            with torch.autocast(phi.device.type, enabled=False):
                self._take(batch)
        else:
            self._take(batch)

    def observe(self, y: Tensor | None, sample_weight: Tensor | None = None) -> None:
        """Note the targets of the coming batch: the next forward in training mode solves before it predicts.

        A forward in eval mode leaves them waiting, another `observe` replaces them, `observe(None)` drops them.
        """
        self.check_own()
        self._targets_seen = True
        self._observed = None if y is None else (y, sample_weight)

    @torch.no_grad()
    def accumulate(self, phi: Tensor, y: Tensor, sample_weight: Tensor | None = None) -> None:
        """Take in a micro-batch; `commit` solves on all of them as on one large batch, `discard` drops them.

        Rows are kept until there are more of them than features, and are moments from then on; where the loss is not a
        squared one moments do not say enough, and all rows are kept."""
        self._targets_seen = True
        try:
            phi, y, sample_weight = self._check(phi, y, sample_weight)
        except ValueError as bad:
            if not distributed.active(self.process_group):
                raise
            self._failed = str(bad)  # the other ranks will wait in commit, so it is raised there, on all
            return
        weight = None if sample_weight is None else sample_weight.clone()
        self._waiting.append(Batch(phi.clone(), y.clone(), weight, self.bias is not None, self.loss))
        if self._collapsed is not None or (
            self.loss.moments and not route.by_rows(self._rows_waiting(), self.features)
        ):
            self._collapse()

    def discard(self) -> None:
        """Drop what was accumulated."""
        self._waiting, self._collapsed, self._failed = [], None, None

    @torch.no_grad()
    def commit(self) -> None:
        """Solve on everything accumulated since the last commit."""
        error = self._failed
        if error is None and not self._waiting and self._collapsed is None:
            error = "commit was called, but nothing was accumulated"
        sizes = None
        weighted = any(batch.weight is not None for batch in self._waiting)
        if distributed.active(self.process_group):
            rows = self._rows_waiting() if self._collapsed is None else self.features + 1
            try:
                sizes, weighted = distributed.agree(rows, error, self.process_group, self.weight.device, weighted)
            except ValueError:
                self.discard()  # on every rank alike
                raise
            if self.loss.moments and not route.by_rows(sum(sizes), self.features):
                self._collapse()
        elif error is not None:
            raise ValueError(error)
        source: Source
        if self._collapsed is not None:
            source = self._collapsed.all_reduce(self.process_group)
        else:
            source = self._joined(sizes, weighted)
        try:
            self._take(source)
        except ValueError:
            if sizes is not None:
                self.discard()  # what the ranks have exchanged cannot be exchanged again
            raise
        self.discard()

    def _rows_waiting(self) -> int:
        return sum(batch.phi.shape[0] for batch in self._waiting)

    def _collapse(self) -> None:
        """Turn the waiting rows into moments."""
        if self._collapsed is None:
            device = self.weight.device
            self._collapsed = Statistics(self.in_features, self.out_features, self.bias is not None, device=device)
        for batch in self._waiting:
            self._collapsed.add(batch.phi, batch.y, batch.weight)
        self._waiting = []

    def _joined(self, sizes: list[int] | None, weighted: bool) -> Batch:
        batches = self._waiting
        weight = torch.cat([_ones(b.phi) if b.weight is None else b.weight for b in batches]) if weighted else None
        phi, y = torch.cat([b.phi for b in batches]), torch.cat([b.y for b in batches])
        group = False if sizes is None else self.process_group
        return Batch(phi, y, weight, self.bias is not None, self.loss, group, sizes)

    def _arranged(self, phi: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Features and targets with the channels last; here they are that already."""
        return phi, y

    def _check(self, phi: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        self.check_own()
        if self.weight.requires_grad:
            raise ValueError(
                "the head's weight requires a gradient, so an optimizer would move the solved layer: "
                "call head.requires_grad_(False) after model.requires_grad_(True)"
            )
        if isinstance(phi, Tensor) and phi.device != self.weight.device:
            raise ValueError(f"phi is on {phi.device}, but the head is on {self.weight.device}")
        if isinstance(phi, Tensor) and isinstance(y, Tensor):
            phi, y = self._arranged(phi, y)
            y = self.loss.targets(y, (*phi.shape[:-1], self.out_features))
        try:
            phi, y, weight = check_batch(phi, y, weight, self.in_features, self.out_features)
        except ValueError as bad:
            if not str(bad).startswith("phi has NaN") or not route.may_branch(self.attempts) or int(self.attempts) == 0:
                raise
            raise ValueError(f"{bad}. The run has diverged ({self._solves()} so far): {_REMEDIES}") from None
        return phi.detach(), y, weight

    def _batch(self, phi: Tensor, y: Tensor, weight: Tensor | None) -> Batch:
        """The checked batch; with several processes it knows of the others' rows, and bad input raises on every rank."""
        together = distributed.active(self.process_group)
        error = None
        try:
            if self._waiting or self._collapsed is not None:
                raise ValueError("solve was called with accumulated batches waiting; call commit() or discard() first")
            phi, y, weight = self._check(phi, y, weight)
        except ValueError as bad:
            if not together:
                raise
            error = str(bad)
        bias = self.bias is not None
        if not together:
            return Batch(phi, y, weight, bias, self.loss)
        rows, weighted = 0 if error else phi.shape[0], weight is not None
        sizes, weighted = distributed.agree(rows, error, self.process_group, self.weight.device, weighted)
        if weighted and weight is None:
            weight = _ones(phi)
        return Batch(phi, y, weight, bias, self.loss, self.process_group, sizes)

    def _take(self, source: Source) -> None:
        """Apply the rule's update where it succeeded and is finite, without a look at the values from the host."""
        layer = guard.Layer(self.weight, self.bias, self.step, self.attempts)
        look = not self._warned_of_rejection and route.may_branch(layer.step)
        before = int(layer.step) if look else 0
        guard.solve_(layer, self.acting, source, self._memory(), self._storage, self._write_)
        if look and int(layer.step) == before:
            self._warned_of_rejection = True
            callers.warn(
                f"{self._solves()}: the system could not be factored or its solution is not finite, and the layer stayed "
                f"as it was. {_REMEDIES[0].upper()}{_REMEDIES[1:]}. (This is said once; head.rejected counts on.)"
            )

    def _solves(self) -> str:
        return f"{int(self.rejected)} of {int(self.attempts)} solves of this head were rejected"

    # ---- Predicting ------------------------------------------------------------------------------

    def _solve_observed(self, phi: Tensor) -> None:
        if self._observed is not None and self.training and not _in_backward():
            self.solve(phi, *self._observed)
            self._observed = None
        if not torch.compiler.is_compiling() and not self._targets_seen:
            self._warn_of_silence(phi)

    def _warn_of_silence(self, phi: Tensor) -> None:
        """A layer that nobody solves stays as it was made, and the backbone trains against that without a word."""
        if self.training and phi.requires_grad and torch.is_grad_enabled():
            self._targets_seen = True  # said once
            callers.warn(
                f"this {type(self).__name__} is in training, but nobody has solved it or given it targets, so it never "
                "changes: call head.solve(phi, y) before head(phi), or head.observe(y) before the model's forward"
            )

    def forward(self, phi: Tensor) -> Tensor:
        self._solve_observed(phi)
        device = phi.device.type
        dtype = phi.dtype
        if dtype != torch.float64 and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        if dtype == self.weight.dtype:
            return watched(F.linear(phi, self.weight, self.bias), self.weight)
        return watched(CastLinear.apply(phi, self.weight, self.bias, dtype), self.weight)

    @torch.no_grad()
    def variance(self, phi: Tensor) -> Tensor:
        """Predictive variance of every output, `sigma^2 (1 + phi^T P phi)`, for the rules `Auto` and `Kalman`.

        `sigma^2` is estimated for each output from the innovations: how far each batch lay from its prediction before it
        was absorbed.
        """
        self._check_posterior("variance")
        assert isinstance(self.acting, (Auto, Kalman))
        if phi.shape[-1] != self.in_features:
            raise ValueError(f"phi must have {self.in_features} features in its last dimension, got {tuple(phi.shape)}")
        with torch.autocast(phi.device.type, enabled=False):
            X = extend(phi.reshape(-1, self.in_features), self.bias is not None)[:, : self.features]
            variance = self.acting.variance(X, self._memory())
        return variance.reshape(*phi.shape[:-1], self.out_features).to(phi.dtype)

    @property
    def memory_(self) -> MemoryChoice:
        """Which memories the rule `Auto` has chosen, now and in the last steps: how long the layer remembers. A look at it
        waits for the device."""
        if not isinstance(self.acting, Auto):
            raise ValueError(f"memory_ is what the rule Auto has chosen; this head has {self.rule}")
        return self.acting.choice(self.features, self._memory(), self.step)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n layers from the posterior of the rule `Auto` or `Kalman`, `(n, out_features, features)` in the solver's
        precision, with the bias, if there is one, in the last column: for Thompson sampling, or an ensemble of predictions.

        Every output has the covariance `sigma^2 P`; one factor of the shared matrix serves all draws and outputs. `Auto`
        draws one of its memories for each layer, by their weights: the draws spread as `variance` says."""
        self._check_posterior("sample")
        if n < 1:
            raise ValueError(f"sample draws one layer or more, got n={n}")
        assert isinstance(self.acting, (Auto, Kalman))
        W = self._storage().to(route.precision(self.weight.device))
        return self.acting.draws(W, n, self._memory(), self.step, generator)

    def _check_posterior(self, what: str) -> None:
        if not isinstance(self.rule, (Auto, Kalman)):
            raise ValueError(
                f"{what} needs the rule Auto or Kalman, which keep a covariance; this head has {self.rule}, which keeps none"
            )
        if not isinstance(self.loss, Squared):
            raise ValueError(f"{what} needs the squared loss, whose posterior is known; this head has {self.loss}")
        if isinstance(self.acting, Auto) and not self.acting.filtered(self.features):
            raise ValueError(
                f"{what} needs a covariance, which Auto keeps up to {route.most_filtered(len(self.acting.forget))} features "
                f"(the bias is one); this head has {self.features}: take rule=Kalman()"
            )
        if route.may_branch(self.step) and int(self.step) == 0:
            raise ValueError(f"{what} needs at least one solve: before it, nothing is known of the layer or the noise")

    def grow(self, outputs: int) -> ClosedFormLinear:
        """Append so many outputs (new classes, say), in place: their weights are zero, and what the rule remembers is kept.

        Under the squared loss a new class is then as if it had been there from the start with targets of zero. An optimizer
        or a compiled model made before has the old parameters."""
        if self._waiting or self._collapsed is not None or self._observed is not None:
            raise ValueError("grow was called with targets waiting; call commit(), discard() or observe(None) first")
        before = self.out_features
        self.append_outputs(outputs)
        if isinstance(self.rule, Auto) and isinstance(self.loss, Squared):
            # its errors are means over the outputs, and the new ones had none
            self._memory()["errors"].mul_(before / self.out_features)
        return self

    @torch.no_grad()
    def to_linear(self) -> nn.Linear:
        """A plain `nn.Linear` with a copy of the weights."""
        weight = self.weight
        linear = nn.Linear(
            self.in_features, self.out_features, self.bias is not None, device=weight.device, dtype=weight.dtype
        )
        linear.weight.copy_(weight)
        if self.bias is not None:
            linear.bias.copy_(self.bias)
        return linear.train(self.training)

    def extra_repr(self) -> str:
        loss = "" if self.loss == Squared() else f", loss={self.loss}"
        return f"{super().extra_repr()}, rule={self.rule}{loss}"


def _ones(phi: Tensor) -> Tensor:
    return torch.ones(phi.shape[0], dtype=route.precision(phi.device), device=phi.device)


def _in_backward() -> bool:
    """Whether autograd is running: a forward there is activation checkpointing's second, and must not solve again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
