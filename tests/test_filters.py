"""The filter's matrix where rounding counts: large features of low rank, the leak's formula, a filter that fails."""

import pytest
import torch

import closedform as cf
from closedform.solver import filters, linalg, route
from closedform.solver.batch import Batch
from closedform.solver.systems import Rows

from .helpers import head, matrix, problem, relative

# a rejected solve is said once, which is tested in test_nothing_silent.py
pytestmark = pytest.mark.filterwarnings("ignore:.*solves of this head were rejected:UserWarning")


FORMS = ["information", "covariance"]
forms = pytest.mark.parametrize("form", FORMS)


class Latent:
    """Features `z mix` of low rank, where the rows of `mix (rank, d)` are orthogonal and of one length, so that the filter
    in the space of `length * z` (and the bias) is the same filter with a small and well-conditioned matrix."""

    def __init__(self, d: int, rank: int, scale: float):
        self.g = torch.Generator().manual_seed(0)
        self.length = scale * d**0.5
        self.mix = self.length * torch.linalg.qr(self.normal(d, rank)).Q.T
        self.truth = self.normal(rank, 1)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.g, dtype=torch.float64)

    def batch(self, n, noise=0.1):
        """Latent features with a one for the bias, features, and targets."""
        z = self.normal(n, len(self.mix))
        small = torch.cat([self.length * z, torch.ones(n, 1, dtype=torch.float64)], 1)
        return small, z @ self.mix, z @ self.truth + noise * self.normal(n, 1)


