"""The Triton kernels in Triton's interpreter, one program at a time on the CPU, against the plain path.

Run by test_kernels.py in a process of its own, where TRITON_INTERPRET is 1. On a GPU see test_gpu.py."""

import copy
import itertools
import math
from contextlib import nullcontext

import pytest
import torch

import closedform as cf
from closedform.solver import auto, cuda, elimination, guard, reference, route
from closedform.solver.batch import Batch
from closedform.solver.guard import Layer
from closedform.stack import optimizers

from .cases import overflows
from .helpers import columns, head, matrix, problem, relative

pytestmark = [
    # the interpreter computes with NumPy, which warns of numbers that overflow or are none; the tests are about such numbers
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    # a rejected solve is said once, which is tested in test_nothing_silent.py
    pytest.mark.filterwarnings("ignore:.*solves of this head were rejected:UserWarning"),
]

# n <= 32 by elimination, n <= 128 by panels of 32 rows, n > d by moments; blocks of 4 outputs and 64 features
SHAPES = [
    (1, 3, 2), (5, 20, 3), (17, 40, 20), (32, 33, 1), (32, 70, 5), (33, 40, 4), (40, 50, 17), (64, 64, 3), (100, 130, 5),
    (30, 9, 3), (20, 8, 1), (9, 8, 2),
]  # fmt: skip
shapes = pytest.mark.parametrize(("n", "d", "o"), SHAPES)
biases = pytest.mark.parametrize("bias", [True, False], ids=["bias", "nobias"])


@pytest.fixture
def kernels(monkeypatch):
    """Heads take the kernels for granted, on a device that is none."""
    monkeypatch.setattr(guard, "_kernels", lambda layer: cuda if cuda.usable(layer.weight, layer.bias) else None)


def layer_of(d, o, bias, seed=0):
    g = torch.Generator().manual_seed(seed)
    b = torch.randn(o, generator=g) if bias else None
    return Layer(torch.randn(o, d, generator=g), b, *torch.zeros(2, dtype=torch.long).unbind())


def whole(layer):
    return layer.weight.double() if layer.bias is None else torch.cat([layer.weight, layer.bias[:, None]], 1).double()


def counts(layer):
    return int(layer.step), int(layer.attempts)


# ---- A whole solve -----------------------------------------------------------------------------------


@shapes
@biases
@pytest.mark.parametrize("from_zero", [True, False], ids=["ridge", "proximal"])
@pytest.mark.parametrize("kind", ["number", "tensor", "auto"])
def test_a_solve_is_the_papers_formula(n, d, o, bias, from_zero, kind):
    layer = layer_of(d, o, bias)
    g = torch.Generator().manual_seed(1)
    phi, y = torch.randn(n, d, generator=g), torch.randn(n, o, generator=g)
    auto = torch.full((d,), 10 * float(phi.double().square().sum()) / d, dtype=torch.float64)
    auto = torch.cat([auto, torch.tensor([10.0 * n])]) if bias else auto
    lam = {"number": 2.0, "tensor": torch.tensor(2.0, dtype=torch.float64), "auto": None}[kind]
    before = torch.zeros_like(whole(layer)) if from_zero else whole(layer)
    expected = reference.proximal(columns(phi, bias), y.double().T, before, auto if lam is None else 2.0)
    cuda.solve_(layer, phi, y, lam, 10.0, from_zero)
    assert relative(whole(layer), expected) < 1e-6
    assert counts(layer) == (1, 1)
    # a target that is not a number leaves the layer as it is
    solved = whole(layer)
    y[-1, -1] = float("nan")
    cuda.solve_(layer, phi, y, lam, 10.0, from_zero)
    assert torch.equal(whole(layer), solved)
    assert counts(layer) == (1, 2)


@pytest.mark.parametrize(("n", "d", "o"), [(5, 20, 3), (40, 50, 4), (30, 9, 3)])
def test_features_stored_by_column_are_solved_alike(n, d, o):
    g = torch.Generator().manual_seed(1)
    phi, y = torch.randn(n, d, generator=g), torch.randn(n, o, generator=g)
    one, other = layer_of(d, o, True), layer_of(d, o, True)
    cuda.solve_(one, phi, y, 0.5, 10.0, False)
    cuda.solve_(other, phi.T.contiguous().T, y.T.contiguous().T, 0.5, 10.0, False)
    assert relative(whole(one), whole(other)) < 1e-6


