"""A grid of independent runs that can be stopped at any time and goes on where it was.

    def train(config):                       # at the top level of a module, so that other processes can import it
        ...
        return [{"epoch": 1, "test": 0.3}, {"epoch": 2, "test": 0.2}]

    configs = grid.product(method=["ridge", "kalman"], lr=[0.1, 0.01], seed=range(5))
    table = grid.run(train, configs, "results/qm9", jobs=8)

Every configuration has one parquet file, named by its hash and written by an atomic rename; that file *is* the record that
it is finished. So any process may be killed at any time: what has a file is not run again, what has none is. A folder
belongs to one function; when the function changes its meaning, give another `version`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import secrets
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from ...extras import require
from ...files import atomic, remove_stale
from ...workers import end_with

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Value = Union[str, int, float, bool, None]
Config = Mapping[str, Value]
Function = Callable[[dict[str, Value]], "pd.DataFrame | list[dict]"]
Progress = Callable[[int, int, dict[str, Value]], object]
Ended = Generator[tuple[str, Union[str, None]], None, None]

_CONFIG, _CHECKSUM = b"closedform.config", b"closedform.sha256"
DAMAGED = ".damaged"  # what the name of a result ends in that was set aside


class Attempt(NamedTuple):
    """What a run gave: the bytes of a parquet file, or a traceback. Neither needs the function's module to be read."""

    content: bytes | None = None
    error: str | None = None


class SweepError(RuntimeError):
    """Some configurations failed; `failures` has them with their tracebacks. The others are finished and saved."""

    def __init__(self, message: str, failures: list[tuple[dict[str, Value], str]]):
        super().__init__(message)
        self.failures = failures


def product(**values: Iterable[Value]) -> list[dict[str, Value]]:
    """Every combination, the last name changing fastest.

    >>> product(lr=[0.1, 0.01], seed=range(2))
    [{'lr': 0.1, 'seed': 0}, {'lr': 0.1, 'seed': 1}, {'lr': 0.01, 'seed': 0}, {'lr': 0.01, 'seed': 1}]
    """
    return [dict(zip(values, chosen)) for chosen in itertools.product(*values.values())]


def digest(config: Config, version: str = "") -> str:
    """32 hexadecimal digits that name a configuration on every machine, whatever the order of its keys.

    >>> digest({"lr": 0.1, "seed": 1}) == digest({"seed": 1, "lr": 0.1})
    True
    >>> digest({"lr": 0.1}) == digest({"lr": 0.1}, version="2")
    False
    """
    return hashlib.sha256(_canonical(config, version).encode()).hexdigest()[:32]


def run(
    function: Function,
    configs: Iterable[Config],
    folder: str | Path,
    *,
    jobs: int = 1,
    dask: str | None = None,
    progress: Progress | None = None,
    version: str = "",
) -> pd.DataFrame:
    """Run the configurations that are not finished, and return the rows of all of them, in the order of `configs`.

    `function` takes a configuration, a flat dict of strings, numbers, booleans and None, and returns tidy rows; the
    configuration's own entries stand before them as columns. A configuration given twice counts once.

    `jobs` processes run on this machine, each with one thread (`jobs=1`: this process, with the threads it has).
    `dask="tcp://host:8786"` runs on that cluster instead. There the rows come back to this process, which alone writes
    them: the workers need not share a disk with it, and one that dies takes no file along. Dask gives the tasks of a dead
    worker to the others.

    `progress(done, total, config)` is called as each configuration ends; `done` counts those of earlier runs too.

    A configuration whose function raises does not stop the others. Its traceback is written to `<hash>.error.txt`, and at
    the end a `SweepError` names it; the next run tries it again. After Ctrl-C what is finished stays.
    """
    require("a sweep", "experiments", "pandas", "pyarrow")
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; expected 1 or more")
    if dask is not None and jobs != 1:
        raise ValueError(f"jobs is {jobs} and dask is {dask!r}; expected one of the two")
    folder = Path(folder)
    wanted = {digest(config, version): dict(config) for config in configs}
    folder.mkdir(parents=True, exist_ok=True)
    remove_stale(folder)
    todo = {key: config for key, config in wanted.items() if _read(folder, key, config, version) is None}
    for key in todo:
        _set_aside(_result_file(folder, key))
    if not todo:
        return finished(wanted.values(), folder, version=version)
    done = len(wanted) - len(todo)
    errors: dict[str, str] = {}
    ended = _on_dask(function, todo, folder, version, dask) if dask else _here(function, todo, folder, version, jobs)
    with closing(ended):  # so that an exception, Ctrl-C first of all, also ends the workers
        for key, error in ended:
            done += 1
            if error is None:
                _error_file(folder, key).unlink(missing_ok=True)
            else:
                errors[key] = error
                with atomic(_error_file(folder, key)) as file:
                    file.write(f"{json.dumps(todo[key])}\n\n{error}".encode())
            if progress is not None:
                progress(done, len(wanted), todo[key])
    if errors:
        failures = [(config, errors[key]) for key, config in todo.items() if key in errors]
        config, error = failures[0]
        raise SweepError(
            f"{len(failures)} of {len(wanted)} configurations failed, the first {config}: {error.strip().splitlines()[-1]} "
            f"(tracebacks are in {folder}/*.error.txt; the others are saved, and another run tries only the failed ones)",
            failures,
        )
    return finished(wanted.values(), folder, version=version)


