"""`DFPVRegressor`: proxies on both sides of an unseen confounder, as instrumental variables for a bridge function."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone

from closedform.data import demand
from closedform.estimators import DFIVRegressor, DFPVRegressor

SMALL = DFIVRegressor(max_iter=15, n_features=(4, 8, 4), hidden_layer_sizes=(16,), random_state=0)


def design(n=600, seed=0):
    """y = sin(2 a) + 2 u: regression on a finds u as well."""
    rng = np.random.default_rng(seed)
    u, a, z, w, e = rng.standard_normal((5, n))
    A = u + 0.7 * a
    return A[:, None], np.sin(2 * A) + 2 * u + 0.1 * e, (u + 0.4 * z)[:, None], (u + 0.4 * w)[:, None]


def test_linear_features_are_two_stage_least_squares():
    A, y, Z, W = design()
    n = len(y)
    model = DFPVRegressor(DFIVRegressor(features="linear")).fit(A, y, Z=Z, W=W)
    first = np.column_stack([Z, A, np.ones(n)])
    fitted = first @ np.linalg.lstsq(first, W, rcond=None)[0]
    w, a, c = np.linalg.lstsq(np.column_stack([fitted, A, np.ones(n)]), y, rcond=None)[0]
    at = np.linspace(-1, 1, 5)[:, None]
    assert np.allclose(model.predict(at), w * W.mean() + a * at[:, 0] + c)
    assert np.allclose(model.effect(0, 1), a)


def test_predictions_are_means_over_the_proxies():
    A, y, Z, W = design(300)
    model = DFPVRegressor(SMALL).fit(A, y, Z=Z, W=W)
    at = np.array([[-1.0], [0.3]])
    expected = [model.bridge_.predict(W, np.broadcast_to(a, A.shape)).mean() for a in at]
    assert np.allclose(model.predict(at), expected, rtol=1e-5)
    assert np.allclose(model.effect(at[:1], at[1:]), expected[1] - expected[0], rtol=1e-4)


def test_the_confounder_is_seen_through():
    A, y, Z, W = design(2000)
    at = np.linspace(-1.5, 1.5, 31)[:, None]
    truth = np.sin(2 * at[:, 0])
    model = DFPVRegressor(DFIVRegressor(random_state=0)).fit(A, y, Z=Z, W=W)
    order = np.argsort(A[:, 0])
    near = np.searchsorted(A[order, 0], at[:, 0])
    regression = np.array([y[order][max(0, k - 50) : k + 50].mean() for k in near])  # what one sees at a price
    assert np.square(model.predict(at) - truth).mean() < 0.2 * np.square(regression - truth).mean()


def test_intervals_come_from_the_bootstrap(tmp_path):
    A, y, Z, W = design(200)
    model = DFPVRegressor(DFIVRegressor(features="linear")).fit(A, y, Z=Z, W=W)
    with pytest.raises(ValueError, match="no replicates"):
        model.interval(A)
    model.bootstrap(A, y, Z=Z, W=W, replicates=8, folder=tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 8
    low, high = model.interval(A[:5], level=0.9)
    assert (low < high).all()
    found, low, high = model.effect(0, 1, level=0.9)
    assert low < found < high


def test_bad_input_is_told_and_changes_nothing():
    A, y, Z, W = design(200)
    model = DFPVRegressor(DFIVRegressor(features="linear")).fit(A, y, Z=Z, W=W)
    before = model.predict(A)
    for change, message in (
        ({"Z": None}, "Z is missing"),
        ({"W": None}, "W is missing"),
        ({"W": W[:5]}, "rows differ: .*W has 5"),
        ({"Z": np.ones_like(Z)}, "Z has a constant column"),
        ({"A": np.where(A > 1, np.nan, A)}, "A contains NaN in row"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(**{"A": A, "y": y, "Z": Z, "W": W} | change)
    with pytest.raises(ValueError, match="A has 2 treatments; the fit had 1"):
        model.predict(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="bridge must be a DFIVRegressor"):
        DFPVRegressor(3).fit(A, y, Z=Z, W=W)
    assert np.array_equal(model.predict(A), before)
    with pytest.raises(ValueError, match="no controls"):
        DFIVRegressor(features="linear").fit(A, y, Z=Z).averaged(A, W)


def test_it_is_an_estimator_like_others():
    model = DFPVRegressor(clone(SMALL))
    assert clone(model).get_params()["bridge__max_iter"] == 15
    assert model.set_params(bridge__max_iter=20).bridge.max_iter == 20


def test_the_curve_of_the_demand_design_is_that_of_draws():
    rng = np.random.default_rng(3)
    d = rng.uniform(0, 10, 200_000)
    views = 7 * demand.psi(d) + 45 + rng.standard_normal(len(d))
    for price in (15.0, 28.0):
        drawn = (price * np.minimum(np.exp((views - price) / 10), 5) - 5 * demand.psi(d)).mean()
        assert demand.proxy_curve(np.array([price]))[0] == pytest.approx(drawn, abs=0.4)
    rows = demand.proxies(500, 1)
    assert rows.A.shape == (500, 1)
    assert rows.Z.shape == (500, 2)
    assert rows.W.shape == (500, 1)
    assert rows.y.shape == (500,)
