"""The paper's formulas letter by letter, in float64: slow, obvious, and what every fast path is tested against.

Here, and only here, columns are samples as in the paper: `Phi (d, n)`, `Y (o, n)`, `W (o, d)`. The bias is a row of ones
that the caller adds (`with_bias`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor


def columns(phi: Tensor) -> Tensor:
    """Rows of samples as the paper's columns, in float64."""
    return phi.detach().reshape(-1, phi.shape[-1]).double().T


def with_bias(Phi: Tensor) -> Tensor:
    """Section 4.1: `[phi, 1]`."""
    return torch.cat([Phi, torch.ones(1, Phi.shape[1], dtype=Phi.dtype)])


def loss(W: Tensor, Phi: Tensor, Y: Tensor, beta: float = 0.0) -> Tensor:
    """Eq. 1."""
    return ((Y - W @ Phi) ** 2).sum() + beta * (W**2).sum()


def proximal_loss(W: Tensor, Phi: Tensor, Y: Tensor, W_t: Tensor, lam: float | Tensor) -> Tensor:
    """Eq. 13; a vector lambda weighs the columns of `W - W_t`."""
    return ((Y - W @ Phi) ** 2).sum() + (lam * (W - W_t) ** 2).sum()


def ridge(Phi: Tensor, Y: Tensor, beta: float) -> Tensor:
    """Eq. 2."""
    return Y @ Phi.T @ torch.linalg.inv(Phi @ Phi.T + beta * _eye(Phi))


def proximal(Phi: Tensor, Y: Tensor, W_t: Tensor, lam: float | Tensor) -> Tensor:
    """Eq. 14; a vector lambda is a diagonal matrix in place of `lambda I`."""
    Lam = lam * _eye(Phi)
    return (Y @ Phi.T + W_t @ Lam) @ torch.linalg.inv(Phi @ Phi.T + Lam)


def ridge_svd(Phi: Tensor, Y: Tensor, beta: float) -> Tensor:
    """Eq. 2 by the singular values of Phi, which holds for any condition number; beta = 0 gives the smallest solution."""
    U, S, Vh = torch.linalg.svd(Phi, full_matrices=False)
    small = S <= S[0] * max(Phi.shape) * torch.finfo(Phi.dtype).eps
    filtered = torch.where(small & (beta == 0), 0.0, S / (S**2 + beta))
    return Y @ Vh.T @ torch.diag(filtered) @ U.T


def proximal_svd(Phi: Tensor, Y: Tensor, W_t: Tensor, lam: float) -> Tensor:
    """Eq. 14 likewise: a ridge problem for the difference to `W_t`."""
    return W_t + ridge_svd(Phi, Y - W_t @ Phi, lam)


def ema(Phi: Tensor, Y: Tensor, W_t: Tensor, beta: float, momentum: float) -> Tensor:
    """Related work: the moving average of eq. 2."""
    return momentum * W_t + (1 - momentum) * ridge(Phi, Y, beta)


def generalized_loss(W: Tensor, Phi: Tensor, Y: Tensor, k: float, m: float) -> Tensor:
    """Appendix A.3: `k ([W phi]_c - m)^2 + sum_{j != c} [W phi]_j^2`, summed; the columns of `Y` are one-hot."""
    return sum(
        k * (f[c] - m) ** 2 + sum(f[j] ** 2 for j in range(len(f)) if j != c)
        for f, c in zip((W @ Phi).T, Y.argmax(0).tolist())
    )  # pyright: ignore[reportReturnType]


def generalized(Phi: Tensor, Y: Tensor, k: float, m: float, beta: float | Tensor, W_t: Tensor | None = None) -> Tensor:
    """Eq. 32, one inversion a class: `(phi^(c) phi^(c)T + beta I)^-1 phi^(c) Y^(c)`. With `W_t` the penalty is
    `beta |W - W_t|^2`, which adds `beta W_t` to the right side."""
    rows = []
    for c in range(Y.shape[0]):
        z = 1 + (k**0.5 - 1) * Y[c]
        Phi_c, Y_c = z * Phi, z * m * Y[c]
        right = Phi_c @ Y_c
        if W_t is not None:
            right = right + beta * W_t[c]
        rows.append(torch.linalg.inv(Phi_c @ Phi_c.T + beta * _eye(Phi)) @ right)
    return torch.stack(rows)


