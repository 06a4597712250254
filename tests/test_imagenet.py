"""The ImageNet experiment on a small twin of its network and generated images: folders, batches, every method, stopping and
going on, two processes, the command."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from closedform.paper.data import imagefolder, mosaics, store, tinyimagenet
from closedform.paper.experiments import batches, imagenet, imagenet_model
from closedform.paper.experiments.averaging import Average
from closedform.paper.sweeps.records import Records
from closedform.paper.sweeps.work import OutOfTime

Image = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).parents[1]
CLASSES = ("n01", "n02", "n03", "n04")
TRAIN, VALIDATION = 16, 6  # images of a class


def write_images(folder: Path, classes=CLASSES) -> Path:
    """Class folders of noisy images; a class has its colour."""
    random = np.random.RandomState(0)
    for part, count in (("train", TRAIN), ("val", VALIDATION)):
        for label, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True)
            for k in range(count):
                height, width = 20 + k % 3, 24
                pixels = random.normal(100, 40, (height, width, 3))
                pixels[:, :, label % 3] += 50 * (1 + label // 3)
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / part / name / f"{k}.png")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


def recipe(folder, **changed):
    changed = {"batch_size": 16, "epochs": 6, "average": 0.0, "size": 16, "test_size": 16} | changed
    return imagenet.small(imagenet.of_folder(imagefolder.load(folder), **changed))


def config_of(folder, method="kalman cross-entropy", lr=0.1, **changed):
    return recipe(folder, **changed).config(method, 0, lr)


def model_of(config, folder, mix=None):
    source = imagenet.batches_of(config, "cpu", folder, 0)
    source.mix = mix
    return imagenet_model.classifier(config, source)


def half_and_half(x, y):
    """A twin of mixup: every image with the next one."""
    rows = torch.nn.functional.one_hot(y, len(CLASSES)).float()
    return (x + x.roll(1, 0)) / 2, (rows + rows.roll(1, 0)) / 2


# ---- Folders and mosaics -------------------------------------------------------------------------


def test_a_folder_is_listed_by_class_in_alphabetical_order(folder):
    listed = imagefolder.load(folder)
    assert listed.classes == CLASSES
    assert len(listed.train) == 4 * TRAIN
    assert len(listed.validation) == 4 * VALIDATION
    names = [name.decode().split("/")[0] for name in listed.train.names]
    assert [CLASSES[label] for label in listed.train.labels] == names


def test_a_folder_that_is_none_is_refused(tmp_path):
    whole = write_images(tmp_path / "whole")
    (whole / "val").rename(whole / "valid")
    with pytest.raises(ValueError, match="has no folder 'val'; expected train/CLASS"):
        imagefolder.load(whole)
    (whole / "val").mkdir()
    (whole / "val" / "one.JPEG").touch()
    with pytest.raises(ValueError, match="val has no class folders"):
        imagefolder.load(whole)
    (whole / "val" / "one.JPEG").unlink()
    (whole / "val").rmdir()
    (whole / "valid").rename(whole / "val")
    (whole / "val" / "n04").rename(whole / "val" / "n05")
    with pytest.raises(ValueError, match="class folders of .* differ: 2 .* such as 'n04' in train"):
        imagefolder.load(whole)
    (whole / "val" / "n05").rename(whole / "val" / "n04")
    for image in (whole / "train" / "n02").iterdir():
        image.unlink()
    with pytest.raises(ValueError, match="n02 has no images"):
        imagefolder.load(whole)


def test_a_damaged_image_is_named(tmp_path):
    listed = imagefolder.load(write_images(tmp_path / "images"))
    (tmp_path / "images" / "train" / "n01" / "0.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(ValueError, match=r"n01/0.png cannot be read as an image"):
        imagefolder.FolderImages(listed.train, imagefolder.RandomCrop(8), 0)[0, 0]


def test_what_is_random_about_an_image_comes_from_seed_epoch_and_number(folder):
    listed = imagefolder.load(folder)
    images = imagefolder.FolderImages(listed.train, imagefolder.RandomCrop(16), seed=1)
    first, label = images[2, 5]
    torch.rand(7)
    assert torch.equal(images[2, 5][0], first)
    assert label == listed.train.labels[5]
    assert first.shape == (3, 16, 16)
    assert first.dtype == torch.uint8
    other_seed = imagefolder.FolderImages(listed.train, imagefolder.RandomCrop(16), seed=2)
    assert not torch.equal(images[3, 5][0], first)
    assert not torch.equal(other_seed[2, 5][0], first)


def test_the_central_crop_is_the_middle():
    pixels = np.zeros((30, 40, 3), np.uint8)
    pixels[:, 5:35] = (9, 8, 7)  # the middle square
    cropped = imagefolder.CentralCrop(10, share=1.0)(Image.fromarray(pixels))
    assert (cropped[:, :, 1:-1] == np.array([9, 8, 7])[:, None, None]).all()  # a cubic filter sees beyond the edge


def test_tiny_imagenet_is_read_from_mosaics(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOSEDFORM_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="Tiny ImageNet is not on this machine"):
        tinyimagenet.load()
    size, across = tinyimagenet.SIZE, mosaics.ACROSS
    pixels = np.zeros((size * across, size * across, 3), np.uint8)
    pixels[size : 2 * size, 2 * size : 3 * size] = (10, 20, 30)  # row 1, column 2: image 102
    labels = {f"y_{part}": (np.arange(10_000) % 200).astype(np.uint8) for part in ("train_0", "validation")}
    labels["y_train_1"] = labels["y_train_0"] + 1  # 200 is no class
    store.save(tmp_path / "tinyimagenet" / "tinyimagenet_labels.npz", labels)
    for part in ("train_0", "validation"):
        path = tmp_path / "tinyimagenet" / f"tinyimagenet_{part}.webp"
        Image.fromarray(pixels).save(path, lossless=True, method=0)
    images = tinyimagenet.load(parts=1)
    assert images.x_train.shape == (10_000, 3, size, size)
    assert images.x_validation[102, :, 7, 7].tolist() == [10, 20, 30]
    assert not images.x_train[101].any()
    assert images.y_train[201] == 1
    with pytest.raises(ValueError, match="no 10,000 labels from 0 to 199 under the name y_train_1"):
        tinyimagenet.load(parts=2)
    with pytest.raises(ValueError, match="parts is 11; expected 1 to 10"):
        tinyimagenet.load(parts=11)
    (tmp_path / "tinyimagenet" / "tinyimagenet_train_0.webp").unlink()
    with pytest.raises(FileNotFoundError, match="not tinyimagenet/tinyimagenet_train_0.webp"):
        tinyimagenet.load(parts=1)


# ---- Batches -------------------------------------------------------------------------------------


def test_an_epoch_has_every_image_once_and_can_be_entered_anywhere(folder):
    config = config_of(folder)
    source = imagenet.batches_of(config, "cpu", folder, 0)
    seen = []
    for t in range(2 * source.per_epoch):
        source.load(t)
        seen.append(source.batch())
    counts = torch.bincount(torch.cat([y for _, y in seen[: source.per_epoch]]))
    assert counts.tolist() == [TRAIN] * 4
    assert not torch.equal(seen[0][0], seen[source.per_epoch][0])
    later = imagenet.batches_of(config, "cpu", folder, 0)
    for t in (6, 7, 2):
        later.load(t)
        assert torch.equal(later.batch()[0], seen[t][0])
    assert sum(len(y) for _, y in source.images("validation")) == 4 * VALIDATION


@pytest.mark.slow
def test_workers_read_the_same_images(folder):
    config = config_of(folder)
    alone, read = (imagenet.batches_of(config, "cpu", folder, workers) for workers in (0, 2))
    for t in (0, 1, 4, 3):
        alone.load(t)
        read.load(t)
        assert torch.equal(alone.batch()[0], read.batch()[0])
        assert torch.equal(alone.batch()[1], read.batch()[1])


def test_bad_wishes_are_named(folder):
    with pytest.raises(ValueError, match="batch size 128 is larger than the training set of 64 images"):
        imagenet.batches_of(config_of(folder, batch_size=128), "cpu", folder, 0)
    with pytest.raises(ValueError, match="there is no method 'hinge'; expected cross-entropy"):
        config_of(folder, "hinge")
    with pytest.raises(ValueError, match="decay of an average must be between 0 and 1, got 1"):
        Average(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), 1.0)


# ---- The recipe ----------------------------------------------------------------------------------


def test_the_recipe_is_the_papers():
    recipe = imagenet.Recipe()
    config = recipe.config("cross-entropy", 0)
    assert (config["lr"], config["batch_size"], config["warm_up"], config["weight_decay"]) == (1.6, 4096, 5, 2e-5)
    assert (config["clip"], config["smoothing"]) == (0.01, 0.1)
    assert recipe.config("l2", 0)["lr"] == 1.0
    assert recipe.config("proximal", 0)["lam"] == 1e4
    assert recipe.config("ridge", 0)["beta"] == 0.01
    few_rows = imagenet.tiny().config("proximal", 0)
    assert (few_rows["lam"], few_rows["ratio"], few_rows["lr"]) == (None, imagenet.RATIO, 0.4)


def test_weight_decay_is_not_on_gains_and_biases(folder):
    for method in imagenet.METHODS:
        model = model_of(config_of(folder, method), folder)
        decayed, free = model.optimizers[0].param_groups
        assert (decayed["weight_decay"], free["weight_decay"]) == (2e-5, 0.0)
        weights = [model.backbone.first.weight, model.backbone.second.weight]
        others = [model.backbone.gain, model.backbone.first.bias, model.backbone.second.bias]
        if method in ("cross-entropy", "l2"):
            weights, others = [*weights, model.head.weight], [*others, model.head.bias]
        assert {id(p) for p in decayed["params"]} == {id(p) for p in weights}
        assert {id(p) for p in free["params"]} == {id(p) for p in others}


def test_gradients_are_clipped_before_the_step(folder):
    model = model_of(config_of(folder, "cross-entropy"), folder)
    before = [parameter.clone() for parameter in model.backbone.parameters()]
    model.clip = lambda: [parameter.grad.zero_() for parameter in model.backbone.parameters()]
    model.optimizers[0].param_groups[0]["weight_decay"] = 0.0
    model.advance(2)
    assert all(torch.equal(a, b) for a, b in zip(model.backbone.parameters(), before))
    assert model.head.weight.any()


def test_the_average_follows_the_weights(folder):
    model = model_of(config_of(folder, average=0.95), folder)
    expected = torch.zeros_like(model.head.weight)
    first = model.backbone.first.weight.detach().clone()
    for t in range(5):
        model.advance()
        decay = min(0.95, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * model.head.weight
        first = decay * first + (1 - decay) * model.backbone.first.weight.detach()
    assert torch.allclose(model.average.head.weight, expected, atol=1e-6)
    assert torch.allclose(model.average.backbone.first.weight, first, atol=1e-6)
    assert set(model.measure()) == {"validation", "validation_average"}


# ---- One run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(imagenet.METHODS))
@pytest.mark.parametrize("mix", [None, half_and_half], ids=["whole", "soft"])
def test_every_method_learns_from_whole_and_from_soft_labels(method, mix, folder):
    config = config_of(folder, method, lr=0.05, epochs=10) | ({"lam": 10.0} if method == "proximal" else {})
    model = model_of(config, folder, mix)
    rows = model.train(probabilities=False)
    assert rows[-1]["validation"] > 0.6
    assert rows[-1]["train"] < rows[0]["train"]


def test_soft_labels_reach_the_solve_and_the_loss_as_they_are(folder):
    """The mean of two whole labels, smoothed, is the target of both."""
    model = model_of(config_of(folder, "proximal") | {"lam": 3.0}, folder, half_and_half)
    model.batches.load(0)
    x, rows = model.batches.batch()
    assert rows.shape == (16, 4)
    phi = model._features(x).detach().double()
    phi = torch.cat([phi, torch.ones(16, 1, dtype=torch.float64)], 1)
    target = 0.9 * rows.double() + 0.1 / 4
    expected = torch.linalg.solve(phi.T @ phi + 3.0 * torch.eye(33, dtype=torch.float64), phi.T @ target).T
    loss = ((target - phi @ expected.T) ** 2).sum(1).mean()
    model.advance()
    assert torch.allclose(model.head.weight.double(), expected[:, :-1], atol=1e-5)
    assert float(model.loss_sum) == pytest.approx(float(loss), rel=1e-4)


@pytest.mark.parametrize("method", ["kalman cross-entropy", "cross-entropy"])
def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(method, folder, tmp_path):
    config = config_of(folder, method, epochs=3, average=0.9)
    whole = model_of(config, folder, half_and_half)
    expected = whole.train(marks=3, probabilities=False)
    checkpoint, stops = tmp_path / "run.checkpoint", 0
    while True:
        part = model_of(config, folder, half_and_half)
        try:
            rows = part.train(
                marks=3, probabilities=False, checkpoint=checkpoint, name="a", deadline=time.perf_counter()
            )
            break
        except OutOfTime:
            stops += 1
    assert stops == whole.total - 1
    assert torch.equal(part.head.weight, whole.head.weight)
    assert torch.equal(part.average.head.weight, whole.average.head.weight)
    for row, other in zip(rows, expected):
        del row["wall_s"], other["wall_s"]
    assert str(rows) == str(expected)


# ---- The folder of the results, the command ------------------------------------------------------


def command(*words, **env):
    code = "from closedform.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "paper", "imagenet", *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | env,
        timeout=300,
    )


def test_runs_are_files_and_what_is_finished_is_not_run_again(folder, tmp_path, monkeypatch):
    wanted = imagenet.configs(recipe(folder, epochs=1), ["l2", "proximal"], [0.05], seeds=2)
    assert [(config["method"], config["seed"]) for config in wanted] == [
        ("l2", 0), ("proximal", 0), ("l2", 1), ("proximal", 1)
    ]  # fmt: skip
    lines = []
    imagenet.run(tmp_path, wanted[:3], images=folder, say=lines.append)
    assert len(lines) == len(list((tmp_path / "runs").glob("*.json"))) == 3
    record = Records(tmp_path / "runs").get(wanted[1])
    assert record["processes"] == 1
    assert record["captured"] is False
    assert math.isfinite(record["rows"][-1]["validation"])
    states = imagenet.progress(wanted, Records(tmp_path / "runs"))
    assert [line.endswith("not finished") for line in states] == [False, False, False, True]
    monkeypatch.setattr(imagenet, "train", lambda *a, **k: pytest.fail("ran again"))
    imagenet.run(tmp_path, wanted[:3], images=folder, say=lines.append)


@pytest.mark.slow
def test_the_command_trains_and_tells(folder, tmp_path):
    words = ("--images", folder, "--quick", "--batch-size", 16, "--method", "proximal", "--method", "l2")
    words += ("--workers", 0, "--device", "cpu", "--lr", 0.05, "--at-once", 2, "--out", tmp_path / "out")
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("validation") == 4
    status = command(*words, "--status")
    assert status.stdout.splitlines()[-2:] == done.stdout.splitlines()[-2:]


@pytest.mark.slow
def test_the_command_says_in_one_sentence_what_is_wrong_or_missing(folder, tmp_path):
    missing = command("--images", tmp_path, "--quick")
    assert missing.returncode == 2
    assert "has no folder 'train'" in missing.stderr
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "timm.py").write_text("raise ImportError('No module named timm')")
    path = f"{blocked}{os.pathsep}{ROOT / 'src'}"
    absent = command("--images", folder, "--batch-size", 16, "--out", tmp_path / "out", PYTHONPATH=path)
    assert absent.returncode == 2
    assert "pip install 'closedform[imagenet]'" in absent.stderr
    assert "Traceback" not in absent.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["kalman cross-entropy", "cross-entropy"])
def test_two_processes_give_what_one_gives(method, folder, tmp_path):
    """A run of two processes is put aside, goes on, and ends where one process ends."""
    words = ["paper", "imagenet", "--images", str(folder), "--quick", "--batch-size", "16", "--method", method]
    words += ["--workers", "0", "--device", "cpu", "--lr", "0.05", "--epochs", "3"]
    script = tmp_path / "run.py"
    script.write_text("from closedform.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}

    def torchrun(*more):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
        done = subprocess.run(
            [*launch, *words, *more, "--out", str(tmp_path / "two")],
            capture_output=True,
            text=True,
            env=env,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "put aside" in torchrun("--seconds", "0.1")
    assert list((tmp_path / "two" / "checkpoints").glob("*.checkpoint"))
    out = torchrun()
    assert out.count("Ctrl-C") == 1  # one of them speaks
    assert not list((tmp_path / "two" / "checkpoints").glob("*.checkpoint"))
    (two,) = [json.loads(path.read_text()) for path in (tmp_path / "two" / "runs").glob("*.json")]
    one = imagenet.train(two["config"], device="cpu", images=folder)
    assert two["processes"] == 2
    for row, other in zip(two["rows"], one["rows"]):
        assert row["train"] == pytest.approx(other["train"], rel=1e-3)
        assert row["validation"] == pytest.approx(other["validation"], abs=0.05)


def test_batches_cannot_be_shared_by_any_number_of_processes(folder, monkeypatch):
    monkeypatch.setattr(batches.distributed, "place", lambda: (1, 3))
    with pytest.raises(ValueError, match="batch size 16 cannot be shared equally by 3 processes"):
        imagenet.batches_of(config_of(folder), "cpu", folder, 0)


# ---- With timm -----------------------------------------------------------------------------------


def _timm():
    try:
        return imagenet_model.timm()
    except ImportError as missing:
        pytest.skip(str(missing))


def test_mixup_and_the_transforms_of_timm(folder):
    _timm()
    changed = {"size": 24, "test_size": 24, "mixup": 0.2, "cutmix": 1.0, "randaugment": "rand-n4-m5"}
    config = config_of(folder) | changed
    source = imagenet.batches_of(config, "cpu", folder, 0)
    model = imagenet_model.classifier(config | {"clip": 0.01}, source)
    assert model.train(marks=2, probabilities=False)[-1]["train"] > 0
    x, y = source.batch()
    assert x.shape == (16, 3, 24, 24)
    assert torch.allclose(y.sum(1), torch.ones(16))
    assert any(bool((source.batch()[1].amax(1) < 0.99).any()) for _ in range(20))  # some draws mix next to nothing


@pytest.mark.slow
def test_the_network_of_the_paper(folder):
    _timm()
    config = imagenet.tiny().config("proximal", 0)
    network, features = imagenet_model.backbone_of(config)
    assert features == imagenet.FEATURES["nfnet_f0"]
    decayed, free = imagenet_model.groups([network], 2e-5)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    assert all(names[id(parameter)].endswith(".weight") for parameter in decayed["params"])
    assert len(decayed["params"]) + len(free["params"]) == len(names)
