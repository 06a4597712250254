"""Several processes over gloo: every rank ends with the same bits, equal to one process on the joined batch."""

import itertools
import os
import socket
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import closedform as cf

from . import cases
from .helpers import backbone, batches, head, matrix, problem, relative

# rows on each rank, one tuple a step: few rows (gathered) and many (moments), even and uneven
STEPS = {
    2: [(2, 2), (2, 1), (1, 4), (9, 9), (20, 1), (3, 3)],
    3: [(1, 1, 1), (2, 3, 1), (9, 9, 9), (1, 20, 2), (2, 2, 2)],
}


def steps(world):
    """The joined batches, and the rows of each rank."""
    for seed, sizes in enumerate(STEPS[world]):
        phi, y = problem(sum(sizes), 6, 2, seed=seed)
        weight = torch.rand(sum(sizes), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        yield sizes, phi, y, weight


def single(world, rule, mode):
    layer = head(6, 2, rule)
    for _, phi, y, weight in steps(world):
        layer.solve(phi, y, weight if mode == "weights" else None)
    return layer.state_dict()


def spread(world, rank, rule, mode):
    layer = head(6, 2, rule)
    for sizes, phi, y, weight in steps(world):
        phi, y, weight = (t.split(sizes)[rank] for t in (phi, y, weight))
        if mode == "accumulate":
            half = -(-sizes[rank] // 2)
            layer.accumulate(phi[:half], y[:half])
            if sizes[rank] > half:
                layer.accumulate(phi[half:], y[half:])
            layer.commit()
        else:
            layer.solve(phi, y, weight if mode == "weights" else None)
    return layer.state_dict()


RULES = {name: cases.RULES[name] for name in cases.SOLVE_RULES}
LOSSES = {name: cases.LOSSES[name] for name in ("one-hot", "generalized", "cross-entropy", "huber")}


def classified(world, rank, loss, rule, mode):
    """Other losses; rank None is one process with the joined batches."""
    layer = head(6, 2, rule, loss=loss)
    for sizes, phi, y, weight in steps(world):
        y = y.argmax(1) if loss.labels else y
        parts = [(phi, y, weight)] if rank is None else list(zip(*(t.split(sizes) for t in (phi, y, weight))))
        phi, y, weight = parts[rank or 0]
        if mode == "accumulate":
            layer.accumulate(phi, y)
            layer.commit()
        else:
            layer.solve(phi, y, weight if mode == "weights" else None)
    return layer.state_dict()


CLASSES = (3, 40)


def among_classes(world, rank, classes, mode):
    """The default among few classes, where it is drawn to zero, and among so many that its steps are longer than those of
    the bound; rank None is one process."""
    layer = head(6, classes, loss=cf.CrossEntropy(), rule=cf.Auto())
    for seed, (sizes, phi, _, weight) in enumerate(steps(world)):
        y = torch.randint(0, classes, (sum(sizes),), generator=torch.Generator().manual_seed(seed))
        parts = [(phi, y, weight)] if rank is None else list(zip(*(t.split(sizes) for t in (phi, y, weight))))
        phi, y, weight = parts[rank or 0]
        layer.solve(phi, y, weight if mode == "weights" else None)
    return layer.state_dict()


def refitted(world, rank, loss):
    """Ranks read different numbers of batches; the last of three has none."""
    layer = head(6, 2, cf.Proximal(1.0), loss=loss)
    data = [(x, y.argmax(1) if loss.labels else y) for x, y in batches(5)]
    share = {0: slice(0, 3), 1: slice(3, 5), 2: slice(0, 0), None: slice(None)}[rank]
    return matrix(cf.refit_(layer, backbone(), data[share], beta=0.1, inner_steps=5))


def messages(rank):
    """Bad input on one rank raises on all, and leaves the heads as they were and the group usable."""
    layer = head(6, 2, cf.Proximal(1.0), seed=0)
    phi, y = problem(4, 6, 2)
    texts = []
    for bad_phi, bad_y in ((phi * float("nan"), y), (phi[:, :5], y), (phi[:0], y[:0]), (phi, y[:2])):
        try:
            layer.solve(bad_phi if rank == 1 else phi, bad_y if rank == 1 else y)
        except ValueError as error:
            texts.append(str(error))
    try:
        layer.commit() if rank == 1 else (layer.accumulate(phi, y), layer.commit())
    except ValueError as error:
        texts.append(str(error))
    layer.accumulate(phi, y)
    layer.accumulate(phi * float("nan") if rank == 1 else phi, y)  # raised by commit, where the others wait
    try:
        layer.commit()
    except ValueError as error:
        texts.append(str(error))
    untouched = torch.equal(matrix(layer), matrix(head(6, 2, cf.Proximal(1.0), seed=0)))
    layer.solve(phi, y)
    return texts, untouched, int(layer.attempts)


def trained(rank, world):
    """A model in DistributedDataParallel, driven by observe; ranks start from different weights."""
    torch.manual_seed(rank)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh()).double()
            self.fc = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(0.9, lam=1.0), init="lecun", dtype=torch.float64)

        def forward(self, x):
            return self.fc(self.net(x))

    model = Model()
    parallel = DistributedDataParallel(model)
    start = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for x, y in batches(6, n=4 * world):
        x, y = x.split(4)[rank], y.split(4)[rank]
        model.fc.observe(y)
        optimizer.zero_grad()
        F.mse_loss(parallel(x), y).backward()
        optimizer.step()
    return start, model.state_dict()


