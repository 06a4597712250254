"""Numbers in sentences of the README and the pages, from the committed results.

Behind such a number stands, unseen by the reader, what it is: `0.0573<!-- qm9.sgd.32.kalman -->`, a quotient of two
(`0.80<!-- qm9.sgd.32.kalman / qm9.sgd.32.proximal -->`), a difference, or a bound (`<!-- <key -->`).

    python benchmarks/sentences.py qm9.sgd.32.kalman        # one of them
    python benchmarks/sentences.py                          # all
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).parents[1]
MARKED = re.compile(
    r"(?P<number>-?\d[\d.,]*(?:e[+-]?\d+)?)[¹²]*(?P<percent>\s?%)?(?:\*\*)?"
    r"<!-- (?P<bound><)?(?P<key>[\w.]+)(?: (?P<sign>[/-]) (?P<other>[\w.]+))? -->"
)
AIMS = {"captured": 1.02, "eager": 1.05}


@functools.cache
def all_of_them() -> dict[str, Any]:
    return {
        "qm9": _experiment("qm9") | {"lam": _lambda(), "algorithm2": _algorithms(), "zeros": _zeros()},
        "fno": _experiment("fno")
        | {
            "seeds": _by_seed(),
            "paper": _by_the_end(),
            "sooner": _sooner(),
            "train": _on_batches(),
            "setting": _by_setting(),
        },
        "fno_small": _experiment("fno_small") | {"seeds": _seeds()},
        "fno_peer": _peers(),
        "equations": _equations(),
        "cifar100": _experiment("cifar100") | _images(),
        "imagenet": _imagenet(),
        "dfiv": _experiment("dfiv"),
        "dfiv_members": _members(),
        "solve_time": {device: _solve_time(device) for device in ("cuda", "cpu")},
        "step": _step(),
        "swap": _swap(),
        "swap_others": _swap_others(),
        "swap_quick": _cells(_rows("swap_quick-cpu")),
        "shortest_memory": _shortest_memory(),
        "rule_time": _rule_time(),
        "memory": _memory(),
        "vocabulary": _vocabulary(),
        "theory": json.loads((ROOT / "results" / "theory" / "theory.json").read_text()),
    }


def value(key: str) -> float:
    """The number of a key, such as qm9.sgd.32.kalman."""
    node: Any = all_of_them()
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            known = ", ".join(node) if isinstance(node, dict) else "nothing below it"
            raise KeyError(f"{key}: no {part!r} there; known are {known}")
        node = node[part]
    return float(node)


def exact(mark: re.Match[str], within: str = "") -> float:
    """The number that a mark stands for; `within` stands before all keys of a page."""
    number = value(within + mark["key"])
    if mark["sign"]:
        other = value(within + mark["other"])
        number = number / other if mark["sign"] == "/" else number - other
    return number * (100 if mark["percent"] else 1)


def check(mark: re.Match[str], within: str = "") -> str | None:
    """What is wrong with a marked number, if anything is."""
    number = exact(mark, within)
    shown = float(mark["number"].replace(",", ""))
    digits, _, exponent = mark["number"].partition("e")
    last = int(exponent or 0) - len(digits.partition(".")[2])  # the place of the last digit
    right = number < shown if mark["bound"] else abs(shown - number) <= 0.500001 * 10.0**last
    return None if right else f"{mark[0]}: it is {number:.6g}"


def _rows(name: str) -> list[dict]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]


def _members() -> dict[str, dict[str, float]]:
    """The least and the largest share of the time that a fit of `DFIVRegressor` takes with its members side by side."""
    rows = _rows("dfiv_members-cpu")
    ratios = {count: [row["ratio"] for row in rows if row["members"] == count] for count in (2, 6)}
    return {str(count): {"least": min(some), "most": max(some)} for count, some in ratios.items()}


def _swap() -> dict[str, Any]:
    """Ratios of the swap test by task, optimizer and batch size; `overall`, `noisy_tables`, `without_naval` and
    `by_optimizer` (also without naval) are means over the cells of the page, those by an earlier default too."""
    body = json.loads((ROOT / "benchmarks" / "results" / "swap-cuda.json").read_text())
    cells: dict[str, Any] = {"overall": {k: v for k, v in body["overall"].items() if isinstance(v, (int, float))}}
    earlier = {tuple(name.split(", ")) for name in body["earlier_rule"]}
    noisy = [
        row
        for row in body["rows"]
        if row["task"].startswith("table ")
        and row["task"] != "table naval"  # whose errors differ by powers of ten
        and (row["task"], row["optimizer"], f"batch {row['batch_size']}") not in earlier
    ]
    cells["overall"] |= {kind: _mean_ratio(body["rows"], kind) for kind in ("swapped", "own")}
    cells["noisy_tables"] = {kind: _mean_ratio(noisy, kind) for kind in ("swapped", "own")}
    noiseless = [row for row in body["rows"] if row["task"] != "table naval"]
    cells["without_naval"] = {kind: _mean_ratio(noiseless, kind) for kind in ("swapped", "own")}
    cells["by_optimizer"] = {
        name: _mean_ratio([row for row in noiseless if row["optimizer"] == name], "swapped")
        for name in sorted({row["optimizer"] for row in noiseless})
    }
    factors = [row["largest"]["factor"] for row in body["rows"] if row.get("largest", {}).get("factor")]
    cells["overall"] |= {"least_factor": min(factors), "most_factor": max(factors)}
    return cells | _cells(body["rows"])


def _swap_others() -> dict[str, Any]:
    """Ratios of the swap test on more tables, by task, optimizer and batch size. For those with `numbers` and those with
    `classes` their mean, how many `cells`, how many `lose` or `gain` by more than 3 % and twice their pooled noise, and the
    mean without mv, whose errors differ by powers of ten; of those with `few` classes the mean, with nursery and without."""
    body = json.loads((ROOT / "benchmarks" / "results" / "swap_others-cpu.json").read_text())
    groups: dict[str, Any] = {}
    for group, loss in (("numbers", "squared"), ("classes", "likelihood")):
        own = [row for row in body["rows"] if body["losses"][row["task"]] == loss]
        known = [row for row in own if row["swapped"]["ratio"]]
        few = [row for row in own if "drawn to zero" in row["rule"]]
        ratios = [(row["swapped"]["ratio"], 2 * body["pooled_noise"].get(row["task"], math.nan)) for row in known]
        groups[group] = {
            "cells": len(own),
            "mean": _mean_ratio(own, "swapped"),
            "without_mv": _mean_ratio([row for row in own if row["task"] != "table mv"], "swapped"),
            "lose": sum(math.log(ratio / 1.03) > noise for ratio, noise in ratios),
            "gain": sum(math.log(ratio / 0.97) < -noise for ratio, noise in ratios),
        }
        if few:
            groups[group]["few"] = _mean_ratio(few, "swapped")
            others = [row for row in few if row["task"] != "table nursery"]
            groups[group]["few_without_nursery"] = _mean_ratio(others, "swapped")
    return groups | _cells(body["rows"])


def _mean_ratio(rows: list[dict], kind: str) -> float:
    """Geometric, over the cells that have one and in which nothing diverged."""
    return statistics.geometric_mean([row[kind]["ratio"] for row in rows if kind in row and row[kind]["ratio"]])


def _cells(rows: list[dict]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for row in rows:
        cell = {kind: row[kind]["ratio"] for kind in ("swapped", "own") if kind in row} | {"seeds": row["seeds"]}
        if "largest" in row:
            cell["factor"] = row["largest"]["factor"]
        cells.setdefault(_key(row["task"]), {}).setdefault(row["optimizer"], {})[str(row["batch_size"])] = cell
    return cells


def _shortest_memory() -> dict[str, Any]:
    """Validation errors over the learned layer's by optimizer, task (of images with the batch size) and memories; of the
    `tables` the mean (geometric) and the `worst`."""
    cells: dict[str, Any] = {}
    for row in _rows("shortest_memory-cpu"):
        ratios = {_key(rule): value for rule, value in row["ratios"].items()}
        task = f"cifar100 {row['batch_size']}" if row["task"] == "cifar100" else row["task"]
        cells.setdefault(row["optimizer"], {})[_key(task)] = ratios
    for tasks in cells.values():
        tables = [ratios for task, ratios in tasks.items() if not task.startswith("cifar100")]
        by_rule = {rule: [ratios[rule] for ratios in tables if ratios[rule]] for rule in tables[0]} if tables else {}
        tasks["tables"] = {rule: statistics.geometric_mean(some) for rule, some in by_rule.items()}
        tasks["worst"] = {rule: max(some) for rule, some in by_rule.items()}
    return cells


def _equations() -> dict[str, Any]:
    """Relative errors on differential equations by problem and way; `untrained` are the features of `trained` before."""
    ways = ("solved", "trained", "learned", "deepxde", "spectral")
    return {
        row["problem"]: {way: row[way]["error"] for way in ways if row[way]}
        | {"untrained": row["trained"]["untrained_error"]}
        for row in _rows("equations")
    }


def _rule_time() -> dict[str, Any]:
    """Milliseconds of one solve by features, batch size, loss and rule, and those of the default over one Kalman filter."""
    cells: dict[str, Any] = {}
    for row in _rows("rule_time-cuda"):
        cells.setdefault(str(row["d"]), {}).setdefault(str(row["batch"]), {})[_key(row["loss"])] = row["ms"] | {
            "auto_over_kalman": row["auto_over_kalman"]
        }
    return cells


def _vocabulary() -> dict[str, Any]:
    """Peak memory of a solve with very many classes by rows: beside the logits, and without two copies of the layer."""
    cells = {}
    for row in _rows("vocabulary-cpu"):
        peak, logits = row["peak_bytes"], row["logits_bytes"]
        rest = (peak - 2 * row["layer_bytes"]) / logits
        cells[str(row["n"])] = {"logits": peak / logits, "rest": rest, "seconds": row["seconds"], "gb": peak / 1e9}
    return cells


def _key(word: object) -> str:
    return re.sub(r"\W", "_", f"{word:g}" if isinstance(word, float) else str(word))


def _experiment(name: str, **changes: Any) -> dict[str, Any]:
    """The final metric by optimizer (where there are several), batch size and method; with `_lr`, `_lam`, ... behind it, the
    setting."""
    from closedform.paper.report import panels, summary

    table, spec = panels.read(ROOT / "results" / name)
    finals: dict[str, Any] = {}
    for facet in summary.best_settings(table, dataclasses.replace(spec, **changes)):
        here: dict[str, float] = {}
        for entry in facet.entries:
            here[_key(entry.method.key)] = entry.final
            for setting, chosen in zip(spec.settings, entry.settings):
                if chosen[0].isdigit():
                    here[f"{_key(entry.method.key)}_{setting}"] = float(chosen)
        *optimizer, batch_size = facet.names
        place = finals.setdefault(optimizer[0], {}) if optimizer else finals
        place[batch_size.removeprefix("batch size ")] = here
    return finals


def _burgers(name: str = "fno", seed: int | None = None, at_end: bool = False) -> Any:
    """The errors on Burgers' equation, of all seeds or of one."""
    from closedform.paper.claims import fno
    from closedform.paper.sweeps import results

    table = results.load(ROOT / "results" / name)
    return fno.BurgersErrors(table if seed is None else table[table["seed"] == seed], at_end=at_end)


