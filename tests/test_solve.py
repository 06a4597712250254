"""The solve against the paper's formulas: every route, shape, condition number and kind of lambda."""

import pytest
import torch

import closedform as cf
from closedform.solver import linalg, reference
from closedform.solver.systems import Rows

from . import cases
from .cases import conditions, lams, shapes
from .helpers import columns, features, head, matrix, problem, relative


def spread(Phi, lam):
    return (float(torch.linalg.svdvals(Phi)[0]) ** 2 + lam) / lam


@shapes
@conditions
@lams
def test_proximal_is_eq_14(n, d, o, bias, condition, lam):
    phi, y = problem(n, d, o, condition=condition)
    layer = head(d, o, cf.Proximal(lam), bias=bias)
    W_t, Phi = matrix(layer), columns(phi, bias)
    layer.solve(phi, y)
    W = matrix(layer)
    assert int(layer.rejected) == 0
    if spread(Phi, lam) <= 1e6:
        assert relative(W, reference.proximal(Phi, y.T, W_t, lam)) < 1e-9
    best = reference.proximal_loss(reference.proximal_svd(Phi, y.T, W_t, lam), Phi, y.T, W_t, lam)
    ours = reference.proximal_loss(W, Phi, y.T, W_t, lam)
    assert ours <= best * (1 + 1e-9) + 1e-20 * (y**2).sum()


@shapes
@conditions
@lams
def test_ridge_is_eq_2(n, d, o, bias, condition, lam):
    phi, y = problem(n, d, o, condition=condition)
    layer = head(d, o, cf.Ridge(lam), bias=bias)
    layer.solve(phi, y)
    Phi = columns(phi, bias)
    if spread(Phi, lam) <= 1e6:
        assert relative(matrix(layer), reference.ridge(Phi, y.T, lam)) < 1e-9
    best = reference.loss(reference.ridge_svd(Phi, y.T, lam), Phi, y.T, lam)
    assert reference.loss(matrix(layer), Phi, y.T, lam) <= best * (1 + 1e-9) + 1e-20 * (y**2).sum()


@shapes
@pytest.mark.parametrize("rank", [1, 2, None])
def test_beta_zero_is_the_smallest_least_squares_solution(n, d, o, bias, rank):
    phi = features(n, d, rank=rank)
    y = problem(n, d, o)[1]
    layer = head(d, o, cf.Ridge(0.0), bias=bias)
    layer.solve(phi, y)
    Phi = columns(phi, bias)
    assert relative(matrix(layer), y.T @ torch.linalg.pinv(Phi)) < 1e-9


@shapes
def test_ema_averages_ridge_solutions(n, d, o, bias):
    phi, y = problem(n, d, o)
    layer = head(d, o, cf.Ema(beta=0.5, momentum=0.8), bias=bias)
    for _ in range(3):
        W_t = matrix(layer)
        layer.solve(phi, y)
        assert relative(matrix(layer), reference.ema(columns(phi, bias), y.T, W_t, 0.5, 0.8)) < 1e-9


@shapes
@pytest.mark.parametrize("lam", [1e-3, 1.0, 1e3])
def test_primal_is_dual(n, d, o, bias, lam):
    X, E = problem(n, d, o)
    rows = Rows(X, E)
    by_rows, by_moments = linalg.ridge(rows, lam), linalg.ridge(rows.moments(), lam)
    assert relative(by_rows.update, by_moments.update) < 1e-9


@shapes
@conditions
def test_moments_against_other_layers_are_those_of_their_residuals(n, d, o, bias, condition):
    phi, y = problem(n, d, o, condition=condition)
    X, D = columns(phi, bias).T, d + int(bias)
    g = torch.Generator().manual_seed(1)
    W, change = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((o, D), (3, o, D)))
    moved = Rows(X, y - X @ W.T, n, bias).moments().moved(change)
    E = y - X @ (W + change).mT
    assert relative(moved.C, X.T @ E) < 1e-11
    assert relative(moved.ee, E.square().sum(-2)) < 1e-11


def test_moments_against_an_exact_layer_are_not_negative():
    phi, y = problem(50, 4, 2)
    W = torch.linalg.lstsq(phi, y).solution.T
    y = phi @ W.T
    exact = Rows(phi, y, 50).moments().moved(W.unsqueeze(0))
    assert (exact.ee >= 0).all()
    assert (exact.ee < 1e-12 * y.square().sum(0)).all()


