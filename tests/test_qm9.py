"""QM9: the Coulomb matrices against their definition, the split, where the molecules come from, damaged files."""

import dataclasses
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from closedform.paper.data import qm9, store

GIVEN = store.data_file("qm9.npz")
needs_qm9 = pytest.mark.skipif(
    GIVEN is None and find_spec("qm9pack") is None,
    reason="needs qm9pack, or qm9.npz in the folder CLOSEDFORM_DATA",
)
# QM9's published means, to the digits given
MEANS = {
    "mu": "2.6730",
    "alpha": "75.281",
    "homo": "-.24021",
    "lumo": ".01183",
    "gap": ".25204",
    "r2": "1189.41",
    "zpve": ".14909",
    "u0": "-410.819",
    "u298": "-410.811",
    "h298": "-410.810",
    "g298": "-410.853",
    "cv": "31.620",
}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """A cache for these tests, shared by them because reading the package takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOSEDFORM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package like qm9pack with five molecules in two files, and nothing else to find; returns the molecules."""
    monkeypatch.delenv("CLOSEDFORM_DATA", raising=False)
    monkeypatch.setenv("CLOSEDFORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(qm9, "MOLECULES", 5)
    monkeypatch.delitem(sys.modules, "qm9pack", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "qm9pack" / "data"
    folder.mkdir(parents=True)
    # the real one imports modules that need not be there
    (tmp_path / "qm9pack" / "__init__.py").write_text("raise RuntimeError('imported')")
    molecules = qm9.synthetic(5)
    molecules = dataclasses.replace(molecules, pos=molecules.pos.astype(np.float32))
    symbol = {charge: name for name, charge in qm9.CHARGE.items()}
    header = ["Index", "SMILES", "N_atoms", "Elements", "XYZ_Ang", *(column for _, _, column in qm9.TARGETS)]
    ends = np.cumsum(molecules.n_atoms, dtype=int)
    for part, members in (("1", range(2)), ("2", range(2, 5))):
        lines = [",".join(header)]
        for k in members:
            atoms = slice(ends[k] - molecules.n_atoms[k], ends[k])
            elements = "[" + ",".join(f"'{symbol[z]}'" for z in molecules.z[atoms]) + "]"
            pos = "[" + ",".join("[" + ",".join(map(str, row)) + "]" for row in molecules.pos[atoms]) + "]"
            targets = ",".join(repr(float(value)) for value in molecules.y[k])
            lines.append(f'{molecules.index[k]},"C(H,N)",{molecules.n_atoms[k]},"{elements}","{pos}",{targets}')
        (folder / f"qm9_part{part}.csv").write_text("\n".join(lines) + "\n")
    return molecules


def slow_coulomb(z, pos, size=29):
    """One matrix, entry by entry."""
    n = len(z)
    C = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i == j:
                C[i, j] = 0.5 * float(z[i]) ** 2.4
            else:
                C[i, j] = float(z[i]) * float(z[j]) / (np.linalg.norm(pos[i] - pos[j]) / 0.529177210903)
    order = sorted(range(n), key=lambda i: -np.linalg.norm(C[i]))
    padded = np.zeros((size, size))
    padded[:n, :n] = C[np.ix_(order, order)]
    return np.array([padded[i, j] for i in range(size) for j in range(i, size)])


def same(a, b):
    for field in dataclasses.fields(qm9.Molecules):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name), err_msg=field.name)


# Coulomb matrices


