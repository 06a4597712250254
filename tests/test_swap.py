"""The swap test: both heads get the same work, it resumes, and its summary is that of its runs."""

from __future__ import annotations

import json
import math
import sys

import pytest
import torch
from torch import nn

import closedform as cf

from .scripts import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import swap
import swap_optimizers
import swap_plan
import swap_tasks
import swap_train

TASK = "table small"


def _small() -> swap_tasks.Task:
    def load(seed: int) -> swap_tasks.Data:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(240, 4, generator=g)
        y = (x @ torch.randn(4, 2, generator=g)).tanh()
        return swap_tasks.Data(*zip(x.split([160, 40, 40]), y.split([160, 40, 40])), source="generated")

    return swap_tasks.Task(
        name=TASK,
        loss="squared",
        load=load,
        backbone=lambda data: nn.Sequential(nn.Linear(4, 8), nn.GELU()),
        features=8,
        outputs=lambda data: 2,
        epochs={16: 2, 40: 3},
        rates=swap_tasks.RATES,
        seconds={"cpu": 1e-3, "cuda": 1e-3},
    )


@pytest.fixture(autouse=True)
def _only_a_small_task(monkeypatch):
    monkeypatch.setattr(swap_tasks, "tasks", lambda quick: {TASK: _small()})
    swap_train.loaded.cache_clear()
    yield
    swap_train.loaded.cache_clear()


def _command(tmp_path, *more: str) -> list[str]:
    folders = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    return ["--device", "cpu", "--tasks", TASK, "--optimizers", "sgd", "adamw", "--seeds", "2", *folders, *more]


def test_both_heads_get_the_same_work(tmp_path):
    swap.main(_command(tmp_path, "--batch-sizes", "16"))
    rows = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json")]
    assert {row["head"] for row in rows} == {"learned", "solved"}
    for seed in (0, 1):
        same = {(row["start"], row["batches"], row["steps"], row["samples"]) for row in rows if row["seed"] == seed}
        assert len(same) == 1
        assert same.pop()[2:] == (20, 320)
    assert {len(row["curve"]) for row in rows if row["test"] is not None} == {12}
    assert {row["rule"] for row in rows if row["head"] == "solved"} == {repr(cf.ClosedFormLinear(8, 2).rule)}
    for optimizer in ("sgd", "adamw"):
        for head in ("learned", "solved"):
            searched = {row["rung"] for row in rows if (row["optimizer"], row["head"]) == (optimizer, head)}
            assert searched >= set(swap_plan.RUNGS)


def test_it_resumes_to_the_same_summary(tmp_path):
    first = swap.main(_command(tmp_path))
    files = sorted((tmp_path / "runs").glob("*.json"))
    kept = {path: path.read_bytes() for path in files[::2]}
    for path in files[1::2]:
        path.unlink()
    second = swap.main(_command(tmp_path))
    assert second["rows"] == first["rows"]
    assert second["unfinished"] == 0
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert sorted((tmp_path / "runs").glob("*.json")) == files
    (written,) = (tmp_path / "results").glob("*.json")
    assert json.loads(written.read_text())["overall"]["cells"] == 4


def test_a_summary_takes_the_seeds_that_are_there_and_runs_nothing(tmp_path):
    whole = swap.main(_command(tmp_path))
    runs = {path: path.read_bytes() for path in (tmp_path / "runs").glob("*.json")}
    more = swap.main([*_command(tmp_path), "--seeds", "4", "--summary"])
    assert more["rows"] == whole["rows"]
    assert {path: path.read_bytes() for path in (tmp_path / "runs").glob("*.json")} == runs


def test_an_earlier_summary_stands_for_its_runs(tmp_path, monkeypatch):
    whole = swap.main(_command(tmp_path))
    monkeypatch.setattr(swap_optimizers, "missing", lambda name: f"{name} is not on this machine")
    (written,) = (tmp_path / "results").glob("*.json")
    again = swap.main(_command(tmp_path / "other", "--summary", "--beside", str(written)))
    assert again["rows"] == whole["rows"]
    assert again["overall"] == whole["overall"]
    assert not list((tmp_path / "other" / "runs").glob("*.json"))


def test_cells_by_an_earlier_default_stay_until_there_are_newer_ones(tmp_path):
    whole = swap.main(_command(tmp_path))
    kept, other, *_ = whole["rows"]
    stale = other | {"rule": "another", "seeds": 9}
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({"environment": {}, "rows": [kept, stale]}))
    joined = swap.main(_command(tmp_path / "other", "--summary", "--beside", str(earlier)))
    assert joined["rows"] == [kept, stale]
    assert joined["unfinished"] == 3
    assert joined["earlier_rule"] == [f"{TASK}, {other['optimizer']}, batch {other['batch_size']}"]
    assert swap.main(_command(tmp_path, "--summary", "--beside", str(earlier)))["rows"] == whole["rows"]


def test_no_time_no_run(tmp_path):
    body = swap.main(_command(tmp_path, "--seconds", "-1"))
    assert body["unfinished"] == 4
    assert not list((tmp_path / "runs").glob("*.json"))


def test_runs_by_another_rule_are_done_again(tmp_path):
    row = swap_train.train([swap_train.Run(TASK, "sgd", 16, "solved", 0, 0)], "cpu")[0]
    records = swap_plan.Records(tmp_path)
    records.add(row)
    assert set(swap_plan.Records(tmp_path).rows) == {swap_plan.run_of(row)}
    records.add(row | {"rule": "another"})
    assert not swap_plan.Records(tmp_path).rows


