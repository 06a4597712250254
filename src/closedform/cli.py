"""The entry point of the command line, which says in one sentence what is missing or wrong."""

from __future__ import annotations

import sys

from .extras import require


def main() -> None:
    try:
        require(
            "closedform's command line", "experiments", "typer", "rich", "pandas", "pyarrow", "matplotlib", "jinja2"
        )
    except ImportError as missing:
        sys.exit(str(missing))
    from .commands import application

    try:
        application()()
    except (
        ValueError,
        ImportError,
        FileNotFoundError,
    ) as wrong:  # what was given is named in the message; a traceback would hide it
        print(f"closedform: {wrong}", file=sys.stderr)
        sys.exit(2)
