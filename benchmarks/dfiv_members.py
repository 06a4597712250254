"""What it gains to train the members of `DFIVRegressor` side by side: seconds of the processor for a fit, one thread.

    python benchmarks/dfiv_members.py [--quick]

The same fits with members and candidates of one shape trained as one, and one after the other, in turns in one process.
"""

from __future__ import annotations

import time
import warnings
from unittest.mock import patch

import numpy as np
import torch

from closedform.iv import DFIVRegressor, choice
from common import arguments, save

CELLS = [(rows, controls, count) for count in (2, 6) for rows, controls in ((400, 0), (2000, 0), (2000, 5))]


def design(rows: int, controls: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Two treatments, the first of them confounded; their instruments; controls."""
    g = np.random.default_rng(0)
    Z, u = g.normal(size=(rows, 3)), g.normal(size=rows)
    X = np.column_stack([Z[:, 0] + u + 0.3 * g.normal(size=rows), Z[:, 2]])
    return X, np.sin(X[:, 0]) + u, Z, g.normal(size=(rows, controls)) if controls else None


def seconds(rows: int, controls: int, count: int, *, together: bool) -> float:
    X, y, Z, W = design(rows, controls)
    model = DFIVRegressor(treatment="deep", members=count, random_state=0)
    start = time.process_time()
    if together:
        model.fit(X, y, Z=Z, W=W)
    else:
        with patch.object(choice, "can_stand_side_by_side", lambda *_: False):
            model.fit(X, y, Z=Z, W=W)
    return time.process_time() - start


def main() -> None:
    args = arguments(__doc__ or "")
    torch.set_num_threads(1)
    rows = []
    for n, controls, count in CELLS[:1] if args.quick else CELLS:
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(1 if args.quick else 3):
            for together, spent in times.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of instruments that the made-up data need not be strong in
                    spent.append(seconds(n, controls, count, together=together))
        side, alone = min(times[True]), min(times[False])
        rows.append({"rows": n, "controls": controls, "members": count, "side_s": side, "alone_s": alone})
        rows[-1]["ratio"] = side / alone
        print(f"{n} rows, {controls} controls, {count} members: {side:.2f} s, {side / alone:.2f} of {alone:.2f} s")
    save(args, "dfiv_members", "processor seconds of a fit, members side by side and one after the other", rows)


if __name__ == "__main__":
    main()
