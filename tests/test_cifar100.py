"""The CIFAR-100 experiment on generated images: every method, stopping and going on, the table, the report, the claims."""

import dataclasses
import json
import math
import random
import re
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from closedform.paper import report
from closedform.paper.claims import cifar100 as claims_cifar
from closedform.paper.data import cifar
from closedform.paper.experiments import (
    cifar100,
    cifar100_model,
    cifar100_plan,
    cifar100_report,
    confidence,
    optimizers,
    timing,
)
from closedform.paper.experiments.batches import DeviceImages
from closedform.paper.experiments.cifar100_plan import Cell, PlannedTask, RunScale
from closedform.paper.sweeps import grid, results
from closedform.paper.sweeps.records import Records
from closedform.paper.sweeps.work import OutOfTime
from closedform.solver import auto

ROOT = Path(__file__).parents[1]
SMALL = RunScale(epochs=2, search_epochs=1, seeds=2, limit=200, source="synthetic", net="small", precision="fp32")
METHODS = [method.key for method in cifar100_report.METHODS]


def config_of(method, optimizer="sgd", batch_size=32, **changed):
    cell = Cell(optimizer, batch_size, method)
    return SMALL.config(cell, cell.start, "final") | changed


def model(config):
    return cifar100_model.classifier(config, DeviceImages(cifar.load(0, 200, source="synthetic"), torch.device("cpu")))


