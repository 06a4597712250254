"""What the drawn experiments share."""

from __future__ import annotations

from typing import Any

BLUE, ORANGE, GREEN, RED, GREY = "#1767c0", "#d4561d", "#0b7a52", "#b3243b", "#777777"


def pyplot() -> Any:
    """matplotlib without a window, or a message that says what to install."""
    try:
        import matplotlib
    except ImportError as missing:
        raise ImportError("the figures need matplotlib: pip install 'closedform[theory]'") from missing
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "closedform"  # the same picture gives the same file
    from matplotlib import pyplot

    return pyplot
