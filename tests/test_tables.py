"""`closedform train` and `closedform predict`: folders, files of any length, bad files, and a training that is killed."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")
pytest.importorskip("typer")

import pandas as pd

from closedform import archive
from closedform.estimators import load
from closedform.tabular import charts, choosing, folder, permutation, reading, target, training

from .table_cases import command, everyday, homes

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
    assert body["target"] == "price"
    assert body["data"] == "../homes.csv"
    assert {c["name"]: c["kind"] for c in body["preparation"]["columns"]} == {
        "area": "number", "rooms": "number", "district": "category", "zip": "category"
    }  # fmt: skip
    assert list(body["columns"]) == ["area", "rooms", "district", "zip"]
    assert set(body["scores"]) == {
        "metric", "closedform", "ridge", "plain Adam network", "mean of the training rows"
    }  # fmt: skip
    spread = np.std(pd.read_csv(here / "model" / "predictions.csv")["true price"])
    assert body["R²"]["closedform"] == pytest.approx(1 - (outcome.scores["closedform"] / spread) ** 2)
    assert -0.2 < body["R²"]["mean of the training rows"] <= 0


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


def test_the_folder_loads_in_python(trained):
    """With its preparation: a data frame, a table with other columns in another order, and the file agree."""
    here, outcome = trained
    model = load(here / "model")
    frame = pd.read_csv(here / "homes.csv")
    assert command("predict", here / "model", here / "homes.csv", "--out", here / "p.csv")[0] == 0
    expected = pd.read_csv(here / "p.csv")["predicted price"]
    np.testing.assert_allclose(model.predict(frame), expected, rtol=1e-12)
    shuffled = frame[["zip", "price", "district", "rooms", "area"]].assign(more=1)
    assert np.array_equal(model.predict(shuffled), model.predict(frame))
    assert np.array_equal(outcome.model.estimator.predict(frame), model.predict(frame))
    assert model.preparation_.descriptions() == json.loads((here / "model" / "model.json").read_text())["columns"]
    with pytest.raises(ValueError, match="there is no column 'rooms'; the model needs it"):
        model.predict(frame.drop(columns="rooms"))


def test_numbers_are_imputed_as_scikit_learn_does(trained):
    from sklearn.impute import SimpleImputer

    here, outcome = trained
    table = reading.whole(here / "homes.csv")
    numbers = homes()[["area", "rooms"]].set_axis(table.index)
    tested = pd.read_csv(here / "model" / "predictions.csv")["row"]
    imputer = SimpleImputer(strategy="median", add_indicator=True).fit(numbers.drop(index=tested))
    prepared = outcome.model.preparation.transform(table)
    assert np.array_equal(prepared[:, [0, 2, 1]], imputer.transform(numbers))


def test_the_preparation_knows_only_the_rows_to_train_on(tmp_path):
    path = tmp_path / "t.csv"
    table = pd.DataFrame({"a": range(40), "b": ["x", "y"] * 20, "only": [""] * 40})
    table.loc[39, ["a", "b", "only"]] = [10**6, "w", "3"]
    table.loc[38, "b"] = "w"
    table.to_csv(path, index=False)
    read = reading.whole(path)
    for rows in (np.arange(20), np.arange(38)):
        preparation = choosing.choose(read, rows=rows)
        number, category, empty = preparation.columns
        assert number.median == np.median(rows)
        assert category.values == ["x", "y"]
        assert empty.reason == "all its values are missing in the rows to train on"


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
        assert target.read(reading.whole(path), "y", "auto", []).task == expected


def test_what_columns_were_taken_for_is_said(tmp_path):
    table = everyday(120).assign(**{"a,b": 1.5, "price [usd]": np.arange(120) ** 1.5})
    table.to_csv(tmp_path / "t.csv", index=False)
    code, said = command(
        "train", tmp_path / "t.csv", "--target", "price [usd]", "--epochs", 1, "--ignore", "a,b", "--ignore",
        "number, agent_id", "--ignore", "note", "--categorical", "grade", "--importance", "none",
    )  # fmt: skip
    assert code == 0
    assert "  numbers: area (m²), cost ($), share (%), rooms\n" in said
    assert "  dates and times: sold, seen\n" in said
    assert "  left out: number, agent_id, note, empty, same, a,b\n" in said
    assert "Column 'empty' is left out: all its values are missing." in said
    assert "only 24 rows" in said
    assert "R²" in said
    assert "mean of the training rows" in said
    body = json.loads((tmp_path / "t-model" / "model.json").read_text(encoding="utf-8"))
    assert body["columns"]["agent_id"] == "left out: as you asked"
    assert body["columns"]["grade"] == "category, 4 values"
    assert command("predict", tmp_path / "t-model", tmp_path / "t.csv")[0] == 0
    frame = pd.read_csv(tmp_path / "t.csv").drop(columns=["number", "note", "a,b"])
    expected = pd.read_csv(tmp_path / "t-predictions.csv")["predicted price [usd]"]
    np.testing.assert_allclose(load(tmp_path / "t-model").predict(frame), expected, rtol=1e-12)


def test_a_target_with_a_unit(tmp_path):
    table = homes(60)
    table["price"] = [f"${price:,.2f}" for price in 1000 * table.price]
    table.to_csv(tmp_path / "homes.csv", index=False)
    outcome = training.train(tmp_path / "homes.csv", "price", tmp_path / "m", max_iter=1)
    rows = pd.read_csv(tmp_path / "m" / "predictions.csv", index_col="row")
    assert outcome.model.task == "regression"
    assert np.array_equal(rows["true price"], (1000 * homes(60).price).round(2).to_numpy()[rows.index - 1])
    assert any("taken as numbers, in $" in remark for remark in outcome.remarks)


@pytest.mark.parametrize("target", ["rate [/s]", "price [usd]", "[bold]p[/bold] :smile:"])
def test_names_with_brackets_are_printed_as_they_are(target, tmp_path):
    homes(60).rename(columns={"price": target}).to_csv(tmp_path / "homes.csv", index=False)
    code, said = command("train", tmp_path / "homes.csv", "--target", target, "--epochs", 1)
    assert code == 0
    assert repr(target) in said


def test_a_label_is_no_formula(tmp_path):
    """Texts that a spreadsheet would run get an apostrophe; numbers, also negative ones, stay what they are."""
    table = homes(120)
    for labels, written in ((["=HYPERLINK(1)", "@SUM(1)"], {"'=HYPERLINK(1)", "'@SUM(1)"}), ([-1, 1], {"-1", "1"})):
        table["price"] = np.where(table.index % 2, *labels)
        table.to_csv(tmp_path / "homes.csv", index=False)
        assert command("train", tmp_path / "homes.csv", "--target", "price", "--epochs", 1)[0] == 0
        assert command("predict", tmp_path / "homes-model", tmp_path / "homes.csv")[0] == 0
        tested = pd.read_csv(tmp_path / "homes-model" / "predictions.csv", dtype=str)
        predicted = pd.read_csv(tmp_path / "homes-predictions.csv", dtype=str)
        assert set(tested["true price"]) == written
        assert {*tested["predicted price"], *predicted["predicted price"]} <= written


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
    X = model.preparation.transform(reading.whole(here / "homes.csv"))
    full = permutation.importance(model.estimator, X, homes().price.to_numpy(), "regression", 0, budget=None)
    assert full.entries[0][0] == "area"
    assert full.entries[0][1] > 3 * abs({n: v for n, v, _ in full.entries}["zip"])
    assert (full.rows, full.shuffles, full.columns) == (200, permutation.SHUFFLES, 4)
    one = permutation.importance(model.estimator, X, homes().price.to_numpy(), "regression", 0, budget=1e-9)
    assert [name for name, _, _ in one.entries] == ["area"]  # what the predictions go with most
    assert (one.rows, one.shuffles, one.columns) == (200, 1, 4)
    assert "1 of 4 columns" in one.caption()


def test_importance_is_scikit_learns(trained):
    """The same measure as `permutation_importance` on the table itself, up to the shuffles that are drawn."""
    from sklearn.inspection import permutation_importance

    here, _ = trained
    model = folder.load(here / "model")
    table, y = pd.read_csv(here / "homes.csv"), homes().price.to_numpy()
    ours = permutation.importance(model.estimator, model.preparation.transform(table), y, "regression", 0, budget=None)
    theirs = permutation_importance(
        model.estimator, table[model.preparation.used], y, n_repeats=5, scoring="neg_root_mean_squared_error",
        random_state=0,
    )  # fmt: skip
    for name, value, spread in ours.entries:
        k = model.preparation.used.index(name)
        assert abs(value - theirs.importances_mean[k]) < 4 * (spread + theirs.importances_std[k]) + 1e-9


def test_many_columns_do_not_wait_for_their_importance(tmp_path):
    g = np.random.default_rng(0)
    wide = pd.DataFrame(g.normal(size=(60, 500)), columns=[f"c{k}" for k in range(500)])
    wide["y"] = wide.c7 * 3 + g.normal(size=60)
    wide.to_parquet(tmp_path / "wide.parquet")
    steps = []
    outcome = training.train(
        tmp_path / "wide.parquet", "y", tmp_path / "m", max_iter=2, progress=lambda done, total: steps.append(done)
    )
    assert outcome.importance is not None
    assert steps == list(range(1, len(outcome.importance.entries) + 1))
    quiet = training.train(tmp_path / "wide.parquet", "y", tmp_path / "m", max_iter=2, importance="none")
    assert quiet.importance is None
    assert "Permutation" not in (tmp_path / "m" / "report.html").read_text(encoding="utf-8")


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


# ---- Killed, and large ---------------------------------------------------------------------------


def test_killed_in_the_middle_it_goes_on_to_the_same_model(tmp_path):
    """`kill -9` after some epochs; the same command goes on from the last one and ends with the same bits."""
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        homes(300).to_csv(tmp_path / name / "homes.csv", index=False)
    code = "from closedform.tabular import training; training.EVERY_S = 0; from closedform.cli import main; main()"
    arguments = [sys.executable, "-c", code, "train", "homes.csv", "--target", "price", "--epochs", "30"]
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
    return archive.read(checkpoint)[0]["notes"]["record"]["epoch"]


def test_a_checkpoint_of_other_data_is_not_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "EVERY_S", 0.0)
    path = tmp_path / "homes.csv"
    homes(100).to_csv(path, index=False)

    def stop(record, plan):
        if record.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(path, "price", tmp_path / "m", max_iter=5, shown=stop)
    assert epoch(tmp_path / "m.partial" / "checkpoint.safetensors") == 2
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
        completed = subprocess.run(arguments, capture_output=True, text=True, check=True)
        peaks.append(int(completed.stdout) / (1 if sys.platform == "darwin" else 1024))
    assert peaks[1] < peaks[0] + 40


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_intervals_beside_the_predictions(tmp_path, task):
    table = homes(400)
    target = "price" if task == "regression" else "district"
    table = table[table["district"].notna()]
    path, out = tmp_path / "homes.csv", tmp_path / "p.csv"
    table.to_csv(path, index=False)
    assert command("train", path, "--target", target, "--epochs", 3, "--importance", "none")[0] == 0
    folder = tmp_path / "homes-model"
    page = (folder / "report.html").read_text()
    assert ("Intervals of 90% reach" if task == "regression" else "Sets of 90% have") in page
    assert command("predict", folder, path, "--out", out, "--interval", "--level", 0.8)[0] == 0
    rows, model = pd.read_csv(out, index_col="row"), load(folder)
    if task == "regression":
        ends = model.predict_interval(table, 0.2)
        np.testing.assert_allclose(rows[["price from", "price to"]], ends)
    else:
        chosen = model.predict_set(table, 0.2)
        assert [text.count("|") + 1 for text in rows["district one of"]] == chosen.sum(1).tolist()
        assert all(row["predicted district"] in row["district one of"] for _, row in rows.iterrows())
    assert command("predict", folder, path, "--out", out)[0] == 0
    assert not any(name.endswith((" from", " to", " one of")) for name in pd.read_csv(out).columns)
    code, said = command("predict", folder, path, "--interval", "--level", 90)
    assert code != 0
    assert "between 0 and 1" in said
    code, said = command("predict", folder, path, "--level", 0.8)
    assert code != 0
    assert "--interval, which is not asked for" in said


def test_a_model_of_few_rows_has_no_intervals(tmp_path):
    path = tmp_path / "homes.csv"
    homes(40).dropna().head(5).to_csv(path, index=False)
    code, said = command("train", path, "--target", "price", "--epochs", 2, "--importance", "none")
    assert code == 0
    assert "RMSE on 1 row to test (4 to train)" in said
    code, said = command("predict", tmp_path / "homes-model", path, "--interval")
    assert code != 0
    assert "homes-model has no intervals: it was trained on too few rows" in said
    assert not (tmp_path / "homes-predictions.csv").exists()


def test_effort_multiplies_the_epochs(tmp_path):
    path = tmp_path / "homes.csv"
    homes(60).to_csv(path, index=False)
    options = ["--target", "price", "--importance", "none"]
    assert command("train", path, *options, "--effort", 0.05)[0] == 0
    assert load(tmp_path / "homes-model").n_iter_ == 3
    code, said = command("train", path, *options, "--effort", 0, "--overwrite")
    assert code != 0
    assert "effort must be a positive number" in said