def silent(line):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every method at two batch sizes, and the studies of the proximal rule."""
    out = tmp_path_factory.mktemp("cifar100")
    tasks = [PlannedTask(Cell("sgd", size, method)) for size in (32, 64) for method in METHODS]
    tasks += [PlannedTask(Cell("sgd", 32, "proximal"), study) for study in ("design", "smoothing", "sweep")]
    cifar100.run(out, tasks, SMALL, say=silent)
    cifar100.collect(out)
    return out


# ---- What is run ---------------------------------------------------------------------------------


def test_the_plan_has_every_batch_size_and_optimizer_and_says_what_is_wanted_most():
    tasks = cifar100_plan.tasks()
    assert len({(task.cell, task.study) for task in tasks}) == len(tasks)
    cells = {task.cell for task in tasks if task.study == "methods"}
    assert cells == {Cell("sgd", size, method) for size in cifar100_plan.BATCH_SIZES for method in METHODS} | {
        Cell(optimizer, 128, method) for optimizer in ("adamw", "muon") for method in METHODS
    }
    assert {task.cell.batch_size for task in tasks if task.group == 0} == {128, 1024}
    assert [task.group for task in tasks] == sorted(task.group for task in tasks)
    assert all(cell.axis is None or cell.start.value in cifar100_plan.LADDERS[cell.axis] for cell in cells)
    some = cifar100_plan.chosen_tasks(["sgd"], [32, 64], ["kalman"], studies=False)
    assert {task.cell for task in some} == {Cell("sgd", 32, "kalman"), Cell("sgd", 64, "kalman")}
    assert all(task.study == "methods" for task in some)


def test_bad_wishes_are_named(tmp_path):
    with pytest.raises(ValueError, match="batch size 512 is larger than the training set of 160 images"):
        cifar100.run(tmp_path, [PlannedTask(Cell("sgd", 512, "l2"))], SMALL)
    with pytest.raises(ValueError, match="there is no method 'hinge'"):
        cifar100_plan.chosen_tasks(None, None, ["hinge"], studies=True)
    with pytest.raises(ValueError, match="takes whole labels"):
        cifar100_model.loss_of("generalized", 0.1)
    with pytest.raises(ValueError, match="10 rows at equal angles need as many features, got 4"):
        cifar100_model.simplex(10, 4, 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
@pytest.mark.parametrize("seed", range(5))
def test_every_search_has_equally_many_runs_whatever_the_scores(method, optimizer, seed):
    draw, cell, scores = random.Random(seed), Cell(optimizer, 128, method), {}
    while True:
        tried, missing = cifar100_plan.search(cell, scores.get)
        if not missing:
            break
        scores |= {setting: -math.inf if draw.random() < 0.3 else draw.random() for setting in missing}
    assert len(tried) == len(set(tried)) == len(scores) == cifar100_plan.RUNS
    assert len({setting.lr for setting in tried}) >= 3


def test_a_search_goes_beyond_the_last_rate_where_that_is_the_best():
    cell = Cell("sgd", 128, "cross-entropy")
    tried, _ = cifar100_plan.search(cell, lambda setting: setting.lr)
    assert max(tried).lr == pytest.approx(4 * cell.start.lr)
    cell = Cell("sgd", 128, "kalman")
    tried, _ = cifar100_plan.search(cell, lambda setting: -abs(setting.lr - cell.start.lr))
    assert {setting.value for setting in tried if setting.lr == cell.start.lr} == {0.99, 0.999}
    cell = Cell("sgd", 128, "etf")
    tried, _ = cifar100_plan.search(cell, lambda setting: -abs(setting.lr - cell.start.lr))
    assert tried[-1].lr == pytest.approx(cell.start.lr * 2**0.5, rel=0.01)


def test_a_setting_that_a_study_has_tried_does_not_change_the_choice(tmp_path):
    """All lambdas are run at the chosen rate; the best of them in hindsight is not what was chosen."""
    cell, records = Cell("sgd", 128, "proximal"), Records(tmp_path)

    def noted(config):
        score = 0.5 - abs(config["lr"] - 0.3) if config["lam"] > 100 else 0.9
        records.add(config, rows=[{"step": 10, "validation": score}])

    while runs := cifar100_plan.next_runs(PlannedTask(cell), records, SMALL):
        for config in runs:
            noted(config)
    sweep = cifar100_plan.next_runs(PlannedTask(cell, "sweep"), records, SMALL)
    assert {config["lam"] for config in sweep} == {1.0, 10.0, 100.0, 1e3, 1e6}
    for config in sweep:
        noted(config)
    assert cifar100_plan.next_runs(PlannedTask(cell), records, SMALL) == []
    design = cifar100_plan.next_runs(PlannedTask(cell, "design"), records, SMALL)
    assert {config["lam"] for config in design} == {1e4}
    assert {config["init"] for config in design} == {"zeros", "lecun", "xavier", "he"}
    assert sum(not config["bias"] for config in design) == sum(config["algorithm"] == 2 for config in design) == 1


def test_a_seed_of_every_setting_comes_before_the_next_seed(tmp_path):
    records, tasks = Records(tmp_path), [PlannedTask(Cell("sgd", 128, method)) for method in ("l2", "cross-entropy")]
    order = []
    while runs := cifar100_plan.ordered(tasks, records, SMALL):
        order.append((runs[0]["stage"], runs[0]["seed"], runs[0]["method"]))
        records.add(runs[0], rows=[{"step": 10, "validation": 0.5}])
    assert order[-4:] == [("final", seed, method) for seed in (0, 1) for method in ("l2", "cross-entropy")]
    assert all(stage == "search" for stage, *_ in order[:-4])


@pytest.fixture
def another_default(monkeypatch):
    """A function that changes the default's constants, as another version of the library would."""
    return lambda: monkeypatch.setattr(auto, "DECAY", auto.DECAY + 0.01)


def with_every_run(records, cell, seeds):
    scale = dataclasses.replace(SMALL, seeds=seeds)
    while runs := cifar100_plan.next_runs(PlannedTask(cell), records, scale):
        for config in runs:
            noted = {"rejected": 0, "device": "cpu", "torch": "", "closedform": ""}
            rows = [{"step": 10, "wall_s": 1.0, "validation": 0.5, "test": 0.5}]
            records.add(config, rows=rows, **noted)