def worker(rank, world, port, folder):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    out = {}
    try:
        for name, rule in RULES.items():
            for mode in ("plain", "weights", "accumulate"):
                out[name, mode] = spread(world, rank, rule, mode)
        for name, loss in LOSSES.items():
            for rule in ("ridge", "proximal", "information", "covariance"):
                for mode in ("plain", "weights", "accumulate"):
                    out[name, rule, mode] = classified(world, rank, loss, RULES[rule], mode)
            out["refit", name] = refitted(world, rank, loss)
        for classes, mode in itertools.product(CLASSES, ("plain", "weights")):
            out[classes, mode] = among_classes(world, rank, classes, mode)
        alone = head(6, 2, cf.Proximal(1.0), process_group=False)
        alone.solve(*problem(4, 6, 2, seed=rank))
        out["alone"] = matrix(alone)
        pair = dist.new_group([0, 1])
        if rank < 2:
            grouped = head(6, 2, cf.Proximal(1.0), process_group=pair)
            grouped.solve(*problem(4, 6, 2, seed=rank))
            out["pair"] = matrix(grouped)
        mixed = head(6, 2, cf.Proximal(1.0))  # weights and dtypes may differ between ranks
        phi, y = problem(2, 6, 2, seed=rank)
        mixed.solve(phi.float() if rank else phi, y, torch.full((2,), 2.0) if rank else None)
        out["mixed"] = matrix(mixed)
        out["messages"] = messages(rank)
        out["ddp"] = trained(rank, world)
        net, layer = backbone(), head(6, 2, cf.Proximal(1.0))
        cf.refit_(layer, net, batches(6)[rank::world], beta=0.1)
        out["refit"] = matrix(layer)
    except Exception:
        out["error"] = traceback.format_exc()
    torch.save(out, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    world = request.param
    folder = tmp_path_factory.mktemp(f"world{world}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, (world, port, folder), nprocs=world)
    results = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]
    for result in results:
        assert "error" not in result, result["error"]
    return results


@pytest.mark.parametrize("mode", ["plain", "weights", "accumulate"])
@pytest.mark.parametrize("name", RULES)
def test_ranks_have_the_same_bits_and_equal_one_process(ranks, name, mode):
    one = single(len(ranks), RULES[name], mode)
    for result in ranks:
        for key, tensor in result[name, mode].items():
            assert torch.equal(tensor, ranks[0][name, mode][key]), key
            assert relative(tensor.double(), one[key].double()) < 1e-10, key


@pytest.mark.parametrize("mode", ["plain", "weights", "accumulate"])
@pytest.mark.parametrize("rule", ["ridge", "proximal", "information", "covariance"])
@pytest.mark.parametrize("name", LOSSES)
def test_other_losses_have_the_same_bits_and_equal_one_process(ranks, name, rule, mode):
    one = classified(len(ranks), None, LOSSES[name], RULES[rule], mode)
    for result in ranks:
        for key, tensor in result[name, rule, mode].items():
            assert torch.equal(tensor, ranks[0][name, rule, mode][key]), key
            assert relative(tensor.double(), one[key].double()) < 1e-9, key


@pytest.mark.parametrize("mode", ["plain", "weights"])
@pytest.mark.parametrize("classes", CLASSES)
def test_the_default_among_classes_has_the_same_bits_and_equals_one_process(ranks, classes, mode):
    one = among_classes(len(ranks), None, classes, mode)
    for result in ranks:
        for key, tensor in result[classes, mode].items():
            assert torch.equal(tensor, ranks[0][classes, mode][key]), key
            assert relative(tensor.double(), one[key].double()) < 1e-9, key


@pytest.mark.parametrize("name", LOSSES)
def test_other_losses_are_refitted_on_all_ranks_shares(ranks, name):
    one = refitted(len(ranks), None, LOSSES[name])
    for result in ranks:
        assert torch.equal(result["refit", name], ranks[0]["refit", name])
        assert relative(result["refit", name], one) < 1e-9


def test_a_group_of_its_own_or_none(ranks):
    for rank, result in enumerate(ranks):
        layer = head(6, 2, cf.Proximal(1.0))
        layer.solve(*problem(4, 6, 2, seed=rank))
        assert relative(result["alone"], matrix(layer)) < 1e-12
    layer = head(6, 2, cf.Proximal(1.0))
    layer.solve(*(torch.cat(parts) for parts in zip(problem(4, 6, 2, seed=0), problem(4, 6, 2, seed=1))))
    assert torch.equal(ranks[0]["pair"], ranks[1]["pair"])
    assert relative(ranks[0]["pair"], matrix(layer)) < 1e-10


def test_weights_and_dtypes_may_differ_between_ranks(ranks):
    layer = head(6, 2, cf.Proximal(1.0))
    parts = [problem(2, 6, 2, seed=rank) for rank in range(len(ranks))]
    phi = torch.cat([p.float().double() if rank else p for rank, (p, _) in enumerate(parts)])
    weight = torch.tensor([1.0, 1.0] + [2.0] * 2 * (len(ranks) - 1), dtype=torch.float64)
    layer.solve(phi, torch.cat([y for _, y in parts]), weight)
    for result in ranks:
        assert torch.equal(result["mixed"], ranks[0]["mixed"])
        assert relative(result["mixed"], matrix(layer)) < 1e-10


def test_bad_input_on_one_rank_raises_on_all(ranks):
    for rank, result in enumerate(ranks):
        texts, untouched, attempts = result["messages"]
        assert untouched
        assert attempts == 1
        assert len(texts) == 6
        if rank == 1:
            assert "NaN or infinite" in texts[0]
            assert "6 features" in texts[1]
            assert "no samples" in texts[2]
            assert "y must have shape" in texts[3]
            assert "nothing was accumulated" in texts[4]
            assert "phi has NaN" in texts[5]
        else:
            assert all("rank 1 of the process group rejected" in message for message in texts)


def test_ddp_training_is_training_on_the_joined_batch(ranks):
    world = len(ranks)
    start, _ = ranks[0]["ddp"]
    net = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh()).double()
    layer = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(0.9, lam=1.0), dtype=torch.float64)
    net.load_state_dict({k[4:]: v for k, v in start.items() if k.startswith("net.")})
    layer.load_state_dict({k[3:]: v for k, v in start.items() if k.startswith("fc.")})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches(6, n=4 * world):
        cf.training.algorithm1(net, layer, optimizer, x, y)
    for result in ranks:
        state = result["ddp"][1]
        assert all(torch.equal(v, ranks[0]["ddp"][1][k]) for k, v in state.items())
        assert relative(state["fc.weight"], layer.weight) < 1e-10
        assert relative(state["net.0.weight"], net[0].weight) < 1e-10


def test_refit_reads_each_ranks_share(ranks):
    layer = head(6, 2, cf.Proximal(1.0))
    cf.refit_(layer, backbone(), batches(6), beta=0.1)
    for result in ranks:
        assert torch.equal(result["refit"], ranks[0]["refit"])
        assert relative(result["refit"], matrix(layer)) < 1e-10
