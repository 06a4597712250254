"""From least-squares outputs to probabilities.

An output fitted to one-hot targets by least squares estimates a probability already; it only may lie outside of 0 to 1, and
its contrast may be off. So the probability of class k is, up to a common factor,

    softplus(f_k / scale)^power

For a small scale that is the output cut off at zero, for a large one nearly a softmax. Both numbers are those of least
cross-entropy on rows that were held out. No probability is smaller than such rows could tell from zero: a share `floor` is
spread over all classes. The order of the classes is that of the outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SCALES = 0.003, 3.0
POWERS = 0.3, 8.0
ROWS = 20_000  # held-out rows that are enough to settle two numbers
_COARSE, _FINE, _ROUNDS = 9, 5, 3


class Link(NamedTuple):
    """How outputs become probabilities; without held-out rows the outputs as they are, cut off softly."""

    scale: float = 0.05
    power: float = 1.0
    floor: float = 1e-3

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Rows that add up to one, `(n, classes)`.

        >>> Link(0.01, 1.0, 0.0).probabilities(np.array([[0.75, 0.25, -0.1]])).round(3)
        array([[0.75, 0.25, 0.  ]])
        """
        logits = self.power * _log_softplus(outputs / self.scale)
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return (p + self.floor / p.shape[1]) / (1 + self.floor)


def fitted(outputs: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> Link:
    """The link of least cross-entropy on these rows: the best of a grid in the logarithms, which then closes in on it."""
    if len(outputs) > ROWS:
        some = np.linspace(0, len(outputs) - 1, ROWS).astype(int)
        outputs, labels, weights = outputs[some], labels[some], weights[some]
    floor = 1 / max(len(outputs), 1)
    at = np.arange(len(outputs)), labels

    def loss(link: Link) -> float:
        return float(-(weights * np.log(link.probabilities(outputs)[at])).sum())

    low, high = np.log([SCALES, POWERS]).T
    least, best, points = np.inf, Link(floor=floor), _COARSE
    for _ in range(_ROUNDS):
        steps = (high - low) / (points - 1)
        for scale in np.exp(low[0] + steps[0] * np.arange(points)):
            for power in np.exp(low[1] + steps[1] * np.arange(points)):
                link = Link(float(scale), float(power), floor)
                if (value := loss(link)) < least:
                    least, best = value, link
        centre = np.log(best[:2])
        low, high, points = centre - steps, centre + steps, _FINE
    return best


def _log_softplus(x: np.ndarray) -> np.ndarray:
    """`log(log(1 + exp(x)))`, which far below zero is x."""
    return np.where(x < -30, x, np.log(np.logaddexp(0, np.maximum(x, -30))))
