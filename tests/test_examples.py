"""The examples run, are short, and show what they say."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from .helpers import relative

FOLDER = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_they_are_short(path):
    assert len(path.read_text().splitlines()) <= 100


def test_a_loss_of_ones_own(capsys):
    module = example("custom_loss")
    errors = module.main()
    assert errors["Poisson"] < 0.015
    assert errors["Poisson"] < 0.6 * errors["Squared"]
    assert "Poisson" in capsys.readouterr().out
    loss = module.Poisson(b=1.0)
    z = torch.linspace(-4, 4, 81, dtype=torch.float64)[:, None].requires_grad_()
    y = torch.full_like(z, 2.0).detach()
    (gradient,) = torch.autograd.grad(loss.value(z, y).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), z)
    assert relative(loss.gradient(z, y), gradient) < 1e-12
    assert 0.9 * loss.curvature < float(second.max()) <= loss.curvature * (1 + 1e-12)


def test_fields_to_fields(capsys):
    errors = example("fields").main(steps=40)
    assert errors["solved"] < 0.5 * errors["learned"]
    assert errors["solved"] < 0.15
    assert "last layer solved" in capsys.readouterr().out
