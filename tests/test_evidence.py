"""How strongly labels draw the weights of the default layer to zero."""

import math

import pytest
import torch
from torch.nn import functional as F

import closedform as cf
from closedform.solver import evidence
from closedform.solver.batch import Batch
from closedform.solver.systems import Rows

from .helpers import matrix, relative

D = 30


def noisy(rows, classes, signal=1.0, seed=0, scale=1.0):
    """Labels that features say little of."""
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(classes, D, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    phi = torch.randn(rows, D, generator=g, dtype=torch.float64)
    y = torch.multinomial((signal / D**0.5 * phi @ truth.T).softmax(1), 1, generator=g).flatten()
    return scale * phi, y


def trained(loss, phi, y, epochs, size=50, rule=None):
    """A default layer that has seen the same rows several times."""
    outputs = 1 if isinstance(loss, cf.Logistic) else 1 + int(y.max())
    head = cf.ClosedFormLinear(phi.shape[1], outputs, loss=loss, rule=rule, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(phi), generator=g).split(size):
            head.solve(phi[rows], y[rows, None].double() if outputs == 1 else y[rows])
    return head


def cost(head, phi, y):
    z = head(phi).detach()
    return float(F.binary_cross_entropy_with_logits(z[:, 0], y.double()) if z.shape[1] == 1 else F.cross_entropy(z, y))


def without(monkeypatch):
    monkeypatch.setattr(evidence, "LARGEST", 0.0)


@pytest.mark.parametrize(
    ("loss", "classes"), [(cf.CrossEntropy(), 2), (cf.CrossEntropy(), 5), (cf.Logistic(), 2)], ids=str
)
@pytest.mark.parametrize("signal", [0.0, 1.0])
def test_new_rows_cost_less(loss, classes, signal, monkeypatch):
    """Few rows that come again and again, of which a layer can learn the noise by heart."""
    phi, y = noisy(400, classes, signal)
    new = noisy(20_000, classes, signal, seed=1)
    drawn = trained(loss, phi, y, epochs=20)
    without(monkeypatch)
    free = trained(loss, phi, y, epochs=20)
    assert cost(drawn, phi, y) > cost(free, phi, y)
    excess = cost(free, *new) - cost(drawn, *new)
    assert excess > 0.05 * D * (classes - 1) / (2 * len(phi))  # of what a layer without a penalty costs too much
    assert float(drawn.weight.norm()) < 0.95 * float(free.weight.norm())


def test_labels_that_features_tell_are_hardly_drawn(monkeypatch):
    phi = torch.randn(2000, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = (phi[:, 0] > 0).long()
    drawn = trained(cf.CrossEntropy(), phi, y, epochs=5)
    without(monkeypatch)
    free = trained(cf.CrossEntropy(), phi, y, epochs=5)
    assert cost(drawn, phi, y) < 1.05 * cost(free, phi, y)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_scale_of_the_features_changes_nothing(scale):
    phi, y = noisy(300, 3)
    plain, scaled = (trained(cf.CrossEntropy(), s * phi, y, epochs=2) for s in (1.0, scale))
    assert relative(scale * scaled.weight, plain.weight) < 1e-6
    assert relative(scaled.bias, plain.bias) < 1e-6


@pytest.mark.parametrize("weight", [1e-3, 1e3])
def test_the_scale_of_sample_weights_changes_nothing(weight):
    phi, y = noisy(300, 3)
    heads = [cf.ClosedFormLinear(D, 3, loss=cf.CrossEntropy(), dtype=torch.float64) for _ in range(2)]
    for rows in torch.arange(300).repeat(3).split(50):
        heads[0].solve(phi[rows], y[rows])
        heads[1].solve(phi[rows], y[rows], torch.full((50,), weight, dtype=torch.float64))
    assert relative(matrix(heads[1]), matrix(heads[0])) < 1e-6


def test_two_classes_are_one_logit():
    phi, y = noisy(300, 2)
    classes, logit = (trained(loss, phi, y, epochs=10) for loss in (cf.CrossEntropy(), cf.Logistic()))
    difference = classes.weight[1] - classes.weight[0]
    assert relative(difference, logit.weight[0]) < 0.02


@pytest.mark.parametrize(
    ("loss", "classes", "rule"),
    [
        (cf.CrossEntropy(), 9, None),  # steps may be longer than those of the bound
        (cf.CrossEntropy(inner_steps=2), 3, None),
        (cf.CrossEntropy(weight=[1.0, 2.0, 3.0]), 3, None),
        (cf.CrossEntropy(), 3, cf.Auto(handicap=0.0)),
    ],
    ids=["many classes", "inner steps", "class weights", "no handicap"],
)
def test_where_it_has_no_say(loss, classes, rule, monkeypatch):
    phi, y = noisy(300, classes)
    one = trained(loss, phi, y, epochs=2, rule=rule)
    without(monkeypatch)
    assert torch.equal(matrix(one), matrix(trained(loss, phi, y, epochs=2, rule=rule)))


def test_its_share_is_a_mean_of_errors():
    errors, guess, discount = [0.9, 0.5, 0.4, 0.2], math.log(3), 0.9
    total = torch.zeros(1, dtype=torch.float64)
    for t, error in enumerate(errors):  # as `Auto` adds them up: the first step's does not count
        total = discount * total + error if t else total
        step = torch.tensor(t + 1)
        weights = [discount**k for k in range(t)][::-1]
        mean = sum(w * e for w, e in zip(weights, errors[1 : t + 1])) / sum(weights) if t else guess
        share = evidence.share(total, discount, step, guess)
        assert float(share) == pytest.approx(mean / guess)
    bad = torch.tensor([math.inf, math.nan, 100.0], dtype=torch.float64)
    assert evidence.share(bad, discount, torch.tensor(9), guess).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("bias", [True, False])
def test_measurements_are_rows_of_single_features(bias):
    """Rows `sqrt(h) e_i` with the target zero, beside those of the batch."""
    g = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(40, columns, generator=g, dtype=torch.float64) for columns in (6, 3))
    W = torch.randn(2, 3, 6, generator=g, dtype=torch.float64)
    E = Y - X @ W.mT
    units = torch.full((6,), 40.0, dtype=torch.float64)
    h = evidence.precision(W, bias, torch.tensor([3.0, 0.03], dtype=torch.float64), units)
    system = evidence.measured(Rows(X, E, 40).moments(), W, h)
    for k in range(2):
        single = torch.diag(h[k].sqrt())
        rows, residuals = torch.cat([X, single]), torch.cat([E[k], -single @ W[k].T])
        assert relative(system.C[k], rows.T @ residuals) < 1e-12
        assert relative(system.ee[k], residuals.square().sum(0)) < 1e-12
    features = 6 - int(bias)
    assert (h[:, features:] == 0).all()
    assert (h[:, :features] > 0).all()
    norm = W[0, :, :features].square().sum()
    assert float(h[0, 0]) == pytest.approx(float(features * 3 / (2 * norm)))


def test_a_layer_of_zeros_is_drawn_by_no_more_than_the_features_say():
    h = evidence.precision(torch.zeros(1, 2, 4), True, torch.ones(1), torch.full((4,), 7.0))
    assert h.tolist() == [[70.0, 70.0, 70.0, 0.0]]


@pytest.mark.parametrize("loss", [cf.CrossEntropy(), cf.Logistic()], ids=str)
def test_the_guess_is_the_loss_of_a_layer_of_zeros(loss):
    g = torch.Generator().manual_seed(0)
    phi, y = torch.randn(50, 4, generator=g), torch.randint(3, (50,), generator=g)
    targets = F.one_hot(y, 3).float()
    batch = Batch(phi, loss.targets(y if loss.labels else targets, (50, 3)), loss=loss)
    error = batch.errors(torch.zeros(1, 3, 5, dtype=torch.float64), batch.system(torch.zeros(1, 3, 5).double()))
    assert float(error) == pytest.approx(batch.guess)
