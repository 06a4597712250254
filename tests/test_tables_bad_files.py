"""Tables that cannot be read: one line that says what is wrong and where, and nothing is left behind."""

import shutil
import subprocess

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")
pytest.importorskip("typer")

import pandas as pd

from closedform.tabular import cells, reading, target

from .table_cases import GOOD, RUN, command, homes


def bad(name, content, *parts, arguments=("--target", "price")):
    return pytest.param(content, parts, arguments, id=name)


BAD = [
    bad("no header", GOOD.partition("\n")[2], "no header"),
    bad("no such target", GOOD, "there is no column 'cost'", "'area', 'rooms', 'price'", arguments=("--target", "cost")),
    bad("no such category", GOOD, "no column 'zip'", arguments=("--target", "price", "--categorical", "zip")),
    bad("text in a number column", GOOD.replace("\n7.5,", "\nseven,"), "row 8", "'area'", "'seven'", "--categorical area",
        "--ignore area"),
    bad("text in the target", GOOD.replace(",21.25", ",dear"), "row 8", "'price'", "'dear'"),
    bad("infinite", GOOD.replace("\n7.5,", "\ninf,"), "row 8", "'area'", "finite"),
    bad("one row", "\n".join(GOOD.splitlines()[:2]) + "\n", "1 row", "at least 2"),
    bad("no rows", GOOD.splitlines()[0] + "\n", "0 rows"),
    bad("empty", "", "empty"),
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
    bad("two units", "a,price\n" + "".join(f"{i},{i}.5 {'km' if i % 2 else 'm'}\n" for i in range(30)), "'price'",
        "several units"),
    bad("a name in another case", GOOD, "no column 'Price'", "did you mean 'price'?", arguments=("--target", "Price")),
    bad("no such column to ignore", GOOD, "no column 'room'", "did you mean 'rooms'?",
        arguments=("--target", "price", "--ignore", "room")),
    bad("the target ignored", GOOD, "'price'", "cannot be ignored", arguments=("--target", "price", "--ignore", "price")),
    bad("everything ignored", GOOD, "no column is left", "'area' is left out: as you asked",
        arguments=("--target", "price", "--ignore", "area,rooms")),
    bad("a date that is none", "day,price\n" + "".join(f"2024-01-{1 + i},{i}.5\n" for i in range(30)) + "soon,7\n",
        "row 31", "'day'", "'soon'"),
    bad("blank lines", "\n\n\n", "blank"),
    bad("gzip", b"\x1f\x8b\x08\x00", "gzip"),
    bad("a target that does not vary", "a,price\n" + "1,5.5\n2,5.5\n" * 5, "'price'", "every row is 5.5"),
    bad("a target of one class", "a,price\n" + "1,5\n2,5\n" * 5, "every row is '5';"),
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
    completed = subprocess.run(
        [*RUN, "train", "homes.csv", "--target", "cost"], cwd=tmp_path, capture_output=True, text=True
    )
    assert completed.returncode == 2
    assert completed.stderr.startswith("closedform: homes.csv: there is no column 'cost'")
    assert completed.stderr.count("\n") == 1


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
    assert cells.texts(table["b"]).tolist() == ["1", "1", "01", "1.5", "x", "-3"]


def test_a_class_of_one_row_is_trained_on():
    y = np.array(["no"] * 20 + ["yes"])
    for seed in range(30):
        first, second = target.split(y, seed, "classification")
        assert 20 in first
        assert sorted([*first, *second]) == list(range(21))


def test_a_nested_column_of_a_parquet_file(tmp_path):
    pd.DataFrame({"a": [[1, 2]] * 9, "price": range(9)}).to_parquet(tmp_path / "n.parquet")
    code, said = command("train", tmp_path / "n.parquet", "--target", "price")
    assert code == 2
    assert "column 'a' holds list" in said


@pytest.mark.parametrize("encoding", ["zlib_codec", "rot13", "base64", "hex", "klingon"])
def test_an_encoding_that_is_not_one_of_texts(encoding, tmp_path):
    (tmp_path / "homes.csv").write_text(GOOD)
    code, said = command("train", tmp_path / "homes.csv", "--target", "price", "--encoding", encoding)
    assert code == 2
    assert f"there is no encoding '{encoding}' for texts" in said
    assert [p.name for p in tmp_path.iterdir()] == ["homes.csv"]
