"""A thin door: the estimators of `closedform.tabular` and `closedform.iv` in one place.

Needs the extra `sklearn`: pip install 'closedform[sklearn]'.
"""

from .extras import require

require("closedform.estimators", "sklearn", "sklearn")

from .estimator_files import load  # noqa: E402
from .iv import DFIVRegressor, DFPVRegressor  # noqa: E402
from .tabular import ClosedFormClassifier, ClosedFormRegressor  # noqa: E402

__all__ = ["ClosedFormClassifier", "ClosedFormRegressor", "DFIVRegressor", "DFPVRegressor", "load"]
