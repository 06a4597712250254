"""Many small images in one large one, tile by tile in the order of reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...extras import require

ACROSS = 100  # tiles in a row, and rows


def tiles(path: Path, size: int) -> np.ndarray:
    """The 10,000 images `(n, 3, size, size)` of a mosaic, in uint8."""
    require("reading mosaics of images", "experiments", "PIL")
    from PIL import Image

    try:
        with Image.open(path) as mosaic:
            pixels = np.asarray(mosaic.convert("RGB"))
    except Exception as error:  # Pillow raises many kinds on damaged bytes
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    if pixels.shape != (ACROSS * size, ACROSS * size, 3):
        raise ValueError(f"{path} has shape {pixels.shape}; expected {ACROSS} x {ACROSS} images of {size} x {size}")
    return pixels.reshape(ACROSS, size, ACROSS, size, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, size, size)
