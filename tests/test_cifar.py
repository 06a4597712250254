"""CIFAR-100: where the images come from, damaged files, the split, and augmentation against a slow one."""

import hashlib
import pickle
import tarfile

import numpy as np
import pytest
import torch

from closedform.paper.data import cifar, store

GIVEN = store.data_file("cifar100/cifar100_labels.npz")
needs_cifar = pytest.mark.skipif(GIVEN is None, reason="needs the folder cifar100 in CLOSEDFORM_DATA")


@pytest.fixture
def official(tmp_path, monkeypatch):
    """A small official folder and archive outside of where anything is looked for; returns the folder that holds both."""
    monkeypatch.delenv("CLOSEDFORM_DATA", raising=False)
    monkeypatch.setenv("CLOSEDFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar, "TRAINING", 40)
    monkeypatch.setattr(cifar, "TEST", 20)
    folder = tmp_path / "origin" / cifar.FOLDER
    folder.mkdir(parents=True)
    sums = {}
    for name, count, seed in (("train", 40, 0), ("test", 20, 1)):
        images = cifar.synthetic(count, seed)
        body = {
            b"data": images.x.reshape(count, -1),
            b"fine_labels": images.y.tolist(),
            b"batch_label": b"made for a test",
        }
        (folder / name).write_bytes(pickle.dumps(body, protocol=3))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    archive = folder.parent / cifar.ARCHIVE
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, cifar.FOLDER)
    sums[cifar.ARCHIVE] = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar, "MD5", sums)
    monkeypatch.setattr(cifar, "URL", archive.as_uri())
    return folder.parent


def same(images, count, seed):
    expected = cifar.synthetic(count, seed)
    return np.array_equal(images.x, expected.x) and np.array_equal(images.y, expected.y)


def test_the_archive_is_downloaded_once(official, monkeypatch):
    training, test = cifar.images()
    assert same(training, 40, 0)
    assert same(test, 20, 1)
    monkeypatch.setattr(cifar, "URL", "file:///nowhere")
    assert same(cifar.images()[0], 40, 0)


def test_a_folder_or_an_archive_that_is_there_is_read(official, monkeypatch):
    monkeypatch.setattr(cifar, "URL", "file:///nowhere")
    monkeypatch.setenv("CLOSEDFORM_DATA", str(official))
    assert same(cifar.images()[1], 20, 1)  # the folder
    for path in (official / cifar.FOLDER).iterdir():
        path.unlink()
    assert same(cifar.images()[1], 20, 1)  # the archive


def test_a_wrong_download_is_refused_and_not_kept(official, tmp_path, monkeypatch):
    monkeypatch.setitem(cifar.MD5, cifar.ARCHIVE, "0" * 32)
    with pytest.raises(ValueError, match="expected 00000000000000000000000000000000"):
        cifar.images()
    assert not list((tmp_path / "cache").iterdir())


def test_a_damaged_archive_is_named(official, tmp_path):
    cifar.images()
    archive = tmp_path / "cache" / cifar.ARCHIVE
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(ValueError, match="remove it to download it again"):
        cifar.images()


def test_nothing_there_is_one_clear_sentence(official, monkeypatch):
    monkeypatch.setattr(cifar, "URL", "file:///nowhere")
    with pytest.raises(FileNotFoundError, match=r"CIFAR-100 is not on this machine.*CLOSEDFORM_DATA"):
        cifar.images()


def test_damaged_files_of_a_folder_are_named(official, monkeypatch):
    monkeypatch.setenv("CLOSEDFORM_DATA", str(official))
    path = official / cifar.FOLDER / "test"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ValueError, match="the file 'test' of CIFAR-100 has the MD5 sum"):
        cifar.images()
    path.unlink()
    with pytest.raises(FileNotFoundError, match="not cifar-100-python/test"):
        cifar.images()


class _Evil:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_nothing_but_arrays_is_unpickled(official, monkeypatch, capsys):
    monkeypatch.setenv("CLOSEDFORM_DATA", str(official))
    path = official / cifar.FOLDER / "train"
    path.write_bytes(pickle.dumps({b"data": _Evil()}, protocol=3))
    monkeypatch.setitem(cifar.MD5, "train", hashlib.md5(path.read_bytes()).hexdigest())
    with pytest.raises(pickle.UnpicklingError, match="print is not an array"):
        cifar.images()
    assert "unpickled" not in capsys.readouterr().out


