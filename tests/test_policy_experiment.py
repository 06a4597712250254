"""Logged transitions, the page about policies, and its example."""

import json
from pathlib import Path

import numpy as np
import pytest

from closedform.paper.data.policy import ACTIONS, TASKS, episode, logged, probabilities, truth
from closedform.paper.experiments import policy

from .scripts import example, load

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", TASKS)
def test_logs_are_chains_of_transitions(name):
    pytest.importorskip("bsuite")
    log = logged(TASKS[name], 0.2, 400, seed=0)
    same = log.episode[1:] == log.episode[:-1]
    assert np.array_equal(log.next_states[:-1][same], log.states[1:][same])
    assert np.array_equal(log.done[:-1], ~same)
    assert log.next_actions.shape == (400, ACTIONS)
    assert np.allclose(log.next_actions.sum(1), 1)
    assert len(log.starts) == len(np.unique(log.episode))
    assert np.array_equal(log.starts[0], log.states[0])
    again = logged(TASKS[name], 0.2, 400, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(log, again))


@pytest.mark.parametrize(("name", "noise"), [("catch", 0.0), ("catch", 0.5), ("cartpole", 0.5)])
def test_the_truth_is_the_mean_return_of_the_evaluated_policy(name, noise):
    pytest.importorskip("bsuite")
    task = TASKS[name]
    rng, environment = np.random.default_rng(0), task.start(0)
    returns = []
    for _ in range(400 if name == "catch" else 40):
        rewards = [step[2] for step in episode(task, environment, 0.9, noise, rng)]
        returns.append(sum(0.9**t * r for t, r in enumerate(rewards)))
    value, error = truth(task, noise, 0.9, 40)
    assert abs(value - np.mean(returns)) < 4 * np.hypot(error, np.std(returns) / len(returns) ** 0.5)
    assert (error == 0) == (name == "catch")
    assert probabilities(1, 0.7) == pytest.approx([0.1, 0.8, 0.1])


def test_the_page_has_the_committed_results():
    rows = json.loads((ROOT / "benchmarks" / "results" / "policy-cpu.json").read_text())["rows"]
    page = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    assert policy.table(policy.complete(rows)) in page
    tables = load("benchmarks/tables.py")
    for name in ("policy_averages", "policy_aims", "policy_intervals"):
        assert getattr(tables, name)() in page


def test_methods_are_compared_on_the_seeds_that_all_have():
    cell = {"task": "catch", "noise": 0.0}
    rows = [{**cell, "method": "iv", "seed": k} for k in range(3)] + [{**cell, "method": "lstd", "seed": 1}]
    assert [(row["method"], row["seed"]) for row in policy.on_shared_seeds(rows, ["iv", "lstd"])] == [
        ("iv", 1),
        ("lstd", 1),
    ]
    assert {row["method"] for row in policy.complete(rows)} == {"iv"}


def test_the_example(capsys):
    values = example("policy").main(quick=True)
    for method in ("iv", "lstd", "fqe"):
        assert abs(values[method] / values["truth"] - 1) < 0.1
    assert "90 % interval" in capsys.readouterr().out
