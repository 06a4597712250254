"""How much memory does a solve with very many classes take at its peak, and how long?

    python benchmarks/vocabulary.py

A head of 768 features and 50,000 classes, cross-entropy, one thread. The peak is that of the process, beyond what it had
before the solve: with as many rows as a batch of texts, and with few, where the layer itself is the larger part.
"""

from __future__ import annotations

import json
import subprocess
import sys

from common import arguments, save

FEATURES, CLASSES = 768, 50_000
SOLVE = """
import json, resource, sys, time, torch, closedform as cf
n, d, classes = map(int, sys.argv[1:])
torch.set_num_threads(1)
phi, y = torch.randn(n, d), torch.randint(classes, (n,))
cf.ClosedFormLinear(d, 2, rule=cf.Proximal(), loss=cf.CrossEntropy()).solve(phi, y % 2)
head = cf.ClosedFormLinear(d, classes, rule=cf.Proximal(), loss=cf.CrossEntropy())
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, start = peak(), time.process_time()
head.solve(phi, y)
print(json.dumps({"peak_bytes": peak() - before, "seconds": time.process_time() - start}))
"""


def main() -> None:
    args = arguments(__doc__ or "")
    features, classes = (64, 5_000) if args.quick else (FEATURES, CLASSES)
    rows = []
    for n in (512, 2048):
        command = [sys.executable, "-c", SOLVE, str(n), str(features), str(classes)]
        solve = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        logits, layer = 4 * n * classes, 8 * (features + 1) * classes
        rows.append({"n": n, "d": features, "classes": classes, "logits_bytes": logits, "layer_bytes": layer, **solve})
        times = solve["peak_bytes"] / logits
        print(
            f"{n:5d} rows: {solve['peak_bytes'] / 1e6:.0f} MB, {times:.1f} times the logits; {solve['seconds']:.1f} s"
        )
    args.device = "cpu"
    save(args, "vocabulary", "bytes of memory and seconds of a solve with very many classes", rows)


if __name__ == "__main__":
    main()
