"""Fitted estimators as one safetensors file: tensors, and a JSON text in its header. Nothing in it is executed on load."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..extras import require
from ..files import atomic
from ..solver import rules
from . import files_check

FORMAT = 1
DFIV, DFPV = "DFIVRegressor", "DFPVRegressor"
ARRAYS = ("coef_", "intercept_", "shares_", "input_mean_", "input_scale_", "target_mean_", "target_scale_")
NUMBERS = ("n_iter_", "n_features_in_", "loss_curve_", "validation_curve_", "temperature_", "_one_dimensional")
RULES = {kind.__name__: kind for kind in (rules.Ridge, rules.Proximal, rules.Ema, rules.Kalman)}


def save(estimator: Any, path: Path) -> Path:
    """Write `estimator` to `path`; a reader sees the old file or the new one."""
    require("saving an estimator", "sklearn", "safetensors")
    from safetensors.torch import save as packed
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    by_class = {DFIV: _described_dfiv, DFPV: _described_dfpv}
    head, tensors = by_class.get(type(estimator).__name__, described)(estimator)
    data = packed(tensors, metadata={"closedform": json.dumps(head, allow_nan=True)})
    with atomic(Path(path)) as file:
        file.write(data)
    return Path(path)


def described(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON part and the tensors of a fitted estimator."""
    tensors = {f"engine.{k}": v.detach().cpu().contiguous().clone() for k, v in estimator.engine_.state().items()}
    for name in ARRAYS:
        tensors[name] = torch.from_numpy(np.array(getattr(estimator, name), dtype=np.float64, ndmin=1))
    if estimator._missed is not None:
        tensors["missed"] = estimator._missed.clone()
    head: dict[str, Any] = {
        "format": FORMAT,
        "class": type(estimator).__name__,
        "parameters": {k: _plain(k, v) for k, v in estimator.get_params(deep=False).items()},
        "rows": estimator._rows_fitted,
        "attributes": {name: getattr(estimator, name) for name in NUMBERS if hasattr(estimator, name)},
    }
    if hasattr(estimator, "feature_names_in_"):
        head["feature_names"] = [str(name) for name in estimator.feature_names_in_]
    if hasattr(estimator, "classes_"):
        classes = estimator.classes_
        if classes.dtype.kind not in "biufUO" or any(not isinstance(c, _PLAIN) for c in classes.tolist()):
            raise ValueError(f"classes of type {classes.dtype} cannot be saved; numbers, booleans and texts can")
        head["classes"] = {"dtype": classes.dtype.str, "values": classes.tolist()}
    return head, tensors


_PLAIN = (str, int, float, bool)


def _described_dfiv(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from ..iv import files

    body, tensors = files.described(estimator)
    parameters = {k: _plain(k, v) for k, v in estimator.get_params(deep=False).items()}
    return {"format": files.FORMAT, "class": DFIV, "parameters": parameters, "attributes": body}, tensors


def _rebuilt_dfiv(head: dict[str, Any], parameters: dict[str, Any], tensors: dict[str, Tensor], backbone: Any) -> Any:
    from ..iv import files
    from ..iv.dfiv import DFIVRegressor

    if isinstance(parameters["n_features"], list):
        parameters["n_features"] = tuple(parameters["n_features"])
    return files.restore(DFIVRegressor(**parameters), head["attributes"], tensors, backbone)


def _described_dfpv(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    head, tensors = _described_dfiv(estimator.bridge_)
    arrays = {name: torch.from_numpy(value.copy()) for name, value in estimator.arrays().items()}
    own = {"bridge": estimator.bridge is not None, **estimator.plain()}
    return head | {"class": DFPV, "proxies": own}, tensors | arrays


def _rebuilt_dfpv(head: dict[str, Any], parameters: dict[str, Any], tensors: dict[str, Tensor], backbone: Any) -> Any:
    from sklearn.base import clone

    from ..iv.dfpv import DFPVRegressor

    bridge = _rebuilt_dfiv(head, parameters, tensors, backbone)
    own = dict(head["proxies"])
    given: Any = clone(bridge) if own.pop("bridge") else None
    arrays = {name: tensor.numpy() for name, tensor in tensors.items() if name in DFPVRegressor.ARRAYS}
    return DFPVRegressor(given).restored(bridge, arrays, own)


def _plain(name: str, value: Any) -> Any:
    """A parameter as JSON has it."""
    if name == "backbone":
        return None if value is None else type(value).__name__
    if name == "random_state" and not isinstance(value, (int, np.integer, type(None))):
        return None  # a generator; its draws are in the weights
    if isinstance(value, rules.Rule):
        known = dict(vars(value)) if type(value).__name__ in RULES else {}
        if not known or any(not isinstance(v, (*_PLAIN, type(None))) for v in known.values()):
            raise ValueError(f"the rule {value} cannot be saved: only {', '.join(RULES)} with plain numbers can")
        return {"rule": type(value).__name__, **known}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(name, v) for v in value]
    if not isinstance(value, (*_PLAIN, type(None))):
        raise ValueError(f"the parameter {name}={value!r} cannot be saved")
    return value


def load(path: str | Path, *, backbone: nn.Module | None = None) -> Any:
    """Read an estimator that `save` wrote. One with its own backbone needs a module of the same kind again, since a file of
    numbers cannot hold code."""
    require("loading an estimator", "sklearn", "safetensors")
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; expected a file that an estimator's save wrote")
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get("closedform")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except SafetensorError as bad:
        raise ValueError(f"{path} is not a whole safetensors file: {bad}") from None
    if text is None:
        raise ValueError(f"{path} holds tensors, but no closedform estimator")
    try:
        return rebuilt(json.loads(text), tensors, backbone)
    except ValueError as bad:
        raise ValueError(f"{path} holds no closedform estimator that this version knows: {bad}") from bad
    except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, RuntimeError) as bad:
        raise ValueError(f"{path} holds no closedform estimator that this version knows: {bad!r:.200}") from bad


