"""Files beside a report that are not what they should be: one sentence each, and no gigabytes."""

from __future__ import annotations

import numpy as np
import pytest

from closedform.paper.data import store
from closedform.paper.experiments import fno_samples, stacks
from closedform.paper.report import spec
from closedform.paper.sweeps import grid

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"figures":' * 50_000, "[1, 2]", '{"methods": []}', '{"figures": 3}'])
def test_an_experiment_that_is_none_is_said_in_a_sentence(tmp_path, text):
    (tmp_path / spec.SPEC).write_text(text)
    with pytest.raises(ValueError, match="does not describe an experiment"):
        spec.load(tmp_path)


def test_a_file_of_samples_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / fno_samples.FILE, x=np.zeros(20_000_000, np.float32))
    assert (tmp_path / fno_samples.FILE).stat().st_size < 200_000
    read = np.lib.format.read_array
    monkeypatch.setattr(np.lib.format, "read_array", lambda *a, **k: pytest.fail("the array was read"))
    with pytest.raises(ValueError, match="80,000,1.* bytes; expected at most"):
        fno_samples.sections(tmp_path)
    monkeypatch.setattr(np.lib.format, "read_array", read)
    assert set(store.read(tmp_path / fno_samples.FILE)) == {"x"}


def test_methods_without_a_colour_get_one(tmp_path):
    methods = tuple(spec.Method(f"m{k}", f"method {k}") for k in range(10))
    experiment = spec.Experiment("fno", "t", "t", "test", "validation", "error", methods, ("batch_size",), ("lr",), ())
    experiment.save(tmp_path)
    field = np.linspace(0, 1, 8, dtype=np.float32)[None].repeat(2, 0)
    arrays = {"adam-32-x": field, "adam-32-y": field}
    for method in methods:
        arrays |= {f"adam-32-predicted-{method.key}": field, f"adam-32-mse-{method.key}": np.zeros(2)}
    store.save(tmp_path / fno_samples.FILE, arrays)
    (page,) = fno_samples.sections(tmp_path)
    assert all(f".m-m{k}{{--line:#" in page for k in range(10))


def test_results_of_another_experiment_in_the_folder_are_left_out(tmp_path):
    pytest.importorskip("pyarrow")
    own = {"size": 3, "optimizer": "adam", "grid": "g", "data": "d", "epochs": 1}
    for config in (own, {"something": "else"}):
        grid.run(lambda config: [{"test": 1.0}], [config], tmp_path, version=stacks.__version__)
    assert stacks.alike([own], tmp_path, ["data"]) == [own]