def test_the_rate_is_chosen_on_validation_and_the_ratio_is_of_test_errors(tmp_path):
    """Errors put in by hand: the learned layer is best at rung 1 by validation, though not by test error."""
    cell = swap_plan.Cell(TASK, "adamw", 16)
    records = swap_plan.Records(tmp_path)
    validation = {-2: 0.5, -1: 0.4, 0: 0.3, 1: 0.2, 2: None}
    for head, factor in (("learned", 1.0), ("solved", 0.5)):
        for rung, value in validation.items():
            for seed in (0, 1):
                row = swap_train.asdict(cell.run(head, rung, seed))
                test = None if value is None else factor * (1 + seed) * (0.1 if rung == 0 else 1.0)
                records.add(
                    row | {"validation": value, "test": test, "rate": 1.0, "constant": 1.0, "rule": "", "source": ""}
                )
    row = swap_plan.summarise(cell, records, [0, 1], 1)
    assert row["learned"] == [1.0, 2.0]
    assert row["swapped"]["ratio"] == pytest.approx(0.5)
    assert row["swapped"]["noise"] == pytest.approx(0.0)
    assert swap_plan.overall([row])["swapped_worst"]["ratio"] == pytest.approx(0.5)


def test_the_largest_rate_that_trains_is_searched_upwards(tmp_path):
    cell = swap_plan.Cell(TASK, "sgd", 16)
    records = swap_plan.Records(tmp_path)
    limit = {"learned": 2, "solved": 4}
    while missing := swap_plan.next_runs(cell, records, [0], 1):
        for run in missing:
            fine = run.rung <= limit[run.head]
            error = 0.1 + 0.01 * abs(run.rung) if fine else None
            rest = {"rate": 10 ** (run.rung / 2), "constant": 1.0, "rule": "", "source": ""}
            records.add(swap_train.asdict(run) | {"validation": error, "test": error} | rest)
    largest = swap_plan.summarise(cell, records, [0], 1)["largest"]
    assert largest["factor"] == pytest.approx(10.0)
    assert largest["open"] == {"learned": False, "solved": False}


@pytest.mark.parametrize("name", swap_optimizers.NAMES)
def test_an_optimizer_follows_the_rate(name):
    """The first step is proportional to the rate in the tensor."""
    if (why := swap_optimizers.missing(name)) is not None:
        pytest.skip(why)
    moves = []
    for value in (1e-3, 2e-3):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)).double()
        before = [p.detach().clone() for p in net.parameters()]
        rate = torch.tensor(1.0)
        optimizers = swap_optimizers.make(name, net, (), rate, 5e-4, 0.01)
        rate.fill_(value)
        for _ in range(2 if name == "soap" else 1):  # the first step of SOAP only looks
            net.zero_grad()
            net(torch.ones(1, 2, 4, 4).double()).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        moves.append([float((p.detach() - q).abs().max()) for p, q in zip(net.parameters(), before)])
    for one, two in zip(*moves):
        assert two == pytest.approx(2 * one, rel=0.05)
        assert one > 0


def test_the_schedule_rises_and_falls():
    rates = swap_train.schedule(100, 2.0, 0.1)
    assert float(rates.max()) == pytest.approx(2.0)
    assert int(rates.argmax()) == 10
    assert float(rates[-1]) < 0.01
    assert bool((rates.diff()[10:] < 0).all())


def test_a_constant_has_the_error_that_is_told():
    data = _small().load(0)
    y = data.train[1].mean(0)
    assert swap_train.constant_error(_small(), data) == pytest.approx(float((data.validation[1] - y).square().mean()))
    assert math.isfinite(swap_train.constant_error(_small(), data))


def test_the_swap_alone_searches_no_rate_for_the_solved_head(tmp_path):
    body = swap.main(_command(tmp_path, "--same-rate", "--optimizers", "sgd"))
    (row,) = (row for row in body["rows"] if row["batch_size"] == 16)
    solved = {run["rung"] for run in body["runs"] if run["head"] == "solved" and run["batch_size"] == 16}
    assert len(solved) == 1
    assert "own" not in row
    assert "largest" not in row
    assert set(row["rates"]) == {"learned"}
    assert len(row["swapped"]["ratios"]) == 2
    assert "own" not in body["overall"]


def test_runs_and_their_summary_need_two_folders(tmp_path, capsys):
    with pytest.raises(SystemExit):
        swap.main(["--out", str(tmp_path), "--results", str(tmp_path)])
    assert "must be two folders" in capsys.readouterr().err


@pytest.mark.parametrize("name", [swap_tasks.OTHER_CLASSES[0], swap_tasks.OTHER_NUMBERS[0]])
def test_other_tables_have_a_generated_twin(name, monkeypatch):
    monkeypatch.delenv("CLOSEDFORM_DATA", raising=False)
    task = swap_tasks._table(name, False, swap_tasks.OTHER_ROWS)
    data = task.load(0)
    classes = name in swap_tasks.OTHER_CLASSES
    assert data.source == "generated"
    assert task.loss == ("likelihood" if classes else "squared")
    assert data.train[1].dtype == (torch.int64 if classes else torch.float32)
    assert task.outputs(data) == (3 if classes else 1)
    assert len(data.train[0]) + len(data.validation[0]) + len(data.test[0]) == 2000


def test_noise_is_pooled_over_the_cells_of_a_task():
    rows = [
        {"task": task, "swapped": {"noise": noise}}
        for task, noise in (("one", 0.03), ("one", 0.04), ("one", None), ("two", None))
    ]
    assert swap_plan.pooled_noise(rows) == {"one": pytest.approx((0.03**2 + 0.04**2) ** 0.5 / 2**0.5)}
