"""The Triton kernels of `lines`: how far each of several filters goes along its step. `cuda_filters` launches `look` between
those of `filter_kernels`, whose arrays these are, and `finish` there takes the `length`::

    Z, dZ         the predictions of every filter, and their step
    sums          `(looks, parts, K)`, what was seen on some rows: slopes at 0 and 1, the squares of the step, then a
                  slope each at the lengths that the looks before it have come to
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

    @triton.jit
    def _added_up(sums, k, parts, filters, PARTS: tl.constexpr):
        p = tl.arange(0, PARTS)
        return tl.sum(tl.load(sums + p * filters + k, mask=p < parts, other=0.0), axis=0)

    @triton.jit
    def length(sums, slack, constants, k, parts, filters, LOOKS: tl.constexpr, PARTS: tl.constexpr):
        """How far a filter goes along its step, by what the first `LOOKS` launches of `look` have seen: `lines.length`."""
        each = parts * filters
        whole = -_added_up(sums, k, parts, filters, PARTS)
        near = _added_up(sums + each, k, parts, filters, PARTS)
        own = tl.load(constants + 1) * _added_up(sums + 2 * each, k, parts, filters, PARTS)
        past = tl.maximum(whole - own, 0.0)
        rho = tl.where(own > 0.0, tl.minimum(tl.maximum((near + whole) / own, 1.0 / slack), 1.0), 1.0)
        low = rho * 0.0 + 1.0
        below = tl.minimum(near + rho * past, 0.0)
        high = 1.0 / rho
        t = high
        if LOOKS > 1:
            above = _added_up(sums + 3 * each, k, parts, filters, PARTS) + t * rho * past
            done = above <= 0.0
            t = tl.where(done, high, low - below * (high - low) / (above - below))
            for seen in tl.static_range(2, LOOKS):
                here = _added_up(sums + (2 + seen) * each, k, parts, filters, PARTS) + t * rho * past
                left = (here <= 0.0) & (above > 0.0)
                right = (here > 0.0) & (above > 0.0)
                low = tl.where(left, t, low)
                below = tl.where(left, here, below)
                high = tl.where(right, t, high)
                above = tl.where(right, here, above)
                t = tl.where(done, high, low - below * (high - low) / (above - below))
        return t

    @triton.jit
    def look(
        y, Z, dZ, sums, numbers, constants, n, o, columns, parts, filters,
        LOOKS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, PARTS: tl.constexpr,
    ):  # fmt: skip
        """The slope of the loss along the step of a filter, a sum over these rows: at first at 0 and 1, with the squares of
        the step, then at the length that the looks before this one have come to."""
        r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        k = tl.program_id(1)
        q = tl.arange(0, OUTPUTS)
        mask = (r[:, None] < n) & (q[None, :] < o)
        z = tl.load(Z + r[:, None].to(tl.int64) * columns + k * o + q[None, :], mask=mask, other=float("-inf"))
        dz = tl.load(dZ + (k.to(tl.int64) * n + r[:, None]) * o + q[None, :], mask=mask, other=0.0)
        target = tl.load(y + r[:, None].to(tl.int64) * o + q[None, :], mask=mask, other=0.0).to(tl.float64)
        at = sums + tl.program_id(0) * filters + k
        each = parts * filters
        if LOOKS == 0:
            tl.store(at, _slope(z, dz, target, r < n))
            tl.store(at + each, _slope(z + dz, dz, target, r < n))
            tl.store(at + 2 * each, tl.sum(tl.sum(dz * dz, axis=1), axis=0))
        else:
            t = length(sums, tl.load(numbers + 3), constants, k, parts, filters, LOOKS, PARTS)
            tl.store(at + (2 + LOOKS) * each, _slope(z + t * dz, dz, target, r < n))

    @triton.jit
    def _slope(z, dz, target, inside):
        """The derivative of cross-entropy at z along dz. Rows that do not count have no step."""
        top = tl.where(inside, tl.max(z, axis=1), 0.0)
        powers = tl.exp(z - top[:, None])
        total = tl.where(inside, tl.sum(powers, axis=1), 1.0)
        mass = tl.sum(target, axis=1)
        return tl.sum(tl.sum((powers * (mass / total)[:, None] - target) * dz, axis=1), axis=0)
