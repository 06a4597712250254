"""The nine UCI tables, from a made file of the same form."""

import numpy as np
import pytest

from closedform.paper.data import tabular


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    tests = rng.random((3, 21)) < 0.1
    tests[:, 0] = True
    arrays = {"yacht/x": rng.normal(size=(21, 6)), "yacht/y": rng.normal(size=(21, 1))}
    np.savez(tmp_path / tabular.FILE, **arrays, **{"yacht/test_mask": np.packbits(tests, axis=1)})
    monkeypatch.setenv("CLOSEDFORM_DATA", str(tmp_path))
    return arrays, tests


def test_a_split_is_every_row_once(folder):
    arrays, tests = folder
    table = tabular.load("yacht")
    assert np.array_equal(table.tests, tests)
    for k in range(3):
        x, y, x_test, y_test = table.split(k)
        assert len(x) + len(x_test) == 21
        assert np.array_equal(x_test, arrays["yacht/x"][tests[k]])
        assert np.array_equal(y, arrays["yacht/y"][~tests[k], 0])
        assert y_test.shape == (tests[k].sum(),)


def test_what_is_missing_is_named(folder, monkeypatch):
    with pytest.raises(ValueError, match="there is no table 'titanic'; expected one of boston"):
        tabular.load("titanic")
    monkeypatch.delenv("CLOSEDFORM_DATA")
    with pytest.raises(FileNotFoundError, match="set CLOSEDFORM_DATA"):
        tabular.load("yacht")
