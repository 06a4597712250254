"""Causal questions: instrumental variables and proxies with learned features.

`DFIVRegressor` and `DFPVRegressor` work like scikit-learn's estimators (extra `sklearn`), and `load` reads what they saved.
`PolicyEvaluator` tells the value of a policy from logged transitions.

Beneath them: `DFIV` holds three networks and two solved layers and takes one outer iteration of the paper's Algorithm 3 at a
time; `train` draws its batches from a `Split` of the rows; `reestimated` solves both layers once more on all of them.
`reference` has the same letter by letter. `linear` is the classical estimator, with its diagnostics.
"""

from typing import TYPE_CHECKING, Any

from . import linear, networks, reference
from .algorithm import DFIV, Rules
from .evaluation import Layers, reestimated
from .loop import Data, Split, train
from .policy import PolicyEvaluator

if TYPE_CHECKING:
    from ..estimator_files import load
    from .dfiv import DFIVRegressor
    from .dfpv import DFPVRegressor

__all__ = [
    "DFIV",
    "DFIVRegressor",
    "DFPVRegressor",
    "Data",
    "Layers",
    "PolicyEvaluator",
    "Rules",
    "Split",
    "linear",
    "load",
    "networks",
    "reestimated",
    "reference",
    "train",
]


def __getattr__(name: str) -> Any:
    """The estimators need scikit-learn, which the algorithm does without."""
    if name not in ("DFIVRegressor", "DFPVRegressor", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..extras import require

    require(f"closedform.iv.{name}", "sklearn", "sklearn")
    from importlib import import_module

    home = {"DFIVRegressor": ".dfiv", "DFPVRegressor": ".dfpv", "load": "closedform.estimator_files"}[name]
    return getattr(import_module(home, __name__), name)
