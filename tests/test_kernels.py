"""The CUDA kernels without a GPU: `interpret_kernels.py` in a process where Triton is an interpreter."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTALLED = ROOT / "build" / "triton"  # by `make test-release`; torch's CUDA builds bring their own


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is there for Linux only")
def test_the_kernels_in_tritons_interpreter():
    paths = [str(ROOT / "src"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if importlib.util.find_spec("triton") is None:
        if not (INSTALLED / "triton").is_dir():
            pytest.skip("needs triton, which `make test-release` installs in build/triton (for Python 3.11 or newer)")
        paths.append(str(INSTALLED))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    # in a process that is no worker of xdist
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/interpret_kernels.py"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr
    assert "skipped" not in result.stdout
