"""The default rule: several memories side by side; those that predict best are the layer.

What the right memory is depends on how fast the features move, how noisy the targets are and how many rows a batch has for
its features: from none to ten thousand batches. Nobody should tune it. So several filters with different forgetting run on
the same batches, and before each one absorbs a batch, it predicts it: an honest error, for it has not seen it. With a
discounted sum of these errors, s_k, filter k has the weight

    w_k ~ (h_k s_k)^-64        h_k = 1 + handicap sqrt(1 - gamma_k) min(1, 2 D / n)^2

in the layer: in effect the best one, and a mean of those that are within a few per cent of it. h is a handicap of short
memories where targets are numbers (the squared loss, Huber's), and a batch of n rows has few for its D features. When rows
come again in the next epoch, the network has learned them, noise and all, and the error of a short memory flatters it. So a
memory of ten batches must be better by a third than a very long one, and one of a hundred by a tenth. Where a batch has many
rows a feature, as one of fields has, little is left of it; for a stream whose rows never come again it should be 0.

The memories are Kalman filters with forgetting gamma_k, one `D x D` matrix each: seven where targets are numbers, a few of
them also held by a share of the features' own scale, `hold_k (1 - gamma_k)` a step, which makes a short memory a cautious
one.

Where targets are yes and no (cross-entropy, `Logistic`) two do as well: a short one, see `BOUNDED_BATCHES`, and one of a
hundred batches and a hundred rows a feature. Each alone is worse: with the short one alone the backbone diverges at large
rates, and steadied by none that is long it does so in small batches. Rows that come again make a short memory and a large
layer look too good here as well, but the remedies are others, at full strength from a handicap of 1 on. The short memory
grows with the steps so far, of which it is a fortieth, until it is as long as the other: features move ever more slowly,
and by then nothing has to be steadied any more. And before every batch but the first the layers, without the bias, are
drawn to zero by a hundredth of the share that a batch has in the memory,

    W_k <- (1 - DECAY (1 - gamma_k)) W_k                    gamma_k as of the last batch

Where steps are those of the loss's bound, that adds `c DECAY / 2` times the mean squared length of the outputs to the mean
loss, c being its curvature: a quarter of a hundredth for cross-entropy. So labels that a layer separates do not let it grow
without end, and it is never quite sure: between two classes features alone raise no probability beyond 0.99. The bias is
left alone, so that rare classes stay as rare as they are.

Between few classes (up to eight, and under `Logistic`) the weights are also drawn to zero, by about what the evidence says,
see `solver.evidence`: a layer that follows its features at once else learns the noise of its labels by heart. Among more
classes, where steps are longer than those of the bound, it has not been tried at full size. Filters that keep their
covariance cannot have it, since it is added to all features at once.

Among many classes memories go further than the bound of cross-entropy says, see `solver.lines`. With more features than the
matrices have room for (1,024, or 4,096 for two) the memories are proximal steps with lambdas of different size, relative to
the features, which share one Gram product, know no handicap, do not grow and do not decay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from . import class_systems, evidence, filters, guard, lambdas, linalg, route
from .linalg import Solved
from .rules import Filters, Memory, Rule, Source, Step, majorise
from .systems import ClassRows, System

if TYPE_CHECKING:
    from .losses import Loss

SHARPNESS = 64.0
# of the memories where targets are numbers, and where they are yes and no
FORGET, HOLD = (0.5, 0.9, 0.99, 0.999, 0.9999, 0.9, 0.99), (0.0, 0.0, 0.0, 0.0, 0.0, 10.0, 10.0)
FORGET_CLASSES, HOLD_CLASSES = (0.5, 0.99), (0.0, 0.0)
_ALWAYS = {"layers", "layer", "errors", "weights", "shares", "history"}  # what a memory of any version has
# Where targets are yes and no, the shortest memory, unless it is held. At first it is 20 batches, or as many as have 10 rows
# a feature, but no more than 100; where a batch has many rows a feature it begins with those that have 100 of them, and
# grows to the 20 batches with the steps so far, of which it is a tenth. From there on it is at least a fortieth of the steps
# so far, up to 100 batches or those that have 100 rows a feature. Memories of 100 batches or more have at least as many.
BOUNDED_BATCHES = 20, 100
BOUNDED_ROWS = 10, 100
BOUNDED_STEPS = 10, 40
DECAY = 0.01
ROUNDING = 1e-9
SCARCE = 2.0  # rows a feature in a batch, below which short memories have their whole handicap
KEPT = 256  # steps of which the weights are remembered


class MemoryChoice(NamedTuple):
    """What `Auto` has chosen, see `ClosedFormLinear.memory_`. Every tensor has one value a memory."""

    forget: Tensor  # the forgetting factor at the last step; for proximal memories 1 - 1 / (1 + ratio), about theirs
    weight: Tensor  # in the present layer
    share: Tensor  # its mean weight over all steps
    error: Tensor  # discounted mean error of its predictions
    history: Tensor  # weights of the last steps (at most 256), the latest last

    @property
    def length(self) -> float:
        """Over how many batches the layer remembers: 1 / (1 - forget), a geometric mean by weight."""
        return float(torch.exp((self.weight * -torch.log1p(-self.forget)).sum()))


@dataclass(frozen=True)
class Auto(Rule):
    """Several memories, chosen online by how well they predict each batch before they see it. Nothing needs tuning.

    forget, hold: of the memories, see `closedform.solver.auto`. Left as they are, they become two memories under
        cross-entropy and `Logistic`, which need no more. There those that are not held are at least as long as the shortest
        that is allowed.
    ratios: of lambda to the mean diagonal of the Gram matrix, for layers with more features than filters have room for.
    discount: of a batch's error a step: about 1 / (1 - discount) batches decide.
    handicap: how strongly the rule allows for rows that come again, which make short memories look too good, see
        `closedform.solver.auto`. Where targets are numbers, short memories have a handicap; where they are yes and no,
        memories grow, and layers decay and are drawn to zero. 0 for a stream whose rows never come again.
    """

    forget: tuple[float, ...] = FORGET
    hold: tuple[float, ...] = HOLD
    ratios: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4)
    discount: float = 0.99
    handicap: float = 1.0

    def __post_init__(self) -> None:
        if not len(self.forget) == len(self.hold) > 0:
            raise ValueError(
                f"forget and hold need one value for each memory, got {len(self.forget)} and {len(self.hold)}"
            )
        if not self.ratios:
            raise ValueError("ratios need at least one value, got none")
        for gamma in self.forget:
            lambdas.check_forget(gamma)
        if any(not 0 <= value < float("inf") for value in self.hold):
            raise ValueError(f"hold must be zero or positive and finite, got {self.hold}")
        for ratio in self.ratios:
            lambdas.check(ratio, "a ratio")
        if not 0 <= self.discount < 1:
            raise ValueError(f"discount must be in [0, 1), got {self.discount}")
        if not 0 <= self.handicap < float("inf"):
            raise ValueError(f"handicap must be zero or positive and finite, got {self.handicap}")

    def under(self, loss: Loss) -> Auto:
        if loss.numbers or (self.forget, self.hold) != (FORGET, HOLD):
            return self
        return replace(self, forget=FORGET_CLASSES, hold=HOLD_CLASSES)

    def owns(self, stored: set[str], names: set[str]) -> bool:
        return _ALWAYS <= stored  # the others depend on the version, and on how many memories and features there are

    def filtered(self, features: int) -> bool:
        """Whether the memories are filters, with a matrix each."""
        return features <= route.most_filtered(len(self.forget))

    def _form(self, features: int) -> route.Form:
        """What the filters keep. What holds a memory can be added to the inverse alone."""
        return "information" if any(self.hold) else route.filter_form(features)

    def memory(
        self, features: int, outputs: int, device: torch.device | None = None, models: int | None = None
    ) -> Memory:
        if models is not None:
            raise ValueError("a stack of models takes Ridge, Proximal, Ema and Kalman, got Auto")
        kind = {"device": device, "dtype": route.precision(torch.device(device or "cpu"))}
        K = len(self.forget) if self.filtered(features) else len(self.ratios)
        memory = {
            "layers": torch.zeros(K, outputs, features, **kind),
            "layer": torch.zeros(outputs, features, **kind),
            "errors": torch.zeros(K, **kind),
            "weights": torch.full((K,), 1 / K, **kind),
            "shares": torch.zeros(K, **kind),
            "history": torch.zeros(KEPT, K, **kind),
        }
        if self.filtered(features):
            memory |= {
                self._form(features): torch.zeros(K, features, features, **kind),
                "prior": torch.zeros(features, **kind),
                "noise": torch.zeros(K, outputs, **kind),
                "forget": torch.tensor(self.forget, **kind),
            }
        return memory

    def filters(self, features: int, step: Tensor) -> Filters | None:
        if not self.filtered(features):
            return None
        return Filters(
            self._form(features),
            self.forget,
            self.hold,
            weighed=True,
            shortest=self.forget,
            discount=self.discount,
            handicap=self.handicap,
        )

    def update(self, W: Tensor, batch: Source, memory: Memory, step: Tensor) -> Step:
        layers = self._layers(W, memory, step)
        filtered, form = self.filtered(W.shape[-1]), self._form(W.shape[-1])
        drawn = batch.guess > 0 and filtered and form == "information"
        if not batch.numbers and filtered:
            self._decay_(layers, batch.bias, memory, step)
        stated = system = batch.systems(W, layers)
        filtered = filtered and not isinstance(system, ClassRows)
        if filtered and form == "information":
            system = system.moments()
        error = batch.errors(layers, system if batch.squared else stated)
        new: Memory = {}
        handicap: float | Tensor = 1.0
        if isinstance(system, ClassRows):
            solve = self._by_class
        elif filtered:
            gamma, hold = self._forgetting(None if batch.numbers else batch.counted, step, W)
            if batch.numbers:
                shortness = constant(tuple(math.sqrt(1 - one) for one in self.forget), W)
                handicap = 1 + self.handicap * _scarcity(system.n, W.shape[-1]) ** 2 * shortness
            units = lambdas.units(system)
            first = memory["prior"] <= 0  # nothing has been taken in yet
            prior = torch.where(first, lambdas.AUTO_RATIO * units, memory["prior"])
            held = (hold * (1 - gamma)).unsqueeze(-1) * units if any(self.hold) else None
            if drawn:
                share = evidence.share(memory["errors"], self.discount, step, batch.guess)
                wanted = batch.freedom * share.square() * (system.n / batch.counted)  # rows may have weights
                weak = (1 - gamma) * strength(self.handicap) * (step > 0)
                zero = weak.unsqueeze(-1) * evidence.precision(layers, batch.bias, wanted, units)
                system = evidence.measured(system.moments(), layers, zero)
                held = zero if held is None else held + zero
            matrix, solve = filters.absorb(
                form,
                memory[form],
                system,
                prior.expand(len(gamma), -1),
                gamma,
                0.0,
                step,
                first,
                held,
            )
            new |= {form: matrix, "prior": prior, "forget": gamma}
        else:
            solve = linalg.path(system, lambdas.units(system), constant(self.ratios, W))
        solution = solve(system)
        if filtered:
            new["noise"] = filters.noise(memory["noise"], system, solution.update, gamma, step)
        if batch.inner_steps > 1:
            solution = majorise(batch, layers, stated, solve, solution, batch.inner_steps - 1)
        elif filtered and batch.stretches:
            t = batch.length(layers, solution.update, stated, system.C)
            solution = Solved(t[:, None, None] * solution.update, solution.ok)
        moved = layers + solution.update
        total = moved.sum((-2, -1))
        sound = solution.ok & (total - total == 0)
        # a memory that fails keeps its layer as it stood before the batch, and is out until its error is finite again
        moved = torch.where(sound[:, None, None], moved, layers)
        errors = torch.where(step == 0, torch.zeros_like(error), self.discount * memory["errors"] + error)
        weights = self._weights(handicap * errors, sound)
        mixed = torch.einsum("k,kod->od", weights, moved)
        new |= {
            "layers": moved,
            "layer": mixed,
            "errors": errors,
            "weights": weights,
            "shares": memory["shares"] + weights,
            "history": memory["history"].index_copy(0, (step % KEPT).reshape(1), weights[None]),
        }
        for name in (form, "noise") if filtered else ():
            new[name] = guard.chosen(sound, new[name], memory[name])
        return Step(mixed, new, sound.any() & (error - error == 0).any())

    def _forgetting(self, rows: int | Tensor | None, step: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """gamma and hold of every filter. Where targets are yes and no (in a batch of so many `rows` that count),
        memories of few rows that nothing holds are of no use: rows that come again in the next epoch flatter them. Nor,
        once the training is under way, those of few batches: they follow the moving features so closely that they predict
        the next batch well, and the backbone learns less from them. So a memory grows with the steps. The long memories
        steady the others, which those of few rows do not."""
        gamma, hold = constant(self.forget, like), constant(self.hold, like)
        if rows is None:
            return gamma, hold
        a_row = like.shape[-1] / (rows if isinstance(rows, Tensor) else like.new_full((), rows))
        (usual, most), (few, many) = BOUNDED_BATCHES, (count * a_row for count in BOUNDED_ROWS)
        early, late = (step.to(like.dtype) / steps for steps in BOUNDED_STEPS)
        late = late * strength(self.handicap)
        shortest = torch.where(many < usual, torch.maximum(early, many).clamp(max=usual), few.clamp(usual, most))
        shortest = torch.maximum(shortest, torch.minimum(late, many.clamp(min=most)))
        long = (1 - gamma) * most < 1 + ROUNDING
        longer = torch.maximum(gamma, 1 - 1 / torch.where(long, torch.maximum(shortest, many), shortest))
        return torch.where(hold > 0, gamma, longer), hold

    def _decay_(self, layers: Tensor, bias: bool, memory: Memory, step: Tensor) -> None:
        """Draw the layers to zero, but for the bias, by as much as their last batch counted. At first there was none."""
        share = DECAY * strength(self.handicap) * (1 - memory["forget"]) * (step > 0)
        layers[..., : layers.shape[-1] - int(bias)].mul_((1 - share)[:, None, None])

    def _by_class(self, system: System) -> Solved:
        """`GeneralizedSquared` has a system a class, which no matrix of a filter can hold: proximal steps, one by one.
        As many ratios as there are memories, evenly from all."""
        assert isinstance(system, ClassRows)
        units, K = lambdas.units(system), len(system.E)
        ratios = [self.ratios[(2 * k + 1) * len(self.ratios) // (2 * K)] for k in range(K)]
        parts = [class_systems.ridge(replace(system, E=E), ratio * units) for E, ratio in zip(system.E, ratios)]
        return Solved(torch.stack([part.update for part in parts]), torch.stack([part.ok for part in parts]))

    def _layers(self, W: Tensor, memory: Memory, step: Tensor) -> Tensor:
        """The layer of every memory. One that was changed from outside (set, averaged, loaded) moves them all with it."""
        change = W - memory["layer"]
        rounding = 1e-6 * memory["layer"].abs().amax()  # float32's, which a stored layer has
        moved = change.abs().amax() > rounding
        return memory["layers"] + torch.where(moved | (step == 0), change, torch.zeros_like(change))

    def _weights(self, errors: Tensor, sound: Tensor) -> Tensor:
        known = torch.where(sound & (errors - errors == 0), errors, torch.inf)
        least = known.amin().clamp(min=torch.finfo(errors.dtype).tiny)
        weights = torch.where(sound, (known.clamp(min=least) / least) ** -SHARPNESS, torch.zeros_like(known))
        return weights / weights.sum()

    def choice(self, features: int, memory: Memory, step: Tensor) -> MemoryChoice:
        """What has been chosen so far."""
        device, dtype = memory["weights"].device, memory["weights"].dtype
        if self.filtered(features):
            forget = memory["forget"]
        else:
            ratios = torch.tensor(self.ratios, device=device, dtype=dtype)
            forget = ratios / (1 + ratios)
        t = int(step)
        order = torch.arange(max(0, t - KEPT), t, device=device) % KEPT
        span = (1 - self.discount ** max(t - 1, 0)) / (1 - self.discount) if t > 1 else 1.0
        share = memory["shares"] / max(t, 1)
        return MemoryChoice(forget, memory["weights"], share, memory["errors"] / span, memory["history"][order])

    def variance(self, X: Tensor, memory: Memory) -> Tensor:
        """Predictive variance of every output for extended features `X (n, D)`: that of the memories' mixture, their own and
        the variance between them."""
        K, weights, form = len(self.forget), memory["weights"][:, None, None], self._form(X.shape[-1])
        spread = filters.spread(form, memory[form], X.expand(K, *X.shape))
        own = (1 + spread).unsqueeze(-1) * memory["noise"].unsqueeze(-2)
        means = X @ memory["layers"].mT
        between = (means - (weights * means).sum(0)).square()
        return (weights * (own + between)).sum(0)

    def draws(
        self, W: Tensor, n: int, memory: Memory, step: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """n layers from the mixture of the memories' posteriors around `W (o, D)`: `(n, o, D)`."""
        which = torch.multinomial(memory["weights"], n, replacement=True, generator=generator)
        Z = torch.randn(n, *W.shape, dtype=W.dtype, device=W.device, generator=generator)
        layers, form = self._layers(W, memory, step), self._form(W.shape[-1])
        noise = memory["noise"].sqrt().unsqueeze(-1)
        drawn = torch.empty_like(Z)
        for k in which.unique().tolist():
            some = which == k
            drawn[some] = layers[k] + noise[k] * filters.draws(form, memory[form][k], Z[some])
        return drawn


def strength(handicap: float) -> float:
    """Of the remedies where targets are yes and no: growth, decay and evidence."""
    return min(handicap, 1.0)


def _scarcity(n: int | float | Tensor, features: int) -> float | Tensor:
    """1 where a batch has two rows a feature or fewer, and less where it has more."""
    if isinstance(n, Tensor):  # the sum of weights: a look at it would wait for the device
        return (SCARCE * features / n).clamp(max=1.0)
    return min(1.0, SCARCE * features / n)


_constants: dict[tuple, Tensor] = {}


def constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Numbers on the device, sent there once: a copy from the host would wait for the device, and cannot be captured."""
    if torch.compiler.is_compiling():
        return torch.tensor(values, dtype=like.dtype, device=like.device)
    key = values, like.dtype, like.device
    if key not in _constants:
        _constants[key] = torch.tensor(values, dtype=like.dtype).to(like.device)
    return _constants[key]
