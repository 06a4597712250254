"""The tables of the pages from the committed results: python benchmarks/tables.py"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def _rows(name: str) -> list[dict]:
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def _markdown(head: list[str], body: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---:"] * len(head), *body]]
    return "\n".join(lines)


def solve_time(device: str = "cuda", outputs: int = 100) -> str:
    """How many times faster than the d x d system, and in brackets the milliseconds of our solve."""
    rows = [row for row in _rows(f"solve_time-{device}") if row["outputs"] == outputs]
    dims = sorted({row["d"] for row in rows})
    cells = {
        (row["batch"], row["d"]): f"{row['textbook_over_ours']:.1f} ({row['ours']['median_ms']:.2f})" for row in rows
    }
    batches = sorted({row["batch"] for row in rows})
    return _markdown(
        ["batch", *(f"d = {d}" for d in dims)],
        [[str(batch), *(cells.get((batch, d), "") for d in dims)] for batch in batches],
    )


def step_overhead() -> str:
    """Our step over a cross-entropy step: eager / captured / the paper's."""
    rows = _rows("step_overhead-cuda")
    dims = sorted({row["d"] for row in rows})
    cells = {
        (
            row["net"],
            row["batch"],
            row["d"],
        ): f"{row['eager_ratio']:.2f} / {row['captured_ratio']:.3f} / {row['paper']:.2f}"
        for row in rows
    }
    nets = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}
    keys = list(dict.fromkeys((row["net"], row["batch"]) for row in rows))
    return _markdown(
        ["net", "batch", *(f"d = {d}" for d in dims)],
        [[nets[net], str(batch), *(cells[net, batch, d] for d in dims)] for net, batch in keys],
    )


def _step_cells(row: dict, ours: str, other: str) -> list[str]:
    """Captured milliseconds of both steps and their ratio, and the ratio of the eager ones."""
    times = [f"{row['captured'][side]['median_ms']:.2f}" for side in (ours, other)]
    return [*times, f"{row['captured_ratio']:.3f}", f"{row['eager_ratio']:.3f}"]


def step_overhead_nfnet() -> str:
    """A step of the NFNet with each solved layer over one with learned cross-entropy."""
    body = [
        [row["method"], *_step_cells(row, row["method"], "cross-entropy")] for row in _rows("step_overhead_nfnet-cuda")
    ]
    return _markdown(["method", "captured, ms", "cross-entropy, ms", "ratio", "ratio, eager"], body)


def step_overhead_default() -> str:
    """A step with the default layer over one with a learned layer and the same loss."""
    nets = {"resnet18": "ResNet-18, cross-entropy, d = 512", "mlp": "MLP of QM9, squared loss, d = 256"}
    body = [
        [nets[row["net"]], str(row["batch"]), *_step_cells(row, "default", "learned")]
        for row in _rows("step_overhead_default-cuda")
    ]
    return _markdown(["net", "batch", "default, captured, ms", "learned, ms", "ratio", "ratio, eager"], body)


def communication() -> str:
    """Numbers exchanged by one solve of two processes, and in brackets the KiB that each of them sent; the rule's choice is
    in bold."""

    def cell(row: dict, exchange: str) -> str:
        side, chosen = row[exchange], row[exchange]["numbers"] == row["rule"]["numbers"]
        sent = "" if side["wire_bytes"] is None else f" ({side['wire_bytes'] / 1024:.1f})"
        return (f"**{side['numbers']:,.0f}**" if chosen else f"{side['numbers']:,.0f}") + sent

    body = [
        [f"{row['n']:,}", str(row["d"]), str(row["outputs"]), cell(row, "rows"), cell(row, "moments")]
        for row in _rows("communication-cpu")
    ]
    return _markdown(["rows N", "features d", "outputs o", "rows: N (d + o)", "moments: D (D + o) + o + 1"], body)


def communication_step() -> str:
    """KiB that each of two processes sends in a whole step under DistributedDataParallel, with and without its exchange of
    buffers."""
    names = {"learned": "learned", "proximal": "`Proximal`", "kalman": "`Kalman`"}
    body = [
        [
            f"{row['n']:,}",
            f"{row['d']:,}",
            str(row["outputs"]),
            names[row["rule"]],
            *("" if row[key] is None else f"{row[key] / 1024:.1f}" for key in ("synced", "unsynced")),
        ]
        for row in _rows("communication_step-cpu")
    ]
    return _markdown(["rows N", "features d", "outputs o", "last layer", "buffers sent", "not sent"], body)


def memory() -> str:
    body = [
        [
            f"{row['n']:,}",
            f"{row['d']:,}",
            str(row["outputs"]),
            f"{row['peak_bytes'] / 2**20:.1f}",
            f"{row['square_bytes'] / 2**20:.1f}",
        ]
        for row in _rows("memory-cuda")
        if "points" not in row
    ]
    return _markdown(["rows", "d", "outputs", "peak MiB", "a d x d matrix, MiB"], body)


def shared_memory() -> str:
    """What a solve of a layer shared over space takes, beyond its inputs (docs/fno.md)."""
    body = [
        [
            str(row["batch"]),
            f"{row['points']:,}",
            str(row["d"]),
            f"{row['phi_bytes'] / 2**20:.1f}",
            f"{row['peak_bytes'] / 2**20:.1f}",
        ]
        for row in _rows("memory-cpu")
        if "points" in row
    ]
    return _markdown(["batch", "points", "features", "features, MiB", "peak of a solve, MiB"], body)


def fno_peer() -> str:
    """A step of training our operator and neuraloperator's (docs/fno.md)."""
    body = [
        [
            str(row["width"]),
            str(row["batch"]),
            *(f"{row[name]['median_ms']:.1f}" for name in ("closedform", "neuraloperator")),
            f"{row['ratio']:.2f}",
        ]
        for row in _rows("fno_peer-cpu")
        if row["what"] == "step"
    ]
    return _markdown(["width", "batch", "ours, ms", "neuraloperator, ms", "ratio"], body)


def fno(experiment: str = "fno") -> str:
    """Test error on Burgers' equation, at the best setting of each method: mean over the last fifth of training."""
    return _best(experiment, ".3g")


def fno_end(experiment: str = "fno") -> str:
    """The same settings after the last step, on all points."""
    return _best(experiment, ".3g", metric="fine", late=False)


