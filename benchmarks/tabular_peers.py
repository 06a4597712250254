"""Defaults against the strongest defaults of others, on 22 regression and 13 classification tables, and the intervals.

    CLOSEDFORM_DATA=... python benchmarks/tabular_peers.py [--models closedform RealMLP-TD-S ...] [--tables wind ...]

One split of each table: the first of nine UCI sets, the fixed test part of 26 sets of the Penn Machine Learning Benchmarks.
Raw columns, one thread, all defaults, no tuning by anybody; seconds are those of the processor. For closedform also how many
test targets its 90 % intervals hold, how wide they are, and the same of MAPIE's split conformal prediction around the same
model (fitted on four fifths of the rows, calibrated on the rest).

Results are one row for a table and a model: stopped at any time, the same command goes on, and a peer that was run once is
not run again when closedform changes.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from closedform.files import atomic
from closedform.paper.data import store, tabular
from closedform.tabular import ClosedFormClassifier, ClosedFormRegressor
from common import RESULTS, code_of_tables, environment

PMLB = "pmlb26.npz"
ALPHA = 0.1


def _closedform(classes: bool) -> Any:
    return (ClosedFormClassifier if classes else ClosedFormRegressor)(random_state=0)


def _pytabkit(name: str) -> Callable[[bool], Any]:
    def build(classes: bool) -> Any:
        import pytabkit

        kind = getattr(pytabkit, f"{name}_{'Classifier' if classes else 'Regressor'}")
        return kind(device="cpu", random_state=0, n_threads=1)

    return build


def _catboost(classes: bool) -> Any:
    import catboost

    kind = catboost.CatBoostClassifier if classes else catboost.CatBoostRegressor
    return kind(thread_count=1, random_seed=0, verbose=0, allow_writing_files=False)


def _lightgbm(classes: bool) -> Any:
    import lightgbm

    return (lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor)(n_jobs=1, random_state=0, verbose=-1)


def _mlp(classes: bool) -> Any:
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), (MLPClassifier if classes else MLPRegressor)(random_state=0))


def _linear(classes: bool) -> Any:
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = LogisticRegression(max_iter=1000) if classes else RidgeCV(np.logspace(-3, 3, 13))
    return make_pipeline(StandardScaler(), model)


MODELS: dict[str, Callable[[bool], Any]] = {
    "closedform": _closedform,
    "linear": _linear,
    "MLP": _mlp,
    "LightGBM": _lightgbm,
    "CatBoost": _catboost,
    "RealMLP-TD-S": _pytabkit("RealMLP_TD_S"),
    "RealMLP-TD": _pytabkit("RealMLP_TD"),
    "TabM": _pytabkit("TabM_D"),
    "xRFM": _pytabkit("XRFM_D"),
    "LightGBM-TD": _pytabkit("LGBM_TD"),
    "CatBoost-TD": _pytabkit("CatBoost_TD"),
}
DEFAULT = ("closedform", "linear", "MLP", "LightGBM", "CatBoost", "RealMLP-TD-S")


def names() -> dict[str, bool]:
    """The tables and whether their targets are classes, small ones first."""
    path = store.data_file(PMLB)
    if path is None:
        raise SystemExit(f"{PMLB} was not found: set CLOSEDFORM_DATA to the folder that holds it")
    with np.load(path, allow_pickle=False) as file:
        table_names = {name.split("/")[0] for name in file.files}
        sizes = {name: (len(file[f"{name}/y"]), file[f"{name}/y"].dtype.kind != "f") for name in table_names}
    sizes |= {f"uci {name}": (len(tabular.load(name).y), False) for name in tabular.NAMES.values()}
    return {name: classes for name, (_, classes) in sorted(sizes.items(), key=lambda item: (item[1][1], item[1][0]))}


def split(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    if name.startswith("uci "):
        return tabular.load(name[4:]).split(0)
    with np.load(store.data_file(PMLB), allow_pickle=False) as file:  # pyright: ignore[reportArgumentType]
        x, y, test = file[f"{name}/x"].astype(np.float64), file[f"{name}/y"], file[f"{name}/test"].astype(bool)
    return x[~test], y[~test], x[test], y[test]


def one(name: str, classes: bool, model: str) -> dict:
    X, y, X_test, y_test = split(name)
    estimator = MODELS[model](classes)
    start = time.process_time()
    estimator.fit(X, y)
    row: dict = {"table": name, "model": model, "classes": classes, "rows": len(X), "columns": X.shape[1]}
    row["seconds"] = time.process_time() - start
    predicted = np.asarray(estimator.predict(X_test)).reshape(-1)
    if classes:
        chance = np.clip(np.asarray(estimator.predict_proba(X_test)), 1e-15, None)
        right = chance[np.arange(len(y_test)), np.searchsorted(np.unique(y), y_test)] / chance.sum(1)
        row |= {"error": float(np.mean(predicted != y_test)), "log_loss": float(-np.log(right).mean())}
    else:
        row["rmse"] = float(np.sqrt(np.mean((predicted - y_test) ** 2)))
    if model == "closedform" and not classes:
        row["interval"] = _cover(estimator.predict_interval(X_test, ALPHA), y_test, y)
        row["split_conformal"] = _split_conformal(X, y, X_test, y_test)
    return row


def _cover(ends: np.ndarray, truth: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The share of targets inside, and the mean width over the deviation of the targets."""
    inside = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
    return {"covered": float(inside.mean()), "width": float((ends[:, 1] - ends[:, 0]).mean() / y.std())}


def _split_conformal(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from mapie.regression import SplitConformalRegressor

    order = np.random.RandomState(0).permutation(len(X))
    rest, last = order[len(X) // 5 :], order[: len(X) // 5]
    model = ClosedFormRegressor(random_state=0).fit(X[rest], y[rest])
    around = SplitConformalRegressor(model, confidence_level=1 - ALPHA, prefit=True).conformalize(X[last], y[last])
    return _cover(around.predict_interval(X_test)[1][:, :, 0], y_test, y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=DEFAULT, choices=list(MODELS))
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    path, code = args.out / "tabular_peers-cpu.json", code_of_tables()
    rows = json.loads(path.read_text())["rows"] if path.is_file() else []
    if "closedform" in args.models:  # is run again where it has changed
        rows = [row for row in rows if row["model"] != "closedform" or row["code"] == code]
    done = {(row["table"], row["model"]) for row in rows}
    tables = names()
    cells = [(t, tables[t], m) for m in args.models for t in args.tables or tables if (t, m) not in done]
    with threadpool_limits(1):
        for at, (name, classes, model) in enumerate(cells, 1):
            row = one(name, classes, model) | ({"code": code} if model == "closedform" else {})
            rows.append(row)
            body = {"question": "defaults of strong models on tables", "environment": environment("cpu"), "rows": rows}
            with atomic(path) as file:
                file.write(json.dumps(body).replace('{"table"', '\n{"table"').encode() + b"\n")
            error = row.get("rmse", row.get("log_loss"))
            print(f"{at}/{len(cells)} {name}, {model}: {error:.4g} in {row['seconds']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
