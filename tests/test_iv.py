"""Algorithm 3: the fast form is the reference, its gradient is autograd's through the inverse, its halves are disjoint."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch

import closedform as cf
from closedform.iv import DFIV, Data, Rules, Split, evaluation, linear, networks, reestimated, reference, train
from closedform.iv.algorithm import ones, products
from closedform.iv.loop import can_stand_side_by_side, train_side_by_side
from closedform.solver import lambdas
from closedform.solver import reference as cf_reference
from closedform.stack.loop import Checkpoint
from closedform.stack.networks import mlp

from .helpers import relative

T1, T2 = 3, 2


@pytest.mark.parametrize("steps", [0, 2])
def test_covariates_that_are_missing_are_told(steps):
    model, _ = models(RULES["proximal"], True, covariate_steps=steps)
    data = problem()
    for call in (model.predict, model.features):
        with pytest.raises(ValueError, match="no covariates o, and the model has a network xi"):
            call(data.X)
    with pytest.raises(ValueError, match="no covariates o, and the model has a network xi"):
        model.step([(data.X[:6], data.Z[:6])], (data.Z[6:], data.y[6:], None))


def test_splits_beyond_the_data_are_told():
    with pytest.raises(ValueError, match="second has the row -1; expected rows from 0 on"):
        Split(torch.tensor([0, 1, 9]), torch.tensor([-1, 3]))  # of ten rows both have the last
    model, _ = models(RULES["proximal"], False)
    before = [p.clone() for p in model.psi.parameters()]
    with pytest.raises(ValueError, match="the split has row 29, and the data has 12 rows"):
        train(model, problem(covariates=False), Split.halves(30), iterations=3, batch_size=4, lr=1e-3)
    assert all(torch.equal(a, b) for a, b in zip(before, model.psi.parameters()))


def net(inputs, width, seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(inputs, 5), torch.nn.Tanh(), torch.nn.Linear(5, width)).double()


def problem(n=12, seed=0, covariates=True):
    g = torch.Generator().manual_seed(seed)
    X, Z, W = (torch.randn(n, k, generator=g, dtype=torch.float64) for k in (2, 3, 2))
    y = torch.randn(n, 1, generator=g, dtype=torch.float64)
    return Data(X, Z, y, W if covariates else None)


def models(rules, covariates, seed=0, **options):
    """Two models alike."""
    xi = net(2, 2, seed + 3) if covariates else None
    widths = (4, 3, 2) if covariates else (4, 3)
    pair = []
    for _ in range(2):
        nets = [None if m is None else copy.deepcopy(m) for m in (net(2, 4, seed + 1), net(3, 3, seed + 2), xi)]
        generator = torch.Generator().manual_seed(seed)
        pair.append(DFIV(*nets, widths=widths, rules=rules, lr=0.01, T1=T1, T2=T2, generator=generator, **options))
    return pair


LAMBDAS = {"lam_1": 2.0, "lam_2": 3.0, "lam_12": 0.1}
RULES = {
    "proximal": Rules.proximal(2.0, 3.0, 0.1),
    "ridge": Rules(cf.Ridge(2.0), cf.Ridge(0.1), cf.Ridge(3.0)),
}


@pytest.mark.parametrize(
    ("method", "covariates", "n", "fresh", "seed"),
    [
        (method, covariates, n, fresh, n + fresh)
        for method, covariates, n, fresh in itertools.product(RULES, (False, True), (3, 9, 40), (False, True))
    ],
)
def test_fast_is_the_reference(method, covariates, n, fresh, seed):
    """Step by step, for batches smaller and larger than the layers, in float64."""
    ours, theirs = models(RULES[method], covariates, seed)
    state = reference.State(theirs.first.W.clone(), theirs.second.W.clone())
    joint = [*theirs.psi.parameters(), *(theirs.xi.parameters() if covariates else [])]
    step_Z = reference.GradientStep(list(theirs.phi.parameters()), theirs.optimizers[0])
    step_X = reference.GradientStep(joint, theirs.optimizers[1])
    for t in range(3):
        data = problem(2 * n, seed=100 * seed + t, covariates=covariates)
        first = [(data.X[:n], data.Z[:n])]
        if fresh:
            more = problem(2 * n, seed=100 * seed + 50 + t)
            first = [(more.X[:n], more.Z[:n]), (more.X[n:], more.Z[n:]), first[0]]
        second = data.Z[n:], data.y[n:], None if data.O is None else data.O[n:]
        ours.step(first, second)
        reference.iteration(
            state, theirs.psi, theirs.phi, theirs.xi, first, second,
            **LAMBDAS, T1=T1, T2=T2, step_Z=step_Z, step_X=step_X, method=method,
        )  # fmt: skip
        assert relative(ours.first.W, state.W) < 1e-9
        assert relative(ours.second.W, state.w) < 1e-9
        for mine, other in zip(ours.modules(), theirs.modules()):
            for a, b in zip(mine.parameters(), other.parameters()):
                assert relative(a, b) < 1e-8


@pytest.mark.parametrize("rule", [cf.Proximal(0.3), cf.Ridge(0.3), cf.Kalman(0.9, lam=0.3)], ids=str)
@pytest.mark.parametrize("n", [3, 30])
def test_the_gradient_goes_through_the_layer_and_not_through_the_factor(rule, n):
    """`W*(theta_X)` is linear in psi: the gradient is that of autograd through an explicit inverse."""
    data = problem(2 * n)
    first = cf.Kalman(0.9, lam=0.3) if isinstance(rule, cf.Kalman) else cf.Proximal(2.0)
    model, _ = models(Rules(first, rule, cf.Proximal(3.0)), True)
    with torch.no_grad():
        phi1, phi2 = ones(model.phi(data.Z[:n])), ones(model.phi(data.Z[n:]))
        model.first.solve(phi1, model.psi(data.X[:n]))
    psi = model.psi(data.X[:n]).detach().requires_grad_()

    def gradient(W_star):
        F = products(phi2 @ W_star.T, model.xi(data.O[n:]).detach())
        loss = (F @ model.second.W.T - data.y[n:]).square().sum()
        return torch.autograd.grad(loss, psi)[0]

    W_star = model.inner(phi1, psi)
    W_t, D = model.first.W, phi1.shape[1]
    if isinstance(rule, cf.Kalman):  # the filter's next step: the information forgotten once, and the batch taken in
        A = 0.9 * model.first.memory["information"] + phi1.T @ phi1
        slow = W_t + (torch.linalg.inv(A) @ phi1.T @ (psi - phi1 @ W_t.T)).T
        assert relative(W_star, slow) < 1e-6  # a trace of the prior is given back at each step
        assert relative(gradient(W_star), gradient(slow)) < 1e-5
        return
    method = "ridge" if isinstance(rule, cf.Ridge) else "proximal"
    slow = reference.solve(phi1.T, psi.T, W_t, 0.3, method)
    assert relative(W_star, slow) < 1e-10
    assert relative(gradient(W_star), gradient(slow)) < 1e-9
    graph, names = [W_star.grad_fn], set()
    while graph:
        node = graph.pop()
        if node is not None:
            names.add(node.name())
            graph += [parent for parent, _ in node.next_functions]
    assert not any("Linalg" in name or "Inverse" in name for name in names), names
    assert D == 4


def test_kalman_for_both_stages_is_the_filter():
    """Both layers against the textbook's filter with the full covariance, over several batches."""
    model, _ = models(Rules(cf.Kalman(0.9, lam=2.0), cf.Proximal(0.1), cf.Kalman(0.8, lam=3.0)), False, order="solve")
    model.optimizers = [None, None]  # the layers alone
    means = [model.first.W.clone(), model.second.W.clone()]
    covariances = [torch.eye(m.numel(), dtype=torch.float64) / lam for m, lam in zip(means, (2.0, 3.0))]
    seen = [0, 0]

    def take(k, phi, y, gamma):
        means[k], covariances[k] = cf_reference.kalman(
            means[k], covariances[k], phi.detach().T, y.detach().T, gamma, 0.0, seen[k] == 0
        )
        seen[k] += 1

    for t in range(3):
        data = problem(20, seed=t, covariates=False)
        first, second = [(data.X[:10], data.Z[:10])], (data.Z[10:], data.y[10:], None)
        phi1, phi2, psi = ones(model.phi(data.Z[:10])), ones(model.phi(data.Z[10:])), model.psi(data.X[:10])
        for _ in range(T1):
            take(0, phi1, psi, 0.9)
        F = products(phi2 @ reference.solve(phi1.T, psi.T, means[0], 0.1).T, None)
        for _ in range(T2):
            take(1, F, data.y[10:], 0.8)
        model.step(first, second)
        assert relative(model.first.W, means[0]) < 1e-6
        assert relative(model.second.W, means[1]) < 1e-6


