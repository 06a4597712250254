"""What a solve over several processes sends is what the formula says, and the fewer of the two."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def check(rows):
    assert {row["rule"]["numbers"] == row["rows"]["numbers"] for row in rows} == {True, False}  # both sides of the rule
    for row in rows:
        n, d, o = row["n"], row["d"], row["outputs"]
        D = d + 1
        assert row["rows"]["numbers"] == n * (d + o)
        assert row["moments"]["numbers"] == D * (D + o) + o + 1
        assert row["rule"]["numbers"] == min(row["rows"]["numbers"], row["moments"]["numbers"])
        # each of two processes sends half of the rows, or one sum's worth of moments: 8 bytes a number, and some headers
        for exchange, share in (("rows", 0.5), ("moments", 1.0)):
            sent = row[exchange]["wire_bytes"]
            if sent is not None:
                payload = 8 * share * row[exchange]["numbers"]
                assert payload <= sent < 1.1 * payload + 4096, (row, exchange)


def check_steps(rows):
    """The filter's memory, D x D in float64, is what the exchange of buffers adds; a solve adds its rows or moments."""
    assert {row["rule"] for row in rows} == {"learned", "proximal", "kalman"}
    learned = {}
    for row in rows:
        cell, D = (row["n"], row["d"], row["outputs"]), row["d"] + 1
        if row["synced"] is None:
            continue
        memory = 8 * D**2 / 2 if row["rule"] == "kalman" else 0  # from the first process to the other
        assert memory <= row["synced"] - row["unsynced"] + 512 <= 1.05 * memory + 2048, row
        if row["rule"] == "learned":
            learned[cell] = row["unsynced"] - 4 * row["d"] * row["outputs"]  # without the gradient of the layer
            continue
        n, d, o = cell
        payload = 8 * (n * (d + o) / 2 if n <= D else D * (D + o) + o + 1)
        assert payload <= row["unsynced"] - learned[cell] < 1.1 * payload + 4096, row


def rows(folder, name):
    return json.loads((folder / f"{name}-cpu.json").read_text())["rows"]


def test_the_committed_measurements():
    check(rows(BENCHMARKS / "results", "communication"))
    check_steps(rows(BENCHMARKS / "results", "communication_step"))


@pytest.mark.slow
def test_a_fresh_measurement(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "communication.py"), "--quick", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    check(rows(tmp_path, "communication"))
    check_steps(rows(tmp_path, "communication_step"))