def fno_seeds() -> str:
    """The same errors seed by seed, one method's over another's; bold where the 95 % interval of the mean logarithm leaves
    out 0."""
    from closedform.paper.claims import fno
    from closedform.paper.sweeps import results

    errors = fno.BurgersErrors(results.load(RESULTS.parents[1] / "results" / "fno"))
    pairs = ("l2", "proximal"), ("ridge", "proximal"), ("kalman", "proximal"), ("l2", "ridge"), ("kalman", "l2")
    body = []
    for optimizer in errors.optimizers:
        for size in errors.final[optimizer]:
            cells = [f"{optimizer}, {size}"]
            for pair in pairs:
                one, other = (errors.seeds[optimizer, size, method] for method in pair)
                ratios = [one[seed] / other[seed] for seed in sorted(one)]
                logs = [math.log(ratio) for ratio in ratios]
                shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
                clear = abs(statistics.fmean(logs)) > results.half_width(logs)
                cells.append(f"**{shown}**" if clear else shown)
            body.append(cells)
    return _markdown(["", *(f"{one} / {other}".replace("kalman", "Kalman") for one, other in pairs)], body)


def qm9() -> str:
    """Test error on QM9, at the best setting of each method."""
    return _best("qm9", ".4f")


def _best(name: str, digits: str, **changes: Any) -> str:
    from closedform.paper.report import panels, summary

    table, spec = panels.read(RESULTS.parents[1] / "results" / name)
    facets = summary.best_settings(table, dataclasses.replace(spec, **changes))
    methods = [entry.method for entry in facets[0].entries]
    head = ["method", *(", ".join(name.replace("batch size ", "") for name in facet.names) for facet in facets)]
    body = [[f"{method.label} †" if method.ours else method.label] for method in methods]
    for facet in facets:
        cells = {}
        for entry in facet.entries:
            text = f"{entry.final:{digits}}" + ("" if entry.seeds > 1 else "¹")
            text = f"diverges ({entry.diverged}/{entry.seeds})" if entry.diverged else text
            cells[entry.method.key] = f"**{text}**" if entry.best else text
        for row, method in zip(body, methods):
            row.append(cells.get(method.key, ""))
    return _markdown(head, body)


def accuracies(experiment: str = "cifar100") -> str:
    """Test accuracy on CIFAR-100 in per cent at the chosen setting, with the 95 % interval over the seeds; in brackets the
    number of seeds, and of settings that were tried in short runs; ² is an earlier default rule."""
    return _accuracies(experiment, "methods", lambda entry, tried: f"{entry.seeds}, {tried}")


def leads() -> str:
    """Points of test accuracy on CIFAR-100 ahead of learned cross-entropy: the mean, in brackets by seed; bold where the
    95 % interval of the mean leaves out 0, ² is an earlier default rule. Last, the average over all columns, where all have
    run."""
    from closedform.paper.experiments import cifar100_report, optimizers
    from closedform.paper.sweeps import results

    table = results.load(RESULTS.parents[1] / "results" / "cifar100")
    columns = {
        f"{optimizer}, {size}": points
        for optimizer in optimizers.NAMES
        for size, points in cifar100_report.leads(table, optimizer).items()
        if points
    }
    body, earlier = [], _earlier(table)
    for method in cifar100_report.METHODS:
        cells, means = [], []
        for name, of_column in columns.items():
            points = [point for _, point in sorted(of_column.get(method.key, {}).items())]
            if not points:
                cells.append("")
                continue
            means.append(statistics.fmean(points))
            clear = abs(means[-1]) > results.half_width(points)
            shown = f"**{means[-1]:+.1f}**" if clear else f"{means[-1]:+.1f}"
            shown += "²" * ((name, method.key) in earlier)
            cells.append(f"{shown} ({', '.join(f'{point:+.1f}' for point in points)})")
        if means:
            average = f"{statistics.fmean(means):+.1f}" if len(means) == len(columns) else ""
            average += "²" * (average != "" and any((name, method.key) in earlier for name in columns))
            body.append([f"{method.label} †" if method.ours else method.label, *cells, average])
    return _markdown(["method", *columns, "average"], body)


def short_runs(experiment: str = "cifar100") -> str:
    """Test accuracy in per cent at the best setting of the short runs; in brackets how many settings were tried; ² is an
    earlier default rule."""
    return _accuracies(experiment, "settings", lambda entry, tried: str(tried))


def _accuracies(experiment: str, study: str, bracket: Callable[[Any, int], str]) -> str:
    from closedform.paper.report import panels, summary

    table, spec = panels.read(RESULTS.parents[1] / "results" / experiment)
    facets = summary.best_settings(table, dataclasses.replace(spec, where=spec.where | {"study": [study]}))
    head, earlier = _columns(facets), _earlier(table)
    body = []
    for method in spec.methods:
        cells = []
        for name, facet in zip(head, facets):
            entry = next((entry for entry in facet.entries if entry.method.key == method.key), None)
            if entry is None:
                cells.append("")
                continue
            text = f"{100 * entry.final:.1f}" if entry.final > 0 else "diverges"
            text += "²" * ((name, method.key) in earlier)
            text += f" ± {100 * entry.half_width:.1f}" if entry.seeds > 1 else ""
            tried = len(_tried(table, spec, name, method.key).drop_duplicates([*spec.settings]))
            ahead = entry.best and len(facet.entries) > 1
            cells.append((f"**{text}**" if ahead else text) + f" ({bracket(entry, tried)})")
        if any(cells):
            body.append([f"{method.label} †" if method.ours else method.label, *cells])
    return _markdown(["method", *head], body)


def _earlier(table: Any) -> set[tuple[str, str]]:
    """The columns of `_columns` and methods whose runs are by an earlier default rule."""
    from closedform.paper.experiments import cifar100_report

    cells = cifar100_report.by_an_earlier_default(table)
    return {(f"{optimizer}, {size}", method) for optimizer, size, method in cells}


def _columns(facets: list[Any]) -> list[str]:
    """Optimizer and batch size of each facet, such as "sgd, 128"."""
    return [", ".join(name.replace("batch size ", "") for name in facet.names) for facet in facets]


def _tried(table: Any, spec: Any, column: str, method: str) -> Any:
    """The rows of a method in a column of `_columns` that its setting was chosen from: short runs, where there are any."""
    from closedform.paper.report import panels

    short = "study" in table and (table["study"] == "settings").any()
    rows = table[table["study"] == "settings"] if short else panels.where(table, spec.where)
    return rows[(rows["method"] == method) & (rows["optimizer"] + ", " + rows["batch_size"].astype(str) == column)]


