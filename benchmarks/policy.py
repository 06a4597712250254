"""The value of a policy: `PolicyEvaluator` against learned and random features on catch, cartpole and mountain car.

    python benchmarks/policy.py --seeds 3       # about twenty minutes of one core
    python benchmarks/policy.py                 # ten seeds; what is in the file is not done again

Ours train three networks of 600 steps each ("iv" takes 180 more in its two stages), what learns its last layer one of 2,000
("learned FQE, mean of 3" three of these). All have batches of 256 of the same 10,000 transitions. No setting was chosen on
these seeds. Tasks: `closedform.paper.data.policy`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from closedform.paper.experiments import policy
from common import RESULTS, save


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few rows and steps")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    args = parser.parse_args()
    args.device = "cpu"
    torch.set_num_threads(1)
    path = args.out / "policy-cpu.json"
    rows: list[dict] = json.loads(path.read_text())["rows"] if path.is_file() else []
    for row in policy.measured(args.quick, args.seeds or (1 if args.quick else 10), rows):
        rows.append(row)
        save(args, "policy", "How far is the estimated value of a policy from the truth?", rows)
    print(policy.table(rows))


if __name__ == "__main__":
    main()