def test_runs_by_an_earlier_default_are_done_again(tmp_path, another_default):
    records, default, learned = Records(tmp_path), Cell("sgd", 32, "auto cross-entropy"), Cell("sgd", 32, "l2")
    for cell in (default, learned):
        with_every_run(records, cell, SMALL.seeds)
    another_default()
    records = Records(tmp_path)
    assert cifar100_plan.next_runs(PlannedTask(learned), records, SMALL) == []
    again = cifar100_plan.next_runs(PlannedTask(default), records, SMALL)
    assert {config["stage"] for config in again} == {"search"}
    assert len(again) == 3, "no earlier run counts"


def test_a_table_has_one_default_a_cell_and_says_where_it_is_an_earlier_one(tmp_path, another_default):
    records, cells = Records(tmp_path / "runs"), [Cell("sgd", size, "auto cross-entropy") for size in (32, 64)]
    for cell in cells:
        with_every_run(records, cell, 2)
    earlier = cifar100_model.default_name(cells[0].method)
    another_default()
    with_every_run(records, cells[0], 1)
    with_every_run(records, cells[1], 2)
    table = cifar100.collect(tmp_path)
    assert set(table.loc[table["batch_size"] == 32, "rule"]) == {earlier}, "fewer runs replace none"
    assert set(table.loc[table["batch_size"] == 64, "rule"]) == {cifar100_model.default_name(cells[1].method)}
    assert not table.duplicated(["study", "batch_size", "stage", "lr", "seed", "step"]).any()
    assert cifar100_report.by_an_earlier_default(table) == [("sgd", 32, "auto cross-entropy")]
    with_every_run(records, cells[0], 2)
    assert cifar100_report.by_an_earlier_default(cifar100.collect(tmp_path)) == []


# ---- One run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_every_method_learns(method, optimizer):
    if (why := optimizers.missing(optimizer)) is not None:
        pytest.skip(why)
    config = config_of(method, optimizer, epochs=10)
    rates = {"cross-entropy": 0.2, "closed-form cross-entropy": 0.5, "l2": 0.05, "etf": 0.2}
    config |= {"lr": rates.get(method, 0.1) if optimizer == "sgd" else 0.01}
    config |= {"lam": 30.0} if method == "proximal" else {}
    rows = model(config).train()
    assert rows[-1]["test"] > 0.5
    assert rows[-1]["train"] < rows[0]["train"]
    assert 0.1 < rows[-1]["test_mean"] <= 1
    assert rows[-1]["nll"] < math.log(10)
    assert [row["step"] for row in rows][-1] == 10 * 5


def test_algorithms_and_bias_and_initialisation_are_what_the_configuration_says():
    config = config_of("proximal")
    plain = model(config)
    assert plain.head.bias is not None
    assert not plain.head.weight.any()
    other = model(config | {"bias": False, "init": "he"})
    assert other.head.bias is None
    assert float(other.head.weight.std()) == pytest.approx((2 / 64) ** 0.5, rel=0.1)
    assert float(plain.head.rule.lam) == config["lam"]
    assert model(config_of("auto cross-entropy", smoothing=0.1)).head.loss.label_smoothing == 0.1


def test_weight_decay_is_on_the_backbone_and_on_a_learned_layer_alone():
    for method in METHODS:
        stepped = model(config_of(method))
        (optimizer,) = stepped.optimizers
        (group,) = optimizer.param_groups
        assert group["weight_decay"] == 5e-4
        held = {id(parameter) for parameter in group["params"]}
        assert {id(parameter) for parameter in stepped.backbone.parameters()} <= held
        assert (id(stepped.head.weight) in held) == (method in ("cross-entropy", "l2"))


def test_a_fixed_layer_has_equal_angles_and_stays():
    rows = cifar100_model.simplex(10, 64, 3).double()
    gram = rows @ rows.T
    expected = torch.full((10, 10), -1 / 9, dtype=torch.float64).fill_diagonal_(1.0)
    assert torch.allclose(gram, expected, atol=1e-6)
    stepped = model(config_of("etf"))
    before = stepped.head.weight.clone()
    stepped.advance(3)
    assert torch.equal(stepped.head.weight, before)