def test_water_by_hand():
    z = np.array([1, 8, 1], np.uint8)
    pos = 0.529177210903 * np.array([[0.0, 1.8, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    x = qm9.coulomb(np.array([3]), z, pos, size=4)
    far = 1 / np.hypot(1.8, 2.0)
    # O first, then the nearer H
    expected = [0.5 * 8**2.4, 8 / 1.8, 8 / 2.0, 0, 0.5, far, 0, 0.5, 0, 0]
    np.testing.assert_allclose(x, [expected], rtol=1e-6)


def test_features_are_the_definition():
    molecules = qm9.synthetic(60, seed=1)
    x = qm9.coulomb(molecules.n_atoms, molecules.z, molecules.pos)
    assert x.shape == (60, 435)
    assert x.dtype == np.float32
    ends = np.cumsum(molecules.n_atoms, dtype=int)
    for k, end in enumerate(ends):
        atoms = slice(end - molecules.n_atoms[k], end)
        np.testing.assert_allclose(x[k], slow_coulomb(molecules.z[atoms], molecules.pos[atoms]), rtol=1e-6)


def test_chunks_do_not_show():
    """More molecules of one size than a chunk has."""
    one = qm9.synthetic(1)
    many = one.take(np.zeros(1100, int))
    x = qm9.coulomb(many.n_atoms, many.z, many.pos)
    assert (x == qm9.coulomb(one.n_atoms, one.z, one.pos)).all()


@pytest.mark.parametrize("seed", range(5))
def test_renumbering_atoms_changes_nothing(seed):
    random = np.random.RandomState(seed)
    molecules = qm9.synthetic(40, seed)
    ends = np.cumsum(molecules.n_atoms, dtype=int)
    order = np.concatenate([end - n + random.permutation(n) for n, end in zip(molecules.n_atoms.astype(int), ends)])
    assert (order != np.arange(len(order))).any()
    x = qm9.coulomb(molecules.n_atoms, molecules.z, molecules.pos)
    np.testing.assert_allclose(qm9.coulomb(molecules.n_atoms, molecules.z[order], molecules.pos[order]), x, rtol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_moving_and_turning_change_nothing(seed):
    random = np.random.RandomState(seed)
    molecules = qm9.synthetic(40, seed)
    Q = np.linalg.qr(random.randn(3, 3))[0]
    x = qm9.coulomb(molecules.n_atoms, molecules.z, molecules.pos)
    np.testing.assert_allclose(
        qm9.coulomb(molecules.n_atoms, molecules.z, molecules.pos @ Q + random.randn(3)), x, rtol=1e-6
    )


def test_symmetric_molecules_are_deterministic():
    """A square of four carbon atoms: all norms are equal, so the atoms keep their order."""
    z, square = np.full(4, 6, np.uint8), np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], float)
    x = qm9.coulomb(np.array([4]), z, square, size=4)[0]
    side = 36 * 0.529177210903
    np.testing.assert_allclose(x[[1, 2, 3]], [side, side / np.sqrt(2), side], rtol=1e-6)


def test_bad_molecules_are_named():
    z, pos = np.array([6, 1, 1], np.uint8), np.eye(3)
    with pytest.raises(ValueError, match="adds up to 4, z is \\(3,\\)"):
        qm9.coulomb(np.array([4]), z, pos)
    with pytest.raises(ValueError, match="3 to 3 atoms; expected 1 to size = 2"):
        qm9.coulomb(np.array([3]), z, pos, size=2)
    with pytest.raises(ValueError, match="same place"):
        qm9.coulomb(np.array([3]), z, np.zeros((3, 3)))


# the twin


def test_synthetic_molecules_are_plausible():
    molecules = qm9.synthetic(300, seed=3)
    assert set(molecules.z) == {1, 6, 7, 8, 9}
    assert molecules.n_atoms.max() <= qm9.SIZE
    assert len(molecules.z) == len(molecules.pos) == molecules.n_atoms.sum(dtype=int)
    ends = np.cumsum(molecules.n_atoms, dtype=int)
    for n, end in zip(molecules.n_atoms.astype(int), ends):
        pos = molecules.pos[end - n : end]
        apart = np.linalg.norm(pos[:, None] - pos[None], axis=2) + 9 * np.eye(n)
        assert apart.min() > 1.1
        assert apart.min(1).max() < 3  # no atom alone
    y = dict(zip(molecules.names, molecules.y.T))
    np.testing.assert_allclose(y["gap"], y["lumo"] - y["homo"])
    assert (y["u298"] > y["u0"]).all()
    assert (molecules.y.std(0) > 0).all()
    same(molecules, qm9.synthetic(300, seed=3))
    assert (molecules.pos[:9] != qm9.synthetic(300, seed=4).pos[:9]).any()


def test_synthetic_targets_are_functions_of_the_geometry():
    """They do not change when the molecules are moved and turned, and a small step changes them a little."""
    random = np.random.RandomState(0)
    z, pos = random.choice([1, 6, 8], size=(20, 29)), 4 * random.rand(20, 29, 3)
    present = np.arange(29) < random.randint(5, 29, (20, 1))
    y = qm9._synthetic_targets(z, pos, present)
    Q = np.linalg.qr(random.randn(3, 3))[0]
    np.testing.assert_allclose(qm9._synthetic_targets(z, pos @ Q + 1, present), y, rtol=1e-9)
    step = random.randn(*pos.shape)
    change = [np.abs(qm9._synthetic_targets(z, pos + h * step, present) - y).max(0) for h in (1e-5, 1e-6)]
    assert (change[0] > 0).all()
    np.testing.assert_allclose(change[0] / change[1], 10, rtol=0.01)


# the split


def places(y, split, molecules):
    """Which generated molecules the standardised targets belong to."""
    return torch.cdist(y * split.y_std + split.y_mean, torch.from_numpy(molecules.y)).argmin(1).numpy()


def test_a_split_has_every_molecule_once_and_comes_from_the_seed():
    split = qm9.load(seed=5, source="synthetic", limit=205)
    parts = split.y_train, split.y_validation, split.y_test
    assert [len(part) for part in parts] == [164, 20, 21]
    assert sorted(places(torch.cat(parts), split, qm9.synthetic(205))) == list(range(205))
    again, other = (qm9.load(seed=seed, source="synthetic", limit=205) for seed in (5, 6))
    assert torch.equal(split.x_train, again.x_train)
    assert not torch.equal(split.x_train, other.x_train)


def test_a_limit_takes_the_first_of_the_permutation(monkeypatch):
    molecules = qm9.synthetic(300)
    monkeypatch.setattr(qm9, "molecules", lambda: molecules)
    split = qm9.load(seed=3, limit=100)
    order = np.random.RandomState(3).permutation(300)[:100]
    y = torch.cat([split.y_train, split.y_validation, split.y_test])
    assert places(y, split, molecules).tolist() == order.tolist()


def test_features_are_their_molecules_standardised_by_the_training_split():
    split, molecules = qm9.load(source="synthetic", limit=300), qm9.synthetic(300)
    x = qm9.coulomb(molecules.n_atoms, molecules.z, molecules.pos).astype(np.float64)
    train = x[places(split.y_train, split, molecules)]
    varies = train.min(0) < train.max(0)
    assert 0 < varies.sum() < 435
    for features, y in (
        (split.x_train, split.y_train),
        (split.x_validation, split.y_validation),
        (split.x_test, split.y_test),
    ):
        expected = np.zeros(features.shape)
        raw = x[places(y, split, molecules)]
        expected[:, varies] = ((raw - train.mean(0)) / np.maximum(train.std(0), 0.05))[:, varies]
        np.testing.assert_allclose(features, expected, atol=1e-4)


def test_targets_are_standardised_by_the_training_split():
    split = qm9.load(source="synthetic", limit=500)
    y = split.y_train.double()
    assert y.mean(0).abs().max() < 1e-5
    assert (y.std(0, correction=0) - 1).abs().max() < 1e-4
    assert split.y_test.mean(0).abs().max() > 1e-3  # not by its own
    assert split.x_train.dtype == split.y_test.dtype == torch.float32
    assert split.y_std.dtype == torch.float64


def with_a_large_one(n, place):
    """Generated molecules, the one at this place of the permutation replaced by a chain of 29 hydrogen atoms.

    With them, which features only the large one has.
    """
    molecules = qm9.synthetic(n)
    at = np.random.RandomState(0).permutation(n)[place]
    chain = np.random.RandomState(1).rand(29, 3) + np.arange(29)[:, None]
    ends = np.cumsum(molecules.n_atoms, dtype=int)
    parts = [slice(end - count, end) for count, end in zip(molecules.n_atoms.astype(int), ends)]
    n_atoms = molecules.n_atoms.copy()
    n_atoms[at] = 29
    z = np.concatenate([np.ones(29, int) if k == at else molecules.z[part] for k, part in enumerate(parts)])
    pos = np.concatenate([chain if k == at else molecules.pos[part] for k, part in enumerate(parts)])
    own = np.triu_indices(29)[1] >= np.delete(n_atoms, at).max()
    assert 0 < own.sum() < 435
    return dataclasses.replace(molecules, n_atoms=n_atoms, z=z, pos=pos), torch.from_numpy(own)


def test_features_that_training_lacks_are_zero(monkeypatch):
    """The large molecule is in the test split: its own features are exactly 0, and nothing is infinite."""
    molecules, own = with_a_large_one(50, place=-1)
    monkeypatch.setattr(qm9, "molecules", lambda: molecules)
    split = qm9.load(seed=0)
    for x in (split.x_train, split.x_validation, split.x_test):
        assert (x[:, own] == 0).all()
        assert x.isfinite().all()
    assert split.x_test[-1, ~own].abs().max() > 1


def test_rare_features_stay_small(monkeypatch):
    """The large molecule is in the training split: the floor keeps its own features from standing far out."""
    molecules, own = with_a_large_one(2000, place=0)
    monkeypatch.setattr(qm9, "molecules", lambda: molecules)
    assert 1 < qm9.load(seed=0).x_train[0, own].abs().max() <= 0.5 / 0.05
    monkeypatch.setattr(qm9, "STD_FLOOR", 1e-9)
    assert qm9.load(seed=0).x_train[0, own].abs().min() > 39  # the root of 1600


def test_bad_limits_and_sources_are_named():
    with pytest.raises(ValueError, match="limit is 9; expected 10 to"):
        qm9.load(limit=9, source="synthetic")
    with pytest.raises(ValueError, match="source is 'qm8'"):
        qm9.load(source="qm8")


# where molecules come from


def test_the_package_is_parsed_once_and_then_cached(package, monkeypatch):
    same(qm9.molecules(), package)
    (path,) = store.cache_folder().iterdir()
    assert path.name == "qm9-1.npz"
    monkeypatch.setattr(qm9, "_parse_package", lambda: pytest.fail("parsed again"))
    same(qm9.molecules(), package)


def test_the_given_folder_comes_first(package, tmp_path, monkeypatch):
    other = qm9.synthetic(5, seed=9)
    arrays = {field.name: np.asarray(getattr(other, field.name)) for field in dataclasses.fields(other)}
    store.save(tmp_path / "given" / "qm9.npz", arrays)
    monkeypatch.setenv("CLOSEDFORM_DATA", str(tmp_path / "given"))
    same(qm9.molecules(), other)
    assert not store.cache_folder().exists()
    monkeypatch.setenv("CLOSEDFORM_DATA", str(tmp_path))  # a folder without the file
    same(qm9.molecules(), package)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.pop("pos"), "is not QM9: it has no array pos"),
        (lambda a: a.update(y=a["y"][:4]), "its y has shape \\(4, 12\\); expected \\(5, 12\\)"),
        (lambda a: a.update(z=a["z"][1:]), "its z has shape"),
        (lambda a: a.update(names=a["names"][::-1]), "its names are cv, g298"),
        (lambda a: a.update(y=a["y"].astype(object)), "cannot be read as an npz file: Object arrays"),
    ],
)
def test_a_wrong_given_file_is_an_error(package, tmp_path, monkeypatch, change, said):
    arrays = {field.name: np.asarray(getattr(package, field.name)) for field in dataclasses.fields(package)}
    change(arrays)
    (tmp_path / "given").mkdir()
    np.savez(tmp_path / "given" / "qm9.npz", **arrays)
    monkeypatch.setenv("CLOSEDFORM_DATA", str(tmp_path / "given"))
    with pytest.raises(ValueError, match=said) as error:
        qm9.molecules()
    assert "given" in str(error.value)


