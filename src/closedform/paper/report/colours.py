"""Colours that colour-blind people can tell apart, and that are readable on a light and on a dark page."""

from __future__ import annotations

LIGHT, DARK = "#ffffff", "#14171b"  # the pages' backgrounds; page.css has the same

# Okabe and Ito's, with a grey first for the baseline and without the yellow, which no white page carries
PALETTE = ("#5b6570", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a4fbf")

# each method has a dash pattern besides its colour; lengths in pixels, none is a solid line
DASHES = ((), (7, 3), (2, 2.5), (9, 3, 2, 3), (13, 4), (5, 2, 1.5, 2, 1.5, 2), (4, 4), (1, 3))


def on_light(colour: str) -> str:
    """The colour as the light page shows it.

    >>> on_light("#0072b2"), on_light("#e69f00"), on_dark("black")
    ('#0072b2', '#c38700', '#808080')
    """
    return _readable(colour, LIGHT, 3.0)  # what WCAG 2.1 asks of lines in a chart


def on_dark(colour: str) -> str:
    return _readable(colour, DARK, 4.5)  # thin lines look fainter on a dark ground than the ratio says


def _readable(colour: str, background: str, contrast: float) -> str:
    """The colour, moved away from the background until it stands out from it."""
    from matplotlib.colors import to_hex, to_rgb

    try:
        rgb = to_rgb(colour)
    except ValueError as bad:
        raise ValueError(f"{colour!r} is not a colour: expected a name or #rrggbb") from bad
    ground = to_rgb(background)
    towards = 0.0 if _luminance(ground) > 0.5 else 1.0
    for step in range(41):
        red, green, blue = (part + (towards - part) * step / 40 for part in rgb)
        if _contrast((red, green, blue), ground) >= contrast:
            return to_hex((red, green, blue))
    return to_hex((towards, towards, towards))


def ordered(count: int) -> list[str]:
    """Colours for the values of a number, such as batch sizes: from dark to light, even without hue."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps["viridis"]
    return [to_hex(scale(0.12 + 0.68 * index / max(count - 1, 1))) for index in range(count)]


def _luminance(rgb: tuple[float, ...]) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
