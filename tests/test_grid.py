"""Sweeps: nothing finished runs twice and nothing is lost, whoever is killed and whenever."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from closedform.paper.sweeps import grid

from .grid_cases import (
    configs,
    fails_at_first,
    first_time,
    killed_always,
    killed_once,
    negative,
    runs,
    slow_square,
    square,
    threads,
)

needs_dask = pytest.mark.skipif(find_spec("distributed") is None, reason="needs dask[distributed]")


def check(table, n):
    assert table["k"].tolist() == [k for k in range(n) for _ in range(2)]
    assert table["value"].tolist() == [k**2 + step / 2 for k in range(n) for step in range(2)]


def results(folder):
    return {path.stem for path in Path(folder).glob("*.parquet")}


# names


def test_the_hash_is_the_same_everywhere():
    """Written down: it must not change with Python's version, the process or the order of the keys."""
    config = {"method": "kalman", "lr": 0.1, "λ": 1e-05, "big": 1e22, "bias": True, "seed": 3, "decay": None}
    assert grid.digest(config) == "5485d157e77756d1eff6ca1b0c7db026"
    assert grid.digest(dict(reversed(config.items()))) == grid.digest(config)
    assert grid.digest({**config, "lr": np.float64(0.1)}) == grid.digest(config)
    code = "import sys, json; from closedform.paper.sweeps import grid; print(grid.digest(json.loads(sys.argv[1])))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code, json.dumps(config)]
    assert subprocess.check_output(command, text=True, env=environment).strip() == grid.digest(config)


def test_different_configurations_have_different_hashes():
    different = [{"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"a": None}, {}, {"b": 1}, {"a": 0.1 + 0.2}, {"a": 0.3}]
    digests = [grid.digest(config) for config in different] + [grid.digest({"a": 1}, version="2")]
    assert len(set(digests)) == len(different) + 1


@pytest.mark.parametrize("value", [[1], {"b": 1}, float("nan"), float("inf"), np.int64(3), (1,)])
def test_what_is_not_flat_and_plain_is_named(value, tmp_path):
    with pytest.raises(ValueError, match=f"'a': .*{type(value).__name__}.*expected a name and a string"):
        grid.run(square, [{"a": value}], tmp_path)


# one process


def test_rows_come_back_in_the_order_of_the_configurations(tmp_path):
    wanted = configs(tmp_path, 5)
    table = grid.run(square, wanted[::-1], tmp_path / "out")
    assert list(table) == ["k", "log", "step", "value"]
    assert table["k"].tolist() == [4, 4, 3, 3, 2, 2, 1, 1, 0, 0]
    check(grid.run(square, wanted, tmp_path / "out"), 5)
    assert runs(tmp_path) == Counter(range(5))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{grid.digest(c)}.parquet" for c in wanted}


def test_only_what_is_new_runs(tmp_path):
    seen = []
    grid.run(square, configs(tmp_path, 3), tmp_path, progress=lambda *said: seen.append(said))
    grid.run(square, configs(tmp_path, 5), tmp_path, progress=lambda *said: seen.append(said))
    assert runs(tmp_path) == Counter(range(5))
    assert [(done, total, config["k"]) for done, total, config in seen] == [
        (1, 3, 0),
        (2, 3, 1),
        (3, 3, 2),
        (4, 5, 3),
        (5, 5, 4),
    ]


def test_the_same_configuration_twice_counts_once(tmp_path):
    check(grid.run(square, configs(tmp_path, 2) * 2, tmp_path), 2)
    assert runs(tmp_path) == Counter(range(2))


def test_another_version_is_another_result(tmp_path):
    for version in ("", "2", "2"):
        check(grid.run(square, configs(tmp_path, 2), tmp_path, version=version), 2)
    assert runs(tmp_path) == Counter([0, 1, 0, 1])


def test_a_folder_that_looks_like_a_partition_adds_no_column(tmp_path):
    assert list(grid.run(square, configs(tmp_path, 1), tmp_path / "lr=1")) == ["k", "log", "step", "value"]


def test_tables_of_different_shapes_are_joined(tmp_path):
    """Entries of mixed type, columns that some lack, no rows at all, and a frame with an index of its own."""
    tables = {
        "auto": pd.DataFrame({"loss": [0.5, 0.25]}, index=[7, 7]),
        1.0: [{"loss": 0.125, "extra": 3}],
        "none": [{"loss": 1.0, "extra": None}],
        None: [],
    }
    wanted = [{"lam": lam, "only": 1} if lam == 1.0 else {"lam": lam} for lam in tables]
    for _ in range(2):
        table = grid.run(lambda config: tables[config["lam"]], wanted, tmp_path)
        assert list(table) == ["lam", "only", "loss", "extra"]
        assert table["lam"].tolist() == ["auto", "auto", 1.0, "none"]
        assert table["loss"].tolist() == [0.5, 0.25, 0.125, 1.0]
        assert table["extra"].isna().tolist() == [True, True, False, True]
        assert table["extra"].dtype == "float64"


def test_nothing_to_do_is_an_empty_table(tmp_path):
    assert len(grid.run(square, [], tmp_path)) == 0


def test_the_configuration_is_in_the_file(tmp_path):
    import pyarrow.parquet as pq

    (config,) = configs(tmp_path, 1)
    grid.run(square, [config], tmp_path)
    metadata = pq.read_schema(tmp_path / f"{grid.digest(config)}.parquet").metadata
    assert json.loads(metadata[b"closedform.config"]) == ["", config]


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "renamed", "another's"])
def test_a_damaged_result_is_set_aside_and_run_again(tmp_path, damage):
    wanted = configs(tmp_path, 3)
    grid.run(square, wanted, tmp_path)
    path, other = (tmp_path / f"{grid.digest(config)}.parquet" for config in wanted[:2])
    whole = path.read_bytes()
    if damage == "flipped":  # a digit of a result, which nothing but a checksum protects
        at = whole.index(np.float64(0.5).tobytes())
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    elif damage == "renamed":  # of a column, which Parquet's own checksums leave out
        path.write_bytes(whole.replace(b"value", b"valuf"))
    else:
        path.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "another's": other.read_bytes()}[damage])
    assert set(grid.finished(wanted, tmp_path)["k"]) == {1, 2}
    broken = path.read_bytes()
    with pytest.warns(UserWarning, match="is damaged; it was set aside"):
        check(grid.run(square, wanted, tmp_path), 3)
    assert runs(tmp_path) == Counter([0, 0, 1, 2])
    assert path.read_bytes() == whole
    assert path.with_name(path.name + grid.DAMAGED).read_bytes() == broken