def test_nothing_there_is_one_clear_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("CLOSEDFORM_DATA", raising=False)
    monkeypatch.setenv("CLOSEDFORM_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "qm9pack", None)
    with pytest.raises(FileNotFoundError, match="pip install 'closedform\\[qm9\\]', or .*CLOSEDFORM_DATA"):
        qm9.load()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "other rows"])
def test_a_damaged_cache_is_made_again(package, damage):
    qm9.molecules()
    (path,) = store.cache_folder().iterdir()
    whole = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "flipped":
        at = whole.index(package.y.tobytes()) + 100
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        store.save(path, {**store.read(path), "index": np.arange(4)})
    with pytest.warns(UserWarning, match="the cached data are computed again"):
        same(qm9.molecules(), package)
    assert path.read_bytes() == whole


def test_no_flipped_bit_goes_unseen(tmp_path):
    """Wherever a bit flips, reading fails or gives the same arrays (the bit was in a time stamp, say)."""
    arrays = {"a": np.random.RandomState(0).randn(50, 3), "names": np.array(["x", "yy"])}
    path = tmp_path / "a.npz"
    store.save(path, arrays)
    whole = path.read_bytes()
    failed = 0
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            read = store.read(path)
        except ValueError:
            failed += 1
            continue
        if set(read) == set(arrays):  # a name is outside the checksum; check() sees that an array is missing
            for name in arrays:
                np.testing.assert_array_equal(read[name], arrays[name])
    assert failed > len(whole) / 3 * 0.7


