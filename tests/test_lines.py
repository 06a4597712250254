"""How far a filter of `Auto` goes along its step, against the minimum found slowly."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import closedform as cf
from closedform.solver import lines, losses
from closedform.solver.batch import Batch, extend

from .helpers import matrix, relative

K = 4


def steps_of_the_bound(patch):
    """A default that keeps them among any number of classes, and is not drawn to zero for that."""
    patch.setattr(cf.CrossEntropy, "slack", lambda loss, outputs: 1.0)
    patch.setattr(cf.CrossEntropy, "guess", lambda loss, outputs: 0.0)


def step(n, d, o, *, seed=0, scale=1.0, shrink=1.0, size=1.0, loss=None, weighted=False, dtype=torch.float64):
    """A batch of labels, several layers, and the step of each to the minimum of the batch's bound and of a past of its own:
    the Gram matrices of other rows, with `shrink` times their weight."""
    loss = cf.CrossEntropy() if loss is None else loss
    g = torch.Generator().manual_seed(seed)
    phi = scale * torch.randn(n, d, generator=g, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, o, (n,), generator=g)
    labels[0] = 0  # so that one row counts, whatever is ignored
    y = loss.targets(labels, (n, o)).to(dtype)
    weight = 0.5 + torch.rand(n, generator=g, dtype=torch.float64) if weighted else None
    W = size * torch.randn(K, o, d + 1, generator=g, dtype=torch.float64)
    batch = Batch(phi, y, bias=True, loss=loss, weight=weight)
    X = extend(phi.double(), True)[:, : d + 1]
    counts = torch.ones(n, dtype=torch.float64) if weight is None else weight
    mass = loss.mass(y)
    counts = counts if mass is None else counts * mass
    own = X.mT * counts @ X
    other = scale * torch.randn(K, 3 * d, d + 1, generator=g, dtype=torch.float64)
    past = shrink * (other.mT @ other + 0.1 * torch.eye(d + 1, dtype=torch.float64))
    rows = torch.ones(n, dtype=torch.float64) if weight is None else weight
    slope = torch.stack([(loss.gradient(X @ w.T, y.double()) * rows[:, None]).mT @ X for w in W])
    dW = -torch.linalg.solve(past + own, slope.mT).mT / loss.curvature
    return batch, W, dW, X, y.double(), rows, (own, past)


def measured(batch, W, dW, X, y, rows, matrices, k):
    """Of layer k the loss along its step, the past's share in the curvature of the bound, and rho."""
    own, past = (float(batch.loss.curvature * (dW[k] @ A * dW[k]).sum()) for A in (matrices[0], matrices[1][k]))

    def along(t):
        z = X @ (W[k] + t * dW[k]).T
        return float((batch.loss.value(z, y) * rows).sum())

    def slope(t):
        z = X @ (W[k] + t * dW[k]).T
        return float(((batch.loss.gradient(z, y) * (X @ dW[k].T)).sum(-1) * rows).sum())

    rho = (slope(1.0) - slope(0.0)) / own
    return along, past, min(1.0, max(rho, 1 / float(batch.slack)))


def lengths(batch, W, dW):
    system = batch.systems(W[0], W)
    return batch.length(W, dW, system, system.moments().C)