def test_order_solve_steps_at_the_new_layer():
    """One forward of psi: the layers are solved on the batch before the networks move."""
    model, other = models(RULES["proximal"], False, order="solve")
    data = problem(20, covariates=False)
    with torch.no_grad():
        phi, psi = ones(model.phi(data.Z[:10])), model.psi(data.X[:10])
    model._stage_one([(data.X[:10], data.Z[:10])])
    W = reference.solve(phi.T, psi.T, other.first.W, 2.0)
    assert relative(model.first.W, W) > 1e-6  # T1 solves, not one
    other.T1 = 1
    other._stage_one([(data.X[:10], data.Z[:10])])
    assert relative(other.first.W, W) < 1e-10


def test_what_is_not_finite_does_not_reach_the_weights():
    model, other = models(RULES["proximal"], False)
    data = problem(20, covariates=False)
    bad = data.y[10:].clone()
    bad[0] = torch.inf
    model.step([(data.X[:10], data.Z[:10])], (data.Z[10:], bad, None))
    assert model.skipped == T2
    assert model.second.rejected == T2
    assert torch.equal(model.second.W, other.second.W)
    assert all(torch.equal(a, b) for a, b in zip(model.psi.parameters(), other.psi.parameters()))


def test_a_kalman_filter_inside_stage_two_is_that_of_stage_one():
    with pytest.raises(ValueError, match="must be that of stage one"):
        Rules(cf.Proximal(1.0), cf.Kalman(0.9), cf.Proximal(1.0))


