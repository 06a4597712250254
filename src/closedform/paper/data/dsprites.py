"""Hearts of dSprites as treatments: the instrumental-variable task of Xu et al. (2021) and the paper's variant of it.

The images are re-rendered: a pixel belongs to a heart if its centre lies inside the curve

    x = sin^3 t,    y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t

scaled, turned and moved by the latents scale (6), orientation (40), posX and posY (32 each). Size and centre of the curve
were fitted to the frames that the authors of dSprites published, of which all but one come out to the pixel.

    X = heart + N(0, 0.1),  Z = (scale, orientation, posX),  y = f(X) + 32 (posY - 0.5) + N(0, 0.5)

posY is the confounder: it moves the heart and the outcome, and no instrument depends on it.

>>> int(images(np.array([[5, 0, 16, 16]])).sum())
226
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import store
from .iv import IVSample, StructuralPoints

SIDE = 64
SCALES = np.linspace(0.5, 1.0, 6)
ORIENTATIONS = np.linspace(0.0, 2 * np.pi, 40)
POSITIONS = np.linspace(0.0, 1.0, 32)
SIZES = (len(SCALES), len(ORIENTATIONS), len(POSITIONS), len(POSITIONS))

_HALF_WIDTH, _UNIT, _MIDDLE = 9.5944, 0.66215, -2.16971  # pixels of x = 1 and of y = 1 at scale 1, and the centre's y
_FIRST, _SPAN = 15.5, 32.0  # the centre's pixel at position 0, and how far it goes
_WINDOW = 28  # pixels around the centre that a heart can reach
_CHUNK = 2048

MATRIX = "dfiv_dsprite_mat.npy"  # A of the original structural function, (4096, 10), in the folder CLOSEDFORM_DATA


def images(latents: np.ndarray) -> np.ndarray:
    """Hearts `(n, 64, 64)` of 0 and 1 in uint8, for the classes `(scale, orientation, posX, posY)` in `latents (n, 4)`."""
    latents = np.asarray(latents)
    if latents.ndim != 2 or latents.shape[1] != 4 or latents.dtype.kind not in "iu":
        raise ValueError(f"expected integer latents (n, 4), got {latents.dtype} of shape {latents.shape}")
    outside = (latents < 0) | (latents >= np.array(SIZES))
    if outside.any():
        raise ValueError(
            f"latents {latents[outside.any(1)][0].tolist()} are out of range; expected at least 0 and below {SIZES}"
        )
    drawn = np.zeros((len(latents), SIDE, SIDE), dtype=np.uint8)
    for low in range(0, len(latents), _CHUNK):
        _draw(latents[low : low + _CHUNK], drawn[low : low + _CHUNK])
    return drawn


def _draw(latents: np.ndarray, into: np.ndarray) -> None:
    scale = SCALES[latents[:, 0], None, None]
    angle = ORIENTATIONS[latents[:, 1], None, None]
    centre = _FIRST + _SPAN * POSITIONS[latents[:, 2:]]
    first = np.floor(centre).astype(int) - _WINDOW // 2 + 1
    columns, rows = (first[:, axis, None] + np.arange(_WINDOW) for axis in (0, 1))
    right = (columns - centre[:, :1])[:, None, :]
    down = (rows - centre[:, 1:])[:, :, None]
    x = (np.cos(angle) * right - np.sin(angle) * down) / (scale * _HALF_WIDTH)
    y = _MIDDLE - (np.sin(angle) * right + np.cos(angle) * down) / (scale * _UNIT)
    # at every x the curve passes twice: sin t is the cube root of x, and cos t has two signs
    c = np.sqrt(1 - np.square(np.cbrt(np.clip(x, -1, 1))))
    inside = (np.abs(x) <= 1) & (_height(-c) <= y) & (y <= _height(c))
    into[np.arange(len(latents))[:, None, None], rows[:, :, None], columns[:, None, :]] = inside


def _height(c: np.ndarray) -> np.ndarray:
    """y of the curve where `cos t = c`."""
    return 13 * c - 5 * (2 * c**2 - 1) - 2 * (4 * c**3 - 3 * c) - (8 * c**4 - 8 * c**2 + 1)


# ---- Structural functions ------------------------------------------------------------------------

Structural = Callable[[np.ndarray], np.ndarray]


def paper(X: np.ndarray) -> np.ndarray:
    """`((vec(B)^T X)^2 - 3000) / 500` with `B_ij = |32 - j| / 32`."""
    B = np.tile(np.abs(32 - np.arange(SIDE)) / 32, (SIDE, 1))
    return (np.square(X @ B.ravel().astype(X.dtype)).astype(np.float64) - 3000) / 500


def original(X: np.ndarray, A: np.ndarray | None = None) -> np.ndarray:
    """`(mean((X A)^2) - 5000) / 1000`; A from the file of the published code, or uniform."""
    A = matrix() if A is None else A
    return (np.square(X @ A.astype(X.dtype)).mean(1).astype(np.float64) - 5000) / 1000


def matrix() -> np.ndarray:
    """A `(4096, 10)`: the published one where its file is at hand, else drawn from U(0, 1)."""
    path = store.data_file(MATRIX)
    if path is None:
        return np.random.default_rng(0).uniform(size=(SIDE * SIDE, 10))
    try:
        A = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as bad:
        raise ValueError(f"{path} cannot be read as an npy file: {bad}") from bad
    if A.shape != (SIDE * SIDE, 10) or not np.isfinite(A).all():
        raise ValueError(f"{path} holds an array {A.shape}; expected finite numbers ({SIDE * SIDE}, 10)")
    return A


FUNCTIONS: dict[str, Structural] = {"paper": paper, "original": original}


def _function(name: str) -> Structural:
    if name not in FUNCTIONS:
        raise ValueError(f"there is no structural function {name!r}; expected one of {', '.join(FUNCTIONS)}")
    return FUNCTIONS[name]


# ---- The task ------------------------------------------------------------------------------------


def sample(n: int, seed: int = 0, function: str = "paper") -> IVSample:
    """`n` rows drawn by `seed`; images `X (n, 4096)` in float32."""
    f = _function(function)
    if n < 1:
        raise ValueError(f"expected n of at least 1, got {n}")
    rng = np.random.default_rng(seed)
    latents = np.stack([rng.integers(size, size=n) for size in SIZES], 1)
    X = images(latents).reshape(n, -1).astype(np.float32)
    X += 0.1 * rng.standard_normal(X.shape, dtype=np.float32)
    Z = np.stack([SCALES[latents[:, 0]], ORIENTATIONS[latents[:, 1]], POSITIONS[latents[:, 2]]], 1)
    values = f(X)
    y = values + 32 * (POSITIONS[latents[:, 3]] - 0.5) + 0.5 * rng.standard_normal(n)
    return IVSample(X, Z, y, None, values)


def grid(function: str = "paper") -> StructuralPoints:
    """The 588 hearts without noise at posX, posY in {0, 5, .., 30}, scale {0, 3, 5} and orientation {0, 10, 20, 30}."""
    f = _function(function)
    axes = [0, 3, 5], [0, 10, 20, 30], list(range(0, 31, 5)), list(range(0, 31, 5))
    latents = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], 1)
    X = images(latents).reshape(len(latents), -1).astype(np.float32)
    return StructuralPoints(X, None, f(X))


def validation_and_test(points: StructuralPoints, seed: int = 0) -> tuple[StructuralPoints, StructuralPoints]:
    """The grid as the paper splits it: 100 points to choose by and 488 to report."""
    order = np.random.default_rng(seed).permutation(len(points.X))
    parts = order[:100], order[100:]
    validation, test = (StructuralPoints(points.X[part], None, points.f[part]) for part in parts)
    return validation, test
