"""What a long command says: how long it will take, and at the end what to open."""

import io
from types import SimpleNamespace

import pytest

pytest.importorskip("rich")
pytest.importorskip("typer")
from rich.console import Console
from typer.testing import CliRunner

from closedform.cli import application
from closedform.paper import running


def test_a_bar_says_once_how_long_the_rest_will_take(monkeypatch):
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(running.time, "perf_counter", lambda: float(next(clock)))
    experiment = SimpleNamespace(name=lambda config: config["name"], work=lambda config: 100.0)
    out = io.StringIO()
    configs = [{"name": "a"}, {"name": "b"}]
    bar = running.Bar(experiment, configs, {}, Console(file=out, width=100))
    for done in (0, 10, 20, 30):  # 20 of 200 in twelve seconds: 180 are left
        bar.step(configs[0], done, 100)
    assert out.getvalue().count("This will take about") == 1
    assert "This will take about 108 s." in out.getvalue()


def test_the_last_line_names_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    result = CliRunner().invoke(application(), ["paper", "landscape", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == f"Open {tmp_path / 'landscape.html'}"
    assert (tmp_path / "landscape.html").is_file()