def settings(experiment: str = "cifar100") -> str:
    """The setting that was chosen for each method: ↑ the largest that was tried, ↓ the smallest."""
    from closedform.paper.report import panels, summary, text

    table, spec = panels.read(RESULTS.parents[1] / "results" / experiment)
    facets = summary.best_settings(table, spec)
    head = _columns(facets)
    body = []
    for method in spec.methods:
        cells = []
        for name, facet in zip(head, facets):
            chosen = [entry.settings for entry in facet.entries if entry.method.key == method.key]
            own = _tried(table, spec, name, method.key)
            shown = []
            for column, value in zip(spec.settings, chosen[0] if chosen else ()):
                if value != text.MISSING:
                    tried = sorted(own[column].unique())
                    ends = {f"{tried[0]:g}": "↓", f"{tried[-1]:g}": "↑"} if len(tried) > 1 else {}
                    shown.append(value + ends.get(f"{float(value.replace(',', '')):g}", ""))
            cells.append("; ".join(shown))
        if any(cells):
            body.append([method.label, *cells])
    return _markdown(["method", *head], body)


def confidence(optimizer: str = "sgd") -> str:
    """The mean largest probability on CIFAR-100, and with a fitted temperature; beside it the accuracy; ² is an earlier
    default rule."""
    from closedform.paper.experiments import cifar100_report
    from closedform.paper.sweeps import results

    table = results.load(RESULTS.parents[1] / "results" / "cifar100")
    values = {what: cifar100_report.confidence(table, optimizer, what) for what in ("confidence", "calibrated", "test")}
    sizes, earlier = list(values["test"]), _earlier(table)
    body = []
    for method in cifar100_report.METHODS:
        cells = [
            " / ".join(f"{by_size[size][method.key]:.2f}" for by_size in values.values())
            + "²" * ((f"{optimizer}, {size}", method.key) in earlier)
            if method.key in values["test"][size]
            else ""
            for size in sizes
        ]
        if any(cells):
            body.append([method.label, *cells])
    return _markdown(["as it is / calibrated / accuracy", *(f"batch {size}" for size in sizes)], body)


def readings(optimizer: str = "sgd") -> str:
    """Readings of the paper's table of "maximum probabilities" on training / validation / test images."""
    from closedform.paper.experiments import cifar100_report
    from closedform.paper.experiments import confidence as probabilities
    from closedform.paper.sweeps import results

    table = results.load(RESULTS.parents[1] / "results" / "cifar100")
    methods = ("cross-entropy", "proximal")
    sizes = [s for s, row in cifar100_report.confidence(table, optimizer).items() if set(methods) <= set(row)]
    columns = [(method, size) for method in methods for size in sizes]
    body = []
    for reading, words in probabilities.READINGS.items():
        parts = [cifar100_report.confidence(table, optimizer, f"{part}_{reading}") for part in probabilities.PARTS]
        cells = [" / ".join(f"{by_size[size][method]:.2f}" for by_size in parts) for method, size in columns]
        body.append([words, *cells])
    paper = [f"**{cifar100_report.CONFIDENCE[size][methods.index(method)]:.2f}**" for method, size in columns]
    body.append(["**the paper**", *paper])
    return _markdown(["training / validation / test", *(f"{method}, {size}" for method, size in columns)], body)


def imagenet(experiment: str = "imagenet") -> str:
    """Accuracy along the runs of the ImageNet experiment in per cent, and seconds an epoch."""
    from closedform.paper.experiments import imagenet as runs
    from closedform.paper.sweeps.records import Records
    from closedform.paper.sweeps.work import RUNS

    records = list(Records(RESULTS.parents[1] / "results" / experiment / RUNS))
    if not records:
        return "No run has been committed yet."
    order = list(runs.METHODS)
    records.sort(key=lambda record: (order.index(record["config"]["method"]), str(record["config"])))
    epochs = records[0]["config"]["epochs"]
    shares = sorted({max(1, round(epochs * share)) for share in (1 / 9, 3 / 9, 5 / 9, 7 / 9, 1)})
    body = []
    for record in records:
        config, rows = record["config"], record["rows"]
        setting = [f"{name} {config[name]:g}" for name in ("lr", *runs.SETTINGS) if config[name] is not None]
        by_epoch = {round(row["step"] / rows[-1]["step"] * config["epochs"]): row["validation"] for row in rows}
        cells = [f"{100 * by_epoch[epoch]:.1f}" if by_epoch[epoch] >= 0 else "diverges" for epoch in shares]
        pace = f"{rows[-1]['wall_s'] / config['epochs']:.1f}"
        body.append([config["method"], ", ".join(setting).replace("lr", "rate"), *cells, pace])
    return _markdown(["method", "setting", *(f"epoch {epoch}" for epoch in shares), "s an epoch"], body)


def generalized(device: str = "cuda") -> str:
    """The generalised squared loss, k = 5, m = 2: milliseconds of a solve, and ratios."""
    captured = device == "cuda"
    body = []
    for row in _rows(f"generalized-{device}"):
        cells = [row["n"], row["d"], row["classes"], f"{row['ours']['median_ms']:.2f}"]
        cells += [
            f"{row['inverses_over_ours']:.0f}",
            f"{row['solves_over_ours']:.1f}",
            f"{row['ours_over_squared']:.1f}",
        ]
        cells += [f"{row['captured_ours_over_squared']:.1f}"] if captured else []
        body.append([str(cell) for cell in cells])
    head = ["batch", "d", "classes", "ours, ms", "inverses / ours", "class solves / ours", "ours / squared"]
    return _markdown(head + (["the same, captured"] if captured else []), body)


def sweep_throughput(device: str = "cuda") -> str:
    """Model-steps a second: a stack, and its models one after another."""
    body = []
    for row in _rows(f"sweep_throughput-{device}"):
        speed = row["model_steps_per_s"]
        cells = [str(row["batch"]), str(row["models"]), *(f"{speed[name]:,.0f}" for name in speed)]
        body.append(cells + [f"{row[f'times_{name}']:.1f}" for name in speed if name != "stacked"])
    names = [name for name in _rows(f"sweep_throughput-{device}")[0]["model_steps_per_s"] if name != "stacked"]
    return _markdown(["batch", "models", "stacked", *names, *(f"times {name}" for name in names)], body)


