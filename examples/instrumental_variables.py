"""What a price does to sales, when a hidden fashion moves both: least squares, two-stage least squares and deep features.

The seller raises the price when a product is in fashion, and fashion sells. Regression of sales on prices then finds that
high prices sell. The seller's costs move the price and nothing else: they are the instrument.

    python examples/instrumental_variables.py [--quick]
"""

from __future__ import annotations

import sys

import numpy as np

from closedform.iv import DFIVRegressor


def sales(price: np.ndarray) -> np.ndarray:
    """The structural function: what would be sold at a price that somebody just sets."""
    return 4 - 2 * np.tanh(1.5 * (price - 0.3))


def draw(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    cost, fashion = rng.standard_normal((2, n))
    price = cost + 0.5 * fashion
    sold = sales(price) + 2 * fashion + 0.3 * rng.standard_normal(n)
    return price[:, None], sold, cost[:, None]


def main(quick: bool = False) -> dict[str, float]:
    """Mean squared errors of the structural function over the middle prices."""
    price, sold, cost = draw(1000 if quick else 3000)
    line = DFIVRegressor(features="linear").fit(price, sold, Z=cost)
    deep = DFIVRegressor(max_iter=60, random_state=0).fit(price, sold, Z=cost)
    at = np.linspace(-1.5, 1.5, 61)[:, None]
    found = {
        "least squares": np.polyval(np.polyfit(price[:, 0], sold, 5), at[:, 0]),
        "two-stage least squares": line.predict(at),
        "deep features": deep.predict(at),
    }
    errors = {name: float(np.mean((values - sales(at[:, 0])) ** 2)) for name, values in found.items()}
    for name, error in errors.items():
        print(f"{name:24} error {error:.3f}")
    effect = deep.effect(0.0, 1.0)[0]
    print(f"from price 0 to 1: {effect:+.2f} (truth {float(sales(np.array(1.0)) - sales(np.array(0.0))):+.2f})\n")
    print(deep.summary())
    return errors


if __name__ == "__main__":
    main("--quick" in sys.argv)
