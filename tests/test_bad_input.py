"""Bad input gets one clear sentence and leaves everything as it was."""

import pytest
import torch

import closedform as cf

from .helpers import backbone, batches, head, problem

phi, y = problem(4, 6, 2)
nan, inf = float("nan"), float("inf")


def spoiled(tensor, value):
    tensor = tensor.clone()
    tensor[2, 1] = value
    return tensor


CASES = {
    "features": ((phi[:, :5], y), r"phi must have 6 features in its last dimension, got shape \(4, 5\)"),
    "outputs": ((phi, y[:, :1]), r"y must have shape \(4, 2\) to go with phi \(4, 6\), got \(4, 1\)"),
    "rows": ((phi, y[:3]), r"y must have shape \(4, 2\) to go with phi \(4, 6\), got \(3, 2\)"),
    "dimensions": ((phi, y.reshape(-1)), r"y must have shape \(4, 2\)"),
    "empty": ((phi[:0], y[:0]), "no samples"),
    "scalar": ((phi[0, 0], y), "6 features"),
    "integers": ((phi.long(), y), "phi must be floating point, got torch.int64"),
    "complex": ((phi, y.to(torch.complex128)), "y must be real numbers, got torch.complex128"),
    "array": ((phi, y.numpy()), "y must be a tensor, got ndarray"),
    "list": ((phi, y, [1.0] * 4), "sample_weight must be a tensor, got list"),
    "labels": (
        (phi, torch.zeros(4, dtype=torch.long)),
        r"class labels are whole numbers of shape \(4,\), and go with a loss of classes",
    ),
    "nan in phi": ((spoiled(phi, nan), y), r"phi has NaN or infinite values \(first in row 2 of 4\)"),
    "inf in phi": ((spoiled(phi, inf), y), r"phi has NaN or infinite values"),
    "nan in y": ((phi, spoiled(y, nan)), r"y has NaN or infinite values \(first in row 2 of 4\)"),
    "inf in y": ((phi, spoiled(y, -inf)), r"y has NaN or infinite values"),
    "weight shape": ((phi, y, torch.ones(3)), r"sample_weight must have shape \(4,\), got \(3,\)"),
    "weight column": ((phi, y, torch.ones(4, 1)), r"sample_weight must have shape \(4,\), got \(4, 1\)"),
    "weight negative": ((phi, y, torch.tensor([1.0, -2, 1, 1])), "sample_weight must not be negative, got -2.0"),
    "weight nan": ((phi, y, torch.tensor([1.0, nan, 1, 1])), "sample_weight has NaN"),
    "weight zero": ((phi, y, torch.zeros(4)), "no samples: every sample_weight is zero"),
}
cases = pytest.mark.parametrize(("batch", "message"), [pytest.param(*case, id=name) for name, case in CASES.items()])


@cases
@pytest.mark.parametrize("how", ["solve", "accumulate", "observe"])
@pytest.mark.parametrize("rule", [cf.Proximal(1.0), cf.Kalman(0.9), cf.Ridge(0.0)])
def test_bad_batches(batch, message, how, rule):
    layer = head(6, 2, rule)
    layer.solve(phi, y)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    if how == "observe":
        layer.observe(*batch[1:])
    with pytest.raises(ValueError, match=message):
        layer(batch[0]) if how == "observe" else getattr(layer, how)(*batch)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())
    layer.observe(None)
    layer.solve(phi, y)
    assert int(layer.rejected) == 0


def test_a_missing_last_dimension_has_a_hint():
    with pytest.raises(ValueError, match=r"got \(4,\); y.unsqueeze\(-1\) would fit"):
        head(6, 1).solve(phi, y[:, 0])


@pytest.mark.parametrize("value", [0, 0.0, -1.0, nan, inf, "big", None, torch.tensor([1.0, -1.0]), torch.tensor(0.0)])
@pytest.mark.parametrize(
    "make", [cf.Proximal, lambda lam: cf.Kalman(lam=lam), lambda lam: cf.Proximal(cf.per_sample(lam))]
)
def test_bad_lambdas(make, value):
    with pytest.raises(ValueError, match="lambda|per_sample"):
        make(value)


@pytest.mark.parametrize("value", [-1e-9, nan, inf, "big", torch.tensor([1.0, 0.0])])
@pytest.mark.parametrize("make", [cf.Ridge, cf.Ema])
def test_bad_betas(make, value):
    with pytest.raises(ValueError, match="beta"):
        make(value)


@pytest.mark.parametrize("bad", [0.0, -1.0, nan, torch.tensor(-2.0), torch.tensor([1.0] * 6 + [0.0])])
@pytest.mark.parametrize("make", [cf.Proximal, lambda lam: cf.Kalman(lam=lam)])
def test_bad_values_from_a_schedule(make, bad):
    layer = head(6, 2, make(lambda step: bad))
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    with pytest.raises(ValueError, match="lambda must be positive and finite"):
        layer.solve(phi, y)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())


