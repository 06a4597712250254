"""Positive definite systems on a CUDA device, one or many at once, where libraries factor such matrices as a long chain of
tiny steps: block Gauss-Jordan elimination, which for a positive definite matrix needs no pivoting::

    for each diagonal block k of 32:   R = T_kk^-1 T_k,:      T -= T_:,k R      T_k,: = R        with T = [K | B]

One launch subtracts block k's part from all rows and makes the R of block k + 1, so that a system of m rows is m / 32 + 1
launches. A program has one tile and two warps; those of the next row each invert the same small block in their registers.
"""

# Triton is a language of its own inside Python, which a type checker does not know, and is only there in CUDA builds:
# pyright: reportIndexIssue=false, reportMissingImports=false, reportOptionalMemberAccess=false

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build without CUDA
    triton = None

BLOCK = 32
WARPS = 2


def padded(m: int) -> int:
    """The rows that a system of m rows takes up."""
    return -(-m // BLOCK) * BLOCK


def eliminate(K: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """`K^-1 B` for `K (M, m, m)` and `B (M, m, r)`, and whether each matrix was positive definite, `(M,)`.

    >>> eliminate(4 * torch.eye(2).expand(1, 2, 2), torch.ones(1, 2, 1))[0].flatten()
    tensor([0.2500, 0.2500])
    """
    if triton is None or K.device.type != "cuda":
        L, info = torch.linalg.cholesky_ex(K)
        return torch.cholesky_solve(B, L), info == 0
    return by_blocks(K, B)


def by_blocks(K: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """`eliminate` by the kernel."""
    M, m, r = B.shape
    size = padded(m)
    T = K.new_zeros(M, size, size + r)
    T[:, :m, :m] = K
    T[:, :m, size:] = B
    if size > m:
        T.diagonal(dim1=1, dim2=2)[:, m:] = 1
    return T[:, :m, size:], eliminate_(T).all(0)


def eliminate_(T: Tensor) -> Tensor:
    """Solve `[K | B]`, `(M, size, size + r)` with size a multiple of 32, in place: its last r columns become `K^-1 B`.
    Returns whether each diagonal block of each matrix was positive definite, `(size / 32, M)`."""
    M, size, width = T.shape
    blocks, columns = size // BLOCK, -(-width // BLOCK)
    sound = torch.empty(blocks, M, dtype=torch.bool, device=T.device)
    work = T.new_empty(M, columns, BLOCK, BLOCK + 1)
    with on(T.device):
        for s in range(blocks + 1):
            rows = 1 if s == 0 else max(blocks - 1, int(s < blocks))
            if rows == 0:  # a single block has no other rows
                continue
            _sweep[(rows, columns - s, M)](
                T, work, sound, s, width, T.stride(1), T.stride(0), columns, M,
                N=BLOCK, FIRST=s == 0, LAST=s == blocks, num_warps=WARPS,
            )  # fmt: skip
    return sound


def on(device: torch.device) -> AbstractContextManager:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


if triton is not None:
    GATHERS = tl.constexpr(hasattr(tl, "gather"))  # from Triton 3.2 on: one exchange between threads in place of five

    @triton.jit
    def _tile(T, rows, columns, row_stride, width):
        return tl.load(T + rows[:, None] * row_stride + columns[None, :], mask=columns[None, :] < width, other=0.0)

    @triton.jit
    def _product(A, B):
        return tl.dot(A, B, input_precision="ieee", out_dtype=A.dtype)

    @triton.jit
    def _entry(row, p: tl.constexpr, N: tl.constexpr):
        """Entry p of a row, as a row."""
        if GATHERS:
            entry = tl.gather(row, tl.full((N,), p, tl.int32), 0)
        else:
            entry = tl.broadcast_to(tl.sum(tl.where(tl.arange(0, N) == p, row, 0.0), axis=0), (N,))
        return entry

    @triton.jit
    def _inverse(A, at, pivots, N: tl.constexpr):
        """The inverse of a block, by way of memory at `at`, and in all entries of `pivots` the smallest of its pivots and of
        the determinants of its pairs of rows; a sign that is not positive is a failure.

        The sweep operator by two rows at a time keeps the matrix symmetric: with the rows R (2, N) and the block S where
        they cross, `A - R^T S^-1 R`, the rows and the columns themselves `S^-1 R`, the block `-S^-1`. After all of them A is
        minus the inverse. What takes time are an exchange between threads and a division, here one of each for two rows. A
        thread has a column: the way by memory brings it there, with rows of an odd length so that it is no vector of two.
        """
        r = tl.arange(0, N)
        own = at + r[:, None] * (N + 1) + r[None, :]
        tl.store(own, A)
        tl.debug_barrier()
        A = tl.load(own)
        nothing = tl.zeros((N, N), A.dtype) * -1.0  # -0, which a compiler may leave out of a sum, as it may not 0
        for h in tl.static_range(N // 2):
            p = 2 * h
            upper = tl.sum(tl.where(r[:, None] == p, A, nothing), axis=0)
            lower = tl.sum(tl.where(r[:, None] == p + 1, A, nothing), axis=0)
            a, b, c = _entry(upper, p, N), _entry(upper, p + 1, N), _entry(lower, p + 1, N)
            determinant = a * c - b * b
            pivots = tl.minimum(pivots, tl.minimum(a, determinant))
            first = 1.0 / a
            second = a * (1.0 / determinant)  # one over the second pivot, at the same time as the first
            slope = b * first
            upper = tl.where(r == p, -1.0, tl.where(r == p + 1, 0.0, upper))
            lower = tl.where(r == p + 1, -1.0, tl.where(r == p, 0.0, lower))
            under = (lower - slope * upper) * second
            over = upper * first - slope * under
            crossed = (r[:, None] // 2 == h) | (r[None, :] // 2 == h)
            A = tl.where(crossed, 0.0, A) - upper[:, None] * over[None, :] - lower[:, None] * under[None, :]
        tl.debug_barrier()
        tl.store(own, -A)
        tl.debug_barrier()
        return tl.load(own), pivots

    @triton.jit(do_not_specialize=["row_stride"])
    def _sweep(
        T, work, sound, s, width, row_stride, stride, columns, models,
        N: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    ):  # fmt: skip
        """One tile after block s - 1: `T_ij - T_ik R_kj`, and in the row of block s the R of that. Nobody writes what
        another program reads: row k is done, column k is not needed again, and of row s only what lies behind its block is
        written."""
        k = s - 1
        i = tl.program_id(0)
        if not FIRST:
            i += (i >= k).to(tl.int32)
        j = s + tl.program_id(1)
        model = tl.program_id(2).to(tl.int64)
        T += model * stride
        r = tl.arange(0, N)
        rows, at = i * N + r, j * N + r
        if not LAST and i == s:
            if j > s:
                A = _tile(T, rows, rows, row_stride, width)
                if not FIRST:
                    A -= _product(
                        _tile(T, rows, k * N + r, row_stride, width), _tile(T, k * N + r, rows, row_stride, width)
                    )
                one = tl.zeros((N,), T.dtype.element_ty) + 1.0
                inverse, pivots = _inverse(A, work + (model * columns + j) * N * (N + 1), one, N)
                if j == s + 1:
                    tl.store(sound + s * models + model + r, pivots > 0.0, mask=r == 0)
                old = _tile(T, rows, at, row_stride, width)
                if not FIRST:
                    old -= _product(
                        _tile(T, rows, k * N + r, row_stride, width), _tile(T, k * N + r, at, row_stride, width)
                    )
                new = _product(inverse, old)
                tl.store(T + rows[:, None] * row_stride + at[None, :], new, mask=at[None, :] < width)
        else:
            old = _tile(T, rows, at, row_stride, width)
            new = old - _product(
                _tile(T, rows, k * N + r, row_stride, width), _tile(T, k * N + r, at, row_stride, width)
            )
            tl.store(T + rows[:, None] * row_stride + at[None, :], new, mask=at[None, :] < width)
