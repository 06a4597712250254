"""`Kalman` and `Auto` in the information form on a CUDA device: the whole solve in some twenty launches.

What `Auto.update` and `filters.absorb` say in dozens of small operations, a few kernels of `filter_kernels` do, with three
products and the elimination between them, in the same float64 and with the same guard: nothing is written before it is known
that all of it is finite::

    rows, stand        X, and the layers of all filters as they are
    product            Z = X L^T                              predictions of all filters
    residuals          E in place of Z, its squares, the loss
    products           G = X^T X,  C = X^T E
    prepare, absorb    A_k <- gamma_k A_k + G + diagonal      [A_k | C_k]
    elimination        dW_k
    look               at the loss along dW_k, four times     how far each filter goes (`Auto` under cross-entropy)
    finish, choose, mix, commit
"""

# a type checker does not know how kernels are launched, nor that Triton is there when they are:
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from . import auto, elimination, filters, linalg, lines
from . import filter_kernels as kernels
from .guard import Layer
from .losses import CrossEntropy, Loss
from .rules import Filters

_TILE, _COLUMNS = 4096, 32  # numbers and columns of a tile of residuals
_PARTS = 128  # sums over the rows that are kept apart, where tiles are small enough
_FEATURES, _OUTPUTS = 128, 4  # of a tile of the layers


def _constants(side: Filters, features: int, curvature: float | None, slack: float) -> tuple[float, ...]:
    """The numbers of a rule in the order in which the kernels read them. The squared loss and cross-entropy share a place:
    below how many rows a feature the handicap is whole, and the usual least memory in batches."""
    squared = curvature is None
    rounding = linalg.rounding(features, torch.float64)
    usual = auto.SCARCE if squared else auto.BOUNDED_BATCHES[0]
    bounds = (usual, auto.BOUNDED_BATCHES[1], *auto.BOUNDED_ROWS, auto.BOUNDED_STEPS)
    bounds += (slack, *lines.TRUSTED, 1 + auto.ROUNDING)
    shared = (side.lam, side.ratio, filters.LEAK, filters.TOLD_APART, rounding, side.discount, side.handicap, *bounds)
    scale = (1.0, 2.0) if squared else (curvature / 2, curvature)
    return (*scale, *map(float, shared), *side.hold, *(math.sqrt(1 - gamma) for gamma in side.shortest))


def solve_(layer: Layer, phi: Tensor, y: Tensor, loss: Loss, memory: Mapping[str, Tensor], side: Filters) -> None:
    """Solve the layer in place on `phi (n, d)` and targets `y (n, o)` of the squared loss or of cross-entropy, and take the
    rule's memory with it."""
    with elimination.on(phi.device):
        curvature = loss.curvature if isinstance(loss, CrossEntropy) else None
        _solve_(layer, phi, y.contiguous(), curvature, lines.whole_slack(loss, y.shape[1]), memory, side)
    for tensor in (layer.weight,) if layer.bias is None else (layer.weight, layer.bias):
        torch.autograd.graph.increment_version(tensor)  # so that a backward through the old layer is noticed


