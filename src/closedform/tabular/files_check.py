"""Whether the parts of a file agree with each other, before an estimator is built from them and anything is allocated."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..estimator_files import check_tensor
from ..solver.rules import Kalman
from ..stack.periodic import MIXED
from .columns import Preparation
from .neighbours import LEAST_FLOOR, LEAST_WEIGHT, NUMBERS, POWERS

MOST_ROWS = 2**40  # of a fit; more would take years to read
CLASS_KINDS = "biufUO"  # of numpy's types: booleans, numbers and texts
LABELS = (str, int, float, bool)
NEIGHBOURS = {  # tensors, and below them numbers of the header
    "rows": torch.float32,
    "residuals": torch.float32,
    "weights": torch.float64,
    "scale": torch.float64,
    "share": torch.float64,
    "left": torch.float64,
}
NEIGHBOUR_NUMBERS = ("power", "floor")


def everything(
    estimator: Any, header: dict[str, Any], tensors: dict[str, Tensor], preparation: Preparation | None
) -> None:
    """Raise a ValueError that says what is wrong; `estimator` has its parameters and no more."""
    rows = header["rows"]
    if type(rows) is not int or not 0 < rows <= MOST_ROWS:
        raise ValueError(f"rows must be a whole number from 1 to 2**40, got {rows!r:.80}")
    inputs, outputs = (
        len(tensors[name]) if tensors[name].ndim == 1 else 0 for name in ("input_centre_", "target_mean_")
    )
    members = estimator._members(rows)
    classifies = hasattr(estimator, "predict_proba")
    _arrays(tensors, inputs, outputs, members, "neighbours" in header)
    _distances(tensors.get("distances"), 1 if classifies else outputs)
    if "neighbours" in header:
        _neighbours(header["neighbours"], tensors, inputs, outputs)
    if preparation is not None and preparation.width != inputs:
        raise ValueError(f"its columns become {preparation.width} inputs, but the model has {inputs}")
    columns = inputs if preparation is None else len(preparation.columns)
    _attributes(header["attributes"], columns)
    names = header.get("feature_names", [""] * columns)
    if not isinstance(names, list) or len(names) != columns or not all(isinstance(name, str) for name in names):
        raise ValueError(f"feature_names must be {columns} texts")
    if classifies:
        _classes(header["classes"], outputs)
    elif not isinstance(header["attributes"].get("_one_dimensional"), bool):
        raise ValueError("_one_dimensional must be true or false")
    _sizes(estimator, rows, inputs, outputs, members, tensors)


def _sizes(estimator: Any, rows: int, inputs: int, outputs: int, members: int, tensors: dict[str, Tensor]) -> None:
    """The networks that the header asks for must be in the file: nothing larger than the file is allocated."""
    stored = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("engine."))
    if estimator.backbone is not None:
        return  # the reader's own module; its state is compared with the file's
    sizes = [inputs, *estimator._hidden(rows, outputs)]
    width, columns = sizes[-1] + inputs + 1, len(estimator._wave_columns(tensors["wavy_"].numpy()))
    needed = sum((a + 1) * b for a, b in pairwise(sizes)) + width * outputs
    needed += columns * (estimator._waves(columns) * (2 + MIXED) + MIXED * sizes[1])
    if estimator.rule == "kalman" or isinstance(estimator.rule, Kalman):
        needed += width * width
    if members * needed > stored:
        raise ValueError(f"{members} networks with layers of {sizes} and {outputs} outputs are larger than the file")


def _arrays(tensors: dict[str, Tensor], inputs: int, outputs: int, members: int, neighbours: bool) -> None:
    lengths = {
        "input_centre_": inputs,
        "input_scale_": inputs,
        "wavy_": inputs,
        "target_mean_": outputs,
        "target_scale_": outputs,
    }
    for name, length in (lengths | {"shares_": members}).items():
        check_tensor(tensors, name, (length,), torch.float64)
    check_tensor(tensors, "line_", (3, inputs), torch.float64)
    if min(inputs, outputs) < 1:
        raise ValueError("there are no inputs or targets")
    scales = (tensors["input_scale_"], tensors["target_scale_"], tensors["line_"][1])
    if min(float(scale.min()) for scale in scales) <= 0:
        raise ValueError("a scale is not positive")
    if float(tensors["line_"][2].min()) < 0:
        raise ValueError("a column's reach is negative")
    if not bool(((tensors["wavy_"] == 0) | (tensors["wavy_"] == 1)).all()):
        raise ValueError("wavy_ must be 0 or 1 for every input")
    if float(tensors["shares_"].min()) < 0:
        raise ValueError("a share is negative")
    missed = tensors.get("missed")
    if missed is not None and (
        missed.shape != (members,) or missed.dtype != torch.float64 or bool(missed.isnan().any())
    ):
        raise ValueError(f"missed must be {members} numbers of float64")
    known = {*lengths, "line_", "shares_", "missed", "distances"}
    known |= {f"neighbours.{name}" for name in NEIGHBOURS if neighbours}
    for name in tensors:
        if not name.startswith("engine.") and name not in known:
            raise ValueError(f"the tensor {name!r:.80} is not one that this version knows")


def _distances(distances: Tensor | None, count: int) -> None:
    """Those of `conformal.table`, for so many outputs; a classifier has one for all its classes."""
    if distances is None:
        return
    shaped = distances.shape[1:] == (count, 2) and distances.dtype == torch.float64
    if not shaped or not len(distances) or not bool((distances.isfinite() & (distances >= 0)).all()):
        raise ValueError(f"distances must be finite numbers of float64 from 0 on, of shape (rows, {count}, 2)")
    if bool((distances.diff(dim=0) < 0).any()):
        raise ValueError("distances must be in their order")


def _neighbours(numbers: Any, tensors: dict[str, Tensor], inputs: int, outputs: int) -> None:
    if not isinstance(numbers, dict) or set(numbers) != set(NEIGHBOUR_NUMBERS):
        raise ValueError(f"neighbours must be {', '.join(NEIGHBOUR_NUMBERS)}, got {numbers!r:.80}")
    power, floor = numbers["power"], numbers["floor"]
    if power not in POWERS or type(floor) is not float or not LEAST_FLOOR <= floor < math.inf:
        raise ValueError(f"neighbours must have a power of 2 or 4 and a positive floor, got {numbers!r:.80}")
    rows = tensors.get("neighbours.weights", torch.zeros(0)).numel()
    if not 0 < rows * (inputs + outputs) <= NUMBERS:
        raise ValueError(f"neighbours must be some rows, of at most {NUMBERS:,} numbers, got {rows:,} rows")
    shapes = {"rows": (rows, inputs), "residuals": (rows, outputs), "weights": (rows,), "scale": (inputs,)}
    shapes |= {"share": (outputs,), "left": (outputs,)}
    for name, dtype in NEIGHBOURS.items():
        check_tensor(tensors, f"neighbours.{name}", shapes[name], dtype)
    least = {"weights": LEAST_WEIGHT, "scale": 0.0, "share": 0.0, "left": 0.0}
    for name, low in least.items():
        values = tensors[f"neighbours.{name}"]
        if float(values.min()) < low or (name in ("share", "left") and float(values.max()) > 1):
            raise ValueError(f"{name} of neighbours is out of its range, which begins at {low:g}")


def _attributes(attributes: dict[str, Any], columns: int) -> None:
    if attributes["n_features_in_"] != columns:
        raise ValueError(f"n_features_in_ is {attributes['n_features_in_']!r}, but the model has {columns} columns")
    if type(attributes["n_iter_"]) is not int:
        raise ValueError(f"n_iter_ must be an integer, got {attributes['n_iter_']!r}")
    for name in ("loss_curve_", "validation_curve_"):
        curve = attributes.get(name, [])
        if not isinstance(curve, list) or not all(isinstance(value, (int, float)) for value in curve):
            raise ValueError(f"{name} must be a list of numbers")
    share = attributes.get("linear_share_", 0.0)
    if not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ValueError(f"linear_share_ must be a number from 0 to 1, got {share!r:.80}")
    link = attributes.get("link_", [1.0, 1.0, 0.0])
    numbers = isinstance(link, list) and len(link) == 3 and all(type(value) in (int, float) for value in link)
    if not numbers or not (0 < link[0] < math.inf and 0 < link[1] < math.inf and 0 <= link[2] < math.inf):
        raise ValueError(f"link_ must be two positive numbers and one that is not negative, got {link!r:.80}")


def _classes(classes: dict[str, Any], outputs: int) -> None:
    kind, values = np.dtype(classes["dtype"]), classes["values"]
    plain = isinstance(values, list) and all(isinstance(value, LABELS) for value in values)
    if kind.kind not in CLASS_KINDS or not plain or len(values) != outputs:
        raise ValueError(f"classes must be {outputs} numbers, booleans or texts")
    if kind.kind == "U" and kind != np.array(values).dtype:  # a type of long texts takes memory for each of them
        raise ValueError(
            f"classes have the type {kind}; expected {np.array(values).dtype}, as long as the longest text"
        )
    labels = np.array(values, dtype=kind)
    if len(labels) < 2 or not np.array_equal(np.unique(labels), labels):
        raise ValueError("classes must be different and in their order")
