"""The paper's third application and its claims, at a size that takes seconds."""

import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from closedform.cli import application
from closedform.paper import claims
from closedform.paper.claims import dfiv as claims_dfiv
from closedform.paper.experiments import dfiv
from closedform.paper.report import panels, spec
from closedform.paper.sweeps import results

ROOT = Path(__file__).parents[1]
TINY = dfiv.SpriteSize(80, (8, 40), 4, 2, 2, (1e-3,), (1.0, 10.0), 2, "pooled")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(dfiv.SIZES, "quick", TINY)
    monkeypatch.setattr(dfiv, "TOP", 1)


def invoke(*arguments):
    return CliRunner().invoke(application(), list(map(str, arguments)))


def test_the_command_ends_with_a_table_and_goes_on_where_it_was(tmp_path):
    first = invoke("paper", "dfiv", "--quick", "--out", tmp_path)
    assert first.exit_code == 0, first.output
    assert first.output.startswith("Instrumental variables on sprites")
    assert "Lowest test MSE" in first.output
    assert (tmp_path / "report.html").stat().st_size > 10_000
    table = results.load(tmp_path)
    assert set(table["method"]) == {method.key for method in dfiv.METHODS}
    assert set(table["batch_size"]) == {8, 40}
    # one seed at every setting, and the second at the chosen ones only
    runs = table.loc[table["evaluation"] == "online"].drop_duplicates(["batch_size", "method", *dfiv.SETTINGS, "seed"])
    assert (runs["seed"] == 0).sum() == 2 * 2 * 4
    assert (runs["seed"] == 1).sum() == 2 * 2
    parts = sorted((tmp_path / "parts").glob("*.parquet"))
    times = {part: part.stat().st_mtime_ns for part in parts}
    lost = parts.pop(1)
    lost.unlink()
    (tmp_path / "results.parquet").unlink()
    assert invoke("paper", "dfiv", "--quick", "--out", tmp_path).exit_code == 0
    assert all(part.stat().st_mtime_ns == times[part] for part in parts)
    assert lost.is_file()
    again = results.load(tmp_path)
    assert again["test"].equals(table["test"])  # to the bit


def test_online_and_reestimated_lines_stand_at_one_setting(tmp_path):
    dfiv.run(tmp_path, dfiv.jobs("quick"), seeds=1)
    table = results.load(tmp_path)
    by = ["batch_size", "lr", "lam_1", "lam_2", "seed", "step"]
    plain = table.loc[table["method"] == "proximal"].set_index(by)["validation"]
    online = table.loc[table["method"] == "proximal online"].set_index(by)["validation"]
    assert plain.sort_index().equals(online.sort_index())
    figure = panels.figures(*panels.read(tmp_path))[0]
    dashes = {style.key: style.dash for style in figure.styles}
    assert dashes["method=proximal"] == dashes["method=ridge"] == ()
    assert dashes["method=proximal online"] == dashes["method=ridge online"] != ()
    assert spec.load(tmp_path).by == ("batch_size",)


def test_both_methods_have_the_same_settings_and_the_papers_grid_is_there():
    for size in ("cpu", "full"):
        configs = dfiv.jobs(size)
        assert {c["batch_size"] for c in configs} >= {16, 64, 256, 1024}
        for batch in {c["batch_size"] for c in configs}:
            trained = [model for c in configs if c["batch_size"] == batch for model in dfiv._models(c)]
            settings = {
                method: {(m.lr, m.lam_1, m.lam_2) for m in trained if m.method == method}
                for method in ("proximal", "ridge")
            }
            assert settings["proximal"] == settings["ridge"]
            assert len(trained) == 2 * len(settings["ridge"])
            if size == "full":
                assert len(settings["ridge"]) == (500 if batch < 1024 else 50)
    assert {(c["n"], c["T1"]) for c in dfiv.jobs("full")} == {(10_000, 20)}
    names = [dfiv.name(c) for c in dfiv.jobs("full")]
    assert len(set(names)) == len(names)


def test_bad_requests_are_told(tmp_path):
    with pytest.raises(ValueError, match="batch sizes are 1 to 40"):
        dfiv.jobs("quick", [64])
    with pytest.raises(ValueError, match="no size 'huge'"):
        dfiv.jobs("huge")
    with pytest.raises(ValueError, match="--quick and --full"):
        CliRunner().invoke(application(), ["paper", "dfiv", "--quick", "--full"], catch_exceptions=False)
    dfiv.run(tmp_path, dfiv.jobs("quick"), seeds=1)
    with pytest.raises(ValueError, match="does not hold the whole experiment: nothing for batch size 16"):
        claims.check("dfiv", tmp_path)


def checks(tmp_path, errors):
    """A table with these final errors by batch size and line."""
    rows = [
        {"batch_size": size, "method": method, "lr": 1e-3, "lam_1": 1.0, "lam_2": 1.0, "seed": seed, "step": step,
         "validation": 1.0, "test": error + seed, "evaluation": "", "n": 5000, "T1": 5, "iterations": 10,
         "network": "pooled", "tf32": False, "device": "cpu", "torch": "", "closedform": ""}
        for (size, method), error in errors.items() for seed, step in itertools.product(range(3), (5, 10))
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    results.save(table, tmp_path)
    dfiv.experiment(table).save(tmp_path)
    return claims.check("dfiv", tmp_path)


def test_claims_hold_where_the_figures_say_so(tmp_path):
    sizes = dfiv.SIZES["cpu"].batch_sizes
    good = {}
    for size in sizes:
        small = size <= claims_dfiv.SMALL
        good[size, "proximal"], good[size, "proximal online"] = 4.0, 4.2
        good[size, "ridge"], good[size, "ridge online"] = (9.0, 30.0) if small else (4.3, 4.4)
    assert all(check.holds for check in checks(tmp_path / "good", good))
    bad = {key: 4.0 if key[1].startswith("ridge") else 9.0 for key in good}
    bad |= {(size, "proximal online"): 20.0 for size in sizes}
    verdicts = checks(tmp_path / "bad", bad)
    assert not any(check.holds for check in verdicts)
    assert "16: 0.50" in verdicts[0].figures  # 5 / 10: the mean of the seeds is one above


def test_the_page_has_the_committed_results():
    module = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    tables = importlib.util.module_from_spec(module)
    module.loader.exec_module(tables)
    page = (ROOT / "docs" / "iv.md").read_text()
    assert tables.dfiv() in page
    assert tables.iv_card() in page
    assert tables.dfpv() in page
    assert tables.dfiv_curves() in page
    assert tables.dfiv_many() in page
    assert tables.dfiv_shapes() in page
    assert tables.iv_peers() in page
    card = json.loads((ROOT / "benchmarks/results/iv_card-cpu.json").read_text())["rows"][0]
    assert card["summary"] in page
    same = len(set(card["other_seeds"])) == 1 and f"{card['other_seeds'][0]:.4g}" in card["summary"]
    assert same == ("With four other seeds (1 to 4) the answer is the same line." in page)
    assert claims.markdown(claims.check("dfiv", ROOT / "results" / "dfiv")) in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dfiv", "iv_card", "iv_peers", "dfpv", "dfpv_low", "dfiv_designs"])
def test_the_benchmarks_run(name, tmp_path):
    script = ROOT / "benchmarks" / f"{name}.py"
    subprocess.run([sys.executable, str(script), "--quick", "--out", str(tmp_path)], check=True, capture_output=True)
    assert json.loads((tmp_path / f"{name}-cpu.json").read_text())["rows"]