def diagnose_overhead() -> str:
    """What a diagnosis of the last layer takes of a training run (docs/theory.md)."""
    body = [
        [
            str(row["batch"]),
            str(row["d"]),
            f"{row['single']['step']['median_ms']:.2f}",
            f"{row['single']['diagnosis']['median_ms']:.2f}",
            f"{row['share']:.2%}",
            f"{row['rounds']['median']:.1%} ({row['rounds']['low']:.1%} to {row['rounds']['high']:.1%})"
            if "rounds" in row
            else "not run",
        ]
        for row in _rows("diagnose_overhead-cpu")
    ]
    head = ["batch", "d", "step, ms", "diagnosis, ms", "share, every 200 steps", "runs with it against without"]
    return _markdown(head, body)


MODELS = ("closedform", "MLP", "Adam", "learned", "LightGBM")


def _by_set() -> dict[str, list[dict]]:
    sets: dict[str, list[dict]] = {}
    for row in _rows("tabular-cpu"):
        sets.setdefault(row["set"], []).append(row)
    return sets


def _mean(rows: list[dict], what: str, model: str) -> float:
    return statistics.fmean(row[what][model] for row in rows)


def tabular_errors() -> str:
    """Test RMSE, mean over the splits and its standard error; the mean rank over all splits."""
    body = []
    for name, rows in _by_set().items():
        cells = []
        best = min(MODELS, key=lambda model: _mean(rows, "rmse", model))
        for model in MODELS:
            values = [row["rmse"][model] for row in rows]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            shown = f"{statistics.fmean(values):.3g} ± {error:.1g}"
            cells.append(f"**{shown}**" if model == best else shown)
        body.append([name, f"{rows[0]['rows']:,}", str(len(rows)), *cells])
    ranks = []
    for model in MODELS:
        places = [
            statistics.fmean(sorted(row["rmse"].values()).index(row["rmse"][model]) + 1 for row in rows)
            for rows in _by_set().values()
        ]
        ranks.append(f"{statistics.fmean(places):.2f}")
    body.append(["mean rank", "", "", *ranks])
    return _markdown(["table", "rows", "splits", *MODELS], body)


def tabular_wins() -> str:
    """On how many tables closedform has the lower mean error, and on how many by more than two standard errors of the
    difference; and where it loses."""
    body = []
    for model in MODELS[1:]:
        better, clearly, lost, clearly_lost = 0, 0, [], []
        for name, rows in _by_set().items():
            gaps = [row["rmse"][model] - row["rmse"]["closedform"] for row in rows]
            mean = statistics.fmean(gaps)
            error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("inf")
            better, clearly = better + (mean > 0), clearly + (mean > 2 * error)
            if mean <= 0:
                lost.append(name)
            if mean < -2 * error:
                clearly_lost.append(name)
        body.append([model, str(better), str(clearly), ", ".join(lost) or "none", ", ".join(clearly_lost) or "none"])
    return _markdown(["against", "lower on", "clearly lower on", "not lower on", "clearly higher on"], body)


def tabular_times() -> str:
    """Seconds of the processor to fit, one thread, and epochs; the geometric mean of closedform's time over each other's."""
    body, sums, ratios = [], dict.fromkeys(MODELS, 0.0), {model: [] for model in MODELS}
    for name, rows in _by_set().items():
        times = {model: _mean(rows, "seconds", model) for model in MODELS}
        for key, value in times.items():
            sums[key] += value
            ratios[key].append(times["closedform"] / value)
        epochs = "{:.0f} / {:.0f}".format(*(_mean(rows, "epochs", model) for model in ("closedform", "MLP")))
        body.append([name, *(f"{times[model]:.2f}" for model in MODELS), epochs])
    body.append(["mean", *(f"{sums[m] / len(body):.2f}" for m in MODELS), ""])
    shares = (f"{statistics.geometric_mean(ratios[model]):.2f}" for model in MODELS)
    body.append(["closedform / this, geometric mean", *shares, ""])
    return _markdown(["table", *MODELS, "epochs, closedform / MLP"], body)


def tabular_search() -> str:
    """Validation error over the default's: geometric mean and median, where the change helps most and harms most."""
    variants: dict[str, dict[str, dict]] = {}
    for row in _rows("tabular_search-cpu"):
        variants.setdefault(row["variant"], {})[row["problem"]] = row
    body = []
    for variant, problems in variants.items():
        ratios = {name: row["rmse"] / variants["default"][name]["rmse"] for name, row in problems.items()}
        low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        ends = ["", ""] if variant == "default" else [f"{k} {ratios[k]:.2f}" for k in (low, high)]
        seconds = sum(row["seconds"] for row in problems.values())
        middle = statistics.geometric_mean(ratios.values()), statistics.median(ratios.values())
        body.append([variant, *(f"{value:.3f}" for value in middle), *ends, f"{seconds:.0f}"])
    return _markdown(["change", "error / default's", "median", "best", "worst", "seconds"], body)


def tabular_lambda() -> str:
    """Test error of "auto" over that of the best lambda of the grid, which stands in brackets."""
    sets: dict[str, dict[int, list[dict]]] = {}
    for row in _rows("tabular_lambda-cpu"):
        sets.setdefault(row["set"], {}).setdefault(row["batch"], []).append(row["mse"])
    batches = sorted({batch for row in sets.values() for batch in row})
    body = []
    for name, row in sets.items():
        cells = []
        for batch in batches:
            means = {lam: statistics.fmean(mse[lam] for mse in row[batch]) for lam in row[batch][0]}
            auto = means.pop("auto")
            best = min(means, key=means.__getitem__)
            cells.append(f"{auto / means[best]:.2f} ({float(best):g})")
        body.append([name, *cells])
    return _markdown(["table", *(f"batch {batch}" for batch in batches)], body)


PEERS = ("closedform", "RealMLP-TD-S", "CatBoost", "LightGBM", "MLP", "linear")
MORE_PEERS = ("RealMLP-TD", "TabM", "xRFM", "LightGBM-TD", "CatBoost-TD")  # in the summary alone


def _peers(classes: bool) -> dict[str, dict[str, dict]]:
    """By table and model."""
    tables: dict[str, dict[str, dict]] = {}
    for row in _rows("tabular_peers-cpu"):
        if row["classes"] == classes:
            tables.setdefault(row["table"], {})[row["model"]] = row
    return {name: models for name, models in tables.items() if "closedform" in models}


