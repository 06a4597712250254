"""What `DFIVRegressor` says about itself; refits, many instruments, names of columns, draws that cannot be fitted."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from closedform.estimators import DFIVRegressor, load
from closedform.iv import DFIV, Data, Rules, Split, choice, linear, reestimated
from closedform.iv.bootstrap import digest
from closedform.iv.inputs import Observations
from closedform.iv.summary import deep_part, linear_part
from closedform.paper.data import iv
from closedform.solver.lambdas import relative

from .iv_cases import SMALL, design

# fits of designs with weak instruments warn, which tests/test_dfiv_average.py is about
pytestmark = pytest.mark.filterwarnings("ignore:.*weak instruments")


@pytest.mark.parametrize("kinds", [("linear", "deep"), ("deep", "linear")])
@pytest.mark.parametrize("controls", [(True, False), (False, True), (True, True)])
def test_a_refit_forgets_the_fit_before(kinds, controls):
    X, y, Z, W = design()
    model = DFIVRegressor(**SMALL)
    for kind, controlled in zip(kinds, controls):
        model.set_params(features=kind).fit(X, np.sin(y), Z=Z, W=W if controlled else None)
    fresh = DFIVRegressor(**SMALL | {"features": kinds[1]}).fit(X, np.sin(y), Z=Z, W=W if controls[1] else None)
    at = W if controls[1] else None
    assert np.array_equal(model.predict(X, at), fresh.predict(X, at))
    assert np.array_equal(model.marginal_effect(X, at), fresh.marginal_effect(X, at))
    assert vars(model).keys() == vars(fresh).keys()


def test_calibration_is_unbiased_with_many_instruments():
    """Plain split-sample estimates fall towards zero, least squares is at 3, and the truth is 2."""
    plain, calibrated = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        Z = rng.standard_normal((400, 80))
        u, e = rng.standard_normal((2, 400))
        x = Z[:, 0] + u
        parts = (torch.from_numpy(part) for part in (x[:, None], Z, (2 * x + 2 * u + e)[:, None]))
        data = Data(*parts)
        model = DFIV(
            torch.nn.Identity(), torch.nn.Identity(), widths=[1, 80],
            rules=Rules.ridge(relative(0.1), relative(0.1)), lr=1e-3,
        )  # fmt: skip
        for slopes, kept in ((plain, False), (calibrated, True)):
            layers = reestimated(model, data, Split.halves(400, seed), 1e-9, 1e-9, (1, 80, 0), calibrated=kept)
            slopes.append(float(layers.w[0, 0] / layers.psi.scale[0]))
    assert np.mean(plain) < 1.5
    assert abs(np.mean(calibrated) - 2) < 0.2


def test_calibration_keeps_the_controls_apart():
    """With the controls' own columns in phi, a single instrument gives two-stage least squares of the rows of stage two."""
    rng = np.random.default_rng(0)
    W, (z, u, e) = rng.standard_normal((300, 1)), rng.standard_normal((3, 300))
    x = 0.5 * z + 2 * W[:, 0] + u
    y = 2 * x + W[:, 0] + 2 * u + e
    parts = (torch.from_numpy(part) for part in (x[:, None], np.column_stack([z, W]), y[:, None], W))
    data, split = Data(*parts), Split.halves(300, 0)
    nets = [torch.nn.Identity() for _ in range(3)]
    model = DFIV(*nets, widths=[1, 2, 1], rules=Rules.ridge(relative(0.1), relative(0.1)), lr=1e-3)
    # a strong ridge would leave the products out: they are no part of the linear model
    layers = reestimated(model, data, split, 1e-9, 1e12, (1, 2, 1), calibrated=True)
    rows = split.second.numpy()
    expected = linear.two_stage(x[rows, None], y[rows], z[rows, None], W[rows]).coef[0]
    assert float(layers.w[0, 0] / layers.psi.scale[0]) == pytest.approx(expected, rel=1e-2)


def test_members_take_the_same_ridge():
    X, y, Z, _ = design()
    model = DFIVRegressor(**SMALL | {"treatment": "deep", "members": 4}).fit(X, y, Z=Z)
    assert len({member.ridge for member in model.members_}) == 1
    predictions = np.stack([m.structural(*_scaled(model, X)).numpy() for m in model.members_])
    assert np.allclose(predictions.mean(0) * model._y[1][0] + model._y[0][0], model.predict(X), rtol=1e-5, atol=1e-5)
    assert model.summary().disagreement > 0
    assert "members disagree by" in str(model.summary())
    assert min(choice.RIDGES) >= 1e-3


