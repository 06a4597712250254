"""docs/theory.md says what the committed results say, and the command that makes them runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .scripts import load

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "theory.md"
RESULTS = ROOT / "results" / "theory" / "theory.json"
SENTENCES = load("benchmarks/sentences.py")
MARKED = SENTENCES.MARKED


def test_the_pages_numbers_are_the_results():
    text = PAGE.read_text(encoding="utf-8")
    marks = list(MARKED.finditer(text))
    assert len(marks) == text.count("<!--") > 40
    assert [wrong for mark in marks if (wrong := SENTENCES.check(mark, within="theory."))] == []
    assert not json.loads(RESULTS.read_text())["quick"]


def test_every_number_in_the_prose_is_marked():
    """Decimals and per cents that are not: versions of theorems, settings in code, and the table of the benchmark."""
    text = MARKED.sub("", PAGE.read_text(encoding="utf-8"))
    text = text.replace(overhead_table(), "")
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"`[^`]*`|^ {4}.*$", "", text, flags=re.M)
    text = re.sub(r"(Theorem|Propositions?)\s\d\.\d(\sand\s\d\.\d)?", "", text)
    text = re.sub(r"beta = 0\.5|a layer 0\.1 off|95 % intervals|those of 50 %\sand 80 % cover", "", text)
    assert "Appendix B" in text  # what is checked is still there
    assert "recursions predict" in text
    assert re.findall(r"\d+\.\d+|\d\s?%|\de-\d", text) == []


def overhead_table():
    return load("benchmarks/tables.py").diagnose_overhead()


def test_the_cost_of_watching():
    """The table is the committed result, and the result is below one per cent where the page says so."""
    assert overhead_table() in PAGE.read_text(encoding="utf-8")
    rows = json.loads((ROOT / "benchmarks" / "results" / "diagnose_overhead-cpu.json").read_text())["rows"]
    assert {(64, 1024), (1024, 1024), (64, 4096)} < {(row["batch"], row["d"]) for row in rows}
    assert all((row["share"] < 0.01) == (min(row["batch"], row["d"]) <= 512) for row in rows)
    assert all(row["share"] < 0.015 for row in rows)


def test_the_figures_are_there_and_small():
    text = PAGE.read_text(encoding="utf-8")
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(figures) == 8
    for figure in figures:
        file = PAGE.parent / figure
        assert 5_000 < file.stat().st_size < (100_000 if file.suffix == ".svg" else 80_000), figure
    assert (PAGE.parent / "figures" / "theory" / "diagnosis.txt").exists()


def test_the_names_on_the_page_exist():
    from closedform import theory

    text = PAGE.read_text(encoding="utf-8")
    names = re.findall(r"`theory\.([\w.]+)", text)
    assert len(names) >= 9
    for name in names:
        found = theory
        for part in name.split("."):
            found = getattr(found, part)


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path):
    script = ROOT / "benchmarks" / "diagnose_overhead.py"
    command = [sys.executable, str(script), "--quick", "--device", "cpu", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (row,) = json.loads((tmp_path / "diagnose_overhead-cpu.json").read_text())["rows"]
    assert 0 < row["share"] < 0.05


@pytest.mark.slow
def test_the_command(tmp_path):
    pytest.importorskip("scipy")
    from closedform.paper.experiments import theory

    said = []
    path = theory.run(tmp_path / "numbers", quick=True, figures=tmp_path / "figures", say=said.append)
    quick, full = json.loads(path.read_text()), json.loads(RESULTS.read_text())

    def keys(found):
        return {k: keys(v) for k, v in found.items()} if isinstance(found, dict) else None

    assert quick["quick"] is True
    assert keys(quick) == keys(full)
    committed = {file.name for file in (ROOT / "docs" / "figures" / "theory").iterdir()}
    assert {file.name for file in (tmp_path / "figures").iterdir()} == committed
    assert len(said) > 5
    for key, figure in (("plain", 1e-6), ("ridge", 1e-6)):
        assert quick["non_convexity"][key]["gradient_error"] < figure
