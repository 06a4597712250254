"""A stack trained to its end: what is measured, what is dropped, and that stopping it changes nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from closedform import archive
from closedform.stack import measuring
from closedform.stack.loop import Checkpoint, Stop, Trainable, train
from closedform.stack.models import Candidate
from closedform.stack.states import optimizer_state, restore_optimizer

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
    at = measuring.marks(8000, 50)
    assert at[:6] == [10, 20, 40, 80, 160, 320]
    assert at[-1] == 8000
    assert len(at) == 54
    assert measuring.marks(3, 50) == [1, 2, 3]


def test_errors_are_those_at_the_marks():
    models, other = stack(CANDIDATES), stack(CANDIDATES)
    history = measuring.train(models, measuring.on(measured()), at=[10, 70])
    assert history.steps == [10, 70, STEPS]
    other.advance(70)
    assert torch.equal(history.errors["test"][1], other.evaluate(*measured()["test"]))
    assert sorted(history.wall_s) == history.wall_s


def test_what_has_diverged_is_dropped_and_the_others_do_not_notice():
    bad = [Candidate(1e30), Candidate(1e30, CANDIDATES[4].rule)]
    mixed = [*bad, *CANDIDATES]
    models = stack(mixed, dtype=torch.float32)
    at = [5, 10, 60]
    X, Y = data(dtype=torch.float32)
    history = measuring.train(models, measuring.on({"test": measuring.EvaluationSet(X, Y)}), at=at)
    assert len(models.candidates) == len(CANDIDATES)
    clean = measuring.train(
        stack(CANDIDATES, dtype=torch.float32), measuring.on({"test": measuring.EvaluationSet(X, Y)}), at=at
    )
    for mark in range(4):
        assert torch.isinf(history.errors["test"][mark][:, :2]).all()
        assert relative(history.errors["test"][mark][:, 2:], clean.errors["test"][mark]) < 2e-2
    assert torch.isinf(history.errors["train"][-1][:, :2]).all()


def test_a_stack_that_has_diverged_altogether_ends_early():
    X, Y = data(dtype=torch.float32)
    history = measuring.train(
        stack([Candidate(1e30)], dtype=torch.float32),
        measuring.on({"test": measuring.EvaluationSet(X, Y)}),
        at=[20, 50],
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
    sets = {"test": measuring.EvaluationSet(X, Y)}
    whole = make()
    expected = measuring.train(whole, measuring.on(sets), at=at)

    def stop(step, total):
        if step > 40:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        measuring.train(make(), measuring.on(sets), at=at, checkpoint=Checkpoint(path, "a", every_s=0), progress=stop)
    steps = []
    resumed = make()
    history = measuring.train(
        resumed, measuring.on(sets), at=at, checkpoint=Checkpoint(path, "a"), progress=lambda t, total: steps.append(t)
    )
    assert steps[0] > 8
    same(history, expected)
    assert all(torch.equal(a, b) for a, b in zip(whole.state().values(), resumed.state().values()))
    with pytest.raises(ValueError, match="cannot be continued.*belongs to 'a'"):
        measuring.train(make(), measuring.on(sets), at=at, checkpoint=Checkpoint(path, "b"))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be continued.*remove it to start afresh"):
        measuring.train(make(), measuring.on(sets), at=at, checkpoint=Checkpoint(path, "a"))


SCRIPT = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from closedform.stack import measuring
from closedform.stack.loop import Checkpoint
from tests.stack_cases import CANDIDATES, measured, stack
def slowly(step, total):
    print(step, flush=True)
    time.sleep(0.02)
path = Path(sys.argv[1])
made = stack(list(CANDIDATES.values()))
history = measuring.train(made, measuring.on(measured()), checkpoint=Checkpoint(path, "a", every_s=0), progress=slowly)
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
    expected = measuring.train(stack(CANDIDATES), measuring.on(measured())).errors
    for name in expected:
        assert all(torch.equal(a, b) for a, b in zip(errors[name], expected[name])), name


def test_several_processes_stop_at_the_same_step_and_one_of_them_writes(tmp_path):
    """Every process looks after every step, whether it was asked itself or another was."""
    for name, writes in (("first", True), ("second", False)):
        asked, models = [], stack(CANDIDATES)

        def agreed(own, asked=asked):
            asked.append(own)
            return len(asked) == 7

        with pytest.raises(KeyboardInterrupt):
            measuring.train(
                models,
                measuring.on(measured()),
                checkpoint=Checkpoint(tmp_path / name, writes=writes),
                agreed=agreed,
                every_step=True,
            )
        assert models.t == 7
        assert asked == [False] * 7
        assert (tmp_path / name).is_file() == writes
    resumed = stack(CANDIDATES)
    same(
        measuring.train(resumed, measuring.on(measured()), checkpoint=Checkpoint(tmp_path / "first"), agreed=bool),
        measuring.train(stack(CANDIDATES), measuring.on(measured())),
    )


def test_a_second_signal_does_not_wait():
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            stop._ask()


# ---- The loop by itself --------------------------------------------------------------------------


class Counting(Trainable):
    """A sum of steps, marked every third one; over once `enough` of it is reached at a mark."""

    def __init__(self, total=10, enough=None):
        self.device, self.t, self.total, self.enough = torch.device("cpu"), 0, total, enough
        self.marks, self.marked, self.sum = range(3, total + 1, 3), [], torch.zeros((), dtype=torch.float64)

    @property
    def over(self):
        return self.t >= self.total or (
            self.enough is not None and bool(self.marked) and self.marked[-1] >= self.enough
        )

    def advance(self, steps):
        assert self.t + steps <= self.total
        for _ in range(steps):
            self.t += 1
            self.sum += self.t

    def mark(self, seconds):
        assert seconds >= 0
        self.marked.append(self.t)

    def state(self):
        return {"sum": self.sum}

    def notes(self):
        return {"t": self.t, "marked": self.marked}

    def restore(self, state, notes):
        self.sum.copy_(state["sum"])
        self.t, self.marked = notes["t"], notes["marked"]


def test_marks_are_met_and_the_last_step_is_one():
    training = Counting()
    assert train(training) >= 0
    assert training.marked == [3, 6, 9, 10]
    assert training.sum == 55


def test_a_training_may_be_over_early():
    training = Counting(enough=6)
    train(training)
    assert (training.t, training.marked) == (6, [3, 6])


def saved(path, name="run 1"):
    training = Counting()
    training.advance(4)
    Checkpoint(path, name).save(training, 2.5)


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    saved(tmp_path / "a")
    training, checkpoint = Counting(), Checkpoint(tmp_path / "a", "run 1")
    assert train(training, checkpoint=checkpoint) > 2.5  # seconds, also those before
    assert checkpoint.seconds == 2.5
    assert (training.sum, training.marked) == (55, [6, 9, 10])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def refused(path, match, name="run 1"):
    training = Counting()
    with pytest.raises(ValueError, match=match):
        train(training, checkpoint=Checkpoint(path, name))
    assert training.t == 0
    train(training, checkpoint=Checkpoint(path, name, or_anew=True))
    assert (training.sum, training.marked) == (55, [3, 6, 9, 10])


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, momentum=0.9), torch.optim.AdamW])
def test_an_optimizers_memory_comes_back_in_the_order_of_its_parameters(make, tmp_path):
    """torch's fused steps on a GPU refuse another."""

    def stepped():
        torch.manual_seed(0)
        net = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer = make(net.parameters())
        net(torch.randn(2, 3, 8, 8)).square().mean().backward()
        optimizer.step()
        return net, optimizer

    (net, first), (_, second) = stepped(), stepped()
    archive.write(tmp_path / "state", {}, optimizer_state(first))
    restore_optimizer(second, archive.read(tmp_path / "state")[1])
    kept = optimizer_state(second)
    for key, tensor in optimizer_state(first).items():
        assert torch.equal(kept[key], tensor)
        assert kept[key].stride() == tensor.stride()
    assert any(tensor.stride() == net.weight.stride() for tensor in kept.values())


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    saved(tmp_path / "a")
    refused(tmp_path / "a", "a cannot be continued .*belongs to 'run 1', not to 'run 2'.*remove it", "run 2")