def majorised(
    gradient: Callable[[Tensor], Tensor], curvature: float, Phi: Tensor, W_t: Tensor, lam: float, inner_steps: int
) -> list[Tensor]:
    """Minimise `f(W Phi) + lam |W - W_t|^2` through quadratic upper bounds of f, whose derivative at `f (o, n)` is
    `gradient(f)` and whose curvature is at most c: every step minimises

        <g, W Phi - F_k> + c/2 |W Phi - F_k|^2 + lam |W - W_t|^2

    by setting its derivative in W to zero. The layers of all steps, the first from W_t itself."""
    layers = [W_t]
    for _ in range(inner_steps):
        F_k = layers[-1] @ Phi
        T = F_k - gradient(F_k) / curvature
        A = curvature / 2 * Phi @ Phi.T + lam * _eye(Phi)
        layers.append((curvature / 2 * T @ Phi.T + lam * W_t) @ torch.linalg.inv(A))
    return layers[1:]


def class_confidence(f: Tensor) -> Tensor:
    """ "Class confidence": the probabilities of one sample's outputs `f (C,)`."""
    p = f - min(f)
    return p / sum(p)


def kalman(
    mean: Tensor, covariance: Tensor, Phi: Tensor, Y: Tensor, gamma: float, q: float, first: bool
) -> tuple[Tensor, Tensor]:
    """Appendix B with the covariance of all `o d` weights kept: the textbook filter, one measurement for every output of
    every sample, unit noise. `mean (o, d)`, `covariance (o d, o d)` for the row-major weights."""
    o, d = mean.shape
    n = Phi.shape[1]
    Sigma = covariance if first else covariance / gamma + q * torch.eye(o * d, dtype=mean.dtype)
    H = torch.kron(torch.eye(o, dtype=mean.dtype), Phi.T.contiguous())
    S = H @ Sigma @ H.T + torch.eye(o * n, dtype=mean.dtype)
    K = Sigma @ H.T @ torch.linalg.inv(S)
    innovation = Y.reshape(-1) - H @ mean.reshape(-1)
    return mean + (K @ innovation).reshape(o, d), Sigma - K @ H @ Sigma


def algorithm1(
    features: Callable[[Tensor], Tensor],
    parameters: list[Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    W: Tensor,
    lam: float,
    lr: float,
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Algorithm 1 as the paper prints it: after a first fit, step the backbone on batch t, then fit on batch t + 1.

    `features(x)` returns rows and depends on `parameters`, which plain gradient descent changes in place. The loss is the
    mean over samples and outputs. Yields `(W, parameters)` after every step of the backbone.
    """
    stream = iter(batches)
    x, y = next(stream)
    W = proximal(with_bias(columns(features(x))), columns(y), W, lam)
    while True:
        _gradient_step(features, parameters, x, y, W, lr)
        yield W, [p.detach().clone() for p in parameters]
        try:
            x, y = next(stream)
        except StopIteration:
            return
        W = proximal(with_bias(columns(features(x))), columns(y), W, lam)


def algorithm2(
    features: Callable[[Tensor], Tensor],
    parameters: list[Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    W: Tensor,
    lam: float,
    lr: float,
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Algorithm 2: step the backbone on a batch, then fit on the same batch. Arguments as for `algorithm1`."""
    for x, y in batches:
        _gradient_step(features, parameters, x, y, W, lr)
        W = proximal(with_bias(columns(features(x))), columns(y), W, lam)
        yield W, [p.detach().clone() for p in parameters]


def _gradient_step(
    features: Callable[[Tensor], Tensor], parameters: list[Tensor], x: Tensor, y: Tensor, W: Tensor, lr: float
) -> None:
    phi = features(x)
    prediction = phi @ W[:, :-1].T + W[:, -1]
    gradients = torch.autograd.grad(((y - prediction) ** 2).mean(), parameters)
    with torch.no_grad():
        for p, g in zip(parameters, gradients):
            p -= lr * g


def _eye(Phi: Tensor) -> Tensor:
    return torch.eye(Phi.shape[0], dtype=Phi.dtype)
