"""Whether the parts of a file agree with each other, before an estimator is built from them and anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from ..estimator_files import check_names, check_tensor
from .dfpv_summary import ProxySummary
from .members import SIEVES, Design
from .networks import sieve_width
from .summary import Summary

TABLES = ("X", "Z", "W")  # whose columns a fit remembers by name
PROXY_TABLES = ("A", "Z", "W", "C")


def attributes(plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raise a ValueError that says what is wrong with the attributes of a `DFIVRegressor`; members are checked apart."""
    p, q, m = (plain[name] for name in ("n_features_in_", "_controls", "_instruments"))
    for name, least in (("n_features_in_", 1), ("_controls", 0), ("_instruments", 1)):
        if type(plain[name]) is not int or plain[name] < least:
            raise ValueError(f"{name} must be a whole number from {least} on, got {plain[name]!r:.80}")
    own = plain["_own"]
    if not isinstance(own, list) or not own or not all(type(k) is int and 0 <= k < m for k in own):
        raise ValueError(f"_own must be places of the {m} instruments, got {own!r:.80}")
    if not _are_texts(plain["_names"], p):
        raise ValueError(f"_names must be {p} texts, got {plain['_names']!r:.80}")
    _columns(plain["_columns"], dict(zip(TABLES, (p, m, q))))
    rows = plain["_rows"]
    if not isinstance(rows, list) or [type(part) for part in rows] != [int, str] or rows[0] < 1:
        raise ValueError(f"_rows must be a number of rows and their digest, got {rows!r:.80}")
    fields_of(Summary, plain["summary_"])
    linear = plain["summary_"]["kind"] == "linear"
    if linear == ("members" in plain):
        raise ValueError("a linear fit has no members, and a deep one has some")
    shapes = _linear_shapes(p, q, len(own)) if linear else _scale_shapes(p, q, len(own))
    for name, shape in shapes.items():
        check_tensor(tensors, name, shape, torch.float64)
        if name.endswith(".scale") and not bool((tensors[name] > 0).all()):
            raise ValueError(f"{name} must be positive")
    expected = set(shapes)
    if linear:
        if "_moments" in tensors and p == 1:  # of one instrument, or of several weak ones
            excluded, rest = plain["summary_"]["degrees"]
            if min(excluded, rest) < 1:
                raise ValueError(f"degrees of a line must be positive, got {excluded} and {rest}")
            check_tensor(tensors, "_moments", (excluded, 2 + 3 * excluded), torch.float64)
            expected.add("_moments")
        if type(plain["intercept_"]) is not float or not math.isfinite(plain["intercept_"]):
            raise ValueError(f"intercept_ must be a finite number, got {plain['intercept_']!r:.80}")
    else:
        count = len(plain["members"]) if isinstance(plain["members"], list) else 0
        if not count:
            raise ValueError(f"members must be a list of some, got {plain['members']!r:.80}")
        prefixes = {f"{k}" for k in range(count)}
        expected |= {name for name in tensors if name.partition(".")[0] in prefixes}
    if "_sample.X" in tensors:
        expected |= _sample(p, q, tensors)
    if "_drawn" in tensors:
        drawn = tensors["_drawn"]
        if drawn.dtype != torch.int64 or tuple(drawn.shape) != (rows[0],) or not _within(drawn, rows[0]):
            raise ValueError(f"_drawn must be {rows[0]} places of rows")
        expected.add("_drawn")
    check_names(tensors, expected)


def _sample(p: int, q: int, tensors: dict[str, Tensor]) -> set[str]:
    """The names of the rows that averages are over, checked."""
    widths = {"_sample.X": p} | ({"_sample.W": q} if q else {})
    for name, width in widths.items():
        check_tensor(tensors, name, (len(tensors["_sample.X"]), width), torch.float64)
    if not len(tensors["_sample.X"]):
        raise ValueError("_sample.X has no rows; expected some to average over")
    return set(widths)


def _linear_shapes(p: int, q: int, m: int) -> dict[str, tuple[int, ...]]:
    total = p + q + 1
    return {
        "coef_": (p,),
        "control_coef_": (q,),
        "covariance_": (total, total),
        "std_error_": (p,),
        "_stage_one": (m + q + 1, p),
    }


def _scale_shapes(p: int, q: int, m: int) -> dict[str, tuple[int, ...]]:
    widths = {"_x": p, "_z": m + q, "_y": 1} | ({"_w": q} if q else {})
    return {f"{name}.{part}": (width,) for name, width in widths.items() for part in ("mean", "scale")}


