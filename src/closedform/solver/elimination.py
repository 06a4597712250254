"""Positive definite systems on a CUDA device, one or many at once, where libraries factor such matrices as a long chain of
tiny steps: block Gauss-Jordan elimination, which for a positive definite matrix needs no pivoting::

    for each diagonal block k of 32:   R = T_kk^-1 T_k,:      T -= T_:,k R      T_k,: = R        with T = [K | B]

A block is inverted in the registers of one Triton program; everything else is a batched product.
"""

# Triton is a language of its own inside Python, which a type checker does not know, and is only there in CUDA builds:
# pyright: reportIndexIssue=false, reportMissingImports=false, reportOptionalMemberAccess=false

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build without CUDA
    triton = None

BLOCK = 32


def eliminate(K: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """`K^-1 B` for `K (M, m, m)` and `B (M, m, r)`, and whether each matrix was positive definite, `(M,)`.

    >>> eliminate(4 * torch.eye(2).expand(1, 2, 2), torch.ones(1, 2, 1))[0].flatten()
    tensor([0.2500, 0.2500])
    """
    M, m, r = B.shape
    size = -(-m // BLOCK) * BLOCK
    T = K.new_zeros(M, size, size + r)
    T[:, :m, :m] = K
    T[:, :m, size:] = B
    if size > m:
        T.diagonal(dim1=1, dim2=2)[:, m:] = 1
    inverse, sound = T.new_empty(M, BLOCK, BLOCK), T.new_empty(size // BLOCK, M, dtype=torch.bool)
    for k, low in enumerate(range(0, size, BLOCK)):
        high = low + BLOCK
        invert_blocks(T[:, low:high, low:high], inverse, sound[k])
        R = torch.bmm(inverse, T[:, low:high, high:])
        if size > BLOCK:
            T[:, :, high:].baddbmm_(T[:, :, low:high], R, alpha=-1)
        T[:, low:high, high:] = R
    return T[:, :m, size:], sound.all(0)


def invert_blocks(blocks: Tensor, inverse: Tensor, sound: Tensor) -> None:
    """Write the inverses of `(M, 32, 32)` positive definite matrices, and whether they are that."""
    if triton is None or blocks.device.type != "cuda":
        L, info = torch.linalg.cholesky_ex(blocks)
        inverse.copy_(torch.cholesky_inverse(L))
        sound.copy_(info == 0)
        return
    M = blocks.shape[0]
    with torch.cuda.device(blocks.device):
        _invert[(M,)](blocks, blocks.stride(0), blocks.stride(1), inverse, sound, N=BLOCK, num_warps=2)


if triton is not None:

    @triton.jit
    def _invert(blocks, stride, row_stride, inverse, sound, N: tl.constexpr):
        """The sweep operator, which keeps the matrix symmetric: with pivot p and row a, `A - a a^T / p`, the row and the
        column of the pivot `a / p`, the pivot `-1 / p`. After all of them A is minus the inverse."""
        model = tl.program_id(0).to(tl.int64)
        r = tl.arange(0, N)
        A = tl.load(blocks + model * stride + r[:, None] * row_stride + r[None, :])
        smallest = tl.sum(tl.sum(tl.where((r[:, None] == 0) & (r[None, :] == 0), A, 0.0), axis=1), axis=0)
        for k in range(N):
            row = tl.sum(tl.where(r[:, None] == k, A, 0.0), axis=0)
            pivot = tl.sum(tl.where(r == k, row, 0.0), axis=0)
            smallest = tl.minimum(smallest, pivot)
            row = tl.where(r == k, -1.0, row)
            crossed = (r[:, None] == k) | (r[None, :] == k)
            A = tl.where(crossed, 0.0, A) - row[:, None] * (row * (1.0 / pivot))[None, :]
        tl.store(inverse + model * N * N + r[:, None] * N + r[None, :], -A)
        tl.store(sound + model, smallest > 0.0)
