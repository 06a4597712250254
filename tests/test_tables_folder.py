"""The folder of a trained model: whose it is, how an older one is replaced, and what of it is checked."""

import json
import os
import shutil

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")
pytest.importorskip("typer")

from safetensors.torch import save_file

from closedform import archive
from closedform.tabular import folder, publishing, training

from .table_cases import command, homes


def test_a_folder_that_is_no_model(trained, tmp_path):
    here, _ = trained
    code, said = command("predict", tmp_path, here / "homes.csv")
    assert code == 2
    assert "holds no model" in said
    (tmp_path / "homes-model").mkdir()
    (tmp_path / "homes-model" / "diary.txt").write_text("dear")
    shutil.copy(here / "homes.csv", tmp_path)
    code, said = command("train", tmp_path / "homes.csv", "--target", "price")
    assert code == 2
    assert "exists and holds no model" in said
    assert (tmp_path / "homes-model" / "diary.txt").read_text() == "dear"


def test_a_folder_with_another_model_json_is_left_alone(tmp_path):
    homes(60).to_csv(tmp_path / "homes.csv", index=False)
    theirs = tmp_path / "homes-model"
    theirs.mkdir()
    (theirs / "model.json").write_text('{"layers": 3}')
    (theirs / "weights.bin").write_text("theirs")
    code, said = command("train", tmp_path / "homes.csv", "--target", "price")
    assert code == 2
    assert "not one of closedform train" in said
    assert {p.name: p.read_text() for p in theirs.iterdir()} == {"model.json": '{"layers": 3}', "weights.bin": "theirs"}
    assert not (tmp_path / "homes-model.partial").exists()


def test_other_files_in_the_folder_survive_a_new_training(tmp_path):
    homes(60).to_csv(tmp_path / "homes.csv", index=False)
    out = tmp_path / "m"
    training.train(tmp_path / "homes.csv", "price", out, max_iter=1)
    before = (out / "model.safetensors").read_bytes()
    (out / "notes").mkdir()
    (out / "notes" / "diary.txt").write_text("dear")
    stale = tmp_path / "m.partial" / ".model.json.1-ab.closedform-tmp"
    stale.parent.mkdir()
    stale.write_text("half")
    training.train(tmp_path / "homes.csv", "price", out, max_iter=2)
    assert (out / "model.safetensors").read_bytes() != before
    assert (out / "notes" / "diary.txt").read_text() == "dear"
    assert {p.name for p in out.iterdir()} == {*folder.FILES, "notes"}
    assert {p.name for p in tmp_path.iterdir()} == {"homes.csv", "m"}


def test_stopped_while_a_folder_is_replaced_nothing_is_lost(tmp_path):
    out, partial = tmp_path / "m", tmp_path / "m.partial"
    (partial / "replaced").mkdir(parents=True)
    for name in ("model.json", "diary.txt"):
        (partial / "replaced" / name).write_text(name)
    publishing.recover(partial, out)  # before the new one had its name
    assert {p.name for p in out.iterdir()} == {"model.json", "diary.txt"}
    out.rename(partial / "replaced")
    out.mkdir()
    publishing.recover(partial, out)  # after it
    assert {p.name for p in out.iterdir()} == {"diary.txt"}
    assert not any(partial.iterdir())


def test_an_error_in_training_leaves_nothing(tmp_path, monkeypatch):
    homes(60).to_csv(tmp_path / "homes.csv", index=False)

    def wrong(*arguments):
        raise ValueError("training left the range of floats")

    monkeypatch.setattr(training.page, "write", wrong)
    with pytest.raises(ValueError, match="range of floats"):
        training.train(tmp_path / "homes.csv", "price", tmp_path / "m", max_iter=1)
    assert [p.name for p in tmp_path.iterdir()] == ["homes.csv"]


def changed(body, place, **settings):
    columns = [dict(column) for column in body["preparation"]["columns"]]
    columns[place] |= settings
    return body | {"preparation": body["preparation"] | {"columns": columns}}