def finished(configs: Iterable[Config], folder: str | Path, *, version: str = "") -> pd.DataFrame:
    """The rows of those configurations that are finished, in the order of `configs`; the others are left out."""
    require("a sweep", "experiments", "pandas", "pyarrow")
    import pandas as pd

    wanted = {digest(config, version): dict(config) for config in configs}
    tables = [_read(Path(folder), key, config, version) for key, config in wanted.items()]
    frames = [table.to_pandas() for table in tables if table is not None]
    names = [*(name for config in wanted.values() for name in config), *(name for frame in frames for name in frame)]
    columns = list(dict.fromkeys(names))
    if not frames:
        return pd.DataFrame(columns=columns)
    # a column without values has no type of its own, and must not change the type that the other tables have for it
    return pd.concat([frame.dropna(axis=1, how="all") for frame in frames], ignore_index=True).reindex(columns=columns)


def configurations(folder: str | Path, *, version: str = "") -> list[dict[str, Value]]:
    """All configurations that have a result in the folder."""
    require("a sweep", "experiments", "pandas", "pyarrow")
    import pyarrow.parquet as pq

    configs = []
    for path in sorted(Path(folder).glob("*.parquet")):
        try:
            written, config = json.loads((pq.read_schema(path).metadata or {})[_CONFIG])
            ours = written == version and path.stem == digest(config, version)
        except Exception:  # damaged, or somebody else's: a reader of Parquet raises a dozen kinds
            continue
        configs += [config] if ours else []
    return configs


def _canonical(config: Config, version: str) -> str:
    """One text for one configuration. JSON writes floats by `repr`, which is exact, and 1, 1.0 and true differ in it."""
    for name, value in config.items():
        plain = value is None or isinstance(value, (str, int, float))
        if not isinstance(name, str) or not plain or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(
                f"the configuration has {name!r}: {value!r} ({type(value).__name__}); "
                "expected a name and a string, finite number, boolean or None"
            )
    return json.dumps([version, dict(config)], sort_keys=True, separators=(",", ":"))


def _result_file(folder: Path, key: str) -> Path:
    return folder / f"{key}.parquet"


def _error_file(folder: Path, key: str) -> Path:
    return folder / f"{key}.error.txt"


def _read(folder: Path, key: str, config: Config, version: str) -> pa.Table | None:
    """The result of a configuration, or None if it has none that can be read and is what was written."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(_result_file(folder, key), page_checksum_verification=True) as file:
            table = file.read()
        metadata = table.schema.metadata or {}
        # a result from before there were checksums has neither this entry nor one that a flipped bit has made of it
        known = _CHECKSUM not in metadata and set(metadata) <= {_CONFIG, b"pandas"}
        whole = known or metadata[_CHECKSUM] == _checksum(table)
    except Exception:  # not there, or damaged: readers of Parquet raise a dozen kinds
        return None
    return table if whole and metadata.get(_CONFIG) == _canonical(config, version).encode() else None


def _checksum(table: pa.Table) -> bytes:
    """SHA-256 over names, types, values and the rest of the metadata: Parquet's own checksums leave out the names."""
    metadata = sorted((k, v) for k, v in (table.schema.metadata or {}).items() if k != _CHECKSUM)
    kinds = [
        str(kind).replace("item:", "element:") for kind in table.schema.types
    ]  # Parquet renames the items of lists
    hashed = hashlib.sha256(repr((metadata, table.schema.names, kinds)).encode())
    for column in table.columns:
        hashed.update(repr(column.to_pylist()).encode("utf-8", "surrogatepass"))
    return hashed.hexdigest().encode()


