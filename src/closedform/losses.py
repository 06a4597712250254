"""What the last layer minimises.

A loss turns outputs and targets into the residual that the solve fits. For the squared error that is the plain difference,
and the solve is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Loss(Protocol):
    """Anything with this method."""

    def residual(self, z: Tensor | None, y: Tensor) -> Tensor:
        """What is left to fit of the targets `y (n, o)` at the outputs `z (n, o)` (None: zeros)."""
        ...


@dataclass(frozen=True)
class Squared:
    """`|y - z|^2`, summed over samples and outputs (paper eq. 1)."""

    def residual(self, z: Tensor | None, y: Tensor) -> Tensor:
        return y if z is None else y - z
