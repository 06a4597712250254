"""What the estimators take for `X`: arrays as they are, and data frames by their preparation, which is made in `fit`.

A data frame of numbers without missing values is an array, with the same results. Everything else about arrays, names and
numbers of columns is scikit-learn's.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import _check_feature_names, _check_n_features, check_array, check_X_y, validate_data

from .. import callers
from ..arrays import as_numpy
from .choosing import choose
from .columns import NumberColumn, Preparation
from .reading import TableError

if TYPE_CHECKING:
    import pandas as pd

NO_TARGET = "no_validation"  # as scikit-learn has it: None is a target that was forgotten
HINT = "; a column of the type 'category' is taken as texts"


def validated(
    estimator: Any,
    X: Any,
    y: Any = NO_TARGET,
    *,
    reset: bool,
    preparation: Preparation | None = None,
    used: np.ndarray | None = None,
) -> Any:
    """`X` as an array of finite numbers, and `y` with it if it is passed. With `reset`, in `fit`, the estimator gets
    `preparation_`, `n_features_in_` and `feature_names_in_`; without, they are what is expected. Where a mask `used` of rows
    is passed, the others do not shape the preparation."""
    X, y = as_numpy(X), as_numpy(y)
    frame = as_frame(X)
    if reset:
        vars(estimator).pop("preparation_", None)
    else:
        preparation = getattr(estimator, "preparation_", None)
    plain = preparation is None or _is_plain(preparation)
    if frame is None and plain:
        return _array(estimator, X, y, reset)
    if frame is not None and plain and is_numeric(frame):
        result = _array(estimator, frame, y, reset)
        if reset:
            rows = _rows(used, len(frame))
            estimator.preparation_ = preparation or _numeric(frame, (result if _is_alone(y) else result[0])[rows])
        return result
    if frame is not None and preparation is None and not reset:
        return _array(estimator, frame, y, reset)  # it was fitted on an array: scikit-learn says what is wrong
    frame = _named(estimator, X, frame, preparation, reset)
    if not len(frame):
        raise TableError("X has no rows; expected at least 1")
    if preparation is None:
        preparation = choose(frame, rows=_rows(used, len(frame)), hint=HINT)
        for remark in preparation.remarks:
            callers.warn(f"{remark[0].upper()}{remark[1:]}.")
    prepared = preparation.transform(frame)
    if reset:
        estimator.preparation_ = preparation
    if _is_alone(y):
        return check_array(prepared, dtype="float64", estimator=estimator)
    return check_X_y(prepared, y, dtype="float64", multi_output=True, estimator=estimator)


def for_prepared(estimator: Any) -> Any:
    """The same fitted model for arrays that its preparation has made already."""
    model = copy.copy(estimator)
    width = estimator.preparation_.width
    for name in ("preparation_", "feature_names_in_"):
        vars(model).pop(name, None)
    model.n_features_in_ = width
    return model


def _rows(used: np.ndarray | None, n: int) -> np.ndarray:
    """The rows that a preparation is made from; all of them where the mask is none, which is complained of later."""
    if used is None or used.shape != (n,) or not used.any():
        return np.arange(n)
    return np.flatnonzero(used)


def _is_alone(y: Any) -> bool:
    return isinstance(y, str) and y == NO_TARGET


def as_frame(X: Any) -> Any:
    """A data frame of pandas, polars or pyarrow as one of pandas; None for arrays and everything else."""
    if not hasattr(X, "columns") or len(getattr(X, "shape", ())) != 2:
        return None
    if hasattr(X, "iloc"):
        return X
    if not hasattr(X, "to_pandas"):
        raise ValueError(
            f"X is a {type(X).__module__.partition('.')[0]}.{type(X).__name__}, which has no to_pandas(); expected an "
            "array or a data frame of pandas, polars or pyarrow"
        )
    return X.to_pandas()


def is_numeric(frame: pd.DataFrame) -> bool:
    """Whether all columns hold numbers or truths and none is missing, so that the table is an array already."""
    import pandas as pd

    return all(map(pd.api.types.is_numeric_dtype, frame.dtypes)) and not bool(frame.isna().to_numpy().any())


def _is_plain(preparation: Preparation) -> bool:
    """Whether it leaves numbers as they are, and only says what becomes of missing ones."""
    plain = all(isinstance(column, NumberColumn) and column.width == 1 for column in preparation.columns)
    return plain and not preparation.by_name


def _numeric(frame: pd.DataFrame, X: np.ndarray) -> Preparation:
    medians = np.median(X, 0).tolist()
    return Preparation([NumberColumn(str(name), median) for name, median in zip(frame.columns, medians)])


def _array(estimator: Any, X: Any, y: Any, reset: bool) -> Any:
    if _is_alone(y):
        return validate_data(estimator, X, reset=reset, dtype=np.float64)
    return validate_data(estimator, X, y, reset=reset, dtype=np.float64, multi_output=True)


def _named(estimator: Any, X: Any, frame: Any, preparation: Preparation | None, reset: bool) -> pd.DataFrame:
    """The data frame whose columns the preparation takes, after scikit-learn's checks of names and numbers of columns."""
    import pandas as pd

    if not reset and preparation is not None and preparation.by_name and frame is not None:
        for name in preparation.used:
            if name not in frame.columns:
                raise TableError(f"there is no column {name!r}; the model needs it")
        return frame
    _check_feature_names(estimator, X if frame is None else frame, reset=reset)
    _check_n_features(estimator, X if frame is None else frame, reset=reset)
    if frame is not None:
        return frame
    assert preparation is not None
    return pd.DataFrame(np.asarray(X), columns=[column.name for column in preparation.columns])