@pytest.mark.parametrize("lam", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize(("n", "d"), [(5, 20), (40, 50), (30, 9)])
def test_a_lambda_that_is_not_positive_is_rejected(lam, n, d):
    layer = layer_of(d, 2, True)
    before = whole(layer)
    cuda.solve_(layer, torch.randn(n, d), torch.randn(n, 2), torch.tensor(lam, dtype=torch.float64), 10.0, False)
    assert torch.equal(whole(layer), before)
    assert counts(layer) == (0, 1)


# ---- The guard ---------------------------------------------------------------------------------------


def half(overflow):
    d, o = overflow.shape
    bias = torch.full((o,), 0.5) if overflow.bias else None
    return Layer(torch.full((o, d), 0.5), bias, *torch.zeros(2, dtype=torch.long).unbind())


@overflows
@pytest.mark.parametrize("from_zero", [True, False], ids=["ridge", "proximal"])
@pytest.mark.parametrize("tensor", [True, False])
def test_a_solve_that_overflows_in_some_entries_changes_none(overflow, from_zero, tensor):
    layer = half(overflow)
    lam = torch.tensor(overflow.lam, dtype=torch.float64) if tensor else overflow.lam
    cuda.solve_(layer, overflow.phi, overflow.y, lam, 10.0, from_zero)
    assert (whole(layer) == 0.5).all()
    assert counts(layer) == (0, 1)


@pytest.mark.parametrize("bad", [1e39, -1e39, float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["weight", "bias"])
@pytest.mark.parametrize("d", [3, 1500])  # 1500: two programs a row
def test_accept_takes_all_or_nothing(bad, where, d):
    layer = layer_of(d, 5, True)
    W, before = torch.randn(5, d + 1, dtype=torch.float64), whole(layer)
    yes, no = torch.tensor([True, False])
    cuda.accept_(layer, W, no)
    assert torch.equal(whole(layer), before)
    assert counts(layer) == (0, 1)
    cuda.accept_(layer, W.T.contiguous().T, yes)
    assert torch.equal(whole(layer), W.float().double())
    assert counts(layer) == (1, 2)
    wrong = W + 1
    wrong[3, d if where == "bias" else d // 2] = bad
    cuda.accept_(layer, wrong, yes)
    assert torch.equal(whole(layer), W.float().double())
    assert counts(layer) == (1, 3)


# ---- Through the head --------------------------------------------------------------------------------

RULES = {
    "proximal": cf.Proximal(0.5),
    "auto": cf.Proximal("auto"),
    "per sample": cf.Proximal(cf.per_sample(0.1)),
    "ridge": cf.Ridge(0.5),
    "ema": cf.Ema(0.5, 0.9),
    "schedule": cf.Proximal(lambda step: 1.0 + step),
    "tensor": cf.Proximal(torch.tensor(0.5)),
    "per feature": cf.Proximal(cf.lambdas.relative(10, per_feature=True)),
    "kalman": cf.Kalman(),
}


@biases
@pytest.mark.parametrize("n", [4, 40])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_a_head_with_kernels_is_the_head_without(name, n, bias, weights, monkeypatch):
    plain, fast = (head(8, 3, RULES[name], bias=bias, dtype=torch.float32) for _ in range(2))
    weight = torch.linspace(0.5, 2, n) if weights else None
    for seed in range(3):
        phi, y = (tensor.float() for tensor in problem(n, 8, 3, seed=seed))
        plain.solve(phi, y, weight)
        with monkeypatch.context() as patch:
            patch.setattr(guard, "_kernels", lambda layer: cuda)
            fast.solve(phi, y, weight)
    assert int(fast.step) == int(fast.attempts) == 3
    assert relative(matrix(fast), matrix(plain)) < 1e-5


@overflows
@pytest.mark.parametrize("weights", [False, True], ids=["fused", "accept"])
@pytest.mark.parametrize(
    "rule", [cf.Ridge, cf.Proximal, lambda lam: cf.Ema(lam, 0.1), lambda lam: cf.Kalman(0.9, lam=lam)]
)
def test_a_head_that_overflows_in_some_entries_stays_as_it_was(overflow, weights, rule, kernels):
    layer = cf.ClosedFormLinear(*overflow.shape, overflow.bias, rule=rule(overflow.lam))
    layer.set_weights_(torch.full((layer.out_features, layer.features), 0.5))
    layer.solve(overflow.phi, overflow.y, torch.ones(len(overflow.phi)) if weights else None)
    assert (matrix(layer) == 0.5).all()
    assert (int(layer.step), int(layer.rejected)) == (0, 1)


def test_a_backward_through_the_old_layer_is_noticed(kernels):
    layer = head(8, 3, cf.Proximal(0.5), dtype=torch.float32)
    phi, y = (tensor.float() for tensor in problem(4, 8, 3))
    loss = layer(phi.requires_grad_()).square().sum()
    layer.solve(phi, y)
    with pytest.raises(RuntimeError, match="solved between a forward and its backward"):
        loss.backward()


# ---- Filters -----------------------------------------------------------------------------------------

FILTERS = {
    "auto": cf.Auto(),
    "auto, no handicap": cf.Auto((0.5, 0.99), (0.0, 10.0), (1.0, 10.0), handicap=0.0),
    "auto, half": cf.Auto((0.5, 0.99), (0.0, 10.0), (1.0, 10.0), discount=0.5, handicap=0.5),
    "kalman": cf.Kalman(0.9, form="information"),
    "kalman, number": cf.Kalman(0.99, lam=2.0, form="information"),
    "kalman, schedule": cf.Kalman(lambda step: 1 - 0.1 / (1 + step), form="information"),
    "kalman, float schedule": cf.Kalman(lambda step: 0.95, form="information"),
}
COVARIANCES = {
    "auto, covariance": cf.Auto((0.5, 0.99), (0.0, 0.0)),
    "kalman, covariance": cf.Kalman(0.9, form="covariance"),
    "kalman, covariance, number": cf.Kalman(0.99, lam=2.0, form="covariance"),
    "kalman, covariance, schedule": cf.Kalman(lambda step: 1 - 0.1 / (1 + step), form="covariance"),
}
FILTERS |= COVARIANCES
LOSSES = {
    "squared": cf.Squared(),
    "one-hot": cf.OneHotSquared(),
    "cross-entropy": cf.CrossEntropy(),
    "ignored": cf.CrossEntropy(ignore_index=1, label_smoothing=0.1),
}


@pytest.fixture
def covariances(monkeypatch):
    """Filters that nothing holds keep their covariance, however few features there are."""
    monkeypatch.setattr(route, "INFORMATION", 2)


def filtered(rule, loss, d, o, bias, n, steps=4, changed=False):
    """The same head twice, solved without and with kernels on the same batches."""
    heads = [cf.ClosedFormLinear(d, o, bias, rule=FILTERS[rule], loss=LOSSES[loss]) for _ in range(2)]
    for t in range(steps):
        g = torch.Generator().manual_seed(t)
        phi = torch.randn(n, d, generator=g)
        y = torch.randint(0, o, (n,), generator=g) if LOSSES[loss].labels else torch.randn(n, o, generator=g)
        for one, module in zip(heads, (None, cuda)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(guard, "_kernels", lambda layer, module=module: module)
                one.solve(phi, y)
        if changed and t == 1:
            for one in heads:
                one.set_weights_(matrix(one) + 0.1)
    return heads


def same_state(plain, fast, tolerance=1e-5):
    assert (int(fast.step), int(fast.attempts)) == (int(plain.step), int(plain.attempts))
    for name, tensor in plain.state_dict().items():
        assert relative(fast.state_dict()[name].double(), tensor.double()) < tolerance, name


@pytest.mark.parametrize(("n", "bias"), [(4, True), (70, False)], ids=["few rows, bias", "many rows, no bias"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rule", [name for name in FILTERS if name not in COVARIANCES])
def test_filters_by_kernels_are_the_plain_ones(rule, loss, n, bias):
    plain, fast = filtered(rule, loss, 7, 3, bias, n)
    assert int(fast.step) == 4
    same_state(plain, fast)


@pytest.mark.parametrize(
    ("n", "bias"), [(4, True), (8, True), (9, False)], ids=["few rows", "as many", "more, no bias"]
)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rule", COVARIANCES)
def test_covariances_by_kernels_are_the_plain_ones(rule, loss, n, bias, covariances):
    plain, fast = filtered(rule, loss, 7, 3, bias, n)
    assert "covariance" in fast._memory()
    assert int(fast.step) == 4
    same_state(plain, fast)


@pytest.mark.parametrize(("n", "d", "o"), [(1, 3, 1), (33, 31, 5), (20, 64, 40), (300, 40, 2), (5, 200, 3)])
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_covariances_of_any_shape(n, d, o, loss, covariances):
    plain, fast = filtered("auto, covariance", loss, d, o + (loss != "squared"), True, n)
    same_state(plain, fast)


@pytest.mark.parametrize("n", [20, 100])
def test_covariances_whose_system_is_too_large_to_eliminate(n, covariances, monkeypatch):
    monkeypatch.setattr(route, "ELIMINATED", 16)
    same_state(*filtered("auto, covariance", "cross-entropy", 30, 3, True, n))


def test_features_that_are_zero_have_a_covariance_too(covariances):
    """More rows than features, of which two are dead and two equal: `X^T X` has no factor but for what rounding adds."""
    plain, fast = (cf.ClosedFormLinear(9, 2, rule=cf.Kalman(0.9, form="covariance")) for _ in range(2))
    for seed in range(6):
        phi, y = (tensor.float() for tensor in problem(30, 9, 2, seed=seed))
        phi[:, 3:5] = 0
        phi[:, 6] = phi[:, 7]
        plain.solve(phi, y)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(guard, "_kernels", lambda layer: cuda)
            fast.solve(phi, y)
    assert int(fast.step) == 6
    assert relative(fast(phi), plain(phi)) < 1e-5


@pytest.mark.parametrize(("n", "d", "o"), [(1, 3, 1), (33, 31, 5), (20, 64, 40), (300, 40, 2), (5, 200, 3)])
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_filters_of_any_shape(n, d, o, loss):
    plain, fast = filtered("auto", loss, d, o + (loss != "squared"), True, n)
    same_state(plain, fast)


@pytest.mark.parametrize("form", ["information", "covariance"])
@pytest.mark.parametrize(
    ("n", "d", "o", "loss"), [(4, 7, 20, "cross-entropy"), (12, 7, 20, "cross-entropy"), (40, 5, 17, "ignored")]
)
def test_filters_go_as_far_among_many_classes(loss, n, d, o, form, monkeypatch):
    monkeypatch.setattr(route, "INFORMATION", 2 if form == "covariance" else 512)
    assert LOSSES[loss].slack(o) > 1
    plain, fast = filtered("auto", loss, d, o, True, n, steps=2)
    assert form in fast._memory()
    same_state(plain, fast)


@pytest.mark.parametrize("n", [4, 70, 1000])
def test_memories_of_labels_grow_with_the_steps(n, monkeypatch):
    monkeypatch.setattr(auto, "BOUNDED_STEPS", (0.3, 0.04))  # 25 batches a step
    plain, fast = filtered("auto", "cross-entropy", 7, 3, True, n)
    assert float(fast.memory_.forget[0]) == pytest.approx(1 - 1 / 75)
    same_state(plain, fast)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_filters_follow_a_layer_that_was_set(loss):
    same_state(*filtered("auto", loss, 7, 3, True, 9, changed=True))


@pytest.mark.parametrize("rule", ["auto", "kalman", *list(COVARIANCES)[:2]])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("where", ["phi", "y"])
def test_filters_refuse_what_is_not_finite(rule, steps, bad, where, kernels, covariances):
    """As on a device, where nobody looks at the values. A single filter starts anew after a finite batch that it refused."""
    _, layer = filtered(rule, "squared", 7, 3, True, 9, steps)
    before = copy.deepcopy(layer.state_dict())
    phi, y = problem(9, 7, 3)
    (phi if where == "phi" else y)[2, 1] = bad
    layer._take(Batch(phi, y, bias=True))
    assert int(layer.rejected) == 1
    restarts = rule.startswith("kalman") and steps and (bad, where) == (1e300, "y")
    anew = {f"memory_{layer.rule.form}"} if restarts else set()
    changed = {name for name, tensor in layer.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"attempts"} | anew
    phi, y = (tensor.float() for tensor in problem(9, 7, 3))
    layer.solve(phi, y)
    assert (int(layer.step), int(layer.rejected)) == (steps + 1, 1)


@overflows
@pytest.mark.parametrize("rule", ["auto", "information", "covariance"])
def test_filters_that_overflow_in_some_entries_change_none(overflow, rule, kernels):
    chosen = cf.Auto() if rule == "auto" else cf.Kalman(0.9, lam=overflow.lam, form=rule)
    layer = cf.ClosedFormLinear(*overflow.shape, overflow.bias, rule=chosen)
    layer.set_weights_(torch.full((layer.out_features, layer.features), 0.5))
    layer.solve(overflow.phi, overflow.y)
    if int(layer.rejected):
        assert (matrix(layer) == 0.5).all()
        assert not layer._memory()["covariance" if rule == "covariance" else "information"].any()
    assert rule == "auto" or int(layer.rejected) == 1


def test_one_filter_that_fails_leaves_the_others(kernels):
    _, layer = filtered("auto", "squared", 7, 3, True, 9)
    broken = copy.deepcopy(layer)
    for one in (layer, broken):
        one._memory()["information"][2].neg_() if one is broken else None
        phi, y = (tensor.float() for tensor in problem(9, 7, 3))
        one.solve(phi, y)
    assert int(broken.rejected) == 0
    assert float(broken.memory_.weight[2]) == 0.0
    assert relative(broken._memory()["layers"][[0, 1, 3, 4]], layer._memory()["layers"][[0, 1, 3, 4]]) < 1e-12


@pytest.mark.parametrize("n", [5, 9])
@pytest.mark.parametrize("form", ["information", "covariance"])
def test_a_single_filter_that_fails_starts_anew(form, n, kernels):
    _, layer = filtered("kalman" if form == "information" else "kalman, covariance", "squared", 7, 3, True, n)
    layer._memory()[form].mul_(-1e3)
    phi, y = (tensor.float() for tensor in problem(n, 7, 3))
    layer.solve(phi, y)
    assert int(layer.rejected) == 1
    prior = layer._memory()["prior"]
    assert torch.equal(layer._memory()[form], (prior if form == "information" else 1 / prior).diag())


# ---- Many small systems ------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [10.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("m", "r"), [(5, 3), (32, 1), (64, 40), (70, 3), (130, 33)])
def test_elimination_by_the_kernel_solves(m, r, condition, dtype):
    g = torch.Generator().manual_seed(m)
    Q = torch.linalg.qr(torch.randn(4, m, m, generator=g, dtype=torch.float64)).Q
    K = Q * torch.logspace(0, math.log10(condition), m, dtype=torch.float64) @ Q.mT
    K[2] -= 2 * torch.eye(m, dtype=torch.float64)  # one eigenvalue below zero, in the first block or in a later one
    B = torch.randn(4, m, r, generator=g, dtype=torch.float64)
    solved, ok = elimination.by_blocks(K.to(dtype), B.to(dtype))
    assert ok.tolist() == [True, True, False, True]
    good = [0, 1, 3]
    assert relative(solved[good].double(), torch.linalg.solve(K, B)[good]) < 100 * torch.finfo(dtype).eps * condition


# ---- The optimizers of a stack -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 3, 1500)])
@pytest.mark.parametrize(
    "optimizer", [optimizers.SGD(), optimizers.SGD(0.5), optimizers.Adam(), optimizers.Adam(decay=0.1)], ids=str
)
def test_an_optimizer_step_by_a_kernel_is_the_plain_one(optimizer, shape, dtype, monkeypatch):
    g = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=g, dtype=dtype)
    lr = torch.rand(shape[0], generator=g, dtype=torch.float64)
    plain, fast = start.clone(), start.clone()
    states = optimizer.state(plain), optimizer.state(fast)
    for t in range(4):
        gradient = torch.randn(shape, generator=g, dtype=dtype)
        optimizer.update_(plain, gradient, states[0], lr, torch.tensor(t))
        with monkeypatch.context() as patch:
            patch.setattr(optimizers, "_fused", lambda *tensors: True)
            patch.setattr(torch.cuda, "device", nullcontext)
            optimizer.update_(fast, gradient, states[1], lr, torch.tensor(t))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert relative(fast, plain) < tolerance
    for ours, theirs in itertools.zip_longest(states[1], states[0]):
        assert relative(ours, theirs) < tolerance