def test_no_flipped_bit_of_a_result_goes_unnoticed_or_stops_a_run(tmp_path):
    (config,) = configs(tmp_path, 1)
    table = grid.run(square, [config], tmp_path)
    path = tmp_path / f"{grid.digest(config)}.parquet"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        seen = grid.finished([config], tmp_path)
        assert len(seen) == 0 or seen.equals(table), at
        grid.configurations(tmp_path)


def test_somebody_elses_parquet_is_left_alone(tmp_path):
    import pandas as pd

    (config,) = configs(tmp_path, 1)
    grid.run(square, [config], tmp_path)
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "foreign.parquet")
    whole = (tmp_path / f"{grid.digest(config)}.parquet").read_bytes()
    (tmp_path / "copy.parquet").write_bytes(whole)
    assert grid.configurations(tmp_path) == [config]


def test_temporary_files_of_the_dead_are_ignored_and_removed(tmp_path):
    (config,) = configs(tmp_path, 1)
    old, young = (tmp_path / f".{grid.digest(config)}.parquet.{pid}-0.closedform-tmp" for pid in (1, 2))
    for path in (old, young):
        path.write_bytes(b"PAR1 half")
    os.utime(old, (0, 0))
    check(grid.run(square, [config], tmp_path), 1)
    assert young.exists()
    assert not old.exists()


# failures


