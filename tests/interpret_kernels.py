"""Run by test_project.py in a process of its own, where TRITON_INTERPRET makes Triton an interpreter."""

import itertools

import torch

from closedform import kernels, reference

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
        kernels.solve_(W, b, phi, y, given, 10.0, from_zero, step, attempts)
        got = W.double() if b is None else torch.cat([W, b[:, None]], 1).double()
        error = float((got - expected).norm() / expected.norm())
        assert error < 1e-6, (n, d, o, bias, from_zero, kind, error)
        assert int(step) == int(attempts) == 1
        # a target that is not a number leaves the layer as it is
        y[0, 0] = float("nan")
        kernels.solve_(W, b, phi, y, given, 10.0, from_zero, step, attempts)
        same = W.double() if b is None else torch.cat([W, b[:, None]], 1).double()
        assert torch.equal(same, got)
        assert (int(step), int(attempts)) == (1, 2)


if __name__ == "__main__":
    main()
