"""Whether the parts of a file agree with each other, before an estimator is built from them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor


def everything(estimator: Any, head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raise a ValueError that says what is wrong; `estimator` has its parameters and no more."""
    rows = head["rows"]
    if type(rows) is not int or not 0 < rows < 2**53:
        raise ValueError(f"rows must be a positive integer, got {rows!r}")
    inputs, outputs = len(tensors["input_mean_"]), len(tensors["target_mean_"])
    members = estimator._members(rows)
    _arrays(tensors, inputs, outputs, members)
    _attributes(head["attributes"], inputs)
    _names(head, inputs, outputs, classes=hasattr(estimator, "predict_proba"))
    given = sum(t.numel() for name, t in tensors.items() if name.startswith("engine."))
    sizes = [inputs, *estimator._hidden(rows)]
    if estimator.backbone is None and members * sum(a * b for a, b in pairwise(sizes)) > given:
        raise ValueError(f"{members} networks of the layers {sizes} have more weights than the file")


def _arrays(tensors: dict[str, Tensor], inputs: int, outputs: int, members: int) -> None:
    shapes = {"input_mean_": inputs, "input_scale_": inputs, "target_mean_": outputs, "target_scale_": outputs}
    for name, length in (shapes | {"shares_": members}).items():
        tensor = tensors[name]
        if tensor.shape != (length,) or tensor.dtype != torch.float64 or not tensor.isfinite().all():
            raise ValueError(
                f"{name} must be {length} finite numbers of float64, got {tuple(tensor.shape)} {tensor.dtype}"
            )
    if min(inputs, outputs) < 1 or min(float(tensors[name].min()) for name in ("input_scale_", "target_scale_")) <= 0:
        raise ValueError("a scale is not positive")
    if float(tensors["shares_"].min()) < 0:
        raise ValueError("a share is negative")
    if "missed" in tensors and tensors["missed"].shape != (members,):
        raise ValueError(f"missed must be {members} numbers")


def _attributes(attributes: dict[str, Any], inputs: int) -> None:
    if attributes["n_features_in_"] != inputs:
        raise ValueError(f"n_features_in_ is {attributes['n_features_in_']!r}, but there are {inputs} means of inputs")
    if type(attributes["n_iter_"]) is not int:
        raise ValueError(f"n_iter_ must be an integer, got {attributes['n_iter_']!r}")
    for name in ("loss_curve_", "validation_curve_"):
        curve = attributes.get(name, [])
        if not isinstance(curve, list) or not all(isinstance(value, (int, float)) for value in curve):
            raise ValueError(f"{name} must be a list of numbers")
    temperature = attributes.get("temperature_", 1.0)
    if not isinstance(temperature, (int, float)) or not 0 < temperature < float("inf"):
        raise ValueError(f"temperature_ must be a positive number, got {temperature!r}")
    if not isinstance(attributes.get("_one_dimensional", True), bool):
        raise ValueError("_one_dimensional must be true or false")


def _names(head: dict[str, Any], inputs: int, outputs: int, *, classes: bool) -> None:
    names = head.get("feature_names", [""] * inputs)
    if not isinstance(names, list) or len(names) != inputs or not all(isinstance(name, str) for name in names):
        raise ValueError(f"feature_names must be {inputs} texts")
    if not classes:
        if head["attributes"].get("_one_dimensional") is None:
            raise ValueError("_one_dimensional is missing")
        return
    kind, values = np.dtype(head["classes"]["dtype"]), head["classes"]["values"]
    plain = isinstance(values, list) and all(isinstance(value, (str, int, float, bool)) for value in values)
    if kind.kind not in "biufUO" or not plain or len(values) != outputs:
        raise ValueError(f"classes must be {outputs} numbers, booleans or texts")
    made = np.array(values, dtype=kind)
    if len(made) < 2 or not np.array_equal(np.unique(made), made):
        raise ValueError("classes must be different and in their order")
