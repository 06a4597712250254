"""How many model-steps a second: a grid trained as one stack, against the same models one after another.

    python benchmarks/sweep_throughput.py [--device cuda]

The network of the QM9 experiment (435 inputs, three layers of 256, 12 outputs) under SGD; of every twelve models one has a
learned last layer, six a ridge, four a proximal and one a Kalman one, about the mixture of that experiment. One after
another means the package's own head and torch's optimizer, eager (what a loop over a grid does) and, on a GPU, each model's
step captured as a CUDA graph too (the best that such a loop could do); twelve models stand for all, in the same mixture.
Both sides gather their batches from data on the device. On the CPU the stack has 36 models, for a laptop's memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import closedform as cf
from closedform import training
from closedform.paper.experiments.qm9 import WIDTHS
from closedform.stack.models import Candidate, Stack
from closedform.stack.networks import mlp
from common import arguments, captured, interleaved, save

OUTPUTS, ROWS = 12, 16_384
MIXTURE = (
    [None] + [cf.Ridge(b) for b in (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)] + [cf.Proximal(b) for b in (10.0, 1e2, 1e3, 1e4)]
)
MIXTURE += [cf.Kalman(0.99)]


def alone(rule: cf.rules.Rule | None, X: Tensor, Y: Tensor, batch: int) -> Callable[[], Tensor]:
    """One training step of one model."""
    backbone = mlp(WIDTHS).to(X.device)
    params = list(backbone.parameters())
    if rule is None:
        head, step = nn.Linear(WIDTHS[-1], OUTPUTS, device=X.device), training.l2
        params += list(head.parameters())
    else:
        head, step = cf.ClosedFormLinear(WIDTHS[-1], OUTPUTS, rule=rule, device=X.device), training.algorithm1
    optimizer = torch.optim.SGD(params, lr=1e-3, momentum=0.9, nesterov=True)
    order, t = torch.randperm(len(X), device=X.device), torch.zeros((), dtype=torch.int64, device=X.device)
    lanes = torch.arange(batch, device=X.device)

    def one() -> Tensor:
        index = order.index_select(0, (t * batch + lanes) % len(X))
        t.add_(1)
        return step(backbone, head, optimizer, X.index_select(0, index), Y.index_select(0, index))

    return one


def main() -> None:
    args = arguments(__doc__ or "")
    torch.manual_seed(0)
    cuda = args.device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = cuda  # as in the stack
    copies = 12 if cuda else 3
    X, Y = torch.randn(ROWS, WIDTHS[0], device=args.device), torch.randn(ROWS, OUTPUTS, device=args.device)
    rows = []
    print(
        f"{'batch':>6} {'models':>7} | {'stacked':>10} {'eager':>9} {'captured':>9} | {'x eager':>8} {'x captured':>10}"
    )
    for batch in (32, 256) if args.quick or not cuda else (32, 256, 1024):
        models = [Candidate(1e-3, rule) for rule in MIXTURE] * copies
        stack = Stack([mlp(WIDTHS)], models, OUTPUTS, batch_size=batch, total=10**6, tf32=cuda, device=args.device)
        stack.feed(X[None], Y[None])
        sides: dict[str, Callable[[], object]] = {"stacked": lambda: stack.advance(1)}  # noqa: B023 - called at once
        singles = [alone(rule, X, Y, batch) for rule in MIXTURE]
        sides["eager"] = lambda: [single() for single in singles]  # noqa: B023
        if cuda:
            kept = [alone(rule, X, Y, batch) for rule in MIXTURE]  # a graph does not hold on to the memory that it uses
            graphs = [captured(step) for step in kept]
            sides["captured"] = lambda: [graph() for graph in graphs]  # noqa: B023
        times = interleaved(sides, args.device, 2 if args.quick else 6)
        count = {"stacked": len(models), "eager": len(MIXTURE), "captured": len(MIXTURE)}
        speed = {name: 1e3 * count[name] / cell["median_ms"] for name, cell in times.items()}
        row = {"batch": batch, "models": len(models), "model_steps_per_s": speed, "turns": times}
        row |= {f"times_{name}": speed["stacked"] / speed[name] for name in speed if name != "stacked"}
        rows.append(row)
        shown = [
            f"{speed.get(name, float('nan')):{width}.0f}"
            for name, width in (("stacked", 10), ("eager", 9), ("captured", 9))
        ]
        print(
            f"{batch:6d} {len(models):7d} | {' '.join(shown)} | {row['times_eager']:8.1f} "
            f"{row.get('times_captured', float('nan')):10.1f}",
            flush=True,
        )
    save(args, "sweep_throughput", "model-steps per second, a stack against one model after another", rows)


if __name__ == "__main__":
    main()
