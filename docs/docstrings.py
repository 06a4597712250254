"""Docstrings are written for the reader of the code, with Markdown's marks; autodoc wants reStructuredText.

What differs: lines `name: what it is` in a row are a list (but not the first sentence, which may have a colon), an
indented block is code, a table has pipes, and outside of backticks no character means anything.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

ITEM = re.compile(r"(?P<names>[a-z]\w*(?:, \w+)*) ?: (?P<text>.*)")
MARK = re.compile(r"(?<=\w)_(?!\w)|[|]")  # the start of a reference and of a substitution


def convert(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """The hook: changes the lines in place."""
    if lines and lines[0].startswith("Alias for field number"):  # what Python says of every field of a named tuple
        lines.clear()
    blocks = _blocks(lines)
    lines[:] = [line for at, block in enumerate(blocks) for line in (*_converted(block, first=at == 0), "")]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """What stands between blank lines; code with blank lines in it is one block."""
    block: list[str] = []
    for at, line in enumerate(lines):
        following = next((later for later in lines[at:] if later.strip()), "")
        if line.strip() or (block and block[0].startswith("    ") and following.startswith("    ")):
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _converted(block: list[str], first: bool = False) -> list[str]:
    """
    >>> _converted(["lam: a number, `a|b`", "    or |x|", "beta, gamma : others"])
    ['* `lam`: a number, `a|b`', '  or \\\\|x\\\\|', '* `beta, gamma`: others']
    >>> _converted(["skorch: a callback"], first=True)
    ['skorch: a callback']
    >>> _converted(["    x = 1", "", "    y = 2"])[0]
    '.. code-block:: python'
    """
    if block[0].startswith(">>>"):
        return block
    if block[0].startswith("    "):
        return [f".. code-block:: {_language(block)}", "", *block]
    if len(block) > 1 and set(block[1]) == {"-"}:
        return [f"**{block[0]}**", "", *_converted(block[2:])]
    if block[0].startswith("| "):
        return _table(block)
    starts = [line for line in block if not line.startswith(" ")]
    if not first and all(ITEM.fullmatch(line) for line in starts):
        return [_item(line) for line in block]
    return [_plain(line) for line in block]


def _language(block: list[str]) -> str:
    try:
        ast.parse(textwrap.dedent("\n".join(block)))
    except SyntaxError:
        return "text"
    return "python"


def _item(line: str) -> str:
    found = ITEM.fullmatch(line)
    return f"* `{found['names']}`: {_plain(found['text'])}" if found else "  " + _plain(line.strip())


def _table(block: list[str]) -> list[str]:
    """A table with a head, as a list-table."""
    rows = [[_plain(cell.strip()) for cell in line.strip("|").split(" | ")] for line in (block[0], *block[2:])]
    body = [f"   {'  ' if at else '* '}- {cell}" for row in rows for at, cell in enumerate(row)]
    return [".. list-table::", "   :header-rows: 1", "", *body]


def _plain(line: str) -> str:
    parts = line.removesuffix(":" if line.endswith("::") else "").split("`")
    return "`".join(part if at % 2 else MARK.sub(r"\\\g<0>", part) for at, part in enumerate(parts))
