"""What a solve does besides products and factorisations, on a CUDA device in a few launches instead of dozens.

The time of a solve of few rows or few features is the time it takes to launch it. The Triton kernels of `kernels` do what
`linalg.ridge` and `guard.accept_` do together for one lambda, in the same float64 (Triton comes with torch's CUDA builds)::

    n <= 32        torch: [phi; W] phi^T      eliminate (system, residual and solution), round, commit
    n <= 128       torch: [phi; W] phi^T      assemble, Cholesky (torch), invert, substitute, round, commit
    n > d          extend ([phi, 1, y; W, b]), products (torch), shift, Cholesky and substitution (torch), accept

Every other solve uses `accept_` alone: the layer and the counters in one launch. The guard is all or nothing here as
everywhere: no number of the layer is written before it is known that all of them are finite as they will be stored.
"""

# a type checker does not know how kernels are launched, nor that Triton is there when they are:
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from . import kernels, linalg, route
from .guard import Layer

SMALL = 32
_WIDE = 1024  # columns a program where it only copies
_BLOCK_O, _BLOCK_D = 4, 64  # outputs and features a program; these and the numbers of warps were measured on an H200

# how lambda arrives
NUMBER, TENSOR, AUTO = 0, 1, 2


def usable(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernels can write this layer: float32 and contiguous."""
    contiguous = weight.is_contiguous() and (bias is None or bias.is_contiguous())
    return kernels.triton is not None and weight.dtype == torch.float32 and contiguous


def _on(device: torch.device) -> AbstractContextManager:
    """Triton launches on the current device, which need not be the layer's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _changed(layer: Layer) -> None:
    """Let autograd know, so that a backward through the old layer is noticed."""
    for tensor in (layer.weight,) if layer.bias is None else (layer.weight, layer.bias):
        torch.autograd.graph.increment_version(tensor)


def solve_(layer: Layer, phi: Tensor, y: Tensor, lam: float | Tensor | None, ratio: float, from_zero: bool) -> None:
    """Solve the layer in place on `phi (n, d)`, `y (n, o)`, for n at most `route.FUSED_ROWS` or more than d.

    lam: a number, a 0-dim float64 tensor, or None for `ratio` times the mean diagonal of the Gram matrix.
    from_zero: ridge instead of proximal; the old layer does not count.
    """
    dual = route.by_rows(phi.shape[0], phi.shape[1])
    with _on(phi.device):
        (_dual_ if dual else _primal_)(layer, phi, y.contiguous(), lam, ratio, from_zero)
    _changed(layer)


def _dual_(layer: Layer, phi: Tensor, y: Tensor, lam: float | Tensor | None, ratio: float, from_zero: bool) -> None:
    weight, bias, step, attempts = layer
    (n, d), o = phi.shape, y.shape[1]
    double = {"dtype": torch.float64, "device": phi.device}
    rows = torch.empty(n if from_zero else n + o, d, **double)
    torch.cat([phi] if from_zero else [phi, weight], out=rows)
    top = rows[:n]
    M = torch.mm(top, rows.T)
    blocks = -(-o // _BLOCK_O)
    # the solution A (n, o), then 1 / lambda for weights and bias, then whether each block of columns is sound
    work = torch.empty(n * o + 2 + blocks, **double)
    kind = AUTO if lam is None else TENSOR if isinstance(lam, Tensor) else NUMBER
    number = ratio if lam is None else 0.0 if isinstance(lam, Tensor) else lam
    tensor = lam if isinstance(lam, Tensor) else work
    b = weight if bias is None else bias
    unsound = torch.empty(1, dtype=torch.int32, device=phi.device)  # becomes 1 where a number is not finite
    system: list[Any] = [M, y, b, number, tensor, work, unsound, n, o, d]
    constants = {"KIND": kind, "BIAS": bias is not None, "FROM_ZERO": from_zero, "BLOCK_O": _BLOCK_O}
    product = work
    if n <= SMALL:
        kernels.eliminate[(blocks,)](*system, N=max(16, kernels.triton.next_power_of_2(n)), **constants, num_warps=8)
    else:
        K = torch.empty(n, n, **double)
        kernels.assemble[(n + blocks,)](*system, K, N=route.FUSED_ROWS, **constants, num_warps=1)
        L, info = torch.linalg.cholesky_ex(K)
        panels = -(-n // SMALL)
        stride = L.stride(0), L.stride(1)
        kernels.invert[(panels,)](L, *stride, K, n, N=SMALL, num_warps=4)  # K's memory is free again
        kernels.substitute[(blocks,)](L, *stride, K, info, work, n, o, panels, N=SMALL, BLOCK_O=_BLOCK_O, num_warps=4)
        product = torch.mm(work[: n * o].view(n, o).T, top)
    rounded = torch.empty(o, d + 1, dtype=weight.dtype, device=phi.device)  # the new layer, the bias last
    kernels.round_layer[(blocks, -(-d // _BLOCK_D))](
        weight, b, rows, work, product, rounded, unsound, n, o, d,
        FLAGS=kernels.triton.next_power_of_2(blocks), BIAS=bias is not None, FROM_ZERO=from_zero, MULTIPLY=n <= SMALL,
        BLOCK_O=_BLOCK_O, BLOCK_D=_BLOCK_D, num_warps=2,
    )  # fmt: skip
    kernels.commit[(o, -(-(d + 1) // _WIDE))](
        weight, b, rounded, unsound, step, attempts, d, BIAS=bias is not None, BLOCK=_WIDE
    )


def _primal_(layer: Layer, phi: Tensor, y: Tensor, lam: float | Tensor | None, ratio: float, from_zero: bool) -> None:
    weight, bias, step, attempts = layer
    (n, d), o = phi.shape, y.shape[1]
    D = -(-(d + int(bias is not None)) // 8) * 8  # with columns of zeros, since the fast products want an even width
    width = -(-(D + o) // 8) * 8
    double = {"dtype": torch.float64, "device": phi.device}
    rows = torch.empty(n + o, width, **double)  # [phi, 1, 0, y, 0] above [W, b, 0]
    b = weight if bias is None else bias
    kernels.extend[(n + o, -(-width // _WIDE))](
        phi, phi.stride(0), phi.stride(1), y, weight, b, rows, n, o, d, D, width, BIAS=bias is not None, BLOCK=_WIDE
    )
    X = rows[:n, :D]
    M = torch.mm(X.T, rows[:n])
    G, C = M[:, :D], M[:, D : D + o]
    if not from_zero:
        C = torch.addmm(C, G, rows[n:, :D].T, alpha=-1)
    if lam is None:
        mean = G.diagonal()[:d].mean()
        lam, own = ratio * torch.where(mean > 0, mean, torch.ones_like(mean)), ratio * n
    else:
        own = -1.0 if isinstance(lam, Tensor) else lam
    K = torch.empty(D, D, **double)
    tensor = lam if isinstance(lam, Tensor) else K
    kernels.shift[(D, -(-D // _WIDE))](
        M, width, tensor, own, K, d, D, TENSOR=isinstance(lam, Tensor), OWN=own > 0, BLOCK=_WIDE
    )
    L, info = torch.linalg.cholesky_ex(K)
    dW = linalg.cholesky_solve(C, L)
    new = dW.T if from_zero else rows[n:, :D] + dW.T
    kernels.accept[(o, -(-(d + 1) // _WIDE))](
        weight, b, new, *new.stride(), _peak(new), info, step, attempts, d,
        BIAS=bias is not None, INFO=True, BLOCK=_WIDE,
    )  # fmt: skip


def _peak(W: Tensor) -> Tensor:
    """The largest size of a number, or NaN: rounding keeps the order, so it tells whether any of them overflows."""
    return torch.linalg.vector_norm(W, torch.inf)


def accept_(layer: Layer, W: Tensor, ok: Tensor) -> None:
    """Take the new layer `W (o, D)`, in float64 with the bias in its last column, where `ok` and all of it is finite."""
    weight, bias, step, attempts = layer
    o, d = weight.shape
    with _on(weight.device):
        kernels.accept[(o, -(-(d + 1) // _WIDE))](
            weight, weight if bias is None else bias, W, *W.stride(), _peak(W), ok, step, attempts, d,
            BIAS=bias is not None, INFO=False, BLOCK=_WIDE,
        )  # fmt: skip
    _changed(layer)
