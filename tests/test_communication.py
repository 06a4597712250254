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


def test_the_committed_measurements():
    check(json.loads((BENCHMARKS / "results" / "communication-cpu.json").read_text())["rows"])


@pytest.mark.slow
def test_a_fresh_measurement(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "communication.py"), "--quick", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    check(json.loads((tmp_path / "communication-cpu.json").read_text())["rows"])
