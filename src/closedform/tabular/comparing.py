"""How good a model is on the test rows, beside simpler ones: the training mean or the most frequent class, ridge, and an
ordinary network."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FEW_TEST_ROWS = 50  # fewer are mentioned
CONSTANT = {"regression": "mean of the training rows", "classification": "most frequent class"}
METRIC = {"regression": "RMSE", "classification": "error rate"}
QUALITY = {"regression": "R²", "classification": "accuracy"}


def baselines(task: str, estimator: Any, seed: int) -> dict[str, Any]:
    """Estimators to compare with: a constant, ridge (or its classifier) on the inputs themselves, and a network of the same
    layers with a learned last one."""
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = task == "regression"
    ridge = RidgeCV if regression else RidgeClassifierCV
    plain = type(estimator)(rule="learned", members=1, weight_decay=0.0, max_iter=estimator.max_iter, random_state=seed)
    return {
        "ridge": make_pipeline(StandardScaler(), ridge(alphas=np.logspace(-3, 4, 15))),
        "plain Adam network": plain,
        CONSTANT[task]: DummyRegressor() if regression else DummyClassifier(strategy="most_frequent"),
    }


def error(task: str, y: np.ndarray, predicted: np.ndarray) -> float:
    """The RMSE, or the share of wrong classes."""
    return float(np.sqrt(np.mean((y - predicted) ** 2)) if task == "regression" else np.mean(y != predicted))


def quality(task: str, y: np.ndarray, error: float) -> float:
    """R², or the share of right classes; NaN where the test rows are all equal.

    >>> quality("regression", np.array([1.0, 3.0]), 0.5), quality("classification", np.array(["a"]), 0.25)
    (0.75, 0.75)
    """
    if task == "classification":
        return 1 - error
    variance = float(np.var(y))
    return 1 - error**2 / variance if variance > 0 else math.nan


def cautions(rows: int) -> list[str]:
    """What to say about a test part of so many rows.

    >>> cautions(50), cautions(8)
    ([], ['the test part has only 8 rows, so these errors are rough: --seed tests on others'])
    """
    if rows >= FEW_TEST_ROWS:
        return []
    part = f"{rows} rows" if rows > 1 else "one row"
    return [f"the test part has only {part}, so these errors are rough: --seed tests on others"]
