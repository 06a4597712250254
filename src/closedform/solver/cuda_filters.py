"""`Kalman` and `Auto` on a CUDA device: the whole solve in some twenty launches.

What `Auto.update` and `filters.absorb` say in dozens of small operations, a few kernels do, with products and an elimination
between them, in the same float64 and with the same guard: nothing is written before it is known that all of it is finite::

    rows, stand        X, and the layers of all filters as they are
    product            Z = X L^T                              predictions of all filters
    residuals          E in place of Z, its squares, the loss
    product            C = X^T E
    prepare            what is added to the diagonals, and shared numbers
                                                              `filter_kernels`, information:
    product, absorb    A_k <- gamma_k A_k + X^T X + diagonal  [A_k | C_k]
    elimination        dW_k
                                                              `covariance_kernels`:
    predict, measure   P_k <- P_k / gamma_k                   X_k: the rows, and those of the leak
    product, state     Y_k = X_k P_k                          [Y_k X_k^T + I | Y_k]
    elimination        the gains K_k^T
    products, settle   P_k <- P_k - K_k Y_k, by Joseph's form, symmetric
    product            dW_k

    look               at the loss along dW_k, four times     `line_kernels`: how far each filter goes (cross-entropy)
    finish, choose, mix, commit
"""

# a type checker does not know how kernels are launched, nor that Triton is there when they are:
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from . import auto, covariance_kernels, elimination, evidence, filters, linalg, line_kernels, lines, route
from . import filter_kernels as kernels
from .guard import Layer
from .losses import CrossEntropy, Loss
from .rules import Filters

_TILE, _COLUMNS = 4096, 32  # numbers and columns of a tile of residuals
_PARTS = 128  # sums over the rows that are kept apart, where tiles are small enough
_FEATURES, _OUTPUTS = 512, 2  # of a tile of the layers
_SQUARES = 64, 32  # rows and features of a tile of what is squared
_SETTLED = 32  # of a side of a tile of the covariance


def _constants(side: Filters, size: int, loss: CrossEntropy | None, outputs: int) -> tuple[float, ...]:
    """The numbers of a rule in the order in which the kernels read them; `size` is that of the system that is solved. The
    squared loss and cross-entropy share a place: below how many rows a feature the handicap is whole, and the usual least
    memory in batches."""
    rounding = linalg.rounding(size, torch.float64)
    usual = auto.SCARCE if loss is None else auto.BOUNDED_BATCHES[0]
    early, late = auto.BOUNDED_STEPS
    again = auto.strength(side.handicap)
    bounds = (usual, auto.BOUNDED_BATCHES[1], *auto.BOUNDED_ROWS, early, late / again if again else math.inf)
    bounds += (_slack(loss, outputs), *lines.TRUSTED, 1 + auto.ROUNDING, auto.DECAY * again)
    guess, freedom = (0.0, 0) if loss is None else (loss.guess(outputs), loss.freedom(outputs))
    bounds += (guess, evidence.LARGEST, again, freedom)
    shared = (side.lam, side.ratio, filters.LEAK, filters.TOLD_APART, rounding, side.discount, side.handicap, *bounds)
    scale = (1.0, 2.0) if loss is None else (loss.curvature / 2, loss.curvature)
    return (*scale, *map(float, shared), *side.hold, *(math.sqrt(1 - gamma) for gamma in side.shortest))


def _slack(loss: CrossEntropy | None, outputs: int) -> float:
    return 1.0 if loss is None else lines.whole_slack(loss, outputs)


class _Batch(NamedTuple):
    """What a batch says of all filters, and what they have in common."""

    X: Tensor  # (n, wide)
    E: Tensor  # (n, K o)
    C: Tensor  # (wide, K o)
    matrix: Tensor  # (K, D, D) of the memory
    prepared: Mapping[str, Tensor]
    constants: Tensor
    unsound: Tensor
    outputs: int

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """K, n, D, wide, o."""
        return len(self.matrix), len(self.X), self.matrix.shape[-1], self.X.shape[1], self.outputs


class _Solved(NamedTuple):
    update: Tensor  # (K, D, o) or more rows
    sound: Tensor  # of every block of every system
    matrix: Tensor  # what the new one is made of: `X^T X (wide, wide)`, or the new covariances `(K, wide, wide)`


def solve_(layer: Layer, phi: Tensor, y: Tensor, loss: Loss, memory: Mapping[str, Tensor], side: Filters) -> None:
    """Solve the layer in place on `phi (n, d)` and targets `y (n, o)` of the squared loss or of cross-entropy, and take the
    rule's memory with it."""
    with elimination.on(phi.device):
        _solve_(layer, phi, y.contiguous(), loss if isinstance(loss, CrossEntropy) else None, memory, side)
    for tensor in (layer.weight,) if layer.bias is None else (layer.weight, layer.bias):
        torch.autograd.graph.increment_version(tensor)  # so that a backward through the old layer is noticed


