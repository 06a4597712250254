"""The Lightning callbacks give the weights of the plain loop, whatever else the trainer does."""

import itertools
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import closedform as cf

from .helpers import batches, relative
from .lightning_cases import STEPS, module, net


@pytest.fixture(scope="module")
def host():
    """Lightning itself is slow to import, so only where a test needs it."""
    import lightning.pytorch as L

    from closedform.integrations import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return L, lightning


def fit(host, model, data, *callbacks, ckpt=None, methods=None, **kwargs):
    L, _ = host
    quiet = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "logger": False, "max_epochs": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice about workers and loggers
        trainer = L.Trainer(callbacks=list(callbacks), **quiet | kwargs)
        loader = torch.utils.data.DataLoader(data, batch_size=None) if isinstance(data, list) else data
        trainer.fit(module(L, model, **methods or {}), loader, ckpt_path=ckpt)
    return trainer


def plain(model, data, *, clip=None, every=1, bf16=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(data):
        model[-1].observe(y)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.mse_loss(model(x), y)
        (loss / every).backward()
        if (i + 1) % every == 0:
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), key


@pytest.mark.parametrize(
    ("trainer", "loop", "dtype"),
    [
        ({}, {}, torch.float64),
        ({"gradient_clip_val": 0.05}, {"clip": 0.05}, torch.float64),
        ({"accumulate_grad_batches": 2}, {"every": 2}, torch.float64),
        ({"precision": "bf16-mixed"}, {"bf16": True}, torch.float32),
    ],
    ids=["automatic", "clipping", "accumulation", "bf16-mixed"],
)
def test_the_weights_are_the_plain_loops(host, trainer, loop, dtype):
    data = batches(STEPS, dtype=dtype)
    ours = net(dtype=dtype)
    done = fit(host, ours, data, host[1].ClosedFormCallback(), **trainer)
    same(ours, plain(net(dtype=dtype), data, **loop))
    assert int(ours[-1].step) == STEPS
    if loop.get("clip"):  # or it would be no test of clipping
        assert relative(ours[0][0].weight, plain(net(dtype=dtype), data)[0][0].weight) > 1e-3
    assert float(done.callback_metrics["closedform/rejected"]) == 0
    assert float(done.callback_metrics["closedform/norm"]) == pytest.approx(float(ours[-1].weight.norm()))


def test_a_checkpoint_goes_on_with_the_heads_memory(host, tmp_path):
    data = batches(STEPS)
    whole, first, second = net(), net(), net(seed=1)
    callback = host[1].ClosedFormCallback()
    fit(host, whole, data, callback, max_epochs=2)
    fit(host, first, data, callback, max_epochs=1).save_checkpoint(tmp_path / "a.ckpt")
    fit(host, second, data, callback, max_epochs=2, ckpt=tmp_path / "a.ckpt")
    same(second, whole)


def test_refit_at_the_end_is_refit_after_the_loop(host):
    data = batches(STEPS)
    ours, theirs = net(), plain(net(), data)
    fit(host, ours, data, host[1].ClosedFormCallback(), host[1].RefitHead(beta=0.1))
    cf.refit_(theirs[-1], theirs, data, beta=0.1)
    same(ours, theirs)
    assert ours[-1].training == theirs[-1].training


def moved(batch):
    return batch[0] * 3 + 1, batch[1] * 10


