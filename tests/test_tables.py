"""`closedform train` and `closedform predict`: folders, files of any length, bad files, and a training that is killed."""

import json
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")
pytest.importorskip("typer")

import pandas as pd
from typer.testing import CliRunner

from closedform import archive
from closedform.estimators import load
from closedform.paper.commands import application
from closedform.tabular import charts, folder, preparing, publishing, reading, training

RUN = [sys.executable, "-c", "from closedform.cli import main; main()"]


def homes(n=200, seed=0):
    g = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "area": g.uniform(20, 200, n).round(1),
            "rooms": g.integers(1, 7, n),
            "district": g.choice(["north", "söuth", "east"], n),
            "zip": g.choice([10115, 10117, 10119], n),
        }
    )
    table["price"] = 3 * table.area + 10 * table.rooms + 60 * (table.district == "east") + g.normal(0, 3, n)
    table["price"] = table["price"].round(2)
    table.loc[g.choice(n, n // 10, replace=False), "area"] = np.nan
    table.loc[3, "district"] = None
    return table


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a file and the model that was trained on it."""
    here = tmp_path_factory.mktemp("trained")
    homes().to_csv(here / "homes.csv", index=False)
    outcome = training.train(here / "homes.csv", "price", here / "model", categorical=["zip"], max_iter=25)
    return here, outcome


def command(*arguments):
    """Exit code, and what was said on stderr (in the process: much faster than a new one)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = CliRunner().invoke(application(), [str(a) for a in arguments])
    if isinstance(result.exception, (ValueError, FileNotFoundError)):
        return 2, str(result.exception)  # as `closedform.cli.main` does
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


# ---- What comes out ------------------------------------------------------------------------------


def test_the_folder(trained):
    here, outcome = trained
    assert {p.name for p in (here / "model").iterdir()} == {
        "model.json", "model.safetensors", "predictions.csv", "report.html"
    }  # fmt: skip
    assert not (here / "model.partial").exists()
    assert outcome.scores["closedform"] < 0.5 * np.std(homes().price)
    body = json.loads((here / "model" / "model.json").read_text())
    assert body["task"] == "regression"
    assert body["preparation"]["categories"] == ["district", "zip"]
    assert set(body["scores"]) == {"metric", "closedform", "ridge", "plain Adam network"}


def test_predictions_csv_is_what_the_score_says(trained):
    here, outcome = trained
    rows = pd.read_csv(here / "model" / "predictions.csv", index_col="row")
    assert len(rows) == outcome.test_rows == 40
    error = np.sqrt(np.mean((rows["true price"] - rows["predicted price"]) ** 2))
    assert error == pytest.approx(outcome.scores["closedform"], rel=1e-12)
    assert np.array_equal(rows["true price"], homes().price.to_numpy()[rows.index - 1])


def test_predict_gives_the_same_again(trained):
    here, _ = trained
    code, said = command("predict", here / "model", here / "homes.csv")
    assert code == 0
    assert "200 rows" in said
    rows = pd.read_csv(here / "homes-predictions.csv", index_col="row")
    test = pd.read_csv(here / "model" / "predictions.csv", index_col="row")
    np.testing.assert_allclose(rows.loc[test.index, "predicted price"], test["predicted price"], rtol=1e-12)


def test_pieces_and_formats_do_not_matter(trained, tmp_path):
    from closedform.tabular.predicting import predict

    here, _ = trained
    homes().to_parquet(tmp_path / "homes.parquet")
    homes().to_csv(tmp_path / "semicolons.csv", index=False, sep=";")
    predict(here / "model", here / "homes.csv", tmp_path / "whole.csv")
    expected = pd.read_csv(tmp_path / "whole.csv")
    for source, rows in ((here / "homes.csv", 7), (tmp_path / "homes.parquet", 30), (tmp_path / "semicolons.csv", 999)):
        predict(here / "model", source, tmp_path / "out.csv", rows=rows)
        pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out.csv"), expected, rtol=1e-12)


def test_long_rows_come_in_small_pieces(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("note,x\n" + "".join(f"{'word ' * 20_000},{k}\n" for k in range(200)))
    parts = list(reading.pieces(path, columns=["x"]))
    assert max(map(len, parts)) * 100_000 <= reading.PIECE_BYTES * 1.25
    assert [value for part in parts for value in part["x"]] == [str(k) for k in range(200)]
    assert all(list(part.columns) == ["x"] for part in parts)  # the long text is not kept


def test_unknown_categories_and_missing_values_are_predicted(trained, tmp_path):
    here, _ = trained
    table = homes(6)
    table.loc[0, ["area", "rooms", "district"]] = None
    table.loc[1, "district"] = "the moon"
    table.drop(columns="price").to_csv(tmp_path / "new.csv", index=False)
    assert command("predict", here / "model", tmp_path / "new.csv", "--out", tmp_path / "p.csv")[0] == 0
    assert np.isfinite(pd.read_csv(tmp_path / "p.csv")["predicted price"]).all()


def test_classes(tmp_path):
    table = homes()
    table["price"] = np.where(table.price > 350, "dear", "cheap")
    table.to_parquet(tmp_path / "homes.parquet")
    code, said = command("train", tmp_path / "homes.parquet", "--target", "price", "--epochs", 15)
    assert code == 0
    assert "classification" in said
    assert "error rate" in said
    rows = pd.read_csv(tmp_path / "homes-model" / "predictions.csv")
    assert (rows["true price"] == rows["predicted price"]).mean() > 0.8
    np.testing.assert_allclose(rows["probability of cheap"] + rows["probability of dear"], 1)


def test_the_preparation_comes_back_from_json(trained):
    here, outcome = trained
    model = folder.load(here / "model")
    given = preparing.frame(here / "homes.csv", reading.whole(here / "homes.csv"), model.preparation)
    again, before = preparing.transformer(model.preparation), preparing.transformer(outcome.model.preparation)
    assert np.array_equal(again.transform(given), before.transform(given))
    # against scikit-learn fitted on the rows trained on themselves
    from sklearn.impute import SimpleImputer

    numbers = given[["area", "rooms"]]
    tested = pd.read_csv(here / "model" / "predictions.csv")["row"]
    imputer = SimpleImputer(strategy="median", add_indicator=True).fit(numbers.drop(index=tested))
    expected = imputer.transform(numbers)
    assert np.array_equal(again.transform(given)[:, : expected.shape[1]], expected)


def test_the_preparation_knows_only_the_rows_to_train_on(tmp_path):
    path = tmp_path / "t.csv"
    table = pd.DataFrame({"a": range(40), "b": ["x", "y"] * 20, "only": [""] * 40, "z": range(40)})
    table.loc[39, ["a", "b", "only"]] = [10**6, "w", "3"]
    table.loc[38, "b"] = "w"
    table.to_csv(path, index=False)
    read = reading.whole(path)
    for rows in (np.arange(20), np.arange(38)):
        found, remarks = preparing.find(path, read, ["a", "b", "only"], [], rows)
        assert found.medians == [np.median(rows)]
        assert found.values == [["x", "y"]]
        assert remarks == ["column 'only' is left out: all its values are missing in the rows to train on"]


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


def test_the_task_of_a_target(tmp_path):
    path = tmp_path / "t.csv"
    for values, expected in (
        (np.arange(40) % 3, "classification"),
        (np.arange(40), "regression"),
        (np.arange(5), "regression"),  # one class a row are none
        (np.linspace(0, 1, 40), "regression"),
        (["a", "b"] * 20, "classification"),
        ([True, False] * 20, "classification"),
    ):
        pd.DataFrame({"x": range(len(values)), "y": values}).to_csv(path, index=False)
        assert training._target(path, reading.whole(path), "y", "auto", [])[2] == expected


# ---- The report ----------------------------------------------------------------------------------


def test_the_report_stands_alone(trained):
    here, _ = trained
    page = (here / "model" / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    for title in ("Learning curve", "Predicted against true", "Residuals", "Permutation importance"):
        assert title in page
    assert page.count("<svg") == page.count("</svg>") == 4


def test_names_cannot_write_html(tmp_path):
    table = homes(60).rename(columns={"area": "<script>alert(1)</script>", "price": "<b>price"})
    table["district"] = table["district"].fillna("<i>")
    table.to_csv(tmp_path / "x.csv", index=False)
    training.train(tmp_path / "x.csv", "<b>price", tmp_path / "m", max_iter=2)
    page = (tmp_path / "m" / "report.html").read_text()
    assert "<script>" not in page
    assert "<b>" not in page


def test_the_most_important_column_comes_first(trained):
    here, _ = trained
    model = folder.load(here / "model")
    table = reading.whole(here / "homes.csv")
    given = preparing.frame(here / "homes.csv", table, model.preparation)
    found = training._importance(model.pipeline(), given, homes().price.to_numpy(), 0)
    assert found[0][0] == "area"
    assert found[0][1] > 3 * abs({n: v for n, v, _ in found}["zip"])


def test_the_sentence_says_who_is_better():
    from types import SimpleNamespace

    from closedform.tabular.page import sentence

    def outcome(own):
        return SimpleNamespace(metric="RMSE", test_rows=10, scores={"closedform": own, "ridge": 2.0, "plain": 3.0})

    assert sentence(outcome(1.0)).endswith("of the others, ridge comes closest with 2.")
    assert sentence(outcome(2.0)).endswith("is 2; ridge reaches the same.")
    assert sentence(outcome(2.5)).endswith("ridge does better with 2.")


def test_ticks_lie_inside():
    for low, high, log in ((0.0, 1.0, False), (-3.7, 12.1, False), (1e-9, 1e-3, True), (0.2, 0.9, True), (5, 5, False)):
        axis = charts.Axis(low, high, 0, 100, log=log)
        ticks = axis.ticks()
        assert 2 <= len(ticks) <= 8
        assert all(-1e-6 <= axis(t) <= 100 + 1e-6 for t in ticks)


# ---- Bad files -----------------------------------------------------------------------------------

GOOD = "area,rooms,price\n" + "".join(f"{i}.5,{i % 4},{3 * i}.25\n" for i in range(30))


def bad(name, content, *parts, arguments=("--target", "price")):
    return pytest.param(content, parts, arguments, id=name)


BAD = [
    bad("no header", GOOD.partition("\n")[2], "no header"),
    bad("no such target", GOOD, "there is no column 'cost'", "'area', 'rooms', 'price'", arguments=("--target", "cost")),
    bad("no such category", GOOD, "no column 'zip'", arguments=("--target", "price", "--categorical", "zip")),
    bad("text in a number column", GOOD.replace("\n7.5,", "\nseven,"), "row 8", "'area'", "'seven'", "--categorical area"),
    bad("text in the target", GOOD.replace(",21.25", ",dear"), "row 8", "'price'", "'dear'"),
    bad("infinite", GOOD.replace("\n7.5,", "\ninf,"), "row 8", "'area'", "finite"),
    bad("one row", "\n".join(GOOD.splitlines()[:2]) + "\n", "1 row", "at least 2"),
    bad("no rows", GOOD.splitlines()[0] + "\n", "0 rows"),
    bad("empty", "", "empty"),
    bad("all missing", GOOD.replace("area", "area,empty").replace(".5,", ".5,,"), "column 'empty'", "all 30 rows"),
    bad("all of the target missing", "a,price\n1,\n2,\n3,\n4,\n5,\n", "'price'", "all 5 rows"),
    bad("duplicate names", GOOD.replace("rooms", "area"), "'area'", "columns 1 and 2"),
    bad("a column without a name", GOOD.replace("rooms", ""), "column 2 of 3 has no name"),
    bad("wrong encoding", GOOD.encode() + b"9.5,caf\xe9,3\n", "row 31", "'rooms'", "not utf-8", "0xe9"),
    bad("a header in a wrong encoding", GOOD.replace("area", "caf\xe9").encode("latin-1"), "header", "not utf-8"),
    bad("too many cells", GOOD + "1,2,3,4\n", "row 31 has 4 cells; expected 3"),
    bad("too many cells in every row", GOOD.replace(".25\n", ".25,1\n"), "row 1 has 4 cells; expected 3"),
    bad("too few cells", GOOD.replace("\n7.5,3,", "\n7.5,"), "row 8 has 2 cells; expected 3"),
    bad("an open quote", GOOD + '"1,2,3\n', "not a table"),
    bad("a large number", GOOD.replace("\n7.5,", "\n1e300,"), "row 8", "'area'", "1e300"),
    bad("decimal commas", GOOD.replace(",", ";").replace(".", ","), "row 1", "'price'", "'0,25'", "1234.5"),
    bad("thousands", "a,price\n" + "".join(f'"{i},500",{i}.5\n' for i in range(1, 30)), "row 1", "'a'", "'1,500'"),
    bad("blank lines", "\n\n\n", "blank"),
    bad("gzip", b"\x1f\x8b\x08\x00", "gzip"),
    bad("a target that does not vary", "a,price\n" + "1,5.5\n2,5.5\n" * 5, "'price'", "every row is 5.5"),
    bad("only the target", "price\n1.5\n2.5\n3.5\n", "only column"),
    bad("too few rows with a target", "a,price\n1,1.5\n2,2.5\n3,\n4,\n", "2 rows with a target"),
    bad("an encoding that is none", GOOD, "no encoding 'klingon'", arguments=("--target", "price", "--encoding", "klingon")),
]  # fmt: skip


@pytest.mark.parametrize(("content", "parts", "arguments"), BAD)
def test_a_bad_file_gets_one_line_and_leaves_nothing(content, parts, arguments, tmp_path):
    path = tmp_path / "homes.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    code, said = command("train", path, *arguments)
    assert code == 2
    assert str(path) in said
    assert "\n" not in said.strip()
    for part in parts:
        assert part in said
    assert [p.name for p in tmp_path.iterdir()] == ["homes.csv"]


def test_the_entry_point_says_it_on_stderr_with_exit_code_two(tmp_path):
    (tmp_path / "homes.csv").write_text(GOOD)
    found = subprocess.run(
        [*RUN, "train", "homes.csv", "--target", "cost"], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 2
    assert found.stderr.startswith("closedform: homes.csv: there is no column 'cost'")
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_a_truncated_parquet_file(keep, tmp_path):
    path = tmp_path / "homes.parquet"
    homes().to_parquet(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    code, said = command("train", path, "--target", "price")
    assert code == 2
    assert str(path) in said
    assert "not a whole Parquet file" in said or "empty" in said
    assert "\n" not in said.strip()
    assert [p.name for p in tmp_path.iterdir()] == ["homes.parquet"]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda t: t.drop(columns="rooms"), ("no column 'rooms'",)),
        (
            lambda t: t.assign(rooms=t.rooms.astype(object).mask(t.index == 150, "many")),
            ("row 151", "'rooms'", "'many'"),
        ),
        (lambda t: t[:0], ("no rows",)),
    ],
)
def test_a_bad_file_to_predict_for_leaves_no_predictions(change, parts, trained, tmp_path):
    here, _ = trained
    change(homes()).to_csv(tmp_path / "new.csv", index=False)
    code, said = command("predict", here / "model", tmp_path / "new.csv")
    assert code == 2
    assert all(part in said for part in (str(tmp_path / "new.csv"), *parts))
    assert [p.name for p in tmp_path.iterdir()] == ["new.csv"]


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


def test_predictions_do_not_replace_their_table(trained, tmp_path):
    here, _ = trained
    shutil.copy(here / "homes.csv", tmp_path)
    for out, part in ((tmp_path / "homes.csv", "the table itself"), (tmp_path, "is a folder")):
        code, said = command("predict", here / "model", tmp_path / "homes.csv", "--out", out)
        assert code == 2
        assert part in said
    assert (tmp_path / "homes.csv").read_bytes() == (here / "homes.csv").read_bytes()


def test_blank_lines_of_one_column_are_rows(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("a\n1\n\n2\n\n\n")
    assert reading.whole(path)["a"].tolist() == ["1", None, "2"]
    path.write_text("a,b\n1,2\n\n3,4\n")
    assert reading.whole(path)["a"].tolist() == ["1", "3"]


def test_spellings_of_missing_and_of_whole_numbers(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("a,b\nn/a,1\n#N/A,1.0\n<NA>,01\nna,1.5\n-,x\n2,-3.00\n")
    table = reading.whole(path)
    assert table["a"].isna().tolist() == [True] * 5 + [False]
    assert reading.texts(table["b"]).tolist() == ["1", "1", "01", "1.5", "x", "-3"]


def test_a_class_of_one_row_is_trained_on():
    y = np.array(["no"] * 20 + ["yes"])
    for seed in range(30):
        first, second = training._split(y, seed, "classification")
        assert 20 in first
        assert sorted([*first, *second]) == list(range(21))


def test_an_error_in_training_leaves_nothing(tmp_path, monkeypatch):
    homes(60).to_csv(tmp_path / "homes.csv", index=False)

    def wrong(*arguments):
        raise ValueError("training left the range of floats")

    monkeypatch.setattr(training.page, "write", wrong)
    with pytest.raises(ValueError, match="range of floats"):
        training.train(tmp_path / "homes.csv", "price", tmp_path / "m", max_iter=1)
    assert [p.name for p in tmp_path.iterdir()] == ["homes.csv"]


def test_a_nested_column_of_a_parquet_file(tmp_path):
    pd.DataFrame({"a": [[1, 2]] * 9, "price": range(9)}).to_parquet(tmp_path / "n.parquet")
    code, said = command("train", tmp_path / "n.parquet", "--target", "price")
    assert code == 2
    assert "column 'a' holds list" in said


@pytest.mark.parametrize(
    "change",
    [
        lambda b: [],
        lambda b: b | {"task": "guessing"},
        lambda b: b | {"target": [1]},
        lambda b: b | {"task": "classification"},
        lambda b: b | {"preparation": []},
        lambda b: b | {"preparation": b["preparation"] | {"medians": ["x", 1.0]}},
        lambda b: b | {"preparation": b["preparation"] | {"medians": [1.0]}},
        lambda b: b | {"preparation": b["preparation"] | {"numbers": "ab"}},
        lambda b: b | {"preparation": b["preparation"] | {"values": [[], []]}},
        lambda b: b | {"preparation": b["preparation"] | {"values": [["a", "a"], ["b"]]}},
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


# ---- Killed, and large ---------------------------------------------------------------------------


def test_killed_in_the_middle_it_goes_on_to_the_same_model(tmp_path):
    """`kill -9` after some epochs; the same command goes on from the last one and ends with the same bits."""
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        homes(300).to_csv(tmp_path / name / "homes.csv", index=False)
    arguments = [*RUN, "train", "homes.csv", "--target", "price", "--epochs", "30"]
    process = subprocess.Popen(arguments, cwd=tmp_path / "killed", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoint = tmp_path / "killed" / "homes-model.partial" / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while epoch(checkpoint) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = epoch(checkpoint)
    assert 3 <= reached < 30
    assert not (tmp_path / "killed" / "homes-model").exists()

    spent = archive.read(checkpoint)[0]["seconds"]
    seen = []
    outcome = training.train(
        tmp_path / "killed" / "homes.csv", "price", tmp_path / "killed" / "homes-model", max_iter=30,
        shown=lambda record, plan: seen.append(record.epoch),
    )  # fmt: skip
    assert seen[0] == reached + 1
    assert outcome.seconds["closedform"] > spent  # also of the epochs before
    assert seen[-1] == 30
    training.train(tmp_path / "whole" / "homes.csv", "price", tmp_path / "whole" / "homes-model", max_iter=30)
    for file in ("model.safetensors", "predictions.csv"):
        first, second = ((tmp_path / name / "homes-model" / file).read_bytes() for name in ("killed", "whole"))
        assert first == second, file
    assert load(tmp_path / "killed" / "homes-model" / "model.safetensors").n_iter_ == 30


def epoch(checkpoint):
    if not checkpoint.is_file():
        return 0
    return archive.read(checkpoint)[0]["record"]["epoch"]


def test_a_checkpoint_of_other_data_is_not_continued(tmp_path):
    path = tmp_path / "homes.csv"
    homes(100).to_csv(path, index=False)

    def stop(record, plan):
        if record.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(path, "price", tmp_path / "m", max_iter=5, shown=stop)
    homes(100, seed=1).to_csv(path, index=False)
    seen = []
    training.train(path, "price", tmp_path / "m", max_iter=5, shown=lambda record, plan: seen.append(record.epoch))
    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_predicting_takes_constant_memory(trained, tmp_path):
    """Peak memory for 400,000 rows is that for 100,000, but for what the allocator does not give back."""
    here, _ = trained
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom closedform.tabular.predicting import predict\n"
        "predict(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    lines = homes(1000).to_csv(index=False).splitlines(keepends=True)
    peaks = []
    for times in (100, 400):
        path = tmp_path / "large.csv"
        with open(path, "w") as file:
            file.write(lines[0])
            for _ in range(times):
                file.writelines(lines[1:])
        arguments = [sys.executable, "-c", code, str(here / "model"), str(path), str(tmp_path / "out.csv")]
        found = subprocess.run(arguments, capture_output=True, text=True, check=True)
        peaks.append(int(found.stdout) / (1 if sys.platform == "darwin" else 1024))
    assert peaks[1] < peaks[0] + 40
