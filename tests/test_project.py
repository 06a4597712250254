"""What a reader meets first: README, backbones, benchmarks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import closedform as cf
from closedform.paper import claims
from closedform.paper.experiments import cifar100
from closedform.paper.models.resnet import resnet18, resnet50
from closedform.paper.sweeps import results
from closedform.paper.sweeps.records import Records
from closedform.paper.sweeps.work import RUNS

from .scripts import load

ROOT = Path(__file__).parents[1]


def tables():
    return load("benchmarks/tables.py")


def test_the_page_about_performance_has_the_committed_results():
    page, benchmark = (ROOT / "docs" / "performance.md").read_text(), tables()
    for table in (benchmark.step_overhead, benchmark.memory, benchmark.communication, benchmark.communication_step):
        assert table() in page, table.__name__
    assert benchmark.solve_time() in page
    assert benchmark.solve_time("cpu") in page


def test_the_page_about_qm9_has_the_committed_results():
    page = (ROOT / "docs" / "qm9.md").read_text()
    assert tables().qm9() in page
    assert tables().sweep_throughput() in page
    assert tables().sweep_throughput("cpu") in page
    assert claims.markdown(claims.check("qm9", ROOT / "results" / "qm9")) in page


def test_the_page_about_classification_has_the_committed_results():
    page, benchmark = (ROOT / "docs" / "classification.md").read_text(), tables()
    assert benchmark.generalized() in page


def test_the_committed_runs_of_cifar100_make_the_committed_table():
    """A later sitting goes on from the runs, and the page is made of the table."""
    folder = ROOT / "results" / "cifar100"
    table = cifar100.table_of(Records(folder / RUNS))
    pd.testing.assert_frame_equal(results.load(folder), table, check_dtype=False)


def test_the_readmes_loops_run():
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, re.S)
    assert len(blocks) == 3
    torch.manual_seed(0)
    for block in blocks[:2]:
        backbone = torch.nn.Sequential(torch.nn.Linear(5, 512), torch.nn.ReLU())
        model = torch.nn.Sequential(backbone, torch.nn.Linear(512, 12))
        x = torch.randn(64, 5)
        space = {
            "F": torch.nn.functional,
            "cf": cf,
            "backbone": backbone,
            "model": model,
            "loader": [(x, torch.sin(x.repeat(1, 3)[:, :12]))] * 30,
            "opt": torch.optim.SGD(backbone.parameters(), lr=0.01),
        }
        exec(block, space)  # the README is ours
        assert float(space["loss"].detach()) < 0.2
        assert int(space["head"].step) == 30


def test_the_readmes_minute_gives_its_numbers(capsys):
    readme = (ROOT / "README.md").read_text()
    block = re.findall(r"```python\n(.*?)```", readme, re.S)[2]
    exec(block, {})  # the README is ours
    line = r"learned ([\d.]+), solved ([\d.]+)"
    said, seen = (tuple(map(float, re.search(line, text).groups())) for text in (readme, capsys.readouterr().out))
    assert seen == pytest.approx(said, rel=0.2)  # other machines round otherwise


def test_the_command_line_names_a_missing_extra(tmp_path):
    code = "import sys; sys.modules['typer'] = None; from closedform.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "pip install 'closedform[experiments]'" in result.stderr


def test_what_is_handed_out_is_tried_with_every_trainer():
    """What is too slow for `make test`: two processes of Lightning and of transformers."""
    (release,) = re.findall(r"^RELEASE := (.+)$", (ROOT / "Makefile").read_text(), re.M)
    slow = [
        name
        for name in ("lightning", "transformers", "skorch")
        if "mark.slow" in (ROOT / f"tests/test_{name}.py").read_text()
    ]
    assert slow == ["lightning", "transformers"]
    assert {*slow} <= {*release.split()}


def command(*arguments, before="", cwd=None):
    """The command line in a process of its own, after the code `before`."""
    code = f"import sys\n{before}\nsys.argv = ['closedform', *{list(map(str, arguments))!r}]\n"
    code += "from closedform.cli import main\nmain()\n"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, env=environment)


def test_an_interrupt_while_torch_is_being_imported_leaves_no_traceback():
    interrupted = (
        "class Interrupted:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'torch': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())"
    )
    result = command("paper", "landscape", before=interrupted)
    assert (result.returncode, result.stderr) == (130, "")


HEAVY = "for name in 'torch numpy pandas pyarrow matplotlib jinja2 sklearn scipy'.split(): sys.modules[name] = None"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["version"], 0, f"{cf.__version__}\n"),
        (["--help"], 0, "Reproduce the paper's figures and tables."),
        (["paper", "qm9", "--help"], 0, "Ctrl-C stops the run, and the same command continues it."),
        (["train", "nowhere.csv", "--target", "price"], 2, "nowhere.csv: there is no such file"),
        (["report", "nowhere"], 2, "nowhere holds no results: there is no such folder"),
        (["claims", "qm9", "--results", "nowhere"], 2, "nowhere holds no results: there is no such folder"),
        (["claims", "qm9"], 2, "reads results/qm9 of the repository, which the installed package does not have"),
        (
            ["report", "results/qm9"],
            2,
            "reads results/qm9 of the repository, which the installed package does not have",
        ),
        (
            ["paper", "timing"],
            2,
            "step_overhead-cuda.json of the repository, which the installed package does not have",
        ),
    ],
)
def test_the_command_line_answers_before_anything_heavy_is_imported(arguments, code, message, tmp_path):
    result = command(*arguments, before=HEAVY, cwd=tmp_path)
    said = " ".join((result.stderr if code else result.stdout).split())
    assert message.strip() in said
    assert result.returncode == code
    assert "Traceback" not in result.stderr


def test_importing_needs_torch_and_numpy_only():
    code = (
        "import sys\n"
        "extras = 'typer rich matplotlib pandas pyarrow joblib dask distributed qm9pack scipy sklearn triton'\n"
        "for name in extras.split(): sys.modules[name] = None\n"
        "import closedform, closedform.solver.reference, closedform.paper.models.resnet\n"
        "import closedform.paper.data.qm9, closedform.paper.data.cifar, closedform.paper.sweeps.grid\n"
        "closedform.paper.data.qm9.load(source='synthetic', limit=20)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("make", "features", "torchvision"), [(resnet18, 512, 11_689_512), (resnet50, 2048, 25_557_032)]
)
def test_the_resnets_have_torchvisions_layers(make, features, torchvision):
    """Without the 1000-class head, and with a 3 x 3 stem in place of a 7 x 7 one."""
    expected = torchvision - (features * 1000 + 1000) - 64 * 3 * (49 - 9)
    net = make()
    assert sum(p.numel() for p in net.parameters()) == expected
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, features)
    assert make(feature_dim=7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("name", ["solve_time", "memory", "generalized", "vocabulary"])
def test_the_benchmarks_run(name, tmp_path):
    script = ROOT / "benchmarks" / f"{name}.py"
    command = [sys.executable, str(script), "--quick", "--device", "cpu", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    body = json.loads((tmp_path / f"{name}-cpu.json").read_text())
    assert body["rows"]
    assert body["environment"]["torch"] == torch.__version__


def test_few_rows_take_no_square_matrix(tmp_path):
    """Measured, not argued: the peak of a solve of 32 rows is far below one d x d matrix."""
    script = ROOT / "benchmarks" / "memory.py"
    command = [sys.executable, str(script), "--quick", "--device", "cpu", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    rows = json.loads((tmp_path / "memory-cpu.json").read_text())["rows"]
    for row in rows:
        if row["d"] >= 4096:
            assert row["peak_bytes"] < row["square_bytes"] / 5
    few, many = (row["peak_bytes"] for row in rows if "points" in row)  # of a layer shared over 256 and 8,192 points
    assert many < 10 * few, "32 times the points"
    assert many < next(row["phi_bytes"] for row in rows if row.get("points") == 8192)


def test_the_tables_of_docs_tabular_are_the_committed_results():
    page = (ROOT / "docs" / "tabular.md").read_text()
    benchmark = tables()
    names = ("errors", "wins", "times", "lambda", "search", "hard", "columns", "intervals", "million")
    for name in (*names, "peers", "peers_classes", "peers_summary"):
        assert getattr(benchmark, f"tabular_{name}")() in page, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tabular", "tabular_columns", "tabular_hard", "tabular_lambda", "tabular_search"])
def test_the_benchmarks_on_tables_run(name, tmp_path):
    pytest.importorskip("lightgbm")
    from closedform.paper.data import tabular as uci

    try:
        uci.path()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    script = ROOT / "benchmarks" / f"{name}.py"
    subprocess.run([sys.executable, str(script), "--quick", "--out", str(tmp_path)], check=True, capture_output=True)
    assert json.loads((tmp_path / f"{name}-cpu.json").read_text())["rows"]


def test_the_sentences_about_time_are_the_committed_results():
    page = " ".join((ROOT / "docs" / "tabular.md").read_text().split())
    benchmark = tables()
    share = benchmark.tabular_times().splitlines()[-1].split("|")[3].strip()
    assert f"by the geometric mean closedform is {share} times slower" in page
