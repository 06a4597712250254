"""`DFPVRegressor`: what a treatment causes, when its confounder is unseen but has left traces on both sides.

Deep feature proxy variables (Xu, Kanagawa and Gretton 2021) are instrumental variables under other names. A bridge function
is an h with `E[y | A, Z] = E[h(W, A) | A, Z]`. To `DFIVRegressor`, which fits it, the traces W of the confounder are the
treatments, the traces Z the instruments, and the treatment A is a control. Averaged over W, h is the mean outcome when
somebody sets the treatment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from .. import estimator_files
from . import linear
from .dfiv import DFIVRegressor
from .dfpv_summary import ProxySummary, summarised
from .effects import banded, normal, pair
from .fitting import WIDE
from .inputs import check_columns, checked, columns, matrix, names, outcome

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, "np.ndarray | None"]  # A, y, Z, W, C


class DFPVRegressor(RegressorMixin, BaseEstimator):
    """The mean outcome as a function of a treatment A that is set, from two kinds of proxies of the unseen confounder:
    Z, which have to do with the outcome only through A and the confounder, and W, which A and Z do not move.

    What it takes for granted, and no data can show:

    * Z touches the outcome only through A and the confounder (and C); it may cause A, or be caused by it.
    * W is not moved by A or by Z: it has to do with them only through the confounder (and C). It may move the outcome.
    * Z tells the confounders apart, given A (completeness): as many different values of Z as of the confounder, at least.
    * A bridge function exists: an h(W, A) whose mean over W given the confounder is that of the outcome. W must tell at
      least as much of the confounder as the outcome does.
    * Every confounder has left its traces in both, or is among the observed common causes C.

    Parameters
    ----------
    bridge : the `DFIVRegressor` that fits the bridge function; None is one with its defaults. Its `treatment` says how W
        enters, `features="linear"` is two-stage least squares.

    Attributes
    ----------
    bridge_ : the fitted bridge function: `bridge_.predict(W, A)`, or with the columns of C beside those of A. Its summary
        calls W the treatments, Z the instruments and A the controls.
    proxies_, controls_ : the rows of W, and of C or None, that predictions are averaged over.

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
    controls_: np.ndarray | None
    summary_: ProxySummary
    n_features_in_: int
    _columns: dict[str, list[str] | None]

    def __init__(self, bridge: DFIVRegressor | None = None):
        self.bridge = bridge

    def fit(self, A: Any, y: Any, Z: Any = None, W: Any = None, C: Any = None) -> DFPVRegressor:
        """Fit treatments `A (n, p)`, outcomes `y (n,)`, the proxies `Z (n, m)` and `W (n, q)`, and observed common causes
        `C (n, r)` or None, which the bridge function takes beside A and predictions are averaged over with W."""
        tables = {name: columns(part) for name, part in (("A", A), ("Z", Z), ("W", W), ("C", C))}
        treatments, proxies = names(A, "a"), names(W, "w")
        A, y, Z, W, C = self._checked(A, y, Z, W, C)
        bridge: Any = DFIVRegressor() if self.bridge is None else clone(self.bridge)
        controls = None  # the names of the columns of A and C, where all have one
        if tables["A"] is not None and (C is None or tables["C"] is not None):
            controls = [*tables["A"], *(tables["C"] or [])]
        names_of = {"X": tables["W"], "Z": tables["Z"], "W": controls}
        bridge._fit(W, y, Z, _beside(A, C), proxies, names_of, of_treatment=False)
        self.summary_ = summarised(bridge.summary_, A, y, Z, W, C, treatments)
        self.bridge_, self.proxies_, self.controls_ = bridge, W, C
        self.n_features_in_, self._columns = A.shape[1], tables
        return self

    def _checked(self, A: Any, y: Any, Z: Any, W: Any, C: Any) -> Parts:
        if not (self.bridge is None or isinstance(self.bridge, DFIVRegressor)):
            raise ValueError(f"bridge must be a DFIVRegressor or None, got {type(self.bridge).__name__}")
        for name, value in (("Z", Z), ("W", W)):
            if value is None:
                raise ValueError(f"{name} is missing: proxies of the confounder are needed on both sides, Z and W")
        A, Z, W, y = matrix(A, "A"), matrix(Z, "Z"), matrix(W, "W"), outcome(y)
        parts = {"A": A, "Z": Z, "W": W}
        if C is not None:
            C = parts["C"] = matrix(C, "C")
        lengths = {"A": len(A), "y": len(y)} | {name: len(part) for name, part in parts.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError("rows differ: " + ", ".join(f"{name} has {n}" for name, n in lengths.items()))
        for name, values in parts.items():
            if (np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(0)).any():
                raise ValueError(f"{name} has a constant column: expected every one to vary")
        known = linear.with_ones(_beside(A, C), len(A))
        images = W.shape[1] > WIDE or getattr(self.bridge, "backbone", None) is not None
        beside = "A" if C is None else "A and C"
        for j, k in np.ndindex(Z.shape[1], W.shape[1]):
            if np.array_equal(Z[:, j], W[:, k]):
                raise ValueError(
                    f"column {j} of Z is column {k} of W: expected different proxies, since with shared ones the fit is a "
                    "plain regression on them"
                )
        for name, values in (("Z", Z), ("W", W)):
            least = 1 if name == "Z" else 0 if images else values.shape[1]
            more = linear.rank(np.column_stack([known, values])) - linear.rank(known) if least else 0
            if more < least:
                raise ValueError(
                    f"{name} has {values.shape[1]} columns of which {more} vary beyond {beside} and each other: expected "
                    "proxies that tell more than these"
                )
        if self.bridge is not None and self.bridge.features == "linear":
            try:
                linear.check_identified(W, Z, _beside(A, C))
            except ValueError as bad:
                raise ValueError(
                    "a linear bridge needs in Z at least as many proxies as in W, which tell of each of W beyond "
                    f"{beside}; in the words of instrumental variables, where W are the treatments X: {bad}"
                ) from None
        return A, y, Z, W, C

    # ---- Using the fit ---------------------------------------------------------------------------

    def predict(self, A: Any) -> np.ndarray:
        """The mean outcome if the treatment were set to each row of A."""
        check_is_fitted(self, "bridge_")
        return self._mean(self.bridge_, self._treatments(A))

    def _mean(self, bridge: DFIVRegressor, A: np.ndarray) -> np.ndarray:
        """The bridge function averaged over the rows of its own fit: a replicate has those that were drawn for it."""
        rows = getattr(bridge, "_drawn", slice(None))
        W = self.proxies_[rows]
        if self.controls_ is None:
            return bridge.averaged(W, A)
        C = self.controls_[rows]
        if bridge._linear:
            return bridge.averaged(W, _beside(A, np.broadcast_to(C.mean(0), (len(A), C.shape[1]))))
        return np.array([bridge._predicted(W, _beside(np.broadcast_to(a, (len(C), len(a))), C)).mean() for a in A])

    def effect(self, a0: Any, a1: Any, *, level: float | None = None) -> Any:
        """What setting the treatment to `a1` instead of `a0` does to the mean outcome (numbers, a row or rows; of a single
        treatment also `(n,)`, a row each). With `level`, such as 0.95, also the ends of an interval: from `bootstrap`, or
        for a linear bridge from its standard errors."""
        check_is_fitted(self, "bridge_")
        p = self.n_features_in_
        for name, end in (("a0", a0), ("a1", a1)):
            self._check_names(end, name)
        ends = pair({"a0": a0, "a1": a1}, p)
        change = self._change(self.bridge_, ends)
        if level is None:
            return change
        if self.bridge_._linear and not hasattr(self.bridge_, "replicates_"):
            q, d = self.proxies_.shape[1], ends[1] - ends[0]
            V = self.bridge_.covariance_[q : q + p, q : q + p]
            spread = np.sqrt(np.einsum("ni,ij,nj->n", d, V, d)) * normal(level)
            return change, change - spread, change + spread
        return banded(change, self._replicates(), lambda bridge: self._change(bridge, ends), level)

    def _change(self, bridge: DFIVRegressor, ends: list[np.ndarray]) -> np.ndarray:
        return self._mean(bridge, ends[1]) - self._mean(bridge, ends[0])

    def _check_names(self, values: Any, name: str) -> None:
        check_columns(values, name, {name: self._columns["A"]})

    def _treatments(self, A: Any) -> np.ndarray:
        self._check_names(A, "A")
        A = matrix(np.full((1, self.n_features_in_), A) if np.ndim(A) == 0 else A, "A")
        if A.shape[1] != self.n_features_in_:
            raise ValueError(f"A has {A.shape[1]} treatments; the fit had {self.n_features_in_}")
        return A

    def score(self, A: Any, y: Any) -> float:
        """R^2 of `predict` against y, which means something where y is not confounded (an experiment, a known function)."""
        predictions, y = self.predict(A), outcome(y)
        if len(predictions) != len(y):
            raise ValueError(f"A has {len(predictions)} rows and y {len(y)}; expected as many")
        if np.ptp(y) == 0:
            raise ValueError("y is constant: R^2 compares with the variance of the outcome, which is zero")
        return 1 - float(np.square(y - predictions).sum() / np.square(y - y.mean()).sum())

    def summary(self) -> ProxySummary:
        """Diagnostics: what Z tells of W, what A does in a linear bridge, and warnings. Print it."""
        check_is_fitted(self, "bridge_")
        return self.summary_

    # ---- Intervals -------------------------------------------------------------------------------

    def bootstrap(self, A: Any, y: Any, Z: Any = None, W: Any = None, C: Any = None, **options: Any) -> DFPVRegressor:
        """Refit to the rows of the fit, drawn with replacement, for `interval` and `effect(level=)`; each refit is averaged
        over the proxies that were drawn for it. `options` (`replicates`, `folder`, `n_jobs`) as for
        `DFIVRegressor.bootstrap`, which also says what the intervals are of."""
        check_is_fitted(self, "bridge_")
        for name, part in (("A", A), ("Z", Z), ("W", W), ("C", C)):
            check_columns(part, name, self._columns)
        A, y, Z, W, C = self._checked(A, y, Z, W, C)
        self.bridge_._bootstrap(checked(W, y, Z, _beside(A, C)), **options)
        return self

    def interval(self, A: Any, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Pointwise percentile interval of `predict`, from `bootstrap`."""
        check_is_fitted(self, "bridge_")
        A = self._treatments(A)
        return banded(self._mean(self.bridge_, A), self._replicates(), lambda bridge: self._mean(bridge, A), level)[1:]

    def _replicates(self) -> list[DFIVRegressor]:
        if not hasattr(self.bridge_, "replicates_"):
            raise ValueError("there are no replicates: call bootstrap(A, y, Z=Z, W=W) with the rows of the fit first")
        return self.bridge_.replicates_

    # ---- Files -----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the fit (without replicates) to one safetensors file; `closedform.iv.load` reads it."""
        check_is_fitted(self, "bridge_")
        return estimator_files.save(self, path)


def _beside(A: np.ndarray, C: np.ndarray | None) -> np.ndarray:
    return A if C is None else np.column_stack([A, C])