@pytest.mark.parametrize("hook", ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"])
def test_refit_sees_the_batches_that_training_sees(host, hook):
    data = batches(STEPS)
    ours, theirs = net(), plain(net(), [moved(batch) for batch in data])
    cf.refit_(theirs[-1], theirs, [moved(batch) for batch in data], beta=0.1)
    methods = {hook: lambda self, batch, *_: moved(batch)}
    fit(host, ours, data, host[1].ClosedFormCallback(), host[1].RefitHead(beta=0.1), methods=methods)
    same(ours, theirs)
    wrong = plain(net(), [moved(batch) for batch in data])
    cf.refit_(wrong[-1], wrong, data, beta=0.1)
    assert relative(wrong[-1].weight, theirs[-1].weight) > 0.1


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-true", torch.bfloat16), ("64-true", torch.float64)])
def test_refit_in_true_precision(host, precision, dtype):
    data = batches(STEPS, dtype=torch.float32)
    cast = [(x.to(dtype), y.to(dtype)) for x, y in data]
    rule = cf.Proximal(1.0)
    ours, theirs = net(rule, dtype=torch.float32), plain(net(rule, dtype=torch.float32).to(dtype), cast)
    cf.refit_(theirs[-1], theirs, cast, beta=0.1)
    callbacks = host[1].ClosedFormCallback(), host[1].RefitHead(beta=0.1)
    fit(host, ours, data, *callbacks, precision=precision)
    assert ours[-1].weight.dtype == dtype
    same(ours, theirs)


def endless():
    while True:
        yield from batches(STEPS)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return endless()


def test_refit_reads_an_epoch_of_whatever_loader_there_is(host):
    data = batches(STEPS)
    theirs = plain(net(), data)
    cf.refit_(theirs[-1], theirs, data, beta=0.1)
    stream = torch.utils.data.DataLoader(Stream(), batch_size=None)
    callbacks = host[1].ClosedFormCallback(), host[1].RefitHead(beta=0.1)
    ours = net()
    fit(host, ours, stream, *callbacks, limit_train_batches=STEPS)
    same(ours, theirs)
    several = {"a": torch.utils.data.DataLoader(data, batch_size=None)}
    ours, of_a = net(), {"training_step": lambda self, batch, _: F.mse_loss(self(batch["a"][0]), batch["a"][1])}
    callbacks = (
        host[1].ClosedFormCallback(lambda batch: batch["a"][1]),
        host[1].RefitHead(0.1, lambda batch: batch["a"][1], lambda batch: batch["a"][0]),
    )
    fit(host, ours, several, *callbacks, methods=of_a)
    same(ours, theirs)


class Counted(torch.utils.data.IterableDataset):
    """A stream that does not tell its length, and counts what was read of it."""

    def __init__(self, length=None):
        self.length, self.read = length, 0

    def __iter__(self):
        for batch in itertools.islice(endless(), self.length):
            self.read += 1
            assert self.read < 1000
            yield batch


@pytest.mark.parametrize(
    ("length", "steps", "refitted"), [(None, 20, 20), (12, 20, 12)], ids=["endless", "stopped in the second epoch"]
)
def test_refit_of_a_stream_reads_as_much_as_the_longest_epoch(host, length, steps, refitted):
    data = list(itertools.islice(endless(), refitted))
    theirs = plain(net(), (data * 2)[:steps])
    cf.refit_(theirs[-1], theirs, data, beta=0.1)
    stream, ours = Counted(length), net()
    loader = torch.utils.data.DataLoader(stream, batch_size=None)
    callbacks = host[1].ClosedFormCallback(), host[1].RefitHead(beta=0.1)
    fit(host, ours, loader, *callbacks, max_epochs=-1, max_steps=steps)
    same(ours, theirs)
    assert steps + refitted <= stream.read <= steps + refitted + 2  # Lightning looks one ahead


class Once:
    def __init__(self, data):
        self.iterator = iter(data)

    def __iter__(self):
        return self.iterator


class Resetting:
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        self.left = list(self.data)
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


def test_refit_of_a_loader_that_is_its_own_iterator_but_starts_again(host):
    data = batches(STEPS)
    ours, theirs = net(), plain(net(), data)
    fit(host, ours, Resetting(data), host[1].ClosedFormCallback(), host[1].RefitHead(beta=0.1))
    cf.refit_(theirs[-1], theirs, data, beta=0.1)
    same(ours, theirs)


def test_features_that_are_not_finite_before_training_do_not_stop_it(host):
    """Only their shapes and types are tried."""
    data, model = batches(STEPS), net()
    counts = {"forward": lambda self, x: self.model(x if int(self.model[-1].step) else x / 0)}
    of_model = {"training_step": lambda self, batch, _: F.mse_loss(self.model(batch[0]), batch[1])}
    fit(host, model, data, host[1].ClosedFormCallback(), host[1].RefitHead(beta=0.1), methods=counts | of_model)
    assert int(model[-1].step) == STEPS


@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
def test_refit_of_a_compiled_module_with_validation(host, part):
    """Which compiles a prediction without the hook of the refit, after the first batch was tried."""
    L, lightning = host
    torch._dynamo.reset()
    data, ours = batches(STEPS), net()
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    seen = []
    methods = {"validation_step": lambda self, batch, _: seen.append(F.mse_loss(self(batch[0]), batch[1]))}
    whole = module(L, torch.compile(ours, backend="eager") if part else ours, **methods)
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    callbacks = [lightning.ClosedFormCallback(), lightning.RefitHead(beta=0.1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(**quiet, enable_checkpointing=False, max_epochs=1, callbacks=callbacks)
        trainer.fit(whole if part else torch.compile(whole, backend="eager"), loader, loader)
    assert len(seen) == STEPS + 2
    theirs = plain(net(), data)
    cf.refit_(theirs[-1], theirs, data, beta=0.1)
    for key, tensor in theirs.state_dict().items():  # not to the bit: a compiled solve branches nowhere
        assert relative(ours.state_dict()[key].double(), tensor.double()) < 1e-9, key


def test_what_the_refit_needs_is_asked_for_at_the_start(host):
    """And not after hours of training: no step is taken, and nothing is drawn from the generator for it."""
    L, lightning = host
    refit, data = lightning.RefitHead, batches(STEPS)
    keyed = [{"x": x, "t": y} for x, y in data]
    narrow = [(x, y[:, :1]) for x, y in data]
    of_model = {"training_step": lambda self, batch, _: F.mse_loss(self.model(batch[0]), batch[1])}
    cases = [
        (data, refit(), of_model | {"forward": L.LightningModule.forward}, r"Module has no forward\(\)"),
        (
            data,
            refit(),
            of_model | {"forward": lambda self, x: self.model[0](x)},
            "without one of its ClosedFormLinear",
        ),
        (keyed, refit(0.1, "t"), {}, "what of a dict is the input: give it inputs="),
        (keyed, refit(0.1), {}, "batch that is a dict with the keys x, t"),
        (narrow, refit(), {}, r"y must have shape \(5, 2\)"),
        (keyed, refit(0.1, "t", lambda batch: batch), {}, "one tensor, but the inputs found in a batch are a dict"),
        (
            data,
            refit(),
            {"forward": lambda self, x, z: self.model(x + z)},
            r"forward\(self, x, z\) of Module cannot be",
        ),
        (Once(data), refit(), {}, "the loader, a Once, can be read only once"),
        ((batch for batch in data), refit(), {}, "the loader, a generator, can be read only once"),
    ]
    for batch, callback, methods, message in cases:
        model = net()
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        with pytest.raises(ValueError, match=message):
            fit(host, model, batch, callback, methods=methods)
        assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items()), message
    noisy = {"forward": lambda self, x: self.model(x + 0.1 * torch.randn_like(x))}
    with_refit, without = net(), net()
    for model, callbacks in ((with_refit, [refit(0.1)]), (without, [])):
        torch.manual_seed(0)
        fit(host, model, data, lightning.ClosedFormCallback(), *callbacks, methods=noisy)
    same(with_refit[0], without[0])


def test_checkpoints_of_training_hold_the_head_that_training_goes_on_with(host, tmp_path, caplog):
    L, lightning = host
    data, whole, first, second = batches(STEPS), net(), net(), net(seed=1)
    callback, refit = lightning.ClosedFormCallback(), lightning.RefitHead(beta=0.1)
    saving = L.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    fit(host, whole, data, callback, refit, max_epochs=2)
    with caplog.at_level(logging.INFO, "lightning.pytorch.utilities.rank_zero"):
        trainer = fit(host, first, data, callback, refit, saving, enable_checkpointing=True)
    assert "trainer.save_checkpoint(path) saves it" in caplog.text
    fit(host, second, data, callback, refit, max_epochs=2, ckpt=saving.last_model_path)
    same(second, whole)
    trainer.save_checkpoint(tmp_path / "refitted.ckpt")
    last, refitted = (
        torch.load(path, weights_only=False)["state_dict"]["model.1.weight"]
        for path in (saving.last_model_path, tmp_path / "refitted.ckpt")
    )
    assert torch.equal(refitted, first[-1].weight)
    assert torch.equal(last, plain(net(), data)[-1].weight)
    assert relative(last, refitted) > 1e-3


def test_targets_under_a_key_and_with_weights(host):
    _, lightning = host
    data = batches(STEPS)
    weights = [torch.linspace(0.1, 1, 5, dtype=torch.float64)] * STEPS
    keyed = [{"x": x, "t": y, "w": w} for (x, y), w in zip(data, weights)]
    by_key, by_function, by_tuple = net(cf.Proximal()), net(cf.Proximal()), net(cf.Proximal())
    fit(host, by_key, keyed, lightning.ClosedFormCallback("t"))
    same(by_key, plain(net(cf.Proximal()), data))
    fit(host, by_function, keyed, lightning.ClosedFormCallback(lambda b: (b["t"], b["w"])))
    fit(host, by_tuple, [(*pair, w) for pair, w in zip(data, weights)], lightning.ClosedFormCallback())
    same(by_function, by_tuple)
    assert relative(by_tuple[-1].weight, by_key[-1].weight) > 1e-3
    refitted = net(cf.Proximal())
    refit = lightning.RefitHead(0.1, "t", inputs=lambda b: b["x"])
    fit(host, refitted, keyed, lightning.ClosedFormCallback("t"), refit)
    cf.refit_(by_key[-1], by_key, data, beta=0.1)
    same(refitted, by_key)


def test_bad_use_is_told_in_a_sentence(host):
    _, lightning = host
    callback, data = lightning.ClosedFormCallback, batches(2)
    without = torch.nn.Sequential(torch.nn.Linear(3, 6).double(), torch.nn.Linear(6, 2).double())
    with pytest.raises(ValueError, match="Module has no ClosedFormLinear, so there is nothing to solve"):
        fit(host, without, data, callback())
    two = torch.nn.Sequential(net(), cf.ClosedFormLinear(2, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"several ClosedFormLinear layers \(model.0.1, model.1\)"):
        fit(host, two, data, callback())
    with pytest.raises(ValueError, match="no ClosedFormLinear called 'fc'; it has model.1"):
        fit(host, net(), data, callback(name="fc"))
    keyed = [{"x": x, "t": y} for x, y in data]
    with pytest.raises(ValueError, match="batch that is a dict with the keys x, t: expected"):
        fit(host, net(), keyed, callback())
    with pytest.raises(ValueError, match="targets='y' to find a tensor in it"):
        fit(host, net(), keyed, callback("y"))
    with pytest.raises(ValueError, match="ended without a forward of the ClosedFormLinear"):
        fit(host, net(), data, callback(), methods={"forward": lambda self, x: self.model[0](x)[:, :2]})
    with pytest.raises(ValueError, match="beta"):
        lightning.RefitHead(beta=-1.0)


@pytest.mark.slow
def test_ddp_over_two_processes_is_one_process_on_the_joined_batch(tmp_path):
    script = Path(__file__).with_name("lightning_ddp.py")
    subprocess.run([sys.executable, "-W", "ignore", str(script), str(tmp_path)], check=True, capture_output=True)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    model = plain(net(), batches(STEPS, n=8))
    cf.refit_(model[-1], model, batches(STEPS, n=8), beta=0.1)
    for key, tensor in model.state_dict().items():
        assert torch.equal(ranks[0][key], ranks[1][key]), key
        assert relative(ranks[0][key].double(), tensor.double()) < 1e-10, key
