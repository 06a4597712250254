"""Which linear system is solved, in which precision and by which method: every such choice of the package.

    question                         answer                                                          function
    rows or moments?                 rows (the dual, `n x n`) up to as many rows as features,        by_rows
                                     else moments (the primal, `D x D`)
    which precision?                 float64; float32 on a device without it, and for a layer that   precision
                                     asks for no more where lambda is known to be large enough
    a factor or singular values?     Cholesky; past a condition of 1e8 singular values, where a      ill_conditioned
                                     look at the numbers is free
    the filter's matrix or inverse?  the inverse (information) up to 512 features, else the matrix   filter_form
    how is a covariance updated?     by the rows; by its inverse where they are many                 by_inverse
    filters for Auto's memories?     up to 1,024 features; two of them up to 4,096                   most_filtered
    a factor or an elimination?      on CUDA an elimination, of stacks and of up to 640 rows         eliminated
    how many rows at a time?         as many as fit a block of memory, with their features (piece)   piece, block
                                     or their outputs (block)
    residuals of several layers?     from 4,096 rows on those of one, the others through moments     residuals_once
    fused kernels?                   on CUDA, for a float32 layer, one lambda and few rows or few    fused
                                     features, and for filters with up to 1,056 features, or 4,104  fused_filters
                                     where they keep the covariance

A look at numbers is free in eager mode on the CPU; everywhere else a branch becomes a mask (`may_branch`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

# Above this bound on (largest eigenvalue + lam) / lam a Cholesky factor loses more than half of float64's digits, and the
# singular value decomposition, which does not square the condition number, takes over (where a branch is possible).
MAX_CONDITION = 1e8
# Up to this ratio of the Gram matrix's trace to lambda, rounding to float32 changes the Gram by less than a tenth of lambda
FLOAT32_TRACE = 1e6
CHUNK = 8192  # rows of one model upcast at a time on the way to moments
_CHUNK_BYTES = 1 << 26  # or, on CUDA, as many as this holds in float64: there a piece costs a dozen launches
_BLOCK_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}  # of the features of several models in float64
FEW = 128  # features up to which calls cost more than arithmetic
Form = Literal["information", "covariance"]
FUSED_ROWS = 128  # the kernels take the dual up to so many rows
INFORMATION = 512  # features up to which a factor of the filter's inverse is cheap
INVERTED = 4  # on a CPU an update of a covariance by more than a quarter as many rows as features is two inversions
ELIMINATED = 640  # rows of one system up to which CUDA's own factor is the slower (by 1.3 to 1.7 times on an H200)
MANY_ROWS = 4096  # from here on the residuals of several layers cost more than the launches that they save
# features above which `Auto` keeps no matrix for each of its memories, and where these are few
MANY_FEATURES, MANY_FEW, FEW_MEMORIES = 1024, 4096, 2

# of filters: a multiple of 32 above `MANY_FEATURES` and a bias, one of 8 above `MANY_FEW` and a bias
FUSED_FEATURES: dict[Form, int] = {"information": 1056, "covariance": 4104}
FUSED_OUTPUTS = 1024


def may_branch(tensor: Tensor) -> bool:
    """Whether a look at values is free: in eager mode on the CPU. Elsewhere a branch becomes a mask."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def by_rows(n: int, features: int, exact: bool = True) -> bool:
    """Whether n rows of so many features (the bias counted in) are solved as rows: then their system is the smaller. Where
    float32 is enough (see `precision`) and features are few, moments take fewer calls, which is where their time goes."""
    return n <= features and (exact or features > FEW)


def precision(device: torch.device, trace_bound: float | None = None) -> torch.dtype:
    """The dtype of a solve. `trace_bound` is a bound on `tr(X^T X) / lam` that is known before the features are seen, given
    only by a caller whose layer needs no more than float32's digits."""
    if device.type == "mps":
        return torch.float32
    small = trace_bound is not None and trace_bound <= FLOAT32_TRACE and device.type == "cpu"
    return torch.float32 if small else torch.float64


def ill_conditioned(diagonal: Tensor, lam: float | Tensor) -> Tensor | bool:
    """Whether `tr(K) / lam`, which bounds the condition number of `K + lam I` from above, is past what Cholesky can do, for
    every model; `lam` may have one value an entry of the diagonal. NaN and inf are left to the guard."""
    if diagonal.ndim == 1 and not isinstance(lam, Tensor):  # one look at one number
        trace = float(diagonal.detach().sum())
        return lam > 0 and MAX_CONDITION < trace / lam < float("inf")
    bound = (diagonal.detach() / lam).sum(-1)
    return (bound > MAX_CONDITION) & (bound < float("inf"))


def filter_form(features: int) -> Form:
    """What a Kalman filter keeps: the inverse of its covariance, or the covariance, where an update by few rows is cheap.

    The same on every device, since a saved memory must load on another one."""
    return "information" if features <= INFORMATION else "covariance"


def by_inverse(X: Tensor) -> bool:
    """Whether a filter's covariance is turned into its inverse and back to take in the rows `X (..., n, D)`, where an update
    by so many of them costs more. On an accelerator both are chains of launches, and the update is as many as few rows need.
    """
    return may_branch(X) and INVERTED * X.shape[-2] > X.shape[-1]


def most_filtered(memories: int) -> int:
    """Up to how many features so many memories of `Auto` are filters, with a matrix each."""
    return MANY_FEW if memories <= FEW_MEMORIES else MANY_FEATURES


def eliminated(K: Tensor) -> bool:
    """Whether `K (..., m, m)` is eliminated block by block instead of factored by the library."""
    if K.device.type != "cuda" or K.requires_grad or torch.compiler.is_compiling():
        return False
    return K.ndim > 2 or K.shape[-1] <= ELIMINATED


def piece(models: int, features: int, device: torch.device) -> int:
    """How many rows are upcast at a time on the way to moments."""
    if models == 1:
        return max(CHUNK, _CHUNK_BYTES // (8 * features)) if device.type == "cuda" else CHUNK
    return max(features, _BLOCK_BYTES.get(device.type, _BLOCK_BYTES["cpu"]) // (8 * models * features))


def block(outputs: int, device: torch.device, arrays: int = 1) -> int:
    """How many rows of so many outputs are worked on at a time, where that takes so many arrays of them: a vocabulary's in
    float64 would fill the memory."""
    return max(1, _BLOCK_BYTES.get(device.type, _BLOCK_BYTES["cpu"]) // (8 * outputs * arrays))


def residuals_once(n: int) -> bool:
    """Whether the residuals of n rows are made for one layer alone, and the moments of others taken from its."""
    return n >= MANY_ROWS


def fused(n: int, in_features: int) -> bool:
    """Whether the CUDA kernels take a batch of n rows: few rows, or more rows than features (without the bias), but no more
    than are upcast at once."""
    if by_rows(n, in_features):
        return n <= FUSED_ROWS
    return n <= CHUNK


def fused_filters(form: Form, n: int, features: int, outputs: int) -> bool:
    """Whether the CUDA kernels for filters take a batch of n rows: as long as all of it is upcast at once."""
    return features <= FUSED_FEATURES[form] and outputs <= FUSED_OUTPUTS and n * features <= _CHUNK_BYTES // 8
