"""Archives: what is written comes back, a flipped bit is noticed, and the rooms that use them do not need each other."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

from safetensors import safe_open
from safetensors.torch import save_file

from closedform import archive, iv, tabular

from .iv_cases import design
from .table_cases import table

HEADER = {"format": 1, "names": ["a", "ü"], "loss": float("inf")}
TENSORS = {
    "weights": torch.arange(12.0).reshape(3, 4).T,
    "half": torch.ones(3, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "count": torch.tensor(7),
    "none": torch.zeros(0, 5),
    "column": torch.arange(6.0).reshape(2, 3)[:1, 1],  # of one entry, whose stride is not one
}


def test_what_is_written_comes_back(tmp_path):
    header, tensors = archive.read(archive.write(tmp_path / "x", HEADER, TENSORS))
    assert header == HEADER
    assert list(tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_every_flipped_bit_is_noticed(tmp_path):
    whole = archive.write(tmp_path / "x", HEADER, TENSORS).read_bytes()
    for place in range(8 * len(whole)):
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        (tmp_path / "x").write_bytes(data)
        try:
            header, tensors = archive.read(tmp_path / "x")
        except ValueError as bad:
            assert str(tmp_path / "x") in str(bad)  # noqa: PT017 - either outcome is right
            continue
        # only a blank of the padding can have changed
        assert header == HEADER
        assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("text", ["[]", "3", "{", "[" * 100_000])
def test_a_header_that_is_no_object_is_named(text, tmp_path):
    metadata = {archive.HEADER: archive.sealed(text, {"a": torch.zeros(1)})}
    save_file({"a": torch.zeros(1)}, tmp_path / "x", metadata=metadata)
    with pytest.raises(ValueError, match="x has a header"):
        archive.read(tmp_path / "x")


def test_a_model_with_a_flipped_bit_is_refused(tmp_path):
    """A bit of a weight, which no other check could see."""
    X, y = table(60)
    path = tabular.ClosedFormRegressor(max_iter=2).fit(X, y).save(tmp_path / "model")
    data = bytearray(path.read_bytes())
    with safe_open(path, "np") as file:
        weights = file.get_tensor("engine.param.0").tobytes()
    data[bytes(data).index(weights) + 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="model is damaged: its contents do not have the checksum"):
        tabular.load(path)


def test_either_door_reads_both_kinds(tmp_path):
    X, y = table(60)
    regressor = tabular.ClosedFormRegressor(max_iter=2).fit(X, y)
    causes, outcomes, Z, W = design()
    line = iv.DFIVRegressor(features="linear").fit(causes, outcomes, Z=Z, W=W)
    for load in (tabular.load, iv.load):
        assert np.array_equal(load(regressor.save(tmp_path / "a")).predict(X), regressor.predict(X))
        assert np.array_equal(load(line.save(tmp_path / "b")).predict(causes, W), line.predict(causes, W))


@pytest.mark.parametrize(("door", "other"), [("tabular", "iv"), ("iv", "tabular")])
def test_one_room_does_not_import_the_other(door, other):
    code = (
        f"import sys; from closedform.{door} import load; from closedform.estimator_files import ROOMS\n"
        f"import importlib; [importlib.import_module(m) for m in ROOMS.values() if '{door}' in m]\n"
        f"assert not [name for name in sys.modules if name.startswith('closedform.{other}')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(os.name != "posix", reason="processes have parents only there")
def test_a_worker_does_not_outlive_its_parent():
    worker = (
        "import os, time; from closedform import workers\n"
        "workers.SECONDS = 0.05; workers.end_with(os.getppid()); workers.end_with(os.getppid())\n"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {worker!r}]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.kill(child, 0)  # it is there
        process.send_signal(signal.SIGKILL)
    assert _is_gone(child, 30)


def _is_gone(process, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        if _is_zombie(process):  # ended, and nobody has asked for its exit status
            return True
        time.sleep(0.05)
    return False


def _is_zombie(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return sys.platform == "linux"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_processes_of_a_bootstrap_end_with_it(tmp_path):
    code = (
        "import numpy as np; from closedform.iv import DFIVRegressor\n"
        "if __name__ == '__main__':\n"
        "    z, u = np.random.default_rng(0).standard_normal((2, 400)); x = z + u\n"
        "    model = DFIVRegressor(max_iter=60, members=1, treatment='linear').fit(x[:, None], x + u, Z=z[:, None])\n"
        f"    model.bootstrap(x[:, None], x + u, Z=z[:, None], replicates=500, folder={str(tmp_path)!r}, n_jobs=2)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("*.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.2)
        children = [int(child) for child in _children(process.pid)]
        process.send_signal(signal.SIGKILL)
    assert len(children) >= 2
    assert all(_is_gone(child, 20) for child in children)


def _children(process):
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    if file.read().rpartition(")")[2].split()[1] == str(process):
                        yield entry
            except OSError:
                continue
