"""What the tests of sweeps run: functions that log their calls, fail or kill their process."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

from closedform.paper.sweeps import grid


def log(folder, k):
    """A line in the log of runs; a short append is atomic, so that many processes can share the file."""
    with open(Path(folder, "log"), "a") as file:
        file.write(f"{k}\n")


def runs(folder):
    """How often each configuration was started."""
    return Counter(int(line) for line in Path(folder, "log").read_text().split())


def first_time(folder, k):
    marker = Path(folder, f"seen-{k}")
    seen = marker.exists()
    marker.touch()
    return not seen


def square(config):
    log(config["log"], config["k"])
    return [{"step": step, "value": config["k"] ** 2 + step / 2} for step in range(2)]


def slow_square(config):
    time.sleep(0.15)
    return square(config)


def negative(config):
    return [{"value": -config["k"]}]


def killed_once(config):
    if config["k"] == 3 and first_time(config["log"], config["k"]):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return square(config)


def killed_always(config):
    if config["k"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(config)


def fails_at_first(config):
    rows = square(config)
    if config["k"] in (1, 4) and first_time(config["log"], config["k"]):
        raise ArithmeticError(f"no root of {config['k']}")
    return rows


def threads(config):
    import torch

    return [{"threads": torch.get_num_threads()}]


def configs(folder, n):
    return grid.product(k=range(n), log=[str(folder)])