def member(design: Design, entry: dict[str, Any], plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raise a ValueError that says what is wrong with a member; `plain` are the attributes of its estimator."""
    fields_of(Design, entry["design"])
    p, q, m = plain["n_features_in_"], plain["_controls"], len(plain["_own"])
    if (design.inputs, design.instruments, design.controls) != (p, m + q, q):
        raise ValueError(f"a member takes other columns than the fit had: {design!r:.200}")
    if design.treatment not in ("linear", *SIEVES, "deep", "backbone"):
        raise ValueError(f"the treatment of a member is {design.treatment!r:.80}")
    if min(design.hidden + design.widths, default=0) < 1 or not 0 <= design.seed < 2**63:
        raise ValueError(f"the layers of a member are {design.hidden} and {design.widths}; expected positive sizes")
    for name in ("ridge", "first"):
        if not isinstance(entry[name], (int, float)) or not 0 <= entry[name] < math.inf:
            raise ValueError(f"{name} must be a number from 0 on, got {entry[name]!r:.80}")
    _network_sizes(design, tensors)
    for name, tensor in tensors.items():
        constant = name.startswith(("layers.", "online.")) and name.endswith(".scale")  # infinite for a constant column
        if bool(tensor.isnan().any()) or (not constant and not bool(tensor.isfinite().all())):
            raise ValueError(f"{name} of a member holds NaN or infinity; expected finite numbers")
        if not tensor.is_floating_point() and not name.startswith("psi."):  # a backbone may count its batches
            raise ValueError(f"{name} of a member has type {tensor.dtype}; expected floating-point numbers")
    if tensors["losses"].ndim != 1 or not len(tensors["losses"]):
        raise ValueError("losses of a member must be a list of numbers")
    for name in ("layers", "online"):
        _layer_shapes(name, design, tensors)
    if "covariance" in tensors:
        check_tensor(tensors, "covariance", 2 * (tensors["layers.w"].shape[1],), torch.float64)


def _network_sizes(design: Design, tensors: dict[str, Tensor]) -> None:
    """The networks that the header asks for must be in the file: nothing larger than the file is allocated."""
    d, k, q = design.widths
    networks = {"phi": [design.instruments, *design.hidden, k]}
    if design.treatment == "deep":
        networks["psi"] = [design.inputs, *design.hidden, d]
    if design.controls:
        networks["xi"] = [design.controls, *design.hidden, q]
    for name, sizes in networks.items():
        stored = sum(tensor.numel() for key, tensor in tensors.items() if key.startswith(f"{name}."))
        needed = sum((a + 1) * b for a, b in pairwise(sizes))
        if stored != needed:
            raise ValueError(f"{name} of a member has {stored} weights; layers of {sizes} need {needed}")


def _layer_shapes(name: str, design: Design, tensors: dict[str, Tensor]) -> None:
    """The shapes of a pair of layers: features of treatment, instruments and controls, and the products of the first and
    the last."""
    k = (sieve_width(design.instruments, design.bumps) if design.sieve else design.instruments) + design.widths[1]
    q = design.controls + design.widths[2] if design.controls else 0
    kind = "sieve" if design.sieve else design.treatment
    d = {
        "linear": design.inputs,
        "sieve": sieve_width(design.inputs, design.bumps),
        "deep": design.inputs + design.widths[0],
    }.get(kind, len(tensors[f"{name}.b"]))
    shapes = {"W": (d, k), "b": (d,), "w": (1, d + q + d * q), "c": (1,)}
    widths = {"psi": d, "phi": k} | ({"xi": q} if q else {})
    shapes |= {f"{net}.{part}": (width,) for net, width in widths.items() for part in ("mean", "scale")}
    for part, shape in shapes.items():
        tensor = tensors.get(f"{name}.{part}")
        if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != torch.float64:
            raise ValueError(f"{name}.{part} of a member must be {shape} numbers of float64")
        if part.endswith(".scale") and not bool((tensor > 0).all()):
            raise ValueError(f"{name}.{part} of a member must be positive")


def proxies(own: dict[str, Any], arrays: dict[str, Tensor], plain: dict[str, Any]) -> None:
    """Raise a ValueError that says what is wrong with what a `DFPVRegressor` has beside its bridge, whose attributes are
    `plain`."""
    p = own["n_features_in_"]
    if type(p) is not int or not 1 <= p <= plain["_controls"]:
        raise ValueError(f"n_features_in_ must be a number of treatments, got {p!r:.80}")
    rows, extra = plain["_rows"][0], plain["_controls"] - p
    shapes = {"proxies_": (rows, plain["n_features_in_"])} | ({"controls_": (rows, extra)} if extra else {})
    check_names(arrays, set(shapes))
    for name, shape in shapes.items():
        check_tensor(arrays, name, shape, torch.float64)
    if type(own["bridge_is_default"]) is not bool:
        raise ValueError("bridge_is_default must be true or false")
    _columns(own["_columns"], dict(zip(PROXY_TABLES, (p, plain["_instruments"], plain["n_features_in_"], extra))))
    fields_of(ProxySummary, own["summary_"])


# ---- Texts and numbers ---------------------------------------------------------------------------


def _are_texts(values: Any, count: int) -> bool:
    return isinstance(values, list) and len(values) == count and all(isinstance(value, str) for value in values)


def _columns(columns: Any, widths: dict[str, int]) -> None:
    """Names of columns by table, None for a table without names; an estimator that was fitted to arrays may have none."""
    for name, names in columns.items():
        if name not in widths or not (names is None or _are_texts(names, widths[name])):
            raise ValueError(f"_columns has {names!r:.80} for {name!r:.20}; expected the names of its columns")


def _within(places: Tensor, count: int) -> bool:
    return not len(places) or (int(places.min()) >= 0 and int(places.max()) < count)


def fields_of(kind: Any, plain: Any) -> None:
    """Raise a ValueError unless `plain` is what `dataclasses.asdict` makes of an instance of `kind`."""
    hints = get_type_hints(kind)
    if not isinstance(plain, dict) or set(plain) != set(hints):
        raise ValueError(f"a {kind.__name__} must have the fields {', '.join(hints)}")
    for name, hint in hints.items():
        if not _fits(plain[name], hint):
            raise ValueError(f"{name} of a {kind.__name__} is {plain[name]!r:.80}; expected {hint}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value that came from JSON, where tuples are lists and a float may be whole, is of a type.

    >>> _fits([1, 2.5], list[float]), _fits(None, float | None), _fits([1], tuple[int, int]), _fits(True, int)
    (True, True, False, False)
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, UnionType):
        return any(_fits(value, part) for part in arguments)
    if origin is list:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(_fits(v, arguments[0]) for v in value)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return False
        if arguments[-1] is Ellipsis:
            return all(_fits(v, arguments[0]) for v in value)
        return len(value) == len(arguments) and all(map(_fits, value, arguments))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is NoneType:
        return value is None
    if hint is Summary:
        fields_of(Summary, value)
        return True
    return type(value) is hint
