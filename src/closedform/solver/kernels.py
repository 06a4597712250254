"""The Triton kernels that `cuda` launches. They are only there where Triton is."""

# Triton is a language of its own inside Python, which a type checker does not know, and is only there in CUDA builds:
# pyright: reportIndexIssue=false, reportMissingImports=false, reportOptionalMemberAccess=false

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # a build without CUDA
    triton = None

if triton is not None:

    @triton.jit
    def _scales(M, number, tensor, n, d, ldm, r, KIND: tl.constexpr, BIAS: tl.constexpr):
        """1 / lambda for the weights and for the bias."""
        if KIND == 2:
            diagonal = tl.load(M + r * ldm + r, mask=r < n, other=0.0)
            mean = tl.sum(diagonal, axis=0) / d
            weights = number * tl.where(mean > 0, mean, 1.0)
            bias = weights * 0 + number * n
        elif KIND == 1:
            weights = tl.load(tensor)
            weights = tl.where(weights > 0.0, weights, float("nan"))  # which the guard notices
            bias = weights
        else:
            weights = tl.sum(tl.where(r == 0, 1.0, 0.0).to(tl.float64), axis=0) * number
            bias = weights
        return 1.0 / weights, 1.0 / bias

    @triton.jit
    def _residual(M, y, b, n, o, ldm, rows, cols, mask, BIAS: tl.constexpr, FROM_ZERO: tl.constexpr):
        E = tl.load(y + rows * o + cols, mask=mask, other=0.0).to(tl.float64)
        if not FROM_ZERO:
            E -= tl.load(M + rows * ldm + n + cols, mask=mask, other=0.0)
            if BIAS:
                E -= tl.load(b + cols, mask=mask, other=0.0).to(tl.float64)
        return E

    @triton.jit
    def eliminate(
        M, y, b, number, tensor, work, unsound, n, o, d,
        N: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, FROM_ZERO: tl.constexpr, BLOCK_O: tl.constexpr,
    ):  # fmt: skip
        """Gauss-Jordan on `[K | E]`, which for a positive definite K needs no pivoting."""
        pid = tl.program_id(0)
        ldm = n if FROM_ZERO else n + o
        r = tl.arange(0, N)
        q = pid * BLOCK_O + tl.arange(0, BLOCK_O)
        s_w, s_b = _scales(M, number, tensor, n, d, ldm, r, KIND, BIAS)
        inside = (r[:, None] < n) & (r[None, :] < n)
        K = tl.load(M + r[:, None] * ldm + r[None, :], mask=inside, other=0.0) * s_w
        if BIAS:
            K = tl.where(inside, K + s_b, K)
        diagonal = r[:, None] == r[None, :]
        K = tl.where(diagonal, K + tl.maximum(1.0, K * (4.0 * 2.220446049250313e-16 * n)), K)
        mask = (r[:, None] < n) & (q[None, :] < o)
        E = _residual(M, y, b, n, o, ldm, r[:, None], q[None, :], mask, BIAS, FROM_ZERO)
        smallest = s_w * 0 + 1.0
        for k in range(n):
            row = tl.sum(tl.where(r[:, None] == k, K, 0.0), axis=0)
            column = tl.sum(tl.where(r[None, :] == k, K, 0.0), axis=1)
            e = tl.sum(tl.where(r[:, None] == k, E, 0.0), axis=0)
            pivot = tl.sum(tl.where(r == k, row, 0.0), axis=0)
            smallest = tl.minimum(smallest, pivot)
            factor = tl.where(r == k, 0.0, column / pivot)
            K -= factor[:, None] * row[None, :]
            E -= factor[:, None] * e[None, :]
        E /= tl.sum(tl.where(diagonal, K, 0.0), axis=1)[:, None]
        tl.store(work + r[:, None] * o + q[None, :], E, mask=mask)
        finite = tl.min(tl.min(tl.where(mask & (E - E != 0.0), 0.0, 1.0), axis=1), axis=0)
        tl.store(work + n * o + 2 + pid, tl.where(smallest > 0.0, finite, 0.0))
        if pid == 0:
            tl.store(work + n * o, s_w)
            tl.store(work + n * o + 1, s_b)
            tl.store(unsound, 0)

    @triton.jit
    def assemble(
        M, y, b, number, tensor, work, unsound, n, o, d, K,
        N: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, FROM_ZERO: tl.constexpr, BLOCK_O: tl.constexpr,
    ):  # fmt: skip
        """One program a row of K, then one a block of columns of E (written where A will be)."""
        pid = tl.program_id(0)
        ldm = n if FROM_ZERO else n + o
        r = tl.arange(0, N)
        s_w, s_b = _scales(M, number, tensor, n, d, ldm, r, KIND, BIAS)
        if pid < n:
            row = tl.load(M + pid * ldm + r, mask=r < n, other=0.0) * s_w
            if BIAS:
                row += s_b
            row = tl.where(r == pid, row + tl.maximum(1.0, row * (4.0 * 2.220446049250313e-16 * n)), row)
            tl.store(K + pid * n + r, row, mask=r < n)
        else:
            q = (pid - n) * BLOCK_O + tl.arange(0, BLOCK_O)
            mask = (r[:, None] < n) & (q[None, :] < o)
            E = _residual(M, y, b, n, o, ldm, r[:, None], q[None, :], mask, BIAS, FROM_ZERO)
            tl.store(work + r[:, None] * o + q[None, :], E, mask=mask)
        if pid == 0:
            tl.store(work + n * o, s_w)
            tl.store(work + n * o + 1, s_b)
            tl.store(unsound, 0)

    @triton.jit
    def invert(L, ls0, ls1, inverses, n, N: tl.constexpr):
        """The inverse of a diagonal block of L, column by column of the identity at once; rows and columns of the
        identity where the block ends early."""
        pid = tl.program_id(0)
        r = tl.arange(0, N)
        at = pid * N + r
        X = tl.where(r[:, None] == r[None, :], 1.0, 0.0).to(tl.float64)
        inverse = 1.0 / tl.load(L + at * (ls0 + ls1), mask=at < n, other=1.0)
        column = tl.load(L + at * ls0 + pid * N * ls1, mask=(r > 0) & (at < n), other=0.0)
        for k in range(N):  # the column of the next step is loaded ahead, or the chain would wait for memory
            ahead = tl.load(L + at * ls0 + (pid * N + k + 1) * ls1, mask=(r > k + 1) & (at < n), other=0.0)
            x = tl.sum(tl.where(r[:, None] == k, X * inverse[:, None], 0.0), axis=0)
            X = tl.where(r[:, None] == k, x[None, :], X - column[:, None] * x[None, :])
            column = ahead
        tl.store(inverses + pid * N * N + r[:, None] * N + r[None, :], X, mask=(at[:, None] < n) & (at[None, :] < n))

    @triton.jit
    def substitute(L, ls0, ls1, inverses, info, work, n, o, panels, N: tl.constexpr, BLOCK_O: tl.constexpr):
        """`A <- (L L^T)^-1 A` by panels of N rows, a block of columns a program."""
        pid = tl.program_id(0)
        r = tl.arange(0, N)
        q = pid * BLOCK_O + tl.arange(0, BLOCK_O)
        finite = tl.load(info) * 0.0 + 1.0
        for i in range(panels):
            at = i * N + r
            mask = (at[:, None] < n) & (q[None, :] < o)
            E = tl.load(work + at[:, None] * o + q[None, :], mask=mask, other=0.0)
            for j in range(i):
                to = j * N + r
                B = tl.load(L + at[:, None] * ls0 + to[None, :] * ls1, mask=at[:, None] < n, other=0.0)
                Y = tl.load(work + to[:, None] * o + q[None, :], mask=q[None, :] < o, other=0.0)
                E -= tl.sum(B[:, :, None] * Y[None, :, :], axis=1)
            square = (at[:, None] < n) & (at[None, :] < n)
            C = tl.load(inverses + i * N * N + r[:, None] * N + r[None, :], mask=square, other=0.0)
            tl.store(work + at[:, None] * o + q[None, :], tl.sum(C[:, :, None] * E[None, :, :], axis=1), mask=mask)
            tl.debug_barrier()
        for back in range(panels):
            i = panels - 1 - back
            at = i * N + r
            mask = (at[:, None] < n) & (q[None, :] < o)
            E = tl.load(work + at[:, None] * o + q[None, :], mask=mask, other=0.0)
            for j in range(i + 1, panels):
                to = j * N + r
                B = tl.load(L + to[None, :] * ls0 + at[:, None] * ls1, mask=to[None, :] < n, other=0.0)
                Y = tl.load(work + to[:, None] * o + q[None, :], mask=(to[:, None] < n) & (q[None, :] < o), other=0.0)
                E -= tl.sum(B[:, :, None] * Y[None, :, :], axis=1)
            square = (at[:, None] < n) & (at[None, :] < n)
            C = tl.load(inverses + i * N * N + r[None, :] * N + r[:, None], mask=square, other=0.0)
            E = tl.sum(C[:, :, None] * E[None, :, :], axis=1)
            finite = tl.minimum(finite, tl.min(tl.min(tl.where(mask & (E - E != 0.0), 0.0, 1.0), axis=1), axis=0))
            tl.store(work + at[:, None] * o + q[None, :], E, mask=mask)
            tl.debug_barrier()
        tl.store(work + n * o + 2 + pid, tl.where(tl.load(info) == 0, finite, 0.0))

    @triton.jit
    def round_layer(
        weight, bias, rows, work, product, rounded, unsound, n, o, d,
        FLAGS: tl.constexpr, BIAS: tl.constexpr, FROM_ZERO: tl.constexpr, MULTIPLY: tl.constexpr,
        BLOCK_O: tl.constexpr, BLOCK_D: tl.constexpr,
    ):  # fmt: skip
        """`W + (1 / lam) A^T phi` as it will be stored, and whether every block of A is sound and all of it is finite.

        `product` is `A^T phi`, or the kernel does that multiplication as well."""
        f = tl.arange(0, FLAGS)
        ok = tl.min(tl.load(work + n * o + 2 + f, mask=f < tl.cdiv(o, BLOCK_O), other=1.0), axis=0)
        q = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
        c = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
        mask = (q[:, None] < o) & (c[None, :] < d)
        if MULTIPLY:
            update = tl.zeros((BLOCK_O, BLOCK_D), dtype=tl.float64)
            for k in range(n):
                a = tl.load(work + k * o + q, mask=q < o, other=0.0)
                update += a[:, None] * tl.load(rows + k * d + c, mask=c < d, other=0.0)[None, :]
        else:
            update = tl.load(product + q[:, None] * d + c[None, :], mask=mask, other=0.0)
        new = update * tl.load(work + n * o)
        if not FROM_ZERO:
            new += tl.load(weight + q[:, None] * d + c[None, :], mask=mask, other=0.0).to(tl.float64)
        short = new.to(weight.dtype.element_ty)
        tl.store(rounded + q[:, None] * (d + 1) + c[None, :], short, mask=mask)
        ok = tl.minimum(ok, tl.min(tl.min(tl.where(mask & (short - short != 0.0), 0.0, 1.0), axis=1), axis=0))
        if BIAS:  # noqa: SIM102 - the first is known when the kernel is compiled
            if tl.program_id(1) == 0:
                total = tl.zeros((BLOCK_O,), dtype=tl.float64)
                for k in range(n):
                    total += tl.load(work + k * o + q, mask=q < o, other=0.0)
                new_bias = total * tl.load(work + n * o + 1)
                if not FROM_ZERO:
                    new_bias += tl.load(bias + q, mask=q < o, other=0.0).to(tl.float64)
                short_bias = new_bias.to(bias.dtype.element_ty)
                tl.store(rounded + q * (d + 1) + d, short_bias, mask=q < o)
                ok = tl.minimum(ok, tl.min(tl.where((q < o) & (short_bias - short_bias != 0.0), 0.0, 1.0), axis=0))
        if ok == 0.0:
            tl.atomic_max(unsound, 1)

    @triton.jit
    def commit(weight, bias, rounded, unsound, step, attempts, d, BIAS: tl.constexpr, BLOCK: tl.constexpr):
        """A row of the new layer, if all of it is sound."""
        row = tl.program_id(0)
        c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        sound = 1 - tl.load(unsound)
        new = tl.load(rounded + row * (d + 1) + c, mask=c < (d + 1) * sound, other=0.0)
        tl.store(weight + row * d + c, new, mask=c < d * sound)
        if BIAS:
            tl.store(bias + row + c * 0, new, mask=(c == d) & (c < (d + 1) * sound))
        if row + tl.program_id(1) == 0:
            tl.store(step, tl.load(step) + sound)
            tl.store(attempts, tl.load(attempts) + 1)

    @triton.jit
    def extend(phi, ps0, ps1, y, weight, bias, rows, n, o, d, D, width, BIAS: tl.constexpr, BLOCK: tl.constexpr):
        """A row of `[phi, 1, 0, y, 0]`, or below those of `[W, b, 0]`."""
        row = tl.program_id(0)
        c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        if row < n:
            value = tl.load(phi + row.to(tl.int64) * ps0 + c * ps1, mask=c < d, other=0.0).to(tl.float64)
            if BIAS:
                value = tl.where(c == d, 1.0, value)
            inside = (c >= D) & (c < D + o)
            value = tl.where(inside, tl.load(y + row * o + c - D, mask=inside, other=0.0).to(tl.float64), value)
        else:
            value = tl.load(weight + (row - n) * d + c, mask=c < d, other=0.0).to(tl.float64)
            if BIAS:
                value = tl.where(c == d, tl.load(bias + row - n).to(tl.float64), value)
        tl.store(rows + row.to(tl.int64) * width + c, value, mask=c < width)

    @triton.jit
    def shift(M, ldm, tensor, own, K, d, D, TENSOR: tl.constexpr, OWN: tl.constexpr, BLOCK: tl.constexpr):
        """A row of `G + lambda I`; the bias may have a lambda of its own. Where lambda is below the rounding error of the
        diagonal it is raised to that error."""
        row = tl.program_id(0)
        c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(M + row.to(tl.int64) * ldm + c, mask=c < D, other=0.0)
        if TENSOR:
            lam = tl.load(tensor)
            if OWN:
                lam = tl.where(row < d, lam, own)
        else:
            lam = value * 0.0 + own
        shift = tl.where(lam > 0.0, tl.maximum(lam, value * (4.0 * 2.220446049250313e-16 * D)), float("nan"))
        value = tl.where(c == row, value + shift, value)
        tl.store(K + row.to(tl.int64) * D + c, value, mask=c < D)

    @triton.jit
    def accept(
        weight, bias, W, ws0, ws1, peak, ok, step, attempts, d,
        BIAS: tl.constexpr, INFO: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """A row of the new layer, if the largest number of all is finite as it will be stored; `ok` is a truth value or an
        INFO of zero."""
        row = tl.program_id(0)
        c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        largest = tl.load(peak).to(weight.dtype.element_ty)
        fine = tl.load(ok).to(tl.int32)
        if INFO:
            fine = tl.where(fine == 0, 1, 0)
        sound = tl.where(largest - largest == 0.0, fine, 0)
        last = d + 1 if BIAS else d
        new = tl.load(W + row * ws0 + c * ws1, mask=c < last, other=0.0).to(weight.dtype.element_ty)
        tl.store(weight + row * d + c, new, mask=c < d * sound)
        if BIAS:
            tl.store(bias + row + c * 0, new, mask=(c == d) & (c < last * sound))
        if row + tl.program_id(1) == 0:
            tl.store(step, tl.load(step) + sound)
            tl.store(attempts, tl.load(attempts) + 1)
