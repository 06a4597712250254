"""The estimators on data frames: texts, categories, dates and gaps in `fit` and `predict`, and arrays as ever."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

import pandas as pd
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from closedform import archive
from closedform.tabular import ClosedFormClassifier, ClosedFormRegressor, load

from .table_cases import FAST, daily_sales, everyday, table

pytestmark = pytest.mark.filterwarnings("ignore:Column ")  # remarks, which have tests of their own
QUICK = {"max_iter": 3, "random_state": 0}


def target(frame, seed=0):
    area = frame["area"].str.removesuffix(" m²").astype(float)
    return area + 50 * (frame["district"] == "east") + np.random.default_rng(seed).normal(0, 2, len(frame))


# ---- Numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ClosedFormRegressor, ClosedFormClassifier])
@pytest.mark.parametrize("convert", [lambda f: f, lambda f: f.convert_dtypes(), lambda f: f.assign(e=f.a > 0)])
def test_a_frame_of_numbers_is_an_array(kind, convert):
    X, y = table(120)
    y = y if kind is ClosedFormRegressor else (y > np.median(y)).astype(int)
    frame = convert(pd.DataFrame(X, columns=["a", "b", "c", "d"]))
    array = frame.to_numpy(dtype=np.float64)
    by_array, by_frame = kind(**QUICK).fit(array, y), kind(**QUICK).fit(frame, y)
    assert np.array_equal(by_array.coef_, by_frame.coef_)
    assert np.array_equal(by_array.predict(array), by_frame.predict(frame))
    assert by_frame.feature_names_in_.tolist() == list(frame.columns)
    assert not hasattr(by_array, "preparation_")
    assert set(by_frame.preparation_.descriptions().values()) == {"number"}


def test_a_gap_that_training_has_not_seen_is_the_median():
    X, y = table(120)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    model = ClosedFormRegressor(**QUICK).fit(frame, y)
    holes = frame.mask(pd.DataFrame(np.eye(120, 4) > 0, columns=frame.columns))
    assert np.array_equal(model.predict(holes), model.predict(frame.where(holes.notna(), frame.median(), axis=1)))
    with pytest.raises(ValueError, match="contains NaN"):
        ClosedFormRegressor(**QUICK).fit(X, y).predict(np.full((2, 4), np.nan))  # an array has no preparation
    with pytest.raises(ValueError, match="infinity"):
        model.predict(frame.assign(a=np.inf))


def test_gaps_in_training_are_inputs():
    X, y = table(200)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    frame.loc[::3, "b"] = np.nan
    model = ClosedFormRegressor(**QUICK).fit(frame, y)
    prepared = model.preparation_.transform(frame)
    assert prepared.shape == (200, 5)
    assert np.array_equal(ClosedFormRegressor(**QUICK).fit(prepared, y).coef_, model.coef_)
    assert (model.n_features_in_, len(model.input_scale_)) == (4, 5)


# ---- Everything ----------------------------------------------------------------------------------


def test_a_frame_as_people_have_it(tmp_path):
    frame = everyday()
    y = target(frame)
    model = ClosedFormRegressor(**FAST).fit(frame[:300], y[:300])
    assert model.score(frame[300:], y[300:]) > 0.8
    assert model.n_features_in_ == len(frame.columns)
    assert model.feature_names_in_.tolist() == list(frame.columns)
    predicted = model.predict(frame)
    for again in (pickle.loads(pickle.dumps(model)), load(model.save(tmp_path / "model.safetensors"))):
        assert np.array_equal(again.predict(frame), predicted)
        assert again.preparation_.to_json() == model.preparation_.to_json()
        assert again.feature_names_in_.tolist() == list(frame.columns)
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "preparation_")
    assert np.array_equal(fresh.fit(frame[:300], y[:300]).predict(frame), predicted)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert np.array_equal(model.predict(frame.to_numpy(dtype=object)), predicted)


def test_a_classifier_of_texts(tmp_path):
    frame = everyday()
    y = pd.Series(np.where(target(frame) > 130, "dear", "cheap"))
    model = ClosedFormClassifier(**FAST).fit(frame[:300], y[:300])
    assert model.score(frame[300:], y[300:]) > y[300:].value_counts(normalize=True).max() + 0.1
    again = load(model.save(tmp_path / "model.safetensors"))
    assert np.array_equal(again.predict_proba(frame), model.predict_proba(frame))


def test_names_are_checked_as_scikit_learn_does():
    frame = everyday()
    model = ClosedFormRegressor(**QUICK).fit(frame, target(frame))
    with pytest.raises(ValueError, match="same order"):
        model.predict(frame[frame.columns[::-1]])
    with pytest.raises(ValueError, match="unseen at fit time"):
        model.predict(frame.assign(more=1))
    with pytest.raises(ValueError, match="missing"):
        model.predict(frame.drop(columns="area"))
    with pytest.raises(ValueError, match="no rows"):
        model.predict(frame[:0])
    with pytest.raises(ValueError, match="row 7, column 'area': expected a number in m², got 'large'"):
        model.predict(frame.assign(area=frame.area.mask(frame.index == 7, "large")))


def test_a_failed_fit_leaves_the_last_one():
    frame = everyday()
    model = ClosedFormRegressor(**QUICK).fit(frame, target(frame))
    before = model.predict(frame)
    with pytest.raises(ValueError, match="column 'area'"):
        model.fit(frame.assign(area=frame.area.mask(frame.index == 7, "large")), target(frame))
    with pytest.raises(ValueError, match="requires y"):
        model.fit(frame, None)
    assert np.array_equal(model.predict(frame), before)
    X, y = table(100)
    assert not hasattr(model.fit(X, y), "preparation_")


def test_more_rows_have_the_first_preparation():
    frame = everyday()
    y = target(frame)
    for model in (ClosedFormRegressor(warm_start=True, **QUICK).fit(frame[:200], y[:200]),
                  ClosedFormRegressor(**QUICK).partial_fit(frame[:200], y[:200])):  # fmt: skip
        before = model.preparation_.to_json()
        more = frame[200:].assign(district="elsewhere", rooms=np.nan)
        model.fit(more, y[200:]) if model.warm_start else model.partial_fit(more, y[200:])
        assert model.preparation_.to_json() == before
        assert np.isfinite(model.predict(frame)).all()


def test_folds_of_a_frame():
    frame = everyday(150)
    scores = cross_val_score(ClosedFormRegressor(**QUICK), frame, target(frame), cv=3)
    assert np.isfinite(scores).all()


def test_other_frames():
    pyarrow = pytest.importorskip("pyarrow")
    frame = everyday(100).drop(columns=["empty", "grade"])
    y = target(frame)
    model = ClosedFormRegressor(**QUICK).fit(pyarrow.Table.from_pandas(frame), y)
    assert np.array_equal(model.predict(frame), ClosedFormRegressor(**QUICK).fit(frame, y).predict(frame))

    class Strange:
        columns, shape = ("a",), (5, 1)

    with pytest.raises(ValueError, match=r"Strange, which has no to_pandas\(\); expected an array"):
        model.fit(Strange(), y)


def test_arrays_need_no_pandas():
    code = (
        "import sys; sys.modules['pandas'] = None; import numpy as np\n"
        "from closedform.tabular import ClosedFormRegressor\n"
        "X = np.random.default_rng(0).normal(size=(40, 3))\n"
        "ClosedFormRegressor(max_iter=1).fit(X, X[:, 0]).predict(X)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_columns_without_names(tmp_path):
    frame = pd.DataFrame({0: ["a", "b"] * 30, 1: np.linspace(0, 1, 60)})
    model = ClosedFormRegressor(**QUICK).fit(frame, np.arange(60.0))
    assert not hasattr(model, "feature_names_in_")
    again = load(model.save(tmp_path / "m.safetensors"))
    assert np.array_equal(again.predict(frame), model.predict(frame))


@pytest.mark.filterwarnings("default:Column ")
def test_remarks_are_warnings():
    frame = everyday()
    with pytest.warns(UserWarning, match="Column 'area' holds texts such as .* m²': taken as numbers, in m²."):
        ClosedFormRegressor(**QUICK).fit(frame, target(frame))


@pytest.mark.parametrize("change", [
    lambda p: [],
    lambda p: p | {"columns": p["columns"][1:]},
    lambda p: p | {"columns": [{**p["columns"][0], "gaps": True}, *p["columns"][1:]]},
    lambda p: p | {"columns": [{**p["columns"][0], "codes": [1]}, *p["columns"][1:]]},
])  # fmt: skip
def test_a_file_with_another_preparation_is_refused(change, tmp_path):
    frame = everyday(100)
    path = ClosedFormRegressor(**QUICK).fit(frame, target(frame)).save(tmp_path / "m.safetensors")
    header, tensors = archive.read(path)
    archive.write(path, header | {"preparation": change(header["preparation"])}, tensors)
    with pytest.raises(ValueError, match="holds no closedform estimator that this version knows"):
        load(path)


# ---- Dates ---------------------------------------------------------------------------------------


def test_daily_sales():
    """A date as text is about as good as numbers that are made of it by hand, and far better than one input for every date,
    which is how a text would be taken."""
    frame = daily_sales(years=2)
    y, n = frame.pop("sales").to_numpy(), int(0.8 * len(frame))

    def rmse(X):
        model = ClosedFormRegressor(members=1, max_iter=12, random_state=0).fit(X[:n], y[:n])
        return np.sqrt(np.mean((model.predict(X[n:]) - y[n:]) ** 2))

    day = frame.date.dt
    phase = 2 * np.pi * day.day_of_year / 365
    by_hand = rmse(pd.concat([
        day.year + day.day_of_year / 365, np.sin(phase), np.cos(phase), pd.get_dummies(day.day_of_week),
        pd.get_dummies(day.month), pd.get_dummies(frame.store),
    ], axis=1).to_numpy(dtype=float))  # fmt: skip
    as_text = rmse(frame.assign(date=day.strftime("%d.%m.%Y")))
    one_hot = rmse(frame.assign(date=day.strftime("%d.%m.%Y").astype("category")))
    assert as_text < 1.15 * by_hand
    assert as_text < 7  # of which 5 are noise
    assert as_text < 0.25 * one_hot


@pytest.mark.parametrize("gaps", [False, True])
def test_rows_of_weight_zero_do_not_shape_the_preparation(gaps):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=60), "kind": rng.choice(["a", "b", "c"], 60)})
    weight = np.r_[np.ones(40), np.zeros(20)]
    frame.loc[40:, "size"] = 1e6
    if gaps:
        frame.loc[::7, "size"] = np.nan
    else:
        frame = frame[["size"]]
    y = rng.normal(size=60)
    settings = {"members": 1, "max_iter": 2, "random_state": 0}
    whole = ClosedFormRegressor(**settings).fit(frame, y, sample_weight=weight)
    part = ClosedFormRegressor(**settings).fit(frame[:40], y[:40])
    assert whole.preparation_.to_json() == part.preparation_.to_json()
    np.testing.assert_array_equal(whole.predict(frame[:40]), part.predict(frame[:40]))
