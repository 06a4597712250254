"""Tables: `ClosedFormRegressor` and `ClosedFormClassifier`, which work like scikit-learn's estimators, and `load`.

`closedform train` and `closedform predict` do the same from a file. Needs the extra `sklearn`:
pip install 'closedform[sklearn]'.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..extras import require

if TYPE_CHECKING:
    from ..estimator_files import load
    from .classifier import ClosedFormClassifier
    from .regressor import ClosedFormRegressor

__all__ = ["ClosedFormClassifier", "ClosedFormRegressor", "load"]

_HOMES = {"ClosedFormClassifier": ".classifier", "ClosedFormRegressor": ".regressor", "load": "..estimator_files"}


def __getattr__(name: str) -> Any:
    """An estimator is imported when it is first used, so that the commands of this room are listed without scikit-learn."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("closedform.tabular", "sklearn", "sklearn")
    return getattr(import_module(_HOMES[name], __name__), name)