def test_a_cache_that_cannot_be_written_is_no_error(package, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLOSEDFORM_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot be written"):
        same(qm9.molecules(), package)


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("CLOSEDFORM_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert store.cache_folder() == Path("/a")
    monkeypatch.delenv("CLOSEDFORM_CACHE")
    assert store.cache_folder() == Path("/b/closedform")
    monkeypatch.delenv("XDG_CACHE_HOME")
    for platform, place in (("linux", ".cache/closedform"), ("darwin", "Library/Caches/closedform")):
        monkeypatch.setattr(sys, "platform", platform)
        assert store.cache_folder() == Path.home() / place


# the real molecules


@needs_qm9
def test_the_real_molecules():
    molecules = qm9.molecules()
    assert len(molecules) == 130_831
    assert molecules.n_atoms.max() == qm9.SIZE
    assert set(np.unique(molecules.z)) == set(qm9.CHARGE.values())
    assert len(set(molecules.index)) == 130_831
    assert molecules.index.max() == 133_885
    assert molecules.names == tuple(MEANS)
    for mean, expected in zip(molecules.y.mean(0), MEANS.values()):
        digits = len(expected.split(".")[1])
        assert mean == pytest.approx(float(expected), abs=0.51 * 10**-digits)
    assert molecules.z[:5].tolist() == [6, 1, 1, 1, 1]  # methane is the first
    assert np.linalg.norm(molecules.pos[0] - molecules.pos[1]) == pytest.approx(1.09, abs=0.01)


@pytest.mark.skipif(GIVEN is None or find_spec("qm9pack") is None, reason="needs qm9pack and CLOSEDFORM_DATA's qm9.npz")
def test_the_package_has_the_given_files_content():
    parsed, stored = qm9._parse_package(), store.read(GIVEN)
    assert set(parsed) == set(stored)
    for name in parsed:
        np.testing.assert_array_equal(parsed[name], stored[name], err_msg=name)
        assert parsed[name].dtype == stored[name].dtype, name


@needs_qm9
def test_the_real_features():
    molecules = qm9.molecules()
    some = np.random.RandomState(0).permutation(len(molecules))[:30]
    part = molecules.take(some)
    x = qm9.coulomb(part.n_atoms, part.z, part.pos)
    first = np.cumsum(molecules.n_atoms, dtype=int) - molecules.n_atoms
    for k, row in zip(some, x):
        atoms = slice(first[k], first[k] + int(molecules.n_atoms[k]))
        reference = slow_coulomb(molecules.z[atoms], molecules.pos[atoms].astype(float))
        np.testing.assert_allclose(np.sort(row), np.sort(reference), rtol=1e-6)  # symmetric atoms may be exchanged
        np.testing.assert_allclose(row[:29], reference[:29], rtol=1e-4)


@needs_qm9
def test_loading_everything_stays_within_memory():
    code = (
        "import pathlib, resource, torch\nfrom closedform.paper.data import qm9\n"
        "def peak():\n"
        "    status = pathlib.Path('/proc/self/status')\n"
        # not ru_maxrss on Linux, which starts at what the process that runs the tests has grown to
        "    if status.exists():\n"
        "        return 1024 * int(status.read_text().split('VmHWM:')[1].split()[0])\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"  # what torch takes, which differs between its builds
        "s = qm9.load()\n"
        "x = s.x_train, s.x_validation, s.x_test\n"
        "assert [len(a) for a in x] == [104_664, 13_083, 13_084]\n"
        "assert all(bool(a.isfinite().all()) for a in x) and max(float(a.abs().max()) for a in x) < 60\n"
        "print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 9e8
