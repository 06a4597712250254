"""Instrumental variables with learned features: the paper's Algorithm 3, its ridge twin, and two-stage least squares.

`DFIV` holds three networks and two solved layers and takes one outer iteration of Algorithm 3 at a time; `train` draws its
batches from a `Split` of the rows; `reestimated` solves both layers once more on all of them. `reference` has the same
letter by letter. `linear` is the classical estimator, with its diagnostics. For tables there is
`closedform.estimators.DFIVRegressor`.
"""

from . import linear, networks, reference
from .algorithm import DFIV, Rules
from .evaluation import Layers, reestimated
from .loop import Data, Split, train

__all__ = ["DFIV", "Data", "Layers", "Rules", "Split", "linear", "networks", "reestimated", "reference", "train"]