def _by_seed() -> dict[str, Any]:
    """Errors on Burgers' equation seed by seed at the chosen settings, their median, and the largest over the least."""
    errors: dict[str, Any] = {}
    for (optimizer, size, method), own in _burgers().seeds.items():
        summary = {"median": statistics.median(own.values()), "spread": max(own.values()) / min(own.values())}
        here = errors.setdefault(optimizer, {}).setdefault(str(size), {})
        here[method] = {str(seed): error for seed, error in own.items()} | summary
    return errors


def _by_the_end() -> dict[str, dict[str, dict[str, float]]]:
    """The first seed alone, with which every setting was run: errors on Burgers' equation where the setting is chosen after
    the last step and measured there, as in the paper."""
    final = _burgers(seed=0, at_end=True).final
    return {o: {str(size): row for size, row in sizes.items()} for o, sizes in final.items()}


def _on_batches() -> dict[str, Any]:
    """Errors on Burgers' equation at the chosen settings on the batches of training, over the last fifth of it."""
    from closedform.paper.sweeps import results

    errors: dict[str, Any] = {}
    for (optimizer, size, method), rows in _burgers().rows.items():
        late = rows.loc[rows["step"] > (1 - results.LAST) * rows["step"].max(), "train"]
        errors.setdefault(optimizer, {}).setdefault(str(size), {})[method] = float(late.mean())
    return errors


