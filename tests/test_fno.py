"""The experiment on Burgers' equation and its commands, with a small operator on a small grid."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from closedform.cli import application
from closedform.files import claimed
from closedform.paper import claims
from closedform.paper.claims import fno as claims_fno
from closedform.paper.data import burgers
from closedform.paper.experiments import fno, fno_models, fno_samples, stacks
from closedform.paper.report import panels, spec, summary
from closedform.paper.report.thin import thin
from closedform.paper.sweeps import grid, results
from closedform.stack import measuring
from closedform.stack.models import Stack

from .scripts import ROOT, load

SMALL = {"samples": 40, "points": 512, "stride": 32, "width": 6, "modes": 3}
QUICK = ["paper", "fno", "--quick", "--batch-size", "4", "--epochs", "2", "--device", "cpu"]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOSEDFORM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(fno, "QUICK", SMALL)


def invoke(*arguments):
    return CliRunner().invoke(application(), list(map(str, arguments)))


def jobs(optimizers=("sgd",), sizes=(4,), **changes):
    return fno.jobs(optimizers, sizes, **({"size": "quick", "epochs": 2, "seeds": 1} | changes))


def test_the_quick_experiment_ends_with_a_table_a_sentence_and_a_page(tmp_path):
    result = invoke(*QUICK, "--batch-size", 7, "--optimizer", "sgd", "--optimizer", "adam", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Burgers' equation: the solution")
    for word in ("sgd, batch size 4", "adam, batch size 7", "l2", "ridge", "proximal", "Kalman", "Lowest test MSE"):
        assert word in result.output
    page = (tmp_path / "report.html").read_text()
    assert page.count("<figcaption>Sample ") == 3 * 4
    assert page.count("<details open>") == 1
    table = results.load(tmp_path)
    assert set(table["method"]) == {"l2", "ridge", "proximal", "kalman"}
    ends = table["step"] == table.groupby("batch_size")["step"].transform("max")
    assert table.loc[ends, "fine"].notna().all()
    assert table.loc[~ends, "fine"].isna().all()
    assert (table.loc[ends, "fine"] - table.loc[ends, "test"]).abs().max() > 0
    assert panels.figures(*panels.read(tmp_path))[0].y_label == "test MSE on 16 points"
    again = invoke(*QUICK, "--out", tmp_path)
    assert again.exit_code == 0, again.output
    assert set(results.load(tmp_path)["batch_size"]) == {4, 7}, "what the folder has is kept"
    assert not list(tmp_path.glob("parts/*.checkpoint"))


def test_the_grids():
    for optimizer, rates in (("sgd", 12), ("adam", 6)):
        full = pd.Series([m.method for m in fno_models.models(optimizer, "full")]).value_counts().to_dict()
        assert full == {"l2": rates, "ridge": 9 * rates, "proximal": 9 * rates, "kalman": 4 * rates}
        for size, count in (("reduced", 12), ("quick", 4)):
            models = fno_models.models(optimizer, size)
            assert set(pd.Series([m.method for m in models]).value_counts()) == {count}
            assert len(set(models)) == len(models)
            assert {m.init for m in models} == {"zeros" if optimizer == "sgd" else "lecun"}
    configs = fno.jobs(fno.OPTIMIZERS, fno.BATCH_SIZES, seeds=1)
    order = [(c["optimizer"], c["batch_size"]) for c in configs]
    assert order[:3] == [("sgd", 32), ("sgd", 128), ("sgd", 8)]
    assert order[-2:] == [("sgd", 2), ("adam", 2)]
    assert len({fno.name(c) for c in fno.jobs(["sgd"], [2, 8], seeds=3)}) == 6


def test_data_are_fields_of_every_seed():
    config = jobs()[0] | {"seeds": 2}
    data = fno._of(config, "cpu")
    assert data["train"].X.shape == (2, 28, 16, 1)
    assert data["fine"].X.shape == (2, 8, 512, 1)
    assert torch.equal(data["fine"].Y[:, :, ::32], data["test"].Y)
    split = burgers.load(1, samples=40, points=512)
    assert torch.equal(data["validation"].X[1, :, :, 0], split.x_validation[:, ::32])


def test_a_table_is_that_of_its_models(tmp_path):
    (config,) = jobs()
    table = fno.train(config, folder=tmp_path, device="cpu")
    arrays = np.load(tmp_path / f"{grid.digest(config)}.{fno_samples.FILE}")
    last = table[table["step"] == table["step"].max()]
    for method in ("l2", "ridge", "proximal", "kalman"):
        assert arrays[f"predicted-{method}"].shape == (3, 512)
        error = np.square(arrays[f"predicted-{method}"] - arrays["y"]).mean(1)
        np.testing.assert_allclose(arrays[f"mse-{method}"], error, rtol=1e-4)
    assert len(last) == 16
    assert np.isfinite(last["fine"]).all()


def test_more_seeds_at_the_chosen_settings(tmp_path):
    table = fno.run(tmp_path, jobs(), refine=2)
    last = table[table["step"] == table["step"].max()]
    assert last.groupby("seed").size().to_dict() == {0: 16, 1: 4, 2: 4}
    facet = summary.best_settings(*panels.read(tmp_path))[0]
    assert [entry.seeds for entry in facet.entries] == [3, 3, 3, 3]
    seeds = fno.run(tmp_path / "all", jobs(seeds=2))
    shared = ["method", *fno.SETTINGS, "seed"]
    both = last.merge(seeds[seeds["step"] == seeds["step"].max()], on=shared)
    assert set(both["seed"]) == {0, 1}
    np.testing.assert_allclose(both["fine_x"], both["fine_y"], rtol=1e-3)


def test_settings_beyond_an_end_of_the_grid():
    tried = fno_models.models("sgd", "reduced")
    wide = fno_models.models("sgd", "wider")

    def beyond(method, lr, **own):
        best = stacks.GridModel(method, lr, "zeros", **own)
        assert best in tried
        return {(m.lr, m.beta or m.lam or m.forget) for m in (wide[k] for k in fno_models.beyond("sgd", best, tried))}

    assert beyond("ridge", 0.2, beta=0.01) == set()
    assert beyond("ridge", 1.0, beta=0.01) == {(2.0, 0.01), (5.0, 0.01)}
    assert beyond("kalman", 0.05, forget=0.9) == {(0.01, 0.9), (0.02, 0.9)}
    corner = beyond("proximal", 1.0, lam=100.0)
    assert corner == {(lr, lam) for lr in (1.0, 2.0, 5.0) for lam in (100.0, 1e3, 1e4)} - {(1.0, 100.0)}
    assert beyond("l2", 10.0) == set(), "there is none beyond"


def test_a_wider_search_joins_the_results_it_started_from(tmp_path):
    """All settings of the quick grid lie at its ends. Other epochs at one batch size are said in the text."""
    first, more, wider = tmp_path / "first", tmp_path / "more", tmp_path / "wider"
    assert invoke(*QUICK, "--out", first).exit_code == 0
    result = invoke(*QUICK[:3], *QUICK[5:], "--batch-size", 7, "--epochs", 1, "--beside", first, "--out", more)
    assert result.exit_code == 0, result.output
    assert "2 epochs (1 at batch size 7)" in spec.load(more).text
    options = ["--wider", "--beside", more, "--batch-size", 4, "--seeds", 2, "--device", "cpu", "--out", wider]
    result = invoke("paper", "fno", *options)
    assert result.exit_code == 0, result.output
    before, after = results.load(more), results.load(wider)
    model = ["optimizer", "batch_size", "method", *fno.SETTINGS, "seed", "step"]
    assert not after.duplicated(model).any()
    assert len(before.merge(after, on=[*model, "test"])) == len(before), "what was there stays"
    new = after.loc[after["size"] == "wider"]
    assert set(new["batch_size"]) == {4}
    assert set(new["seed"]) == {0, 1}
    assert "beyond an end" in spec.load(wider).text
    assert (wider / fno_samples.FILE).read_bytes() == (more / fno_samples.FILE).read_bytes()
    joined = fno.join([first, more, wider], tmp_path / "all")
    assert len(joined) == len(after)
    assert spec.load(tmp_path / "all").text == spec.load(wider).text


def test_a_small_copy_gives_the_same_page(tmp_path):
    fno.run(tmp_path / "whole", jobs(epochs=3))
    assert invoke("thin", tmp_path / "whole", tmp_path / "small").exit_code == 0
    pages = []
    for name in ("whole", "small"):
        assert invoke("report", tmp_path / name).exit_code == 0
        page = (tmp_path / name / "report.html").read_text()
        pages.append(page[page.index('<section class="fields"') :])
    assert pages[0].split("</section>")[0] == pages[1].split("</section>")[0]
    small = results.load(tmp_path / "small")
    ends = small["step"] == small["step"].max()
    assert small.loc[ends, "fine"].notna().all()
    assert small.loc[~ends, "fine"].isna().all(), "what was not measured stays missing"
    with pytest.raises(ValueError, match="needs another folder"):
        thin(tmp_path / "whole", tmp_path / "whole")


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with claimed(tmp_path), pytest.raises(ValueError, match="another run is at work"):
        fno.run(tmp_path, jobs())


def test_errors_at_the_end_alone(tmp_path):
    (config,) = jobs()
    data = fno._of(config, "cpu")
    stack = Stack(
        [fno.backbone(0, 6, 3)], [m.candidate() for m in fno.models("sgd", "quick")], 1, batch_size=4, total=9
    )
    stack.feed(*data["train"])
    history = measuring.train(
        stack, measuring.on({"test": data["test"]}), at=[3, 6], at_end=measuring.on({"fine": data["fine"]})
    )
    assert [bool(torch.isnan(values).all()) for values in history.errors["fine"]] == [True, True, False]
    assert torch.equal(history.errors["fine"][-1], stack.evaluate(*data["fine"]))
    assert history.alive == list(range(16))


def equal(one, other):
    tables = [results.load(folder).drop(columns="wall_s") for folder in (one, other)]
    pd.testing.assert_frame_equal(*tables)


def test_the_command_stops_in_time_and_goes_on(tmp_path):
    fno._of(jobs()[0], "cpu")  # which takes a second
    asked = [*QUICK, "--epochs", "60", "--out"]
    stopped = invoke(*asked, tmp_path / "a", "--seconds", "0.3")
    assert stopped.exit_code == 130, stopped.output
    assert "The same command continues from here." in stopped.output
    assert list((tmp_path / "a" / "parts").glob("*.checkpoint"))
    for name in "ab":
        assert invoke(*asked, tmp_path / name).exit_code == 0
    equal(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_the_command_may_be_killed_and_goes_on(tmp_path):
    asked = [*QUICK, "--epochs", "150", "--out"]
    code = (
        f"from closedform.paper.experiments import fno, stacks; fno.QUICK, stacks.EVERY_S = {SMALL}, 0.0\n"
        "from closedform.cli import main; main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *asked, str(tmp_path / "a")], stdout=subprocess.DEVNULL)
    while not list((tmp_path / "a").glob("parts/*.checkpoint")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL
    for name in "ab":
        assert invoke(*asked, tmp_path / name).exit_code == 0
    equal(tmp_path / "a", tmp_path / "b")


# ---- The paper's sentences -----------------------------------------------------------------------


def table(errors, slow=()):
    """Curves that fall from 1 to the given error at the second of ten steps, or at the ninth for those in `slow`."""
    rows = []
    for (optimizer, size, method), error in errors.items():
        for step in range(1, 11):
            value = error if step >= (9 if method in slow else 2) else 1.0
            row = dict.fromkeys(fno.SETTINGS, np.nan) | {"lr": 0.1, "seed": 0, "step": step}
            row |= {"optimizer": optimizer, "batch_size": size, "method": method}
            rows.append(row | {"validation": value, "test": value, "fine": value if step == 10 else np.nan})
    return pd.DataFrame(rows)


def check(errors, folder, slow=("l2",)):
    results.save(table(errors, slow), folder)
    return {result.claim: result for result in claims.check("fno", folder)}


def as_claimed():
    errors = {}
    for optimizer in ("sgd", "adam"):
        for size in (2, 8, 32, 128):
            ridge = 5.0 if size == 2 else 1.4 if optimizer == "sgd" and size < 128 else 1.1
            by_method = {"l2": 2e-4, "ridge": ridge * 1e-4, "proximal": 1e-4, "kalman": 1.2e-4}
            errors |= {(optimizer, size, method): error for method, error in by_method.items()}
    return errors


def test_claims_hold_where_the_figures_say_so(tmp_path):
    verdicts = check(as_claimed(), tmp_path)
    failed = [claim for claim, result in verdicts.items() if not result.holds]
    every = "at batch size 2, 8, 32 and 128"
    assert failed == [f"{o}: ridge reaches the final error of l2 in fewer steps {every}" for o in ("sgd", "adam")]
    assert "2: 0.0, 8: 4.5, 32: 4.5, 128: 4.5" in verdicts[failed[0]].figures
    assert "2: 4.5, 8: 4.5" in verdicts[f"sgd: proximal reaches the final error of l2 in fewer steps {every}"].figures
    against = verdicts["sgd: ridge is outperformed by proximal at batch size 8 and 32"].figures
    assert against == "ridge / proximal: 8: 1.40, 32: 1.40; after the last step 8: 1.40, 32: 1.40"
    assert len(verdicts) == 15


def test_a_spike_at_the_last_step_is_no_error_of_the_method(tmp_path):
    frame = table(as_claimed(), slow=("l2",))
    spike = (frame["step"] == 10) & (frame["method"] == "ridge") & (frame["optimizer"] == "sgd")
    frame.loc[spike, ["validation", "test", "fine"]] *= 1.2
    results.save(frame, tmp_path)
    verdicts = {result.claim: result for result in claims.check("fno", tmp_path)}
    result = verdicts["sgd: ridge is similar to proximal at batch size 128"]
    assert result.holds
    assert result.figures == "ridge / proximal: 128: 1.21; after the last step 128: 1.32; there it does not hold"


def test_errors_seed_by_seed_are_those_of_the_chosen_setting():
    first = table(as_claimed())
    more = [
        first.assign(seed=seed, **{c: first[c] * scale for c in ("validation", "test")})
        for seed, scale in ((2, 3), (1, 2))
    ]
    other = first.assign(lr=7.0, validation=first["validation"] / 2, test=9.0)  # better, but with one seed alone
    errors = claims_fno.BurgersErrors(pd.concat([first, *more, other], ignore_index=True))
    for (optimizer, size, method), error in as_claimed().items():
        own = errors.seeds[optimizer, size, method]
        assert own == pytest.approx({0: error, 1: 2 * error, 2: 3 * error})
        assert list(own) == [0, 1, 2]
        assert errors.final[optimizer][size][method] == pytest.approx(2 * error)


def test_ratios_seed_by_seed_are_bold_where_their_interval_is_clear_of_one():
    markdown = load("benchmarks/tables.py").fno_seeds()
    cells = [cell for line in markdown.splitlines()[2:] for cell in line.split(" | ")[1:]]
    bold = 0
    for cell in cells:
        logs = np.log([float(ratio) for ratio in re.findall(r"[\d.]+", cell)])
        low, high = (logs.mean() + sign * 4.303 * logs.std(ddof=1) / 3**0.5 for sign in (-1, 1))
        assert (low > 0 or high < 0) == ("**" in cell), cell
        bold += "**" in cell
    page = " ".join((ROOT / "docs" / "fno.md").read_text().split())
    assert f"Of {len(cells)} comparisons in the table {bold} are bold" in page


def test_a_seed_is_sooner_at_the_settings_that_all_seeds_have_chosen():
    first = table(as_claimed(), slow=("l2",))
    second = table(as_claimed(), slow=("l2", "proximal")).assign(seed=1)
    halved = {key: error / 2 for key, error in as_claimed().items()}
    beyond = [  # better with the second seed alone
        table(as_claimed()).assign(lr=7.0, validation=1e-2, test=1e-2),
        table(halved, slow=("l2",)).assign(lr=7.0, seed=1),
    ]
    errors = claims_fno.BurgersErrors(pd.concat([first, second, *beyond], ignore_index=True))
    assert {r.times for r in errors.sooner("sgd", "proximal", 0).values()} == {9 / 2}
    assert {r.times for r in errors.sooner("sgd", "proximal", 1).values()} == {1.0}


def test_l2_is_no_sooner_than_itself(tmp_path):
    for folder in (ROOT / "results" / "fno", ROOT / "results" / "fno_small"):
        errors = claims_fno.BurgersErrors(results.load(folder))
        for optimizer in errors.optimizers:
            assert {(r.times, r.clear) for r in errors.sooner(optimizer, "l2").values()} == {(1.0, False)}
    near = table(as_claimed(), slow=("l2", "proximal"))  # the ninth of ten steps, both of them
    move = (near["method"] == "proximal") & (near["step"] == 8)
    near.loc[move, "test"] = 1e-4
    sooner = claims_fno.BurgersErrors(near).sooner("sgd", "proximal")
    assert {(r.times, r.clear) for r in sooner.values()} == {(9 / 8, False)}, "one measurement apart"
    near.loc[(near["method"] == "proximal") & (near["step"] == 7), "test"] = 1e-4
    sooner = claims_fno.BurgersErrors(near).sooner("sgd", "proximal")
    assert {(r.times, r.clear) for r in sooner.values()} == {(9 / 7, True)}


@pytest.mark.parametrize("method", ["l2", "proximal"])
def test_no_step_is_read_off_the_end_of_a_curve(method, tmp_path):
    whole = table(as_claimed(), slow=("l2",))
    cut = (whole["method"] == method) & (whole["batch_size"] == 32) & (whole["step"] <= 8)  # of ten
    whole.loc[~cut].pipe(results.save, tmp_path)
    assert list(claims_fno.BurgersErrors(results.load(tmp_path)).sooner("sgd", "proximal")) == [2, 8, 128]
    figures = {check.claim: check.figures for check in claims_fno.check(tmp_path)}
    claim = (
        "sgd: proximal reaches the final error of l2 in fewer steps at batch size 2, 8 and 128 (32 has no whole curve)"
    )
    assert "32" not in figures[claim]


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({("sgd", 8, "proximal"): 1e-3}, "sgd: proximal is effective at batch size 2, 8, 32 and 128"),
        ({("adam", 2, "proximal"): np.inf}, "adam: proximal is effective at batch size 2, 8, 32 and 128"),
        ({("sgd", 2, "ridge"): 2e-4}, "sgd: ridge fails at batch size 2"),
        ({("sgd", 32, "ridge"): 1.2e-4}, "sgd: ridge is outperformed by proximal at batch size 8 and 32"),
        ({("adam", 32, "ridge"): 2e-4}, "adam: ridge is similar to proximal at batch size 8, 32 and 128"),
        ({("sgd", 128, "ridge"): 0.5e-4}, "sgd: ridge is similar to proximal at batch size 128"),
        (
            {("adam", 8, "proximal"): 2.1e-4},
            "adam: proximal reaches the final error of l2 in fewer steps at batch size 2, 8, 32 and 128",
        ),
        ({("sgd", 8, "kalman"): 2e-4}, "sgd: kalman is no worse than proximal at batch size 2, 8, 32 and 128"),
    ],
)
def test_claims_fail_where_the_figures_say_so(changes, claim, tmp_path):
    verdicts = check(as_claimed() | changes, tmp_path)
    assert not verdicts[claim].holds


def test_claims_about_what_is_there(tmp_path):
    part = {key: error for key, error in as_claimed().items() if key[:2] == ("sgd", 32)}
    verdicts = check(part, tmp_path)
    assert "sgd: ridge is outperformed by proximal at batch size 32 (8 was not run)" in verdicts
    assert "sgd: proximal is effective at batch size 32 (2, 8 and 128 were not run)" in verdicts
    assert not any("adam" in claim or "batch size 2" in claim for claim in verdicts)
    with pytest.raises(ValueError, match="nothing to compare"):
        check({("sgd", 32, "l2"): 1e-4}, tmp_path)
    results.save(table(part).drop(columns="fine"), tmp_path)
    with pytest.raises(ValueError, match="no column 'fine'"):
        claims_fno.check(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", 500], "batch size 500 is larger than the training set of 28 samples"),
        (["--device", "tpu"], "--device is 'tpu'"),
        (["--reduced"], "--quick and --reduced are two grids of settings"),
        (["--wider"], "expected --beside FOLDER of results"),
    ],
)
def test_bad_input_is_named(arguments, message, tmp_path):
    result = invoke(*QUICK, *arguments, "--out", tmp_path)
    assert message in str(result.exception)
    with pytest.raises(ValueError, match="the stride is .*expected a divisor"):
        jobs(stride=5)
    assert stacks.name(jobs()[0]) == "sgd, batch size 4"


def test_the_page_about_burgers_has_the_committed_results():
    page = (ROOT / "docs" / "fno.md").read_text()
    benchmark = load("benchmarks/tables.py")
    for table in (benchmark.fno, benchmark.fno_end, benchmark.fno_seeds, benchmark.fno_peer, benchmark.shared_memory):
        assert table() in page, table.__name__
    assert benchmark.fno("fno_small") in page
    assert benchmark.fno_end("fno_small") in page
    assert benchmark.settings("fno") in page
    text = " ".join(page.split())
    for folder in ("fno", "fno_small"):
        assert claims.markdown(claims.check("fno", ROOT / "results" / folder)) in page
        for paragraph in spec.load(ROOT / "results" / folder).text.split("\n\n"):
            assert " ".join(paragraph.split()) in text
