"""Whatever route a solve takes, the answer is the same: rows or moments, one model or many, a factor or singular values."""

import pytest
import torch

import closedform as cf
from closedform.solver import lambdas, linalg, route, stacks
from closedform.solver.batch import Batch
from closedform.solver.systems import Rows

from . import cases
from .helpers import features, head, matrix, problem, relative

STEP = torch.zeros((), dtype=torch.long)
sizes = pytest.mark.parametrize("n", [3, 7, 20], ids=["n<D", "n=D", "n>D"])  # D = 7: six features and the bias
weighted = pytest.mark.parametrize("weights", [False, True], ids=["plain", "weights"])


# ---- Rows or moments ---------------------------------------------------------------------------------


@cases.rules()
@pytest.mark.parametrize("n", [6, 7, 8])
@pytest.mark.parametrize("weights", [False, True])
def test_rows_and_moments_agree_at_the_boundary(rule, n, weights, monkeypatch):
    layers = []
    for by_rows in (True, False):
        monkeypatch.setattr(route, "by_rows", lambda n, features, answer=by_rows: answer)
        layer = head(6, 2, rule)
        for seed in range(3):
            phi, y = problem(n, 6, 2, seed=seed)
            weight = torch.linspace(0.5, 2.0, n, dtype=torch.float64) if weights else None
            layer.solve(phi, y, weight)
        assert int(layer.step) == 3
        layers.append(layer)
    assert relative(matrix(layers[0]), matrix(layers[1])) < 1e-8
    for (name, one), other in zip(layers[0]._memory().items(), layers[1]._memory().values()):
        assert relative(one, other) < 1e-8, name


def test_the_boundary_is_where_the_systems_are_of_one_size():
    assert route.by_rows(7, 7)
    assert not route.by_rows(8, 7)
    for n, kind in ((7, "Rows"), (8, "Moments")):
        phi, y = problem(n, 6, 2)
        assert type(Batch(phi, y).system(None)).__name__ == kind


def test_the_other_choices():
    cpu = torch.device("cpu")
    assert route.precision(cpu) == route.precision(cpu, 1e7) == torch.float64
    assert route.precision(cpu, 1e5) == route.precision(torch.device("mps")) == torch.float32
    assert (route.filter_form(512), route.filter_form(513)) == ("information", "covariance")
    assert [route.fused(n, 200) for n in (1, 128, 129, 200, 201, 8192, 8193)] == [
        True, True, False, False, True, True, False,
    ]  # fmt: skip
    assert route.piece(1, 100, cpu) == route.CHUNK
    assert route.piece(1000, 4000, cpu) == 4000
    assert route.piece(2, 10, cpu) * 2 * 10 * 8 <= 2**26


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e12])
@pytest.mark.parametrize("lam", [1e-10, 1e-2])
def test_the_bound_on_the_condition_is_one(condition, lam):
    K = features(9, 9, condition=condition)
    K = K @ K.T
    if torch.linalg.cond(K + lam * torch.eye(9, dtype=torch.float64)) > 1.001 * route.MAX_CONDITION:
        assert route.ill_conditioned(K.diagonal(), lam)
    if K.trace() / lam <= route.MAX_CONDITION:
        assert not route.ill_conditioned(K.diagonal(), lam)
    assert not route.ill_conditioned(torch.tensor([1.0, float("nan")]), lam)


# ---- Many models -------------------------------------------------------------------------------------


def stack(n, models, steps=3, weights=False):
    """Batches of several models: `(M, n, 6)`, `(M, n, 2)`, weights."""
    for t in range(steps):
        parts = [problem(n, 6, 2, seed=10 * t + k) for k in range(models)]
        weight = torch.rand(models, n, generator=torch.Generator().manual_seed(t), dtype=torch.float64) + 0.2
        yield torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts]), weight if weights else None