def _by_setting() -> dict[str, Any]:
    """Errors on Burgers' equation of every setting that was run with all seeds, means over these, by optimizer, batch
    size, method, learning rate and, where there is one, the other setting."""
    from closedform.paper.experiments import fno
    from closedform.paper.sweeps import results

    columns = ["optimizer", "batch_size", "method", *fno.SETTINGS]
    table = results.load(ROOT / "results" / "fno")
    runs = results.finished(table, columns, select="validation", metric="test", late=True)
    errors: dict[str, Any] = {}
    means = results.by_setting(runs, columns)
    for row in means.loc[means["seeds"] == fno.SEEDS].to_dict("records"):
        *place, last = (_key(row[column]) for column in columns if row[column] == row[column])
        here = errors
        for word in place:
            here = here.setdefault(word, {})
        here[last] = row["final"]
    return errors


def _sooner() -> dict[str, Any]:
    """How many times fewer steps than l2 on Burgers' equation, by the mean over the seeds (`all`) and by each seed."""
    speedups: dict[str, Any] = {}
    errors = _burgers()
    for name, seed in {"all": None, **{str(seed): seed for seed in range(3)}}.items():
        for optimizer in errors.optimizers:
            for method in ("ridge", "proximal", "kalman"):
                times = {str(size): one.times for size, one in errors.sooner(optimizer, method, seed).items()}
                speedups.setdefault(name, {}).setdefault(optimizer, {})[method] = times
    return speedups


