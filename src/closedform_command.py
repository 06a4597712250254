"""The command `closedform`, outside of the package: a Ctrl-C while torch is being imported ends it without a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from closedform.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
