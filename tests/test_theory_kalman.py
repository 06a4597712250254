"""Appendix B: the proximal layer as a filter that forgets its covariance, and what that costs."""

import pytest
import torch

import closedform as cf
from closedform.theory import kalman

from .helpers import relative

MODEL = kalman.StateSpaceModel(noise=0.25, step=0.01, prior=1.0)
T, N, D, O = 60, 4, 6, 400  # noqa: E741


def walk(seed=0):
    g = torch.Generator().manual_seed(seed)
    return MODEL.simulate(torch.randn(T, N, D, generator=g, dtype=torch.float64), O, g)


def follow(rule, batches):
    """The head's weights after each batch."""
    head = cf.ClosedFormLinear(D, batches.Y.shape[2], False, rule=rule, dtype=torch.float64)
    path = []
    for phi, Y in zip(batches.phi, batches.Y):
        head.solve(phi, Y)
        path.append(head.weight.clone())
    return head, torch.stack(path)


def full_rule():
    return cf.Kalman(forget=1.0, drift=MODEL.q, lam=MODEL.noise / MODEL.prior)


def test_lambda_is_the_ratio_of_the_variances():
    """The mode of the collapsed belief, found by gradient alone, is the proximal update with this lambda."""
    assert kalman.lam_of(0.25, 0.01) == MODEL.lam == 25.0
    batches = walk()
    W = torch.zeros(O, D, dtype=torch.float64, requires_grad=True)
    zero = torch.zeros((), dtype=torch.float64)
    noise, step = (torch.distributions.Normal(zero, zero + v**0.5) for v in (MODEL.noise, MODEL.step))
    at_zero = -noise.log_prob(batches.Y[0] - batches.phi[0] @ W.T).sum() - step.log_prob(W).sum()
    _, path = follow(cf.Proximal(MODEL.lam), kalman.Walk(*(part[:1] for part in batches)))
    gradient = torch.autograd.grad(at_zero, W)[0]
    at_head = path[0].clone().requires_grad_()
    at_mode = -noise.log_prob(batches.Y[0] - batches.phi[0] @ at_head.T).sum() - step.log_prob(at_head).sum()
    assert torch.autograd.grad(at_mode, at_head)[0].norm() < 1e-9 * gradient.norm()
    with pytest.raises(ValueError, match="variances must be positive"):
        kalman.lam_of(1.0, 0.0)
    for bad in ((-1.0, 0.1, 1.0), (1.0, 0.0, 1.0), (1.0, 0.1, -1.0)):
        with pytest.raises(ValueError, match="variances must be positive"):
            kalman.StateSpaceModel(*bad)


@pytest.mark.parametrize("lam", [None, MODEL.lam, 8.0])
def test_the_recursions_predict_the_error_of_the_heads(lam):
    """Four hundred outputs are as many repetitions: at every step the mean squared error is the trace of the prediction."""
    batches = walk()
    _, path = follow(full_rule() if lam is None else cf.Proximal(lam), batches)
    error = (path - batches.W).square().sum(2).mean(1)
    P = MODEL.predict(batches.phi, lam)
    predicted = P.diagonal(dim1=1, dim2=2).sum(1)
    spread = (2 * P.square().sum((1, 2)) / O).sqrt()  # of the mean of O quadratic forms
    z = (error - predicted) / spread
    assert z.abs().max() < 5
    assert float((error / predicted).mean()) == pytest.approx(1, abs=0.03)


def test_the_full_filter_beats_the_collapsed_one():
    phi = walk().phi
    trace = {lam: MODEL.predict(phi, lam).diagonal(dim1=1, dim2=2).sum(1)[20:].mean() for lam in (None, 2.0, 8.0, 25.0)}
    assert trace[None] < trace[8.0] < trace[25.0]  # the paper's lambda is not the best one
    assert trace[8.0] < trace[2.0]
    assert trace[25.0] > 1.4 * trace[None]


def test_the_riccati_gain_is_the_best():
    """Joseph's form at the filter's gain is the textbook posterior, and any other gain is worse."""
    X = walk().phi[0]
    P = torch.linalg.inv(torch.eye(D, dtype=torch.float64) + X.T @ X)
    prior = torch.eye(D, dtype=torch.float64)
    K = kalman.gain(prior, X)
    assert relative(kalman.absorb(prior, X, K), P) < 1e-12
    worse = kalman.absorb(prior, X, K + 0.1 * torch.ones_like(K))
    assert torch.linalg.eigvalsh(worse - P)[0] > -1e-12
    assert (worse - P).trace() > 1e-2


def test_intervals_cover_as_they_say():
    """New targets from the layer as it is at the end of every step; the collapsed belief is too sure of itself."""
    batches = walk(1)
    head, path = follow(full_rule(), batches)
    _, collapsed = follow(cf.Proximal(MODEL.lam), batches)
    full = MODEL.predict(batches.phi)
    g = torch.Generator().manual_seed(5)
    levels = torch.tensor([0.5, 0.8, 0.95])
    errors, variances = {"full": [], "collapsed": []}, {"full": [], "collapsed": []}
    for t in range(20, T):
        X = torch.randn(3, D, generator=g, dtype=torch.float64)
        y = X @ batches.W[t].T + MODEL.noise**0.5 * torch.randn(3, O, generator=g, dtype=torch.float64)
        eye = torch.eye(D, dtype=torch.float64)
        belief = MODEL.noise * torch.linalg.inv(MODEL.lam * eye + batches.phi[t].T @ batches.phi[t])
        for name, W, P in (("full", path[t], full[t]), ("collapsed", collapsed[t], belief)):
            errors[name].append(y - X @ W.T)
            variances[name].append(kalman.spread(X, P, MODEL.noise)[:, None].expand_as(y))
    covered = {k: kalman.coverage(torch.stack(errors[k]), torch.stack(variances[k]), levels) for k in errors}
    assert (covered["full"] - levels).abs().max() < 0.01
    assert (covered["collapsed"] < levels - 0.03).all()
    # the head's own variance, with a noise level that it had to estimate
    own, known = head.variance(X).mean(1), kalman.spread(X, full[-1], MODEL.noise)
    assert relative(own, known) < 0.15