def _compared(classes: bool, measure: str) -> str:
    body = []
    for name, models in sorted(_peers(classes).items(), key=lambda item: item[1]["closedform"]["rows"]):
        values = {model: models[model][measure] for model in PEERS if model in models}
        best = min(values.values())
        shown = [
            "" if m not in values else f"**{values[m]:.4g}**" if values[m] == best else f"{values[m]:.4g}"
            for m in PEERS
        ]
        body.append([name, f"{models['closedform']['rows']:,}", str(models["closedform"]["columns"]), *shown])
    return _markdown(["table", "rows", "columns", *PEERS], body)


def tabular_peers() -> str:
    """Test RMSE of defaults on regression tables, one split each; in bold the best."""
    return _compared(False, "rmse")


def tabular_peers_classes() -> str:
    """Test log loss of defaults on classification tables, one split each; in bold the best."""
    return _compared(True, "log_loss")


def _ratio(values: list[float]) -> str:
    mean = math.exp(statistics.fmean(map(math.log, values)))
    return f"{mean:.2f} ({sum(value < 1 for value in values)} of {len(values)})"


def tabular_peers_summary() -> str:
    """closedform against each model, on tables that both have: errors as a geometric mean of ratios, tables won, time."""
    body = []
    more = [model for model in MORE_PEERS if any(model in models for models in _peers(False).values())]
    for model in (*PEERS, *more):
        cells = [model, _mean_rank(model, False, "rmse"), _mean_rank(model, True, "log_loss")]
        if model == "closedform":
            body.append([*cells, "", "", "", ""])
            continue
        both = []
        for classes, measure in ((False, "rmse"), (True, "log_loss"), (True, "error")):
            pairs = [(models["closedform"], models[model]) for models in _peers(classes).values() if model in models]
            floor = 1e-4 if classes else 0.0  # a log loss or an error rate of zero
            cells.append(
                _ratio([(a[measure] + floor) / (b[measure] + floor) for a, b in pairs]) if pairs else "not run"
            )
            both += pairs if measure != "error" else []
        total = sum(a["seconds"] for a, _ in both) / sum(b["seconds"] for _, b in both)
        each = math.exp(statistics.fmean(math.log(a["seconds"] / b["seconds"]) for a, b in both))
        body.append([*cells, f"{total:.2g} ({each:.2g})"])
    head = ["model", "mean rank, RMSE (tables)", "log loss (tables)", "RMSE", "log loss", "error rate", "time"]
    return _markdown(head, body)


def _mean_rank(model: str, classes: bool, measure: str) -> str:
    """Among the models that were run on all tables."""
    tables = _peers(classes).values()
    ranked = [other for other in (*PEERS, *MORE_PEERS) if all(other in models for models in tables)]
    if model not in ranked:
        return ""
    ranks = [1 + sum(models[other][measure] < models[model][measure] for other in ranked) for models in tables]
    return f"{statistics.fmean(ranks):.2f} ({len(ranks)})"


def tabular_intervals() -> str:
    """90 % intervals: the share of test targets inside and the mean width over the deviation of the targets."""
    body = []
    rows = [row for row in _rows("tabular_peers-cpu") if "interval" in row]
    for row in rows:
        cells = [f"{row[way]['covered']:.1%}" for way in ("interval", "split_conformal")]
        widths = [f"{row[way]['width']:.3g}" for way in ("interval", "split_conformal")]
        body.append([row["table"], f"{row['rows']:,}", *cells, *widths])
    within = [sum(0.88 <= row[way]["covered"] <= 0.92 for row in rows) for way in ("interval", "split_conformal")]
    ratio = math.exp(
        statistics.fmean(math.log(row["interval"]["width"] / row["split_conformal"]["width"]) for row in rows)
    )
    body.append(["88 to 92 %; mean ratio of widths", "", *(f"{n} of {len(rows)}" for n in within), f"{ratio:.3f}", "1"])
    head = ["table", "rows", "covered", "split conformal", "width", "split conformal"]
    return _markdown(head, body)


def tabular_million() -> str:
    """A million rows by 20 columns (docs/tabular.md)."""
    body = [
        [row["model"], f"{row['rmse']:.4f}", f"{row['seconds']:.0f}", f"{row['peak_gib']:.2f}"]
        for row in _rows("tabular_million-cpu")
    ]
    return _markdown(["model", "RMSE", "seconds", "peak memory, GiB"], body)


def tabular_hard() -> str:
    """Made tables where the default is weak: RMSE, for classes 1 - AUC, mean over the seeds and its standard error."""
    problems: dict[str, list[dict]] = {}
    for row in _rows("tabular_hard-cpu"):
        problems.setdefault(row["problem"], []).append(row)
    body = []
    for name, rows in problems.items():
        cells = []
        for model in rows[0]["error"]:
            values = [row["error"][model] for row in rows]
            cells.append(f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}")
        body.append([name, str(rows[0]["rows"]), *cells])
    return _markdown(["table", "rows", *next(iter(problems.values()))[0]["error"]], body)


def tabular_columns() -> str:
    """Dates and numbers with units as texts: RMSE, mean over the seeds and its standard error."""
    problems: dict[str, list[dict]] = {}
    for row in _rows("tabular_columns-cpu"):
        problems.setdefault(row["problem"], []).append(row)
    body = []
    for name, rows in problems.items():
        cells = []
        for way in rows[0]["error"]:
            values = [row["error"][way] for row in rows]
            mean, spread = statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5
            cells.append(f"{mean:,.0f} ± {spread:,.0f}" if mean >= 1000 else f"{mean:.2f} ± {spread:.2f}")
        body.append([name, f"{rows[0]['rows']:,}", *cells])
    return _markdown(["table", "rows", *next(iter(problems.values()))[0]["error"]], body)


