"""Burgers' equation against its exact solution, and the Fourier neural operator on it."""

import numpy as np
import pytest
import torch

import closedform as cf
from closedform.data import burgers
from closedform.models.fno import FNO1d


def grid(N):
    return 2 * np.pi * np.arange(N) / N


@pytest.mark.parametrize("N", [256, 2048])
@pytest.mark.parametrize("time", [0.1, 1.0])
def test_the_solver_equals_the_exact_solution(N, time):
    u0 = burgers.random_field(6, N)
    assert np.abs(burgers.solve(u0, 0.1, time) - burgers.cole_hopf(u0, 0.1, time)).max() < 1e-8


def test_a_mean_carries_the_solution_along():
    x = grid(128)
    u0 = (np.sin(x) + 0.3 * np.cos(3 * x))[None]
    moved = burgers.solve(u0 + 2 * np.pi / 4, 0.2, 1.0) - 2 * np.pi / 4
    assert np.abs(np.roll(burgers.solve(u0, 0.2, 1.0), 32, axis=1) - moved).max() < 1e-8
    assert np.abs(burgers.cole_hopf(u0 + 0.7, 0.2, 1.0) - burgers.solve(u0 + 0.7, 0.2, 1.0)).max() < 1e-8


def test_the_solver_is_of_fourth_order():
    x = grid(256)
    u0 = (np.sin(x) + 0.5 * np.cos(2 * x))[None]
    exact = burgers.cole_hopf(u0, 0.1, 1.0)
    errors = [np.abs(burgers.solve(u0, 0.1, 1.0, steps=steps) - exact).max() for steps in (20, 40, 80)]
    orders = [np.log2(a / b) for a, b in zip(errors, errors[1:])]
    assert all(3.5 < order < 4.6 for order in orders), orders


def test_a_front_that_steepens_after_a_smooth_start_is_resolved():
    u0 = np.sin(grid(512))[None]  # so smooth that the grid shrinks at once
    coarse, fine = burgers.solve(u0, 0.05, 1.5), burgers.solve(np.sin(grid(1024))[None], 0.05, 1.5)
    assert np.abs(coarse - fine[:, ::2]).max() < 1e-8
    slope = np.abs(np.diff(coarse)).max() * 512 / (2 * np.pi)
    assert slope > 4, "there is a front"


def test_energy_decays_and_the_mean_stays():
    u0 = burgers.random_field(5, 256, seed=3) + 0.4
    energies = []
    for time in (0.0, 0.05, 0.2, 0.6, 1.0):
        u = burgers.solve(u0, 0.1, time)
        assert np.abs(u.mean(1) - u0.mean(1)).max() < 1e-12
        energies.append((u**2).mean(1))
    assert (np.diff(energies, axis=0) < 0).all()


def test_a_field_has_the_measures_spectrum_and_is_the_same_on_every_grid():
    coarse, fine = burgers.random_field(4000, 64), burgers.random_field(4000, 128)
    power = np.abs(np.fft.rfft(coarse, axis=1, norm="forward")[:, 1:6]) ** 2
    k = np.arange(1, 6)
    expected = (np.sqrt(2) * 25 / ((2 * np.pi * k) ** 2 + 25)) ** 2 / 2
    assert np.abs(power.mean(0) / expected - 1).max() < 0.08
    low = [np.fft.rfft(u, axis=1, norm="forward")[:, :31] for u in (coarse, fine)]
    assert np.abs(low[0] - low[1]).max() < 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(32), 0.1, 1.0), r"expected u0 \(batch, N\)"),
        ((np.zeros((2, 33)), 0.1, 1.0), "even N"),
        ((np.full((1, 32), np.nan), 0.1, 1.0), "NaN"),
        ((np.zeros((1, 32)), 0.0, 1.0), "viscosity must be positive"),
        ((np.zeros((1, 32)), 0.1, -1.0), "time must be"),
        ((50 * np.sin(grid(64))[None], 0.001, 1.0), "64 points do not resolve the solution with viscosity 0.001"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        burgers.solve(*arguments)


def test_the_data_are_made_once_and_split(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOSEDFORM_CACHE", str(tmp_path))
    first = burgers.load(samples=64, points=256)
    assert [len(t) for t in (first.x_train, first.x_validation, first.x_test)] == [45, 6, 13]
    monkeypatch.setattr(burgers, "solve", None)
    again, other = burgers.load(samples=64, points=256), burgers.load(1, samples=64, points=256)
    assert torch.equal(first.y_test, again.y_test)
    assert not torch.equal(first.x_train, other.x_train)
    exact = burgers.cole_hopf(first.x_test.double().numpy(), 0.1, 1.0)
    assert np.abs(first.y_test.numpy() - exact).max() < 1e-5


def test_an_operator_serves_every_grid():
    torch.manual_seed(0)
    net = FNO1d(width=8, modes=4, blocks=2).double()
    x = torch.from_numpy(burgers.random_field(3, 256))
    fine, coarse = net(x), net(x[:, ::4])
    # not equal: ReLU makes new modes, which alias on the coarse grid
    assert (fine[:, ::4] - coarse).abs().max() < 0.02 * fine.abs().max()
    with pytest.raises(ValueError, match=r"expected fields \(B, N\)"):
        net(torch.zeros(3))


def test_a_solved_head_is_shared_over_the_points():
    torch.manual_seed(0)
    u0 = burgers.random_field(24, 256)[:, ::4]
    y = burgers.solve(burgers.random_field(24, 256), 0.1, 1.0)[:, ::4]
    x, y = torch.from_numpy(u0.copy()), torch.from_numpy(y.copy()).unsqueeze(2)
    net, head = FNO1d(width=16, modes=8, blocks=2).double(), cf.ClosedFormLinear(16, 1, dtype=torch.float64)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(40):
        loss = cf.training.algorithm1(net, head, opt, x, y)
    assert float(loss) < 0.1 * float(y.var())
