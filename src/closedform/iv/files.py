"""A fitted `DFIVRegressor` as JSON and tensors, and back; `closedform.tabular.files` writes and reads them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .members import Design, Member
from .summary import Summary

if TYPE_CHECKING:
    from .dfiv import DFIVRegressor

FORMAT = 2  # 1 had neither the ridge of stage one nor the mark of the rows
READ = (1, 2)
SCALES = ("_x", "_z", "_y", "_w")
LINEAR = ("coef_", "control_coef_", "covariance_", "std_error_", "_stage_one")
PLAIN = ("n_features_in_", "_controls", "_names", "_columns", "_instruments", "_own", "_rows")


def described(estimator: DFIVRegressor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The attributes as JSON and as tensors."""
    tensors: dict[str, Tensor] = {}
    for name in SCALES:
        if hasattr(estimator, name):
            mean, scale = getattr(estimator, name)
            tensors |= {f"{name}.mean": torch.from_numpy(mean.copy()), f"{name}.scale": torch.from_numpy(scale.copy())}
    for name in LINEAR:
        if hasattr(estimator, name):
            tensors[name] = torch.from_numpy(np.array(getattr(estimator, name), dtype=np.float64))
    if hasattr(estimator, "_drawn"):
        tensors["_drawn"] = torch.from_numpy(estimator._drawn.copy())
    body: dict[str, Any] = {name: getattr(estimator, name) for name in PLAIN if hasattr(estimator, name)}
    body["summary_"] = estimator.summary_.plain()
    if estimator._linear:
        return body | {"intercept_": estimator.intercept_}, tensors
    body["members"] = [{"design": asdict(m.design), "ridge": m.ridge, "first": m.first} for m in estimator.members_]
    for k, member in enumerate(estimator.members_):
        tensors |= {f"{k}.{name}": value for name, value in member.tensors().items()}
    return body, tensors


def restore(
    estimator: DFIVRegressor, body: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None
) -> DFIVRegressor:
    """The inverse of `described`; files of format 1 are read as well."""
    for name in PLAIN if "_rows" in body else PLAIN[:-2]:  # a file of format 1
        setattr(estimator, name, body[name])
    if "_drawn" in tensors:
        estimator._drawn = tensors["_drawn"].numpy()
    estimator.summary_ = Summary.of(body["summary_"])
    for name in SCALES:
        if f"{name}.mean" in tensors:
            setattr(estimator, name, (tensors[f"{name}.mean"].numpy(), tensors[f"{name}.scale"].numpy()))
    for name in LINEAR:
        if name in tensors:
            setattr(estimator, name, tensors[name].numpy())
    if "intercept_" in body:
        estimator.intercept_ = body["intercept_"]
        return estimator
    estimator.members_ = []
    for k, told in enumerate(body["members"]):
        plain = told["design"]
        design = Design(**plain | {name: tuple(plain[name]) for name in ("hidden", "widths")})
        own = {name[len(f"{k}.") :]: value for name, value in tensors.items() if name.startswith(f"{k}.")}
        member = Member.rebuilt(design, own, told["ridge"], told.get("first"), backbone)
        for net in (member.psi, member.phi, member.xi):
            if net is not None:
                net.eval().requires_grad_(False)
        estimator.members_.append(member)
    return estimator