@pytest.mark.parametrize("bad", [None, "auto"])
def test_a_schedule_returns_numbers(bad):
    with pytest.raises(ValueError, match="a schedule must return a number or a tensor"):
        head(6, 2, cf.Proximal(lambda step: bad)).solve(phi, y)


def test_a_vector_lambda_of_the_wrong_length():
    with pytest.raises(ValueError, match=r"expected 6 \(features\) or 7 \(features and bias\), got 5"):
        head(6, 2, cf.Proximal(torch.ones(5))).solve(phi, y)
    with pytest.raises(ValueError, match=r"expected 6 \(features\), got 7"):
        head(6, 2, cf.Proximal(torch.ones(7)), bias=False).solve(phi, y)
    with pytest.raises(ValueError, match="0 or 1 dimensions"):
        head(6, 2, cf.Proximal(torch.ones(2, 6))).solve(phi, y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cf.Kalman(forget=0.0), r"forget must be in \(0, 1\], got 0.0"),
        (lambda: cf.Kalman(forget=1.5), "forget"),
        (lambda: cf.Kalman(drift=-1.0), "drift must be zero or positive"),
        (lambda: cf.Kalman(form="both"), "form"),
        (lambda: cf.Ema(momentum=1.0), "momentum"),
        (lambda: cf.ClosedFormLinear(3, 2, init="ones"), "init must be one of zeros, lecun, xavier, he, got 'ones'"),
        (lambda: cf.ClosedFormLinear(0, 2), "in_features=0"),
        (lambda: cf.ClosedFormLinear(3, 2, rule=1e3), "rule must be a closedform rule"),
        (lambda: cf.ClosedFormLinear(3, 2, cf.Kalman()), "bias must be True or False"),
        (lambda: cf.ClosedFormLinear(3, 2, loss="mse"), "loss must be a closedform loss"),
        (lambda: cf.ClosedFormLinear(3, 2, dtype=torch.int32), "floating point dtype, got torch.int32"),
        (lambda: cf.Kalman(drift="x"), "drift"),
        (lambda: cf.Kalman("x"), "forget"),
        (lambda: cf.Ema(momentum="x"), "momentum"),
        (lambda: cf.per_sample("auto"), "per_sample takes a number"),
        (lambda: cf.per_sample(cf.lambdas.relative(2.0)), "per_sample takes a number"),
        (lambda: cf.lambdas.relative(0.0), "relative's ratio must be positive"),
        (lambda: cf.lambdas.relative("auto"), "relative's ratio is a number"),
        (lambda: cf.lambdas.linear(1.0, 2.0, 0), "at least one step"),
        (lambda: cf.Statistics(0, 2), "statistics need features and outputs"),
        (lambda: cf.Statistics(3, 2).decay(float("nan")), "decay takes a factor"),
        (lambda: cf.ClosedFormLinear(3, 2, rule=cf.Proximal), "rule must be a closedform rule"),
    ],
)
def test_bad_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_forgetting_from_a_schedule():
    layer = head(6, 2, cf.Kalman(lambda step: 1.5, lam=1.0))
    with pytest.raises(ValueError, match=r"forget must be in \(0, 1\], got 1.5"):
        layer.solve(phi, y)
    assert int(layer.attempts) == 0


def test_variance():
    with pytest.raises(ValueError, match="needs the rule Auto or Kalman"):
        head(6, 2, cf.Proximal()).variance(phi)
    layer = head(6, 2, cf.Kalman())
    with pytest.raises(ValueError, match="at least one solve"):
        layer.variance(phi)
    layer.solve(phi, y)
    with pytest.raises(ValueError, match="6 features"):
        layer.variance(phi[:, :5])


def test_refit():
    layer, net = head(6, 2), backbone()
    before = layer.weight.clone()
    with pytest.raises(ValueError, match="the loader is empty"):
        cf.refit_(layer, net, [], beta=1.0)
    with pytest.raises(ValueError, match="beta"):
        cf.refit_(layer, net, batches(1), beta=-1.0)
    x, y = batches(1)[0]
    net.train()
    with pytest.raises(ValueError, match="y has NaN"):
        cf.refit_(layer, net, [(x, y), (x, y * nan)], beta=1.0)
    assert net.training
    assert torch.equal(layer.weight, before)


def test_set_weights():
    layer = head(6, 2)
    with pytest.raises(ValueError, match=r"W must have shape \(2, 7\), got \(2, 6\)"):
        layer.set_weights_(torch.zeros(2, 6))
    with pytest.raises(ValueError, match="NaN"):
        layer.set_weights_(torch.full((2, 7), nan))


def test_follow_lr():
    optimizer = torch.optim.SGD(backbone().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="either lam or forget"):
        cf.lambdas.follow_lr(optimizer)
    with pytest.raises(ValueError, match="lambda must be positive"):
        cf.lambdas.follow_lr(optimizer, -1.0)
    with pytest.raises(ValueError, match="forget must be in"):
        cf.lambdas.follow_lr(optimizer, forget=2.0)
    with pytest.raises(ValueError, match="positive base learning rate"):
        cf.lambdas.follow_lr(torch.optim.SGD(backbone().parameters(), lr=0.0), 1.0)