@pytest.mark.parametrize("number", [1, 2])
def test_algorithm_2_descends_with_the_old_layer(number, monkeypatch):
    stepped = model(config_of("proximal", algorithm=number, init="he"))
    before, seen, objective = stepped.head.weight.clone(), [], stepped._objective
    monkeypatch.setattr(stepped, "_objective", lambda z, y: seen.append(stepped.head.weight.clone()) or objective(z, y))
    stepped.advance()
    assert torch.equal(seen[0], before) == (number == 2)
    assert not torch.equal(stepped.head.weight, before)


def test_the_solved_layers_are_solved():
    for method in METHODS:
        stepped = model(config_of(method))
        stepped.advance()
        if method not in ("cross-entropy", "l2", "etf"):
            assert int(stepped.head.step) == 1
        assert stepped.head.weight.any()


def test_the_loss_is_summed_over_classes():
    classifier = model(config_of("l2"))
    z, y = torch.zeros(4, 10), torch.tensor([0, 1, 2, 3])
    assert float(classifier._objective(z, y)) == pytest.approx(1.0)  # one target of one a sample
    assert float(model(config_of("cross-entropy"))._objective(z, y)) == pytest.approx(math.log(10))


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_the_rate_rises_and_falls_and_the_memory_follows(optimizer):
    if (why := optimizers.missing(optimizer)) is not None:
        pytest.skip(why)
    config = config_of("kalman", optimizer, epochs=4)
    classifier, rates, forgets = model(config), [], []
    while classifier.t < classifier.total:
        classifier.advance()
        rates.append(float(classifier.lr))
        forgets.append(float(classifier.head.rule.forget(classifier.head.step)))
    assert classifier.total == 20
    assert rates[:3] == pytest.approx([config["lr"] / 3, config["lr"] * 2 / 3, config["lr"]])
    assert all(b < a for a, b in zip(rates[2:], rates[3:]))
    assert rates[11] == pytest.approx(config["lr"] * 0.5)
    assert forgets[2] == pytest.approx(config["forget"])
    assert all(b > a for a, b in zip(forgets[2:], forgets[3:]))


def test_bf16_autocast_on_the_cpu():
    classifier = model(config_of("proximal", precision="bf16", lr=0.05))
    phi = classifier._features(torch.zeros(2, 3, 32, 32))
    assert phi.dtype == torch.float32
    assert classifier.head.weight.dtype == torch.float32
    rows = classifier.train()
    assert math.isfinite(rows[-1]["train"])


@pytest.mark.parametrize("method", ["kalman", "cross-entropy", "auto cross-entropy"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(method, optimizer, tmp_path):
    if (why := optimizers.missing(optimizer)) is not None:
        pytest.skip(why)
    config = config_of(method, optimizer)
    whole = model(config)
    expected = whole.train()
    checkpoint, stops = tmp_path / "run.checkpoint", 0
    while True:
        part = model(config)
        try:
            rows = part.train(checkpoint=checkpoint, name="a", deadline=time.perf_counter())
            break
        except OutOfTime:
            stops += 1
    assert stops == whole.total - 1
    assert torch.equal(part.head.weight, whole.head.weight)
    assert all(
        torch.equal(a, b) for a, b in zip(part.backbone.state_dict().values(), whole.backbone.state_dict().values())
    )
    both = [pd.DataFrame(some).drop(columns="wall_s") for some in (rows, expected)]
    pd.testing.assert_frame_equal(*both, check_exact=True)
    with pytest.raises(ValueError, match=r"cannot be continued .*belongs to 'a'"):
        model(config).train(checkpoint=checkpoint, name="b")


@pytest.mark.parametrize("method", ["l2", "proximal", "kalman"])
def test_a_model_that_diverges_is_given_up_and_says_so(method):
    broken = model(config_of(method))
    with torch.no_grad():
        next(broken.backbone.parameters()).fill_(math.inf)
    rows = broken.train()
    assert broken.t < broken.total
    assert rows[-1]["test"] == rows[-1]["validation"] == -math.inf
    assert rows[-1]["step"] == broken.total


def test_the_readings_of_probabilities():
    p = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.3, 0.7], [0.2, 0.8]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 1])
    values = confidence.readings(p, y, 2)
    assert values == pytest.approx(
        {
            "mean": (0.6 + 0.9 + 0.7 + 0.8) / 4,
            "own": (0.6 + 0.1 + 0.7 + 0.8) / 4,
            "right": (0.6 + 0.7 + 0.8) / 3,
            "tenth": 0.9,
            "batch": (0.6 + 0.8) / 2,
            "highest": 0.8,
        }
    )
    assert list(values) == list(confidence.READINGS)
    rows = model(config_of("proximal")).train()
    assert {f"{part}_{reading}" for part in confidence.PARTS for reading in confidence.READINGS} <= set(rows[-1])
    assert math.isnan(rows[0]["train_batch"])  # measured at the end alone
    assert rows[-1]["train_mean"] <= rows[-1]["train_tenth"] <= 1


