"""Files that are whole or not there, whoever writes and whenever it stops; checkpoints that are refused when damaged."""

import os
import subprocess
import sys

import pytest
import torch

from closedform import files
from closedform.paper.data import store


def test_two_writers_at_once_leave_one_whole_file(tmp_path):
    code = (
        "import sys, numpy as np\nfrom pathlib import Path\nfrom closedform.paper.data import store\n"
        "k = int(sys.argv[2])\n"
        "for _ in range(30): store.save(Path(sys.argv[1]), {'a': np.full(100_000, k)})\n"
    )
    path = tmp_path / "a.npz"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), str(k)]) for k in range(2)]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            a = store.read(path)["a"]
            assert a.shape == (100_000,)
            assert (a == a[0]).all()
            seen.add(int(a[0]))
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def interrupted():
        with files.atomic(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_old_temporary_files_are_removed(tmp_path):
    with files.atomic(tmp_path / "a"):
        (young,) = tmp_path.iterdir()
        dead = tmp_path / young.name.replace(".a.", ".b.")
        dead.write_bytes(b"half")
        os.utime(dead, (0, 0))
        files.remove_stale(tmp_path)
        assert list(tmp_path.iterdir()) == [young]
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


BODY = {
    "weights": torch.arange(12.0, dtype=torch.float64).reshape(3, 4),
    "step": 7,
    "rows": [{"loss": 0.5}],
    "device": None,
}


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    path = tmp_path / "run.checkpoint"
    files.save_checkpoint(path, "run 1", BODY)
    body = files.load_checkpoint(path, "run 1", "cpu")
    assert body.keys() == BODY.keys()
    assert torch.equal(body["weights"], BODY["weights"])
    assert body["weights"].dtype == torch.float64
    assert (body["step"], body["rows"], body["device"]) == (7, [{"loss": 0.5}], None)
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.checkpoint"
    files.save_checkpoint(path, "run 1", BODY)
    with pytest.raises(ValueError, match=r"run.checkpoint cannot be continued .*belongs to 'run 1', not to 'run 2'"):
        files.load_checkpoint(path, "run 2", "cpu")


def test_every_flipped_bit_of_a_checkpoint_is_noticed(tmp_path):
    path = tmp_path / "run.checkpoint"
    files.save_checkpoint(path, "run 1", BODY)
    content = path.read_bytes()
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        with pytest.raises(ValueError, match="cannot be continued"):
            files.load_checkpoint(path, "run 1", "cpu")


@pytest.mark.parametrize("kept", [0, 10, 24, 60, 89, 90, 500, -1])
def test_a_truncated_checkpoint_is_refused(tmp_path, kept):
    path = tmp_path / "run.checkpoint"
    files.save_checkpoint(path, "run 1", BODY)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="cannot be continued"):
        files.load_checkpoint(path, "run 1", "cpu")


def test_a_foreign_file_is_no_checkpoint(tmp_path):
    path = tmp_path / "run.checkpoint"
    torch.save({"name": "run 1", "body": BODY}, path)
    with pytest.raises(ValueError, match="not a checkpoint"):
        files.load_checkpoint(path, "run 1", "cpu")
