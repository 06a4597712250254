"""Fitted estimators as files: `save` and `load` for those of `closedform.tabular` and of `closedform.iv`.

Each room knows how its own estimators become JSON and tensors, in a module `files` with `described(estimator)` and
`rebuilt(header, tensors, backbone)`. Here is what they share: parameters, checks, the format, and the room of each class.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import archive, parameters
from .extras import require

FORMAT = 1
ROOMS = {  # imported when a file of theirs is read, so that neither room needs the other
    "ClosedFormRegressor": "closedform.tabular.files",
    "ClosedFormClassifier": "closedform.tabular.files",
    "DFIVRegressor": "closedform.iv.files",
    "DFPVRegressor": "closedform.iv.files",
}
FOLDERS = "closedform.tabular.folder"  # likewise


def save(estimator: Any, path: str | Path) -> Path:
    """Write a fitted estimator to `path`; a reader sees the old file or the new one."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    return archive.write(Path(path), *described(estimator))


def described(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a fitted estimator."""
    name = type(estimator).__name__
    body, tensors = import_module(ROOMS[name]).described(estimator)
    return {"format": FORMAT, "class": name, **body}, tensors


def load(path: str | Path, *, backbone: nn.Module | None = None) -> Any:
    """Read an estimator that its `save` wrote, or that of a folder that `closedform train` wrote. One with a backbone of
    your own needs a module of the same kind again, since a file of numbers cannot hold code."""
    require("loading an estimator", "sklearn", "sklearn")
    path = Path(path)
    if path.is_dir():
        return import_module(FOLDERS).load(path).estimator
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there; expected a file that an estimator's save wrote, or a folder of closedform train"
        )
    header, tensors = archive.read(path)
    try:
        return rebuilt(header, tensors, backbone)
    except ValueError as bad:
        raise ValueError(f"{path} holds no closedform estimator that this version knows: {bad}") from bad
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, RuntimeError) as bad:
        raise ValueError(f"{path} holds no closedform estimator that this version knows: {bad!r:.200}") from bad


def rebuilt(header: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None = None) -> Any:
    """The estimator of a header and its tensors."""
    if header.get("format") != FORMAT:
        raise ValueError(f"the file has format {header.get('format')!r}, and this version reads {FORMAT}")
    if header.get("class") not in list(ROOMS):
        raise ValueError(f"the class is {header.get('class')!r:.80}; expected one of {', '.join(ROOMS)}")
    return import_module(ROOMS[header["class"]]).rebuilt(header, tensors, backbone)


# ---- Parameters ----------------------------------------------------------------------------------


def described_parameters(estimator: Any) -> dict[str, Any]:
    """The parameters that an estimator was fitted with, as JSON has them; `set_params` may have changed them since."""
    values = getattr(estimator, "_fitted_parameters", None) or estimator.get_params(deep=False)
    return {k: parameters.to_json(k, v) for k, v in values.items()}


def rebuilt_parameters(plain: dict[str, Any], backbone: nn.Module | None) -> dict[str, Any]:
    """The inverse of `described_parameters`, with the backbone that the reader has given."""
    values = {name: parameters.from_json(value) for name, value in plain.items()}
    if values["backbone"] is not None and backbone is None:
        raise ValueError(f"the estimator has a backbone of class {values['backbone']}: load(path, backbone=...)")
    values["backbone"] = backbone
    state = values.get("random_state")
    if state is not None and (type(state) is not int or not 0 <= state < 2**32):
        raise ValueError(f"random_state must be a whole number from 0 to 2**32 - 1 or None, got {state!r:.80}")
    if str(values.get("device")).startswith("cuda") and not torch.cuda.is_available():
        values["device"] = "auto"  # a model of a GPU is of use without one
    return values


def check_names(tensors: dict[str, Tensor], expected: set[str]) -> None:
    """Raise a ValueError unless the file has these tensors and no others."""
    missing, unknown = expected - set(tensors), set(tensors) - expected
    if missing or unknown:
        name = min(missing or unknown)
        raise ValueError(f"the tensor {name!r:.80} is {'missing' if missing else 'not one that this version knows'}")


def check_tensor(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise a ValueError unless the tensor is there, of this shape and type, and finite."""
    tensor = tensors.get(name)
    if tensor is None:
        raise ValueError(f"the tensor {name!r} is missing")
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)} and type {tensor.dtype}; expected {shape} and {dtype}"
        )
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinity; expected finite numbers")
