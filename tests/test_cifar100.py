"""The CIFAR-100 experiment on generated images: every method, stopping and going on, the table, the report, the claims."""

import json
import math
import random
import re
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from closedform.paper import report
from closedform.paper.claims import cifar100 as claims_cifar
from closedform.paper.data import cifar
from closedform.paper.experiments import cifar100, cifar100_model, cifar100_report, timing
from closedform.paper.experiments.classifier import DeviceImages, OutOfTime
from closedform.paper.sweeps import grid, results

ROOT = Path(__file__).parents[1]
SMALL = {"source": "synthetic", "limit": 200, "net": "small", "precision": "fp32", "epochs": 2}


def quick(**kwargs):
    return cifar100.jobs(["sgd"], [32], size="quick", **(SMALL | kwargs))


def model(config):
    return cifar100_model.classifier(config, DeviceImages(cifar.load(0, 200, source="synthetic"), torch.device("cpu")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every method once, at two batch sizes, and what follows up the proximal rule."""
    out = tmp_path_factory.mktemp("cifar100")
    configs = cifar100.jobs(["sgd"], [32, 64], size="quick", **SMALL)
    cifar100.run(out, configs)
    more = [c for c in cifar100.follow_up(cifar100.collected(out)) if c["batch_size"] == 32]
    keep = [c for c in more if c["method"] in ("proximal", "ridge") and c["lam"] in (None, 10.0, 1e5)]
    cifar100.run(out, keep)
    return out


# ---- What is run ---------------------------------------------------------------------------------


def test_the_full_grids_are_the_papers():
    full = cifar100.jobs(["sgd", "adam"], cifar100.BATCH_SIZES, size="full")
    cell = [c for c in full if c["optimizer"] == "sgd" and c["batch_size"] == 32]
    count = {method.key: sum(c["method"] == method.key for c in cell) for method in cifar100.METHODS}
    assert count["cross-entropy"] == count["l2"] == 13
    assert count["ridge"] == count["proximal"] == 13 * 8
    assert count["kalman"] == 13 * 4
    assert count["generalized"] == 13 * 5
    assert {c["init"] for c in full if c["optimizer"] == "adam"} == {"lecun"}
    assert {c["init"] for c in cell} == {"zeros"}
    assert len({grid.digest(c) for c in full}) == len(full) == 8 * len(cell)
    names = [cifar100.name(c) for c in full]
    assert len(set(names)) == len(names)
    assert set(cifar100.LADDERS["lr"]) < set(cifar100.RATES)
    starts = cifar100.jobs(["sgd", "adam"], cifar100.BATCH_SIZES)
    assert len(starts) == 8 * len(cifar100.METHODS)
    assert all(c[name] in (None, *cifar100.LADDERS[name]) for c in starts for name in cifar100.SETTINGS)


def test_bad_jobs_are_named():
    with pytest.raises(ValueError, match="batch size 512 is larger than the training set of 160 images"):
        cifar100.jobs(["sgd"], [512], **SMALL)
    with pytest.raises(ValueError, match="there is no method 'hinge'"):
        quick(methods=["hinge"])
    with pytest.raises(ValueError, match="size is 'huge'"):
        cifar100.jobs(["sgd"], [32], **(SMALL | {"size": "huge"}))


def test_a_follow_up_is_at_the_best_rate():
    rows = []
    for lr, accuracy in ((0.5, 0.3), (0.2, 0.6), (0.1, 0.4)):
        for method, lam, beta in (("proximal", 1000.0, None), ("ridge", None, 1.0), ("l2", None, None)):
            shared = {"epochs": 2, "limit": math.nan, "source": "cifar100", "net": "resnet18", "precision": "bf16"}
            shared |= {"optimizer": "sgd", "batch_size": 128, "seed": 0, "init": "zeros", "bias": True, "algorithm": 1}
            shared |= {"method": method, "lr": lr, "lam": lam, "beta": beta, "ratio": None, "forget": None}
            rows += [shared | {"step": step, "validation": accuracy, "test": 1 - accuracy} for step in (5, 10)]
    made = cifar100.follow_up(pd.DataFrame(rows).astype(dict.fromkeys(cifar100.SETTINGS, float)), refine=2)
    assert {c["lr"] for c in made} == {0.2}
    assert all(c["limit"] is None for c in made)
    proximal = [c for c in made if c["method"] == "proximal"]
    assert sorted(c["lam"] for c in proximal if c["seed"] == 0 and cifar_default(c)) == list(cifar100.LADDERS["lam"])
    assert {c["init"] for c in proximal} == {"zeros", "lecun", "xavier", "he"}
    assert sum(not c["bias"] for c in proximal) == sum(c["algorithm"] == 2 for c in proximal) == 1
    assert sorted(c["seed"] for c in made if c["method"] == "l2") == [0, 1, 2]
    (wanted,) = cifar100.jobs(["sgd"], [128], methods=["l2"], epochs=2)
    one = next(c for c in made if c["method"] == "l2" and c["seed"] == 0)
    assert grid.digest(one) == grid.digest(wanted | {"lr": 0.2})


def cifar_default(config):
    return config["init"] == "zeros" and config["bias"] and config["algorithm"] == 1


# ---- One run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [method.key for method in cifar100.METHODS])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_method_learns(method, optimizer):
    (config,) = cifar100.jobs([optimizer], [32], size="quick", methods=[method], **(SMALL | {"epochs": 10}))
    config |= {
        "lr": {"cross-entropy": 0.2, "closed-form cross-entropy": 0.5, "l2": 0.05}.get(method, 0.1)
        if optimizer == "sgd"
        else 0.01
    }
    config |= {"lam": 30.0} if method == "proximal" else {}
    rows = model(config).train()
    assert rows[-1]["test"] > 0.5
    assert rows[-1]["train"] < rows[0]["train"]
    assert 0.1 < rows[-1]["confidence"] <= 1
    assert rows[-1]["nll"] < math.log(10)
    assert [row["step"] for row in rows][-1] == 10 * 5


def test_algorithms_and_bias_and_initialisation_are_what_the_configuration_says():
    (config,) = quick(methods=["proximal"])
    plain = model(config)
    assert plain.head.bias is not None
    assert not plain.head.weight.any()
    other = model(config | {"bias": False, "init": "he"})
    assert other.head.bias is None
    assert float(other.head.weight.std()) == pytest.approx((2 / 64) ** 0.5, rel=0.1)
    assert float(plain.head.rule.lam) == config["lam"]


@pytest.mark.parametrize("number", [1, 2])
def test_algorithm_2_descends_with_the_old_layer(number, monkeypatch):
    (config,) = quick(methods=["proximal"])
    stepped = model(config | {"algorithm": number, "init": "he"})
    before, seen, objective = stepped.head.weight.clone(), [], stepped._objective
    monkeypatch.setattr(stepped, "_objective", lambda z, y: seen.append(stepped.head.weight.clone()) or objective(z, y))
    stepped.advance()
    assert torch.equal(seen[0], before) == (number == 2)
    assert not torch.equal(stepped.head.weight, before)


def test_the_learned_layers_learn_and_the_solved_ones_are_solved():
    for config in quick():
        stepped = model(config)
        stepped.advance()
        learned = config["method"] in ("cross-entropy", "l2")
        held = {id(p) for group in stepped.optimizer.param_groups for p in group["params"]}
        assert (id(stepped.head.weight) in held) == learned
        if not learned:
            assert int(stepped.head.step) == 1
        assert stepped.head.weight.any()


def test_the_loss_is_summed_over_classes():
    (config,) = quick(methods=["l2"])
    made = model(config)
    z, y = torch.zeros(4, 10), torch.tensor([0, 1, 2, 3])
    assert float(made._objective(z, y)) == pytest.approx(1.0)  # one target of one a sample
    (config,) = quick(methods=["cross-entropy"])
    assert float(model(config)._objective(z, y)) == pytest.approx(math.log(10))


def test_the_rate_falls_along_a_cosine_and_the_memory_follows():
    (config,) = quick(methods=["kalman"])
    made = model(config)
    rates, forgets = [], []
    while made.t < made.total:
        made.advance()
        rates.append(made.optimizer.param_groups[0]["lr"])
        forgets.append(float(made.head.rule.forget(made.head.step)))
    assert rates[0] == config["lr"]
    assert all(b < a for a, b in zip(rates, rates[1:]))
    assert rates[5] == pytest.approx(config["lr"] * 0.5)
    assert forgets[0] == pytest.approx(config["forget"])
    assert all(b > a for a, b in zip(forgets, forgets[1:]))


def test_bf16_autocast_on_the_cpu():
    (config,) = quick(methods=["proximal"], precision="bf16")
    made = model(config | {"lr": 0.05})
    phi = made._features(torch.zeros(2, 3, 32, 32))
    assert phi.dtype == torch.float32
    assert made.head.weight.dtype == torch.float32
    rows = made.train()
    assert math.isfinite(rows[-1]["train"])


@pytest.mark.parametrize("method", ["kalman", "cross-entropy"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(method, optimizer, tmp_path):
    (config,) = cifar100.jobs([optimizer], [32], size="quick", methods=[method], **SMALL)
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
    timeless = [{k: v for k, v in row.items() if k != "wall_s"} for row in rows]
    assert timeless == [{k: v for k, v in row.items() if k != "wall_s"} for row in expected]
    with pytest.raises(ValueError, match=r"cannot be continued .*belongs to 'a'"):
        model(config).train(checkpoint=checkpoint, name="b")


@pytest.mark.parametrize("method", ["l2", "proximal", "kalman"])
def test_a_model_that_diverges_is_given_up_and_says_so(method):
    (config,) = quick(methods=[method])
    broken = model(config)
    with torch.no_grad():
        next(broken.backbone.parameters()).fill_(math.inf)
    rows = broken.train()
    assert broken.t < broken.total
    assert rows[-1]["test"] == rows[-1]["validation"] == -math.inf
    assert rows[-1]["step"] == broken.total


# ---- The folder, the report, the script ----------------------------------------------------------


def test_the_table_and_the_report(folder):
    table = results.load(folder)
    assert set(table["study"]) == {"methods", "initialisation", "bias", "algorithms"}
    assert set(table["method"]) == {method.key for method in cifar100.METHODS}
    methods = table[table["study"] == "methods"]
    assert (methods["init"] == "zeros").all()
    assert methods["bias"].all()
    twice = table.duplicated(["study", "batch_size", "method", "init", "bias", "algorithm", "step", *cifar100.SETTINGS])
    assert not twice.any()
    assert set(table.loc[table["study"] == "initialisation", "init"]) == {"zeros", "lecun", "xavier", "he"}
    assert set(table.loc[table["study"] == "algorithms", "algorithm"]) == {1, 2}
    spec = json.loads((folder / "experiment.json").read_text())
    assert spec["lower"] is False
    page = report.write(folder, None, cifar100_report.sections(folder)).read_text()
    assert "<td>the paper: proximal</td><td>0.63</td><td>\N{EN DASH}</td>" in page
    for title in ("Learning curves", "How much lambda matters", "Learning rates, sgd", "With and without a bias"):
        assert title in page
    assert not list((folder / "parts").glob("*.checkpoint"))


def test_what_is_finished_is_not_run_again(folder, monkeypatch):
    configs = cifar100.jobs(["sgd"], [32, 64], size="quick", **SMALL)
    assert len(cifar100.finished(configs, folder)) == len(configs)
    monkeypatch.setattr(cifar100, "train", lambda *a, **k: pytest.fail("ran again"))
    cifar100.run(folder, configs)


def test_refining_runs_what_follows_up(tmp_path):
    seen = []
    table = cifar100.run(
        tmp_path, quick(methods=["ridge"]), refine=1, ablations=True, done=lambda k, n, config: seen.append(config)
    )
    assert sorted(set(table.loc[table["seed"] == 0, "beta"])) == list(cifar100.BETAS)
    assert set(table.loc[table["seed"] == 1, "beta"]) == {1.0}
    assert len(seen) == 1 + 8  # the first one is not run again


def test_a_run_out_of_time_stops_and_goes_on(tmp_path):
    configs = quick(methods=["l2"])
    with pytest.raises(OutOfTime):
        cifar100.run(tmp_path, configs, deadline=time.perf_counter())
    assert list((tmp_path / "parts").glob("*.checkpoint"))
    table = cifar100.run(tmp_path, configs, deadline=time.perf_counter() + 600)
    assert table["step"].max() == 10
    assert not list((tmp_path / "parts").glob("*.checkpoint"))


def test_climbing_and_several_runs_at_once(tmp_path):
    done = []
    configs = cifar100.jobs(["sgd"], [32], methods=["l2", "kalman"], **(SMALL | {"epochs": 1}))
    cifar100.run(tmp_path, configs, runs=4, at_once=2, done=lambda k, n, config: done.append(config))
    runs = cifar100.collected(tmp_path).groupby(["method", "lr", "forget"], dropna=False).size().reset_index()
    assert (runs.groupby("method").size() == 4).all()
    assert runs.loc[runs["method"] == "kalman", "lr"].nunique() == 3
    assert len(done) == 8
    one = cifar100.run(tmp_path / "alone", configs, runs=4)
    both = ["method", "lr", "forget", "test"]
    pd.testing.assert_frame_equal(
        one[both].sort_values(both, ignore_index=True),
        cifar100.collected(tmp_path)[both].sort_values(both, ignore_index=True),
    )


def beside(setting, axis):
    lr, value = cifar100.LADDERS["lr"].index(setting[0]), setting[1]
    rates = [cifar100.LADDERS["lr"][k] for k in (lr - 1, lr + 1) if 0 <= k < len(cifar100.LADDERS["lr"])]
    if axis == "lr":
        return [(rate, rate) for rate in rates]
    at = cifar100.LADDERS["lam"].index(value)
    lams = [cifar100.LADDERS["lam"][k] for k in (at - 1, at + 1) if 0 <= k < len(cifar100.LADDERS["lam"])]
    return [(rate, value) for rate in rates] + [(setting[0], lam) for lam in lams]


@pytest.mark.parametrize("axis", ["lam", "lr"])
@pytest.mark.parametrize("seed", range(20))
def test_a_climb_goes_beside_the_best_and_never_twice(axis, seed):
    """Whatever the scores: each run is a step of the grid from the best that has a neighbour left; none is repeated."""
    start, draw = 0.2, random.Random(seed)
    tried = {(start, start if axis == "lr" else 1000.0): 0.5}
    while len(tried) < 12:
        found = cifar100._step(tried, axis, ("lr", axis))
        assert found not in tried
        best = max(tried, key=lambda s: (tried[s], -s[0]))
        free = [s for s in beside(best, axis) if s not in tried]
        assert found in (free or [s for other in tried for s in beside(other, axis)])
        tried[found] = -math.inf if draw.random() < 0.2 else draw.random()


# ---- Claims --------------------------------------------------------------------------------------


def test_claims_of_a_real_folder_and_of_a_wrong_one(folder, tmp_path):
    found = claims_cifar.check(folder)
    told = " ".join(c.claim for c in found)
    for words in (
        "proximal beats l2",
        "Algorithms 1 and 2",
        "zeros",
        "bias",
        "less confident",
        "kalman is never behind proximal",
    ):
        assert words in told
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