@forms
@pytest.mark.parametrize(
    ("d", "rank", "scale", "lam", "dtype", "steps"),
    [
        (40, 2, 1e6, 1e-6, torch.float64, 300),
        (40, 2, 1e4, 1.0, torch.float32, 150),
        (200, 20, 100.0, 1.0, torch.float32, 60),
    ],
)
def test_large_features_of_low_rank_are_filtered_as_in_their_own_space(form, d, rank, scale, lam, dtype, steps):
    problem, gamma = Latent(d, rank, scale), 0.9
    layer = cf.ClosedFormLinear(d, 1, rule=cf.Kalman(gamma, lam=lam, form=form), dtype=dtype)
    A, w = torch.zeros(rank + 1, rank + 1, dtype=torch.float64), torch.zeros(rank + 1, 1, dtype=torch.float64)
    ours, exact = [], []
    for t in range(steps):
        small, phi, y = problem.batch(8)
        A = (gamma * A if t else lam * torch.eye(rank + 1, dtype=torch.float64)) + small.T @ small
        w = w + torch.linalg.solve(A, small.T @ (y - small @ w))
        layer.solve(phi.to(dtype), y.to(dtype))
        if t >= 20:
            small, phi, clean = problem.batch(100, noise=0.0)
            ours.append(layer(phi.to(dtype)).double() - clean)
            exact.append(small @ w - clean)
        if t in (-(-(d + 1) // 8), 40, steps - 1):  # first when every feature has had its leak
            assert float(torch.linalg.eigvalsh(layer._memory()[form])[0]) > 0
    assert int(layer.rejected) == 0
    assert torch.cat(ours).square().mean() < 1.1**2 * torch.cat(exact).square().mean()


@forms
@pytest.mark.parametrize("n", [8, 40])
@pytest.mark.parametrize("lam", [1e-6, 1e-7, 1e-8])
def test_the_first_step_is_the_proximal_one_for_features_with_a_large_mean(form, n, lam):
    g = torch.Generator().manual_seed(n)
    phi = torch.randn(n, 20, generator=g, dtype=torch.float64)
    phi += 2e3 * torch.randn(20, generator=g, dtype=torch.float64)
    y = torch.randn(n, 2, generator=g, dtype=torch.float64)
    assert torch.linalg.cond(phi) > 5e3
    kalman, proximal = head(20, 2, cf.Kalman(0.9, lam=lam, form=form)), head(20, 2, cf.Proximal(lam))
    for layer in (kalman, proximal):
        layer.solve(phi, y)
    assert relative(kalman(phi), proximal(phi)) < 1e-10


# ---- The leak ----------------------------------------------------------------------------------------


def slow_leak(prior, gamma, X, t):
    """The documented formula, feature by feature."""
    D = len(prior)
    count = min(8, D)
    leak = torch.zeros_like(prior)
    for k in range(count if t > 0 else 0):
        i = (8 * t + k) % D if D > 8 else k
        of_data = float((X[:, i] ** 2).sum())
        leak[i] = D / count * max(1e-8 * (1 - gamma) * float(prior[i]), 1e-11 * of_data)
    return leak


@forms
@pytest.mark.parametrize(("gamma", "q"), [(0.5, 0.0), (0.5, 1e-2), (0.7, 0.0)])
@pytest.mark.parametrize("d", [6, 70])
def test_the_leak_is_the_documented_formula(form, gamma, q, d):
    """Features of rank 3: without the leak the precision of the other directions would be that of a prior long forgotten.
    The reference keeps the inverse covariance, and adds the leak of single features as its page says."""
    g = torch.Generator().manual_seed(d)
    mix = torch.randn(3, d, generator=g, dtype=torch.float64)
    prior = torch.logspace(-1, 2, d, dtype=torch.float64)
    layer = cf.ClosedFormLinear(d, 1, False, rule=cf.Kalman(gamma, q, prior, form=form), dtype=torch.float64)
    A, eye = torch.diag(prior), torch.eye(d, dtype=torch.float64)
    for t in range(60):
        phi = torch.randn(5, 3, generator=g, dtype=torch.float64) @ mix
        if t > 0:
            A = torch.linalg.solve(eye + q * gamma * A, gamma * A)
        A = (A + A.T) / 2 + phi.T @ phi + torch.diag(slow_leak(prior, gamma, phi, t))
        layer.solve(phi, phi[:, :1])
    assert int(layer.rejected) == 0
    probe = torch.randn(20, d, generator=g, dtype=torch.float64)
    M = layer._memory()[form]
    P_probe = torch.linalg.solve(M, probe.T) if form == "information" else M @ probe.T
    assert relative(P_probe, torch.linalg.solve(A, probe.T)) < 1e-4


# ---- A solve that fails ------------------------------------------------------------------------------


def trained(form):
    """After four rows: there are directions of which the filter knows nothing."""
    layer = head(6, 2, cf.Kalman(0.9, lam=1e-6, form=form), dtype=torch.float32)
    for seed in range(4):
        layer.solve(*(tensor.float() for tensor in problem(1, 6, 2, seed=seed)))
    return layer


def state(layer):
    return {name: tensor.clone() for name, tensor in layer.state_dict().items()}


@forms
@pytest.mark.parametrize("why", ["overflow", "indefinite"])
def test_after_a_failure_on_a_finite_batch_the_memory_starts_anew(form, why):
    layer = trained(form)
    phi, y = (tensor.float() for tensor in problem(5, 6, 2, seed=9))
    if why == "overflow":
        phi, y = 1e-2 * phi, y / y.abs().max() * 3e38
    else:
        layer._memory()[form].neg_()
    before = state(layer)
    layer.solve(phi, y)
    after = state(layer)
    assert (int(layer.step), int(layer.rejected)) == (4, 1)
    fresh = layer._memory()["prior"]
    expected = torch.diag(fresh if form == "information" else 1 / fresh)
    assert torch.equal(layer._memory()[form], expected)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"attempts", next(name for name in before if name.endswith(form))}
    W = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    for seed in range(60):
        phi = problem(5, 6, 2, seed=seed)[0].float()
        layer.solve(phi, phi @ W.T + 1)
    assert int(layer.rejected) == 1
    assert relative(matrix(layer)[:, :6], W) < 0.02


@forms
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["phi", "y"])
def test_a_batch_that_is_not_finite_leaves_the_memory_alone(form, bad, where):
    layer = trained(form)
    before = state(layer)
    phi, y = (tensor.float() for tensor in problem(5, 6, 2, seed=9))
    (phi if where == "phi" else y)[0, 0] = bad
    layer._take(Batch(phi, y, bias=True))  # as on a device, where no one looks at the values
    assert int(layer.rejected) == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in state(layer).items() if name != "attempts")


