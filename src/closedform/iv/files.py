"""A fitted `DFIVRegressor` or `DFPVRegressor` as JSON and tensors, and back.

`closedform.estimator_files` writes and reads them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..estimator_files import described_parameters, rebuilt_parameters
from . import files_check
from .dfpv_summary import ProxySummary
from .fitting import WIDE
from .members import Design, Member
from .summary import Summary

if TYPE_CHECKING:
    from .dfiv import DFIVRegressor
    from .dfpv import DFPVRegressor

SCALES = ("_x", "_z", "_y", "_w")  # attributes that are a mean and a scale
LINEAR = ("coef_", "control_coef_", "covariance_", "std_error_", "_stage_one", "_moments")  # arrays of a linear fit
PLAIN = (
    "n_features_in_",
    "_controls",
    "_names",
    "_columns",
    "_instruments",
    "_own",
    "_rows",
)  # attributes in the header
SAMPLE = ("_sample.X", "_sample.W")  # rows that averages are over
DRAWN = "_drawn"  # which rows a replicate was fitted to
PROXIES = ("proxies_", "controls_")  # arrays that a `DFPVRegressor` has beside those of its bridge


def described(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON part and the tensors."""
    if type(estimator).__name__ == "DFIVRegressor":
        return _described_dfiv(estimator)
    return _described_dfpv(estimator)


def rebuilt(header: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None) -> Any:
    """The inverse of `described`."""
    return (_rebuilt_dfiv if header["class"] == "DFIVRegressor" else _rebuilt_dfpv)(header, tensors, backbone)


# ---- DFIVRegressor -------------------------------------------------------------------------------


def _described_dfiv(estimator: DFIVRegressor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors: dict[str, Tensor] = {}
    for name in SCALES:
        if hasattr(estimator, name):
            mean, scale = getattr(estimator, name)
            tensors |= {f"{name}.mean": torch.from_numpy(mean), f"{name}.scale": torch.from_numpy(scale)}
    for name in LINEAR:
        if hasattr(estimator, name):
            tensors[name] = torch.from_numpy(np.array(getattr(estimator, name), dtype=np.float64))
    if hasattr(estimator, DRAWN):
        tensors[DRAWN] = torch.from_numpy(getattr(estimator, DRAWN))
    if hasattr(estimator, "_sample") and estimator.n_features_in_ <= WIDE:  # images would be most of the file
        sample = zip(SAMPLE, estimator._sample)
        tensors |= {name: torch.from_numpy(np.array(part)) for name, part in sample if part is not None}
    attributes: dict[str, Any] = {name: getattr(estimator, name) for name in PLAIN}
    attributes["summary_"] = asdict(estimator.summary_)
    if estimator._linear:
        attributes["intercept_"] = estimator.intercept_
    else:
        attributes["members"] = [
            {"design": asdict(member.design), "ridge": member.ridge, "first": member.first}
            for member in estimator.members_
        ]
        for k, member in enumerate(estimator.members_):
            tensors |= {f"{k}.{name}": value for name, value in member.tensors().items()}
        for k, covariance in enumerate(getattr(estimator, "_covariances", [])):
            tensors[f"{k}.covariance"] = covariance
    return {"parameters": described_parameters(estimator), "attributes": attributes}, tensors


def _rebuilt_dfiv(header: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None) -> DFIVRegressor:
    from .dfiv import DFIVRegressor

    estimator = DFIVRegressor(**rebuilt_parameters(header["parameters"], backbone))
    estimator._check_parameters()
    attributes = header["attributes"]
    files_check.attributes(attributes, tensors)
    for name in PLAIN:
        setattr(estimator, name, attributes[name])
    estimator.summary_ = Summary.of(attributes["summary_"])
    if DRAWN in tensors:
        estimator._drawn = tensors[DRAWN].numpy()
    if SAMPLE[0] in tensors:
        X, controls = tensors[SAMPLE[0]], tensors.get(SAMPLE[1])
        estimator._sample = X.numpy(), None if controls is None else controls.numpy()
    for name in SCALES:
        if f"{name}.mean" in tensors:
            setattr(estimator, name, (tensors[f"{name}.mean"].numpy(), tensors[f"{name}.scale"].numpy()))
    for name in LINEAR:
        if name in tensors:
            setattr(estimator, name, tensors[name].numpy())
    if estimator._linear:
        estimator.intercept_ = attributes["intercept_"]
    else:
        estimator.members_ = [
            _rebuilt_member(k, entry, attributes, tensors, backbone) for k, entry in enumerate(attributes["members"])
        ]
        if "0.covariance" in tensors:
            estimator._covariances = [tensors[f"{k}.covariance"] for k in range(len(estimator.members_))]
    _try_once(estimator)
    return estimator


def _rebuilt_member(
    k: int, entry: dict[str, Any], attributes: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None
) -> Member:
    plain = entry["design"]
    design = Design(**plain | {name: tuple(plain[name]) for name in ("hidden", "widths")})
    own = {name[len(f"{k}.") :]: tensor for name, tensor in tensors.items() if name.startswith(f"{k}.")}
    files_check.member(design, entry, attributes, own)
    return Member.rebuilt(design, own, entry["ridge"], entry["first"], backbone)


def _try_once(estimator: DFIVRegressor) -> None:
    """A file that cannot predict is refused here and not when it is used."""
    X = np.zeros((1, estimator.n_features_in_))
    controls = np.zeros((1, estimator._controls)) if estimator._controls else None
    Z = np.zeros((1, estimator._instruments))
    predictions = estimator._predicted(X, controls), estimator._given_instruments(X, np.zeros(1), Z, controls)
    if not all(values.shape == (1,) and np.isfinite(values).all() for values in predictions):
        raise ValueError("its predictions are not finite")
    str(estimator.summary_)


# ---- DFPVRegressor -------------------------------------------------------------------------------


def _described_dfpv(estimator: DFPVRegressor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    body, tensors = _described_dfiv(estimator.bridge_)
    for name in PROXIES:
        if getattr(estimator, name) is not None:
            tensors[name] = torch.from_numpy(np.array(getattr(estimator, name)))
    own = {
        "bridge_is_default": estimator.bridge is None,
        "summary_": asdict(estimator.summary_),
        "n_features_in_": estimator.n_features_in_,
        "_columns": estimator._columns,
    }
    return body | {"proxies": own}, tensors


def _rebuilt_dfpv(header: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None) -> DFPVRegressor:
    from sklearn.base import clone

    from .dfpv import DFPVRegressor

    own = header["proxies"]
    arrays = {name: tensor for name, tensor in tensors.items() if name in PROXIES}
    bridge = _rebuilt_dfiv(header, {k: v for k, v in tensors.items() if k not in PROXIES}, backbone)
    files_check.proxies(own, arrays, header["attributes"])
    parameter: Any = None if own["bridge_is_default"] else clone(bridge)
    estimator = DFPVRegressor(parameter)
    estimator.bridge_, estimator.summary_ = bridge, ProxySummary.of(own["summary_"])
    estimator.n_features_in_, estimator._columns = own["n_features_in_"], own["_columns"]
    estimator.proxies_ = arrays["proxies_"].numpy()
    estimator.controls_ = arrays["controls_"].numpy() if "controls_" in arrays else None
    if not np.isfinite(estimator.predict(np.zeros((1, estimator.n_features_in_)))).all():
        raise ValueError("its predictions are not finite")
    str(estimator.summary_)
    return estimator
