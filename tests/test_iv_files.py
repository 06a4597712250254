"""Files of `DFIVRegressor` and `DFPVRegressor` whose parts do not agree are refused when they are read."""

import copy
import functools

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

from closedform import archive, estimator_files
from closedform.iv import DFIVRegressor, DFPVRegressor, load, members

from .iv_cases import SMALL, design

NAN = float("nan")


@functools.cache
def saved(kind):
    """The header and the tensors of a fit."""
    X, y, Z, W = design()
    if kind == "deep":
        model = DFIVRegressor(**SMALL | {"treatment": "deep"}).fit(X, y, Z=Z, W=W)
    elif kind == "linear":
        model = DFIVRegressor(features="linear").fit(X, y, Z=Z, W=W)
    else:
        model = DFPVRegressor(DFIVRegressor(features="linear")).fit(X, y, Z=Z, W=W[:, :1], C=W[:, 1:])
    return estimator_files.described(model)


def attribute(name, value):
    return lambda header, tensors: header["attributes"].update({name: value})


def summary(name, value):
    return lambda header, tensors: header["attributes"]["summary_"].update({name: value})


def of_design(name, value):
    return lambda header, tensors: header["attributes"]["members"][0]["design"].update({name: value})


def member(name, value):
    return lambda header, tensors: header["attributes"]["members"][0].update({name: value})


def tensor(name, change):
    return lambda header, tensors: tensors.update({name: change(tensors[name])})


def dropped(name):
    return lambda header, tensors: (tensors.pop(name), None)[1]


def extra(name, value):
    return lambda header, tensors: tensors.update({name: value})


def proxy(name, value):
    return lambda header, tensors: header["proxies"].update({name: value})


def nan_of(value):
    return value * NAN


HOSTILE = {
    "no treatments": ("deep", attribute("n_features_in_", 0)),
    "treatments as text": ("deep", attribute("n_features_in_", "1")),
    "many treatments": ("deep", attribute("n_features_in_", 10**12)),
    "many controls": ("deep", attribute("_controls", 10**12)),
    "a place of no instrument": ("deep", attribute("_own", [7])),
    "no instruments of their own": ("deep", attribute("_own", [])),
    "names": ("deep", attribute("_names", ["a", "b"])),
    "columns": ("deep", attribute("_columns", {"X": ["a", "b"]})),
    "columns as a list": ("deep", attribute("_columns", ["X"])),
    "rows": ("deep", attribute("_rows", [2.5, "x"])),
    "no members": ("deep", attribute("members", [])),
    "members as a number": ("deep", attribute("members", 3)),
    "a summary of texts": ("deep", summary("feature_r2", "x")),
    "a summary of another kind": ("deep", summary("kind", "linear")),
    "a summary with a list for a number": ("deep", summary("gap", [1])),
    "a summary without a field": ("deep", lambda header, tensors: header["attributes"]["summary_"].pop("gap") and None),
    "hidden layers larger than memory": ("deep", of_design("hidden", [16_000, 16_000])),
    "features larger than memory": ("deep", of_design("widths", [10**9, 10**9, 10**9])),
    "hidden layers of zero": ("deep", of_design("hidden", [0])),
    "hidden layers as text": ("deep", of_design("hidden", "16")),
    "many inputs": ("deep", of_design("inputs", 10**12)),
    "a treatment that is none": ("deep", of_design("treatment", "quadratic")),
    "a linear treatment": ("deep", of_design("treatment", "linear")),
    "a negative ridge": ("deep", member("ridge", -1.0)),
    "a ridge as text": ("deep", member("first", "x")),
    "weights of NaN": ("deep", tensor("0.phi.net.0.weight", nan_of)),
    "weights of integers": ("deep", tensor("0.phi.net.0.weight", torch.Tensor.int)),
    "a layer of NaN": ("deep", tensor("1.layers.w", nan_of)),
    "a layer of another shape": ("deep", tensor("0.layers.W", lambda W: W[:1])),
    "an empty layer": ("deep", tensor("0.layers.b", lambda b: b[:0])),
    "a layer of float32": ("deep", tensor("0.online.W", torch.Tensor.float)),
    "no layer": ("deep", dropped("0.layers.c")),
    "no weights": ("deep", dropped("0.psi.net.0.bias")),
    "a scale of zero": ("deep", tensor("0.layers.phi.scale", torch.zeros_like)),
    "losses of NaN": ("deep", tensor("0.losses", nan_of)),
    "means of NaN": ("deep", tensor("_x.mean", nan_of)),
    "deviations of zero": ("deep", tensor("_y.scale", torch.zeros_like)),
    "means of other columns": ("deep", tensor("_z.mean", lambda mean: mean[:1])),
    "means that are missing": ("deep", dropped("_w.mean")),
    "a tensor that nobody knows": ("deep", extra("more", torch.zeros(3))),
    "a parameter": ("deep", lambda header, tensors: header["parameters"].update(rule="ema")),
    "a parameter that is none": ("deep", lambda header, tensors: header["parameters"].update(zzz=1)),
    "no attributes": ("deep", lambda header, tensors: header.pop("attributes") and None),
    "attributes as a list": ("deep", lambda header, tensors: header.update(attributes=[1])),
    "coefficients of bytes": ("linear", tensor("coef_", lambda coef: coef.to(torch.int8))),
    "coefficients of NaN": ("linear", tensor("coef_", nan_of)),
    "no coefficients": ("linear", tensor("coef_", lambda coef: coef[:0])),
    "a covariance of another shape": ("linear", tensor("covariance_", lambda V: V[:1])),
    "no stage one": ("linear", dropped("_stage_one")),
    "an intercept of NaN": ("linear", attribute("intercept_", NAN)),
    "an intercept as text": ("linear", attribute("intercept_", "x")),
    "a member of a linear fit": ("linear", attribute("members", [{}])),
    "rows of a replicate": ("linear", extra("_drawn", torch.full((200,), 10**9))),
    "too many treatments of proxies": ("proxies", proxy("n_features_in_", 7)),
    "proxies of NaN": ("proxies", tensor("proxies_", nan_of)),
    "other proxies": ("proxies", tensor("proxies_", lambda W: W[:5])),
    "no common causes": ("proxies", dropped("controls_")),
    "columns of proxies": ("proxies", proxy("_columns", {"Q": None})),
    "a summary of proxies": ("proxies", proxy("summary_", {})),
    "a bridge as text": ("proxies", proxy("bridge_is_default", "no")),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_whose_parts_do_not_agree_is_named(case, tmp_path, monkeypatch):
    kind, change = HOSTILE[case]
    header, tensors = copy.deepcopy(saved(kind))
    change(header, tensors)
    path = archive.write(tmp_path / "x", header, tensors)
    if "larger than memory" in case or "many" in case:
        monkeypatch.setattr(members, "build", lambda *arguments: pytest.fail("networks were built"))
    with pytest.raises(ValueError, match="x holds no closedform estimator that this version knows") as wrong:
        load(path)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize("kind", ["deep", "linear", "proxies"])
def test_the_same_without_a_change_is_read(kind, tmp_path):
    header, tensors = saved(kind)
    again = load(archive.write(tmp_path / "x", header, tensors))
    for name, value in estimator_files.described(again)[1].items():
        assert torch.equal(value, tensors[name])