def _seeds() -> dict[str, Any]:
    """On the small copy of Burgers' equation: the largest error of a seed over the least at the chosen setting
    (`spread`), and ridge over the better of l2 and proximal at batch size 2, seed by seed (`ridge`)."""
    errors = _burgers("fno_small").seeds
    figures: dict[str, Any] = {"spread": {}, "ridge": {}}
    for (optimizer, size, method), own in errors.items():
        here = figures["spread"].setdefault(optimizer, {}).setdefault(str(size), {})
        here[method] = max(own.values()) / min(own.values())
    for optimizer in ("sgd", "adam"):
        spreads = [s for here in figures["spread"][optimizer].values() for s in here.values() if s > 1]
        figures["spread"][optimizer]["median"] = statistics.median(spreads)
        ridge, learned, proximal = (errors[optimizer, 2, method] for method in ("ridge", "l2", "proximal"))
        ratios = [ridge[seed] / min(learned[seed], proximal[seed]) for seed in ridge]
        figures["ridge"][optimizer] = {"least": min(ratios), "most": max(ratios)}
    return figures


def _peers() -> dict[str, Any]:
    """Our operator beside neuraloperator's: test errors by seed, and how far features with the same weights differ."""
    names = {"closedform": "ours", "neuraloperator": "theirs", "neuraloperator from our weights": "from_ours"}
    rows = _rows("fno_peer-cpu")
    (errors,) = (row for row in rows if row["what"] == "test error")
    by_seed: dict[str, Any] = {
        short: {str(seed): error for seed, error in enumerate(errors[name])} for name, short in names.items()
    }
    return by_seed | {"difference": max(row["difference"] for row in rows if row["what"] == "parameters")}


