"""The rules of `closedform.solver.rules` for many last layers at once, each with its own lambda, on features of their own.

Models are the leading axis and samples the last one: features `X (M, D, n)` in float64, extended by a row of ones for the
bias; layers `W (M, o, D)`, targets `Y (M, o, n)`. Where there are more samples than features only the products `X X^T` and
`X E^T` are wanted, which are added up piece by piece: the copies in float64 do not grow with the batch.

Lambda is a change of units of the features, `X <- X / sqrt(lam)`, after which every system is solved with lambda 1 and the
update divided by `sqrt(lam)` once more; so a number, one value a feature, and a lambda relative to the Gram matrix are one
case. A solve that fails or is not finite leaves its layer alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..solver import elimination
from ..solver.lambdas import AUTO_RATIO, check_forget, per_sample, relative
from ..solver.rules import LEAK, LEAKING, Ema, Kalman, Proximal, Ridge, Rule

PIECE = {"cuda": 1 << 30, "cpu": 1 << 26}  # bytes of features in float64 at a time
FLOOR = 1e-3  # of the learning rate, for a memory that follows it: as in `lambdas.follow_lr`


def coefficient(rule: Rule) -> object:
    return rule.beta if isinstance(rule, (Ridge, Ema)) else getattr(rule, "lam", None)


def check(rule: Rule) -> None:
    """Raise a `ValueError` where a stack cannot take this rule."""
    if not isinstance(rule, (Ridge, Proximal, Ema, Kalman)):
        raise ValueError(f"a stack takes Ridge, Proximal, Ema and Kalman, got {rule}")
    lam = coefficient(rule)
    lam = lam.lam if isinstance(lam, per_sample) else lam
    if callable(lam) or (isinstance(lam, relative) and callable(lam.ratio)):
        raise ValueError(f"a stack takes no function of the step as a lambda (use follow=True), got {rule}")
    if isinstance(lam, (int, float)) and lam == 0:
        raise ValueError(f"a stack needs a positive lambda or beta, got {rule}")
    if isinstance(rule, Kalman):
        if callable(rule.forget):
            raise ValueError(f"a stack takes no function of the step as forget (use follow=True), got {rule}")
        check_forget(rule.forget)
        if rule.drift > 0:
            raise ValueError(f"a stack takes no drift, got {rule}")


class Rows:
    """Features `phi (M, d, n)` and targets `y (S, o, n)`, which the models of a seed share, as the solves want them."""

    def __init__(self, phi: Tensor, y: Tensor, bias: bool, piece: int | None = None):
        self.phi, self.y, self.bias = phi, y, bias
        self.M, self.n = phi.shape[0], phi.shape[2]
        self.D = phi.shape[1] + int(bias)
        self._piece = piece or max(self.D, PIECE[phi.device.type] // (8 * self.M * self.D))

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        M, d, n = self.phi.shape
        for low in range(0, n, self._piece):
            phi = self.phi[:, :, low : low + self._piece]
            X = torch.empty(M, self.D, phi.shape[2], dtype=torch.float64, device=phi.device)
            X[:, :d] = phi
            if self.bias:
                X[:, d] = 1
            y = self.y[:, None, :, low : low + self._piece].double()
            yield X, y.expand(-1, M // y.shape[0], -1, -1).flatten(0, 1)

    def features(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """`X` and the residuals `E = Y - W X`, whole."""
        X, Y = next(iter(Rows(self.phi, self.y, self.bias, self.n)._pieces()))
        return X, Y - W @ X

    def moments(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """`X X^T` and `X E^T`."""
        G = torch.zeros(self.M, self.D, self.D, dtype=torch.float64, device=self.phi.device)
        C = torch.zeros(self.M, self.D, self.y.shape[1], dtype=torch.float64, device=self.phi.device)
        for X, Y in self._pieces():
            G.baddbmm_(X, X.mT)
            C.baddbmm_(X, (Y - W @ X).mT)
        return G, C


class Lambdas:
    """The lambdas of a group of models, as numbers: `base` times one, or times the Gram matrix's diagonal."""

    def __init__(self, rules: Sequence[Rule], follow: Sequence[bool], features: int, bias: bool, device: torch.device):
        base = torch.empty(len(rules), features, dtype=torch.float64)
        kind = torch.zeros(len(rules), dtype=torch.int64)  # 0 a number, 1 relative, 2 relative by feature
        each = torch.zeros(len(rules), 1, dtype=torch.float64)  # 1 where it is times the number of samples
        for row, rule in enumerate(rules):
            lam = coefficient(rule)
            if isinstance(lam, per_sample):
                assert not callable(lam.lam)
                lam, each[row] = lam.lam, 1.0
            if lam == "auto" if isinstance(lam, str) else isinstance(lam, relative):
                ratio = lam.ratio if isinstance(lam, relative) else AUTO_RATIO
                kind[row] = 2 if isinstance(lam, relative) and lam.per_feature else 1
                assert not callable(ratio)
                lam = ratio
            assert isinstance(lam, (int, float, Tensor))
            values = torch.as_tensor(lam, dtype=torch.float64, device="cpu").reshape(-1)
            if len(values) == features - 1 and bias and features > 2:
                values = torch.cat([values, values.mean().reshape(1)])
            if len(values) not in (1, features):
                raise ValueError(
                    f"a vector lambda has one value a feature, got {len(values)} for {features} (with the bias)"
                )
            base[row] = values
        self.base, self.kind, self.each = base.to(device), kind.to(device), each.to(device)
        self.follow = torch.tensor(follow, device=device)
        self.any_relative = bool((kind > 0).any())
        self.bias = bias

    def __call__(self, diagonal: Tensor, factor: Tensor, n: int) -> Tensor:
        """`(M, D)` for the diagonal `(M, D)` of a Gram matrix of n samples; `factor (M,)` is the learning rate as a share of
        its base."""
        lam = self.base / torch.where(self.follow, factor.clamp(min=FLOOR), 1.0)[:, None]
        lam = lam * (1 + (n - 1) * self.each)
        if not self.any_relative:
            return lam
        d = diagonal.shape[1] - int(self.bias)
        mean = diagonal[:, :d].mean(1, keepdim=True)
        mean = torch.where(mean > 0, mean, 1.0)
        own = torch.where(diagonal > 0, diagonal, mean)
        shared = torch.cat([mean.expand(-1, d), diagonal[:, d:]], 1)
        scale = torch.where(self.kind[:, None] == 2, own, shared)
        return torch.where(self.kind[:, None] > 0, lam * scale, lam)


