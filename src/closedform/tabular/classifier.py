"""`ClosedFormClassifier`: classification on a table, by squared loss on one-hot targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from . import conformal
from .base import Estimator
from .link import Link, fitted
from .rows import merged, spread
from .settings import LARGE_HIDDEN

MANY_CLASSES, MANY_HIDDEN = 10, (192, 192, 192)


class ClosedFormClassifier(ClassifierMixin, Estimator):
    """Classification by small neural networks whose last layer is solved in closed form at every step.

    The networks fit one-hot targets by least squares, as in the paper, and the largest output is the class. Such outputs
    estimate probabilities; `link_` makes them positive and sets their contrast, by the rows that were held out
    (`closedform.tabular.link`). Parameters and attributes are those of `ClosedFormRegressor`, and `classes_`, `link_`. With
    more than 4000 rows and ten classes or more the hidden layers are of 192.

    Examples
    --------
    >>> from closedform.tabular import ClosedFormClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)); y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    >>> model = ClosedFormClassifier(random_state=0).fit(X[:200], y[:200])
    >>> model.score(X[200:], y[200:]) > 0.9
    True
    """

    _one_scale = True

    def _encoded(self, y: np.ndarray, *, reset: bool) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if reset and not getattr(self, "_given_classes", False):
            self.classes_ = np.unique(y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y has the class {unknown.tolist()[0]!r}, which is not among {self.classes_.tolist()}")
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs at least two classes, got one class: {self.classes_.tolist()[0]!r}")
        return np.eye(len(self.classes_))[np.searchsorted(self.classes_, y)]

    def _merged(
        self, X: np.ndarray, Y: np.ndarray, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return spread(*merged(X, Y, weight))

    def _target_moments(self, Y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # one scale for all classes, or rare ones would count more
        return weight @ Y / weight.sum(), np.ones(Y.shape[1])

    def _large_hidden(self, outputs: int) -> tuple[int, ...]:
        # all classes share the features, and many of them need more
        return LARGE_HIDDEN if outputs < MANY_CLASSES else MANY_HIDDEN

    def _shape_layer(self) -> None:
        pass

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> ClosedFormClassifier:
        """Take in more rows: one pass over them, at a constant rate. `classes` names all of them at the first call."""
        first = not hasattr(self, "engine_")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if not first and classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes={classes!r} is not the same as on last call to partial_fit, was: {self.classes_}"
            )
        with self._unchanged_on_error():
            if first:
                assert classes is not None
                self.classes_, self._given_classes = np.unique(classes), True
            self._partial_fit(X, y, sample_weight, first=first)
            self.link_ = getattr(self, "link_", Link())
            self._given_classes = False
        return self

    def _fitted(self, *parts: Any) -> Any:
        self.link_ = Link()
        return super()._fitted(*parts)

    def _judge(self, held: conformal.HeldOut) -> None:
        """The link of least cross-entropy, and how improbable the right class was."""
        outputs, labels = held.outputs.numpy() + self.target_mean_, held.targets.argmax(1).numpy()
        self.link_ = fitted(outputs, labels, held.weights.numpy())
        right = np.take_along_axis(self.link_.probabilities(outputs), labels[:, None], 1)
        self.distances_ = conformal.table(1 - right, held.weights.numpy())

    def decision_function(self, X: Any) -> np.ndarray:
        """The outputs, `(n, classes)`; for two classes their difference, positive for the second."""
        check_is_fitted(self)
        outputs = self._outputs(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        decision = self.decision_function(X)
        return self.classes_[(decision > 0).astype(int) if decision.ndim == 1 else decision.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`."""
        check_is_fitted(self)
        return self.link_.probabilities(self._outputs(X))

    def predict_set(self, X: Any, alpha: float = 0.1) -> np.ndarray:
        """Sets of classes that hold the right one for a share `1 - alpha` of new rows: a mask `(n, classes)` in the order of
        `classes_`. The most probable class is always in; rows that are hard have several.

        They come from the rows that were held out in training (split conformal prediction)."""
        check_is_fitted(self)
        reach = float(self._reach(alpha)[0])
        probabilities = self.predict_proba(X)
        chosen = 1 - probabilities <= reach
        chosen[np.arange(len(chosen)), probabilities.argmax(1)] = True
        return chosen

    def predict_log_proba(self, X: Any) -> np.ndarray:
        return np.log(self.predict_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = True
        return tags