def dfiv(name: str = "dfiv") -> str:
    """Structural error and time against the published code of DFIV (docs/iv.md)."""
    body = []
    for row in _rows(f"{name}-cpu"):
        seeds = " ".join(f"{value:g}" for value in row["published_seeds"])
        wall = statistics.fmean(seed["wall_s"] for seed in row["seeds"])
        if row["published_s"] is None:
            limit = f" (limit {row['limit_s']:g})" if "limit_s" in row else ""
            times = [f"{row['cpu_s']:.2g}", f"{wall:.2g}", f"not told{limit}", ""]
        else:
            share = f"{wall / row['published_s']:.3f}"
            times = [f"{row['cpu_s']:.2g}", f"{wall:.2g}", f"{row['published_s']:g}", share]
        error = f"{row['mse']:.3g} ± {row['mse_std'] / len(row['seeds']) ** 0.5:.2g}"
        error = f"**{error}**" if row["mse"] < row["published_mse"] else error
        chosen = {"points": "100 points"}.get(row["chosen_by"], row["chosen_by"])
        body.append([row["task"], chosen, error, f"{row['published_mse']:.4g} ({seeds})", *times])
    head = ["task", "chosen by", "ours", "published (seeds)", "CPU s", "wall s", "published, s", "share, wall"]
    return _markdown(head, body)


def dfiv_estimator() -> str:
    """The same of `DFIVRegressor` as it is (docs/iv.md)."""
    return dfiv("dfiv_estimator")


def dfiv_settings() -> str:
    """The settings that the search has chosen, a column each (docs/iv.md)."""
    names = [
        "batch",
        "lr",
        "T1",
        "fresh",
        "order",
        "lam_1",
        "lam_2",
        "lam_12",
        "weight_decay",
        "psi",
        "phi",
        "xi",
        "pool",
    ]
    names += ["covariate_steps", "ridge"]
    columns, head = [], [""]
    for row in _rows("dfiv_search-cpu"):
        for rule in ("points", "outcomes"):
            if rule in row:
                best = row[rule][0]
                values = [best["setting"][name] for name in names]
                shown = [("no", "yes")[v] if isinstance(v, bool) else f"{v:g}" if isinstance(v, float) else str(v)
                         for v in values]  # fmt: skip
                task = (
                    row["task"].replace("sprites, ", "").replace("the ", "").replace("n = ", "").removesuffix(" limit")
                )
                task = task.replace("10000", "10k").replace("5000", "5k").replace("1000", "1k")
                head.append(f"{task}, {rule}")
                columns.append([str(best["iterations"]), *shown])
    labels = ["iterations", *(name.replace("_", " ") for name in names)]
    return _markdown(head, [[label, *cells] for label, *cells in zip(labels, *columns)])


def dfiv_defaults() -> str:
    """Fresh batches and the order of solve and step, in the same time: geometric means over settings and seeds, and the
    error over that of one batch for all inner steps and solve first, a factor of one standard error around it
    (docs/iv.md)."""
    tasks: dict[str, dict[tuple, dict]] = {}
    for row in _rows("dfiv_defaults-cpu"):
        runs = {(run["place"], run["seed"]): run for run in row["runs"]}
        tasks.setdefault(row["task"], {})[row["fresh"], row["order"]] = runs
    body = []
    for task, ways in tasks.items():
        base = ways[False, "solve"]
        for (fresh, order), runs in ways.items():
            logs = [math.log(run["mse"] / base[key]["mse"]) for key, run in runs.items()]
            ratio, spread = math.exp(statistics.fmean(logs)), statistics.stdev(logs) / len(logs) ** 0.5
            shown = "1" if runs is base else f"{ratio:.2f} (up or down by {math.exp(spread):.2f})"
            mean = statistics.geometric_mean(run["mse"] for run in runs.values())
            seconds = statistics.fmean(run["cpu_s"] for run in runs.values())
            better = sum(log < 0 for log in logs)
            cells = [f"{mean:.3g}", shown, "" if runs is base else f"{better} of {len(logs)}", f"{seconds:.2g}"]
            body.append([task, "fresh" if fresh else "one", order, *cells])
    return _markdown(["task", "batches", "first", "error", "over one, solve", "lower in", "CPU s"], body)


def dfiv_curves() -> str:
    """Curves by `DFIVRegressor` with its defaults, by number of rows (docs/iv.md)."""
    body = []
    for row in _rows("dfiv_designs-cpu"):
        if "curve" in row:
            worst = max(run["deep"] for run in row["seeds"])
            means = [f"{row['means'][name]:.2g}" for name in ("deep", "linear", "sieve")]
            cells = [f"{means[0]} (worst {worst:.2g})", *means[1:], f"{row['variance']:.2g}"]
            body.append([f"{row['curve']}", f"{row['n']:,}", *cells])
    return _markdown(["curve", "rows", "`DFIVRegressor`", "two-stage least squares", "sieve", "variance"], body)


def dfiv_many() -> str:
    """Slopes with many instruments, of which one matters (docs/iv.md)."""
    body = []
    for row in _rows("dfiv_designs-cpu"):
        if "instruments" in row:
            cells = []
            for name in ("deep", "linear"):
                slopes = sorted(run[name] for run in row["seeds"])
                cells.append(f"{statistics.median(slopes):.2f} ({slopes[0]:.2f} to {slopes[-1]:.2f})")
            body.append([str(row["instruments"]), *cells])
    return _markdown(["instruments", "`DFIVRegressor`, median (range)", "two-stage least squares"], body)


def dfiv_shapes() -> str:
    """`DFIVRegressor` with its own choice beside simpler methods, eight shapes (docs/iv.md)."""
    methods = ("auto", "2SLS", "cubic sieve", "deep", "kernel")
    body = []
    for row in _rows("dfiv_shapes-cpu"):
        best = min(row["means"][method] for method in methods[1:])
        cells = (f"**{row['means'][m]:.2g}**" if row["means"][m] == best else f"{row['means'][m]:.2g}" for m in methods)
        body.append([row["shape"], *cells, f"{row['over_best']:.2f}"])
    head = [
        "`DFIVRegressor`",
        "two-stage least squares",
        "cubic sieve",
        "learned features alone",
        "kernels",
        "over best",
    ]
    return _markdown(["shape", *head], body)


def iv_peers() -> str:
    """`DFIVRegressor` beside other packages: effects with intervals on tables, errors on shapes (docs/iv.md)."""
    designs = {row["design"]: {result["method"]: result for result in row["results"]} for row in _rows("iv_peers-cpu")}

    def cell(result: dict | None) -> str:
        if result is None:
            return ""
        if "errors" in result:
            return f"{statistics.fmean(result['errors']):.2g} ({result['cpu_s']:.2g} s)"
        ends = result["interval"]
        interval = "" if ends is None else f", {ends[0]:.3f} to {ends[1]:.3f}"
        return f"{result['effect']:.3f}{interval} ({result['cpu_s']:.2g} s)"

    methods = list(dict.fromkeys(method for results in designs.values() for method in results))
    body = [[method, *(cell(results.get(method)) for results in designs.values())] for method in methods]
    return _markdown(["method", *designs], body)


