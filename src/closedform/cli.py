"""The entry point of the command line, which says in one sentence what is missing or wrong."""

from __future__ import annotations

import os
import sys

from .extras import require

NEEDED = ("typer", "rich", "pandas", "pyarrow", "matplotlib", "jinja2")


def main() -> None:
    try:
        try:
            require("closedform's command line", "experiments", *NEEDED)
        except ImportError as missing:
            sys.exit(str(missing))
        from .paper.commands import application

        application()()
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, ImportError, OSError) as wrong:
        if os.environ.get("CLOSEDFORM_DEBUG"):
            raise
        # what was given is named in the message; a traceback would hide it
        print(f"closedform: {wrong} (CLOSEDFORM_DEBUG=1 shows where)", file=sys.stderr)
        sys.exit(2)
