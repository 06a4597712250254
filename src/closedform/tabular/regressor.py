"""`ClosedFormRegressor`: regression on a table, with no setting that has to be tuned."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.validation import check_is_fitted

from . import conformal
from .base import Estimator


class ClosedFormRegressor(MultiOutputMixin, RegressorMixin, Estimator):
    """Regression by small neural networks whose last layer is solved in closed form at every step.

    Inputs are centred, scaled and drawn in at the ends as by a logarithm, and targets standardised, inside. The networks see
    numbers as they are and through waves; the last layer sees their features and the inputs, drawn in or plain, whichever a
    ridge regression does better with. As far as held-out rows say that it pays, every layer is drawn to that ridge
    regression: where the truth is a line, so is the model. And where near rows have much in common that the networks did not
    learn, a prediction looks the nearest training rows up. By default several networks are trained side by side at up to
    four levels, from tables with little noise (no weight decay, a short memory of the last layer) to tables with much of it.
    Errors on rows that they hold out, which cost nothing (see `closedform.tabular.networks`), choose the epoch that is kept
    of each and how much each level counts. The same rows give `predict_interval` its intervals.

    Parameters
    ----------
    hidden_layer_sizes : sizes of the layers before the solved one; "auto" is three of 48, or of 64 for more than 4000 rows.
    activation : "gelu", "silu", "relu" or "tanh".
    rule : what the last layer remembers of earlier batches: "proximal", "kalman" (which also gives standard deviations),
        a rule object such as `closedform.Ridge(beta=1.0)`, or "learned": an ordinary network, to compare with.
    lam : lambda in sum units, or "auto": relative to the features (see `closedform.solver.lambdas`). Under "proximal" it
        follows the learning rate; under "kalman" it is the precision of the prior.
    members : how many networks are averaged; "auto" is 8, or 3 for more than 4000 rows; 1 with a backbone or a rule object.
    weight_decay : of every member, decoupled; "auto" gives each its own, from none to strong.
    learning_rate : of Adam at the start; it falls to zero along half a cosine. "auto" is 0.01, less for many inputs, and
        0.001 for a backbone.
    batch_size : "auto" is 32 up to some thousand rows and grows to 256.
    max_iter : epochs; "auto" is 55 up to 1000 rows, and fewer for more of them.
    waves : how many cosines of each number the first layer sees beside the number; "auto" is 16, fewer for more than 40
        columns and none for more than 256; 0 is none.
    effort : how much longer than by default to train; 2 doubles the epochs that `max_iter="auto"` stands for.
    neighbours : whether the model may keep its training rows, where held-out rows say that it pays: a prediction then adds
        what the networks left over at the nearest of them. They stand in the file that `save` writes, whatever `neighbours`
        is set to after the fit.
    early_stopping : whether members hold out rows. If not, they train on everything to the end and count equally.
    validation_fraction : the share of the rows that members hold out: one for all levels, another for their second members.
    n_iter_no_change : stop after so many epochs in which no member got better; None goes through all, since the error falls
        most when the learning rate does.
    backbone : an `nn.Module` from `(n, inputs)` to `(n, features)`, copied and trained in place of the hidden layers.
    warm_start : whether `fit` goes on from the last one, with its standardisation.
    device : "auto", "cpu", "cuda", ...
    random_state : an integer makes a fit reproducible to the bit on a CPU.
    verbose : whether to show a progress bar.

    Attributes
    ----------
    coef_, intercept_ : the last layer in the units of the targets: `predict(X) == features(X) @ coef_.T + intercept_`.
    loss_curve_ : mean squared error of the scaled targets in every epoch, after the solves; `validation_curve_` is that of
        the rows held out.
    shares_ : how much each member counts.
    linear_share_ : how far the members were drawn to the ridge regression, from 0 to 1.
    neighbours_ : the training rows that predictions look up, or None (see `closedform.tabular.neighbours`).
    n_iter_, n_features_in_, feature_names_in_ : as in scikit-learn.
    preparation_ : after a fit on a data frame, what each column was taken for (`preparation_.descriptions()`); texts,
        categories, dates and missing values are taken as `closedform train` takes them.

    Examples
    --------
    >>> from closedform.tabular import ClosedFormRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (300, 3)); y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2
    >>> model = ClosedFormRegressor(random_state=0).fit(X[:200], y[:200])
    >>> model.score(X[200:], y[200:]) > 0.99
    True
    """

    def _encoded(self, y: np.ndarray, *, reset: bool) -> np.ndarray:
        y = np.asarray(y)
        if y.ndim == 2 and y.shape[1] == 1:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected; y.ravel() would fit.",
                DataConversionWarning,
                stacklevel=2,
            )
            y = y.ravel()
        try:
            Y = y.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"y must be numbers, got values such as {y.ravel().tolist()[0]!r}") from None
        if reset:
            self._one_dimensional = Y.ndim == 1
        Y = Y.reshape(len(Y), -1)
        if not reset and Y.shape[1] != len(self.target_mean_):
            raise ValueError(f"y must have {len(self.target_mean_)} outputs as in the first fit, got {Y.shape[1]}")
        return Y

    def _shape_layer(self) -> None:
        if self._one_dimensional:
            self.coef_, self.intercept_ = self.coef_[0], float(np.atleast_1d(self.intercept_)[0])

    def _judge(self, held: conformal.HeldOut) -> None:
        self.distances_ = conformal.table(held.distances().numpy() * self.target_scale_, held.weights.numpy())

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> ClosedFormRegressor:
        """Take in more rows: one pass over them, at a constant rate. The first call fixes the standardisation."""
        self._partial_fit(X, y, sample_weight, first=not hasattr(self, "engine_"))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictions, in the shape of the `y` that was fitted; with `return_std` also their standard deviations, of the
        noise, the last layer and the differences between members (for `rule="kalman"`)."""
        check_is_fitted(self)
        if return_std:
            self._needs_kalman()
        outputs = self._outputs(X)
        shape = (len(outputs),) if self._one_dimensional else outputs.shape
        if not return_std:
            return outputs.reshape(shape)
        shares = torch.from_numpy(self.shares_)
        own = None if self.neighbours_ is None else -len(self.target_mean_)  # features of the networks alone
        parts = [self.engine_.variance(phi[:, :own], shares).cpu().numpy() for phi in self._pieces(X)]
        left = 1.0 if self.neighbours_ is None else self.neighbours_.left
        return outputs.reshape(shape), (np.sqrt(np.concatenate(parts) * left) * self.target_scale_).reshape(shape)

    def predict_interval(self, X: Any, alpha: float = 0.1) -> np.ndarray:
        """Intervals that hold a share `1 - alpha` of new targets: lower and upper ends, `(n, 2)`, or `(n, outputs, 2)` where
        there are several outputs, each with an interval of its own.

        They come from the rows that were held out in training (split conformal prediction) and cost what `predict` costs."""
        check_is_fitted(self)
        reach = self._reach(alpha)
        outputs = self._outputs(X)
        ends = np.stack([outputs - reach, outputs + reach], 2)
        return ends[:, 0] if self._one_dimensional else ends