def iv_coverage() -> str:
    """How often intervals of an average effect hold the truth (docs/iv.md)."""
    body = []
    for row in _rows("iv_coverage-cpu"):
        shares = row["shares"]["line" if row["what"] == "line" else "estimator"]
        cells = [f"{100 * shares[level]:.0f}" for level in ("0.9", "0.95")]
        others = [row["shares"].get(name) for name in ("standard errors", "2SLS")]
        plain = [f"{100 * other['0.95']:.0f}" if other else "" for other in others]
        what = "the line" if row["what"] == "line" else "`DFIVRegressor`"
        design = [str(row["instruments"]), str(row["F"]), str(row["controls"]), f"{row['n']:,}"]
        last = [f"{100 * row['unbounded']:.0f}", f"{row['median']:.2f}", str(row["draws"])]
        body.append([what, *design, *cells, *plain, *last])
    head = [
        "instruments",
        "F",
        "controls",
        "rows",
        "90 %",
        "95 %",
        "95 % of standard errors",
        "95 % of two-stage least squares",
        "no bounds at 95 %",
        "median",
        "draws",
    ]
    return _markdown(["", *head], body)


def policy_errors() -> str:
    """Median relative errors of the mean value of a policy, by task and noise (docs/policy.md)."""
    from closedform.paper.experiments import policy

    return policy.table(policy.complete(_rows("policy-cpu")))


def policy_averages() -> str:
    """The same beside a mean over networks of learned FQE, on the seeds that all have (docs/policy.md)."""
    from closedform.paper.experiments import policy

    names = ["iv", "lstd", "learned FQE", policy.AVERAGED]
    return policy.table(policy.on_shared_seeds(_rows("policy-cpu"), names))


def policy_aims() -> str:
    """Where the aims hold: half of learned FQE's error with noise, and 1.1 times the best baseline (docs/policy.md)."""
    from closedform.paper.experiments import policy

    medians = policy.errors(policy.complete(_rows("policy-cpu")))
    cells = sorted({cell[:2] for cell in medians})
    baselines = {cell[2] for cell in medians} - set(policy.OURS)
    body = []
    for method in policy.OURS:
        noisy = [cell for cell in cells if cell[1] >= 0.2]
        half = [cell for cell in noisy if medians[(*cell, method)] <= 0.5 * medians[(*cell, "learned FQE")]]
        above = [
            cell for cell in cells if medians[(*cell, method)] > 1.1 * min(medians[(*cell, name)] for name in baselines)
        ]
        named = [", ".join(f"{task} {noise:g}" for task, noise in part) or "none" for part in (half, above)]
        body.append(
            [f'"{method}"', f"{len(half)} of {len(noisy)}: {named[0]}", f"{len(above)} of {len(cells)}: {named[1]}"]
        )
    head = ["at most half of learned FQE's error, with noise", "above 1.1 times the best baseline"]
    return _markdown(["method", *head], body)


def policy_intervals() -> str:
    """Why 90 % intervals of a policy's value miss the truth: bias, or a spread that is too short (docs/policy.md)."""
    body = []
    for method in ("iv", "lstd", "fqe"):
        rows = [row for row in _rows("policy-cpu") if row["method"] == method]
        covered = sum(row["low"] <= row["truth"] <= row["high"] for row in rows)
        cells: dict[tuple, list[dict]] = {}
        for row in rows:
            cells.setdefault((row["task"], row["noise"]), []).append(row)
        spreads, biases, widths = [], [], []
        for runs in cells.values():
            deviation = statistics.fmean((run["high"] - run["low"]) / (2 * 1.645) for run in runs)
            spreads.append(statistics.variance(run["value"] for run in runs) / deviation**2)
            biases.append(abs(statistics.fmean(run["value"] - run["truth"] for run in runs)) / deviation)
            widths += [(run["high"] - run["low"]) / 2 / abs(run["truth"]) for run in runs]
        body.append([
            f'"{method}"', f"{covered} of {len(rows)}", f"{statistics.median(widths):.3f}",
            f"{statistics.median(spreads):.2f}", f"{statistics.median(biases):.1f}",
        ])  # fmt: skip
    head = ["truth inside", "half width over the truth", "variance between seeds over the interval's"]
    return _markdown(["method", *head, "mean error in deviations"], body)


def dfpv_low() -> str:
    """Proxy variables on the design of published peers (docs/iv.md)."""
    body = []
    for row in _rows("dfpv_low-cpu"):
        seconds = statistics.fmean(draw["cpu_s"] for draw in row["seeds"])
        spread = statistics.stdev(draw["errors"]["proxies"] for draw in row["seeds"])
        published = (f"{mean:.4f} ± {deviation:.4f}" for mean, deviation in row["published"].values())
        ours = f"{row['means']['proxies']:.4f} ± {spread:.4f}"
        body.append([f"{row['n']:,}", ours, *published, f"{row['means']['regression']:.3f}", f"{seconds:.0f}"])
    head = ["published outcome bridge", "published doubly robust", "regression on the treatment", "fit, CPU s"]
    return _markdown(["rows", "`DFPVRegressor`", *head], body)


def dfpv() -> str:
    """Proxy variables against regressions on the demand design (docs/iv.md)."""
    names = ("proxies", "price alone", "price and proxies")
    body = [
        [f"{row['n']:,}", *(f"{row['means'][name]:.3g}" for name in names), f"{row['means']['cpu_s']:.2g}"]
        for row in _rows("dfpv-cpu")
    ]
    return _markdown(["rows", "`DFPVRegressor`", *(f"regression on {name}" for name in names[1:]), "fit, CPU s"], body)