@pytest.mark.parametrize("jobs", [1, 2])
def test_failures_do_not_stop_the_others_and_are_tried_again(tmp_path, jobs):
    wanted = configs(tmp_path, 6)
    said = "2 of 6 configurations failed, the first {'k': 1, .*ArithmeticError: no root of 1 .*error.txt"
    ends = []
    with pytest.raises(grid.SweepError, match=said) as error:
        grid.run(fails_at_first, wanted, tmp_path, jobs=jobs, progress=lambda done, *_: ends.append(done))
    assert ends == [1, 2, 3, 4, 5, 6]
    assert {config["k"] for config, _ in error.value.failures} == {1, 4}
    assert all("in fails_at_first" in trace for _, trace in error.value.failures)
    for k in (1, 4):
        text = (tmp_path / f"{grid.digest(wanted[k])}.error.txt").read_text()
        assert json.loads(text.splitlines()[0]) == wanted[k]
        assert f"ArithmeticError: no root of {k}" in text
    assert set(grid.finished(wanted, tmp_path)["k"]) == {0, 2, 3, 5}
    check(grid.run(fails_at_first, wanted, tmp_path, jobs=jobs), 6)
    assert runs(tmp_path) == Counter([0, 1, 1, 2, 3, 4, 4, 5])
    assert not list(tmp_path.glob("*.error.txt"))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"a": 1}, "returned a dict; expected a DataFrame or a list of dicts"),
        (None, "returned a NoneType"),
        ([{"k": 1}], "the rows have a column 'k', which the configuration has too"),
        ([{"a": object()}], "object"),
    ],
)
def test_rows_that_cannot_be_kept_are_failures(tmp_path, rows, said):
    with pytest.raises(grid.SweepError, match=said):
        grid.run(lambda config: rows, [{"k": 1}], tmp_path)
    assert not results(tmp_path)


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="jobs is 0; expected 1 or more"):
        grid.run(square, [], tmp_path, jobs=0)
    with pytest.raises(ValueError, match="expected one of the two"):
        grid.run(square, [], tmp_path, jobs=2, dask="tcp://localhost:1")


@pytest.mark.parametrize(
    ("missing", "arguments", "said"),
    [
        ("pandas", {}, "a sweep needs pandas: pip install 'closedform[experiments]'"),
        ("pyarrow", {}, "a sweep needs pyarrow: pip install 'closedform[experiments]'"),
        ("joblib", {"jobs": 2}, "a sweep with several jobs needs joblib: pip install 'closedform[experiments]'"),
        (
            "distributed",
            {"dask": "tcp://localhost:1"},
            "a sweep on Dask needs distributed: pip install 'closedform[dask]'",
        ),
    ],
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, missing, arguments, said):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError) as error:
        grid.run(square, configs(tmp_path, 2), tmp_path, **arguments)
    assert str(error.value) == said


def test_an_interrupt_keeps_what_is_finished(tmp_path):
    def interrupted(config):
        if config["k"] == 2 and first_time(tmp_path, 2):
            raise KeyboardInterrupt
        return square(config)

    wanted = configs(tmp_path, 4)
    with pytest.raises(KeyboardInterrupt):
        grid.run(interrupted, wanted, tmp_path)
    assert results(tmp_path) == {grid.digest(config) for config in wanted[:2]}
    check(grid.run(interrupted, wanted, tmp_path), 4)
    assert runs(tmp_path) == Counter(range(4))


# several processes


def interrupt(done, total, config):
    if done == 2:
        raise KeyboardInterrupt


def test_an_interrupt_between_two_results_of_several_jobs(tmp_path):
    wanted = configs(tmp_path, 30)
    with pytest.raises(KeyboardInterrupt):
        grid.run(slow_square, wanted, tmp_path, jobs=2, progress=interrupt)
    before = results(tmp_path)
    assert 2 <= len(before) < 30
    time.sleep(0.5)
    assert results(tmp_path) == before  # nobody goes on in the background