@forms
def test_a_first_solve_that_fails_leaves_no_memory(form):
    layer = cf.ClosedFormLinear(2, 1, False, rule=cf.Kalman(0.9, lam=1e-12, form=form))
    layer.solve(torch.tensor([[1e-5, 1e-30]]), torch.tensor([[1e35]]))
    assert (int(layer.step), int(layer.rejected)) == (0, 1)
    assert not any(tensor.any() for tensor in layer._memory().values())


@pytest.mark.parametrize("n", [11, 30, 60])
def test_in_a_long_stream_nothing_adds_up_where_data_say_little(n):
    """On a CPU a covariance takes in more than a quarter as many rows as features by two inversions a step."""
    problem = Latent(40, 2, 1.0)
    layers = [cf.ClosedFormLinear(40, 1, rule=cf.Kalman(0.9, form=form), dtype=torch.float64) for form in FORMS]
    for _ in range(1500):
        _, phi, y = problem.batch(n)
        for layer in layers:
            layer.solve(phi, y)
    _, phi, _ = problem.batch(50)
    information, covariance = (layer.variance(phi) / layer._memory()["noise"] - 1 for layer in layers)
    assert relative(covariance, information) < 2e-5
    assert not any(int(layer.rejected) for layer in layers)


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_a_covariance_takes_in_rows_by_its_inverse_as_one_by_one(K, scale, monkeypatch):
    """The two ways of an update from the same covariance, whichever is chosen."""
    d, n, o = 12, 8, 2
    g = torch.Generator().manual_seed(0)
    X, E = (torch.randn(n, size, generator=g, dtype=torch.float64) for size in (d, o))
    X[:, 3], X[:, 4] = X[:, 2], 0.0  # one feature twice, and one that is not there
    P = torch.diag_embed(torch.rand(K, d, generator=g, dtype=torch.float64) + 0.5)
    gamma, prior = torch.linspace(0.5, 0.99, K, dtype=torch.float64), torch.ones(K, d, dtype=torch.float64)
    found = {}
    for inverse in (False, True):
        monkeypatch.setattr(route, "by_inverse", lambda X, inverse=inverse: inverse)
        system = Rows(scale * X, E.expand(K, n, o))
        after, solve = filters.absorb("covariance", P.clone(), system, prior, gamma, 0.0, torch.tensor(5))
        found[inverse] = after, solve(system).update
    for rows, inverse in zip(found[False], found[True]):
        assert relative(inverse, rows) < (1e-6 if scale > 1 else 1e-10)
    assert (torch.linalg.eigvalsh(found[True][0]) > 0).all()


def test_an_inverse_without_a_look_is_that_with_one(monkeypatch):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(3, 40, 20, generator=g, dtype=torch.float64)
    K = X.mT @ X / 40
    looked, _ = linalg.inverse_(K.clone())
    monkeypatch.setattr(route, "may_branch", lambda tensor: False)
    traced, ok = linalg.inverse_(K.clone())
    assert ok.all()
    assert relative(traced, looked) < 1e-12
    assert not linalg.inverse_(-K)[1].any()


def test_an_inverse_is_raised_only_where_there_is_none():
    well, ill = torch.eye(4, dtype=torch.float64), torch.ones(4, 4, dtype=torch.float64)
    inverse, ok = linalg.inverse_(torch.stack([well, ill, -well]))
    assert ok.tolist() == [True, True, False]
    assert torch.equal(inverse[0], well)
    assert torch.isfinite(inverse[1]).all()
