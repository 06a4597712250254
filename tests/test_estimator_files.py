"""Estimators of tables as files: what comes back, and files that are damaged, foreign or hostile."""

import functools
import io
import json
import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

import pandas as pd
from safetensors.torch import save_file

import closedform as cf
from closedform import archive
from closedform.estimator_files import described
from closedform.estimators import ClosedFormClassifier, ClosedFormRegressor, load

from .table_cases import FAST, classes, table


@pytest.mark.parametrize("rule", ["proximal", "kalman", "learned", cf.Proximal(lam=5.0)])
def test_save_and_load(rule, tmp_path):
    X, y = table(100)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    model = ClosedFormRegressor(rule=rule, **FAST).fit(frame, y)
    again = load(model.save(tmp_path / "model.safetensors"))
    assert again.get_params() == model.get_params()
    assert np.array_equal(again.predict(frame), model.predict(frame))
    assert again.loss_curve_ == model.loss_curve_
    assert again.linear_share_ == model.linear_share_
    assert again.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    if rule == "kalman":
        assert np.array_equal(again.predict(frame, return_std=True)[1], model.predict(frame, return_std=True)[1])
    assert np.array_equal(again.partial_fit(frame, y).predict(frame), model.partial_fit(frame, y).predict(frame))


@pytest.mark.parametrize("labels", [np.array([3, 7]), np.array([True, False]), np.array(["ja", "nein"]), [0.5, 1.5]])
def test_save_and_load_a_classifier(labels, tmp_path):
    X, y = classes(100, k=2)
    y = np.asarray(labels)[(y == "red").astype(int)]
    if y.dtype == float:
        y = y.astype(object).astype(str)
    model = ClosedFormClassifier(**FAST).fit(X, y)
    again = load(model.save(tmp_path / "model.safetensors"))
    assert again.classes_.dtype == model.classes_.dtype
    assert np.array_equal(again.predict(X), model.predict(X))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_a_file_holds_the_model_that_was_fitted_whatever_was_set_since(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    model = ClosedFormRegressor(members=2, max_iter=2, random_state=0).fit(X, y)
    expected = model.predict(X)
    model.set_params(members=5, hidden_layer_sizes=(3,), waves=0)
    np.testing.assert_array_equal(model.predict(X), expected)
    loaded = load(model.save(tmp_path / "x.st"))
    np.testing.assert_array_equal(loaded.predict(X), expected)
    assert loaded.members == 2
    np.testing.assert_array_equal(load(loaded.save(tmp_path / "y.st")).predict(X), expected)


def test_a_backbone_is_given_again(tmp_path):
    X, y = table(100)
    make = lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())  # noqa: E731
    model = ClosedFormRegressor(backbone=make(), **FAST).fit(X, y)
    path = model.save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"backbone of class Sequential: load\(path, backbone=...\)"):
        load(path)
    assert np.array_equal(load(path, backbone=make()).predict(X), model.predict(X))
    with pytest.raises(ValueError, match="of another backbone"):
        load(path, backbone=torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh()))


def test_loading_executes_nothing(tmp_path):
    """A pickle that would run code when read, under our file's name, is refused and not run."""

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    path = tmp_path / "model.safetensors"
    for data in (pickle.dumps(Bomb()), _torch_saved(Bomb()), b"", b"\xff" * 100):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="not a whole safetensors file"):
            load(path)
    assert not (tmp_path / "exploded").exists()


