"""Tables: `ClosedFormRegressor` and `ClosedFormClassifier`, which work like scikit-learn's estimators, and `load`.

`closedform train` and `closedform predict` do the same from a file. Needs the extra `sklearn`:
pip install 'closedform[sklearn]'.
"""

from ..extras import require

require("closedform.tabular", "sklearn", "sklearn")

from ..estimator_files import load  # noqa: E402
from .classifier import ClosedFormClassifier  # noqa: E402
from .regressor import ClosedFormRegressor  # noqa: E402

__all__ = ["ClosedFormClassifier", "ClosedFormRegressor", "load"]