def _solve_(
    layer: Layer,
    phi: Tensor,
    y: Tensor,
    curvature: float | None,
    slack: float,
    memory: Mapping[str, Tensor],
    side: Filters,
) -> None:
    weight, bias, step, attempts = layer
    (n, d), o, K = phi.shape, y.shape[1], len(side.hold)
    D, several, labels, biased = d + int(bias is not None), side.weighed, curvature is not None, bias is not None
    constants = auto.constant(_constants(side, D, curvature, slack), memory["prior"])
    forget = side.forget if isinstance(side.forget, Tensor) else auto.constant(side.forget, memory["prior"])
    A, prior = memory["information"], memory["prior"]
    wide, size, columns = -(-D // 8) * 8, elimination.padded(D), K * o
    power = kernels.triton.next_power_of_2
    block, outputs, slots = power(max(wide, size)), power(o), power(K)
    tile = outputs if labels else min(_COLUMNS, power(columns))
    per_part = min(max(4, power(-(-n // _PARTS))), max(1, _TILE // tile))
    parts = -(-n // per_part)
    new = {"dtype": torch.float64, "device": phi.device}
    X, L, M = torch.empty(n, wide, **new), torch.empty(columns, wide, **new), torch.empty(K, o, D, **new)
    # small arrays as pieces of one
    sizes = {
        "change": o * wide if several else 0, "peaks": 2 * o, "seen": n, "ee": parts * columns, "losses": parts * K,
        "added": K * D, "table": 4 * K, "numbers": 4, "sums": columns, "noise": columns, "prior": D, "mixed": o * D,
    }  # fmt: skip
    pieces = dict(zip(sizes, torch.empty(sum(sizes.values()), **new).split(list(sizes.values()))))
    unsound = torch.empty(K + 2, dtype=torch.int32, device=phi.device)
    none = prior  # in place of what a rule does not have
    b = weight if bias is None else bias
    layers, whole = memory.get("layers", none), memory.get("layer", none)
    kernels.rows[(n + o,)](
        phi, phi.stride(0), phi.stride(1), y, weight, b, whole, X, L, pieces["change"], pieces["peaks"], pieces["seen"],
        n, o, d, D, wide, BIAS=biased, LABELS=labels, AUTO=several, BLOCK=block, OUTPUTS=outputs,
    )  # fmt: skip
    if several:
        kernels.stand[(columns,)](
            layers, pieces["change"], pieces["peaks"], step, L, o, D, wide, BLOCK=block, OUTPUTS=outputs
        )
    E = torch.mm(X, L.T)
    if labels:
        kernels.label_residuals[(parts, K)](
            y, E, pieces["ee"], pieces["losses"], pieces["seen"], constants, n, o, columns, K,
            ROWS=per_part, OUTPUTS=outputs,
        )  # fmt: skip
    else:
        kernels.residuals[(parts, -(-columns // tile))](y, E, pieces["ee"], n, o, columns, ROWS=per_part, COLUMNS=tile)
    G, C = torch.mm(X.T, X), torch.mm(X.T, E)
    kernels.prepare[(K,)](
        G, prior, forget, step, pieces["seen"], constants, pieces["added"], pieces["table"],
        pieces["numbers"], unsound, pieces["prior"], n, d, D, wide, K,
        LABELS=labels, BOUNDED=labels and several, LEAKING=min(filters.LEAKING, D), BLOCK=block, ROWS=1024,
    )  # fmt: skip
    T = torch.empty(K, size, size + o, **new)
    kernels.absorb[(size, K)](
        A, G, C, pieces["added"], pieces["table"], unsound, constants, T,
        o, D, wide, size, size + o, columns, K, BLOCK=block, OUTPUTS=outputs,
    )  # fmt: skip
    sound = elimination.eliminate_(T)
    looks = lines.CHORDS + 1 if several and slack > 1 and n > lines.TRUSTED[0] * D else 0
    slopes = torch.empty((2 + looks) * parts * K if looks else 0, **new)
    if looks:
        Z, dZ = torch.mm(X, L.T), torch.matmul(X[:, :D], T[:, :D, size:])  # the residuals took the place of the first
        for seen in range(looks):
            kernels.look[(parts, K)](
                y, Z, dZ, slopes, pieces["numbers"], constants, n, o, columns, parts, K,
                LOOKS=seen, ROWS=per_part, OUTPUTS=outputs, PARTS=power(parts),
            )  # fmt: skip
    kernels.finish[(-(-o // _OUTPUTS), K)](
        T, C, L, M, pieces["ee"], pieces["sums"], memory["noise"], pieces["noise"], pieces["table"], pieces["numbers"],
        unsound, slopes, constants, parts, o, D, wide, size, size + o, columns, K,
        LOOKS=looks, FEATURES=_FEATURES, OUTPUTS=_OUTPUTS, PARTS=power(parts),
    )  # fmt: skip
    kernels.choose[(1,)](
        pieces["sums"], pieces["losses"], memory.get("errors", none), sound, constants, pieces["table"],
        pieces["numbers"], unsound, parts, len(sound), n, o, D, K, LABELS=labels, AUTO=several,
        DOUBLINGS=round(math.log2(auto.SHARPNESS)), K=slots, BLOCKS=power(len(sound)), OUTPUTS=outputs, PARTS=power(parts),
    )  # fmt: skip
    kernels.mix[(o,)](L, M, weight, pieces["mixed"], pieces["table"], unsound, o, D, wide, K, BLOCK=block)
    history = memory.get("history", none)
    kernels.commit[(K * (D + o) + o + 1,)](
        weight, b, step, attempts, A, prior, memory["noise"], layers, whole,
        *(memory.get(name, none) for name in ("errors", "weights", "shares")), history, memory.get("forget", none),
        G, pieces["added"], L, M, pieces["mixed"], pieces["noise"], pieces["prior"], pieces["table"],
        pieces["numbers"], unsound, constants, o, d, D, wide, K,
        BIAS=biased, AUTO=several, K=slots, KEPT=len(history), BLOCK=block,
    )  # fmt: skip
