"""Refits of a `DFIVRegressor` to rows drawn with replacement.

Copies of a row stay in one stage, or the stages would share rows. A replicate takes all that the fit has chosen (its design,
and its layers: those of training or the ridges), with other weights to start from. So intervals are of the estimator as
chosen; what another choice would have given is not in them. Draws that cannot be fitted are drawn again. Each is written to
the folder as soon as it is done, by whichever process, and is found there by the next call with the same rows and settings:
so the work may be stopped at any time.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from ..files import remove_stale
from ..tabular.settings import _is_count
from . import fitting
from .inputs import Rows, Ticker, checked, mark
from .members import Taken

if TYPE_CHECKING:
    from .dfiv import DFIVRegressor

DRAWS = 20  # of a replicate, before it is given up
FORMAT = 2  # of what a replicate is; those of another are not read


def bootstrap(
    estimator: DFIVRegressor, rows: Rows, replicates: int, folder: str | Path | None, n_jobs: int
) -> list[DFIVRegressor]:
    """`replicates` refits of a fitted estimator to the rows of its fit, in `n_jobs` processes."""
    if not _is_count(replicates):
        raise ValueError(f"replicates must be a positive integer, got {replicates!r}")
    if not _is_count(n_jobs):
        raise ValueError(f"n_jobs must be a positive integer, got {n_jobs!r}")
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return _run(estimator, rows, replicates, Path(temporary), n_jobs)
    if any(path.exists() and not path.is_dir() for path in (Path(folder), *Path(folder).parents)):
        raise ValueError(f"folder {folder} is a file, or lies in one: expected a folder for the replicates")
    Path(folder).mkdir(parents=True, exist_ok=True)
    remove_stale(Path(folder))
    return _run(estimator, rows, replicates, Path(folder), n_jobs)


def _run(estimator: DFIVRegressor, rows: Rows, replicates: int, folder: Path, n_jobs: int) -> list[DFIVRegressor]:
    import joblib

    name = digest(estimator, rows)
    paths = [folder / f"{name}-{k:04d}.safetensors" for k in range(replicates)]
    todo = [k for k, path in enumerate(paths) if _read(path, estimator) is None]
    slim = _without_replicates(estimator)
    tick = Ticker(len(todo), "replicate") if estimator.verbose and todo else None
    if n_jobs == 1:
        for k in todo:
            replicate(slim, rows, k, paths[k])
            if tick is not None:
                tick()
    elif todo:
        with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
            jobs = joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")(  # pyright: ignore[reportArgumentType]
                joblib.delayed(replicate)(slim, rows, k, paths[k]) for k in todo
            )
            for _ in jobs:  # pyright: ignore[reportGeneralTypeIssues,reportOptionalIterable]
                if tick is not None:
                    tick()
    if tick is not None:
        tick.close()
    found = [_read(path, estimator) for path in paths]
    assert all(model is not None for model in found)
    return found  # pyright: ignore[reportReturnType]


def _without_replicates(estimator: DFIVRegressor) -> DFIVRegressor:
    made: Any = clone(estimator)
    made.__dict__.update({name: value for name, value in vars(estimator).items() if name != "replicates_"})
    return made


def _read(path: Path, estimator: DFIVRegressor) -> DFIVRegressor | None:
    from ..tabular import files

    if not path.is_file():
        return None
    try:
        return files.load(path, backbone=estimator.backbone)
    except (ValueError, RuntimeError):  # damaged, or of another backbone: made again
        return None


def digest(estimator: DFIVRegressor, rows: Rows) -> str:
    """Names the settings, what was chosen and the rows."""
    design = "" if estimator._linear else repr((estimator.members_[0].design, _taken(estimator)))
    told = {k: repr(v) for k, v in estimator.get_params(deep=False).items() if k not in ("verbose", "backbone")}
    if isinstance(
        estimator.random_state, np.random.RandomState
    ):  # its repr is an address; the design has a seed from it
        told["random_state"] = "generator"
    made = hashlib.sha256(json.dumps([FORMAT, told, design, repr(estimator.backbone)], sort_keys=True).encode())
    if estimator.backbone is not None:
        for name, value in estimator.backbone.state_dict().items():
            made.update(name.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    made.update(mark(rows).encode())
    return made.hexdigest()[:20]


def _taken(estimator: DFIVRegressor) -> Taken:
    return [(member.first, member.ridge) for member in estimator.members_]


def replicate(estimator: DFIVRegressor, rows: Rows, k: int, path: Path) -> None:
    """Fit replicate k and write it. It depends on the fit, the rows and k alone, not on the process. A draw that cannot be
    fitted (in which an instrument does not vary, say) is drawn again; after `DRAWS` of them the last error is told."""
    rng = np.random.default_rng([int(digest(estimator, rows)[:8], 16), k])
    for attempt in range(1, DRAWS + 1):
        drawn = rng.integers(len(rows[0]), size=len(rows[0]))
        made: Any = clone(estimator)
        made.set_params(random_state=int(rng.integers(2**31 - 1)), verbose=False)
        X, y, Z, W = (None if part is None else part[drawn] for part in rows)
        try:
            fit = fitting.attributes(
                made,
                *checked(X, y, Z, W),
                names=estimator._names,
                columns=estimator._columns,
                groups=drawn,
                designs=None if estimator._linear else [estimator.members_[0].design],
                taken=None if estimator._linear else _taken(estimator),
            )
        except ValueError as bad:
            if attempt == DRAWS:
                raise ValueError(
                    f"replicate {k}: none of {DRAWS} draws of the rows could be fitted; the last: {bad}"
                ) from bad
            continue
        made.__dict__.update(fit, _drawn=drawn)
        made.save(path)
        return