def _lambda() -> dict[str, Any]:
    """The paper's proximal rule on QM9: the best lambda at a rate, the least that is good, and what 1e3 costs."""
    from closedform.paper.claims import qm9
    from closedform.paper.sweeps import results

    table, lambdas = qm9.QM9Errors(results.load(ROOT / "results" / "qm9")), {}
    for optimizer in ("sgd", "adam"):
        for size in table.batch_sizes:
            where = {"optimizer": optimizer, "batch_size": size, "method": "proximal"}
            own = table.best(["lam"], **where)
            here: dict[str, float] = {
                "least": min(lam for lam, error in own.items() if error <= qm9.GOOD * min(own.values())),
                "at_1e3": own[1e3] / min(own.values()),
            }
            pairs = table.best(["lr", "lam"], **where)
            for rate in sorted({lr for lr, _ in pairs}):
                here[f"best_at_{_key(float(rate))}"] = min(
                    (lam for lr, lam in pairs if lr == rate), key=lambda lam: pairs[rate, lam]
                )
            lambdas.setdefault(optimizer, {})[str(size)] = here
    return lambdas


def _algorithms() -> dict[str, float]:
    """The error of Algorithm 2 over that of Algorithm 1 on QM9, by batch size."""
    from closedform.paper.claims import qm9
    from closedform.paper.sweeps import results

    table = qm9.QM9Errors(results.load(ROOT / "results" / "qm9"))
    errors = table.best(["batch_size", "algorithm"], "algorithms")
    return {str(size): errors[size, 2] / errors[size, 1] for size in table.batch_sizes}


def _zeros() -> dict[str, dict[str, float]]:
    """On QM9, the error from a last layer of zeros over that from the best random one, by optimizer and batch size."""
    from closedform.paper.claims import qm9
    from closedform.paper.sweeps import results

    table, ratios = qm9.QM9Errors(results.load(ROOT / "results" / "qm9")), {}
    for optimizer in ("sgd", "adam"):
        errors = table.best(["batch_size", "init"], "initialisation", optimizer=optimizer)
        for size in table.batch_sizes:
            others = min(error for (at, init), error in errors.items() if at == size and init != "zeros")
            ratios.setdefault(optimizer, {})[str(size)] = errors[size, "zeros"] / others
    return ratios


def _images() -> dict[str, Any]:
    """On CIFAR-100: the `short` runs at their best settings, and `tried`, all of them. At the chosen settings: the `lead`
    over learned cross-entropy in points of accuracy by optimizer and batch size, the mean and by seed, and the `average` of
    the means over all of these, and over those with batches up to 1024 (`small`). Under SGD the `readings` of the paper's
    table of probabilities."""
    from closedform.paper.experiments import cifar100_report, confidence, optimizers
    from closedform.paper.sweeps import results

    table = results.load(ROOT / "results" / "cifar100")
    lead: dict[str, Any] = {"average": {}, "small": {}}
    means: dict[str, list[tuple[int, float]]] = {}
    for optimizer in optimizers.NAMES:
        for size, methods in cifar100_report.leads(table, optimizer).items():
            for method, points in methods.items():
                mean = statistics.fmean(points.values())
                means.setdefault(_key(method), []).append((size, mean))
                seeds = {str(seed): value for seed, value in points.items()}
                lead.setdefault(optimizer, {}).setdefault(str(size), {})[_key(method)] = {"mean": mean} | seeds
    columns = max(map(len, means.values()), default=0)
    for method, by_size in means.items():
        if len(by_size) < columns:
            continue  # as in the table, an average over fewer would be another one
        lead["average"][method] = statistics.fmean(mean for _, mean in by_size)
        if small := [mean for size, mean in by_size if size <= 1024]:
            lead["small"][method] = statistics.fmean(small)
    readings: dict[str, Any] = {}
    for part in confidence.PARTS:
        for reading in confidence.READINGS:
            for size, row in cifar100_report.confidence(table, "sgd", f"{part}_{reading}").items():
                for method, value in row.items():
                    readings.setdefault(str(size), {}).setdefault(_key(method), {})[f"{part}_{reading}"] = value
    short = {"short": _experiment("cifar100", where={"study": ["settings"]}), "tried": _tried(table)}
    return short | {"lead": lead, "readings": readings}


