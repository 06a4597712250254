"""On a CUDA device: no wait for the device in a solve, capture in a graph, and the CPU's results."""

import pytest
import torch
from torch.nn import functional as F

import closedform as cf
from closedform.iv.stacked import IVStack
from closedform.solver import elimination, reference
from closedform.stack import measuring
from closedform.stack.loop import Checkpoint

from . import cases
from . import iv_stack_cases as iv
from . import operator_cases as operators
from . import stack_cases as stacked
from .cases import nasty
from .helpers import backbone, batches, columns, head, matrix, problem, relative

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

rules = cases.rules(
    "ridge", "proximal", "auto", "schedule", "vector", "tensor", "per sample", "ema",
    "drifting information", "drifting covariance", features=200,
)  # fmt: skip


@rules
@pytest.mark.parametrize("n", [1, 16, 32, 33, 128, 200, 300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_solves_equal_the_cpus(rule, n, dtype):
    layers = [head(200, 3, rule, dtype=dtype).to(device) for device in ("cpu", "cuda")]
    for seed in range(3):
        phi, y = problem(n, 200, 3, seed=seed)
        for layer in layers:
            layer.solve(phi.to(layer.weight), y.to(layer.weight))
    assert int(layers[1].rejected) == 0
    assert relative(matrix(layers[1]).cpu(), matrix(layers[0])) < (1e-9 if dtype == torch.float64 else 1e-5)


@rules
@pytest.mark.parametrize("n", [16, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_wait_for_the_device(rule, n, dtype):
    layer = head(200, 3, rule, dtype=dtype).cuda()
    phi, y = (t.to(layer.weight) for t in problem(n, 200, 3))
    weight = torch.rand(n, device="cuda")
    phi.requires_grad_()
    layer.solve(phi, y)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            layer.solve(phi, y)
            layer.solve(phi, y, weight)
            F.mse_loss(layer(phi), y).backward()
            layer.observe(y)
            layer(phi)
            layer.accumulate(phi, y)
            layer.commit()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(layer.step) == 13


@rules
@pytest.mark.parametrize("n", [16, 300])
def test_a_captured_step_is_the_eager_step(rule, n):
    stream = batches(12, n=n, dtype=torch.float32)
    nets = [backbone(width=200, dtype=torch.float32).cuda() for _ in range(2)]
    layers = [cf.ClosedFormLinear(200, 2, rule=rule, device="cuda") for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in nets]
    x, y = (t.cuda() for t in stream[0])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    start = [{k: v.clone() for k, v in m.state_dict().items()} for m in (nets[0], layers[0])]
    with torch.cuda.stream(side):
        for _ in range(3):
            cf.training.algorithm1(nets[0], layers[0], optimizers[0], x, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cf.training.algorithm1(nets[0], layers[0], optimizers[0], x, y)
    for module, state in zip((nets[0], layers[0]), start):
        module.load_state_dict(state)
    for batch, target in stream:
        x.copy_(batch)
        y.copy_(target)
        graph.replay()
        cf.training.algorithm1(nets[1], layers[1], optimizers[1], batch.cuda(), target.cuda())
    assert int(layers[0].step) == 12
    assert relative(matrix(layers[0]), matrix(layers[1])) < 1e-3
    assert relative(nets[0][0].weight, nets[1][0].weight) < 1e-4


@rules
@pytest.mark.parametrize("n", [16, 128, 300])
def test_bad_values_are_rejected_and_counted(rule, n):
    layer = head(200, 3, rule, dtype=torch.float32).cuda()
    phi, y = (t.float().cuda() for t in problem(n, 200, 3))
    layer.solve(phi, y)
    before = {k: v.clone() for k, v in layer.state_dict().items() if k != "attempts"}
    nan, inf = float("nan"), float("inf")
    for bad_phi, bad_y in (
        (phi * nan, y),
        (phi, y * nan),
        (phi * inf, y),
        (phi, y.index_fill(0, y.new_zeros(1).long(), inf)),
    ):
        layer.solve(bad_phi, bad_y)
    assert int(layer.rejected) == 4
    assert all(torch.equal(v, layer.state_dict()[k]) for k, v in before.items())


@pytest.mark.parametrize("kind", [cf.Ridge, cf.Proximal])
def test_nasty_problems_as_on_the_cpu(kind):
    g = torch.Generator().manual_seed(11)
    judged = 0
    for _ in range(1500):
        phi, y, lam, bias = nasty(g)
        layer = cf.ClosedFormLinear(phi.shape[1], y.shape[1], bias, rule=kind(lam), device="cuda")
        layer.solve(phi.cuda(), y.cuda())
        W = matrix(layer).cpu()
        assert torch.isfinite(W).all()
        Phi, Y = columns(phi, bias), y.double().T
        if lam < 1e-6 * float(torch.linalg.svdvals(Phi)[0]) ** 2:
            continue
        best = reference.loss(reference.ridge_svd(Phi, Y, lam), Phi, Y, lam)
        assert reference.loss(W, Phi, Y, lam) <= best * (1 + 1e-3) + 1e-10 * (Y**2).sum()
        judged += 1
    assert judged > 400


# torch's own advice about TF32, in the words of its versions; the solver does without it on purpose
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores for float32 matrix multiplication available:UserWarning")
@pytest.mark.filterwarnings("ignore:Please use the new API settings to control TF32 behavior:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch._prims_common.check` is deprecated:FutureWarning")
def test_compiled_by_inductor():
    net, layer = backbone(width=64, dtype=torch.float32).cuda(), cf.ClosedFormLinear(64, 2, device="cuda")
    other = cf.ClosedFormLinear(64, 2, device="cuda")

    def step(layer, x, y):
        phi = net(x)
        layer.solve(phi, y)
        return F.mse_loss(layer(phi), y)

    compiled = torch.compile(step, fullgraph=True)
    for x, y in batches(3, n=16, dtype=torch.float32):
        assert relative(compiled(layer, x.cuda(), y.cuda()), step(other, x.cuda(), y.cuda())) < 1e-4


@pytest.mark.parametrize("n", [16, 100, 300])
@pytest.mark.parametrize("autocast", [False, True])
def test_solve_between_forward_and_backward_raises(n, autocast):
    layer = head(200, 3, cf.Proximal(1.0), dtype=torch.float32).cuda()
    phi, y = (t.float().cuda() for t in problem(n, 200, 3))
    phi.requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        loss = layer(phi).float().square().sum()
        layer.solve(phi, y)
    with pytest.raises(RuntimeError, match="solved between a forward and its backward"):
        loss.backward()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 16, 100])
@pytest.mark.parametrize("n", [1, 7, 32, 33, 64, 128, 151, 152, 500])
@pytest.mark.parametrize("rule", [cf.Ridge(0.3), cf.Proximal(0.3), cf.Proximal("auto"), cf.Ridge("auto")])
def test_the_small_kernels_equal_the_plain_path(bias, outputs, n, rule, monkeypatch):
    small, plain = (head(150, outputs, rule, bias=bias, dtype=torch.float32).cuda() for _ in range(2))
    for seed in range(3):
        phi, y = (t.float().cuda() for t in problem(n, 150, outputs, seed=seed))
        small.solve(phi, y)
        with monkeypatch.context() as context:
            context.setattr("closedform.solver.cuda.usable", lambda *_: False)
            plain.solve(phi, y)
    assert int(small.step) == 3
    assert relative(matrix(small), matrix(plain)) < 1e-6


@pytest.mark.parametrize("n", [16, 100, 150, 300])
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("rule", [cf.Proximal, lambda lam: cf.Kalman(lam=lam)])
def test_a_bad_lambda_on_the_device_is_rejected(n, bad, rule):
    value = torch.tensor(bad, device="cuda")
    layer = head(200, 3, rule(lambda step: value), dtype=torch.float32).cuda()
    before = matrix(layer)
    layer.solve(*(1e-3 * t.float().cuda() for t in problem(n, 200, 3)))
    assert int(layer.rejected) == 1
    assert torch.equal(matrix(layer), before)


@pytest.mark.parametrize("n", [16, 300])
def test_a_bad_number_is_an_error_on_the_device_too(n):
    layer = head(200, 3, cf.Proximal(lambda step: 0.0), dtype=torch.float32).cuda()
    with pytest.raises(ValueError, match="lambda must be positive"):
        layer.solve(*(t.float().cuda() for t in problem(n, 200, 3)))
    assert int(layer.attempts) == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.float32, 1e-2)])