def test_mosaics(tmp_path, monkeypatch):
    """Tiles in the order of reading; a part that lacks, or has another size, is named."""
    Image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("CLOSEDFORM_DATA", str(tmp_path))
    folder = tmp_path / "cifar100"
    folder.mkdir()
    tile = np.zeros((3200, 3200, 3), np.uint8)
    tile[32:64, 64:96] = (10, 20, 30)  # row 1, column 2: image 102
    tile[32, 95] = (40, 50, 60)
    labels = {f"y_{part}": (np.arange(10_000) + k).astype(np.uint8) % 100 for k, part in enumerate(cifar.PARTS)}
    store.save(folder / "cifar100_labels.npz", labels)
    Image.fromarray(tile).save(folder / "cifar100_test.webp", lossless=True, method=0)
    for part in cifar.PARTS[:-1]:
        (folder / f"cifar100_{part}.webp").write_bytes((folder / "cifar100_test.webp").read_bytes())
    training, test = cifar.images()
    assert training.x.shape == (50_000, 3, 32, 32)
    assert test.x[102, :, 5, 5].tolist() == [10, 20, 30]
    assert test.x[102, :, 0, 31].tolist() == [40, 50, 60]
    assert not test.x[101].any()
    assert training.y[20_000] == 2
    Image.fromarray(tile[:64]).save(folder / "cifar100_train_3.webp", lossless=True)
    with pytest.raises(ValueError, match=r"cifar100_train_3.webp has shape \(64, 3200, 3\)"):
        cifar.images()
    (folder / "cifar100_train_3.webp").write_bytes(b"RIFF")
    with pytest.raises(ValueError, match="cifar100_train_3.webp cannot be read as an image"):
        cifar.images()
    (folder / "cifar100_train_3.webp").unlink()
    with pytest.raises(FileNotFoundError, match="not cifar100/cifar100_train_3.webp"):
        cifar.images()


def test_a_split_has_every_image_once_and_comes_from_the_seed():
    images = cifar.synthetic(100)
    split, again, other = (cifar.load(seed, 100, source="synthetic") for seed in (3, 3, 4))
    assert len(split.x_train) == 80
    assert len(split.x_test) == 50
    joined = torch.cat([split.x_train, split.x_validation]).flatten(1)
    assert {row.tobytes() for row in joined.numpy()} == {row.tobytes() for row in images.x.reshape(100, -1)}
    assert torch.equal(split.x_train, again.x_train)
    assert not torch.equal(split.x_train, other.x_train)
    assert torch.equal(split.x_test, other.x_test)
    x = cifar.normalise(split.x_train, split.mean, split.std)
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(x.std((0, 2, 3)), torch.ones(3), atol=1e-3)
    first = (split.x_train[0].flatten() == torch.from_numpy(images.x.reshape(100, -1))).all(1).nonzero().item()
    assert split.y_train[0] == images.y[first]


def test_bad_limits_and_sources_are_named():
    with pytest.raises(ValueError, match="limit is 5; expected 10 to 5"):
        cifar.load(limit=5, source="synthetic")
    with pytest.raises(ValueError, match="expected 'cifar100' or 'synthetic'"):
        cifar.load(source="cifar10")


def test_augmentation_against_one_image_at_a_time():
    x = torch.from_numpy(cifar.synthetic(20).x)
    g = torch.Generator().manual_seed(0)
    shift = torch.randint(0, 2 * cifar.SHIFT + 1, (20, 2), generator=g)
    flip = torch.rand(20, generator=g) < 0.5
    augmented = cifar.augment(x, shift, flip)
    for image, (down, right), mirrored, result in zip(x, shift.tolist(), flip, augmented):
        padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
        padded[:, 4:36, 4:36] = image
        crop = padded[:, down : down + 32, right : right + 32]
        assert torch.equal(result, crop.flip(2) if mirrored else crop)
    still = torch.full((20, 2), cifar.SHIFT)
    assert torch.equal(cifar.augment(x, still, torch.zeros(20, dtype=torch.bool)), x)
    assert flip.any()
    assert not flip.all()


def test_the_generated_classes_can_be_told_apart():
    """By the nearest class mean of the spectra, far above chance: a twin that nothing can learn would test nothing."""
    split = cifar.load(source="synthetic", limit=500)

    def spectra(x):
        return torch.fft.rfft2(x.float() - 128).abs().flatten(1)

    train, test = spectra(split.x_train), spectra(split.x_test)
    means = torch.stack([train[split.y_train == c].mean(0) for c in range(10)])
    assert float((torch.cdist(test, means).argmin(1) == split.y_test).float().mean()) > 0.8


@needs_cifar
def test_the_real_images():
    training, test = cifar.images()
    assert np.array_equal(np.bincount(training.y), np.full(100, 500))
    assert np.array_equal(np.bincount(test.y), np.full(100, 100))
    mean, std = cifar.moments(training.x)
    assert np.allclose(mean, [0.5071, 0.4865, 0.4409], atol=1e-4)  # as published
    assert np.allclose(std, [0.2673, 0.2564, 0.2762], atol=1e-4)


@needs_cifar
def test_the_real_split():
    split = cifar.load(seed=1, limit=10_000)
    assert (len(split.y_train), len(split.y_validation), len(split.y_test)) == (8000, 2000, 10_000)
    assert split.classes == 100
