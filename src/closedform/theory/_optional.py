"""Packages that only some functions here need."""

from __future__ import annotations

from typing import Any


def scipy_integrate() -> Any:
    try:
        from scipy import integrate
    except ImportError as missing:
        raise ImportError("the flows of closedform.theory need scipy: pip install 'closedform[theory]'") from missing
    return integrate
