"""A contextual bandit: `head.sample` draws a layer from what is known, and the arm that looks best under it is pulled.

    python examples/bandit.py [--quick]

Five arms, four kinds of visitors described by eight numbers, one reward a pull. Thompson sampling tries an arm in
proportion to the chance that it is the best one; the greedy player uses the mean of the same filter and may never try
the best arm; the careful one tries an arm at random every tenth time. The regret is what was lost against the best arm,
summed.
"""

from __future__ import annotations

import sys

import torch

import closedform as cf

ARMS, KINDS, CONTEXT, NOISE = 5, 4, 8, 0.5


def features(x: torch.Tensor, arms: torch.Tensor) -> torch.Tensor:
    """The context in the place of its arm, zeros elsewhere: `(..., ARMS * CONTEXT)`."""
    return (torch.nn.functional.one_hot(arms, ARMS).double()[..., None] * x[..., None, :]).flatten(-2)


def play(player: str, pulls: int, seed: int) -> float:
    draw = torch.Generator().manual_seed(seed)
    visitors = torch.randn(KINDS, CONTEXT, dtype=torch.float64, generator=draw)
    means = 1 + 0.3 * torch.randn(KINDS, ARMS, dtype=torch.float64, generator=draw)
    head = cf.ClosedFormLinear(ARMS * CONTEXT, 1, bias=False, rule=cf.Kalman(forget=1.0, lam=1.0), dtype=torch.float64)
    every, regret = torch.arange(ARMS), 0.0
    for pull in range(pulls):
        kind = int(torch.randint(KINDS, (), generator=draw))
        phi = features(visitors[kind].expand(ARMS, CONTEXT), every)
        with torch.no_grad():
            layer = head.sample(1, draw)[0] if player == "Thompson" and pull else head.weight
            scores = (phi @ layer.T)[:, 0]
        arm = int(scores.argmax())
        if pull == 0 or (player == "careful" and float(torch.rand((), generator=draw)) < 0.1):
            arm = int(torch.randint(ARMS, (), generator=draw))
        reward = means[kind, arm] + NOISE * torch.randn((), dtype=torch.float64, generator=draw)
        head.solve(phi[arm : arm + 1], reward.reshape(1, 1))
        regret += float(means[kind].max() - means[kind, arm])
    return regret


def main(quick: bool = False) -> dict[str, float]:
    pulls, seeds = (400, 3) if quick else (3000, 10)
    regrets = {}
    for player in ("greedy", "careful", "Thompson"):
        regrets[player] = sum(play(player, pulls, seed) for seed in range(seeds)) / seeds
        print(f"{player:9} regret after {pulls} pulls, mean of {seeds} games: {regrets[player]:7.1f}")
    return regrets


if __name__ == "__main__":
    main("--quick" in sys.argv)
