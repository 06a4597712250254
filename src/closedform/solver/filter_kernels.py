"""The Triton kernels of filters side by side, which `cuda_filters` launches. They are only there where Triton is.

K filters, n rows, D features (the bias counted in; rows of `wide` numbers with zeros at the end), o outputs. What one kernel
leaves for the next lies in a few arrays::

    X (n, wide)   rows as features        G = X^T X, C = X^T E     of the batch, before the loss's own `scale`
    L (K, o, wide) the layers as they are  M (K, o, D)              as they will be
    table (K, 4)   forget, whether sound, weight, discounted error  added (K, D) on the diagonals of the matrices
    numbers (4)    rows that count, the step, whether all of it is to be taken, the slack of a step
    unsound (K+2)  set where a filter fails; then where the batch is not finite, then where the layer is not
    constants      see `cuda_filters._constants`: numbers that a kernel is called with would be float32
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
    from .line_kernels import length

    @triton.jit
    def _is_finite(value):
        """Not by `value - value`: a product minus itself is compiled to its rounding error."""
        return tl.abs(value) < float("inf")

    @triton.jit
    def _finite(values):
        """1 where every value is finite, else 0."""
        return tl.min(tl.where(_is_finite(values), 1, 0), axis=0)

    @triton.jit
    def rows(
        phi, ps0, ps1, y, weight, bias, layer, X, L, change, peaks, seen, n, o, d, D, wide,
        BIAS: tl.constexpr, LABELS: tl.constexpr, AUTO: tl.constexpr, BLOCK: tl.constexpr, OUTPUTS: tl.constexpr,
    ):  # fmt: skip
        """A row of X (of zeros where a label is to be ignored), or of the layer as it is stored: for one filter that is L,
        for several how it differs from what they made of it, and the largest such number."""
        row = tl.program_id(0)
        c = tl.arange(0, BLOCK)
        if row < n:
            value = tl.load(phi + row.to(tl.int64) * ps0 + c * ps1, mask=c < d, other=0.0).to(tl.float64)
            if BIAS:
                value = tl.where(c == d, 1.0, value)
            if LABELS:
                q = tl.arange(0, OUTPUTS)
                largest = tl.max(tl.load(y + row * o + q, mask=q < o, other=0.0).to(tl.float64), axis=0)
                counts = tl.where(largest > 0.0, 1.0, 0.0)
                value = value * counts
                tl.store(seen + row, counts)
            tl.store(X + row.to(tl.int64) * wide + c, value, mask=c < wide)
        else:
            at = row - n
            value = tl.load(weight + at * d + c, mask=c < d, other=0.0).to(tl.float64)
            if BIAS:
                value = tl.where(c == d, tl.load(bias + at).to(tl.float64), value)
            if AUTO:
                before = tl.load(layer + at * D + c, mask=c < D, other=0.0)
                tl.store(change + at * wide + c, value - before, mask=c < wide)
                tl.store(peaks + at, tl.max(tl.abs(value - before), axis=0))
                tl.store(peaks + o + at, tl.max(tl.abs(before), axis=0))
            else:
                tl.store(L + at * wide + c, value, mask=c < wide)

    @triton.jit
    def stand(
        layers, change, peaks, step, forget, constants, L, o, d, D, wide,
        LABELS: tl.constexpr, BLOCK: tl.constexpr, OUTPUTS: tl.constexpr,
    ):  # fmt: skip
        """A row of the layer of a filter. One that was changed from outside by more than rounding moves them all. Under
        cross-entropy they decay, see `Auto._decay_`."""
        row = tl.program_id(0)  # k o + q
        q = tl.arange(0, OUTPUTS)
        changed = tl.max(tl.load(peaks + q, mask=q < o, other=0.0), axis=0)
        rounding = 1e-6 * tl.max(tl.load(peaks + o + q, mask=q < o, other=0.0), axis=0)  # float32's
        follow = (changed > rounding) | (tl.load(step) == 0)
        c = tl.arange(0, BLOCK)
        value = tl.load(layers + row.to(tl.int64) * D + c, mask=c < D, other=0.0)
        moved = tl.load(change + (row % o) * wide + c, mask=c < wide, other=0.0)
        value = tl.where(follow, value + moved, value)
        if LABELS:
            decays = (c < d) & (tl.load(step) > 0)
            value *= 1.0 - tl.where(decays, tl.load(constants + 19) * (1.0 - tl.load(forget + row // o)), 0.0)
        tl.store(L + row.to(tl.int64) * wide + c, value, mask=c < wide)

    @triton.jit
    def residuals(y, Z, ee, n, o, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        """`y - Z` in place of Z, and sums of its squares over these rows. Columns are k o + q."""
        r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        mask = (r[:, None] < n) & (c[None, :] < columns)
        at = Z + r[:, None].to(tl.int64) * columns + c[None, :]
        E = tl.load(y + r[:, None].to(tl.int64) * o + (c % o)[None, :], mask=mask, other=0.0).to(tl.float64)
        E -= tl.load(at, mask=mask, other=0.0)
        tl.store(at, E, mask=mask)
        tl.store(ee + tl.program_id(0) * columns + c, tl.sum(E * E, axis=0), mask=c < columns)

    @triton.jit
    def label_residuals(
        y, Z, ee, losses, seen, constants, n, o, columns, filters, ROWS: tl.constexpr, OUTPUTS: tl.constexpr
    ):
        """The residuals of the working targets of cross-entropy times half its curvature, in place of Z; sums over these
        rows of their squares in the units of the bound, and of the loss itself."""
        r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        k = tl.program_id(1)
        q = tl.arange(0, OUTPUTS)
        mask = (r[:, None] < n) & (q[None, :] < o)
        at = Z + r[:, None].to(tl.int64) * columns + k * o + q[None, :]
        z = tl.load(at, mask=mask, other=float("-inf"))
        target = tl.load(y + r[:, None].to(tl.int64) * o + q[None, :], mask=mask, other=0.0).to(tl.float64)
        counts = tl.load(seen + r, mask=r < n, other=0.0)
        top = tl.where(r < n, tl.max(z, axis=1), 0.0)
        powers = tl.exp(z - top[:, None])
        total = tl.where(r < n, tl.sum(powers, axis=1), 1.0)
        mass = tl.sum(target, axis=1)
        curvature = tl.load(constants + 1)
        E = (target - powers * (mass / total)[:, None]) / curvature
        weight = curvature / 2 * counts[:, None]
        tl.store(at, weight * E, mask=mask)
        squares = tl.sum(tl.where(mask, weight * E * E, 0.0), axis=0)
        tl.store(ee + tl.program_id(0) * columns + k * o + q, squares, mask=q < o)
        logs = tl.where(mask, z, 0.0) - (top + tl.log(total))[:, None]
        tl.store(losses + tl.program_id(0) * filters + k, -tl.sum(tl.sum(target * logs, axis=1), axis=0))

    @triton.jit(do_not_specialize=["n", "d", "D"])
    def prepare(
        G, prior, forget, step, seen, constants, added, table, numbers, unsound, new_prior, n, d, D, wide, filters,
        L, C, ee, errors, o, columns,
        LABELS: tl.constexpr, BOUNDED: tl.constexpr, DRAWN: tl.constexpr, LEAKING: tl.constexpr, BLOCK: tl.constexpr,
        ROWS: tl.constexpr,
    ):  # fmt: skip
        """What is added to the diagonal of a filter's matrix (the prior at first, then the leak and what it is held by), and
        the numbers that all kernels after this one share. A layer that is drawn to zero has that in `C` and `ee` from here
        on, see `evidence.measured`."""
        k = tl.program_id(0)
        c = tl.arange(0, BLOCK)
        inside = c < D
        t = tl.load(step)
        diagonal = tl.load(constants) * tl.load(G + c.to(tl.int64) * (wide + 1), mask=inside, other=0.0)
        mean = tl.sum(tl.where(c < d, diagonal, 0.0), axis=0) / d.to(tl.float64)
        mean = tl.where(mean > 0.0, mean, 1.0)
        units = tl.where(c < d, mean, diagonal)  # of the bias its own
        before = tl.load(prior + c, mask=inside, other=1.0)
        lam = tl.load(constants + 2)
        now = tl.where(before <= 0.0, tl.where(lam > 0.0, lam, tl.load(constants + 3) * units), before)
        gamma = tl.load(forget + k)
        held = tl.load(constants + 24 + k)
        count = n.to(tl.float64)
        if LABELS:
            counts = tl.zeros((ROWS,), tl.float64)
            for low in range(0, n, ROWS):
                r = low + tl.arange(0, ROWS)
                counts += tl.load(seen + r, mask=r < n, other=0.0)
            count = tl.sum(counts, axis=0)
        if BOUNDED:  # see `Auto._forgetting`
            usual = tl.load(constants + 9)
            a_row = D.to(tl.float64) / tl.maximum(count, 1e-9)
            many = tl.load(constants + 12) * a_row
            most = tl.load(constants + 10)
            least = tl.minimum(most, tl.maximum(usual, tl.load(constants + 11) * a_row))
            early = tl.minimum(tl.maximum(t.to(tl.float64) / tl.load(constants + 13), many), usual)
            late = tl.minimum(t.to(tl.float64) / tl.load(constants + 14), tl.maximum(many, most))
            shortest = 1.0 - 1.0 / tl.maximum(tl.where(many < usual, early, least), late)
            long = (1.0 - gamma) * most < tl.load(constants + 18)
            shortest = tl.where(long, tl.maximum(shortest, 1.0 - 1.0 / many), shortest)
            gamma = tl.where(held > 0.0, gamma, tl.maximum(gamma, shortest))
        turn = (c - (t * LEAKING) % D + D) % D < LEAKING
        kept = tl.maximum(now * (tl.load(constants + 4) * (1.0 - gamma)), tl.load(constants + 5) * diagonal)
        kept = tl.where(turn & (t > 0), kept * (D.to(tl.float64) / LEAKING), 0.0)
        hold = held * (1.0 - gamma) * units
        if DRAWN:
            norm = tl.full((), 0.0, tl.float64)
            for q in range(o):
                own = tl.load(L + (k * o + q).to(tl.int64) * wide + c, mask=c < d, other=0.0)
                norm += tl.sum(own * own, axis=0)
            past = tl.maximum(t.to(tl.float64) - 1.0, 1.0)
            discount = tl.load(constants + 7)
            left = tl.where(discount > 0.0, tl.exp(tl.log(tl.maximum(discount, 1e-300)) * past), 0.0)
            share = tl.load(errors + k) * (1.0 - discount) / (1.0 - left) / tl.load(constants + 20)
            share = tl.where(_is_finite(share) & (t > 1), tl.minimum(share, 1.0), 1.0)
            size = tl.load(constants + 21) * mean
            wanted = d.to(tl.float64) * tl.load(constants + 23) / 2.0 * share * share
            zero = tl.where(norm * size > wanted, wanted / tl.where(norm > 0.0, norm, 1.0), size)
            zero = tl.where(t > 0, zero * (1.0 - gamma) * tl.load(constants + 22), 0.0)
            hold += tl.where(c < d, zero, 0.0)
            for q in range(o):
                column = k * o + q
                own = tl.load(L + column.to(tl.int64) * wide + c, mask=c < d, other=0.0)
                at = C + c.to(tl.int64) * columns + column
                tl.store(at, tl.load(at, mask=c < d, other=0.0) - zero * own, mask=c < d)
                tl.store(ee + column, tl.load(ee + column) + zero * tl.sum(own * own, axis=0))
        tl.store(added + k * D + c, tl.where(before <= 0.0, now, kept + hold), mask=inside)
        tl.store(table + 4 * k, gamma)
        tl.store(unsound + k, 0)
        if k == 0:
            tl.store(new_prior + c, now, mask=inside)
            tl.store(unsound + filters, 0)
            tl.store(unsound + filters + 1, 0)
            tl.store(numbers + 1, t.to(tl.float64))
            tl.store(numbers, count)
            none, whole = tl.load(constants + 16), tl.load(constants + 17)  # see `lines.slack`
            trusted = tl.minimum(tl.maximum((count / D.to(tl.float64) - none) / (whole - none), 0.0), 1.0)
            tl.store(numbers + 3, tl.exp(tl.log(tl.load(constants + 15)) * trusted))

    @triton.jit
    def _matrix_row(A, G, added, k, i, gamma, scale, D, wide, c):
        """`gamma A + scale G + added` of one row."""
        old = tl.load(A + (k.to(tl.int64) * D + i) * D + c, mask=c < D, other=0.0)
        new = gamma * old + scale * tl.load(G + i.to(tl.int64) * wide + c, mask=c < D, other=0.0)
        return tl.where(c == i, new + tl.load(added + k * D + i), new)

    @triton.jit
    def absorb(
        A, G, C, added, table, unsound, constants, T, o, D, wide, size, width, columns, filters,
        BLOCK: tl.constexpr, OUTPUTS: tl.constexpr,
    ):  # fmt: skip
        """A row of `[A | C]` for the elimination, its diagonal raised by its rounding error."""
        i = tl.program_id(0)
        k = tl.program_id(1)
        c = tl.arange(0, BLOCK)
        q = tl.arange(0, OUTPUTS)
        at = T + (k.to(tl.int64) * size + i) * width
        if i < D:
            new = _matrix_row(A, G, added, k, i, tl.load(table + 4 * k), tl.load(constants), D, wide, c)
            right = tl.load(C + i.to(tl.int64) * columns + k * o + q, mask=q < o, other=0.0)
            batch = tl.load(G + i.to(tl.int64) * wide + c, mask=c < D, other=0.0)
            if tl.minimum(_finite(batch), _finite(right)) == 0:
                tl.atomic_max(unsound + filters, 1)
            if _finite(new) == 0:
                tl.atomic_max(unsound + k, 1)
            new = tl.where(c == i, new + tl.maximum(new * tl.load(constants + 6), 0.0), new)
        else:
            new = tl.where(c == i, 1.0, 0.0).to(tl.float64)
            right = tl.zeros((OUTPUTS,), tl.float64)
        tl.store(at + c, new, mask=c < size)
        tl.store(at + size + q, right, mask=q < o)

    @triton.jit
    def finish(
        dW, per_filter, per_row, C, L, M, ee, sums, noise, new_noise, table, numbers, unsound, looks, constants,
        parts, o, D, wide, columns, filters,
        LOOKS: tl.constexpr, FEATURES: tl.constexpr, OUTPUTS: tl.constexpr, PARTS: tl.constexpr,
    ):  # fmt: skip
        """Some outputs of a filter's layer after the solve, and their noise level (see `filters.noise`)."""
        k = tl.program_id(1)
        t = tl.full((), 1.0, tl.float64)
        if LOOKS > 0:
            t = length(looks, tl.load(numbers + 3), constants, k, parts, filters, LOOKS, PARTS)
        q = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
        sound = tl.full((OUTPUTS,), 1, tl.int32)
        explained = tl.zeros((OUTPUTS,), tl.float64)
        for low in range(0, D, FEATURES):
            c = low + tl.arange(0, FEATURES)
            mask = (c[:, None] < D) & (q[None, :] < o)
            at = k.to(tl.int64) * per_filter + c[:, None].to(tl.int64) * per_row + q[None, :]
            step = tl.load(dW + at, mask=mask, other=0.0)
            explained += tl.sum(
                step * tl.load(C + c[:, None].to(tl.int64) * columns + k * o + q[None, :], mask=mask, other=0.0), axis=0
            )
            row = (k * o + q[None, :]).to(tl.int64)
            new = t * step + tl.load(L + row * wide + c[:, None], mask=mask, other=0.0)
            tl.store(M + row * D + c[:, None], new, mask=mask)
            sound = tl.minimum(sound, tl.min(tl.where(_is_finite(new), 1, 0), axis=0))
        p = tl.arange(0, PARTS)
        each = ee + p[:, None] * columns + k * o + q[None, :]
        squares = tl.sum(tl.load(each, mask=(p[:, None] < parts) & (q[None, :] < o), other=0.0), axis=0)
        tl.store(sums + k * o + q, squares, mask=q < o)
        old = tl.load(noise + k * o + q, mask=q < o, other=0.0)
        share = tl.maximum(3.0 / (tl.load(numbers + 1) + 3.0), 1.0 - tl.load(table + 4 * k))
        level = old + share * (tl.maximum(squares - explained, 0.0) / tl.load(numbers) - old)
        tl.store(new_noise + k * o + q, level, mask=q < o)
        sound = tl.minimum(sound, tl.where(_is_finite(level), 1, 0))
        if tl.min(sound, axis=0) == 0:
            tl.atomic_max(unsound + k, 1)

    @triton.jit(do_not_specialize=["n", "D", "o"])
    def choose(
        sums, losses, errors, sound_blocks, constants, table, numbers, unsound, parts, blocks, n, o, D, filters,
        LABELS: tl.constexpr, AUTO: tl.constexpr, DOUBLINGS: tl.constexpr,
        K: tl.constexpr, BLOCKS: tl.constexpr, OUTPUTS: tl.constexpr, PARTS: tl.constexpr,
    ):  # fmt: skip
        """Which filters are sound, their discounted errors and their weights in the layer."""
        k = tl.arange(0, K)
        inside = k < filters
        b = tl.arange(0, BLOCKS)
        flags = tl.load(
            sound_blocks + b[:, None] * filters + k[None, :], mask=(b[:, None] < blocks) & inside[None, :], other=1
        )
        fine = tl.min(flags.to(tl.int32), axis=0)
        fine = tl.where(inside & (tl.load(unsound + k, mask=inside, other=1) == 0), fine, 0)
        if AUTO:
            handicap = tl.zeros((K,), tl.float64)
            if LABELS:
                p = tl.arange(0, PARTS)
                each = losses + p[:, None] * filters + k[None, :]
                error = tl.sum(tl.load(each, mask=(p[:, None] < parts) & inside[None, :], other=0.0), axis=0)
            else:
                q = tl.arange(0, OUTPUTS)
                error = tl.sum(
                    tl.load(sums + k[:, None] * o + q[None, :], mask=inside[:, None] & (q[None, :] < o), other=0.0),
                    axis=1,
                )
                error = error / o.to(tl.float64)
                scarcity = tl.minimum(1.0, tl.load(constants + 9) * D.to(tl.float64) / n.to(tl.float64))
                handicap = tl.load(constants + 8) * scarcity * scarcity
                handicap = handicap * tl.load(constants + 24 + filters + k, mask=inside, other=0.0)
            error = error / tl.load(numbers)
            total = tl.load(constants + 7) * tl.load(errors + k, mask=inside, other=0.0) + error
            total = tl.where(tl.load(numbers + 1) == 0.0, 0.0, total)
            known = total * (1.0 + handicap)
            known = tl.where((fine > 0) & _is_finite(known), known, float("inf"))
            least = tl.maximum(tl.min(known, axis=0), 2.2250738585072014e-308)
            ratio = tl.maximum(known, least) / least
            for _ in tl.static_range(DOUBLINGS):
                ratio = ratio * ratio
            weight = tl.where(fine > 0, 1.0 / ratio, 0.0)
            weight = weight / tl.sum(weight, axis=0)
            finite = tl.min(tl.where(_is_finite(total) | (k >= filters), 1, 0), axis=0)
            take = finite * tl.max(fine, axis=0)
            tl.store(table + 4 * k + 3, total, mask=inside)
        else:
            weight = tl.where(inside, 1.0, 0.0).to(tl.float64)
            take = tl.max(fine, axis=0)
        tl.store(table + 4 * k + 1, fine.to(tl.float64), mask=inside)
        tl.store(table + 4 * k + 2, weight, mask=inside)
        tl.store(numbers + 2, take.to(tl.float64))

    @triton.jit
    def mix(L, M, weight, mixed, table, unsound, o, D, wide, filters, BLOCK: tl.constexpr):
        """A row of the layer: the filters' mean by weight. Whether it is finite as it will be stored."""
        q = tl.program_id(0)
        c = tl.arange(0, BLOCK)
        value = tl.zeros((BLOCK,), tl.float64)
        for k in range(filters):
            share = tl.load(table + 4 * k + 2)
            if tl.load(table + 4 * k + 1) > 0.0:
                one = tl.load(M + (k * o + q).to(tl.int64) * D + c, mask=c < D, other=0.0)
            else:
                one = tl.load(L + (k * o + q).to(tl.int64) * wide + c, mask=c < D, other=0.0)
            value += share * one
        tl.store(mixed + q * D + c, value, mask=c < D)
        short = value.to(weight.dtype.element_ty)
        if _finite(short) == 0:
            tl.atomic_max(unsound + filters + 1, 1)

    @triton.jit
    def commit(
        weight, bias, step, attempts, A, prior, noise, layers, layer, errors, weights, shares, history, forget,
        G, added, L, M, mixed, new_noise, new_prior, table, numbers, unsound, constants, o, d, D, wide, filters,
        BIAS: tl.constexpr, AUTO: tl.constexpr, COVARIANCE: tl.constexpr,
        K: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """A row of the memory's matrices, of its layers or of the layer, if all is sound; last the counters. A covariance
        lies ready in G, the other form is made once more.

        A single filter that fails on a finite batch starts anew from its prior (`filters.restarted`)."""
        row = tl.program_id(0)
        c = tl.arange(0, BLOCK)
        take = (tl.load(numbers + 2) > 0.0) & (tl.load(unsound + filters + 1) == 0)
        if row < filters * D:
            k = row // D
            i = row % D
            if take & (tl.load(table + 4 * k + 1) > 0.0):
                if COVARIANCE:
                    new = tl.load(G + (k.to(tl.int64) * wide + i) * wide + c, mask=c < D, other=0.0)
                else:
                    new = _matrix_row(A, G, added, k, i, tl.load(table + 4 * k), tl.load(constants), D, wide, c)
                tl.store(A + row.to(tl.int64) * D + c, new, mask=c < D)
            if not AUTO:
                inside = c < D
                start = tl.load(prior + c, mask=inside, other=1.0)
                again = (tl.load(unsound + filters) == 0) & (tl.min(start, axis=0) > 0.0)
                if again & (not take):
                    if COVARIANCE:
                        start = 1.0 / start
                    tl.store(A + row.to(tl.int64) * D + c, tl.where(c == i, start, 0.0), mask=inside)
        elif row < filters * (D + o):
            at = row - filters * D
            sound = tl.load(table + 4 * (at // o) + 1) > 0.0
            if take:
                if sound:
                    tl.store(noise + at, tl.load(new_noise + at))
                if AUTO:
                    if sound:
                        new = tl.load(M + at.to(tl.int64) * D + c, mask=c < D, other=0.0)
                    else:
                        new = tl.load(L + at.to(tl.int64) * wide + c, mask=c < D, other=0.0)
                    tl.store(layers + at.to(tl.int64) * D + c, new, mask=c < D)
        elif row < filters * (D + o) + o:
            q = row - filters * (D + o)
            if take:
                new = tl.load(mixed + q * D + c, mask=c < D, other=0.0)
                tl.store(weight + q * d + c, new.to(weight.dtype.element_ty), mask=c < d)
                if BIAS:
                    tl.store(bias + q + c * 0, new.to(bias.dtype.element_ty), mask=c == d)
                if AUTO:
                    tl.store(layer + q * D + c, new, mask=c < D)
        else:
            tl.store(attempts, tl.load(attempts) + 1)
            if take:
                t = tl.load(step)
                tl.store(step, t + 1)
                tl.store(prior + c, tl.load(new_prior + c, mask=c < D, other=0.0), mask=c < D)
                if AUTO:
                    k = tl.arange(0, K)
                    inside = k < filters
                    share = tl.load(table + 4 * k + 2, mask=inside, other=0.0)
                    tl.store(errors + k, tl.load(table + 4 * k + 3, mask=inside, other=0.0), mask=inside)
                    tl.store(weights + k, share, mask=inside)
                    tl.store(shares + k, tl.load(shares + k, mask=inside, other=0.0) + share, mask=inside)
                    tl.store(history + (t % KEPT) * filters + k, share, mask=inside)
                    tl.store(forget + k, tl.load(table + 4 * k, mask=inside, other=0.0), mask=inside)