LOSSES = {
    "plain": cf.CrossEntropy(),
    "smoothed": cf.CrossEntropy(label_smoothing=0.1),
    "ignored": cf.CrossEntropy(ignore_index=2),
    "class weights": cf.CrossEntropy(weight=torch.linspace(0.5, 2.0, 20)),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
@given(
    seed=st.integers(0, 10_000),
    n=st.sampled_from([1, 9, 60, 200]),
    d=st.sampled_from([1, 5, 30]),
    scale=st.sampled_from([1e-2, 1.0, 10.0]),
    shrink=st.sampled_from([1e-6, 0.1, 1.0, 100.0]),
)
def test_a_step_ends_near_the_minimum_of_its_line(name, weighted, seed, n, d, scale, shrink):
    batch, W, dW, *rest = step(n, d, 20, seed=seed, scale=scale, shrink=shrink, loss=LOSSES[name], weighted=weighted)
    t = lengths(batch, W, dW)
    assert ((t >= 1) & (t <= batch.slack * (1 + 1e-9))).all()
    for k in range(K):
        along, past, rho = measured(batch, W, dW, *rest, k)
        whole = lambda s: along(s) + rho * past * s**2 / 2  # noqa: B023, E731
        first, last = whole(1.0), whole(float(t[k]))
        tiny = 1e-9 * (1 + abs(first))
        assert last <= first + tiny  # never worse than the step of the bound
        best = minimize_scalar(whole, bounds=(1.0, max(1 / rho, 1 + 1e-9)), method="bounded", options={"xatol": 1e-10})
        assert first - last >= 0.8 * (first - best.fun) - tiny  # three chords find most of what there is


def test_a_step_among_many_equal_classes_is_many_times_that_of_the_bound():
    o, n, d = 80, 4000, 5
    g = torch.Generator().manual_seed(0)
    phi = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = (phi @ torch.randn(d, o, generator=g, dtype=torch.float64)).argmax(1)
    loss = cf.CrossEntropy()
    batch = Batch(phi, loss.targets(y, (n, o)).double(), bias=False, loss=loss)
    W = torch.zeros(1, o, d, dtype=torch.float64)
    probability = torch.full((n, o), 1 / o, dtype=torch.float64)
    dW = torch.linalg.solve(phi.T @ phi, phi.T @ (batch.y - probability) / loss.curvature).T[None]
    assert batch.slack == o / losses.CLASSES_A_STEP
    assert 0.9 * batch.slack < float(lengths(batch, W, dW)) <= batch.slack * (1 + 1e-9)


@pytest.mark.parametrize("n", [30, 60])
@pytest.mark.parametrize("shrink", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("size", [0.0, 0.3])
def test_no_step_is_worse_than_that_of_the_bound_among_thousands_of_classes(n, shrink, size):
    """There the slope bends before the bound's own length is used up."""
    batch, W, dW, *rest = step(n, 20, 5000, shrink=shrink, size=size)
    t = lengths(batch, W, dW)
    assert float(t.max()) <= lines.LONGEST * (1 + 1e-9)
    for k in range(K):
        along, past, rho = measured(batch, W, dW, *rest, k)
        assert along(float(t[k])) + rho * past * float(t[k]) ** 2 / 2 <= along(1.0) + rho * past / 2 + 1e-9


def test_a_loss_that_is_its_own_bound_keeps_its_step_whatever_its_slack():
    """Nowhere to look between 1 and 1, and no zero over zero."""

    class Quadratic(cf.losses.Loss):
        curvature = 1.0

        def value(self, z, y):
            return (z - y).square() / 2

        def gradient(self, z, y):
            return z - y

        def slack(self, outputs):
            return math.inf

    plain = cf.ClosedFormLinear(5, 3, loss=Quadratic(), dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        phi, y = (torch.randn(30, columns, generator=g, dtype=torch.float64) for columns in (5, 3))
        plain.solve(phi, y)
    assert (int(plain.step), int(plain.rejected)) == (20, 0)


def test_soft_labels_that_add_up_to_a_little_more_are_taken():
    """Between two classes that have all of the weight the loss is its bound, and these rows are steeper than it."""
    head = cf.ClosedFormLinear(5, 30, loss=cf.CrossEntropy(), dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    head.solve(torch.randn(30, 5, generator=g, dtype=torch.float64), torch.zeros(30, dtype=torch.long))
    W = torch.zeros(30, 6, dtype=torch.float64)
    W[2:, 5] = -60.0
    head.set_weights_(W)
    for _ in range(20):
        share = 0.5 + 0.1 * (torch.rand(30, generator=g, dtype=torch.float64) - 0.5)
        y = torch.zeros(30, 30, dtype=torch.float64)
        y[:, 0], y[:, 1] = 1.009 * share, 1.009 * (1 - share)
        head.solve(torch.randn(30, 5, generator=g, dtype=torch.float64), y)
    assert int(head.rejected) == 0


def test_few_classes_and_other_losses_keep_the_step_of_the_bound():
    assert [cf.CrossEntropy().slack(classes) for classes in (1, 2, losses.CLASSES_A_STEP)] == [1.0, 1.0, 1.0]
    assert cf.CrossEntropy().slack(10 * losses.CLASSES_A_STEP) == 10.0
    for loss in (cf.Squared(), cf.Huber(), cf.Logistic(), cf.OneHotSquared(), cf.GeneralizedSquared()):
        assert loss.slack(100) == 1.0


def test_a_batch_with_few_rows_has_the_steps_of_the_bound(monkeypatch):
    """It cannot say what the loss is like: longer steps on such batches grow the layer without end."""
    loss = cf.CrossEntropy()
    whole = loss.slack(100)
    assert whole > 5
    assert [lines.slack(loss, 100, rows, 64) for rows in (1, 64, 96, 5000)] == [1.0, 1.0, whole, whole]
    assert lines.slack(loss, 100, 80, 64) == pytest.approx(whole**0.5)
    assert lines.slack(loss, 10_000, 80, 64) == pytest.approx(lines.LONGEST**0.5)

    def learned(n):
        head = cf.ClosedFormLinear(40, 50, loss=loss, dtype=torch.float64)
        for seed in range(30):
            g = torch.Generator().manual_seed(seed)
            head.solve(torch.randn(n, 40, generator=g, dtype=torch.float64), torch.randint(50, (n,), generator=g))
        return matrix(head)

    few, many = learned(41), learned(60)
    g = torch.Generator().manual_seed(0)
    phi, y = torch.randn(200, 40, generator=g, dtype=torch.float64), torch.randint(50, (200,), generator=g)
    counts = torch.arange(200) < 45
    alone, ignored, weighted = (cf.ClosedFormLinear(40, 50, loss=loss, dtype=torch.float64) for _ in range(3))
    for _ in range(5):  # what does not count does not make the others many
        alone.solve(phi[counts], y[counts])
        ignored.solve(phi, y.where(counts, loss.ignore_index))
        weighted.solve(phi, y, counts.double())
    for head in (ignored, weighted):
        assert relative(matrix(head), matrix(alone)) < 1e-9
        assert torch.equal(head.memory_.forget, alone.memory_.forget)
    steps_of_the_bound(monkeypatch)
    assert torch.equal(learned(41), few)
    assert not torch.allclose(learned(60), many)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_rows_in_pieces_are_the_rows_at_once(name, weighted, monkeypatch):
    batch, W, dW, *_ = step(60, 5, 20, loss=LOSSES[name], weighted=weighted)
    at_once = lengths(batch, W, dW)
    monkeypatch.setattr(Batch, "bounds", lambda self: [(0, 20), (20, 50), (50, 60)])
    assert torch.allclose(lengths(batch, W, dW), at_once, rtol=1e-12)
    monkeypatch.undo()
    monkeypatch.setattr(lines, "_NUMBERS", 7 * K * 20)  # seven rows at a time
    assert torch.allclose(lengths(batch, W, dW), at_once, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_of_less_precision_are_taken_as_they_are(dtype):
    batch, W, dW, *_ = step(20, 5, 20, dtype=dtype)
    doubled = Batch(batch.phi.double(), batch.y.double(), bias=True, loss=batch.loss)
    assert torch.allclose(lengths(batch, W, dW).double(), lengths(doubled, W, dW), rtol=1e-5)


def test_no_step_is_no_stretch_and_what_is_not_finite_gives_no_number():
    batch, W, dW, *_ = step(20, 5, 20)
    dW[0] = 0
    dW[1, 0, 0] = math.nan
    t = lengths(batch, W, dW)
    assert float(t[0]) == 1.0
    assert t[1].isnan()
    assert t[2:].isfinite().all()


def test_every_filter_of_the_default_takes_its_own_length(monkeypatch):
    """Layers of the default after one solve, against those of a default that keeps the steps of the bound."""
    g = torch.Generator().manual_seed(0)
    head = cf.ClosedFormLinear(6, 30, loss=cf.CrossEntropy(), dtype=torch.float64)
    for _ in range(5):
        phi = torch.randn(30, 6, generator=g, dtype=torch.float64)
        head.solve(phi, torch.randint(0, 30, (30,), generator=g))
    other = copy.deepcopy(head)
    before = head._memory()["layers"].clone()
    cf.Auto()._decay_(before, True, head._memory(), head.step)
    phi, y = torch.randn(30, 6, generator=g, dtype=torch.float64), torch.randint(0, 30, (30,), generator=g)
    head.solve(phi, y)
    with monkeypatch.context() as patch:
        steps_of_the_bound(patch)
        other.solve(phi, y)
    dW = other._memory()["layers"] - before
    batch = Batch(phi, head.loss.targets(y, (30, 30)).double(), bias=True, loss=head.loss)
    t = lengths(batch, before, dW)
    assert (t > 1.2).all()
    assert relative(head._memory()["layers"], before + t[:, None, None] * dW) < 1e-9
    # nothing else in the memory of a filter knows of it
    for name in ("information", "noise", "prior", "errors"):
        assert torch.equal(head._memory()[name], other._memory()[name])


def test_a_compiled_solve_is_one_graph_that_goes_as_far():
    g = torch.Generator().manual_seed(0)
    plain = cf.ClosedFormLinear(6, 40, loss=cf.CrossEntropy(), dtype=torch.float64)
    other = copy.deepcopy(plain)
    compiled = torch.compile(lambda phi, y: other.solve(phi, y), backend="aot_eager", fullgraph=True)
    for _ in range(3):
        phi, y = torch.randn(30, 6, generator=g, dtype=torch.float64), torch.randint(0, 40, (30,), generator=g)
        plain.solve(phi, y)
        compiled(phi, y)
    for name, tensor in plain.state_dict().items():
        assert relative(other.state_dict()[name].double(), tensor.double()) < 1e-9, name


def test_many_classes_are_learned_faster_along_the_line(monkeypatch):
    def learned():
        g = torch.Generator().manual_seed(0)
        truth = torch.randn(50, 12, generator=g, dtype=torch.float64)
        head = cf.ClosedFormLinear(12, 50, loss=cf.CrossEntropy(), dtype=torch.float64)
        for _ in range(30):
            phi = torch.randn(200, 12, generator=g, dtype=torch.float64)
            head.solve(phi, (phi @ truth.T).argmax(1))
        phi = torch.randn(2000, 12, generator=g, dtype=torch.float64)
        return float(head.loss(head(phi), (phi @ truth.T).argmax(1)))

    along = learned()
    steps_of_the_bound(monkeypatch)
    assert along < 0.75 * learned()
