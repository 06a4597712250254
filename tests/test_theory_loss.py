"""Theorem 5.1 and figure 1: the loss with a solved layer as a function of the features, and its critical points."""

import pytest
import torch

import closedform as cf
from closedform.theory import critical_points as cp
from closedform.theory.landscape import Landscape

from .helpers import features, matrix, problem, relative

BETAS = pytest.mark.parametrize("beta", [0.0, 0.3])
SHAPES = pytest.mark.parametrize(("n", "d", "o"), [(12, 4, 1), (12, 4, 3), (6, 6, 2), (5, 9, 2), (7, 1, 3)])


def numerical(function, at, step=1e-6):
    """Central differences."""
    result = torch.zeros_like(at)
    for i in range(at.numel()):
        shift = torch.zeros_like(at).flatten()
        shift[i] = step
        shift = shift.view_as(at)
        result.view(-1)[i] = (function(at + shift) - function(at - shift)) / (2 * step)
    return result


@SHAPES
@BETAS
def test_the_functional_gradient(n, d, o, beta):
    """Eq. 38, 42 and 43 against finite differences; for beta = 0 features of full rank, where the loss is smooth."""
    phi, Y = problem(n, d, o)
    expected = numerical(lambda p: cp.loss(p, Y, beta), phi)
    scale = Y.norm() ** 2
    assert (cp.gradient(phi, Y, beta) - expected).norm() / scale < 1e-7
    assert (cp.gradient_by_parts(phi, Y, beta) - cp.gradient(phi, Y, beta)).norm() / scale < 1e-10
    if n > d:
        assert expected.norm() / scale > 1e-2  # there was a gradient to find


def test_beta_zero_is_the_limit_and_lower_rank_is_allowed():
    phi, Y = features(12, 5, rank=3), problem(12, 5, 2)[1]
    assert relative(cp.gradient_by_parts(phi, Y), cp.gradient(phi, Y)) < 1e-10
    assert relative(cp.gradient(phi, Y, 1e-9), cp.gradient(phi, Y)) < 1e-4


@SHAPES
@BETAS
def test_the_layer_is_the_heads(n, d, o, beta):
    phi, Y = problem(n, d, o)
    head = cf.ClosedFormLinear(d, o, False, rule=cf.Ridge(beta), dtype=torch.float64)
    head.solve(phi, Y)
    assert relative(cp.best_layer(phi, Y, beta), matrix(head)) < 1e-8
    objective = (Y - head(phi)).square().sum() + beta * head.weight.square().sum()
    assert abs(cp.loss(phi, Y, beta) - objective) < 1e-10 * Y.square().sum()


@SHAPES
def test_the_split(n, d, o):
    """Eq. 39 and 40: the attainable part is what the best layer predicts, and the rest is orthogonal to all features."""
    phi, Y = problem(n, d, o)
    star, perp = parts = cp.split(phi, Y)
    assert relative(star + perp, Y) < 1e-12
    assert relative(star, phi @ cp.best_layer(phi, Y).T) < 1e-8
    assert (phi.T @ perp).norm() < 1e-10 * Y.norm()
    assert parts.share == pytest.approx(1 - float(cp.loss(phi, Y) / Y.square().sum()), abs=1e-9)
    if n > d + 1:
        assert 0.01 < parts.share < 0.9999


def test_the_split_knows_the_rank():
    phi = features(10, 6, rank=2)
    Y = torch.eye(10, dtype=torch.float64)
    assert float(cp.split(phi, Y).attainable.square().sum()) == pytest.approx(2)
    assert cp.split(torch.zeros(10, 6, dtype=torch.float64), Y).share == 0


@BETAS
@pytest.mark.parametrize(("n", "d", "o"), [(6, 2, 1), (6, 3, 2), (3, 2, 3), (4, 9, 2)])
def test_critical_points_that_are_no_minima(beta, n, d, o):
    """Zero features and features orthogonal to the targets: the gradient is zero, and nothing is higher."""
    Y = problem(n, d, o)[1]
    for phi in (cp.orthogonal(Y, d), torch.zeros(n, d, dtype=torch.float64)):
        assert (phi.T @ Y).norm() < 1e-12 * Y.norm()
        assert cp.gradient(phi, Y, beta).norm() < 1e-12
        assert float(cp.loss(phi, Y, beta)) == pytest.approx(float(Y.square().sum()))
        for seed in range(5):
            other = phi + 0.3 * features(n, d, condition=2.0, seed=seed)
            assert cp.loss(other, Y, beta) < cp.loss(phi, Y, beta) - 1e-9