@shapes
def test_proximal_minimises_its_loss(n, d, o, bias):
    phi, y = problem(n, d, o)
    layer = head(d, o, cf.Proximal(0.3), bias=bias)
    W_t, Phi = matrix(layer), columns(phi, bias)
    layer.solve(phi, y)
    W = matrix(layer)
    least = reference.proximal_loss(W, Phi, y.T, W_t, 0.3)
    for seed in range(20):
        direction = torch.randn(W.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for size in (1e-3, 1e-1, 10.0):
            assert reference.proximal_loss(W + size * direction, Phi, y.T, W_t, 0.3) > least


@shapes
def test_vector_lambda_is_a_diagonal_penalty(n, d, o, bias):
    phi, y = problem(n, d, o)
    lam = torch.logspace(-2, 2, d + int(bias), dtype=torch.float64)
    layer = head(d, o, cf.Proximal(lam), bias=bias)
    W_t = matrix(layer)
    layer.solve(phi, y)
    assert relative(matrix(layer), reference.proximal(columns(phi, bias), y.T, W_t, lam)) < 1e-9


def test_vector_lambda_without_a_value_for_the_bias_uses_the_mean():
    phi, y = problem(5, 4, 2)
    lam = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    short, full = head(4, 2, cf.Proximal(lam)), head(4, 2, cf.Proximal(torch.cat([lam, torch.tensor([3.0])])))
    short.solve(phi, y)
    full.solve(phi, y)
    assert torch.equal(matrix(short), matrix(full))


rules = cases.rules(*cases.SOLVE_RULES)


@rules
@pytest.mark.parametrize("n", [2, 20])
def test_weight_two_is_the_row_twice(rule, n):
    phi, y = problem(n, 6, 2)
    weight = 1 + torch.arange(n, dtype=torch.float64) % 2
    twice = torch.cat([phi, phi[1::2]]), torch.cat([y, y[1::2]])
    weighted, doubled = head(6, 2, rule), head(6, 2, rule)
    for _ in range(3):
        weighted.solve(phi, y, weight)
        doubled.solve(*twice)
    assert relative(matrix(weighted), matrix(doubled)) < 1e-9


@rules
def test_weight_zero_is_no_row(rule):
    phi, y = problem(6, 6, 2)
    weight = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    weighted, short = head(6, 2, rule), head(6, 2, rule)
    weighted.solve(phi, y, weight)
    short.solve(phi[weight > 0], y[weight > 0])
    assert relative(matrix(weighted), matrix(short)) < 1e-9


@rules
def test_leading_dimensions_are_samples(rule):
    phi, y = problem(24, 6, 2)
    flat, grid = head(6, 2, rule), head(6, 2, rule)
    flat.solve(phi, y)
    grid.solve(phi.reshape(2, 3, 4, 6), y.reshape(2, 3, 4, 2))
    assert torch.equal(matrix(flat), matrix(grid))


def test_moments_are_taken_in_pieces(monkeypatch):
    phi, y = problem(50, 5, 2)
    weight = torch.rand(50, dtype=torch.float64) + 0.5
    whole, pieces = head(5, 2, cf.Proximal(0.5)), head(5, 2, cf.Proximal(0.5))
    whole.solve(phi, y, weight)
    monkeypatch.setattr("closedform.solver.route.CHUNK", 7)
    pieces.solve(phi, y, weight)
    assert relative(matrix(pieces), matrix(whole)) < 1e-12


@pytest.mark.parametrize("m", [33, 65, 128, 200, 1024, 1500])
@pytest.mark.parametrize("panel", [128, 512])
@pytest.mark.parametrize("column_major", [True, False])
def test_blocked_substitution_is_substitution(m, panel, column_major):
    X = features(m, m, condition=1e3, seed=m)
    L = torch.linalg.cholesky(X @ X.T + 1e-3 * torch.eye(m, dtype=torch.float64))
    L = L.T.contiguous().T if column_major else L.contiguous()
    before = L.clone()
    B = torch.randn(m, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert relative(linalg._blocked_cholesky_solve(B, L, panel), torch.cholesky_solve(B, L)) < 1e-10
    assert torch.equal(L, before)


@pytest.mark.parametrize("n", [4, 9, 50])
@pytest.mark.parametrize("d", [6, 7])
def test_strips_are_the_lower_triangle_of_the_gram_matrix(n, d):
    X = features(n, d, seed=n)
    assert torch.allclose(linalg._gram_strips(X).tril(), (X @ X.T).tril(), atol=1e-15)


@pytest.mark.parametrize("n", [3, 6])
@pytest.mark.parametrize("lam", [0.7, torch.tensor([0.1, 1.0, 2.0, 5.0], dtype=torch.float64), 1e-12, 0.0])
def test_solve_is_differentiable_in_the_targets(n, lam):
    X, E = problem(n, 4, 2)
    E.requires_grad_()
    assert torch.autograd.gradcheck(lambda E: linalg.ridge(Rows(X, E), lam).update, E)
    assert torch.autograd.gradcheck(lambda E: linalg.ridge(Rows(X, E).moments(), lam).update, E)


@pytest.mark.parametrize("layers", [1, 3, 9])
def test_outputs_of_several_layers_are_those_of_each(layers):
    from closedform.solver.batch import outputs

    X, W = torch.randn(20, 6, dtype=torch.float64), torch.randn(layers, 2, 6, dtype=torch.float64)
    together = outputs(X, W)
    assert together.shape == (layers, 20, 2)
    for one, alone in zip(together, W):
        assert torch.allclose(one, X @ alone.T, rtol=1e-13, atol=1e-13)
        assert torch.allclose(outputs(X, alone), X @ alone.T, rtol=1e-13, atol=1e-13)