def test_jobs_have_one_thread_each(tmp_path, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    table = grid.run(threads, [{"k": k} for k in range(4)], tmp_path, jobs=2)
    assert table["threads"].tolist() == [1] * 4


def start(folder, n=40):
    """A sweep of two jobs in a process group of its own, with a few results already."""
    code = (
        "import sys; from tests import grid_cases as t; from closedform.paper.sweeps import grid\n"
        "grid.run(t.slow_square, t.configs(sys.argv[1], int(sys.argv[2])), sys.argv[1], jobs=2)"
    )
    command = [sys.executable, "-c", code, str(folder), str(n)]
    root = Path(__file__).parents[1]
    process = subprocess.Popen(command, cwd=root, start_new_session=True, stderr=subprocess.PIPE, text=True)
    until(lambda: len(results(folder)) >= 3)
    return process


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def group_is_gone(pid):
    """No process of the group lives; in a container the dead may stay as zombies, which only psutil tells apart."""
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                return False
    return True


def goes_on(folder, n=40):
    """A second run finishes the first one's work, and repeats nothing that was finished."""
    wanted = configs(folder, n)
    before = {config["k"] for config in wanted if grid.digest(config) in results(folder)}
    assert 3 <= len(before) < n
    first = runs(folder)
    check(grid.run(square, wanted, folder), n)
    again = runs(folder) - first
    assert again == Counter(set(range(n)) - before)
    assert all(first[k] == 1 for k in before)


def test_everything_killed_at_once(tmp_path):
    process = start(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: group_is_gone(process.pid))
    goes_on(tmp_path)


def test_the_parent_killed(tmp_path):
    """Its workers end by themselves, though nobody tells them; what they finish until then counts too."""
    process = start(tmp_path)
    try:
        process.kill()
        process.wait()
        until(lambda: group_is_gone(process.pid), 20)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    goes_on(tmp_path)


def test_ctrl_c(tmp_path):
    """It ends the workers as well, and what is finished stays."""
    process = start(tmp_path)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said.strip().endswith("KeyboardInterrupt")
    until(lambda: group_is_gone(process.pid))
    goes_on(tmp_path)


def test_a_worker_killed(tmp_path):
    wanted = configs(tmp_path, 8)
    with pytest.raises(RuntimeError, match="a worker process was killed.*another run continues"):
        grid.run(killed_once, wanted, tmp_path, jobs=2)
    before = {config["k"] for config in wanted if grid.digest(config) in results(tmp_path)}
    check(grid.run(killed_once, wanted, tmp_path), 8)
    assert all(runs(tmp_path)[k] == 1 for k in before)


# Dask


@pytest.fixture
def cluster():
    """Makes clusters on this machine: worker processes of one thread, each with a nanny that starts it anew."""
    from distributed import LocalCluster

    clusters = []

    def make(workers):
        clusters.append(
            LocalCluster(
                n_workers=workers, processes=True, threads_per_worker=1, dashboard_address=None, silence_logs=False
            )
        )
        return clusters[-1]

    yield make
    for one in clusters:
        one.close()


@needs_dask
def test_dask_with_a_worker_killed_in_the_middle(tmp_path, cluster):
    wanted, address = configs(tmp_path, 10), cluster(2).scheduler_address
    check(grid.run(killed_once, wanted, tmp_path, dask=address), 10)
    assert (tmp_path / "seen-3").exists()
    assert set(runs(tmp_path)) == set(range(10))
    before = runs(tmp_path)
    check(grid.run(killed_once, wanted, tmp_path, dask=address), 10)
    assert runs(tmp_path) == before
    with pytest.raises(KeyboardInterrupt):
        grid.run(slow_square, configs(tmp_path, 30), tmp_path / "stopped", dask=address, progress=interrupt)
    assert 2 <= len(results(tmp_path / "stopped")) < 30
    # another function with the same configurations, while they are known to the scheduler, is another task
    inner = []

    def nested(done, total, config):
        if done == 1:
            inner.append(grid.run(negative, wanted, tmp_path / "inner", dask=address))

    check(grid.run(slow_square, wanted, tmp_path / "outer", dask=address, progress=nested), 10)
    assert inner[0]["value"].tolist() == [-k for k in range(10)]
    # a failure there is a failure here
    with pytest.raises(grid.SweepError, match="2 of 10 configurations failed.*no root of"):
        grid.run(fails_at_first, wanted, tmp_path / "other", dask=address)
    check(grid.run(fails_at_first, wanted, tmp_path / "other", dask=address), 10)


@needs_dask
def test_dask_that_loses_its_workers_and_then_itself(tmp_path, cluster):
    import dask

    wanted = configs(tmp_path, 3)
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        one = cluster(1)
    with pytest.raises(grid.SweepError, match="KilledWorker") as error:
        grid.run(killed_always, wanted, tmp_path, dask=one.scheduler_address)
    assert 1 in [config["k"] for config, _ in error.value.failures]
    assert grid.digest(wanted[1]) not in results(tmp_path)

    gone, many = tmp_path / "gone", configs(tmp_path, 30)
    with pytest.raises(RuntimeError, match="scheduler at .* is gone .* another run continues"):
        grid.run(slow_square, many, gone, dask=one.scheduler_address, progress=lambda *_: one.close())
    assert 1 <= len(results(gone)) < 30
