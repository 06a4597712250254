"""Run by test_project.py in a process of its own, where TRITON_INTERPRET makes Triton an interpreter."""

import itertools

import torch

import closedform as cf
from closedform.solver import cuda, reference
from closedform.solver.guard import Layer

SHAPES = [
    (1, 3, 2),
    (5, 20, 3),
    (17, 40, 20),
    (32, 33, 1),
    (40, 50, 17),
    (100, 120, 5),
    (30, 9, 3),
    (20, 8, 1),
    (9, 8, 2),
]


def main() -> None:
    torch.manual_seed(0)
    for (n, d, o), bias, from_zero, kind in itertools.product(SHAPES, (True, False), (True, False), range(3)):
        phi, y, W = torch.randn(n, d), torch.randn(n, o), torch.randn(o, d)
        b = torch.randn(o) if bias else None
        before = W.double() if b is None else torch.cat([W, b[:, None]], 1).double()
        Phi = reference.columns(phi)
        Phi = reference.with_bias(Phi) if bias else Phi
        auto = torch.full((d,), 10 * float(phi.double().square().sum()) / d, dtype=torch.float64)
        auto = torch.cat([auto, torch.tensor([10.0 * n])]) if bias else auto
        given, lam = [(2.0, 2.0), (torch.tensor(2.0, dtype=torch.float64), 2.0), (None, auto)][kind]
        expected = reference.proximal(Phi, y.double().T, torch.zeros_like(before) if from_zero else before, lam)
        step, attempts = torch.zeros((), dtype=torch.long), torch.zeros((), dtype=torch.long)
        cuda.solve_(Layer(W, b, step, attempts), phi, y, given, 10.0, from_zero)
        got = W.double() if b is None else torch.cat([W, b[:, None]], 1).double()
        error = float((got - expected).norm() / expected.norm())
        assert error < 1e-6, (n, d, o, bias, from_zero, kind, error)
        assert int(step) == int(attempts) == 1
        # a target that is not a number leaves the layer as it is
        y[0, 0] = float("nan")
        cuda.solve_(Layer(W, b, step, attempts), phi, y, given, 10.0, from_zero)
        same = W.double() if b is None else torch.cat([W, b[:, None]], 1).double()
        assert torch.equal(same, got)
        assert (int(step), int(attempts)) == (1, 2)


def through_the_head() -> None:
    """A head that takes the kernels for granted, on a device that is none, against the plain path."""
    plain = cf.ClosedFormLinear._kernels
    rules = [cf.Proximal(0.5), cf.Proximal("auto"), cf.Proximal(cf.per_sample(0.1)), cf.Ridge(0.5), cf.Ema(0.5, 0.9)]
    rules += [
        cf.Proximal(lambda step: 1.0 + step),
        cf.Proximal(torch.tensor(0.5)),
        cf.Proximal(torch.ones(9)),
        cf.Kalman(),
    ]
    for rule, n, bias in itertools.product(rules, (4, 40), (True, False)):
        if isinstance(rule, cf.Proximal) and isinstance(rule.lam, torch.Tensor) and rule.lam.ndim and not bias:
            continue
        heads = [cf.ClosedFormLinear(8, 3, bias, rule=rule) for _ in range(2)]
        for seed in range(3):
            torch.manual_seed(seed)
            phi, y = torch.randn(n, 8), torch.randn(n, 3)
            for head, path in zip(heads, (plain, lambda self: cuda)):
                cf.ClosedFormLinear._kernels = path
                head.solve(phi, y)
        assert int(heads[1].step) == 3
        assert torch.allclose(heads[0].weight, heads[1].weight, rtol=1e-4, atol=1e-5), (rule, n, bias)
    cf.ClosedFormLinear._kernels = plain


if __name__ == "__main__":
    main()
    through_the_head()
