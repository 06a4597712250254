"""The command `closedform`: the commands of the library and those of the paper in one application.

Nothing heavy is imported here or by the modules that hold the commands: each command imports what it needs when it runs, so
that a version, a help page or a wrong argument is answered at once.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .extras import require

if TYPE_CHECKING:
    import typer


def application() -> typer.Typer:
    require("closedform's command line", "experiments", "typer", "rich")
    import typer

    from .paper import commands as paper
    from .tabular import commands as tabular

    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        help="Train on tables, and reproduce the paper.",
        pretty_exceptions_enable=False,
    )
    app.command()(version)
    tabular.register(app)
    paper.register(app)
    return app


def version() -> None:
    """Print the version."""
    from . import __version__

    print(__version__)


def main() -> None:
    """Run the command; what is missing or wrong is one sentence."""
    try:
        try:
            app = application()
        except ImportError as missing:
            sys.exit(str(missing))
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, ImportError, OSError) as wrong:
        if os.environ.get("CLOSEDFORM_DEBUG"):
            raise
        # the message names the wrong input; a traceback would hide it
        print(f"closedform: {wrong} (CLOSEDFORM_DEBUG=1 shows where)", file=sys.stderr)
        sys.exit(2)
