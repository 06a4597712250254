"""What every benchmark shares: interleaved timing, CUDA graph capture, a description of the machine, tables and JSON."""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

import closedform
from closedform.files import atomic

RESULTS = Path(__file__).parent / "results"


def arguments(description: str, **flags: str) -> argparse.Namespace:
    """What every benchmark takes, and `flags` of its own with their help."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a few cells and repetitions only")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    for name, text in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    return parser.parse_args()


def environment(device: str) -> dict:
    """The machine, so that a number in a table can be understood later."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {
        "device": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device == "cuda" else None,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "closedform": closedform.__version__,
    }


def interleaved(
    sides: dict[str, Callable[[], object]], device: str, seconds: float, least: int = 5, warm: int = 3
) -> dict[str, dict]:
    """Milliseconds a call of each side: after `warm` calls, sides in turn; median and quartiles.

    On a GPU a turn is a burst of calls that takes some milliseconds, waited for at its end: calls follow each other as they
    do in training, where nobody waits for a single one.
    """
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def burst(side: Callable[[], object], calls: int) -> float:
        synchronize()
        before = time.perf_counter()
        for _ in range(calls):
            side()
        synchronize()
        return 1e3 * (time.perf_counter() - before) / calls

    calls = {}
    for name, side in sides.items():
        burst(side, warm)
        calls[name] = 1 if device == "cpu" else max(1, min(50, int(10 / burst(side, 1))))
    times: dict[str, list[float]] = {name: [] for name in sides}
    start = time.perf_counter()
    while min(map(len, times.values())) < least or time.perf_counter() - start < seconds:
        for name, side in sides.items():
            times[name].append(burst(side, calls[name]))
    return {name: summary(values) for name, values in times.items()}


def summary(values: list[float]) -> dict:
    low, median, high = statistics.quantiles(values, n=4)
    return {"median_ms": median, "low_ms": low, "high_ms": high, "turns": len(values)}


def captured(function: Callable[[], object], warm: int = 3) -> Callable[[], object]:
    """The function as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def save(args: argparse.Namespace, name: str, question: str, rows: list[dict]) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{name}-{args.device}.json"
    body = {"question": question, "environment": environment(args.device), "rows": rows}
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(f"wrote {path}")


CODE = [f"tabular/{name}.py" for name in ("base", "loop", "networks", "scaling", "settings", "conformal", "shrinking")]
CODE += [
    "tabular/link.py",
    "tabular/neighbours.py",
    "tabular/noise.py",
    "tabular/regressor.py",
    "tabular/classifier.py",
    "stack/periodic.py",
]


def code(sources: Iterable[Path], *more: object) -> str:
    """Names what some files do, and whatever else the rows depend on: comments and docstrings do not count."""
    digest = hashlib.sha256(repr(more).encode() if more else b"")
    for source in sources:
        tree = ast.parse(source.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
                node.body[0] = ast.Pass()
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


def code_of_tables() -> str:
    """Names what the estimators for tables do; their pages and files do not count."""
    return code(Path(closedform.__file__).parent / name for name in CODE)


class Kept:
    """Rows of results in a JSON file, written whole after each, so that a run that was stopped goes on where it was.

    Rows that other code of the estimators made are done again: a table has one version of them."""

    def __init__(self, path: Path, question: str, key: tuple[str, ...]):
        self.path, self.question, self.key = path, question, key
        self.code = code_of_tables()
        self.rows: list[dict] = []
        if path.is_file():
            body = json.loads(path.read_text())
            self.rows = body["rows"] if body.get("code") == self.code else []

    def get(self, *key: object) -> dict | None:
        return next((row for row in self.rows if tuple(row[k] for k in self.key) == key), None)

    def add(self, row: dict) -> None:
        self.rows.append(row)
        body = {"question": self.question, "environment": environment("cpu"), "code": self.code, "rows": self.rows}
        text = json.dumps(body, separators=(",", ":")).replace(f'{{"{self.key[0]}"', f'\n{{"{self.key[0]}"')
        with atomic(self.path) as file:
            file.write(text.encode() + b"\n")