def _solve_(
    layer: Layer,
    phi: Tensor,
    y: Tensor,
    loss: CrossEntropy | None,
    memory: Mapping[str, Tensor],
    side: Filters,
) -> None:
    weight, bias, step, attempts = layer
    (n, d), o, K = phi.shape, y.shape[1], len(side.hold)
    D, several, labels, biased = d + int(bias is not None), side.weighed, loss is not None, bias is not None
    covariance = side.form == "covariance"
    slack, curvature = _slack(loss, o), None if loss is None else loss.curvature
    drawn = loss is not None and several and not covariance and slack == 1 and loss.guess(o) > 0
    matrix, prior = memory[side.form].view(K, D, D), memory["prior"]
    size = min(n, D) + min(filters.LEAKING, D) if covariance else D
    constants = auto.constant(_constants(side, size, loss, o), prior)
    forget = side.forget if isinstance(side.forget, Tensor) else auto.constant(side.forget, prior)
    wide, columns = -(-D // 8) * 8, K * o
    block, outputs, slots = _power(max(wide, elimination.padded(D))), _power(o), _power(K)
    tile = outputs if labels else min(_COLUMNS, _power(columns))
    per_part = min(max(4, _power(-(-n // _PARTS))), max(1, _TILE // tile))
    parts = -(-n // per_part)
    new = {"dtype": torch.float64, "device": phi.device}
    X, L, M = torch.empty(n, wide, **new), torch.empty(columns, wide, **new), torch.empty(K, o, D, **new)
    # small arrays as pieces of one
    sizes = {
        "change": o * wide if several else 0, "peaks": 2 * o, "seen": n, "ee": parts * columns, "losses": parts * K,
        "added": K * D, "table": 4 * K, "numbers": 4, "sums": columns, "noise": columns, "prior": D, "mixed": o * D,
        "diagonal": wide if covariance else 0, "raised": K * D if covariance else 0,
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
            layers, pieces["change"], pieces["peaks"], step, memory["forget"], constants, L, o, d, D, wide,
            LABELS=labels, BLOCK=block, OUTPUTS=outputs,
        )  # fmt: skip
    E = torch.mm(X, L.T)
    if labels:
        kernels.label_residuals[(parts, K)](
            y, E, pieces["ee"], pieces["losses"], pieces["seen"], constants, n, o, columns, K,
            ROWS=per_part, OUTPUTS=outputs,
        )  # fmt: skip
    else:
        kernels.residuals[(parts, -(-columns // tile))](y, E, pieces["ee"], n, o, columns, ROWS=per_part, COLUMNS=tile)
    C = torch.mm(X.T, E)
    G = None
    if not covariance or n > D:
        G = torch.mm(X.T, X)
        diagonal, apart = G, wide
    else:
        diagonal, apart = pieces["diagonal"], 0
        rows, features = _SQUARES
        covariance_kernels.squares[(-(-wide // features),)](X, diagonal, n, wide, ROWS=rows, COLUMNS=features)
    kernels.prepare[(K,)](
        diagonal, prior, forget, step, pieces["seen"], constants, pieces["added"], pieces["table"],
        pieces["numbers"], unsound, pieces["prior"], n, d, D, apart, K,
        L, C, pieces["ee"], memory.get("errors", none), o, columns,
        LABELS=labels, BOUNDED=labels and several, DRAWN=drawn, LEAKING=min(filters.LEAKING, D), BLOCK=block, ROWS=1024,
    )  # fmt: skip
    batch = _Batch(X, E, C, matrix, pieces, constants, unsound, o)
    if covariance:
        solved = _by_covariance(batch, G, curvature)
    else:
        assert G is not None
        solved = _by_information(batch, G)
    dW = solved.update
    looks = lines.CHORDS + 1 if several and slack > 1 and n > lines.TRUSTED[0] * D else 0
    slopes = torch.empty((2 + looks) * parts * K if looks else 0, **new)
    if looks:
        Z, dZ = torch.mm(X, L.T), torch.matmul(X[:, :D], dW[:, :D])  # the residuals took the place of the first
        for seen in range(looks):
            line_kernels.look[(parts, K)](
                y, Z, dZ, slopes, pieces["numbers"], constants, n, o, columns, parts, K,
                LOOKS=seen, ROWS=per_part, OUTPUTS=outputs, PARTS=_power(parts),
            )  # fmt: skip
    kernels.finish[(-(-o // _OUTPUTS), K)](
        dW, dW.stride(0), dW.stride(1), C, L, M, pieces["ee"], pieces["sums"], memory["noise"], pieces["noise"],
        pieces["table"], pieces["numbers"], unsound, slopes, constants, parts, o, D, wide, columns, K,
        LOOKS=looks, FEATURES=_FEATURES, OUTPUTS=_OUTPUTS, PARTS=_power(parts),
    )  # fmt: skip
    blocks = len(solved.sound)
    kernels.choose[(1,)](
        pieces["sums"], pieces["losses"], memory.get("errors", none), solved.sound, constants, pieces["table"],
        pieces["numbers"], unsound, parts, blocks, n, o, D, K, LABELS=labels, AUTO=several,
        DOUBLINGS=round(math.log2(auto.SHARPNESS)), K=slots, BLOCKS=_power(blocks), OUTPUTS=outputs, PARTS=_power(parts),
    )  # fmt: skip
    kernels.mix[(o,)](L, M, weight, pieces["mixed"], pieces["table"], unsound, o, D, wide, K, BLOCK=block)
    history = memory.get("history", none)
    kernels.commit[(K * (D + o) + o + 1,)](
        weight, b, step, attempts, matrix, prior, memory["noise"], layers, whole,
        *(memory.get(name, none) for name in ("errors", "weights", "shares")), history, memory.get("forget", none),
        solved.matrix, pieces["added"], L, M, pieces["mixed"], pieces["noise"], pieces["prior"], pieces["table"],
        pieces["numbers"], unsound, constants, o, d, D, wide, K,
        BIAS=biased, AUTO=several, COVARIANCE=covariance, K=slots, KEPT=len(history), BLOCK=block,
        num_warps=_warps(block),
    )  # fmt: skip


def _power(count: int) -> int:
    return kernels.triton.next_power_of_2(count)


def _warps(block: int) -> int:
    """For a row of so many numbers."""
    return 4 if block <= 1024 else 8


def _by_information(batch: _Batch, G: Tensor) -> _Solved:
    K, _, D, wide, o = batch.sizes
    size, prepared = elimination.padded(D), batch.prepared
    T = torch.empty(K, size, size + o, dtype=G.dtype, device=G.device)
    kernels.absorb[(size, K)](
        batch.matrix, G, batch.C, prepared["added"], prepared["table"], batch.unsound, batch.constants, T,
        o, D, wide, size, size + o, K * o, K, BLOCK=_power(max(wide, size)), OUTPUTS=_power(o),
    )  # fmt: skip
    sound = elimination.eliminate_(T)
    return _Solved(T[:, :, size:], sound, G)


def _by_covariance(batch: _Batch, G: Tensor | None, curvature: float | None) -> _Solved:
    """By rows; where these are more than features, by as many rows with the same `G = X^T X`."""
    K, n, D, wide, o = batch.sizes
    prepared, numbers, constants = batch.prepared, batch.prepared["numbers"], batch.constants
    new, block, leaking = {"dtype": torch.float64, "device": batch.X.device}, _power(wide), min(filters.LEAKING, D)
    diagonal = prepared["diagonal"] if G is None else G.diagonal().contiguous()
    rows, info = batch.X, None
    if G is not None:
        trace = G.diagonal()[:D].mean()
        raised = G[:D, :D] + torch.diag_embed(linalg.rounding(D, G.dtype) * (diagonal[:D] + trace))
        L, info = torch.linalg.cholesky_ex(raised)
        rows, n = L.T, D
    m = n + leaking
    size = elimination.padded(m)
    P, X = torch.empty(K, wide, wide, **new), torch.empty(K, m, wide, **new)
    covariance_kernels.predict[(wide, K)](
        batch.matrix, batch.C, diagonal, prepared["added"], prepared["table"], numbers, batch.unsound, constants, P,
        prepared["raised"], o, D, wide, K * o, K, BLOCK=block, OUTPUTS=_power(o), num_warps=_warps(block),
    )  # fmt: skip
    covariance_kernels.measure[(m, K)](
        rows, rows.stride(0), rows.stride(1), prepared["added"], numbers, constants, X, n, m, D, wide,
        LEAKING=leaking, BLOCK=block,
    )  # fmt: skip
    Y = torch.bmm(X, P)
    T = torch.empty(K, size, size + wide, **new)
    covariance_kernels.state[(size, K)](
        torch.bmm(Y, X.mT), Y, T, constants, m, size, wide, size + wide, BLOCK=_power(max(wide, size))
    )
    sound = _eliminated(T, m)
    gain = T[:, :m, size:]  # transposed
    P.baddbmm_(gain.mT, Y, alpha=-1)
    P.baddbmm_(torch.baddbmm(gain.mT, P, X.mT, alpha=-1), gain)  # Joseph's form: what rounding took from the plain one
    tiles = -(-D // _SETTLED)
    covariance_kernels.settle[(tiles, tiles, K)](P, prepared["raised"], batch.unsound, D, wide, TILE=_SETTLED)
    if info is None:
        E = batch.E.view(n, K, o).transpose(0, 1)
        # E has the loss's scale, the gain its root
        root = 1.0 if curvature is None else (curvature / 2) ** 0.5
        nothing = torch.empty((), **new).expand(K, wide, o)
        return _Solved(torch.baddbmm(nothing, gain[:, :n].mT, E, beta=0, alpha=1 / root), sound, P)
    C = batch.C.view(wide, K, o).transpose(0, 1)
    return _Solved(torch.bmm(P, C), torch.cat([sound, (info == 0).expand(1, K)]), P)


def _eliminated(T: Tensor, m: int) -> Tensor:
    """Solve `[S | B]` in place as `elimination.eliminate_` does; systems that are too large for that by the library."""
    if m <= route.ELIMINATED:
        return elimination.eliminate_(T)
    size, sound = T.shape[1], []
    for one in T:
        L, info = torch.linalg.cholesky_ex(one[:, :size])
        one[:, size:] = linalg.cholesky_solve(one[:, size:], L)
        sound.append(info == 0)
    return torch.stack(sound)[None]