def _tried(table: pd.DataFrame) -> dict[str, Any]:
    """Accuracy of every short run on CIFAR-100 by optimizer, batch size, method, rate and, where there is one, the other
    setting."""
    from closedform.paper.experiments import cifar100_report

    tried: dict[str, Any] = {}
    short = table[table["study"] == "settings"].sort_values("step")
    keys = ["optimizer", "batch_size", "method", *cifar100_report.SETTINGS]
    for (*cell, rate, lam, beta, ratio, forget), run in short.groupby(keys, dropna=False):
        place = tried
        for word in (*cell, float(rate), *(value for value in (lam, beta, ratio, forget) if value == value)):
            place = place.setdefault(_key(word), {})
        place["test"] = run["test"].iloc[-1]
    return tried


def _imagenet() -> dict[str, Any]:
    """On Tiny ImageNet the accuracy of every method after each epoch and at the `end`, how many points it is `behind`
    learned cross-entropy there, and its loss in training (`train`)."""
    from closedform.paper.sweeps.records import Records
    from closedform.paper.sweeps.work import RUNS

    methods: dict[str, Any] = {}
    for record in Records(ROOT / "results" / "imagenet" / RUNS):
        config, rows = record["config"], record["rows"]
        along = {str(round(row["step"] / rows[-1]["step"] * config["epochs"])): row["validation"] for row in rows}
        last = {"end": rows[-1]["validation"], "train": rows[-1]["train"]}
        methods[_key(config["method"])] = along | last
    for own in methods.values():
        own["behind"] = 100 * (methods["cross_entropy"]["end"] - own["end"])
    return methods


def _solve_time(device: str) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for row in _rows(f"solve_time-{device}"):
        if row["outputs"] == 100:
            cell = {"times": row["textbook_over_ours"], "ms": row["ours"]["median_ms"]}
            cells.setdefault(str(row["batch"]), {})[str(row["d"])] = cell
    return cells


def _step() -> dict[str, Any]:
    rows = _rows("step_overhead-cuda")
    figures: dict[str, Any] = {"cells": len(rows)}
    for kind, aim in AIMS.items():
        ratios = [row[f"{kind}_ratio"] for row in rows]
        figures[f"{kind}_within"] = sum(ratio <= aim for ratio in ratios)
        figures[f"{kind}_largest"] = max(ratios)
    for row in rows:
        here = figures.setdefault(row["net"], {}).setdefault(str(row["batch"]), {})
        here[str(row["d"])] = {kind: row[f"{kind}_ratio"] for kind in AIMS} | {"paper": row["paper"]}
    for row in _rows("step_overhead_nfnet-cuda"):
        figures.setdefault("nfnet", {})[_key(row["method"])] = {kind: row[f"{kind}_ratio"] for kind in AIMS}
    for row in _rows("step_overhead_default-cuda"):
        here = figures.setdefault("default", {}).setdefault(row["net"], {})
        here[str(row["batch"])] = {kind: row[f"{kind}_ratio"] for kind in AIMS} | {
            f"{kind}_adds": row[kind]["default"]["median_ms"] - row[kind]["learned"]["median_ms"] for kind in AIMS
        }
    return figures


def _memory() -> dict[str, Any]:
    """The peak of a solve in MiB, by rows and features."""
    peaks: dict[str, Any] = {}
    for row in _rows("memory-cuda"):
        peaks.setdefault(str(row["n"]), {})[str(row["d"])] = row["peak_bytes"] / 2**20
    return peaks


def _leaves(tree: dict[str, Any], before: str = "") -> Iterator[str]:
    for key, inner in tree.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, f"{before}{key}.")
        elif isinstance(inner, (int, float)):
            yield before + key


if __name__ == "__main__":
    for key in sys.argv[1:] or _leaves(all_of_them()):
        print(f"{key} = {value(key):.6g}")
