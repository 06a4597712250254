"""A stack trained to its end: what is measured, what is dropped, and that stopping it changes nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from closedform.stack import loop
from closedform.stack.models import Candidate

from . import stack_cases
from .helpers import relative
from .stack_cases import STEPS, data, measured, stack

CANDIDATES = list(stack_cases.CANDIDATES.values())


def same(one, other):
    assert one.steps == other.steps
    assert one.errors.keys() == other.errors.keys()
    for name in one.errors:
        assert all(torch.equal(a, b) for a, b in zip(one.errors[name], other.errors[name])), name


def test_marks_are_shares_of_the_training_and_closer_at_its_start():
    at = loop.marks(8000, 50)
    assert at[:6] == [10, 20, 40, 80, 160, 320]
    assert at[-1] == 8000
    assert len(at) == 54
    assert loop.marks(3, 50) == [1, 2, 3]


def test_errors_are_those_at_the_marks():
    made, other = stack(CANDIDATES), stack(CANDIDATES)
    history = loop.train(made, loop.on(measured()), at=[10, 70])
    assert history.steps == [10, 70, STEPS]
    other.advance(70)
    assert torch.equal(history.errors["test"][1], other.evaluate(*measured()["test"]))
    assert sorted(history.wall_s) == history.wall_s


def test_what_has_diverged_is_dropped_and_the_others_do_not_notice():
    bad = [Candidate(1e30), Candidate(1e30, CANDIDATES[4].rule)]
    mixed = [*bad, *CANDIDATES]
    made = stack(mixed, dtype=torch.float32)
    at = [5, 10, 60]
    X, Y = data(dtype=torch.float32)
    history = loop.train(made, loop.on({"test": loop.EvaluationSet(X, Y)}), at=at)
    assert len(made.candidates) == len(CANDIDATES)
    clean = loop.train(stack(CANDIDATES, dtype=torch.float32), loop.on({"test": loop.EvaluationSet(X, Y)}), at=at)
    for mark in range(4):
        assert torch.isinf(history.errors["test"][mark][:, :2]).all()
        assert relative(history.errors["test"][mark][:, 2:], clean.errors["test"][mark]) < 2e-2
    assert torch.isinf(history.errors["train"][-1][:, :2]).all()


def test_a_stack_that_has_diverged_altogether_ends_early():
    X, Y = data(dtype=torch.float32)
    history = loop.train(
        stack([Candidate(1e30)], dtype=torch.float32), loop.on({"test": loop.EvaluationSet(X, Y)}), at=[20, 50]
    )
    assert history.steps == [20]
    assert torch.isinf(history.errors["test"][0]).all()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path, optimizer):
    mixed = [Candidate(1e30), Candidate(1e30), *CANDIDATES]  # so that some are dropped before the interruption
    at, path = [8, 30, 60], tmp_path / "checkpoint"

    def make():
        return stack(mixed, optimizer=optimizer, dtype=torch.float32)

    X, Y = data(dtype=torch.float32)
    sets = {"test": loop.EvaluationSet(X, Y)}
    whole = make()
    expected = loop.train(whole, loop.on(sets), at=at)

    def stop(step, total):
        if step > 40:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        loop.train(make(), loop.on(sets), at=at, checkpoint=path, every_s=0, progress=stop, name="a")
    steps = []
    resumed = make()
    history = loop.train(
        resumed, loop.on(sets), at=at, checkpoint=path, name="a", progress=lambda t, total: steps.append(t)
    )
    assert steps[0] > 8
    same(history, expected)
    assert all(torch.equal(a, b) for a, b in zip(whole.state().values(), resumed.state().values()))
    with pytest.raises(ValueError, match="cannot be continued.*belongs to 'a'"):
        loop.train(make(), loop.on(sets), at=at, checkpoint=path, name="b")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be continued.*remove it to start afresh"):
        loop.train(make(), loop.on(sets), at=at, checkpoint=path, name="a")


SCRIPT = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from closedform.stack import loop
from tests.stack_cases import CANDIDATES, measured, stack
def slowly(step, total):
    print(step, flush=True)
    time.sleep(0.02)
path = Path(sys.argv[1])
made = stack(list(CANDIDATES.values()))
history = loop.train(made, loop.on(measured()), checkpoint=path, every_s=0, name="a", progress=slowly)
torch.save(history.errors, sys.argv[2])
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_process_may_be_killed(tmp_path, kind):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "checkpoint"), str(tmp_path / "errors")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reached = 0
    while reached < 15:
        reached = int(process.stdout.readline())
    process.send_signal(kind)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert not (tmp_path / "errors").exists()
    if kind != signal.SIGKILL:
        assert "KeyboardInterrupt" in stderr
        reached = int(stdout.split()[-1]) if stdout.split() else reached
    again = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    first = int(again.stdout.split()[0])
    assert first > (0 if kind == signal.SIGKILL else reached)
    errors = torch.load(tmp_path / "errors", weights_only=True)
    expected = loop.train(stack(CANDIDATES), loop.on(measured())).errors
    for name in expected:
        assert all(torch.equal(a, b) for a, b in zip(errors[name], expected[name])), name


def test_several_processes_stop_at_the_same_step_and_one_of_them_writes(tmp_path):
    """Every process looks after every step, whether it was asked itself or another was."""
    for name, writes in (("first", True), ("second", False)):
        asked, made = [], stack(CANDIDATES)

        def agreed(own, asked=asked):
            asked.append(own)
            return len(asked) == 7

        with pytest.raises(KeyboardInterrupt):
            loop.train(made, loop.on(measured()), checkpoint=tmp_path / name, agreed=agreed, writes=writes)
        assert made.t == 7
        assert asked == [False] * 7
        assert (tmp_path / name).is_file() == writes
    resumed = stack(CANDIDATES)
    same(
        loop.train(resumed, loop.on(measured()), checkpoint=tmp_path / "first", agreed=bool),
        loop.train(stack(CANDIDATES), loop.on(measured())),
    )


def test_a_second_signal_does_not_wait():
    with loop.Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            stop._ask()
