"""Rendered hearts, the demand design and the tables of econometrics."""

import numpy as np
import pytest

from closedform.paper.data import demand, dsprites, iv, store


def test_hearts_are_the_official_ones():
    path = store.data_file("dsprites_official_gif_hearts.npz")
    if path is None:
        pytest.skip("the official frames are not in CLOSEDFORM_DATA")
    frames = store.read(path)
    for images, latents, wrong in (("imgs", "latents_classes", 1), ("nb_imgs", "nb_latents", 0)):
        official = np.unpackbits(frames[images], axis=1).reshape(-1, 64, 64)
        same = (dsprites.images(frames[latents].astype(int)) == official).all((1, 2))
        assert same.sum() >= len(same) - wrong


def inside(x, y, cx, cy, scale, angle):
    """A point inside the curve drawn as a polygon: the winding number is not zero."""
    t = np.linspace(0, 2 * np.pi, 4001)
    px = np.sin(t) ** 3 * 9.5944 * scale
    py = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t) + 2.16971) * 0.66215 * scale
    c, s = np.cos(angle), np.sin(angle)
    curve = (cx + c * px + s * py - x) + 1j * (cy - s * px + c * py - y)
    turns = np.angle(curve[1:] / curve[:-1]).sum() / (2 * np.pi)
    return abs(turns) > 0.5


def test_hearts_are_the_inside_of_the_curve():
    """The closed form of the renderer against a polygon, pixel by pixel, for any machine."""
    rng = np.random.default_rng(0)
    latents = np.stack([rng.integers(size, size=3) for size in dsprites.SIZES], 1)
    for latent, image in zip(latents, dsprites.images(latents)):
        scale, angle = dsprites.SCALES[latent[0]], dsprites.ORIENTATIONS[latent[1]]
        cx, cy = 15.5 + 32 * dsprites.POSITIONS[latent[2:]]
        rows, columns = np.nonzero(image)
        for y in range(rows.min() - 1, rows.max() + 2, 2):
            for x in range(columns.min() - 1, columns.max() + 2):
                assert image[y, x] == inside(x, y, cx, cy, scale, angle), (latent, x, y)


def test_hearts_move_turn_and_grow():
    still, right, down = dsprites.images(np.array([[5, 0, 0, 0], [5, 0, 31, 0], [5, 0, 0, 31]]))
    assert np.array_equal(np.roll(still, 32, axis=1), right)
    assert np.array_equal(np.roll(still, 32, axis=0), down)
    turned = dsprites.images(np.array([[5, 39, 0, 0]]))[0]
    assert np.array_equal(still, turned)  # the last orientation is a whole turn
    areas = dsprites.images(np.array([[s, 0, 16, 16] for s in range(6)])).sum((1, 2))
    assert (np.diff(areas.astype(int)) > 0).all()


def test_latents_are_checked():
    with pytest.raises(ValueError, match=r"latents \[0, 40, 0, 0\] are out of range"):
        dsprites.images(np.array([[0, 40, 0, 0]]))
    with pytest.raises(ValueError, match="integer latents"):
        dsprites.images(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="no structural function 'other'"):
        dsprites.sample(3, function="other")


def test_the_sprites_task_is_the_papers():
    s = dsprites.sample(400, seed=1)
    assert s.X.shape == (400, 4096)
    assert s.Z.shape == (400, 3)
    assert abs((s.X - s.X.round()).std() - 0.1) < 0.01
    B = np.array([[abs(32 - j) / 32 for j in range(64)] for _ in range(64)]).reshape(-1)
    assert np.allclose(s.f, ((s.X.astype(float) @ B) ** 2 - 3000) / 500, rtol=1e-3, atol=1e-3)
    confounder = s.y - s.f
    assert 8 < confounder.std() < 11  # 32 (posY - 0.5) is uniform on -16 to 16
    assert abs(np.corrcoef(confounder, s.Z.T)[0, 1:]).max() < 0.2
    again, other = dsprites.sample(400, seed=1), dsprites.sample(400, seed=2)
    assert np.array_equal(s.X, again.X)
    assert not np.array_equal(s.y, other.y)


