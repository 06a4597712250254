"""docs/theory.md says what the committed results say, and the command that makes them runs."""

import json
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


def overhead_table():
    return load("benchmarks/tables.py").diagnose_overhead()


def test_the_cost_of_watching():
    """The table is the committed result, and the result is below one per cent where the page says so."""
    assert overhead_table() in PAGE.read_text(encoding="utf-8")
    rows = json.loads((ROOT / "benchmarks" / "results" / "diagnose_overhead-cpu.json").read_text())["rows"]
    assert {(64, 1024), (1024, 1024), (64, 4096)} < {(row["batch"], row["d"]) for row in rows}
    assert all((row["share"] < 0.01) == (min(row["batch"], row["d"]) <= 512) for row in rows)
    assert all(row["share"] < 0.015 for row in rows)


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

    def keys(tree):
        return {k: keys(v) for k, v in tree.items()} if isinstance(tree, dict) else None

    assert quick["quick"] is True
    assert keys(quick) == keys(full)
    committed = {file.name for file in (ROOT / "docs" / "figures" / "theory").iterdir()}
    assert {file.name for file in (tmp_path / "figures").iterdir()} == committed
    assert len(said) > 5
    for key, figure in (("plain", 1e-6), ("ridge", 1e-6)):
        assert quick["non_convexity"][key]["gradient_error"] < figure