def _scaled(model, X):
    return torch.as_tensor((X - model._x[0]) / model._x[1], dtype=torch.float32), None


def test_shares_are_beyond_the_controls():
    """The controls move the treatment and the instrument does not: nothing is identified."""
    rng = np.random.default_rng(1)
    W, (z, u, e) = rng.standard_normal((600, 2)), rng.standard_normal((3, 600))
    x = 2 * W[:, 0] + u
    useless = DFIVRegressor(**SMALL).fit(x[:, None], x + 5 * W[:, 1] + 2 * u + e, Z=z[:, None], W=W).summary()
    assert max(useless.feature_r2) < 0.1
    assert useless.identified < 0.1
    assert any(text.startswith("ill-posed") for text in useless.warnings)
    assert "beyond the controls" in str(useless)
    x = x + 2 * z
    useful = DFIVRegressor(**SMALL).fit(x[:, None], x + 5 * W[:, 1] + 2 * u + e, Z=z[:, None], W=W).summary()
    assert min(useful.feature_r2) > 0.5
    assert useful.identified > 0.5
    assert not any(text.startswith("ill-posed") for text in useful.warnings)


def test_the_gap_is_of_re_estimated_layers_whichever_predict(monkeypatch):
    taken = choice.Contender.taking
    monkeypatch.setattr(choice.Contender, "taking", lambda contender, at: taken(contender, len(contender.choices) - 1))
    X, y, Z, _ = design()
    model = DFIVRegressor(**SMALL | {"treatment": "deep"}).fit(X, y, Z=Z)
    assert all(member.ridge == 0 for member in model.members_)  # the layers of training
    assert model.summary().gap > 0


def test_treatments_moved_together_are_jointly_weak():
    rng = np.random.default_rng(1)
    Z, U = rng.standard_normal((1000, 2)), rng.standard_normal((1000, 2))
    X = np.column_stack([Z[:, 0] + U[:, 0], Z[:, 0] + 0.02 * Z[:, 1] + U[:, 1]])
    y = X @ [1, -1] + U.sum(1)
    summary = DFIVRegressor(features="linear").fit(X, y, Z=Z).summary()
    C, fitted = X - X.mean(0), Z - Z.mean(0)
    fitted = fitted @ np.linalg.lstsq(fitted, C, rcond=None)[0]
    noise = (C - fitted).T @ (C - fitted) / (1000 - 3)
    slow = np.linalg.eigvals(np.linalg.solve(noise, fitted.T @ fitted / 2)).real.min()
    assert summary.cragg_donald == pytest.approx(slow, rel=1e-6)
    assert summary.first_stage_f > 100
    assert [text for text in summary.warnings if text.startswith("jointly weak")]
    assert "Cragg-Donald" in str(summary)
    X[:, 1] += Z[:, 1]
    strong = DFIVRegressor(features="linear").fit(X, X @ [1, -1] + U.sum(1), Z=Z).summary()
    assert not strong.warnings
    one = linear.first_stage(X[:, :1], Z)
    assert one.cragg_donald == pytest.approx(one.F)


def test_anderson_rubin_on_the_card_data():
    try:
        c = iv.model("card")
    except ImportError as missing:
        pytest.skip(str(missing))
    parts = c.X.to_numpy(float), c.y.to_numpy(float), c.Z.to_numpy(float), c.W.to_numpy(float)
    equal = linear.anderson_rubin(*parts)
    assert equal.F == pytest.approx(5.415, abs=5e-4)
    assert equal.p == pytest.approx(0.0200, abs=5e-5)
    summary = DFIVRegressor(features="linear").fit(c.X, c.y, Z=c.Z, W=c.W).summary()
    assert summary.anderson_rubin_f == linear.anderson_rubin(*parts, robust=True).F == pytest.approx(5.726, abs=5e-4)
    assert "F = 5.73, p = 0.0168 (robust, and valid however weak the instruments)" in str(summary)


def test_anderson_rubin_against_dummies_of_its_formula():
    X, y, Z, W = design(60)
    result = linear.anderson_rubin(X, y, Z, W, 2.0)
    target, full = y - 2 * X[:, 0], np.column_stack([Z, W, np.ones(60)])

    def left(A):
        return np.square(target - A @ np.linalg.lstsq(A, target, rcond=None)[0]).sum()

    assert result.degrees == (1, 56)
    assert result.F == pytest.approx((left(full[:, 1:]) - left(full)) / (left(full) / 56))