# ---- The folder, the report, the command ---------------------------------------------------------


def test_the_table_and_the_report(folder):
    table = results.load(folder)
    assert set(table["study"]) == {"methods", "settings", "initialisation", "bias", "algorithms", "smoothing"}
    assert set(table["method"]) == set(METHODS)
    methods = table[table["study"] == "methods"]
    assert (methods["epochs"] == SMALL.epochs).all()
    assert (methods.groupby(["batch_size", "method"])["seed"].nunique() == SMALL.seeds).all()
    assert (methods["init"] == "zeros").all()
    settings = table[table["study"] == "settings"]
    assert (settings["epochs"] == SMALL.search_epochs).all()
    tried = (
        settings[settings["batch_size"] == 64].drop_duplicates(["method", *cifar100.SETTINGS]).groupby("method").size()
    )
    assert (tried == cifar100_plan.RUNS).all()
    assert set(settings.loc[settings["method"] == "proximal", "lam"]) >= set(cifar100_plan.LADDERS["lam"])
    twice = table.duplicated(["study", "batch_size", "method", "seed", *cifar100.DESIGN, "step", *cifar100.SETTINGS])
    assert not twice.any()
    assert set(table.loc[table["study"] == "initialisation", "init"]) == {"zeros", "lecun", "xavier", "he"}
    assert set(table.loc[table["study"] == "algorithms", "algorithm"]) == {1, 2}
    assert set(table.loc[table["study"] == "smoothing", "smoothing"]) == {0.0, 0.1}
    spec = json.loads((folder / "experiment.json").read_text())
    assert spec["lower"] is False
    page = report.write(folder, None, cifar100_report.sections(folder)).read_text()
    assert "<td>the paper: proximal</td><td>0.63</td><td>\N{EN DASH}</td>" in page
    for title in (
        "Learning curves",
        "How much lambda matters",
        "Learning rates, sgd",
        "With and without a bias: proximal",
    ):
        assert title in page
    assert not list(folder.glob("checkpoints/*"))


def test_leads_are_differences_seed_by_seed(folder):
    table = results.load(folder)
    chosen = table[table["study"] == "methods"]
    ends = chosen[chosen["step"] == chosen.groupby("batch_size")["step"].transform("max")]
    accuracy = ends.set_index(["batch_size", "method", "seed"])["test"].to_dict()
    leads = cifar100_report.leads(table)
    seen = {(size, method, seed) for size, row in leads.items() for method, own in row.items() for seed in own}
    assert seen == {key for key in accuracy if key[1] != "cross-entropy"}
    for size, method, seed in seen:
        points = 100 * (accuracy[size, method, seed] - accuracy[size, "cross-entropy", seed])
        assert leads[size][method][seed] == pytest.approx(points)
    assert leads[64]["proximal"].keys() == set(range(SMALL.seeds))
    without = table[(table["method"] != "cross-entropy") | (table["seed"] > 0)]
    assert cifar100_report.leads(without)[64]["proximal"].keys() == set(range(1, SMALL.seeds)), "no pair, no lead"
    assert cifar100_report.leads(table[table["method"] != "cross-entropy"]) == {}


