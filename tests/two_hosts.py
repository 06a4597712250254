"""Run by test_several_machines.py: torchrun on two hosts, one of which is killed and comes back.

    unshare --user --map-root-user --net --mount --pid --fork --kill-child python tests/two_hosts.py FOLDER --namespaces

With --namespaces each host is a network namespace with an address of its own, joined by a virtual cable. They are made
inside namespaces of the caller's, so nothing of the machine's network is touched and all is gone when this process ends.
Without, the hosts are two loopback addresses. FOLDER gets the checkpoints `undisturbed/` and `disturbed/`, and `hosts.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import torch

SCRIPT = Path(__file__).parents[1] / "examples" / "several_machines.py"
PATIENCE = 150.0  # seconds, for anything


def make_hosts() -> None:
    """Hosts a and b: 10.77.0.1 and 10.77.0.2."""
    commands = [
        "mount -t tmpfs tmpfs /run",
        "mkdir /run/netns",
        "ip netns add a",
        "ip netns add b",
        "ip link add cable-a netns a type veth peer name cable-b netns b",
        *(f"ip -n {h} addr add 10.77.0.{i}/24 dev cable-{h}" for i, h in enumerate("ab", 1)),
        *(f"ip -n {h} link set {link} up" for h in "ab" for link in ("lo", f"cable-{h}")),
    ]
    for command in commands:
        subprocess.run(command.split(), check=True)


class Host:
    """One machine: torchrun in its network."""

    def __init__(self, name: str, namespaces: bool, folder: Path, port: int, steps: int):
        number = "ab".index(name) + 1
        self.address = f"10.77.0.{number}" if namespaces else f"127.0.0.{number}"
        self.folder, self.log = folder, folder / f"{name}.log"
        meeting = f"10.77.0.1:{port}" if namespaces else f"127.0.0.1:{port}"
        self.command = ["ip", "netns", "exec", name] if namespaces else []
        self.command += [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        # a host that is silent for three seconds is taken for dead; by default it is fifteen
        self.command += ["--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=two-hosts", f"--rdzv-endpoint={meeting}"]
        keep = "keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=120"
        self.command += [f"--rdzv-conf={keep},is_host={int(name == 'a')}"]
        self.command += [f"--local-addr={self.address}", "--monitor-interval=0.1"]
        self.command += [str(SCRIPT), f"--folder={folder}", f"--steps={steps}"]
        interface = f"cable-{name}" if namespaces else "lo"
        # with torchrun's store shared, a host that comes back never learns the new meeting point (pytorch issue 135712)
        settings = {"GLOO_SOCKET_IFNAME": interface, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.environment = os.environ | settings
        self.process: subprocess.Popen

    def start(self) -> Host:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, env=self.environment)
        return self

    def kill(self) -> None:
        """As by a power cut: torchrun and its worker at once."""
        for process in [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]:
            process.send_signal(signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        if self.process.wait(PATIENCE) != 0:
            raise SystemExit(f"torchrun failed on {self.address}:\n{self.log.read_text()}")


def step_of(checkpoint: Path) -> int:
    return torch.load(checkpoint, weights_only=True)["step"] if checkpoint.exists() else 0


def run(folder: Path, namespaces: bool, port: int, steps: int, disturbed: bool) -> dict:
    """Trains to the end; `disturbed`, host b is killed once the first checkpoint is there, and started again."""
    folder.mkdir(parents=True)
    a, b = (Host(name, namespaces, folder, port, steps).start() for name in "ab")
    try:
        killed_at = disturb(a, b) if disturbed else None
        a.finish()
        b.finish()
    finally:
        for host in (a, b):
            if host.process.poll() is None:
                host.kill()
    return {"killed_at": killed_at, "addresses": [a.address, b.address], "log": b.log.read_text()}


def disturb(a: Host, b: Host) -> int:
    """Kill host b once there is a checkpoint, and start it again; returns the step of that checkpoint."""
    deadline = time.monotonic() + PATIENCE
    while not (step := step_of(a.folder / "checkpoint.pt")):
        if time.monotonic() > deadline or a.process.poll() is not None or b.process.poll() is not None:
            raise SystemExit(f"no checkpoint came:\n{a.log.read_text()}\n{b.log.read_text()}")
        time.sleep(0.01)
    b.kill()
    b.start()
    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--namespaces", action="store_true")
    parser.add_argument("--port", type=int, default=29400)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    if options.namespaces:
        make_hosts()
    seen = {}
    for name in ("undisturbed", "disturbed"):
        before = time.monotonic()
        seen[name] = run(options.folder / name, options.namespaces, options.port, options.steps, name == "disturbed")
        seen[name]["seconds"] = time.monotonic() - before
    (options.folder / "hosts.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
