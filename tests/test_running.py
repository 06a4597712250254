"""What a long command says: how long it will take, and at the end what to open."""

import io
from types import SimpleNamespace

import pytest

pytest.importorskip("rich")
pytest.importorskip("typer")
from rich.console import Console
from typer.testing import CliRunner

from closedform.cli import application
from closedform.paper import pace, running
from closedform.paper.sweeps.work import Work


def test_a_bar_says_once_how_long_the_rest_will_take(monkeypatch):
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(pace.time, "perf_counter", lambda: float(next(clock)))
    experiment = SimpleNamespace(name=lambda config: config["name"], work=lambda config: 100.0)
    out = io.StringIO()
    configs = [{"name": "a"}, {"name": "b"}]
    bar = running.Bar(experiment, configs, {}, Console(file=out, width=100))
    for done in (0, 10, 20, 30):  # 20 of 200 in twelve seconds: 180 are left
        bar.step(configs[0], done, 100)
    assert out.getvalue().count("This will take about") == 1
    assert "This will take about 108 s." in out.getvalue()


@pytest.mark.parametrize("at_once", [False, True])
def test_runs_that_are_printed_as_they_end_say_how_long_they_will_take(tmp_path, monkeypatch, at_once):
    clock = iter(range(0, 10_000, 6))
    monkeypatch.setattr(pace.time, "perf_counter", lambda: float(next(clock)))
    configs = [{"epochs": 10, "seed": seed} for seed in range(8)]
    row = {"validation": 0.5, "wall_s": 6.0}

    def train(config, progress, **_):
        for t in range(1, 6):
            progress(t, 5)
        return {"rows": [row]}

    experiment = SimpleNamespace(name=lambda config: str(config["seed"]), train=train)
    lines: list[str] = []
    wanted = lambda records: [config for config in configs if records.get(config) is None]  # noqa: E731
    work = Work(tmp_path, experiment, wanted, alike=(), say=lines.append)  # type: ignore[arg-type]  # a module in real life
    if at_once:  # no look into the runs, so the first one tells
        while (config := work.next()) is not None:
            work.take(config, lambda: {"rows": [row]})
    else:
        work.here()
    said = [line for line in lines if "will take about" in line]
    # two runs in twelve seconds, and five are left; or four epochs in twelve seconds, and 74 are left
    assert said == [f"The runs that are known so far will take about {'30 s' if at_once else '4 min'}."]


def test_the_last_line_names_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    result = CliRunner().invoke(application(), ["paper", "landscape", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == f"Open {tmp_path / 'landscape.html'}"
    assert (tmp_path / "landscape.html").is_file()
