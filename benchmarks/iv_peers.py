"""`DFIVRegressor` beside the packages that applied readers have: `linearmodels`, `econml` and `doubleml`.

    python benchmarks/iv_peers.py

Each is run where it is installed (the extra `benchmarks` lists them) and where the design allows it: methods that take the
controls out by learned regressions need controls. All have the settings that their pages begin with; regressions inside
`econml` and `doubleml` are random forests of 100 trees. `econml` has no deep estimator any more (version 0.16 dropped it).
Its SieveTSLS wants features of an effect and was left out: without controls it gave no effect at all here.

On the real tables (card, mroz) there is no truth: what a year of schooling does to the logarithm of the wage, with the 95 %
interval. On simulated shapes of `dfiv_shapes.py`, 2,000 rows, the mean squared error of the structural function less its
mean. One thread; seconds of the processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import dfiv_shapes
from closedform.iv import DFIVRegressor
from closedform.paper.data import iv
from common import RESULTS, save

TABLES = ("mroz", "card")
SHAPES = ("line", "kink", "threshold x covariate", "many weak instruments")


class Rows(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    W: np.ndarray | None


class Answer(NamedTuple):
    """The average effect with its interval, where a method has one, and the structural function."""

    effect: float
    interval: tuple[float, float] | None
    f: Callable[[np.ndarray, np.ndarray | None], np.ndarray]


def _line(slope: float) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
    return lambda X, _: slope * X[:, 0]


def _forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(100, min_samples_leaf=5, random_state=seed, n_jobs=1)


def ours(rows: Rows, seed: int) -> Answer:
    model = DFIVRegressor(random_state=seed).fit(rows.X, rows.y, Z=rows.Z, W=rows.W)
    effect = model.average_effect(level=0.95)
    return Answer(float(effect.estimate[0]), (float(effect.low[0]), float(effect.high[0])), model.predict)


def _linearmodels(method: str) -> Callable[[Rows, int], Answer]:
    def fit(rows: Rows, seed: int) -> Answer:
        from linearmodels.iv import IV2SLS, IVLIML

        ones = np.ones((len(rows.y), 1))
        known = ones if rows.W is None else np.column_stack([ones, rows.W])
        result = {"2SLS": IV2SLS, "LIML": IVLIML}[method](rows.y, known, rows.X, rows.Z).fit(cov_type="robust")
        slope, ends = float(result.params.iloc[-1]), result.conf_int().iloc[-1]
        return Answer(slope, (float(ends.iloc[0]), float(ends.iloc[1])), _line(slope))

    return fit


def ortho_iv(rows: Rows, seed: int) -> Answer:
    from econml.iv.dml import OrthoIV

    nuisances = {name: _forest(seed) for name in ("model_y_xw", "model_t_xw", "model_z_xw")}
    model = OrthoIV(**nuisances, random_state=seed).fit(rows.y, rows.X[:, 0], Z=_single(rows), W=rows.W)
    slope, ends = float(model.const_marginal_ate()), model.const_marginal_ate_interval(alpha=0.05)
    return Answer(slope, (float(ends[0]), float(ends[1])), _line(slope))


def iv_forest(rows: Rows, seed: int) -> Answer:
    """Effects that depend on the controls, linear in the treatment; outcomes and treatments less forests of the controls."""
    from econml.grf import CausalIVForest

    assert rows.W is not None
    z = _single(rows)
    left = [values - _out_of_bag(rows.W, values, seed) for values in (rows.X[:, 0], rows.y, z)]
    forest = CausalIVForest(n_estimators=400, random_state=seed, n_jobs=1).fit(rows.W, left[0], left[1], Z=left[2])
    base = _forest(seed).fit(rows.W, rows.y - forest.predict(rows.W)[:, 0] * rows.X[:, 0])

    def f(X: np.ndarray, W: np.ndarray | None) -> np.ndarray:
        assert W is not None
        return forest.predict(W)[:, 0] * X[:, 0] + base.predict(W)

    return Answer(float(forest.predict(rows.W).mean()), None, f)


def partially_linear(rows: Rows, seed: int) -> Answer:
    import doubleml

    np.random.seed(seed)  # doubleml splits by the global state of numpy
    data = doubleml.DoubleMLData.from_arrays(rows.W, rows.y, rows.X[:, 0], _single(rows))
    model = doubleml.DoubleMLPLIV(data, _forest(seed), _forest(seed), _forest(seed)).fit()
    slope, ends = float(model.coef[0]), model.confint(level=0.95).to_numpy()[0]
    return Answer(slope, (float(ends[0]), float(ends[1])), _line(slope))


def _single(rows: Rows) -> np.ndarray:
    """One instrument: what a linear first stage makes of several."""
    if rows.Z.shape[1] == 1:
        return rows.Z[:, 0]
    Z = np.column_stack([np.ones(len(rows.Z)), rows.Z])
    return Z @ np.linalg.lstsq(Z, rows.X[:, 0], rcond=None)[0]


def _out_of_bag(W: np.ndarray, values: np.ndarray, seed: int) -> np.ndarray:
    forest = _forest(seed).set_params(oob_score=True)
    return forest.fit(W, values).oob_prediction_


METHODS: dict[str, tuple[str | None, Callable[[Rows, int], Answer]]] = {  # the package that is needed, and the method
    "DFIVRegressor": (None, ours),
    "linearmodels 2SLS": ("linearmodels", _linearmodels("2SLS")),
    "linearmodels LIML": ("linearmodels", _linearmodels("LIML")),
    "econml OrthoIV": ("econml", ortho_iv),
    "econml CausalIVForest": ("econml", iv_forest),
    "doubleml PLIV": ("doubleml", partially_linear),
}
NEED_CONTROLS = ("econml OrthoIV", "econml CausalIVForest", "doubleml PLIV")


def installed() -> list[str]:
    return [name for name, (package, _) in METHODS.items() if package is None or importlib.util.find_spec(package)]


def measured(rows: Rows, name: str, seed: int) -> tuple[dict, Answer]:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = METHODS[name][1](rows, seed)
    seconds = time.process_time() - start
    return {"method": name, "effect": answer.effect, "interval": answer.interval, "cpu_s": seconds}, answer


def on_table(name: str, methods: list[str]) -> dict:
    c = iv.model(name)
    rows = Rows(*(part.to_numpy(dtype=np.float64) for part in (c.X, c.y, c.Z, c.W)))
    results = []
    for method in methods:
        results.append(measured(rows, method, 0)[0])
        print(name, results[-1], flush=True)
    return {"design": name, "rows": len(rows.y), "results": results}


def on_shape(name: str, methods: list[str], n: int, seeds: range) -> dict:
    results = []
    draws = [dfiv_shapes.SHAPES[name](n, np.random.default_rng([seed, 7])) for seed in seeds]
    for method in methods:
        if draws[0].W is None and method in NEED_CONTROLS:
            continue
        errors, seconds = [], []
        for seed, draw in zip(seeds, draws):
            result, answer = measured(Rows(draw.X, draw.y, draw.Z, draw.W), method, seed)
            curve = answer.f(draw.at, draw.at_controls)
            errors.append(float(np.square(curve - curve.mean() - draw.f + draw.f.mean()).mean()))
            seconds.append(result["cpu_s"])
        results.append({"method": method, "errors": errors, "cpu_s": statistics.fmean(seconds)})
        print(name, results[-1], flush=True)
    return {"design": name, "rows": n, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one draw of 300 rows of two shapes, no tables")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--seeds", type=int, default=3, help="draws of each shape")
    parser.add_argument("--designs", nargs="+", choices=(*TABLES, *SHAPES), help="only these; others stay in the file")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="only these; others stay in the file")
    args = parser.parse_args()
    args.device = "cpu"
    torch.set_num_threads(1)
    methods, path = args.methods or installed(), args.out / "iv_peers-cpu.json"
    table = {row["design"]: row for row in json.loads(path.read_text())["rows"]} if path.is_file() else {}
    for name in args.designs or (SHAPES[::2] if args.quick else (*TABLES, *SHAPES)):
        before = {result["method"]: result for result in table.get(name, {"results": []})["results"]}
        if name in TABLES:
            table[name] = on_table(name, methods)
        else:
            n, seeds = (300, range(20, 21)) if args.quick else (2000, range(20, 20 + args.seeds))
            table[name] = on_shape(name, methods, n, seeds)
        results = before | {result["method"]: result for result in table[name]["results"]}
        table[name]["results"] = [results[method] for method in METHODS if method in results]
        rows = [table[design] for design in (*TABLES, *SHAPES) if design in table]
        save(args, "iv_peers", "Beside linearmodels, econml and doubleml: estimates, intervals, errors, seconds.", rows)


if __name__ == "__main__":
    main()
