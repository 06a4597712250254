"""A fitted estimator of tables as JSON and tensors, and back; `closedform.estimator_files` writes and reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..estimator_files import described_parameters, rebuilt_parameters
from . import files_check
from .columns import Preparation
from .link import Link
from .neighbours import Neighbours

ARRAYS = ("shares_", "input_centre_", "input_scale_", "wavy_", "line_", "target_mean_", "target_scale_")
ATTRIBUTES = (
    "n_iter_",
    "n_features_in_",
    "loss_curve_",
    "validation_curve_",
    "linear_share_",
    "link_",
    "_one_dimensional",
)


def described(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON part and the tensors. The last layer in the units of the targets is not among them: it follows from these."""
    tensors = {f"engine.{name}": tensor for name, tensor in estimator.engine_.state().items()}
    for name in ARRAYS:
        tensors[name] = torch.from_numpy(np.array(getattr(estimator, name), dtype=np.float64, ndmin=1))
    if estimator.distances_ is not None:
        tensors["distances"] = torch.from_numpy(np.ascontiguousarray(estimator.distances_))
    if estimator._missed is not None:
        tensors["missed"] = estimator._missed
    near: Neighbours | None = estimator.neighbours_
    if near is not None:
        arrays = {name: torch.from_numpy(getattr(near, name)) for name in files_check.NEIGHBOURS}
        tensors |= {f"neighbours.{name}": tensor for name, tensor in arrays.items()}
    body: dict[str, Any] = {
        "parameters": described_parameters(estimator),
        "rows": estimator._rows_fitted,
        "attributes": {name: getattr(estimator, name) for name in ATTRIBUTES if hasattr(estimator, name)},
    }
    if near is not None:
        body["neighbours"] = {name: getattr(near, name) for name in files_check.NEIGHBOUR_NUMBERS}
    if hasattr(estimator, "feature_names_in_"):
        body["feature_names"] = [str(name) for name in estimator.feature_names_in_]
    if hasattr(estimator, "preparation_"):
        body["preparation"] = estimator.preparation_.to_json()
    if hasattr(estimator, "classes_"):
        body["classes"] = _described_classes(estimator.classes_)
    return body, tensors


def _described_classes(classes: np.ndarray) -> dict[str, Any]:
    values = classes.tolist()
    if classes.dtype.kind not in files_check.CLASS_KINDS or any(not isinstance(c, files_check.LABELS) for c in values):
        raise ValueError(f"classes of type {classes.dtype} cannot be saved; numbers, booleans and texts can")
    # texts as long as the longest of them, whatever room their array had for others
    dtype = np.array(values).dtype if classes.dtype.kind == "U" else classes.dtype
    return {"dtype": dtype.str, "values": values}


def rebuilt(header: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None) -> Any:
    """The inverse of `described`."""
    from .classifier import ClosedFormClassifier
    from .regressor import ClosedFormRegressor

    kind = ClosedFormRegressor if header["class"] == "ClosedFormRegressor" else ClosedFormClassifier
    estimator: Any = kind(**rebuilt_parameters(header["parameters"], backbone))
    estimator._check_parameters()
    preparation = Preparation.from_json(header["preparation"]) if "preparation" in header else None
    files_check.everything(estimator, header, tensors, preparation)
    if preparation is not None:
        estimator.preparation_ = preparation
    for name in ATTRIBUTES:
        if name in header["attributes"]:
            value = header["attributes"][name]
            setattr(estimator, name, Link(*value) if name == "link_" else value)
    for name in ARRAYS:
        setattr(estimator, name, tensors[name].numpy())
    estimator.wavy_ = estimator.wavy_ > 0
    distances = tensors.get("distances")
    estimator.distances_ = None if distances is None else distances.numpy()
    estimator._missed, estimator._rows_fitted = tensors.get("missed"), header["rows"]
    estimator.neighbours_ = None
    if "neighbours" in header:
        arrays = {name: tensors[f"neighbours.{name}"].numpy() for name in files_check.NEIGHBOURS}
        estimator.neighbours_ = Neighbours(**arrays, **header["neighbours"])
    if "feature_names" in header:
        estimator.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    if "classes" in header:
        estimator.classes_ = np.array(header["classes"]["values"], dtype=np.dtype(header["classes"]["dtype"]))
    _restore_engine(estimator, {k[len("engine.") :]: v for k, v in tensors.items() if k.startswith("engine.")})
    estimator._finish()
    estimator._fitted_parameters = estimator.get_params(deep=False)
    return estimator


def _restore_engine(estimator: Any, state: dict[str, Tensor]) -> None:
    example = np.zeros((2, len(estimator.input_centre_))) + estimator.input_centre_
    engine = estimator._engine(example, estimator._rows_fitted, len(estimator.target_mean_), 0)
    for name, tensor in engine.state().items():
        if name in state and state[name].dtype != tensor.dtype:
            raise ValueError(f"{name} must be of {tensor.dtype}, got {state[name].dtype}")
    engine.restore(state)
    for name, tensor in engine.weights().items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} of its networks holds NaN or infinity; expected finite numbers")
    estimator.engine_ = engine
    if not bool(estimator._features(example).isfinite().all()):
        raise ValueError("its networks give features that are not finite")
