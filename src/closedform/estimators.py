"""A thin door: the estimators of `closedform.tabular` and `closedform.iv` in one place.

Needs the extra `sklearn`: pip install 'closedform[sklearn]'.
"""

from .iv import DFIVRegressor, DFPVRegressor
from .tabular import ClosedFormClassifier, ClosedFormRegressor, load

__all__ = ["ClosedFormClassifier", "ClosedFormRegressor", "DFIVRegressor", "DFPVRegressor", "load"]
