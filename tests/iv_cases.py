"""A confounded line with an instrument and two controls, and settings of a short fit."""

import numpy as np

SMALL = {"max_iter": 4, "n_features": (4, 8, 4), "hidden_layer_sizes": (16,), "random_state": 0, "treatment": "linear"}


def design(n=200, seed=0):
    rng = np.random.default_rng(seed)
    z, u, e = rng.standard_normal((3, n))
    W = rng.standard_normal((n, 2))
    x = z + 0.8 * u + W[:, 0]
    return x[:, None], 2 * x + W[:, 0] + 3 * u + 0.3 * e, z[:, None], W