def iv_card() -> str:
    """What a year of schooling does to the logarithm of the wage (docs/iv.md)."""
    (row,) = _rows("iv_card-cpu")
    low, high = (row["two_stage"] + sign * 1.96 * row["two_stage_error"] for sign in (-1, 1))
    body = [
        ["ordinary least squares", f"{row['ordinary']:.4f}", ""],
        ["two-stage least squares", f"{row['two_stage']:.4f}", f"{low:.3f} to {high:.3f}"],
        [
            "`DFIVRegressor`",
            f"{row['deep']:.4f}",
            "{:.3f} to {:.3f} ({})".format(*row["interval"], row["interval_from"]),
        ],
        ["", "", f"{row['deep_low']:.3f} to {row['deep_high']:.3f} (bootstrap, {row['replicates']} replicates)"],
    ]
    return _markdown(["method", "a year of schooling", "95 % interval"], body)


def fields(name: str = "fields_quick-cpu") -> str:
    """neuraloperator's FNO with its last layer learned and solved: relative L2 errors, and a step's time (docs/fno.md)."""
    body = []
    for row in _rows(name):
        seeds = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"])
        errors = (f"{sum(row[head]) / len(row[head]):.4f}" for head in ("learned", "solved"))
        equation = {"darcy": "Darcy flow", "burgers": "Burgers"}[row["equation"]]
        body.append([equation, f"{row['rate']:.2g}", *errors, f"{row['errors']:.2f} ({seeds})"])
        body[-1].append(f"{row['time']:.2f}" if "time" in row else "not timed")
    return _markdown(["", "rate", "learned", "solved", "errors (seed by seed)", "time"], body)


def equations() -> str:
    """Relative L2 errors on differential equations, and in brackets the seconds of one core (docs/differential.md)."""
    ways = ("solved", "trained", "learned", "deepxde", "spectral")

    def cell(result: dict | None) -> str:
        return "" if result is None else f"{result['error']:.0e} ({result['seconds']:.0f})"

    body = [[row["title"], *(cell(row[way]) for way in ways)] for row in _rows("equations")]
    return _markdown(["", "solved", "trained", "learned", "DeepXDE", "spectral"], body)


def equations_estimates() -> str:
    """What `Solution` says of its error beside the error (docs/differential.md)."""
    body = [
        [row["title"], *(f"{row['solved'][key]:.0e}" for key in ("error", "relative_residual", "spread"))]
        for row in _rows("equations")
    ]
    return _markdown(["solved", "error", "relative residual", "spread"], body)


SWAPPED = {
    "qm9": "[QM9](docs/qm9.md), molecules",
    "burgers": "[Burgers' equation](docs/fno.md), fields",
    "cifar100": "[CIFAR-100](docs/classification.md), images",
    "language": "a language model, characters",
    "unet": "a U-Net, pictures",
}


def swap(where: str = "readme") -> str:
    """The swap test: test error, solved over learned, with its standard error (README.md, and "page", docs/swap.md)."""
    body = json.loads((RESULTS / "swap-cuda.json").read_text())
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for row in body["rows"]:
        ratio, noise = row["swapped"]["ratio"], row["swapped"]["noise"]
        shown = "diverged" if ratio is None else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"
        spread = f" ± {noise * ratio:.2f}" if noise is not None and ratio >= 0.1 else ""
        earlier = f"{row['task']}, {row['optimizer']}, batch {row['batch_size']}" in body["earlier_rule"]
        marks = " ".join(mark for mark, holds in (("¹", row["seeds"] == 1), ("²", earlier)) if holds)
        cells.setdefault((row["task"], row["batch_size"]), {})[row["optimizer"]] = shown + marks + spread
    optimizers = ("sgd", "adamw", "muon", "soap")
    lines, before = [], ""
    for (task, batch_size), ratios in cells.items():
        name = SWAPPED.get(task, task) if task != before else ""
        name = name.replace("(docs/", "(") if where == "page" else name
        lines.append([name, str(batch_size), *(ratios.get(optimizer, "not run") for optimizer in optimizers)])
        before = task
    return _markdown(["", "batch size", "SGD", "AdamW", "Muon", "SOAP"], lines)


def swap_others(loss: str = "squared") -> str:
    """The swap test on more tables, with numbers or, by likelihood, with classes (docs/swap.md). The standard error is
    pooled over the cells of a table; bold: above 1.03 by more than twice that; -: the learned layer diverged."""
    body = json.loads((RESULTS / "swap_others-cpu.json").read_text())
    columns = [(optimizer, size) for optimizer in ("sgd", "adamw", "muon") for size in (32, 256)]
    cells: dict[str, dict[tuple[str, int], str]] = {}
    for row in body["rows"]:
        task, ratio = row["task"], row["swapped"]["ratio"]
        if body["losses"][task] != loss:
            continue
        ended = "-" if None in row["learned"] else "diverged"
        lost = ratio is not None and math.log(ratio / 1.03) > 2 * body["pooled_noise"].get(task, math.nan)
        shown = ended if ratio is None else f"**{ratio:.2f}**" if lost else f"{ratio:.2f}"
        cells.setdefault(task, {})[row["optimizer"], row["batch_size"]] = shown
    names = {"sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}
    lines = [
        [
            task.removeprefix("table ").replace("GeographicalOriginalof", ""),
            *(ratios[column] for column in columns),
            f"{body['pooled_noise'].get(task, math.nan):.2f}",
        ]
        for task, ratios in cells.items()
    ]
    return _markdown(["table", *(f"{names[optimizer]}, {size}" for optimizer, size in columns), "±"], lines)


if __name__ == "__main__":
    for table in (
        qm9, fno, fno_end, fno_seeds,
        shared_memory, fno_peer, sweep_throughput, accuracies, leads, short_runs, settings, confidence, readings,
        generalized, solve_time, step_overhead, step_overhead_nfnet, step_overhead_default, memory,
        communication, communication_step, diagnose_overhead,
        tabular_errors, tabular_wins, tabular_times, tabular_lambda, tabular_search,
        tabular_hard, tabular_columns, tabular_peers, tabular_peers_classes, tabular_peers_summary,
        tabular_intervals, tabular_million,
        dfiv, dfiv_estimator, dfiv_settings, dfiv_defaults, dfiv_curves, dfiv_many, dfiv_shapes, iv_peers,
        dfpv, dfpv_low, iv_card, iv_coverage, policy_errors, policy_averages, policy_aims, policy_intervals,
        fields, equations, equations_estimates, swap, swap_others,
    ):  # fmt: skip
        try:
            print(f"{table.__doc__ or table.__name__}\n\n{table()}\n")
        except FileNotFoundError as missing:
            print(f"{table.__name__}: {Path(missing.filename).name} is not there yet\n")