@pytest.mark.parametrize(
    "change",
    [
        lambda b: [],
        lambda b: b | {"task": "guessing"},
        lambda b: b | {"target": [1]},
        lambda b: b | {"task": "classification"},
        lambda b: b | {"preparation": []},
        lambda b: b | {"preparation": {"columns": "ab", "by_name": True}},
        lambda b: b | {"preparation": {"columns": [], "by_name": True}},
        lambda b: b | {"preparation": b["preparation"] | {"by_name": 1}},
        lambda b: b | {"preparation": b["preparation"] | {"columns": [*b["preparation"]["columns"]] * 2}},
        lambda b: changed(b, 0, median="x"),
        lambda b: changed(b, 0, median=float("nan")),
        lambda b: changed(b, 0, median=10**400),
        lambda b: changed(b, 0, median=1.0),  # one that is not the model's
        lambda b: changed(b, 0, gaps=1),
        lambda b: changed(b, 0, codes="ab"),
        lambda b: changed(b, 0, spelling={"unit": 3, "decimal": "."}),
        lambda b: changed(b, 0, spelling={"unit": "m"}),
        lambda b: changed(b, 0, spelling={"unit": "m", "decimal": ""}),
        lambda b: changed(b, 0, kind="guess"),
        lambda b: changed(b, 0, kind="category"),
        lambda b: changed(b, 2, values=[]),
        lambda b: changed(b, 2, values=["a", "a"]),
        lambda b: changed(b, 2, rare=-1),
        lambda b: changed(b, 0, kind="left out"),
    ],
)
def test_a_description_that_is_none_is_named(change, trained, tmp_path):
    here, _ = trained
    shutil.copytree(here / "model", tmp_path / "model")
    body = json.loads((tmp_path / "model" / "model.json").read_text())
    (tmp_path / "model" / "model.json").write_text(json.dumps(change(body)))
    with pytest.raises(ValueError, match="model") as wrong:
        folder.load(tmp_path / "model")
    assert str(tmp_path / "model") in str(wrong.value)


def test_parts_of_two_models_are_noticed(trained, tmp_path):
    here, _ = trained
    homes().drop(columns="zip").to_csv(tmp_path / "other.csv", index=False)
    training.train(tmp_path / "other.csv", "price", tmp_path / "model", max_iter=1)
    shutil.copy(here / "model" / "model.json", tmp_path / "model" / "model.json")
    code, said = command("predict", tmp_path / "model", here / "homes.csv")
    assert code == 2
    assert "they are of different models" in said


def test_a_model_of_another_target_or_file_is_not_replaced(tmp_path):
    homes(60).to_csv(tmp_path / "homes.csv", index=False)
    homes(60, seed=1).to_csv(tmp_path / "flats.csv", index=False)
    out = ("--out", tmp_path / "m", "--epochs", 1)
    assert command("train", tmp_path / "homes.csv", "--target", "price", *out)[0] == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()}
    for data, column in (("homes.csv", "rooms"), ("flats.csv", "price")):
        code, said = command("train", tmp_path / data, "--target", column, *out)
        assert code == 2
        assert "holds a model of 'price' from homes.csv; --overwrite" in said
        assert {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()} == before
        assert not (tmp_path / "m.partial").exists()
    assert command("train", tmp_path / "homes.csv", "--target", "price", *out)[0] == 0  # the same once more
    assert command("train", tmp_path / "flats.csv", "--target", "rooms", "--overwrite", *out)[0] == 0
    assert json.loads((tmp_path / "m" / "model.json").read_text())["target"] == "rooms"
    homes_and_model = tmp_path / "elsewhere"
    homes_and_model.mkdir()
    for name in ("flats.csv", "m"):
        (tmp_path / name).rename(homes_and_model / name)  # moved together they belong together
    moved = ("--out", homes_and_model / "m", "--epochs", 1)
    assert command("train", homes_and_model / "flats.csv", "--target", "rooms", *moved)[0] == 0


def test_two_trainings_of_one_folder_do_not_meet(tmp_path):
    path = tmp_path / "homes.csv"
    homes(60).to_csv(path, index=False)

    def second(record, plan):
        with pytest.raises(ValueError, match="another run is at work"):
            training.train(path, "price", tmp_path / "m", max_iter=1)

    training.train(path, "price", tmp_path / "m", max_iter=1, shown=second)
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "model.json", "model.safetensors", "predictions.csv", "report.html",
    ]  # fmt: skip


# ---- Folders of others ---------------------------------------------------------------------------


def partial_of_ours(path):
    """A folder as a training that was killed leaves it."""
    path.mkdir()
    (path / publishing.MARKER).write_bytes(publishing.MARK)


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("name", [".claimed", "predictions.csv", "report.html", "replaced", "ready", publishing.MARKER])
def test_a_link_in_the_folder_to_work_in_is_not_followed(name, marked, tmp_path):
    homes(60).to_csv(tmp_path / "homes.csv", index=False)
    partial = tmp_path / "homes-model.partial"
    if marked:
        partial_of_ours(partial)
        (partial / name).unlink(missing_ok=True)
    else:
        partial.mkdir()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "predictions.csv").write_text("theirs")
    (theirs / "diary.txt").write_text("dear")
    (partial / name).symlink_to(theirs if name in ("replaced", "ready") else theirs / "diary.txt")
    code, said = command("train", tmp_path / "homes.csv", "--target", "price", "--epochs", 1)
    assert code == 2
    assert "closedform train" in said
    assert {p.name: p.read_text() for p in theirs.iterdir()} == {"predictions.csv": "theirs", "diary.txt": "dear"}
    assert (partial / name).is_symlink()
    assert not (tmp_path / "homes-model").exists()