@pytest.mark.parametrize(("batch_size", "seeds"), [(8, (0, 3)), (30, (0, 3)), (8, (2,))])
def test_a_captured_stack_equals_the_cpus(optimizer, batch_size, seeds, dtype, tolerance):
    candidates = list(stacked.CANDIDATES.values())
    X, Y = stacked.data(len(seeds), dtype=dtype)
    errors = []
    for device in ("cpu", "cuda"):
        models = stacked.stack(candidates, seeds, dtype, batch_size, optimizer=optimizer, device=device)
        models.advance(40)
        models.keep(range(len(candidates)))  # and once more, captured anew
        models.advance(20)
        errors.append(models.evaluate(X, Y))
    assert models._graph is not None
    assert relative(errors[1], errors[0]) < tolerance


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.float32, 1e-2)])
@pytest.mark.parametrize("points", [operators.POINTS, 2])
def test_a_captured_stack_of_operators_equals_the_cpus(optimizer, points, dtype, tolerance):
    candidates = list(operators.METHODS.values())
    if optimizer == "adam":
        candidates = [stacked.Candidate(c.lr / 10, c.rule, c.init) for c in candidates]
    X, Y = operators.fields(points=5 * points, dtype=dtype)
    errors = []
    for device in ("cpu", "cuda"):
        models = operators.stack(candidates, dtype=dtype, points=points, optimizer=optimizer, device=device)
        models.advance(operators.STEPS)
        errors.append(models.evaluate(X, Y))
    assert models._graph is not None
    assert relative(errors[1], errors[0]) < tolerance


