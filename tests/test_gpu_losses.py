"""The losses and the image classifier on a CUDA device: no wait for the device, capture in a graph, the CPU's results."""

import time

import pytest
import torch

import closedform as cf
from closedform.paper.data import cifar
from closedform.paper.experiments import cifar100_model, cifar100_report, imagenet, imagenet_model
from closedform.paper.experiments.batches import DeviceBatches, DeviceImages
from closedform.paper.experiments.cifar100_plan import Cell, RunScale
from closedform.paper.sweeps.work import OutOfTime

from . import cases
from .helpers import head, matrix, problem, relative

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

losses = cases.losses(without=("squared",))
rules = cases.rules(
    "ridge", "proximal", "auto", "vector", "ema", "drifting information", "drifting covariance", features=200
)
# more than 128 classes are summed by segments instead of by a product
sizes = pytest.mark.parametrize(("n", "classes"), [(16, 10), (300, 10), (300, 150), (16, 150)])


def data(loss, n, classes, seed=0):
    phi, y = problem(n, 200, classes, seed=seed)
    phi = 10 * phi
    if loss.labels:
        return phi, (torch.arange(n) ** 2 + seed) % classes
    return phi, torch.sigmoid(3 * y) if isinstance(loss, cf.Logistic) else y


@losses
@rules
@sizes
def test_solves_equal_the_cpus(loss, rule, n, classes):
    layers = [head(200, classes, rule, loss=loss).to(device) for device in ("cpu", "cuda")]
    for seed in range(3):
        phi, y = data(loss, n, classes, seed)
        for layer in layers:
            layer.solve(phi.to(layer.weight), y.to(layer.weight.device))
    assert int(layers[1].rejected) == 0
    assert relative(matrix(layers[1]).cpu(), matrix(layers[0])) < 1e-8


@losses
@rules
@sizes
def test_no_wait_for_the_device(loss, rule, n, classes):
    layer = head(200, classes, rule, loss=loss, dtype=torch.float32).cuda()
    phi, y = (t.cuda() for t in data(loss, n, classes))
    phi, weight = phi.float().requires_grad_(), torch.rand(n, device="cuda")
    layer.solve(phi, y)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            layer.solve(phi, y)
            layer.solve(phi, y, weight)
            loss(layer(phi), y).backward()
            layer.accumulate(phi, y)
            layer.commit()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(layer.step) == 7


@losses
@rules
@sizes
def test_a_captured_solve_is_the_eager_solve(loss, rule, n, classes):
    layers = [head(200, classes, rule, loss=loss, dtype=torch.float32).cuda() for _ in range(2)]
    phi, y = (t.cuda() for t in data(loss, n, classes))
    phi = phi.float()
    start = {key: value.clone() for key, value in layers[0].state_dict().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            layers[0].solve(phi, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers[0].solve(phi, y)
    layers[0].load_state_dict(start)
    for seed in range(4):
        fresh, target = (t.cuda() for t in data(loss, n, classes, seed))
        phi.copy_(fresh)
        y.copy_(target)
        graph.replay()
        layers[1].solve(fresh.float(), target)
    assert int(layers[0].step) == 4
    assert relative(matrix(layers[0]), matrix(layers[1])) < 1e-5


@pytest.mark.parametrize("classes", [10, 150])
def test_the_same_bits_every_time(classes):
    """Sums over a class are in one order: every process of a group must find the same layer."""
    loss = cf.GeneralizedSquared(5.0, 2.0)
    layers = []
    for _ in range(5):
        layer = head(200, classes, cf.Proximal(0.5), loss=loss).cuda()
        layer.solve(*(t.cuda() for t in data(loss, 4096, classes)))
        layers.append(matrix(layer))
    assert all(torch.equal(W, layers[0]) for W in layers)


@pytest.mark.parametrize("loss", [cf.OneHotSquared(), cf.GeneralizedSquared(5.0, 2.0), cf.CrossEntropy(2)])
@pytest.mark.parametrize("n", [16, 300])
def test_a_label_that_is_no_class_is_rejected_and_counted(loss, n):
    layer = head(200, 10, cf.Proximal(0.5), loss=loss, dtype=torch.float32).cuda()
    phi, y = (t.cuda() for t in data(loss, n, 10))
    before = matrix(layer)
    for bad in (-1, 10):
        layer.solve(phi.float(), y.index_fill(0, torch.tensor([3], device="cuda"), bad))
    assert int(layer.rejected) == 2
    assert torch.equal(matrix(layer), before)


@pytest.fixture
def exact():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def classifier(config, device):
    return cifar100_model.classifier(config, DeviceImages(cifar.load(0, 400, source="synthetic"), torch.device(device)))


SMALL = RunScale(epochs=2, limit=400, source="synthetic", net="small", precision="fp32")


def config_of(method, optimizer="sgd", batch_size=32, **changed):
    cell = Cell(optimizer, batch_size, method)
    return SMALL.config(cell, cell.start, "final") | changed


@pytest.mark.parametrize("method", [method.key for method in cifar100_report.METHODS])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_the_captured_classifier_is_the_cpus(method, optimizer, exact):
    config = config_of(method, optimizer, lr=0.02 if optimizer == "sgd" else 0.001)
    models = [classifier(config, device) for device in ("cpu", "cuda")]
    for model in models:
        for _ in range(6):
            model.advance()
    weights = [model.head.weight.detach().double().cpu() for model in models]
    assert relative(weights[1], weights[0]) < 1e-2
    first = [next(model.backbone.parameters()).detach().double().cpu() for model in models]
    assert relative(first[1], first[0]) < 1e-3
    if isinstance(models[1].head, cf.ClosedFormLinear):
        assert int(models[1].head.step) == 6  # the steps of the warm-up are undone


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_a_classifier_that_was_stopped_goes_on(optimizer, exact, tmp_path):
    config = config_of("kalman", optimizer, lr=0.02 if optimizer == "sgd" else 0.001)
    whole = classifier(config, "cuda")
    expected = whole.train()
    path, stops = tmp_path / "run.checkpoint", 0
    while True:
        part = classifier(config, "cuda")
        try:
            rows = part.train(checkpoint=path, deadline=time.perf_counter() + 0.05 * (stops > 0))
            break
        except OutOfTime:
            stops += 1
    assert stops > 1
    assert rows[-1]["test"] == pytest.approx(expected[-1]["test"], abs=0.02)
    assert relative(part.head.weight, whole.head.weight) < 1e-2


def test_bf16_on_a_resnet():
    config = config_of("kalman", batch_size=64, net="resnet18", precision="bf16", lr=0.1, epochs=12)
    rows = classifier(config, "cuda").train()
    assert rows[-1]["test"] > 0.8


@pytest.mark.parametrize("method", list(imagenet.METHODS))
def test_the_captured_step_of_imagenet_is_the_cpus(method, exact):
    recipe = imagenet.small(imagenet.tiny(batch_size=32, average=0.9, classes=10))
    config = recipe.config(method, 0, lr=0.02) | ({"beta": 10.0} if method == "ridge" else {})
    split = cifar.load(0, 400, source="synthetic")
    models = [
        imagenet_model.classifier(config, DeviceBatches(DeviceImages(split, torch.device(device)), 32, 0))
        for device in ("cpu", "cuda")
    ]
    for model in models:
        model.advance(6)
    assert models[1].captured
    for heads in ([model.head for model in models], [model.average.head for model in models]):
        on_cpu, on_gpu = (head.weight.detach().double().cpu() for head in heads)
        assert relative(on_gpu, on_cpu) < 1e-2
