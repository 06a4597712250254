"""The HTML page: text, table and legend are written here, the charts are drawn by `page.js` in the browser.

The page needs nothing but itself. Its content security policy forbids every request, and every script but `page.js` and
those of the sections that the caller adds: pieces of HTML, taken as they are, with a style and a script of their own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ... import extras
from ...files import atomic
from . import headline, panels, summary, text
from .spec import Experiment


def write(folder: Path, out: Path | None = None, sections: Sequence[str] = (), verdicts: str = "") -> Path:
    """Write the report on a results folder, `report.html` in it by default. `verdicts` on claims stand between the figures
    and the table, `sections` of HTML at the end."""
    folder = Path(folder)
    return save(render(folder, sections, verdicts), folder / "report.html" if out is None else Path(out))


def save(page: str, out: Path) -> Path:
    """Write a page so that a reader never sees half of it."""
    with atomic(out) as file:
        file.write(page.encode())
    return out


def frame(title: str, text: str, sections: Sequence[str]) -> str:
    """A page that is nothing but sections, in the style and under the policy of a report."""
    return _template("frame.html.j2").render(
        title=title,
        paragraphs=_paragraphs(text),
        style=style(),
        sections=sections,
        policy=policy("", sections),
    )


def policy(script: str, sections: Sequence[str]) -> str:
    """The content security policy: no request, and these scripts only. Sections may hold images as data."""
    scripts = [script, *(text for section in sections for text in _SCRIPT.findall(section))]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts if s]
    allowed = " ".join(hashes) or "'none'"
    images = "; img-src data:" if sections else ""
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}{images}"


# what a browser would run: data in a script element is not
_SCRIPT = re.compile(r'<script(?![^>]*type="application/json")[^>]*>(.*?)</script>', re.S)


def style() -> str:
    """The look that all pages of the package share."""
    return (files("closedform.tabular") / "page.css").read_text(encoding="utf-8")


def _file(name: str) -> str:
    return (files("closedform.paper.report") / name).read_text(encoding="utf-8")


def _template(name: str) -> Any:
    extras.require("a report", "experiments", "jinja2")
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_file(name))


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def render(folder: Path, sections: Sequence[str] = (), verdicts: str = "") -> str:
    table, experiment = panels.read(folder)
    facets = summary.best_settings(table, experiment)
    first = headline.figure(facets, experiment)
    figures = [*([first] if first else []), *panels.figures(table, experiment)]
    script = _file("page.js")
    models = len(table[[*panels.configuration(experiment), "seed"]].drop_duplicates())
    styles = list({style.key: style for figure in figures for style in figure.styles}.values())
    return _template("page.html.j2").render(
        experiment=experiment,
        paragraphs=_paragraphs(experiment.text),
        sentence=summary.sentence(facets, experiment),
        environment={"models": f"{models:,}", "measurements": f"{len(table):,}", **experiment.environment},
        figures=figures,
        facets=facets,
        settings=_settings(experiment, facets),
        styles=styles,
        methods=[style for style in styles if style.key.startswith("method=")],
        notes=_notes(figures),
        described=_described,
        new_in_table=any(entry.method.ours for facet in facets for entry in facet.entries),
        style=style(),
        script=script,
        policy=policy(script, sections),
        sections=sections,
        verdicts=verdicts,
        data=embedded(_data(figures, styles, experiment)),
    )


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element, whatever strings it holds.

    >>> embedded("</script>")
    '"\\\\u003c/script>"'
    """
    dumped = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return dumped.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _settings(experiment: Experiment, facets: Sequence[summary.Facet]) -> list[tuple[int, str]]:
    """The settings that some method has, with their places in an entry."""
    entries = [entry for facet in facets for entry in facet.entries]
    return [
        (at, text.name(experiment, column))
        for at, column in enumerate(experiment.settings)
        if any(entry.settings[at] != text.MISSING for entry in entries)
    ]


def _notes(figures: Sequence[panels.Figure]) -> dict[str, str]:
    """What the legend says about lines that end in no number."""
    notes = {}
    for style in {style.key: style for figure in figures for style in figure.styles}:
        lines = [
            line
            for figure in figures
            if figure.kind == "curves"
            for panel in figure.panels
            for line in panel.lines
            if line.key == style
        ]
        diverged = sum(line.diverged for line in lines)
        if diverged:
            notes[style] = f"diverged in {diverged} of {len(lines)}"
    return notes


def _described(figure: panels.Figure, panel: panels.Panel) -> str:
    """A panel in words, for those who cannot see it."""
    labels = {style.key: style.label for style in figure.styles}
    what = {"curves": "at the last step", "sensitivity": "at its best", "headline": "at the best setting"}[figure.kind]
    ends = "; ".join(f"{labels[line.key]} {_end(figure, line)}" for line in panel.lines)
    return f"{panel.title}. {figure.y_label} {what}: {ends}."


def _end(figure: panels.Figure, line: panels.Line) -> str:
    if figure.kind == "curves":
        last = line.y[-1]
        return "diverged" if last is None else text.interval(last, line.half_width[-1])
    if figure.kind == "headline":
        cases = dict(figure.ticks)
        shown = (f"{'diverged' if y is None else text.interval(y, half)} at {figure.x_label} {cases[x]}"
                 for x, y, half in zip(line.x, line.y, line.half_width))  # fmt: skip
        return ", ".join(shown)
    points = [(y, x) for x, y in zip(line.x, line.y) if y is not None]
    if not points:
        return "diverged everywhere"
    y, x = min(points) if figure.lower else max(points)
    return f"{text.number(y)} at {figure.x_label} {dict(figure.ticks)[x]}"


def _data(figures: Sequence[panels.Figure], styles: Sequence[panels.Style], experiment: Experiment) -> dict:
    places = {style.key: at for at, style in enumerate(styles)}
    return {
        "log": experiment.log,
        "lower": experiment.lower,
        "styles": [{"label": style.label, "dash": " ".join(map(str, style.dash))} for style in styles],
        "figures": [
            {
                "kind": figure.kind,
                "x": figure.x_label,
                "y": figure.y_label,
                "linear": figure.linear,
                "log": figure.log,
                "ticks": [*zip(_short([place for place, _ in figure.ticks]), (label for _, label in figure.ticks))],
                "panels": [
                    {
                        "lines": [
                            {
                                "style": places[line.key],
                                "x": _short(line.x),
                                "y": _short(line.y),
                                "half": _short(line.half_width),
                                "settings": line.settings,
                                "seeds": line.seeds,
                                "diverged": line.diverged,
                                "reach": None if line.reach is None else _short(line.reach),
                            }
                            for line in panel.lines
                        ]
                    }
                    for panel in figure.panels
                ],
            }
            for figure in figures
        ],
    }


def _short(values: Sequence[float | None]) -> list[float | int | None]:
    """Five digits say more than a screen can show; steps stay whole."""
    shown = [None if v is None else v if v == round(v) and abs(v) < 1e12 else float(f"{v:.5g}") for v in values]
    return [int(v) if v is not None and v == round(v) else v for v in shown]
