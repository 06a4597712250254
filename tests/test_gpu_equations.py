"""Differential equations on a CUDA device: ill-conditioned as they are, they go by singular values, as on the CPU."""

import math

import pytest
import torch

from closedform.equations import Box, Condition, Problem, network, solve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SQUARE = Box((0.0, 0.0), (1.0, 1.0))


def exact(x):
    return torch.sin(math.pi * x[:, :1]) * torch.exp(x[:, 1:])


def problem(linear=True):
    def source(x):
        u = exact(x)
        return (1 - math.pi**2) * u - (0 if linear else u**3)

    def operator(u):
        return u.laplacian if linear else u.laplacian - u.value**3

    inside = Condition(SQUARE.inside, operator, source, name="inside", linear=linear)
    return Problem([inside, Condition(SQUARE.faces(), lambda u: u.value, exact, name="edge", share=0.25)])


def backbone(device, features=256):
    return network(SQUARE, features, scale=2.0).to(device)


def error(solution):
    x = SQUARE.inside(2000, torch.Generator().manual_seed(9))
    return float((solution(x).cpu() - exact(x)).norm() / exact(x).norm())


@pytest.mark.parametrize("linear", [True, False])
def test_a_solve_is_as_exact_as_the_cpus(linear):
    there = solve(problem(linear), backbone("cuda"), steps=0)
    assert there.weights.device.type == "cuda"
    assert there.weights.dtype == torch.float64
    here = solve(problem(linear), backbone("cpu"), steps=0)
    assert error(here) < 1e-6
    assert error(there) < 1e-6
    x = SQUARE.inside(500, torch.Generator().manual_seed(1))
    assert float((there(x).cpu() - here(x)).norm() / here(x).norm()) < 1e-6
    assert there.relative_residual < 1e-5


def test_rows_of_condition_1e14_are_solved_and_not_refused():
    from closedform.equations.layer import compressed, penalised

    generator = torch.Generator().manual_seed(0)
    A = torch.randn(300, 80, generator=generator, dtype=torch.float64) * torch.logspace(0, -14, 80, dtype=torch.float64)
    b = A @ torch.ones(80, 1, dtype=torch.float64)
    rows = compressed(A.cuda(), b.cuda())
    for beta in (0.0, 1e-28, 1e-20):
        left = A.cuda() @ penalised(rows)(beta)[:, None] - b.cuda()
        assert float(left.norm() / b.norm()) < 1e-9


def test_training_goes_on_from_a_checkpoint(tmp_path):
    """A run that is stopped and continued on the device ends as one that was not."""
    whole = solve(problem(), backbone("cuda", 48), steps=12, points=256, seed=3)
    file = tmp_path / "state"

    def stop(step, total, loss):
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(
            problem(), backbone("cuda", 48), steps=12, points=256, seed=3, progress=stop, checkpoint=file, every_s=0.0
        )
    again = solve(problem(), backbone("cuda", 48), steps=12, points=256, seed=3, checkpoint=file)
    assert len(again.losses) == 12
    assert again.losses[:4] == pytest.approx(whole.losses[:4], rel=1e-6)
    assert error(again) < 10 * error(whole) + 1e-12
    assert whole.losses[-1] < whole.losses[0]
