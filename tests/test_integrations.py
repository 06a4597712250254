"""What the integrations share: where the head is, where the targets are, and what to install where one is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import closedform as cf
from closedform.integrations import head_of, targets_of


def test_the_head_is_found_anywhere():
    head = cf.ClosedFormLinear(3, 1)
    model = torch.nn.ModuleDict({"a": torch.nn.Sequential(torch.nn.Linear(2, 3), head)})
    assert head_of(model) is head_of(model, "a.1") is head_of(head) is head
    shared = torch.nn.ModuleList([head, head])  # one layer under two names is one layer
    assert head_of(shared) is head


def test_a_compiled_model_has_the_names_of_the_plain_one():
    model = torch.nn.Sequential()
    model.fc = cf.ClosedFormLinear(3, 1)
    inner = torch.nn.Sequential()
    inner.body = torch.compile(model)
    for wrapped, name in ((torch.compile(model), "fc"), (inner, "body.fc"), (torch.compile(inner), "body.fc")):
        assert head_of(wrapped) is head_of(wrapped, name) is model.fc
    assert head_of(torch.compile(model), "_orig_mod.fc") is model.fc
    with pytest.raises(ValueError, match="Sequential has no ClosedFormLinear called 'head'; it has fc"):
        head_of(torch.compile(model), "head")


@pytest.mark.parametrize(
    ("batch", "targets", "message"),
    [
        (torch.ones(3), None, r"a batch that is a Tensor: expected \(x, y\) or \(x, y, sample_weight\)"),
        ((torch.ones(3),), None, "a batch that is a tuple of Tensor: expected"),
        ([torch.ones(3), "cat"], None, "a batch that is a list of Tensor, str: expected"),
        ((torch.ones(3), torch.ones(3), "cat"), None, "a batch that is a tuple of Tensor, Tensor, str: expected"),
        ({"x": torch.ones(3)}, "y", "a dict with the keys x: expected targets='y' to find a tensor in it"),
        ((torch.ones(3), torch.ones(3)), "y", "a tuple of Tensor, Tensor: expected targets='y'"),
        ({}, lambda batch: None, "a dict with the keys none"),
        ((), lambda batch: (), "a tuple of nothing"),
    ],
)
def test_targets_that_are_not_there(batch, targets, message):
    with pytest.raises(ValueError, match=message):
        targets_of(batch, targets)


def test_each_missing_library_is_named_with_the_command_that_installs_it():
    code = (
        "import sys, importlib\n"
        "for name in ('lightning', 'skorch', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "    try: importlib.import_module(f'closedform.integrations.{name}')\n"
        "    except ImportError as missing: print(missing)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
    assert out == [
        f"closedform.integrations.{name} needs {name}: pip install 'closedform[{name}]'"
        for name in ("lightning", "skorch", "transformers")
    ]


def test_the_example_names_the_command_too():
    example = Path(__file__).parents[1] / "examples" / "fine_tuned_transformer.py"
    code = f"import runpy, sys; sys.modules['transformers'] = None; runpy.run_path({str(example)!r})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stderr.splitlines()[-1].endswith("needs transformers: pip install 'closedform[transformers]'")
