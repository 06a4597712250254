"""Files that are whole or not there, whoever writes and whenever it stops."""

import os
import subprocess
import sys

import pytest

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