def _torch_saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_a_damaged_or_foreign_file_is_named(tmp_path):

    X, y = table(60)
    path = ClosedFormRegressor(max_iter=2).fit(X, y).save(tmp_path / "model.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file"):
        load(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="holds tensors, but nothing that closedform wrote"):
        load(path)
    archive.write(path, {"format": 99}, {"a": torch.zeros(2)})
    with pytest.raises(ValueError, match="format 99"):
        load(path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")


def test_a_rule_that_is_code_cannot_be_saved(tmp_path):
    X, y = table(60)
    model = ClosedFormRegressor(rule=cf.Proximal(lam=lambda step: 1.0), max_iter=2).fit(X, y)
    with pytest.raises(ValueError, match="cannot be saved"):
        model.save(tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


_WIDE = {"hidden_layer_sizes": [1, 400], "members": 2, "rule": "kalman"}  # few weights, and a matrix of 401 x 401


def _hostile(name, change):
    return pytest.param(change, id=name)


@pytest.mark.parametrize(
    "change",
    [
        _hostile("a list", lambda h, t: []),
        _hostile("attributes", lambda h, t: h.update(attributes=[1])),
        _hostile("a parameter that is none", lambda h, t: h["parameters"].update(zzz=1)),
        _hostile("a bad parameter", lambda h, t: h["parameters"].update(learning_rate="x")),
        _hostile("members", lambda h, t: h["parameters"].update(members=3)),
        _hostile("layers larger than memory", lambda h, t: h["parameters"].update(hidden_layer_sizes=[200_000] * 2)),
        _hostile("rows", lambda h, t: h.update(rows=-5)),
        _hostile("rows as text", lambda h, t: h.update(rows="x")),
        _hostile("more rows than there are", lambda h, t: h.update(rows=2**52)),
        _hostile("a layer of bytes", lambda h, t: t.update(coef_=torch.zeros(2, 48, dtype=torch.int8))),
        _hostile("a layer of NaN", lambda h, t: t.update(coef_=torch.full((2, 48), float("nan")).double())),
        _hostile("an empty layer", lambda h, t: t.update(coef_=torch.zeros(0).double())),
        _hostile("classes of a huge type", lambda h, t: h["classes"].update(dtype="<U50000000", values=["a", "b"])),
        _hostile("a wide layer for a matrix", lambda h, t: h["parameters"].update(_WIDE)),
        _hostile("a seed of text", lambda h, t: h["parameters"].update(random_state="x")),
        _hostile("a rule of lists", lambda h, t: h["parameters"].update(rule={"rule": "Proximal", "lam": [1]})),
        _hostile("a memory of NaN", lambda h, t: t.update({"engine.head": t["engine.head"] * float("nan")})),
        _hostile("held-out errors of integers", lambda h, t: t.update(missed=t["missed"].int())),
        _hostile("classes", lambda h, t: h["classes"].update(values=[True])),
        _hostile("the type of classes", lambda h, t: h["classes"].update(dtype="zzz")),
        _hostile("no classes", lambda h, t: h.pop("classes") and None),
        _hostile("the link", lambda h, t: h["attributes"].update(link_="xyz")),
        _hostile("a link of zero", lambda h, t: h["attributes"].update(link_=[0.0, 1.0, 0.0])),
        _hostile("a link of NaN", lambda h, t: h["attributes"].update(link_=[1.0, float("nan"), 0.0])),
        _hostile("the number of inputs", lambda h, t: h["attributes"].update(n_features_in_=7)),
        _hostile("names of inputs", lambda h, t: h.update(feature_names=["a"])),
        _hostile("another class", lambda h, t: h.update({"class": ["x"]})),
        _hostile("a rule", lambda h, t: h["parameters"].update(rule={})),
        _hostile("a shape", lambda h, t: t.update(input_centre_=torch.zeros(2, 2).double())),
        _hostile("a scale of zero", lambda h, t: t.update(input_scale_=torch.zeros(3).double())),
        _hostile("a scale of NaN", lambda h, t: t.update(input_scale_=torch.full((3,), float("nan")).double())),
        _hostile("shares", lambda h, t: t.update(shares_=torch.ones(2).double())),
        _hostile("weights of NaN", lambda h, t: t.update({"engine.param.0": t["engine.param.0"] * float("nan")})),
        _hostile("a line with no scale", lambda h, t: t.update(line_=torch.zeros(3, 3).double())),
        _hostile("a line of two rows", lambda h, t: t.update(line_=torch.ones(2, 3).double())),
        _hostile(
            "a line that reaches back",
            lambda h, t: t.update(line_=torch.tensor([[1.0], [1], [-1]]).expand(3, 3).double()),
        ),
        _hostile("waves that are none", lambda h, t: t.update(wavy_=torch.full((3,), 0.5).double())),
        _hostile("no waves", lambda h, t: h["parameters"].update(waves=0)),
        _hostile("waves larger than memory", lambda h, t: h["parameters"].update(waves=10**9)),
        _hostile("distances of NaN", lambda h, t: t.update(distances=t["distances"] * float("nan"))),
        _hostile("distances below zero", lambda h, t: t.update(distances=-t["distances"].flip(0))),
        _hostile("distances out of order", lambda h, t: t.update(distances=t["distances"].flip(0))),
        _hostile("distances of each class", lambda h, t: t.update(distances=t["distances"].expand(-1, 2, 2).clone())),
        _hostile("no distances in their place", lambda h, t: t.update(distances=t["distances"][:0])),
        _hostile("weights of integers", lambda h, t: t.update({"engine.param.0": t["engine.param.0"].int()})),
    ],
)
def test_a_file_whose_parts_do_not_agree_is_named(change, tmp_path):
    head, tensors = _small()
    new_head = change(head := json.loads(head), tensors := {k: v.clone() for k, v in tensors.items()})
    archive.write(tmp_path / "x.st", head if new_head is None else new_head, tensors)
    with pytest.raises(ValueError, match=r"x\.st (holds no closedform estimator|has a header of list)"):
        load(tmp_path / "x.st")


def test_a_model_of_a_gpu_is_loaded_without_one(tmp_path):
    head, tensors = _small()
    body = json.loads(head)
    body["parameters"]["device"] = "cuda"
    archive.write(tmp_path / "x.st", body, tensors)
    assert load(tmp_path / "x.st").device == ("cuda" if torch.cuda.is_available() else "auto")


@functools.cache
def _small():
    X = np.random.default_rng(0).normal(size=(60, 3))
    head, tensors = described(ClosedFormClassifier(random_state=0, max_iter=1).fit(X, X[:, 0] > 0))
    return json.dumps(head), tensors
