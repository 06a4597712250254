"""Data that keep coming and change on the way: `partial_fit`, batch after batch, each row predicted before it is learned.

    python examples/streaming.py [--quick]

The relation between inputs and target turns slowly. A model that was fitted once on the first rows grows stale; one that
takes in every batch follows, in constant memory: no row is kept.
"""

from __future__ import annotations

import sys

import numpy as np

from closedform.tabular import ClosedFormRegressor

BATCH = 100


def stream(batches: int, seed: int = 0):
    """Batches of rows; the angle of what matters turns by half a circle in all."""
    rng = np.random.default_rng(seed)
    for angle in np.linspace(0, np.pi, batches):
        X = rng.uniform(-1, 1, (BATCH, 4))
        along = np.cos(angle) * X[:, 0] + np.sin(angle) * X[:, 1]
        yield X, np.sin(3 * along) + X[:, 2] * X[:, 3] + 0.05 * rng.standard_normal(BATCH)


def main(quick: bool = False) -> dict[str, float]:
    batches = 60 if quick else 300
    first = batches // 6
    settings = {"random_state": 0, "hidden_layer_sizes": (64, 64), "members": 1}
    following = ClosedFormRegressor(**settings)
    seen, errors = [], {"once": [], "following": [], "mean": []}
    for step, (X, y) in enumerate(stream(batches)):
        if step == first:
            once = ClosedFormRegressor(**settings).fit(*(np.concatenate(parts) for parts in zip(*seen)))
        if step >= first:  # predict first, learn afterwards: an honest error on every row
            errors["once"].append(np.mean((once.predict(X) - y) ** 2))
            errors["following"].append(np.mean((following.predict(X) - y) ** 2))
            errors["mean"].append(np.var(y))
        else:
            seen.append((X, y))
        following.partial_fit(X, y)
    print(f"{batches} batches of {BATCH} rows; mean squared error, each row before it was learned")
    print(f"{'':21} first third   last third   (variance of y: {np.mean(errors['mean']):.3f})")
    third = len(errors["once"]) // 3
    for name, title in (("once", "fitted once"), ("following", "partial_fit each time")):
        print(f"{title:21} {np.mean(errors[name][:third]):11.4f} {np.mean(errors[name][-third:]):12.4f}")
    return {name: float(np.mean(values[-third:])) for name, values in errors.items()}


if __name__ == "__main__":
    main("--quick" in sys.argv)
