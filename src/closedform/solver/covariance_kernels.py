"""The Triton kernels of filters that keep their covariance, which `cuda_filters` launches beside those of `filter_kernels`
(whose arrays these are)::

    P (K, wide, wide)  what is predicted, then M = P - K Y, then the new covariance; zeros beyond D
    X (K, m, wide)     the rows times the root of the loss's scale, then those of the leak, a filter each
    Y = X P            T (K, size, size + wide) = [X P X^T + I | Y] for the elimination

Products between them are the library's.
"""

# Triton is a language of its own inside Python, which a type checker does not know, and is only there in CUDA builds:
# pyright: reportIndexIssue=false, reportMissingImports=false, reportOptionalMemberAccess=false

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # a build without CUDA
    triton = None

if triton is not None:
    from .filter_kernels import _finite, _is_finite

    @triton.jit
    def squares(X, diagonal, n, wide, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        """The diagonal of `X^T X`."""
        c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros((COLUMNS,), tl.float64)
        for low in range(0, n, ROWS):
            r = low + tl.arange(0, ROWS)
            mask = (r[:, None] < n) & (c[None, :] < wide)
            value = tl.load(X + r[:, None].to(tl.int64) * wide + c[None, :], mask=mask, other=0.0)
            total += tl.sum(value * value, axis=0)
        tl.store(diagonal + c, total, mask=c < wide)

    @triton.jit
    def predict(
        P, C, diagonal, added, table, numbers, unsound, constants, out, raised, o, D, wide, columns, filters,
        BLOCK: tl.constexpr, OUTPUTS: tl.constexpr,
    ):  # fmt: skip
        """A row of a filter's covariance before the batch: `P / gamma`, at first that of the prior; the rounding error of
        its diagonal; and whether the batch is finite."""
        i = tl.program_id(0)
        k = tl.program_id(1)
        c = tl.arange(0, BLOCK)
        value = tl.zeros((BLOCK,), tl.float64)
        if i < D:
            scaled = tl.load(constants) * tl.load(diagonal + i)
            old = tl.load(P + (k.to(tl.int64) * D + i) * D + c, mask=c < D, other=0.0)
            value = old * (1.0 / tl.load(table + 4 * k))
            if tl.load(numbers + 1) == 0.0:
                precision = tl.maximum(tl.load(added + k * D + i), tl.load(constants + 5) * scaled)
                value = tl.where(c == i, value + 1.0 / precision, value)
            tl.store(raised + k * D + i, 2.220446049250313e-16 * tl.sum(tl.where(c == i, value, 0.0), axis=0))
            q = tl.arange(0, OUTPUTS)
            right = tl.load(C + i.to(tl.int64) * columns + k * o + q, mask=q < o, other=0.0)
            if tl.minimum(tl.where(_is_finite(scaled), 1, 0), _finite(right)) == 0:
                tl.atomic_max(unsound + filters, 1)
            if _finite(value) == 0:
                tl.atomic_max(unsound + k, 1)
        tl.store(out + (k.to(tl.int64) * wide + i) * wide + c, value, mask=c < wide)

    @triton.jit
    def measure(X, xs0, xs1, added, numbers, constants, out, n, m, D, wide, LEAKING: tl.constexpr, BLOCK: tl.constexpr):
        """A row of a batch, or of the leak (`filters._Leak.as_rows`)."""
        r = tl.program_id(0)
        k = tl.program_id(1)
        c = tl.arange(0, BLOCK)
        if r < n:
            value = tl.load(X + r.to(tl.int64) * xs0 + c.to(tl.int64) * xs1, mask=c < D, other=0.0)
            value = value * tl.sqrt(tl.load(constants))
        else:
            t = tl.load(numbers + 1).to(tl.int32)
            own = (t % D * LEAKING + r - n) % D
            leak = tl.load(added + k * D + c, mask=c < D, other=0.0)
            value = tl.where(c == own, tl.where(t > 0, tl.sqrt(leak), 0.0), 0.0)
        tl.store(out + (k.to(tl.int64) * m + r) * wide + c, value, mask=c < wide)

    @triton.jit
    def state(S, Y, T, constants, m, size, wide, width, BLOCK: tl.constexpr):
        """A row of `[S + I | Y]`; the identity is the rounding error of S where that is larger."""
        i = tl.program_id(0)
        k = tl.program_id(1)
        c = tl.arange(0, BLOCK)
        left = tl.where(c == i, 1.0, 0.0).to(tl.float64)
        right = tl.zeros((BLOCK,), tl.float64)
        if i < m:
            row = k.to(tl.int64) * m + i
            S_i = tl.load(S + row * m + c, mask=c < m, other=0.0)
            left = tl.where(c == i, S_i + tl.maximum(S_i * tl.load(constants + 6), 1.0), S_i)
            right = tl.load(Y + row * wide + c, mask=c < wide, other=0.0)
        at = T + (k.to(tl.int64) * size + i) * width
        tl.store(at + c, left, mask=c < size)
        tl.store(at + size + c, right, mask=c < wide)

    @triton.jit
    def settle(P, raised, unsound, D, wide, TILE: tl.constexpr):
        """Two tiles of a covariance that mirror each other, made symmetric, the diagonal raised by its rounding error."""
        i = tl.program_id(0)
        j = tl.program_id(1)
        k = tl.program_id(2)
        if j <= i:
            r = i * TILE + tl.arange(0, TILE)
            c = j * TILE + tl.arange(0, TILE)
            mask = (r[:, None] < D) & (c[None, :] < D)
            at = k.to(tl.int64) * wide * wide + r[:, None].to(tl.int64) * wide + c[None, :]
            mirrored = k.to(tl.int64) * wide * wide + c[None, :].to(tl.int64) * wide + r[:, None]
            value = (tl.load(P + at, mask=mask, other=0.0) + tl.load(P + mirrored, mask=mask, other=0.0)) / 2
            own = tl.load(raised + k * D + r, mask=r < D, other=0.0)
            value = tl.where(r[:, None] == c[None, :], value + own[:, None], value)
            tl.debug_barrier()  # a tile on the diagonal is its own mirror
            tl.store(P + at, value, mask=mask)
            tl.store(P + mirrored, value, mask=mask)
            fine = tl.min(tl.min(tl.where(_is_finite(value), 1, 0), axis=1), axis=0)
            if fine == 0:
                tl.atomic_max(unsound + k, 1)
