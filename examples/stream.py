"""A stream whose regime changes: a solved layer with a finite memory follows within that memory.

    python examples/stream.py [--quick] [--figure stream.png]

Every batch of 16 rows is predicted before it is learned. After a third and two thirds of the stream the weights are drawn
anew. The features have very different scales and a common part, as columns of real tables have. Two layers are solved: one
by the default rule, which chooses its memory by itself, and one by a Kalman filter with a memory of ten batches. Beside
them: SGD and Adam with the best of four rates each (chosen on this very stream, in their favour); what libraries of online
learning take by default, standardised inputs and SGD a row at a time; and least squares over everything seen, which forgets
nothing. (With independent features, standardised SGD a row at a time is ahead of the solved layers.)
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import closedform as cf

D, ROWS, FORGET = 20, 16, 0.9


def stream(batches: int):
    draw = torch.Generator().manual_seed(0)
    scale = torch.logspace(-1.5, 1.5, D)
    for t in range(batches):
        if t % (batches // 3) == 0:
            w = torch.randn(D, 1, generator=draw) / scale[:, None]
        x = scale * (torch.randn(ROWS, D, generator=draw) + 2 * torch.randn(ROWS, 1, generator=draw))
        yield x, x @ w + 0.3 * torch.randn(ROWS, 1, generator=draw)


def filtered(forget: float) -> cf.Kalman:
    return cf.Kalman(forget=forget, lam=cf.lambdas.relative(0.1, per_feature=True))  # each feature on its own scale


def solved(batches: int, rule: cf.Auto | cf.Kalman) -> torch.Tensor:
    head, errors = cf.ClosedFormLinear(D, 1, rule=rule).eval(), []
    for x, y in stream(batches):
        errors.append((head(x) - y).square().mean())
        head.solve(x, y)
    return torch.stack(errors)


def learned(batches: int, kind: type, lr: float, rows: int = ROWS, standardise: bool = False) -> torch.Tensor:
    torch.manual_seed(0)
    layer, errors = nn.Linear(D, 1), []
    optimizer = kind(layer.parameters(), lr=lr)
    count, mean, square = 0, torch.zeros(D), torch.zeros(D)
    for x, y in stream(batches):
        if standardise:
            count, mean, square = count + len(x), mean + x.sum(0), square + x.square().sum(0)
            x = (x - mean / count) / (square / count - (mean / count) ** 2).clamp(min=1e-12).sqrt()
        errors.append((layer(x) - y).detach().square().mean())
        for a, b in zip(x.split(rows), y.split(rows)):
            optimizer.zero_grad()
            (layer(a) - b).square().mean().backward()
            optimizer.step()
    return torch.stack(errors).nan_to_num(1e30, 1e30)


def main(quick: bool = False, figure: str | None = None) -> dict[str, float]:
    batches = 150 if quick else 900
    best = lambda kind, rates: min((learned(batches, kind, lr) for lr in rates), key=torch.mean)  # noqa: E731
    curves = {
        "solved, default rule": solved(batches, cf.Auto(handicap=0.0)),  # rows here never come again
        f"solved, forget {FORGET}": solved(batches, filtered(FORGET)),
        "least squares, all rows": solved(batches, filtered(1.0)),
        "SGD, best rate": best(torch.optim.SGD, (1e-4, 3e-4, 1e-3, 3e-3)),
        "Adam, best rate": best(torch.optim.Adam, (1e-3, 1e-2, 0.1, 0.3)),
        "standardised SGD, a row a step": learned(batches, torch.optim.SGD, 0.01, 1, True),
    }
    third, memory = batches // 3, round(1 / (1 - FORGET))
    means = {}
    print(f"mean squared error (noise .09): all batches, and those past {2 * memory} after a change")
    for name, curve in curves.items():
        late = torch.cat([curve[k * third + 2 * memory : (k + 1) * third] for k in range(3)])
        means[name] = float(late.mean())
        print(f"{name:31} {float(curve.mean()):10.3f} {means[name]:10.3f}")
    if figure:
        import matplotlib.pyplot as plt

        for name, curve in curves.items():
            plt.semilogy(curve.unfold(0, 5, 1).mean(1), label=name, linewidth=1)
        plt.gca().set(xlabel="batch", ylabel="mean squared error before learning", ylim=(0.05, 100))
        plt.legend(fontsize=8)
        plt.savefig(figure, dpi=150, bbox_inches="tight")
    return means


if __name__ == "__main__":
    place = sys.argv.index("--figure") if "--figure" in sys.argv else None
    main("--quick" in sys.argv, None if place is None else sys.argv[place + 1])