@dataclass
class Solved:
    """`Ridge`, `Proximal` and `Ema` in one formula: `W <- (1 - mix) W + mix (keep W + dW)`, where dW fits what `keep W`
    leaves over."""

    lambdas: Lambdas
    keep: Tensor  # (M, 1, 1): 1 for proximal, 0 for ridge
    mix: Tensor  # (M, 1, 1): 1, or what a moving average takes of the new

    @classmethod
    def of(cls, rules: Sequence[Rule], lambdas: Lambdas, device: torch.device) -> Solved:
        kind = {"dtype": torch.float64, "device": device}
        keep = torch.tensor([float(isinstance(rule, Proximal)) for rule in rules], **kind)
        mix = torch.tensor([1 - rule.momentum if isinstance(rule, Ema) else 1.0 for rule in rules], **kind)
        return cls(lambdas, keep[:, None, None], mix[:, None, None])

    def __call__(self, W: Tensor, rows: Rows, factor: Tensor) -> Tensor:
        kept = self.keep * W
        if rows.n <= rows.D:
            X, E = rows.features(kept)
            diagonal = torch.linalg.vector_norm(X, dim=2).square()
            scale = self.lambdas(diagonal, factor, rows.n).rsqrt()[:, :, None]
            X = X * scale
            A, ok = elimination.solve(_shifted(X.mT @ X), E.mT)
            dW = X @ A
        else:
            G, C = rows.moments(kept)
            scale = self.lambdas(G.diagonal(dim1=1, dim2=2), factor, rows.n).rsqrt()[:, :, None]
            dW, ok = elimination.solve(_shifted(G.mul_(scale).mul_(scale.mT)), C.mul_(scale))
        new = (1 - self.mix) * W + self.mix * (kept + (dW * scale).mT)
        return torch.where(_accepted(ok, new), new, W)

    def state(self) -> dict[str, Tensor]:
        return {}


class Filtered:
    """`Kalman` in its information form: `A <- gamma A + X X^T`, `W <- W + (A^-1 X E^T)^T`."""

    def __init__(self, rules: Sequence[Rule], lambdas: Lambdas, features: int, device: torch.device):
        kind = {"dtype": torch.float64, "device": device}
        self.lambdas = lambdas
        self.forget = torch.tensor([rule.forget for rule in rules if isinstance(rule, Kalman)], **kind)
        self.A = torch.zeros(len(rules), features, features, **kind)
        self.prior = torch.zeros(len(rules), features, **kind)

    def __call__(self, W: Tensor, rows: Rows, factor: Tensor, step: Tensor, first: bool) -> Tensor:
        G, C = rows.moments(W)
        loss = (1 - self.forget) * torch.where(self.lambdas.follow, factor.clamp(FLOOR, 1.0), 1.0)
        if first:
            self.prior.copy_(self.lambdas(G.diagonal(dim1=1, dim2=2), torch.ones_like(factor), rows.n))
            A = G + torch.diag_embed(self.prior)
        else:
            A = torch.addcmul(G, self.A, (1 - loss)[:, None, None])
        D = A.shape[1]
        if not first:  # what `rules._leak` gives back
            count = min(LEAKING, D)
            index = (step * count + torch.arange(count, device=A.device)) % D
            share = self.prior[:, index] * (LEAK * D / count * loss)[:, None]
            A.diagonal(dim1=1, dim2=2).index_add_(1, index, share)
        scale = A.diagonal(dim1=1, dim2=2).rsqrt()[:, :, None]
        dW, ok = elimination.solve(_shifted(scale * A * scale.mT, 0.0), scale * C)
        new = W + (dW * scale).mT
        accepted = _accepted(ok, new)
        self.A.copy_(torch.where(accepted, A, self.A))
        return torch.where(accepted, new, W)

    def state(self) -> dict[str, Tensor]:
        return {"A": self.A, "prior": self.prior}


def _shifted(K: Tensor, lam: float = 1.0) -> Tensor:
    """`K + lam I`, in place; where lambda is below the rounding error of K's diagonal it is raised to that error."""
    diagonal = K.diagonal(dim1=1, dim2=2)
    diagonal += (diagonal * (4 * K.shape[1] * torch.finfo(K.dtype).eps)).clamp(min=lam)
    return K


def _accepted(ok: Tensor, new: Tensor) -> Tensor:
    total = new.float().sum((1, 2))  # as the layer will be stored: what overflows there is not finite either
    return (ok & (total - total == 0))[:, None, None]