def test_the_sprites_grid_has_588_points():
    points = dsprites.grid()
    assert points.X.shape == (588, 4096)
    assert set(np.unique(points.X)) == {0.0, 1.0}
    validation, test = dsprites.validation_and_test(points)
    assert (len(validation.X), len(test.X)) == (100, 488)
    assert np.allclose(sorted([*validation.f, *test.f]), sorted(points.f))


def test_the_original_structural_function(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOSEDFORM_DATA", str(tmp_path))
    A = dsprites.matrix()
    assert A.shape == (4096, 10)
    assert 0.49 < A.mean() < 0.51
    X = dsprites.images(np.array([[3, 1, 4, 1], [5, 9, 2, 6]])).reshape(2, -1).astype(float)
    expected = [((x @ A) ** 2).mean() / 1000 - 5 for x in X]
    assert np.allclose(dsprites.original(X), expected)
    np.save(tmp_path / dsprites.MATRIX, np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"holds an array \(3, 3\)"):
        dsprites.matrix()
    (tmp_path / dsprites.MATRIX).write_bytes(b"no array")
    with pytest.raises(ValueError, match="cannot be read as an npy file"):
        dsprites.matrix()


@pytest.mark.parametrize("rho", [0.1, 0.9])
def test_the_demand_design(rho):
    s = demand.sample(20_000, seed=0, rho=rho)
    p, (c, t, kind) = s.X[:, 0], s.Z.T
    assert set(kind) == set(range(1, 8))
    v = p - 25 - (c + 3) * demand.psi(t)
    noise = s.y - s.f
    assert abs(np.corrcoef(v, noise)[0, 1] - rho) < 0.02
    assert abs(v.std() - 1) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert np.allclose(s.f, 100 + (10 + p) * kind * demand.psi(t) - 2 * p)
    assert np.array_equal(s.O, s.Z[:, 1:])


def test_the_demand_grid():
    points = demand.grid()
    assert points.X.shape == (2800, 1)
    assert len({tuple(row) for row in np.column_stack([points.X, points.O])}) == 2800
    assert np.isclose(demand.psi(np.array(5.0)), -1.0)
    with pytest.raises(ValueError, match="rho in"):
        demand.sample(10, rho=2.0)


ROWS = {"card": 3010, "mroz": 428, "labsup": 31857, "401ksubs": 9275}


@pytest.mark.parametrize("name", ROWS)
def test_tables_of_econometrics(name):
    try:
        columns = iv.model(name)
    except ImportError as missing:
        pytest.skip(str(missing))
    assert len(columns.y) == len(columns.X) == len(columns.Z) == len(columns.W) == ROWS[name]
    assert columns.W.notna().all().all()


def test_tables_from_a_folder(monkeypatch, tmp_path):
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="no table 'other'; expected one of card"):
        iv.load("other")
    monkeypatch.setenv("CLOSEDFORM_DATA", str(tmp_path))
    (tmp_path / "iv").mkdir()
    m = iv.MODELS["mroz"]
    table = pd.DataFrame({name: [1.0, 2.0, None] for name in (m.y, *m.X, *m.Z, *m.W)}).assign(inlf=[1, 0, 1])
    table.to_parquet(tmp_path / "iv" / "wooldridge_mroz.parquet")
    assert len(iv.model("mroz").y) == 1  # one row is out of the labour force, one has missing values
    table.drop(columns="educ").to_parquet(tmp_path / "iv" / "wooldridge_mroz.parquet")
    with pytest.raises(ValueError, match="has no column 'educ'"):
        iv.load("mroz")
    (tmp_path / "iv" / "wooldridge_mroz.parquet").write_bytes(b"broken")
    with pytest.raises(ValueError, match="cannot be read as a parquet file"):
        iv.load("mroz")
