"""Estimators that work like scikit-learn's: `ClosedFormRegressor`, `ClosedFormClassifier`, `DFIVRegressor`,
`DFPVRegressor`, and `load`.

Needs the extra `sklearn`: pip install 'closedform[sklearn]'.
"""

from ..extras import require

require("closedform.estimators", "sklearn", "sklearn")

from .classifier import ClosedFormClassifier  # noqa: E402
from .dfiv import DFIVRegressor  # noqa: E402
from .dfpv import DFPVRegressor  # noqa: E402
from .files import load  # noqa: E402
from .regressor import ClosedFormRegressor  # noqa: E402

__all__ = ["ClosedFormClassifier", "ClosedFormRegressor", "DFIVRegressor", "DFPVRegressor", "load"]