def test_stages_must_not_share_rows():
    with pytest.raises(ValueError, match=r"share 2 rows \(such as row 3\).*ordinary least squares"):
        Split(torch.arange(0, 5), torch.arange(3, 9))
    with pytest.raises(ValueError, match="both stages need rows"):
        Split(torch.arange(0), torch.arange(3))
    split = Split.halves(101, seed=3)
    assert sorted([*split.first.tolist(), *split.second.tolist()]) == list(range(101))
    assert len(split.first) == 50


def test_parts_of_different_length_are_told():
    with pytest.raises(ValueError, match="same number of rows"):
        Data(torch.zeros(3, 1), torch.zeros(4, 1), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="one stage-one batch or T1=3"):
        models(RULES["ridge"], False)[0].step([], (torch.zeros(1, 3), torch.zeros(1, 1), None))


def linear_design(n=4000, seed=0):
    g = torch.Generator().manual_seed(seed)
    z, u, e = torch.randn(3, n, 1, generator=g, dtype=torch.float64)
    x = z + u + 0.3 * e
    return Data(x, z, 2 * x + 3 * u + e)


def identity_model(lam=1e-6):
    rules = Rules.proximal(lam, lam, lam)
    return DFIV(torch.nn.Identity(), torch.nn.Identity(), widths=(1, 1), rules=rules, T1=1)


def test_reestimation_of_linear_features_is_split_sample_two_stage_least_squares():
    data, split = linear_design(), Split.halves(4000)
    layers = reestimated(identity_model(), data, split, 1e-9, 1e-9)
    z, x, y = data.Z.numpy()[:, 0], data.X.numpy()[:, 0], data.y.numpy()[:, 0]
    one, two = split.first.numpy(), split.second.numpy()
    slope, height = np.polyfit(z[one], x[one], 1)
    expected = np.polyfit(slope * z[two] + height, y[two], 1)
    at = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    predicted = evaluation.predict(identity_model(), layers, at)[:, 0]
    assert math.isclose(float(predicted[1] - predicted[0]), expected[0], rel_tol=1e-8)
    assert math.isclose(float(predicted[0]), expected[1], abs_tol=1e-8)
    assert abs(expected[0] - 2) < 0.2


def test_reestimation_does_not_see_the_scale_of_features():
    data, split = problem(60), Split.halves(60)
    model, scaled = models(RULES["proximal"], True)
    with torch.no_grad():
        for network in scaled.modules():
            network[-1].weight *= 100
            network[-1].bias.mul_(100).add_(7)
    at = problem(8, seed=9)
    predictions = [evaluation.predict(m, reestimated(m, data, split), at.X, at.O) for m in (model, scaled)]
    assert relative(predictions[0], predictions[1]) < 1e-9
    losses = [evaluation.outcome_losses(m, reestimated(m, data, split), data) for m in (model, scaled)]
    assert relative(*losses) < 1e-9


@pytest.mark.parametrize("covariates", [False, True])
def test_the_layers_of_training_predict_what_the_model_does(covariates):
    data = problem(20, covariates=covariates)
    model, _ = models(RULES["proximal"], covariates)
    layers = evaluation.online(model)
    assert relative(evaluation.predict(model, layers, data.X, data.O), model.predict(data.X, data.O)) < 1e-12
    with torch.no_grad():
        psi_hat = ones(model.phi(data.Z)) @ model.first.W.T
        expected = products(psi_hat, None if model.xi is None else model.xi(data.O)) @ model.second.W.T
    assert relative(evaluation.outcome_losses(model, layers, data), (expected - data.y).square()[:, 0]) < 1e-12


