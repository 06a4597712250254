"""Write the tables, claims and numbers of a page anew from the committed results.

    python benchmarks/rebuild.py docs/fno.md

A part of a page that results make stands between `<!-- begin: table fno -->` and `<!-- end -->`; the words after `begin:`
say which: `table` and a function of `tables.py` with its arguments, `claims` and an experiment's folder of results, or
`text`, the description of such a folder. Numbers in sentences have their own marks (`sentences.py`) and keep the number of
their digits. What the sentences say of these numbers is for a person to read again.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import sentences
import tables
from closedform.paper import claims
from closedform.paper.report import spec

RESULTS = Path(__file__).parents[1] / "results"
PART = re.compile(
    r"(<!-- begin: (?P<kind>table|claims|text) (?P<words>[\w -]+) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL
)
EXPERIMENT = {"fno_small": "fno"}  # of a folder whose name is not that of its experiment
WIDTH = 124


def part(kind: str, words: list[str]) -> str:
    """What the results make of one part of a page."""
    if kind == "table":
        return getattr(tables, words[0])(*words[1:])
    folder = RESULTS / words[0]
    if kind == "claims":
        return claims.markdown(claims.check(EXPERIMENT.get(words[0], words[0]), folder))
    paragraphs = spec.load(folder).text.split("\n\n")
    return "\n\n".join(textwrap.fill(paragraph, WIDTH, break_on_hyphens=False) for paragraph in paragraphs)


def number(mark: re.Match[str]) -> str:
    """A marked number with as many digits as it had; a bound stays, as long as it holds."""
    if mark["bound"]:
        return mark[0]
    digits, _, exponent = mark["number"].partition("e")
    places = len(digits.partition(".")[2])
    value = sentences.exact(mark)
    shown = f"{value:.{places}e}" if exponent else f"{value:,.{places}f}" if "," in digits else f"{value:.{places}f}"
    return mark[0].replace(mark["number"], shown, 1)


def rebuilt(page: str) -> str:
    page = PART.sub(lambda mark: mark[1] + part(mark["kind"], mark["words"].split()) + mark[4], page)
    return sentences.MARKED.sub(number, page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        before = path.read_text(encoding="utf-8")
        after = rebuilt(before)
        path.write_text(after, encoding="utf-8")
        changed = sum(a != b for a, b in zip(before.splitlines(), after.splitlines()))
        print(f"{path}: {'as it was' if after == before else f'about {changed} lines changed: read them'}")