def test_the_robust_anderson_rubin_is_walds():
    X, y, Z, W = design(60)
    Z = np.column_stack([Z, np.exp(Z)])
    full = np.column_stack([Z, W, np.ones(60)])
    target = y - 2 * X[:, 0]
    inverse = np.linalg.inv(full.T @ full)
    b = inverse @ full.T @ target
    residual = (target - full @ b) / (1 - np.einsum("ij,jk,ik->i", full, inverse, full))
    V = inverse @ (full.T * residual**2) @ full @ inverse
    result = linear.anderson_rubin(X, y, Z, W, 2.0, robust=True)
    assert result.degrees == (2, 55)
    assert result.F == pytest.approx(b[:2] @ np.linalg.solve(V[:2, :2], b[:2]) / 2)
    more = linear.anderson_rubin(X, y, np.column_stack([Z, Z @ [1e3, -2.0] + W[:, 0]]), W, 2.0, robust=True)
    assert more.degrees == (2, 55)
    assert more.F == pytest.approx(result.F)


def test_unequal_variances_are_no_effect():
    """A test at five percent: the robust one keeps it where the noise grows with the instrument."""
    rejected = np.zeros(2)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        z, u = rng.standard_normal((2, 150))
        x, y = z + u, u * (0.3 + z**2)
        for k, robust in enumerate((False, True)):
            rejected[k] += linear.anderson_rubin(x[:, None], y, z[:, None], robust=robust).p < 0.05
    assert rejected[0] / 300 > 0.15
    assert rejected[1] / 300 < 0.09


def test_instruments_that_no_line_sees_are_not_weak():
    rng = np.random.default_rng(0)
    z, u = rng.standard_normal((2, 600))
    x = z**2 + 0.5 * u
    options = SMALL | {"max_iter": 40, "lam_inner": 1.0}
    summary = DFIVRegressor(**options).fit(x[:, None], 2 * x + 2 * u, Z=z[:, None]).summary()
    assert summary.first_stage_f < 10
    assert max(summary.feature_r2) > 0.7
    assert [text[:26] for text in summary.warnings] == ["a straight line through th"]
    x = x - z**2
    summary = DFIVRegressor(**options).fit(x[:, None], 2 * x + 2 * u, Z=z[:, None]).summary()
    assert [text for text in summary.warnings if text.startswith("weak instruments") and "deep fit" in text]
    summary = DFIVRegressor(features="linear").fit(x[:, None], 2 * x + 2 * u, Z=z[:, None]).summary()
    assert [text for text in summary.warnings if text.startswith("weak instruments") and "deep" not in text]


@pytest.mark.parametrize("seed", [0, 1])
def test_differences_are_of_what_the_treatment_does(seed):
    """Strong instruments beside controls give no pause; weak ones do."""
    z, c, u = np.random.default_rng(seed).standard_normal((3, 1500))
    summaries = []
    for x in (z + 0.5 * u + c, 0.05 * z + u + c):
        model = DFIVRegressor(treatment="linear", lam_inner=0.01, random_state=0)
        summaries.append(model.fit(x[:, None], 2 * x + 2 * u + c, Z=z[:, None], W=c[:, None]).summary())
    strong, weak = summaries
    assert strong.warnings == []
    assert max(strong.gap, strong.disagreement) < 0.1 < weak.gap
    assert {text.split(":")[0][:22] for text in weak.warnings} >= {"weak instruments", "the layers of training"}


OUTCOME = np.random.default_rng(0).standard_normal(50)


def summarised(**changes):
    X, y, Z, W = design()
    f = OUTCOME
    arguments = {
        "stages": (80, 80, 40), "feature_r2": np.ones(2), "identified": 0.5, "effects": [f, f + 0.01],
        "curves": [[f, 1.1 * f], [f, f]], "outcome": f, "outcome_expected": f, "controlled": True, "values": 200,
        "tried": [], "used": "",
    }  # fmt: skip
    return deep_part(linear_part(X, y, Z, W, ["x"]), **arguments | changes).warnings