SIDE = RULES | {"kalman": Rules(cf.Kalman(0.9), cf.Proximal(lambdas.relative(0.1)), cf.Kalman(0.9))}


def mlps(seed, rules, covariates, order):
    """A model whose networks can stand side by side with others."""
    g = torch.Generator().manual_seed(seed)
    nets = [networks.beside([inputs, 5, width], g) for inputs, width in ((2, 4), (3, 3), (2, 2))][: 2 + covariates]
    steps = 2 if covariates and order == "solve" else 0
    options = {"widths": [width for _, width in nets], "rules": rules, "lr": 0.01, "T1": T1, "T2": T2, "order": order}
    return DFIV(*(net.double() for net, _ in nets), **options, covariate_steps=steps, generator=g)


@pytest.mark.parametrize(("order", "covariates"), [("solve", True), ("solve", False), ("step", True), ("step", False)])
@pytest.mark.parametrize("rule", SIDE)
@pytest.mark.parametrize("batch", [8, 100])
def test_models_side_by_side_are_those_trained_alone(rule, order, covariates, batch):
    data = problem(64, covariates=covariates)
    splits, seeds = [Split.halves(64, seed=k) for k in range(3)], [5, 6, 7]
    together, alone = ([mlps(k, SIDE[rule], covariates, order) for k in range(3)] for _ in range(2))
    assert can_stand_side_by_side(together, splits, batch)
    options = {"iterations": 12, "batch_size": batch, "lr": 0.01, "fresh": True}
    train_side_by_side(together, data, splits, seeds=seeds, **options)
    for model, split, seed in zip(alone, splits, seeds):
        train(model, data, split, seed=seed, **options)
    for model, expected in zip(together, alone):
        assert relative(model.first.W, expected.first.W) < 1e-8
        assert relative(model.second.W, expected.second.W) < 1e-8
        for net, other in zip(model.modules(), expected.modules()):
            assert all(relative(a, b) < 1e-8 for a, b in zip(net.parameters(), other.parameters()))


def test_a_model_that_diverges_disturbs_none_beside_it():
    data, splits = problem(64), [Split.halves(64, seed=k) for k in range(3)]
    together = [mlps(k, RULES["proximal"], True, "solve") for k in range(3)]
    with torch.no_grad():
        next(together[1].psi.parameters()).fill_(torch.nan)
    train_side_by_side(together, data, splits, seeds=[0, 1, 2], iterations=5, batch_size=8, lr=0.01)
    for k in (0, 2):
        alone = mlps(k, RULES["proximal"], True, "solve")
        train(alone, data, splits[k], seed=k, iterations=5, batch_size=8, lr=0.01)
        assert relative(together[k].second.W, alone.second.W) < 1e-8


def test_what_cannot_stand_side_by_side_is_known():
    plain, splits = [mlps(k, RULES["ridge"], False, "solve") for k in range(2)], [Split.halves(64)] * 2
    assert can_stand_side_by_side(plain, splits, 8)
    assert not can_stand_side_by_side(plain, [Split.halves(64), Split.halves(64, fraction=0.1)], 8)
    other = mlps(2, RULES["ridge"], False, "solve")
    for net in (torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2, bias=False), networks.Sieve()):
        other.psi = net
        assert not can_stand_side_by_side([*plain, other], splits, 8)


@pytest.mark.parametrize("rules", [RULES["proximal"], Rules(cf.Kalman(0.9), cf.Proximal(0.1), cf.Kalman(0.9))])
def test_training_can_be_stopped_and_goes_on_to_the_same_bits(rules, tmp_path):
    data, split = problem(64), Split.halves(64)
    options = {"iterations": 6, "batch_size": 8, "lr": 0.01, "seed": 3}
    whole, stopped = (models(rules, True)[0] for _ in range(2))

    def stop(t):
        if t == 5:
            raise RuntimeError("stopped")

    checkpoint = Checkpoint(tmp_path / "a", every_s=0)
    with pytest.raises(RuntimeError, match="stopped"):
        train(stopped, data, split, **options, after=stop, checkpoint=checkpoint)
    fresh, _ = models(rules, True, seed=5)
    taken = []
    train(fresh, data, split, **options, after=taken.append, checkpoint=checkpoint)
    assert 1 < taken[0] <= 5
    train(whole, data, split, **options)
    assert torch.equal(fresh.first.W, whole.first.W)
    assert torch.equal(fresh.second.W, whole.second.W)
    assert all(torch.equal(a, b) for m, n in zip(fresh.modules(), whole.modules())
               for a, b in zip(m.parameters(), n.parameters()))  # fmt: skip


