"""Burgers' equation against its exact solution, and the Fourier neural operator on it."""

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import closedform as cf
from closedform.paper.data import burgers
from closedform.paper.models.fno import FNO1d


def grid(N):
    return 2 * np.pi * np.arange(N) / N


@pytest.mark.parametrize("N", [256, 2048])
@pytest.mark.parametrize("time", [0.1, 1.0])
def test_the_solver_equals_the_exact_solution(N, time):
    u0 = burgers.random_field(6, N)
    assert np.abs(burgers.solve(u0, 0.1, time) - burgers.cole_hopf(u0, 0.1, time)).max() < 1e-8


def test_the_solver_equals_the_exact_solution_on_the_paper_s_grid():
    u0 = burgers.random_field(1, 8192)
    assert np.abs(burgers.solve(u0, 0.1, 1.0) - burgers.cole_hopf(u0, 0.1, 1.0)).max() < 1e-8


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


@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.3, 2.0),
    st.floats(-1.0, 1.0),
    st.lists(st.floats(0.1, 1.0), min_size=2, max_size=2, unique=True),
)
def test_energy_decays_and_the_mean_stays_whatever_the_field(seed, viscosity, mean, times):
    u0 = burgers.random_field(2, 256, seed=seed) + mean
    fields = [u0, *(burgers.solve(u0, viscosity, time) for time in sorted(times))]
    for before, after in zip(fields, fields[1:]):
        assert np.abs(after.mean(1) - u0.mean(1)).max() < 1e-12
        assert ((after**2).mean(1) <= (before**2).mean(1) + 1e-12).all()


@pytest.mark.parametrize(("N", "time"), [(32, 4.0), (48, 8.0), (64, 16.0)])
def test_a_front_that_was_not_resolved_on_the_way_is_not_forgotten(N, time):
    u0 = np.sin(grid(N))[None]
    with pytest.raises(ValueError, match=f"{N} points do not resolve.* is allowed where they rise"):
        burgers.solve(u0, 0.1, time)
    late = np.abs(np.fft.rfft(burgers.cole_hopf(np.sin(grid(512))[None], 0.1, 16.0)))[0]
    assert late[19] < 1e-7 * late.max(), "by time 16 it is so smooth that 64 points would do"


def test_a_time_that_would_take_for_ever_is_refused_at_once():
    for u0, message in ((np.zeros((1, 32)), "5e[+]05"), (np.sin(grid(256))[None] + 1, "steps of")):
        with pytest.raises(ValueError, match=f"would take about .*{message}"):
            burgers.solve(u0, 0.1, 1e9)


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
        ((np.zeros((1, 32)), 0.1, None), "time must be"),
        ((np.zeros((1, 32)), "a", 1.0), "viscosity must be positive"),
        ((np.zeros((1, 32), dtype=complex), 0.1, 1.0), "u0 must hold real numbers, got complex128"),
        ((50 * np.sin(grid(64))[None], 0.001, 1.0), "64 points do not resolve the solution with viscosity 0.001"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        burgers.solve(*arguments)


@pytest.mark.parametrize("steps", [0, -1, 2.5, True])
def test_a_number_of_steps_is_a_whole_number(steps):
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        burgers.solve(np.zeros((1, 32)), 0.1, 1.0, steps=steps)


def test_bad_sizes_are_named():
    for arguments, message in (
        ((0, 64), "samples must"),
        ((2.5, 64), "samples must"),
        ((2, 63), "points must be an even number from 16 to 8192, got 63"),
        ((2, 16384), "points must"),
        ((2, 64, -1), "seed must"),
    ):
        with pytest.raises(ValueError, match=message):
            burgers.random_field(*arguments)
    for samples in (3, 5, 8.5, "8"):
        with pytest.raises(ValueError, match="samples must be a whole number of at least 6"):
            burgers.load(samples=samples, points=256)


def test_many_samples_are_made_in_blocks_that_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOSEDFORM_CACHE", str(tmp_path))
    whole = burgers.load(samples=14, points=256)
    (tmp_path / "burgers-1-14-256.npz").unlink()
    monkeypatch.setattr(burgers, "_BLOCK", 5)
    solve, calls, reports = burgers.cole_hopf, [], []

    def stops(u0, *arguments, **options):
        calls.append(len(u0))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return solve(u0, *arguments)

    monkeypatch.setattr(burgers, "solve", stops)
    with pytest.raises(KeyboardInterrupt):
        burgers.load(samples=14, points=256)
    assert len(list(tmp_path.glob("*.part-*"))) == 2
    blocks = burgers.load(samples=14, points=256, progress=lambda *counts: reports.append(counts))
    assert calls == [5, 5, 4, 4]
    assert reports == [(5, 14), (10, 14), (14, 14)]
    assert [path.name for path in tmp_path.iterdir()] == ["burgers-1-14-256.npz"]
    assert torch.equal(blocks.x_test, whole.x_test)
    assert (blocks.y_test - whole.y_test).abs().max() < 1e-6


def test_a_cache_of_other_numbers_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOSEDFORM_CACHE", str(tmp_path))
    monkeypatch.setattr(burgers, "solve", lambda u0, *_, **__: u0)  # no matter what is in it
    first, path = burgers.load(samples=6, points=256), tmp_path / "burgers-1-6-256.npz"
    assert [len(part) for part in (first.x_train, first.x_validation, first.x_test)] == [4, 1, 1]
    good = burgers.store.read(path)
    for bad in (good["y"].astype(np.float64), np.where(good["y"] > 0, np.nan, good["y"])):
        burgers.store.save(path, good | {"y": bad})
        with pytest.warns(UserWarning, match="its y is not a finite float32 array of shape .6, 256."):
            assert torch.equal(burgers.load(samples=6, points=256).y_test, first.y_test)


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


def test_an_operator_trains_after_a_forward_in_inference_mode():
    net = FNO1d(width=4, modes=3, blocks=1)
    u = torch.randn(2, 46)  # a grid that no other test has
    with torch.inference_mode():
        seen = net(u)
    out = net(u)
    out.square().sum().backward()
    assert torch.equal(seen, out.detach())
    assert net.spectral[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("dtype", "N"), [(torch.bfloat16, 8192), (torch.float16, 131072)])
def test_half_precision_keeps_the_grid(dtype, N):
    net = FNO1d(width=2, modes=2, blocks=1).to(dtype)
    seen = []
    net.lift.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0][0, :, 1].double()))
    assert net(torch.zeros(1, N, dtype=dtype)).isfinite().all()
    exact = torch.arange(N, dtype=torch.float64) / N
    assert (seen[0] - exact).abs().max() <= torch.finfo(dtype).eps


def test_bad_fields_are_named():
    net = FNO1d(width=4, modes=3, blocks=1)
    assert net(torch.zeros(0, 32)).shape == (0, 32, 4)
    for u, message in (
        (torch.zeros(2, 0), "at least one point"),
        (torch.zeros(2, 32).double(), "the fields are torch.float64, but the network is torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            net(u)
    with pytest.raises(ValueError, match=r"expected fields \(B, N, 2\), got"):
        FNO1d(4, 3, 1, channels=2)(torch.zeros(2, 32))
    for modes in (0, 2.5, True):
        with pytest.raises(ValueError, match="modes must be a whole number of at least 1"):
            FNO1d(4, modes)


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