def test_orthogonal_features_use_the_room_there_is():
    Y = problem(7, 3, 2)[1]
    assert torch.linalg.matrix_rank(cp.orthogonal(Y, 3)) == 3
    assert torch.linalg.matrix_rank(cp.orthogonal(Y, 9)) == 5
    assert not cp.orthogonal(problem(3, 3, 3)[1], 2).any()


@BETAS
@pytest.mark.parametrize(("n", "d", "o"), [(6, 2, 1), (6, 3, 2), (3, 2, 3), (9, 1, 4)])
def test_a_line_along_which_the_loss_is_not_convex(beta, n, d, o):
    Y = problem(n, d, o)[1]
    start, end = cp.segment(Y, d)
    middle = (start + end) / 2
    ends = (cp.loss(start, Y, beta) + cp.loss(end, Y, beta)) / 2
    assert cp.loss(middle, Y, beta) > ends + 0.1 * torch.linalg.svdvals(Y)[0] ** 2
    if n - torch.linalg.matrix_rank(Y) >= d:  # there is room: smooth along the line even for beta = 0
        ranks = [torch.linalg.matrix_rank(start + s * (end - start)) for s in torch.linspace(0, 1, 11)]
        assert set(map(int, ranks)) == {d}


def test_no_line_for_no_targets():
    with pytest.raises(ValueError, match="Y = 0"):
        cp.segment(torch.zeros(4, 2), 2)


def test_saddle_points():
    """For beta = 0: critical, and on both sides higher and lower values."""
    Y = problem(9, 3, 2)[1]
    phi = cp.saddle(Y, d=3, held=1)
    here = cp.loss(phi, Y)
    assert cp.gradient(phi, Y).norm() < 1e-12
    U = torch.linalg.svd(Y)[0]
    toward, away = phi.clone(), phi.clone()
    toward[:, 1] += 0.1 * U[:, 1]  # a free feature turns to the direction that is missing
    away[:, 0] += 0.1 * U[:, 5]  # the feature that holds the first direction turns away
    assert cp.loss(toward, Y) < here - 1e-4 * Y.square().sum()
    assert cp.loss(away, Y) > here + 1e-4 * Y.square().sum()
    with pytest.raises(ValueError, match="held"):
        cp.saddle(Y, d=3, held=2)


@pytest.mark.parametrize(("n", "d"), [(4, 3), (3, 2), (9, 3)])
def test_a_saddle_needs_a_gap_in_the_spectrum(n, d):
    """Where the singular values of Y coincide, the point may be a minimum of what can be reached from it by turning."""
    U, _, V = torch.linalg.svd(problem(n, 2, 2)[1], full_matrices=False)
    with pytest.raises(ValueError, match="singular values 1 and 2 of Y are equal"):
        cp.saddle(U @ V, d, 1)
    Y = U * torch.tensor([1.01, 1.0], dtype=torch.float64) @ V
    phi = cp.saddle(Y, d, 1)
    g = torch.Generator().manual_seed(0)
    around = [phi + 1e-2 * torch.randn(n, d, generator=g, dtype=torch.float64) for _ in range(300)]
    rises = [float(cp.loss(p, Y) - cp.loss(phi, Y)) for p in around]
    turned = phi.clone()
    turned[:, 0] += 0.1 * U[:, 1]  # towards the direction of the smaller value
    assert min(rises) < -1e-6
    assert max(*rises, float(cp.loss(turned, Y) - cp.loss(phi, Y))) > 1e-6


@pytest.mark.parametrize("apart", [1e-8, 1e-13, 1e-14, 3e-15, 1e-16])
def test_one_rank_for_loss_gradient_and_split(apart):
    """Two features that are nearly one: whatever the rank is taken for, everything takes it for the same."""
    phi, Y = problem(8, 3, 2)
    phi = torch.cat([phi, phi[:, :1] + apart * problem(8, 1, 1, seed=5)[0]], 1)
    parts = cp.split(phi, Y)
    assert float(cp.loss(phi, Y)) == pytest.approx(float(parts.unattainable.square().sum()), rel=1e-10)
    assert relative(cp.gradient(phi, Y), cp.gradient_by_parts(phi, Y)) < 1e-10