def test_a_confounded_curve_is_found():
    """A structural function that regression cannot find: the paper's setting in one dimension."""
    g = torch.Generator().manual_seed(0)
    n = 4000
    z, u, e = torch.randn(3, n, 1, generator=g)
    x = z + 0.5 * u
    f = torch.sin(2 * x)
    data = Data(x, z, f + 2 * u + 0.1 * e)

    rules = Rules.proximal("auto", "auto", lambdas.relative(1e-2))
    model = DFIV(
        *(mlp([1, 32, 16], generator=g) for _ in "xz"), widths=(16, 16), rules=rules, T1=2, order="solve", generator=g
    )
    train(model, data, Split.halves(n), iterations=200, batch_size=256, lr=1e-2)
    at = torch.linspace(-1.5, 1.5, 50)[:, None]
    error = (model.predict(at)[:, 0] - torch.sin(2 * at[:, 0])).square().mean()
    ordinary = 2 * 0.5 / (1 + 0.25)  # what regression adds to the curve, times x
    assert float(error) < 0.15 < float((ordinary * at).square().mean())


@pytest.mark.parametrize(("F", "a", "b"), [(4.0, 1, 100), (1.3, 3, 50), (0.2, 7, 9), (50.0, 2, 400), (1e-3, 1, 30000)])
def test_the_tail_of_f(F, a, b):
    stats = pytest.importorskip("scipy.stats")
    assert math.isclose(linear.f_tail(F, a, b), stats.f.sf(F, a, b), rel_tol=1e-10)


def test_two_stage_least_squares_is_its_formula():
    rng = np.random.default_rng(1)
    n = 300
    Z, W, u = rng.standard_normal((n, 3)), rng.standard_normal((n, 2)), rng.standard_normal(n)
    X = Z @ rng.standard_normal((3, 2)) + W[:, :1] + u[:, None] + 0.3 * rng.standard_normal((n, 2))
    y = X @ [1.0, -2.0] + W @ [0.5, 0.1] + u
    fit = linear.two_stage(X, y, Z, W)
    A, B = np.column_stack([X, W, np.ones(n)]), np.column_stack([Z, W, np.ones(n)])
    P = B @ np.linalg.inv(B.T @ B) @ B.T
    inverse = np.linalg.inv(A.T @ P @ A)
    beta = inverse @ A.T @ P @ y
    r = y - A @ beta
    robust = inverse @ (A.T @ P @ np.diag(r**2) @ P @ A) @ inverse
    assert np.allclose(fit.coef, beta[:2], rtol=1e-9)
    assert np.allclose([*fit.controls, fit.intercept], beta[2:], rtol=1e-9)
    assert np.allclose(fit.covariance, robust, rtol=1e-7)
    classical = linear.two_stage(X, y, Z, W, robust=False)
    assert np.allclose(classical.covariance, inverse * (r @ r) / n, rtol=1e-7)


def test_identification_is_checked():
    rng = np.random.default_rng(0)
    Z, X = rng.standard_normal((50, 1)), rng.standard_normal((50, 2))
    with pytest.raises(ValueError, match="at least as many instruments as treatments"):
        linear.two_stage(X, X[:, 0], Z)
    with pytest.raises(ValueError, match="vary independently"):
        linear.two_stage(np.ones((50, 1)), X[:, 0], Z)
    with pytest.raises(ValueError, match="at least as many instruments"):
        linear.two_stage(X[:, :1], X[:, 1], Z, controls=Z)  # an instrument that is a control tells nothing


def test_free_columns_are_not_penalised():
    """Against the ridge with a diagonal penalty that is zero there; a huge ridge leaves least squares on them."""
    g = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(40, k, generator=g, dtype=torch.float64) for k in (5, 2))
    free = torch.tensor([True, False, True, False, False])
    W, b = evaluation.fit(X, Y, 3.0, free)
    x, y = X - X.mean(0), Y - Y.mean(0)
    expected = torch.linalg.solve(x.T @ x + 3.0 * torch.diag((~free).double()), x.T @ y).T
    assert relative(W, expected) < 1e-10
    assert relative(b, Y.mean(0) - expected @ X.mean(0)) < 1e-10
    W, _ = evaluation.fit(X, Y, 1e14, free)
    assert relative(W[:, free], torch.linalg.lstsq(x[:, free], y).solution.T) < 1e-9
    assert float(W[:, ~free].abs().max()) < 1e-9
