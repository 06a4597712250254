"""`DFPVRegressor`: what a treatment causes, when its confounder is unseen but has left traces on both sides.

Deep feature proxy variables (Xu, Kanagawa and Gretton 2021) are instrumental variables in other clothes. A *bridge function*
h with `E[y | A, Z] = E[h(W, A) | A, Z]` has the traces W of the confounder for a treatment, the traces Z for instruments and
the treatment A for a control; averaged over W it is the outcome under a treatment that somebody sets. So the fit is that of
`DFIVRegressor`, and nothing here is trained.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from .dfiv import DFIVRegressor
from .dfiv_input import matrix, outcome
from .dfiv_summary import Summary


class DFPVRegressor(RegressorMixin, BaseEstimator):
    """The mean outcome as a function of a treatment A that is set, from two kinds of proxies of the unseen confounder:
    Z, which have to do with the outcome only through A and the confounder, and W, which A and Z do not move.

    Parameters
    ----------
    bridge : the `DFIVRegressor` that fits the bridge function; None is one with its defaults. Its `treatment` says how W
        enters, `features="linear"` is two-stage least squares.

    Attributes
    ----------
    bridge_ : the fitted bridge function: `bridge_.predict(W, A)`. Its summary calls W the treatments, Z the instruments and
        A the controls; `bridge_.save` writes it.
    proxies_ : the rows of W that predictions are averaged over.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> u, a, b, c = rng.standard_normal((4, 2000)); treatment = u + a; y = 2 * treatment + 3 * u
    >>> model = DFPVRegressor(DFIVRegressor(features="linear"))
    >>> model.fit(treatment[:, None], y, Z=(u + b)[:, None], W=(u + c)[:, None]).effect(0, 1).round()
    array([2.])
    """

    bridge_: DFIVRegressor
    proxies_: np.ndarray
    n_features_in_: int

    def __init__(self, bridge: DFIVRegressor | None = None):
        self.bridge = bridge

    def fit(self, A: Any, y: Any, Z: Any = None, W: Any = None) -> DFPVRegressor:
        """Fit treatments `A (n, p)`, outcomes `y (n,)`, and the proxies `Z (n, m)` and `W (n, q)`."""
        A, y, Z, W = self._checked(A, y, Z, W)
        bridge: Any = DFIVRegressor() if self.bridge is None else clone(self.bridge)
        self.bridge_ = bridge.fit(W, y, Z=Z, W=A)
        self.proxies_, self.n_features_in_ = W, A.shape[1]
        return self

    def _checked(self, A: Any, y: Any, Z: Any, W: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        if not (self.bridge is None or isinstance(self.bridge, DFIVRegressor)):
            raise ValueError(f"bridge must be a DFIVRegressor or None, got {type(self.bridge).__name__}")
        for name, value in (("Z", Z), ("W", W)):
            if value is None:
                raise ValueError(f"{name} is missing: proxies of the confounder are needed on both sides, Z and W")
        A, Z, W, y = matrix(A, "A"), matrix(Z, "Z"), matrix(W, "W"), outcome(y)
        lengths = {"A": len(A), "y": len(y), "Z": len(Z), "W": len(W)}
        if len(set(lengths.values())) > 1:
            raise ValueError("rows differ: " + ", ".join(f"{name} has {n}" for name, n in lengths.items()))
        for name, values in (("A", A), ("Z", Z), ("W", W)):
            if (np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(0)).any():
                raise ValueError(f"{name} has a constant column: expected every one to vary")
        return A, y, Z, W

    def predict(self, A: Any) -> np.ndarray:
        """The mean outcome if the treatment were set to each row of A."""
        check_is_fitted(self, "bridge_")
        return self.bridge_.averaged(self.proxies_, self._treatments(A, "A"))

    def effect(self, a0: Any, a1: Any, *, level: float | None = None) -> Any:
        """What setting the treatment to `a1` instead of `a0` does to the mean outcome (numbers, or rows); with `level`, such
        as 0.95, also the ends of an interval from `bootstrap`."""
        check_is_fitted(self, "bridge_")
        ends = [self._treatments(end, name) for name, end in (("a0", a0), ("a1", a1))]
        return self._told(
            lambda bridge: np.subtract(*(bridge.averaged(self.proxies_, end) for end in ends[::-1])), level
        )

    def _treatments(self, values: Any, name: str) -> np.ndarray:
        if np.ndim(values) == 0:
            values = np.full((1, self.n_features_in_), values)
        values = matrix(values, name)
        if values.shape[1] != self.n_features_in_:
            raise ValueError(f"{name} has {values.shape[1]} treatments; the fit had {self.n_features_in_}")
        return values

    def bootstrap(self, A: Any, y: Any, Z: Any = None, W: Any = None, **options: Any) -> DFPVRegressor:
        """Refit to rows drawn with replacement, for `interval` and `effect(level=)`; `options` (`replicates`, `folder`,
        `n_jobs`) as for `DFIVRegressor.bootstrap`."""
        check_is_fitted(self, "bridge_")
        A, y, Z, W = self._checked(A, y, Z, W)
        self.bridge_.bootstrap(W, y, Z=Z, W=A, **options)
        return self

    def interval(self, A: Any, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Pointwise percentile interval of `predict`, from `bootstrap`."""
        check_is_fitted(self, "bridge_")
        A = self._treatments(A, "A")
        return self._told(lambda bridge: bridge.averaged(self.proxies_, A), level)[1:]

    def _told(self, of: Any, level: float | None) -> Any:
        found = of(self.bridge_)
        return found if level is None else (found, *self.bridge_._quantiles(of, level))

    def summary(self) -> Summary:
        """Diagnostics of the bridge function, where W are the treatments, Z the instruments and A the controls."""
        check_is_fitted(self, "bridge_")
        return self.bridge_.summary()

    def score(self, A: Any, y: Any) -> float:
        """R^2 of `predict` against y, which means something where y is not confounded (an experiment, a known function)."""
        found, y = self.predict(A), outcome(y)
        return 1 - float(np.square(y - found).sum() / np.square(y - y.mean()).sum())
