"""What the drawn experiments share."""

from __future__ import annotations

from typing import Any

from ... import extras

BLUE, ORANGE, GREEN, RED, GREY = "#1767c0", "#d4561d", "#0b7a52", "#b3243b", "#777777"


def pyplot() -> Any:
    """matplotlib without a window, or a message that says what to install."""
    extras.require("a figure", "theory", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "closedform"  # the same picture gives the same file
    from matplotlib import pyplot

    return pyplot