def side(rule, batches, models):
    """Layers, and every memory, after a stack of models has seen the batches."""
    W = torch.randn(models, 2, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    memory = rule.memory(7, 2, None, models)
    for t, (phi, y, weight) in enumerate(batches):
        new = rule.update(W, Batch(phi, y, weight), memory, STEP + t)
        assert new.ok.all()
        W, memory = new.W, memory | new.memory
    return W, memory


def alone(rule, batches, k, models):
    W = torch.randn(models, 2, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)[k]
    memory = rule.memory(7, 2)
    for t, (phi, y, weight) in enumerate(batches):
        own = Batch(phi[k], y[k], None if weight is None else weight[k])
        new = rule.update(W, own, memory, STEP + t)
        W, memory = new.W, memory | new.memory
    return W, memory


@sizes
@weighted
# lambdas that are tensors: see the next test; a stack takes no rule of several memories
@cases.rules(without=("vector", "short vector", "tensor", "several memories"))
def test_a_stack_of_models_is_each_of_them_alone(rule, n, weights):
    batches = list(stack(n, 3, weights=weights))
    W, memory = side(rule, batches, 3)
    for k in range(3):
        own, kept = alone(rule, batches, k, 3)
        assert relative(W[k], own) < 1e-10
        for name, tensor in kept.items():
            assert relative(memory[name][k], tensor) < 1e-10, name


VECTOR = torch.linspace(0.5, 3.0, 7, dtype=torch.float64)
PENALISED = [
    cf.Ridge(0.5), cf.Proximal(0.3), cf.Ema(0.4, momentum=0.8), cf.Proximal("auto"), cf.Ridge(cf.per_sample(0.1)),
    cf.Proximal(VECTOR), cf.Ridge(lambdas.relative(2.0)), cf.Ema(lambdas.relative(0.5, per_feature=True)),
    cf.Proximal(VECTOR[:6]), cf.Proximal(cf.per_sample(VECTOR)),
]  # fmt: skip
FILTERS = [
    cf.Kalman(0.9, lam=0.5), cf.Kalman(0.99), cf.Kalman(0.7, lam=lambdas.relative(3.0, per_feature=True)),
    cf.Kalman(0.95, lam=cf.per_sample(0.2)), cf.Kalman(0.8, lam=VECTOR),
]  # fmt: skip


def slower(lam, share):
    """A lambda that has followed its learning rate down to this share."""
    lam = lambdas.relative() if isinstance(lam, str) else lam
    if isinstance(lam, cf.per_sample):
        return cf.per_sample(lam.lam / share)
    if isinstance(lam, lambdas.relative):
        return lambdas.relative(lam.ratio / share, lam.per_feature)
    return lam / share


def followed(rule, share):
    if isinstance(rule, cf.Kalman):
        return cf.Kalman(1 - (1 - rule.forget) * share, lam=rule.lam)
    if isinstance(rule, cf.Ema):
        return cf.Ema(slower(rule.beta, share), rule.momentum)
    return type(rule)(slower(rule.coefficient, share))


@sizes
@weighted
@pytest.mark.parametrize("follow", [False, True], ids=["constant", "follow"])
@pytest.mark.parametrize(
    "several", [PENALISED, PENALISED[1:4:2], PENALISED[:1] * 2, FILTERS], ids=lambda r: str(len(r))
)
def test_rules_side_by_side_are_each_of_them_alone(several, n, weights, follow):
    models = len(several)
    follows = [follow and k % 3 != 1 for k in range(models)]
    rate = torch.full((models,), 0.25, dtype=torch.float64)
    together = stacks.side_by_side(several, 7, True, follow=follows, rate=rate)
    batches = list(stack(n, models, weights=weights))
    W, memory = side(together, batches, models)
    for k, rule in enumerate(several):
        rule = followed(rule, 0.25) if follows[k] else rule
        if isinstance(rule, cf.Kalman):
            rule = cf.Kalman(rule.forget, lam=rule.lam, form="information")
        own, kept = alone(rule, batches, k, models)
        assert relative(W[k], own) < 1e-10, rule
        if isinstance(rule, cf.Kalman):
            for name in ("information", "prior", "noise"):
                assert relative(memory[name][k], kept[name]) < 1e-10, name


def test_filters_and_penalties_do_not_stand_side_by_side():
    with pytest.raises(ValueError, match="Kalman filters stand side by side with Kalman filters only"):
        stacks.side_by_side([cf.Proximal(1.0), cf.Kalman()], 7, True)


# ---- A factor or singular values ---------------------------------------------------------------------


@sizes
@pytest.mark.parametrize("by_feature", [False, True])
def test_ill_conditioned_models_of_a_stack_take_singular_values_and_the_others_do_not_change(
    n, by_feature, monkeypatch
):
    X = torch.stack([features(n, 7, condition=c, seed=k) for k, c in enumerate((10.0, 1e7, 10.0, 1e7))])
    E = torch.randn(4, n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lam = torch.tensor([0.5, 1e-12, 2.0, 1e-11], dtype=torch.float64)
    lam = lam[:, None] * torch.linspace(1.0, 1.5, 7, dtype=torch.float64) if by_feature else lam
    asked = []
    svd = linalg._svd
    monkeypatch.setattr(linalg, "_svd", lambda X, lam: asked.append(X.shape) or svd(X, lam))

    def solve(models):
        rows = Rows(X[models], E[models], n)
        system = rows if n <= 7 else Batch(X[models], E[models], bias=False).system(None)
        return linalg.ridge(system, lam[models])

    update, ok = solve([0, 1, 2, 3])
    assert asked == [(n, 7)] * 2
    assert ok.all()
    calm = solve([0, 2]).update
    assert len(asked) == 2
    assert relative(update[[0, 2]], calm) < 1e-13
    for k in (1, 3):
        scale = lam[k].rsqrt() if by_feature else torch.ones(7, dtype=torch.float64)
        U, S, Vh = torch.linalg.svd(X[k] * scale, full_matrices=False)
        shift = 1.0 if by_feature else float(lam[k])
        expected = ((S / (S * S + shift))[:, None] * (U.T @ E[k])).T @ Vh * scale
        assert relative(update[k], expected) < 1e-8


# ---- A penalty below rounding error ------------------------------------------------------------------


def deficient(kind, n, d):
    phi, y = problem(n, d, 2)
    if kind == "every row twice":
        return torch.cat([phi, phi]), torch.cat([y, -2 * y + 1])
    if kind == "dead columns":
        phi[:, ::3] = 0
    else:
        phi[:, 1] = phi[:, 0]
        phi[:, 3] = phi[:, 2]
    return phi, y


@pytest.mark.parametrize("beta", [1e-14, 1e-12])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("kind", ["every row twice", "dead columns", "equal columns"])
@pytest.mark.parametrize(("n", "d"), [(4, 9), (9, 9), (30, 9)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_tiny_beta_on_features_without_full_rank_gives_the_minimum_norm(beta, scale, kind, n, d, bias):
    phi, y = deficient(kind, n, d)
    phi = scale * phi
    layer = head(d, 2, cf.Ridge(beta), bias=bias)
    layer.solve(phi, y)
    X = torch.cat([phi, torch.ones(len(phi), 1)], 1) if bias else phi
    assert relative(matrix(layer), (torch.linalg.pinv(X, rtol=1e-12) @ y).T) < 1e-6
