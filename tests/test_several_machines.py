"""torchrun on two hosts that the test makes itself: one is killed, comes back, and nobody can tell from the weights."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

DRIVER = Path(__file__).with_name("two_hosts.py")
UNSHARE = [
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]


def namespaces_allowed() -> bool:
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    probe = (
        "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add a && ip link add c netns a type veth peer name e"
    )
    return subprocess.run([*UNSHARE, "sh", "-c", probe], capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_host_that_is_killed_and_comes_back_leaves_no_trace_in_the_weights(tmp_path):
    spaces = namespaces_allowed()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(DRIVER), str(tmp_path), f"--port={port}"]
    subprocess.run([*UNSHARE, *command, "--namespaces"] if spaces else command, check=True, timeout=500)
    seen = json.loads((tmp_path / "hosts.json").read_text())
    assert len(set(seen["disturbed"]["addresses"])) == 2
    states = {name: torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in seen}
    assert 0 < seen["disturbed"]["killed_at"] < states["disturbed"]["step"]  # killed on the way, not after the end
    assert "of 2: on from step" in seen["disturbed"]["log"]
    assert "on from step" not in seen["undisturbed"]["log"]
    for key, tensor in states["undisturbed"]["model"].items():
        assert torch.equal(states["disturbed"]["model"][key], tensor), key
