"""The report on one trained model: one HTML page that needs nothing but itself, not even a script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..files import atomic
from . import charts

if TYPE_CHECKING:
    from .permutation import Importance
    from .training import Outcome

POINTS, BARS = 800, 20
MANY = 30  # columns that are listed at once
LONG = 12  # characters of a class from which on its name is broken into lines
STYLE = """
.charts { display: grid; gap: 2rem 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)) }
.charts figure { margin: 0; min-width: 0; max-width: 42rem }
.charts svg { width: 100%; height: auto; font-size: 12px; fill: var(--soft) }
.grid { stroke: var(--grid) } .rule { stroke: var(--rule) }
.ideal { stroke: var(--soft); stroke-dasharray: 5 4 }
.points circle { fill: var(--accent); fill-opacity: .45 }
polyline { fill: none; stroke-width: 2 } .s0 { stroke: var(--accent) } .s1 { stroke: #d1661f }
.bar { fill: var(--accent); fill-opacity: .7 } .spread { stroke: var(--ink) }
.key { display: flex; align-items: baseline; gap: .45em }
.swatch { flex: none; width: 1.6em; height: 3px; position: relative; top: -.3em }
.swatch.s0 { background: var(--accent) } .swatch.s1 { background: #d1661f }
table { border-collapse: collapse } th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid var(--rule) }
th:first-child, td:first-child { text-align: left } tr.best td { font-weight: 650 }
.wide { overflow-x: auto; max-width: 100% }
.matrix.long th { min-width: 7rem; max-width: 14rem; overflow-wrap: anywhere }
.columns h2 { display: inline } .columns ul { max-width: 46rem; padding-left: 1.2rem }
.columns :is(th, td) { text-align: left; overflow-wrap: anywhere }
.columns :is(th, td):first-child { min-width: 6.5rem; max-width: 22rem }
@media (max-width: 640px) { th, td { padding: .3rem .45rem } }
.intervals { margin-top: .9rem }
.matrix td { background: color-mix(in srgb, var(--accent) calc(var(--share) * 70%), transparent) }
"""


def write(
    path: Path,
    name: str,
    outcome: Outcome,
    true: np.ndarray,
    predicted: np.ndarray,
) -> None:
    page = render(name, outcome, true, predicted)
    with atomic(path) as file:
        file.write(page.encode())


def render(
    name: str,
    outcome: Outcome,
    true: np.ndarray,
    predicted: np.ndarray,
) -> str:
    model, target = outcome.model, outcome.model.target
    figures = [_learning(outcome)]
    if model.task == "regression":
        figures += _agreement(target, true, predicted)
    else:
        figures.append(_confusion(model.estimator.classes_, true, predicted))
    if outcome.importance is not None:
        figures.append(_importance(outcome, outcome.importance))
    style = (files("closedform.tabular") / "page.css").read_text(encoding="utf-8") + STYLE
    title = html.escape(f"{target}, from {name}")
    remarks = "".join(f"<p>{remark}</p>" for remark in _sentences(outcome.remarks))
    facts = {
        "task": model.task,
        "rows": f"{outcome.train_rows:,} to train, {outcome.test_rows:,} to test",
        "columns": ", ".join(f"{kind} {len(names):,}" for kind, names in model.preparation.summary().items()),
        "epochs": str(model.estimator.n_iter_),
    }
    intervals = f'<p class="intervals">{html.escape(outcome.intervals)}</p>\n' if outcome.intervals is not None else ""
    listed = "".join(f"<div><dt>{k}</dt><dd>{html.escape(v)}</dd></div>" for k, v in facts.items())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{title}</h1>\n"
        f'<p class="result">{html.escape(sentence(outcome))}</p>\n{remarks}\n<dl class="environment">{listed}</dl>\n'
        f"</header>\n<section>\n<h2>On the test rows</h2>\n{_table(outcome)}\n{intervals}</section>\n"
        '<section class="charts">\n'
        + "\n".join(figures)
        + f"\n</section>\n{_columns(outcome)}\n</main>\n</body>\n</html>\n"
    )


def sentence(outcome: Outcome) -> str:
    """How the model compares, in words; also where it loses."""
    own = outcome.scores["closedform"]
    others = {name: score for name, score in outcome.scores.items() if name != "closedform"}
    best = min(others, key=others.__getitem__)
    rows = f"{outcome.test_rows:,} rows" if outcome.test_rows > 1 else "one row"
    own_error = f"The {outcome.metric} on {rows} that training has not seen is {charts.number(own)}"
    if own == others[best]:
        return f"{own_error}; {best} reaches the same."
    if own < others[best]:
        return f"{own_error}; of the others, {best} comes closest with {charts.number(others[best])}."
    return f"{own_error}; {best} does better with {charts.number(others[best])}."


def _table(outcome: Outcome) -> str:
    rows = ""
    best = min(outcome.scores.values())
    for name, score in outcome.scores.items():
        mark = ' class="best"' if score == best else ""
        quality = charts.share(outcome.quality[name])
        cells = html.escape(name), charts.number(score), quality, f"{outcome.seconds[name]:.2f}"
        rows += f"<tr{mark}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    names = "model", outcome.metric, outcome.quality_name, "seconds to fit"
    return _scrolling(f"<table><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>{rows}</table>")


def _sentences(remarks: Sequence[str]) -> list[str]:
    return [html.escape(f"{remark[0].upper()}{remark[1:]}.") for remark in remarks]


def _scrolling(table: str) -> str:
    """A table in a box of its own, which a narrow screen scrolls."""
    return f'<div class="wide" tabindex="0">{table}</div>'


def _columns(outcome: Outcome) -> str:
    """What each column was taken for; closed at first where there are many."""
    columns = outcome.model.preparation.descriptions()
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in columns.items()
    )
    opened = " open" if len(columns) <= MANY else ""
    table = _scrolling(f"<table><tr><th>column</th><th>taken as</th></tr>{rows}</table>")
    remarks = "".join(f"<li>{remark}</li>" for remark in _sentences(outcome.model.preparation.remarks))
    listed = f"<ul>{remarks}</ul>" if remarks else ""
    return (
        f'<section class="columns"><details{opened}><summary><h2>What each column was taken for</h2></summary>'
        f"{listed}{table}</details></section>"
    )


def _figure(title: str, drawing: str, caption: str) -> str:
    return f"<figure><h2>{title}</h2>{drawing}<figcaption>{caption}</figcaption></figure>"


def _key(series: int, text: str) -> str:
    """A line of a legend, which stays beside its words however narrow the page is."""
    return f'<span class="key"><span class="swatch s{series}"></span><span>{text}</span></span>'


def _learning(outcome: Outcome) -> str:
    estimator = outcome.model.estimator
    series = {"training rows": estimator.loss_curve_}
    caption = _key(0, "rows trained on, right after the last layer was solved on them")
    if estimator.validation_curve_:
        series["rows held out"] = estimator.validation_curve_
        caption += _key(1, "rows held out (the mean of the members)")
        caption += "The two draw near as the last layer remembers more of the earlier rows."
    drawing = charts.lines(series, "epoch", "squared error, scaled")
    return _figure("Learning curve", drawing, caption)


def _agreement(target: str, true: np.ndarray, predicted: np.ndarray) -> list[str]:
    chosen = np.linspace(0, len(true) - 1, min(POINTS, len(true))).astype(int)
    some = "" if len(chosen) == len(true) else f", {len(chosen):,} of {len(true):,} test rows"
    a, b = true[chosen].tolist(), predicted[chosen].tolist()
    residual = (true - predicted)[chosen].tolist()
    return [
        _figure(
            "Predicted against true",
            charts.points(a, b, f"true {target}", f"predicted {target}", line="diagonal"),
            f"On the dashed line a prediction is right{some}.",
        ),
        _figure(
            "Residuals",
            charts.points(b, residual, f"predicted {target}", "true minus predicted", line="zero"),
            f"A pattern here is something that the model has not learned{some}.",
        ),
    ]


def _confusion(classes: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> str:
    shown = classes[:12]
    rows = ""
    for label in shown:
        of = true == label
        total = max(int(of.sum()), 1)
        counts = [int((of & (predicted == other)).sum()) for other in shown]
        cells = "".join(f'<td style="--share: {count / total:.2f}">{count}</td>' for count in counts)
        rows += f"<tr><th>{html.escape(str(label))}</th>{cells}</tr>"
    head = "".join(f"<th>{html.escape(str(label))}</th>" for label in shown)
    kind = "matrix long" if max(len(str(label)) for label in shown) > LONG else "matrix"
    table = _scrolling(f'<table class="{kind}"><tr><th>true \\ predicted</th>{head}</tr>{rows}</table>')
    more = "" if len(shown) == len(classes) else f" The first {len(shown)} of {len(classes)} classes."
    return _figure("Which class for which", table, f"Test rows by their true and their predicted class.{more}")


def _importance(outcome: Outcome, importance: Importance) -> str:
    label = "RMSE added" if outcome.model.task == "regression" else "accuracy lost"
    shown = importance.entries[:BARS]
    more = f" Shown: the first {BARS}." if len(importance.entries) > BARS else ""
    return _figure(
        "Permutation importance",
        charts.bars(shown, f"{label} when the column is shuffled"),
        f"{importance.caption()}{more}",
    )