def test_everything_is_float64():
    phi, Y = problem(7, 3, 2)
    single = phi.float(), Y.float()
    exact = single[0].double(), single[1].double()
    for function in (cp.loss, cp.gradient, cp.gradient_by_parts, cp.best_layer, lambda p, y: cp.split(p, y).attainable):
        value = function(*single)
        assert value.dtype == torch.float64
        assert torch.equal(value, function(*exact))
        assert torch.equal(function(single[0], exact[1]), value)  # mixed
    assert cp.orthogonal(single[1], 3).dtype == cp.saddle(single[1], 3, 1).dtype == torch.float64
    assert cp.loss(torch.ones(3, 2, dtype=torch.long), torch.ones(3, 1, dtype=torch.long)) < 1e-28


def test_bad_features_targets_and_betas():
    phi, Y = problem(7, 3, 2)
    for function in (cp.loss, cp.gradient, cp.gradient_by_parts, cp.best_layer):
        for beta in (-0.5, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="beta must be zero or positive and finite"):
                function(phi, Y, beta)
        for bad in ((phi, Y[:6]), (phi, Y[:, 0]), (phi[0], Y)):
            with pytest.raises(ValueError, match=r"phi must be \(n, d\) and Y \(n, o\)"):
                function(*bad)
    for function in (cp.orthogonal, cp.segment):
        with pytest.raises(ValueError, match=r"Y must be \(n, o\)"):
            function(Y[:, 0], 2)
    assert cp.split(phi[:, :0], Y).share == 0


# ---- Figure 1 ------------------------------------------------------------------------------------

X, TARGETS = torch.tensor([-0.8, 0.6, 1.4]), torch.tensor([0.5, 0.9, 1.1])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize("theta", [-1.3, 0.7])
def test_the_curve_is_the_valley(activation, beta, theta):
    picture = Landscape(X, TARGETS, activation, beta)
    W = float(picture.best(theta))
    around = torch.linspace(W - 1, W + 1, 2001, dtype=torch.float64)
    values = picture.loss(around, torch.full_like(around, theta))
    assert int(values.argmin()) == 1000
    dW, dtheta = picture.gradient(W, theta)
    assert abs(float(dW)) < 1e-12
    slope = (picture.curve_loss(theta + 1e-6) - picture.curve_loss(theta - 1e-6)) / 2e-6
    assert float(dtheta) == pytest.approx(float(slope), abs=1e-8)  # the envelope theorem
    off = picture.gradient(W + 0.4, theta)
    for part, (w, t) in zip(off, ((1e-6, 0.0), (0.0, 1e-6))):
        difference = picture.loss(W + 0.4 + w, theta + t) - picture.loss(W + 0.4 - w, theta - t)
        assert float(part) == pytest.approx(float(difference) / 2e-6, abs=1e-7)


def test_relu_has_nothing_to_descend_along_the_curve():
    """Positive homogeneity: the paper's own picture is flat along its blue curve on either side of zero."""
    picture = Landscape(X, TARGETS)
    right, left = picture.curve_loss(torch.tensor([0.1, 1.0, 7.0])), picture.curve_loss(torch.tensor([-0.1, -5.0]))
    assert right.std() < 1e-12
    assert left.std() < 1e-12
    assert abs(float(right[0] - left[0])) > 0.1
    assert float(picture.curve_loss(0.0)) == pytest.approx(float(TARGETS.double().square().sum()))
    assert picture.descend_curve(0.5, 0.1, 10).theta.std() < 1e-12
    fading = Landscape(X, TARGETS, beta=0.2).curve_loss(torch.tensor([1.0, 2.0, 4.0, 8.0]))
    assert (fading.diff() < 0).all()  # the regularised one falls without end


def test_the_two_descents():
    picture = Landscape(X, TARGETS, "tanh")
    both, curve = picture.descend_both(-1.0, 0.5, 0.05, 40), picture.descend_curve(0.5, 0.05, 40)
    assert both.loss.shape == curve.loss.shape == (41,)
    assert both.theta[0] == curve.theta[0] == 0.5
    assert (both.loss.diff() < 1e-12).all()
    assert (curve.loss.diff() < 1e-12).all()
    assert curve.loss[0] < both.loss[0]
    assert curve.loss[-1] < curve.loss[0] - 1e-3
    assert relative(curve.W, picture.best(curve.theta)) < 1e-12


def test_bad_landscapes():
    for arguments in ((X, TARGETS[:2]), (X, TARGETS, "sine"), (X, TARGETS, "relu", -1.0)):
        with pytest.raises(ValueError, match="must be"):
            Landscape(*arguments)