@pytest.mark.parametrize("target", ["partial", "model"])
def test_a_link_in_place_of_a_folder_is_not_followed(target, tmp_path):
    homes(60).to_csv(tmp_path / "homes.csv", index=False)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / ("homes-model.partial" if target == "partial" else "homes-model")).symlink_to(theirs)
    code, said = command("train", tmp_path / "homes.csv", "--target", "price", "--epochs", 1)
    assert code == 2
    assert "homes-model" in said
    assert not list(theirs.iterdir())


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    homes(60).to_csv(tmp_path / "homes.csv", index=False)
    partial = tmp_path / "homes-model.partial"
    partial.mkdir()
    (partial / "report.html").write_text("theirs")
    code, said = command("train", tmp_path / "homes.csv", "--target", "price", "--epochs", 1)
    assert code == 2
    assert f"{partial} is in the way" in said
    assert {p.name: p.read_text() for p in partial.iterdir()} == {"report.html": "theirs"}
    (partial / "report.html").unlink()
    assert command("train", tmp_path / "homes.csv", "--target", "price", "--epochs", 1)[0] == 0  # an empty one is free
    assert not partial.exists()


def test_files_that_are_put_into_our_folder_stay(tmp_path):
    homes(60).to_csv(tmp_path / "homes.csv", index=False)
    partial_of_ours(tmp_path / "m.partial")
    (tmp_path / "m.partial" / "diary.txt").write_text("dear")
    for _ in range(2):
        training.train(tmp_path / "homes.csv", "price", tmp_path / "m", max_iter=1)
        assert (tmp_path / "m.partial" / "diary.txt").read_text() == "dear"


# ---- Killed while an older model is replaced -----------------------------------------------------


class KilledError(BaseException):
    pass


def generation(path):
    return {(path / name).read_text() for name in folder.FILES}


@pytest.mark.parametrize("at", range(12))
def test_there_is_a_whole_model_at_every_moment(at, tmp_path, monkeypatch):
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    if not publishing.exchange(a, b):
        pytest.skip("this file system cannot exchange two folders at once")
    out, partial = tmp_path / "m", tmp_path / "m.partial"
    out.mkdir()
    partial_of_ours(partial)
    description = {"format": 1, "closedform": "", "task": "", "target": "", "preparation": ""}
    for path, mark in ((out, "old"), (partial, "new")):
        for name in folder.FILES:
            (path / name).write_text(json.dumps(description | {"closedform": mark}))
    (out / "diary.txt").write_text("dear")
    calls = []

    def counted(function):
        def call(*arguments):
            calls.append(function)
            if len(calls) == at + 1:
                raise KilledError
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", counted(os.replace))
        patch.setattr(publishing, "exchange", counted(publishing.exchange))
        try:
            publishing.publish(partial, out)
        except KilledError:
            assert len(generation(out)) == 1
    publishing.recover(partial, out)
    assert len(generation(out)) == 1
    assert (out / "diary.txt").read_text() == "dear"
    if at >= len(calls):
        assert "new" in generation(out).pop()


def test_without_an_exchange_an_older_model_is_replaced_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "exchange", lambda first, second: False)
    homes(60).to_csv(tmp_path / "homes.csv", index=False)
    training.train(tmp_path / "homes.csv", "price", tmp_path / "m", max_iter=1)
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    (tmp_path / "m" / "diary.txt").write_text("dear")
    training.train(tmp_path / "homes.csv", "price", tmp_path / "m", max_iter=2)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() != before
    assert (tmp_path / "m" / "diary.txt").read_text() == "dear"
    assert {p.name for p in tmp_path.iterdir()} == {"homes.csv", "m"}


# ---- Damaged checkpoints -------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["a bit", "a list"])
def test_a_damaged_checkpoint_is_not_continued(damage, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "EVERY_S", 0.0)
    homes(60).to_csv(tmp_path / "homes.csv", index=False)

    def stop(record, plan):
        if record.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(tmp_path / "homes.csv", "price", tmp_path / "m", max_iter=5, shown=stop)
    path = tmp_path / "m.partial" / "checkpoint.safetensors"
    if damage == "a bit":
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    else:
        metadata = {archive.HEADER: archive.sealed("[]", {"a": torch.zeros(1)})}
        save_file({"a": torch.zeros(1)}, path, metadata=metadata)
    seen = []
    training.train(tmp_path / "homes.csv", "price", tmp_path / "m", max_iter=5, shown=lambda r, p: seen.append(r.epoch))
    assert seen == [1, 2, 3, 4, 5]
