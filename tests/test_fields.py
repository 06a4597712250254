"""The benchmark on fields: its data are solutions, both heads get the same work, and it goes on where it was stopped."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import torch

from .scripts import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import fields
import fields_data
import fields_networks
import fields_train

SMALL = fields_train.Size((16, 4, 4), 16, 4, 4, 8, 2)


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOSEDFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fields_train, "QUICK", SMALL)
    fields_train.loaded.cache_clear()
    yield
    fields_train.loaded.cache_clear()


# ---- Data ----------------------------------------------------------------------------------------


def _manufactured(N):
    """A permeability that varies, a solution that is known, and the source that belongs to it."""
    cells = (torch.arange(N, dtype=torch.float64) + 0.5) / N
    x, y = (axis.clone().requires_grad_() for axis in torch.meshgrid(cells, cells, indexing="ij"))
    a, u = 2 + torch.sin(3 * x + y), torch.sin(math.pi * x) * torch.sin(2 * math.pi * y)
    along = torch.autograd.grad(u.sum(), (x, y), create_graph=True)
    parts = [torch.autograd.grad((a * slope).sum(), at, retain_graph=True)[0] for slope, at in zip(along, (x, y))]
    return a.detach()[None], u.detach(), -(parts[0] + parts[1])[None]


def test_darcy_flow_converges_to_a_known_solution_with_the_square_of_the_cells():
    errors = []
    for N in (16, 32, 64):
        a, u, f = _manufactured(N)
        errors.append(float((fields_data.darcy(a, f)[0] - u).norm() / u.norm()))
    assert errors[-1] < 1e-3
    assert all(3.8 < coarse / fine < 4.2 for coarse, fine in zip(errors, errors[1:]))


def test_darcy_flow_solves_the_five_point_system_written_out():
    a = fields_data.permeability(1, 12, seed=3)
    assert set(a.unique().tolist()) == set(fields_data.PERMEABILITY)
    u = fields_data.darcy(a, torch.ones_like(a))
    N = 12
    A = torch.zeros(N * N, N * N, dtype=torch.float64)
    for i in range(N):
        for j in range(N):
            for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                k, m = i + di, j + dj
                own = float(a[0, i, j])
                if 0 <= k < N and 0 <= m < N:
                    other = float(a[0, k, m])
                    face = 2 * own * other / (own + other)
                    A[i * N + j, k * N + m] -= face * N**2
                else:
                    face = 2 * own
                A[i * N + j, i * N + j] += face * N**2
    exact = torch.linalg.solve(A, torch.ones(N * N, dtype=torch.float64)).reshape(N, N)
    assert float((u[0] - exact).norm() / exact.norm()) < 1e-9
    with pytest.raises(ValueError, match="positive everywhere, and the least of these is -7"):
        fields_data.darcy(5 - a, torch.ones_like(a))
    with pytest.raises(ValueError, match=r"200 steps are too few .* 4e\+13 times"):
        fields_data.darcy(torch.where(a > 5, 4e13, 1.0).double(), torch.ones_like(a))


@pytest.mark.parametrize("equation", fields.EQUATIONS)
def test_fields_are_split_and_scaled(equation):
    data = fields_data.load(equation, (6, 2, 3), 16, 0, "cpu")
    assert [len(part[0]) for part in (data.train, data.validation, data.test)] == [6, 2, 3]
    assert data.train[0].shape == data.train[1].shape == (6, 1, 16, 16)
    for part in data.train:
        assert abs(float(part.mean())) < 1e-5
        assert float(part.std()) == pytest.approx(1, abs=1e-5)
    again = fields_data.load(equation, (6, 2, 3), 16, 0, "cpu")
    assert torch.equal(again.test[1], data.test[1])
    assert not torch.equal(fields_data.load(equation, (6, 2, 3), 16, 1, "cpu").test[1], data.test[1])


def test_burgers_fields_are_the_solution_at_their_times():
    from closedform.paper.data import burgers

    arrays = fields_data._burgers(2, 16, "cpu")
    start = burgers.random_field(2, fields_data.BURGERS_POINTS, seed=1)
    exact = burgers.cole_hopf(start, burgers.VISCOSITY, 0.5)[:, :: fields_data.BURGERS_POINTS // 16]
    np.testing.assert_allclose(arrays["y"][:, 7], exact, atol=1e-6)
    np.testing.assert_allclose(arrays["x"][:, 3], start[:, :: fields_data.BURGERS_POINTS // 16], atol=1e-6)


# ---- Runs ----------------------------------------------------------------------------------------


def _command(tmp_path, *more):
    folders = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    options = ["--quick", "--network", "twin", "--device", "cpu", "--seeds", "2", "--timing-seconds", "0.1"]
    return [*options, "--equations", "darcy", *folders, *more]


@pytest.fixture
def here(monkeypatch):
    """Runs in this process, whose sizes are the small ones."""

    class Pool:
        def __init__(self, *_, **__):
            pass

        def submit(self, work, *arguments):
            future = fields.Future()
            future.set_result(work(*arguments))
            return future

        def shutdown(self, **_):
            pass

    monkeypatch.setattr(fields, "ProcessPoolExecutor", Pool)


def test_both_heads_get_the_same_work_and_it_goes_on(tmp_path, here):
    body = fields.main(_command(tmp_path))
    (row,) = body["rows"]
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json")]
    for seed in (0, 1):
        assert len({(run["start"], run["steps"]) for run in runs if run["seed"] == seed}) == 1
    assert len([run for run in runs if run["head"] == "learned" and run["seed"] == 0]) >= 5
    assert {run["rate"] for run in runs if run["head"] == "solved"} == {row["rate"]}
    assert row["rate"] == min((run for run in runs if run["head"] == "learned" and run["seed"] == 0),
                              key=lambda run: run["validation"])["rate"]  # fmt: skip
    assert row["ratios"] == [solved / learned for learned, solved in zip(row["learned"], row["solved"])]
    assert row["time"] > 0
    gone = sorted((tmp_path / "runs").glob("*solved*.json"))[0]
    before = gone.read_bytes()
    gone.unlink()
    again = fields.main(_command(tmp_path))
    assert again["rows"][0]["ratios"] == row["ratios"]
    assert json.loads(gone.read_bytes())["test"] == json.loads(before)["test"]


def test_what_is_not_finished_is_said(tmp_path, here, capsys):
    assert fields.main(_command(tmp_path, "--seconds", "0"))["rows"] == []
    assert "darcy is not finished: 5 runs or more are left" in capsys.readouterr().out


def test_the_weight_of_a_field_is_that_of_the_relative_error():
    training = fields_train.Training(fields_train.Run("darcy", "twin", "solved", 0, 0, True), "cpu")
    norms = training.decoded(training.data.train[1]).flatten(1).norm(dim=1)
    assert torch.allclose(training.weights * norms.square(), norms.square().mean().expand_as(norms))
    z, y = torch.randn(3, 1, 4, 4), torch.randn(3, 1, 4, 4)
    each = [float((a - b).norm() / b.norm()) for a, b in zip(z, y)]
    assert float(fields_networks.relative_error("twin")(z, y)) == pytest.approx(sum(each) / 3, rel=1e-6)


@pytest.mark.parametrize("head", fields_train.HEADS)
def test_what_a_capture_has_tried_is_undone(head):
    run = fields_train.Run("darcy", "twin", head, 0, 0, True)
    tried, fresh = fields_train.Training(run, "cpu"), fields_train.Training(run, "cpu")
    before = {name: tensor.detach().clone() for name, tensor in tried._state().items()}
    for _ in range(3):
        tried.step()
    tried._undo(before)
    for _ in range(3):
        tried.step()
        fresh.step()
    for name, tensor in fresh._state().items():
        assert torch.allclose(tried._state()[name], tensor, rtol=1e-5, atol=1e-7), name


def test_neuraloperators_own_loss_and_network_are_taken():
    pytest.importorskip("neuralop")
    z, y = torch.randn(3, 1, 4, 4), torch.randn(3, 1, 4, 4)
    theirs, ours = (fields_networks.relative_error(name)(z, y) for name in ("neuralop", "twin"))
    assert float(theirs) == pytest.approx(float(ours), rel=1e-5)
    assert type(fields_networks.make("neuralop", 4, 4)).__module__.startswith("neuralop.")