def _set_aside(path: Path) -> None:
    """Rename what stands in the place of a result and is none, and say so."""
    if path.is_file():
        path.replace(path.with_name(path.name + DAMAGED))
        warnings.warn(f"{path} is damaged; it was set aside as *{DAMAGED}, and its run is made again", stacklevel=3)


def _attempt(function: Function, config: dict[str, Value], version: str) -> Attempt:
    try:
        return Attempt(content=_encode(function(dict(config)), config, version))
    except Exception:
        return Attempt(error=traceback.format_exc())


def _encode(rows: pd.DataFrame | list[dict], config: dict[str, Value], version: str) -> bytes:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not isinstance(rows, (pd.DataFrame, list)):
        raise TypeError(f"the function returned a {type(rows).__name__}; expected a DataFrame or a list of dicts")
    frame = pd.DataFrame(rows).reset_index(drop=True)
    if twice := [name for name in config if name in frame.columns]:
        raise ValueError(f"the rows have a column {twice[0]!r}, which the configuration has too")
    constant = pd.DataFrame({name: [value] * len(frame) for name, value in config.items()})
    table = pa.Table.from_pandas(pd.concat([constant, frame], axis=1), preserve_index=False)
    metadata = {**(table.schema.metadata or {}), _CONFIG: _canonical(config, version).encode()}
    table = table.replace_schema_metadata(metadata)
    table = table.replace_schema_metadata({**metadata, _CHECKSUM: _checksum(table)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def _attempt_and_write(
    function: Function, config: dict[str, Value], version: str, folder: Path, key: str, parent: int
) -> tuple[str, str | None]:
    """What a process on this machine does: it writes its own result, which is then safe even if the parent dies. It then
    ends too."""
    end_with(parent)
    content, error = _attempt(function, config, version)
    if content is not None:
        _write(folder, key, content)
    return key, error


def _write(folder: Path, key: str, content: bytes) -> None:
    with atomic(_result_file(folder, key)) as file:
        file.write(content)


def _here(function: Function, configs: dict[str, dict[str, Value]], folder: Path, version: str, jobs: int) -> Ended:
    """Hashes and errors as configurations end, run in this process or in `jobs` others."""
    if jobs == 1:
        for key, config in configs.items():
            yield _attempt_and_write(function, config, version, folder, key, os.getpid())
        return
    require("a sweep with several jobs", "experiments", "joblib")
    import joblib

    Parallel: Any = joblib.Parallel  # whose types know neither a number as batch size nor a generator as result
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        # one task a batch: a batch reports its tasks only when the last has ended
        parallel = Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
        tasks = (
            joblib.delayed(_attempt_and_write)(function, config, version, folder, key, os.getpid())
            for key, config in configs.items()
        )
        results = parallel(tasks)
    try:
        for result in results:  # noqa: UP028 - `yield from` would close it before the finally below
            yield result
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process was killed, perhaps for lack of memory; finished runs are saved, and another run continues "
            "with the rest"
        ) from error
    finally:
        with warnings.catch_warnings():  # joblib warns of tasks that are dropped, which is what stopping early means
            warnings.simplefilter("ignore", UserWarning)
            results.close()


def _on_dask(
    function: Function, configs: dict[str, dict[str, Value]], folder: Path, version: str, address: str
) -> Ended:
    """Hashes and errors as configurations end on a Dask cluster."""
    require("a sweep on Dask", "dask", "distributed")
    from distributed import Client, as_completed

    with Client(address, set_as_default=False) as client:
        mark = secrets.token_hex(8)  # of this run: Dask would answer a known name with the result of another function
        futures = {
            client.submit(_attempt, function, config, version, key=f"closedform-{key}-{mark}", pure=False): key
            for key, config in configs.items()
        }
        try:
            for future, result in as_completed(futures, loop=client.loop, with_results=True, raise_errors=False):
                # the result decides: the future's status changes again when the worker that has the result dies
                if isinstance(result, tuple) and not isinstance(result, Attempt):
                    kind, exception, _ = result  # Dask's own: the task killed its workers, or they cannot import it
                    result = Attempt(error=f"{kind.__name__}: {exception}")
                if not isinstance(result, Attempt):
                    raise RuntimeError(
                        f"the Dask scheduler at {address} is gone ({result!r}); "
                        "finished runs are saved, and another run continues with the rest"
                    )
                if result.content is not None:
                    _write(folder, futures[future], result.content)
                future.release()
                yield futures[future], result.error
        finally:
            client.cancel(list(futures))