def test_what_is_finished_is_not_run_again_and_what_is_damaged_is(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "copy")
    tasks, out = [PlannedTask(Cell("sgd", 32, "l2"))], tmp_path / "copy"
    monkeypatch.setattr(cifar100, "train", lambda *a, **k: pytest.fail("ran again"))
    records = cifar100.run(out, tasks, SMALL, say=silent)
    assert cifar100.progress(tasks, records, SMALL) == ["sgd, batch size 32, l2, methods: finished"]
    monkeypatch.undo()
    cell = tasks[0].cell
    broken = out / "runs" / f"{grid.digest(SMALL.config(cell, cell.start, 'search'))}.json"
    before = json.loads(broken.read_text())
    broken.write_text(broken.read_text()[:-40])
    with pytest.warns(UserWarning, match="is not the record of a run"):
        cifar100.run(out, tasks, SMALL, say=silent)
    again = json.loads(broken.read_text())
    assert [row["validation"] for row in again["rows"]] == [row["validation"] for row in before["rows"]]


def test_short_runs_alone_have_a_page_too(tmp_path):
    cell = Cell("sgd", 32, "l2")
    work = cifar100.work(tmp_path, [PlannedTask(cell)], SMALL, "cpu", None, silent)
    config = work.next()
    work.take(config, lambda: cifar100.train(config, device="cpu"))
    assert set(cifar100.collect(tmp_path)["study"]) == {"settings"}
    assert "Learning rates, sgd" in report.write(tmp_path, None, cifar100_report.sections(tmp_path)).read_text()


def test_records_are_merged(folder, tmp_path):
    records = Records(tmp_path / "runs")
    count = len(list((folder / "runs").glob("*.json")))
    assert records.merge(folder / "runs") == count
    assert records.merge(folder / "runs") == 0
    assert len(Records(tmp_path / "runs")) == count
    with pytest.raises(ValueError, match="there is no such folder"):
        records.merge(tmp_path / "nothing")
    pd.testing.assert_frame_equal(cifar100.collect(tmp_path), cifar100.collect(folder))


def test_a_run_out_of_time_stops_and_goes_on(tmp_path):
    tasks, lines = [PlannedTask(Cell("sgd", 32, "l2"))], []
    work = cifar100.work(tmp_path, tasks, SMALL, "cpu", None, lines.append)
    config = work.next()
    work.take(config, lambda: cifar100.train(config, device="cpu", folder=tmp_path / "checkpoints", deadline=0.0))
    assert lines == [f"{cifar100.name(config)}: put aside"]
    assert len(list((tmp_path / "checkpoints").glob("*.checkpoint"))) == 1
    assert not len(cifar100.run(tmp_path, tasks, SMALL, seconds=1e-9, say=silent))
    records = cifar100.run(tmp_path, tasks, SMALL, seconds=600, say=silent)
    assert len(records) == cifar100_plan.RUNS + SMALL.seeds
    assert not list((tmp_path / "checkpoints").glob("*.checkpoint"))


def test_a_run_that_would_take_too_long_is_not_started(tmp_path):
    cell = Cell("sgd", 32, "l2")
    work = cifar100.work(tmp_path, [PlannedTask(cell)], SMALL, "cpu", time.time() + 5, silent)
    (first, second, *others) = cifar100_plan.next_runs(PlannedTask(cell), work.records, SMALL)
    row = {"step": 5, "validation": 0.1, "wall_s": 100.0}
    work.records.add(first, rows=[row])  # of another time, when others shared the device
    assert work.next() == second
    work.take(second, lambda: {"rows": [row]})  # most of its time was spent before it was put aside
    assert work.next() == others[0]
    work.started[grid.digest(others[0])] -= 200
    work.take(others[0], lambda: {"rows": [row]})
    further = cifar100_plan.next_runs(PlannedTask(cell), work.records, SMALL)[0]
    assert work.next() is None
    work.deadline = time.time() + 500
    assert work.next() == further


