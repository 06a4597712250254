"""What a part of the library needs beyond torch and numpy."""

from __future__ import annotations

from importlib import import_module


def require(user: str, extra: str, *modules: str) -> None:
    """Raise an ImportError that names the pip command, unless all `modules` of the extra can be imported."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as missing:
            name = missing.name or module
            raise ImportError(f"{user} needs {name}: pip install 'closedform[{extra}]'", name=name) from None