F = np.arange(50.0) - 24.5
WARNINGS = {
    "members": ({"effects": [np.arange(50.0), np.arange(50.0)[::-1]]}, "the members, fitted to exchanged halves"),
    "gap": ({"curves": [[0.5 * F, F]]}, "the layers of training and re-estimated ones differ by 25%"),
    "NaN gap": ({"curves": [[np.full(50, np.nan), F]]}, "the layers of training and re-estimated ones"),
    "no effect": (
        {"curves": [[0.05 * F / F.std() * OUTCOME.std(), 0 * F]]},
        "the layers of training and re-estimated ones differ by 25%",
    ),
    "ill-posed": ({"identified": 0.05}, "ill-posed: the instruments move only 5%"),
    "values": ({"values": 2}, "the excluded instruments take only 2 different values"),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_each_warning_comes_alone(case):
    changes, text = WARNINGS[case]
    assert summarised() == []
    (only,) = summarised(**changes)
    assert only.startswith(text)


def test_columns_by_name(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y, Z, W = design()
    table = pandas.DataFrame(W, columns=["age", "south"])
    model = DFIVRegressor(features="linear").fit(pandas.DataFrame(X, columns=["educ"]), y, Z=Z, W=table)
    with pytest.raises(ValueError, match="columns of W are south, age; expected those of the fit, age, south"):
        model.predict(X, table[["south", "age"]])
    with pytest.raises(ValueError, match="columns of X are wage"):
        model.predict(pandas.DataFrame(X, columns=["wage"]), table)
    np.testing.assert_allclose(model.predict(X, W), model.predict(X, table), rtol=1e-10)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="columns of W are south, age"):
        load(tmp_path / "model").predict(X, table[["south", "age"]])
    table.loc[7, "south"] = np.nan
    with pytest.raises(ValueError, match="W contains NaN in row 7 of column south"):
        model.predict(X, table)


def test_effects_and_scores_check_their_input():
    X, y, Z, _ = design()
    model = DFIVRegressor(**SMALL).fit(X, y, Z=Z)
    change = model.effect(np.zeros(5), np.arange(5.0))
    assert change.shape == (5,)
    assert np.allclose(change, model.effect(np.zeros((5, 1)), np.arange(5.0)[:, None]))
    for call, message in (
        (lambda: model.effect(np.zeros(5), np.ones(4)), "x0 has 5 rows and x1 4"),
        (lambda: model.effect("low", 1.0), "x0 must be a number"),
        (lambda: model.effect(0.0, np.nan), "x1 holds NaN"),
        (lambda: model.score(X, y * np.nan), "y contains NaN in row 0"),
        (lambda: model.score(X, 0 * y), "y is constant"),
        (lambda: model.score(X, y, Z=np.column_stack([Z, Z])), "Z has 2 instruments; the fit had 1"),
        (lambda: model.score(np.column_stack([X, X]), y, Z=Z), "X has 2 treatments; the fit had 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_replicates_are_of_their_backbone(tmp_path):
    X, y, Z, _ = design()
    models = []
    for width in (5, 6):
        torch.manual_seed(width)
        net = torch.nn.Sequential(torch.nn.Linear(1, width), torch.nn.Tanh())
        models.append(DFIVRegressor(**SMALL | {"max_iter": 2, "members": 1}, backbone=net).fit(X, y, Z=Z))
    rows = Observations(X, y, Z, None)
    before = digest(models[0], rows)
    assert before != digest(models[1], rows)
    models[0].bootstrap(X, y, Z=Z, replicates=1, folder=tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    file.rename(tmp_path / f"{digest(models[1], rows)}-0000.safetensors")  # of another shape: made again
    models[1].bootstrap(X, y, Z=Z, replicates=1, folder=tmp_path)
    assert np.isfinite(models[1].replicates_[0].predict(X)).all()
    with torch.no_grad():
        models[0].backbone[0].weight.add_(1.0)
    assert digest(models[0], rows) != before


def test_draws_that_cannot_be_fitted_are_drawn_again(capsys):
    """An instrument with two ones among a hundred zeros is constant in one draw of seven."""
    rng = np.random.default_rng(1)
    z, u = np.zeros(100), rng.standard_normal(100)
    z[:2] = 1
    x = 3 * z + u
    model = DFIVRegressor(features="linear", verbose=True, random_state=np.random.RandomState(0))
    model.fit(x[:, None], x + u, Z=z[:, None]).bootstrap(x[:, None], x + u, Z=z[:, None], replicates=30)
    assert len(model.replicates_) == 30
    assert "replicate 30/30" in capsys.readouterr().err
    again = DFIVRegressor(features="linear", verbose=True, random_state=np.random.RandomState(0))
    again.fit(x[:, None], x + u, Z=z[:, None])
    rows = Observations(x[:, None], x + u, z[:, None], None)
    assert digest(model, rows) == digest(again, rows)


def test_a_bootstrap_of_few_rows():
    """Sixty rows are enough for a fit, and a draw of them has about 38 different ones."""
    X, y, Z, _ = design(60)
    model = DFIVRegressor(**SMALL | {"max_iter": 1, "members": 1}).fit(X, y, Z=Z)
    assert len(model.bootstrap(X, y, Z=Z, replicates=1).replicates_) == 1
