"""The QM9 experiment and the commands around it, on generated molecules."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from closedform import cli
from closedform.cli import application
from closedform.files import claimed
from closedform.paper import claims
from closedform.paper.experiments import catalogue, qm9, qm9_models, stacks
from closedform.paper.report import panels, spec, summary
from closedform.paper.report.thin import thin
from closedform.paper.sweeps import results
from closedform.stack.models import Candidate

QUICK = ["paper", "qm9", "--quick", "--synthetic", "--molecules", "400", "--epochs", "1", "--device", "cpu"]
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """The same experiment with a small network."""
    monkeypatch.setattr(qm9, "WIDTHS", (435, 16, 16))


def invoke(*arguments):
    return CliRunner().invoke(application(), list(map(str, arguments)))


def jobs(**changes):
    options = {"size": "quick", "epochs": 1, "seeds": 1, "limit": 400, "source": "synthetic"}
    return qm9.jobs(["sgd"], [32], **(options | changes))


def test_the_quick_experiment_ends_with_a_table_a_sentence_and_a_page(tmp_path):
    result = invoke(*QUICK, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("QM9: twelve properties")
    for word in ("sgd, batch size 32", "sgd, batch size 256", "l2", "ridge", "proximal", "Kalman", "Lowest test MSE"):
        assert word in result.output
    assert (tmp_path / "report.html").stat().st_size > 10_000
    table = results.load(tmp_path)
    assert set(table["method"]) == {"l2", "ridge", "proximal", "kalman"}
    assert set(table["batch_size"]) == {32, 256}


def test_the_grid_is_the_papers():
    models = qm9_models.paper_models("zeros")
    counts = pd.Series([m.method for m in models]).value_counts().to_dict()
    assert counts == {"ridge": 72, "proximal": 54, "l2": 6}
    for optimizer in qm9.OPTIMIZERS:
        every = qm9.models(optimizer, "full")
        assert len(set(every)) == len(every)
        assert {m.method for m in every} == {m.key for m in qm9.METHODS}
        assert all(isinstance(m.candidate(), Candidate) for m in every)
    settings = pd.Series([m.method for m in qm9.models("sgd", "quick")]).value_counts()
    assert set(settings) == {6}, "each method has the same number of settings in the quick form"


def test_candidates_are_what_the_columns_say():
    candidates = {m.method: m.candidate() for m in qm9.models("sgd", "full")}
    assert not any(candidates[name].cosine for name in ("l2", "ridge", "proximal"))
    assert all(candidates[name].cosine for name in candidates if name not in ("l2", "ridge", "proximal"))
    assert [name for name in candidates if candidates[name].follow] == ["per feature", "schedule", "kalman"]
    assert candidates["l2 cosine"].rule is None
    assert candidates["per feature"].rule.lam.per_feature
    assert not candidates["schedule"].rule.lam.per_feature


def test_studies_share_rows(tmp_path):
    configs = [c | {"seeds": 1} for c in qm9.jobs(["sgd"], [32], epochs=1, seeds=1, limit=120, source="synthetic")]
    assert [c["size"] for c in configs] == ["full", "ablated", "ablated", "ablated"]
    table = qm9.run(tmp_path, configs)
    counts = table[table["step"] == table["step"].max()].groupby("study").size()
    assert counts["methods"] == len(qm9.models("sgd", "full")) - 24
    assert counts["initialisation"] == 32  # four initial layers, two lambdas, four rates
    assert counts["algorithms"] == counts["bias"] == 16
    described, experiment = panels.read(tmp_path)
    assert [figure.kind for figure in panels.figures(described, experiment)].count("curves") == 4
    assert summary.best_settings(described, experiment)[0].best is not None
    with pytest.raises(ValueError, match="does not hold the whole experiment"):
        claims.check("qm9", tmp_path)


def test_more_seeds_at_the_chosen_settings(tmp_path):
    table = qm9.run(tmp_path, jobs(), refine=2)
    last = table[table["step"] == table["step"].max()]
    assert last.groupby("seed").size().to_dict() == {0: 24, 1: 4, 2: 4}
    runs = results.finished(table[table["seed"] == 0], ["method", *qm9.SETTINGS], select="validation", metric="test")
    first = results.best(runs, ["method"], qm9.SETTINGS)
    runs = results.finished(table, ["method", *qm9.SETTINGS], select="validation", metric="test")
    chosen = results.best(runs, ["method"], qm9.SETTINGS)
    assert (chosen["seeds"] == 3).all()
    columns = ["method", *qm9.SETTINGS]
    pd.testing.assert_frame_equal(chosen[columns], first[columns])


def test_a_finished_experiment_is_not_run_again(tmp_path, monkeypatch):
    assert invoke(*QUICK, "--batch-size", 32, "--out", tmp_path).exit_code == 0
    monkeypatch.setattr(qm9, "train", None)
    again = invoke(*QUICK, "--batch-size", 32, "--out", tmp_path)
    assert again.exit_code == 0, again.output
    assert not list(tmp_path.glob("parts/*.checkpoint"))


def test_a_narrower_command_keeps_what_the_folder_has(tmp_path):
    for sizes in ([32, 64], [64], [32]):
        table = qm9.run(
            tmp_path, qm9.jobs(["sgd"], sizes, size="quick", epochs=1, seeds=1, limit=400, source="synthetic")
        )
        assert set(table["batch_size"]) == {32, 64}
    other = qm9.run(tmp_path, jobs(epochs=2))
    assert set(other["epochs"]) == {2}, "another number of epochs is another experiment"


def test_other_models_are_another_experiment(tmp_path, monkeypatch):
    before = qm9.run(tmp_path, jobs())
    monkeypatch.setattr(qm9, "WIDTHS", (435, 8, 8))
    after = qm9.run(tmp_path, jobs())
    assert len(after) == len(before)
    assert not after["test"].equals(before["test"])


def test_a_checkpoint_of_other_models_is_not_continued(tmp_path, monkeypatch):
    def stop(step, total):
        raise KeyboardInterrupt

    (config,) = jobs()
    monkeypatch.setattr(stacks, "EVERY_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        qm9.train(config, folder=tmp_path, device="cpu", progress=stop)
    monkeypatch.setattr(qm9, "WIDTHS", (435, 8, 8))
    (other,) = jobs()
    assert stacks.checkpoint(tmp_path, other).path != stacks.checkpoint(tmp_path, config).path


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with claimed(tmp_path), pytest.raises(ValueError, match="another run is at work"):
        qm9.run(tmp_path, jobs())
    qm9.run(tmp_path, jobs())


def test_a_small_copy_gives_the_same_page_and_does_not_replace_its_source(tmp_path):
    qm9.run(tmp_path / "whole", jobs(epochs=3))
    assert invoke("thin", tmp_path / "whole", tmp_path / "small").exit_code == 0
    whole, small = (results.load(tmp_path / name) for name in ("whole", "small"))
    assert len(small) < len(whole) / 2
    facets = [summary.best_settings(*panels.read(tmp_path / name)) for name in ("whole", "small")]
    assert [e.settings for f in facets[0] for e in f.entries] == [e.settings for f in facets[1] for e in f.entries]
    lines = [panels.figures(*panels.read(tmp_path / name))[0].panels[0].lines for name in ("whole", "small")]
    assert [line.x for line in lines[0]] == [line.x for line in lines[1]]
    with pytest.raises(ValueError, match="needs another folder"):
        thin(tmp_path / "whole", tmp_path / "whole")
    assert len(results.load(tmp_path / "whole")) == len(whole)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_the_command_may_be_stopped_and_goes_on(tmp_path, kind):
    command = [sys.executable, "-c", "from closedform.cli import main; main()", *QUICK, "--batch-size", "32"]
    command += ["--molecules", "1500", "--out", str(tmp_path / "a")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    while not (tmp_path / "a" / "parts").exists():
        time.sleep(0.1)
    time.sleep(1.5)
    assert process.poll() is None, "it was over before it was stopped"
    process.send_signal(kind)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if kind == signal.SIGINT else -signal.SIGKILL)
    if kind == signal.SIGINT:
        assert "The same command continues from here." in output
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    command[-1] = str(tmp_path / "b")
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    tables = [results.load(tmp_path / name).drop(columns="wall_s") for name in "ab"]
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paper", "qm9", "--device", "tpu"], "--device is 'tpu'"),
        (["report", "nowhere"], "nowhere holds no results"),
        (["claims", "mnist"], "no claims about 'mnist'"),
        (["paper", "qm9", "--molecules", "200000"], "expected 10 to 130,831"),
        ([*QUICK, "--out", __file__], "test_paper.py"),
        (["claims", "qm9", "--results", "nowhere"], "nowhere holds no results"),
        ([*QUICK, "--molecules", "100", "--batch-size", "512", "--out", "runs-of-a-test"], "batch size 512"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["closedform", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_the_list_names_commands_that_exist():
    result = invoke("paper", "--list")
    assert result.exit_code == 0
    for entry in catalogue.PAPER:
        assert invoke(*entry.command.split()[1:], "--help").exit_code == 0


def test_the_quick_form_on_images(tmp_path):
    result = invoke(
        "paper", "cifar100", "--quick", "--synthetic", "--images", 200, "--device", "cpu", "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    assert "Kalman" in result.output
    assert (tmp_path / "report.html").is_file()
    assert "hold" in invoke("claims", "cifar100", "--results", tmp_path).output


def test_the_wall_clock_tables():
    result = invoke("paper", "timing", "--results", ROOT / "benchmarks" / "results" / "step_overhead-cuda.json")
    assert result.exit_code == 0, result.output
    assert "ResNet-50" in result.output


@pytest.mark.skipif(
    not (ROOT / "results" / "qm9" / results.TABLE).is_file(), reason="the repository's results are not here"
)
def test_the_committed_results_can_be_checked_and_reported(tmp_path):
    folder = ROOT / "results" / "qm9"
    checks = claims.check("qm9", folder)
    assert len(checks) >= 12
    result = invoke("claims", "qm9", "--results", folder)
    assert f"{sum(check.holds for check in checks)} of {len(checks)} hold" in result.output
    assert invoke("report", folder, "--out", tmp_path / "page.html").exit_code == 0
    experiment = spec.load(folder)
    table = results.load(folder)
    assert set(table["batch_size"]) == set(qm9.BATCH_SIZES)
    assert {method.key for method in experiment.methods} == {method.key for method in qm9.METHODS}
    assert torch.tensor(sorted(set(table["seed"]))).tolist() == [0, 1, 2]


def test_a_dask_cluster_takes_the_stacks(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="needs closedform[dask]")
    from distributed import LocalCluster

    monkeypatch.setattr(qm9, "WIDTHS", (435, 256, 256, 256))  # a worker does not see what a test has changed
    configs = qm9.jobs(["sgd"], [32, 64], size="quick", epochs=1, seeds=1, limit=400, source="synthetic")
    with LocalCluster(
        n_workers=1, processes=True, threads_per_worker=1, dashboard_address=None, silence_logs=False
    ) as cluster:
        there = qm9.run(tmp_path / "dask", configs, dask=cluster.scheduler_address)
    here = qm9.run(tmp_path / "here", configs)
    errors = [table.set_index(["batch_size", "method", *qm9.SETTINGS, "step"])["test"] for table in (there, here)]
    pd.testing.assert_series_equal(*errors, rtol=1e-3)
    assert (tmp_path / "dask" / "experiment.json").is_file()
    assert not list((tmp_path / "dask" / "parts").glob("*.checkpoint"))
