"""`DFPVRegressor`: proxies on both sides of an unseen confounder, as instrumental variables for a bridge function."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone

from closedform.estimators import DFIVRegressor, DFPVRegressor, load
from closedform.iv import linear
from closedform.paper.data import demand

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
    with pytest.raises(ValueError, match=r"no replicates: call bootstrap\(A, y, Z=Z, W=W\)"):
        model.interval(A)
    model.bootstrap(A, y, Z=Z, W=W, replicates=8, folder=tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 8
    low, high = model.interval(A[:5], level=0.9)
    assert (low < high).all()
    effect, low, high = model.effect(0, 1, level=0.9)
    assert low < effect < high


def by_hand(A, y, Z, W, at):
    """Two-stage least squares, averaged over W."""
    first = np.column_stack([Z, A, np.ones(len(y))])
    fitted = first @ np.linalg.lstsq(first, W, rcond=None)[0]
    coefficients = np.linalg.lstsq(np.column_stack([fitted, A, np.ones(len(y))]), y, rcond=None)[0]
    return coefficients[0] * W.mean() + at @ coefficients[1:-1] + coefficients[-1]


def test_replicates_are_averaged_over_the_rows_drawn_for_them(tmp_path):
    A, y, Z, W = design(300)
    at = np.linspace(-1, 1, 5)[:, None]
    model = DFPVRegressor(DFIVRegressor(features="linear")).fit(A, y, Z=Z, W=W)
    model.bootstrap(A, y, Z=Z, W=W, replicates=60, folder=tmp_path)
    model = DFPVRegressor(DFIVRegressor(features="linear")).fit(A, y, Z=Z, W=W)
    model.bootstrap(A, y, Z=Z, W=W, replicates=60, folder=tmp_path)  # from the files
    drawn = [bridge._drawn for bridge in model.bridge_.replicates_]
    slow = [by_hand(A[k], y[k], Z[k], W[k], at) for k in drawn]
    low, high = model.interval(at, level=0.8)
    assert np.allclose([low, high], np.quantile(slow, [0.1, 0.9], axis=0))
    # the mean of y at a = 0 is that of 2 u, whose spread no average over the same rows has
    assert (high - low)[2] > 0.7 * 2 * 1.28 * np.std(y - np.sin(2 * A[:, 0])) / np.sqrt(300)


def controlled(n=600, seed=0):
    """C moves all: proxies of u alone do not tell of it."""
    rng = np.random.default_rng(seed)
    u, a, z, w, e, c = rng.standard_normal((6, n))
    A = u + 0.7 * a + c
    return A[:, None], 2 * A + 2 * u + 4 * c + 0.1 * e, (u + 0.4 * z)[:, None], (u + 0.4 * w)[:, None], c[:, None]


def test_observed_causes_are_averaged_over_with_the_proxies(tmp_path):
    A, y, Z, W, C = controlled()
    model = DFPVRegressor(DFIVRegressor(features="linear")).fit(A, y, Z=Z, W=W, C=C)
    assert model.effect(0, 1)[0] == pytest.approx(2, abs=0.15)
    assert DFPVRegressor(DFIVRegressor(features="linear")).fit(A, y, Z=Z, W=W).effect(0, 1)[0] > 2.5
    fit = linear.two_stage(W, y, Z, np.column_stack([A, C]))
    _, low, high = model.effect(0, 1, level=0.95)
    assert high - low == pytest.approx(2 * 1.959964 * np.sqrt(fit.covariance[1, 1]))
    deep = DFPVRegressor(SMALL).fit(A, y, Z=Z, W=W, C=C)
    at = np.array([[-1.0], [0.5]])
    slow = [deep.bridge_.predict(W, np.column_stack([np.full(600, a), C])).mean() for a in at[:, 0]]
    assert np.allclose(deep.predict(at), slow)
    model.bootstrap(A, y, Z=Z, W=W, C=C, replicates=3)
    slow = []
    for bridge in model.bridge_.replicates_:
        k = bridge._drawn
        slow.append(DFPVRegressor(DFIVRegressor("linear")).fit(A[k], y[k], Z=Z[k], W=W[k], C=C[k]).predict(at))
    assert np.allclose(model.interval(at, level=0.5), np.quantile(slow, [0.25, 0.75], axis=0))


@pytest.mark.parametrize("bridge", [SMALL, DFIVRegressor(features="linear")])
def test_a_fit_can_be_saved(bridge, tmp_path):
    A, y, Z, W, C = controlled(200)
    for controls in ({}, {"C": C}):
        model = DFPVRegressor(bridge).fit(A, y, Z=Z, W=W, **controls)
        model.save(tmp_path / "model")
        read = load(tmp_path / "model")
        assert isinstance(read, DFPVRegressor)
        assert np.allclose(read.predict(A[:9]), model.predict(A[:9]), rtol=1e-12, atol=1e-12)
        assert str(read.summary()) == str(model.summary())
        assert read.get_params()["bridge__features"] == bridge.features
        assert len(read.bootstrap(A, y, Z=Z, W=W, **controls, replicates=1).bridge_.replicates_) == 1


def test_the_summary_is_of_the_treatment():
    pandas = pytest.importorskip("pandas")
    A, y, Z, W = design(300)
    other = np.random.default_rng(1).standard_normal(300)
    table = pandas.DataFrame({"price": A[:, 0], "rain": other})
    proxies = {"Z": pandas.DataFrame(Z, columns=["cost"]), "W": pandas.DataFrame(W, columns=["views"])}
    fit = linear.two_stage(W, y, Z, table.to_numpy())
    low = fit.controls[0] - 1.96 * np.sqrt(fit.covariance[1, 1])
    for bridge in (SMALL, DFIVRegressor(features="linear")):
        model = DFPVRegressor(bridge).fit(table, y, **proxies)
        printed = str(model.summary())
        assert f"price: {fit.controls[0]:.4f} (robust 95 % {low:.4f} to" in printed
        assert "rain: " in printed
        assert f"views: partial R2 of Z {fit.first_stage.partial_r2[0]:.4f}" in printed
        assert not [word for word in ("instrument", "Anderson", "treatment", "control") if word in printed]
        for call in (model.predict, lambda a, model=model: model.effect(a, a)):
            with pytest.raises(ValueError, match="are rain, price; expected those of the fit, price, rain"):
                call(table[["rain", "price"]])
        with pytest.raises(ValueError, match="columns of A are rain, price"):
            model.bootstrap(table[["rain", "price"]], y, **proxies, replicates=1)
    noise = np.random.default_rng(2).standard_normal((300, 1))
    learned = clone(SMALL).set_params(treatment="linear")
    weak = DFPVRegressor(learned).fit(A, y, Z=noise, W=W).summary()
    assert [text for text in weak.warnings if text.startswith("weak proxies")]
    assert [text for text in weak.warnings if text.startswith("ill-posed")]
    assert not [text for text in weak.warnings if "different values" in text]
    few = DFPVRegressor(SMALL).fit(A, y, Z=np.sign(Z), W=W).summary()
    assert [text for text in few.warnings if text.startswith("Z takes only 2 different values")]


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
        ({"Z": W}, "column 0 of Z is column 0 of W: .* plain regression"),
        ({"Z": np.column_stack([Z, W])}, "column 1 of Z is column 0 of W"),
        ({"Z": 2 * A + 1}, "Z has 1 columns of which 0 vary beyond A"),
        ({"W": np.column_stack([W, A - W])}, "W has 2 columns of which 1 vary beyond A"),
        ({"W": np.column_stack([W, W**2])}, "a linear bridge needs in Z at least as many proxies as in W"),
        ({"C": W[:5]}, "rows differ: .*C has 5"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(**{"A": A, "y": y, "Z": Z, "W": W} | change)
    with pytest.raises(ValueError, match="A has 2 treatments; the fit had 1"):
        model.predict(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="a0 has 3 rows and a1 2; expected as many, or one"):
        model.effect(np.zeros((3, 1)), np.ones((2, 1)))
    with pytest.raises(ValueError, match="y is constant"):
        model.score(A, 0 * y)
    with pytest.raises(ValueError, match="not those of the fit, but 150"):
        model.bootstrap(A[:150], y[:150], Z=Z[:150], W=W[:150])
    assert np.allclose(model.effect(np.zeros(3), np.arange(3.0)), np.arange(3) * model.effect(0, 1))
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
