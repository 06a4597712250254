"""Refits of a `DFIVRegressor` to rows drawn with replacement.

Copies of a row stay in one stage, or the stages would share rows. A replicate keeps what the fit has chosen (its design, and
its layers: those of training or the ridges) and starts from other weights. So the intervals say nothing about what another
choice would have given. A draw that cannot be fitted is drawn again. Each replicate is written to the folder as soon as it
is done, and the next call with the same rows and settings reads it there: the work may be stopped at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from .. import estimator_files
from ..files import remove_stale
from ..parameters import is_count
from ..workers import end_with
from . import fitting
from .choice import Ridges
from .inputs import Observations, Ticker, checked, mark

if TYPE_CHECKING:
    from .dfiv import DFIVRegressor

DRAWS = 20  # of a replicate, before it is given up
FORMAT = 2  # of what a replicate is; those of another are not read


def bootstrap(
    estimator: DFIVRegressor, rows: Observations, replicates: int, folder: str | Path | None, n_jobs: int
) -> list[DFIVRegressor]:
    """`replicates` refits of a fitted estimator to the rows of its fit, in `n_jobs` processes."""
    if not is_count(replicates):
        raise ValueError(f"replicates must be a positive integer, got {replicates!r}")
    if not is_count(n_jobs):
        raise ValueError(f"n_jobs must be a positive integer, got {n_jobs!r}")
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return _run(estimator, rows, replicates, Path(temporary), n_jobs)
    if any(path.exists() and not path.is_dir() for path in (Path(folder), *Path(folder).parents)):
        raise ValueError(f"folder {folder} is a file, or lies in one: expected a folder for the replicates")
    Path(folder).mkdir(parents=True, exist_ok=True)
    remove_stale(Path(folder))
    return _run(estimator, rows, replicates, Path(folder), n_jobs)


def _run(
    estimator: DFIVRegressor, rows: Observations, replicates: int, folder: Path, n_jobs: int
) -> list[DFIVRegressor]:
    import joblib

    name = digest(estimator, rows)
    paths = [folder / f"{name}-{k:04d}.safetensors" for k in range(replicates)]
    missing = [k for k, path in enumerate(paths) if _read(path, estimator) is None]
    fit = _without_replicates(estimator)
    tick = Ticker(len(missing), "replicate") if estimator.verbose and missing else None
    if n_jobs == 1:
        for k in missing:
            replicate(fit, rows, k, paths[k])
            if tick is not None:
                tick()
    elif missing:
        with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
            jobs = joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")(  # pyright: ignore[reportArgumentType]
                joblib.delayed(_work)(os.getpid(), fit, rows, k, paths[k]) for k in missing
            )
            for _ in jobs:  # pyright: ignore[reportGeneralTypeIssues,reportOptionalIterable]
                if tick is not None:
                    tick()
    if tick is not None:
        tick.close()
    refits = [_read(path, estimator) for path in paths]
    assert all(refit is not None for refit in refits)
    return refits  # pyright: ignore[reportReturnType]


def _work(parent: int, estimator: DFIVRegressor, rows: Observations, k: int, path: Path) -> None:
    """What a worker process does."""
    end_with(parent)
    replicate(estimator, rows, k, path)


def _without_replicates(estimator: DFIVRegressor) -> DFIVRegressor:
    copy: Any = clone(estimator)
    copy.__dict__.update({name: value for name, value in vars(estimator).items() if name != "replicates_"})
    return copy


def _read(path: Path, estimator: DFIVRegressor) -> DFIVRegressor | None:
    if not path.is_file():
        return None
    try:
        return estimator_files.load(path, backbone=estimator.backbone)
    except ValueError:  # damaged, or of another backbone: it is fitted again
        return None


def digest(estimator: DFIVRegressor, rows: Observations) -> str:
    """Names the settings, what was chosen and the rows."""
    design = "" if estimator._linear else repr((estimator.members_[0].design, _ridges(estimator)))
    settings = {k: repr(v) for k, v in estimator.get_params(deep=False).items() if k not in ("verbose", "backbone")}
    if isinstance(estimator.random_state, np.random.RandomState):
        settings["random_state"] = "generator"  # its repr is an address; the design has a seed from it
    name = hashlib.sha256(json.dumps([FORMAT, settings, design, repr(estimator.backbone)], sort_keys=True).encode())
    if estimator.backbone is not None:
        for key, value in estimator.backbone.state_dict().items():
            name.update(key.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    name.update(mark(rows).encode())
    return name.hexdigest()[:20]


def _ridges(estimator: DFIVRegressor) -> Ridges:
    return [(member.first, member.ridge) for member in estimator.members_]


def replicate(estimator: DFIVRegressor, rows: Observations, k: int, path: Path) -> None:
    """Fit replicate k and write it. It depends on the fit, the rows and k alone, not on the process. A draw that cannot be
    fitted (in which an instrument does not vary, say) is drawn again; after `DRAWS` of them the last error is raised."""
    rng = np.random.default_rng([int(digest(estimator, rows)[:8], 16), k])
    for attempt in range(1, DRAWS + 1):
        drawn = rng.integers(len(rows.X), size=len(rows.X))
        refit: Any = clone(estimator)
        refit.set_params(random_state=int(rng.integers(2**31 - 1)), verbose=False)
        X, y, Z, controls = (None if part is None else part[drawn] for part in rows)
        try:
            attributes = fitting.attributes(
                refit,
                checked(X, y, Z, controls),
                names=estimator._names,
                columns=estimator._columns,
                groups=drawn,
                as_line=estimator._linear,
                designs=None if estimator._linear else [estimator.members_[0].design],
                ridges=None if estimator._linear else _ridges(estimator),
            )
        except ValueError as bad:
            if attempt == DRAWS:
                raise ValueError(
                    f"replicate {k}: none of {DRAWS} draws of the rows could be fitted; the last: {bad}"
                ) from bad
            continue
        refit.__dict__.update(attributes, _drawn=drawn)
        refit.save(path, rows=False)
        return