def rebuilt(head: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None = None) -> Any:
    """The estimator of a JSON part and its tensors."""
    from ..iv import files
    from .classifier import ClosedFormClassifier
    from .regressor import ClosedFormRegressor

    read = files.READ if head.get("class") in (DFIV, DFPV) else (FORMAT,)
    if head["format"] not in read:
        raise ValueError(f"the file has format {head['format']}, and this version reads {' and '.join(map(str, read))}")
    kinds = {"ClosedFormRegressor": ClosedFormRegressor, "ClosedFormClassifier": ClosedFormClassifier}
    parameters = dict(head["parameters"])
    if parameters["backbone"] is not None and backbone is None:
        raise ValueError(f"the estimator has a backbone of class {parameters['backbone']}: load(path, backbone=...)")
    parameters["backbone"] = backbone
    if str(parameters.get("device")).startswith("cuda") and not torch.cuda.is_available():
        parameters["device"] = "auto"  # where it was trained is not where it is used
    if isinstance(parameters["hidden_layer_sizes"], list):
        parameters["hidden_layer_sizes"] = tuple(parameters["hidden_layer_sizes"])
    if head["class"] in (DFIV, DFPV):
        return (_rebuilt_dfiv if head["class"] == DFIV else _rebuilt_dfpv)(head, parameters, tensors, backbone)
    if isinstance(parameters["rule"], dict):
        kind = RULES[parameters["rule"]["rule"]]
        parameters["rule"] = kind(**{f.name: parameters["rule"][f.name] for f in fields(kind)})
    estimator = kinds[head["class"]](**parameters)
    estimator._check_parameters()
    files_check.everything(estimator, head, tensors)
    for name, value in head["attributes"].items():
        if name in NUMBERS:
            setattr(estimator, name, value)
    for name in ARRAYS:
        setattr(estimator, name, tensors[name].numpy())
    estimator._missed, estimator._rows_fitted = tensors.get("missed"), head["rows"]
    if "feature_names" in head:
        estimator.feature_names_in_ = np.array(head["feature_names"], dtype=object)
    if "classes" in head:
        estimator.classes_ = np.array(head["classes"]["values"], dtype=np.dtype(head["classes"]["dtype"]))
    example = np.zeros((2, len(estimator.input_mean_))) + estimator.input_mean_
    state = {k[len("engine.") :]: v for k, v in tensors.items() if k.startswith("engine.")}
    estimator.engine_ = estimator._engine(example, head["rows"], len(estimator.target_mean_), 0)
    for name, tensor in estimator.engine_.state().items():
        if name in state and state[name].dtype != tensor.dtype:
            raise ValueError(f"{name} must be of {tensor.dtype}, got {state[name].dtype}")
    estimator.engine_.restore(state)
    estimator._finish()
    if not estimator._features(example).isfinite().all():
        raise ValueError("its networks hold numbers that are not finite")
    return estimator