def test_every_flipped_bit_of_a_checkpoint_is_noticed(tmp_path):
    saved(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    for at in range(0, len(content), 7):
        (tmp_path / "a").write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        refused(tmp_path / "a", "cannot be continued")


@pytest.mark.parametrize("kept", [0, 7, 8, 60, 200, -1])
def test_a_truncated_checkpoint_is_refused(tmp_path, kept):
    saved(tmp_path / "a")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:kept])
    refused(tmp_path / "a", "cannot be continued")


def test_a_foreign_file_is_no_checkpoint(tmp_path):
    torch.save({"name": "run 1"}, tmp_path / "a")
    refused(tmp_path / "a", "not a whole safetensors file")
    archive.write(tmp_path / "a", {"format": 1, "class": "ClosedFormRegressor"}, {})
    refused(tmp_path / "a", "not a checkpoint")


def test_a_training_without_a_state_has_no_checkpoints(tmp_path):
    class Plain(Counting):
        state, restore = Trainable.state, Trainable.restore

    train(Plain())
    with pytest.raises(TypeError, match="Plain keeps no checkpoints"):
        train(Plain(), checkpoint=Checkpoint(tmp_path / "a", every_s=0))


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_signals_are_left_alone_where_nothing_could_be_saved():
    class Interrupted(Counting):
        def advance(self, steps):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            super().advance(steps)

    training = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        train(training)
    assert training.t == 0
