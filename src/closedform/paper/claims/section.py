"""The verdicts as a part of a report."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ..report import spec
from . import EXPERIMENTS, check
from .verdicts import Check


def section(folder: Path) -> str:
    """The paper's sentences, and ours, with what the results of the folder say about each; nothing where an experiment has
    none, and the reason where the results cannot answer."""
    name = spec.load(folder).name
    if name not in EXPERIMENTS:
        return ""
    try:
        checks = check(name, folder)
    except ValueError as incomplete:
        body = f"<p>The claims are not checked on this page: {escape(str(incomplete))}.</p>"
    else:
        held = sum(one.holds for one in checks)
        groups = [_rows(title, [one for one in checks if one.beyond is beyond]) for title, beyond in
                  (("What the paper says", False), ("Beyond the paper", True))]  # fmt: skip
        body = (
            f"<p>{held} of {len(checks)} claims hold in these results.</p>\n"
            '<div class="scroll verdicts" tabindex="0" role="region" aria-labelledby="claims"><table>'
            '<thead><tr><th scope="col">verdict</th><th scope="col">claim</th><th scope="col">figures</th></tr></thead>'
            f"{''.join(groups)}</table></div>\n"
            f'<p class="note">The same as <code>closedform claims {name}</code>. The paper has no numbers for words such as '
            f"“comparable”; the ones taken here stand in <code>closedform/paper/claims/thresholds.py</code>.</p>"
        )
    return f'<section aria-labelledby="claims"><h2 id="claims">Claims and verdicts</h2>\n{body}\n</section>'


def _rows(title: str, checks: list[Check]) -> str:
    if not checks:
        return ""
    rows = "".join(
        f'<tr><td class="{"holds" if one.holds else "fails"}">{"holds" if one.holds else "does not hold"}</td>'
        f"<td>{escape(one.claim)}</td><td>{escape(one.figures)}</td></tr>"
        for one in checks
    )
    return f'<tbody><tr><th scope="rowgroup" colspan="3">{title}</th></tr>{rows}</tbody>'