def test_a_captured_stack_drops_what_diverges_and_resumes(tmp_path):
    mixed = [stacked.Candidate(1e30), stacked.Candidate(1e30), *stacked.CANDIDATES.values()]
    X, Y = stacked.data(dtype=torch.float32)
    sets, at = {"test": measuring.EvaluationSet(X, Y)}, [8, 30, 60]

    def make():
        return stacked.stack(mixed, dtype=torch.float32, device="cuda")

    whole = make()
    expected = measuring.train(whole, measuring.on(sets), at=at)
    assert len(whole.candidates) == len(stacked.CANDIDATES)
    assert torch.isinf(expected.errors["test"][-1][:, :2]).all()

    def stop(step, total):
        if step > 40:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        measuring.train(
            make(), measuring.on(sets), at=at, checkpoint=Checkpoint(tmp_path / "a", every_s=0), progress=stop
        )
    history = measuring.train(make(), measuring.on(sets), at=at, checkpoint=Checkpoint(tmp_path / "a"))
    assert relative(history.errors["test"][-1][:, 2:], expected.errors["test"][-1][:, 2:]) < 1e-2


@pytest.mark.parametrize("m", [5, 32, 257])
def test_elimination_by_triton_equals_the_cpus(m):
    g = torch.Generator().manual_seed(m)
    X = torch.randn(6, m, 2 * m, generator=g, dtype=torch.float64)
    K, B = X @ X.mT, torch.randn(6, m, 12, generator=g, dtype=torch.float64)
    K[3] = -K[3]
    solved, ok = elimination.eliminate(K.cuda(), B.cuda())
    assert ok.tolist() == [True, True, True, False, True, True]
    sound = [0, 1, 2, 4, 5]
    assert relative(solved[sound].cpu(), torch.linalg.solve(K, B)[sound]) < 1e-10


@pytest.mark.parametrize("batch", [4, 25])
def test_a_stack_of_instrumental_variable_models_is_that_of_the_cpu(batch):
    data, split, points = iv.problem()
    errors = []
    for device in ("cpu", "cuda"):
        model = iv.alone(iv.CANDIDATES[0].rules)
        models = IVStack(
            model, iv.CANDIDATES, data, split, points, batch_size=batch, total=iv.TOTAL, seed=3, device=device
        )
        models.advance(3)
        torch.cuda.set_sync_debug_mode("error" if device == "cuda" else "default")
        try:
            models._step()  # eager: nothing in it waits for the device
        finally:
            torch.cuda.set_sync_debug_mode("default")
        models.advance(20)  # captured and replayed
        errors.append(models.measure())
    for name, values in errors[0].items():
        torch.testing.assert_close(errors[1][name], values, rtol=1e-6, atol=1e-9)


FILTERS = {
    "default": cf.Auto(),
    "information": cf.Kalman(form="information"),
    "covariance": cf.Kalman(form="covariance"),
    "several covariances": cf.Auto((0.5, 0.99), (0.0, 0.0)),
}
filters = pytest.mark.parametrize("rule", FILTERS.values(), ids=FILTERS)


@pytest.mark.parametrize(
    ("n", "d", "o"),
    [
        (32, 200, 12), (128, 512, 10), (300, 100, 3), (8192, 64, 1), (1, 20, 2), (300, 60, 100), (32, 513, 100),
        (600, 530, 10), (700, 900, 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("loss", [cf.Squared(), cf.CrossEntropy(label_smoothing=0.1)], ids=["squared", "labels"])
@filters
def test_filters_equal_the_cpus(rule, loss, n, d, o):
    """By kernels of their own, without a wait for the device."""
    o = max(o, 2) if loss.labels else o
    layers = [cf.ClosedFormLinear(d, o, rule=rule, loss=loss).to(device) for device in ("cpu", "cuda")]
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        phi = torch.randn(n, d, generator=g)
        y = torch.randint(0, o, (n,), generator=g) if loss.labels else torch.randn(n, o, generator=g)
        layers[0].solve(phi, y)
        phi, y = phi.cuda(), y.cuda()
        if seed:
            torch.cuda.set_sync_debug_mode("error")
        try:
            layers[1].solve(phi, y)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert int(layers[1].rejected) == 0
    for name, tensor in layers[0].state_dict().items():
        assert relative(layers[1].state_dict()[name].cpu().double(), tensor.double()) < 1e-5, name


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@filters
def test_filters_refuse_bad_values(rule, bad):
    layer = cf.ClosedFormLinear(40, 3, rule=rule).cuda()
    phi, y = (t.float().cuda() for t in problem(50, 40, 3))
    layer.solve(phi, y)
    before = {k: v.clone() for k, v in layer.state_dict().items() if k != "attempts"}
    wrong = phi.clone()
    wrong[3, 4] = bad
    layer.solve(wrong, y)
    layer.solve(phi, y * bad)
    assert int(layer.rejected) == 2
    assert all(torch.equal(v, layer.state_dict()[k]) for k, v in before.items())