def test_several_runs_at_once_give_what_one_after_another_gives(tmp_path):
    tasks = [PlannedTask(Cell("sgd", 32, method)) for method in ("l2", "kalman")]
    alone = cifar100.table_of(cifar100.run(tmp_path / "alone", tasks, SMALL, say=silent))
    lines = []
    both = cifar100.table_of(cifar100.run(tmp_path / "both", tasks, SMALL, at_once=2, say=lines.append))
    assert sum("validation" in line for line in lines) == 2 * (cifar100_plan.RUNS + SMALL.seeds)
    columns = ["method", "lr", "forget", "stage", "seed", "step", "validation", "test"]
    pd.testing.assert_frame_equal(*(some[columns].sort_values(columns, ignore_index=True) for some in (alone, both)))


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    train = cifar100.train
    wrong = lambda config, **kwargs: train(config, **kwargs) if config["method"] != "l2" else 1 / 0  # noqa: E731
    monkeypatch.setattr(cifar100, "train", wrong)
    tasks = [PlannedTask(Cell("sgd", 32, method)) for method in ("l2", "etf")]
    with pytest.raises(grid.SweepError, match=r"3 runs failed, the first sgd, batch size 32, l2, .*ZeroDivisionError"):
        cifar100.run(tmp_path, tasks, SMALL, say=silent)
    assert len(Records(tmp_path / "runs")) == cifar100_plan.RUNS + SMALL.seeds


# ---- Claims --------------------------------------------------------------------------------------


def test_claims_of_a_real_folder_and_of_a_wrong_one(folder, tmp_path):
    verdicts = claims_cifar.check(folder)
    text = " ".join(c.claim for c in verdicts)
    for words in (
        "proximal beats l2",
        "Algorithms 1 and 2",
        "zeros",
        "bias",
        "less confident",
        "kalman is never behind proximal",
    ):
        assert words in text
    results.save(pd.DataFrame({"study": ["methods"]}), tmp_path)
    with pytest.raises(ValueError, match="there is no column 'confidence'"):
        claims_cifar.check(tmp_path)


# ---- Timing --------------------------------------------------------------------------------------


def test_the_papers_wall_clock_tables():
    """Ratios that the paper prints follow from the columns beside them, to its two digits; so nothing was mistyped there."""
    assert len(timing.PAPER) == 42
    assert timing.PAPER["resnet18", 32, 4096].rtime == pytest.approx(2.37, abs=0.005)
    assert timing.PAPER["resnet50", 32, 128].rtime == pytest.approx(1.66, abs=0.005)
    assert timing.PAPER["resnet18", 4096, 512].rsps == pytest.approx(0.87, abs=0.005)
    sums = [sum(column) for column in zip(*timing.PAPER.values())]
    assert sums == pytest.approx([952.8, 1144.53, 102846.64, 81971.85], abs=0.005)
    source = (ROOT / "benchmarks" / "step_overhead.py").read_text()
    block = re.search(r"PAPER = \{.*?\n\}", source, re.S)
    space = {}
    exec(block.group(), space)  # the benchmark is ours, and its ratios were read from the paper by themselves
    for (net, batch), ratios in space["PAPER"].items():
        for dim, ratio in zip(timing.DIMS, ratios):
            assert timing.PAPER[net, batch, dim].rtime == pytest.approx(ratio, abs=0.0051), (net, batch, dim)


def test_our_columns_stand_beside_the_papers(tmp_path):
    rows = timing.rows(ROOT / "benchmarks" / "results" / "step_overhead-cuda.json")
    assert len(rows) == 42
    table = timing.markdown(rows, "resnet50")
    assert len(table.splitlines()) == 2 + 18
    row = next(r for r in rows if (r.net, r.batch_size, r.dim) == ("resnet18", 1024, 512))
    assert row.ours.time_s == pytest.approx(4900 / row.ours.sps)
    assert "4.7 / " in timing.cells(row)[2]
    with pytest.raises(ValueError, match=r"python benchmarks/step_overhead.py writes it"):
        timing.rows(tmp_path / "nothing.json")
