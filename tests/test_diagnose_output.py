"""Diagnoses during training, as a page and as a picture, and on a device."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import closedform as cf

from .diagnosis_cases import healthy, whole
from .helpers import head, problem


def test_the_callback(tmp_path):
    phi, y, layer = healthy()
    watch = cf.Diagnostics(layer, every=4)
    diagnosed = [watch(phi, y) is not None for _ in range(9)]
    assert diagnosed == [True, False, False, False] * 2 + [True]
    assert [step for step, _ in watch.history] == [0, 4, 8]
    assert watch.plot(tmp_path / "history.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="every"):
        cf.Diagnostics(layer, every=0)
    with pytest.raises(ValueError, match="nothing was diagnosed"):
        cf.Diagnostics(layer).plot(tmp_path / "none.png")


@pytest.mark.parametrize("rule", [cf.Ridge(0.0), cf.Ridge(2.0), cf.Proximal("auto"), cf.Ema(1.0), cf.Kalman(), None])
def test_every_rule_has_a_page_and_a_picture(rule, tmp_path):
    phi, y = problem(60, 5, 2)
    layer = nn.Linear(5, 2).double() if rule is None else head(5, 2, rule)
    if rule is not None:
        layer.solve(phi, y)
    result = cf.diagnose_batch(layer, phi, y)
    for each in (result, cf.diagnose(layer, nn.Identity(), whole(phi, y))):
        assert all(len(line) <= 110 for line in str(each).splitlines())
    assert result.plot(tmp_path / "head.png").stat().st_size > 5000


def test_features_that_are_all_zero(tmp_path):
    layer = head(4, 2, cf.Proximal("auto"), bias=False)
    result = cf.diagnose_batch(layer, torch.zeros(9, 4), torch.randn(9, 2))
    assert (result.rank, result.dead, result.effective_rank) == (0, 4, 0.0)
    assert result.attainable == 0
    assert "all zero" in str(result)
    assert result.plot(tmp_path / "zero.png").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("n", [8, 60])
@pytest.mark.parametrize("rule", [cf.Proximal("auto"), cf.Kalman()])
def test_on_a_device(n, rule):
    phi, y = problem(n, 12, 2)
    layers = [head(12, 2, rule), head(12, 2, rule).cuda()]
    for layer, place in zip(layers, ("cpu", "cuda")):
        layer.solve(phi.to(place), y.to(place))
    a, b = cf.diagnose_batch(layers[0], phi, y), cf.diagnose_batch(layers[1], phi.cuda(), y.cuda())
    c = cf.diagnose(layers[1], nn.Identity(), [(phi, y)])
    for other in (b, c):
        assert other.gradient_share == pytest.approx(a.gradient_share, rel=1e-6)
        assert other.error == pytest.approx(a.error, rel=1e-6)
        assert other.memory == pytest.approx(a.memory, rel=1e-6)
        assert str(other).splitlines()[3:5] == str(a).splitlines()[3:5]


def test_importing_draws_in_neither_scipy_nor_matplotlib():
    code = "import sys, closedform, closedform.theory; assert not {'scipy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_losses_are_refused_and_labels_of_the_squared_one_taken():
    phi, labels = (
        torch.randn(30, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        torch.arange(30) % 3,
    )
    one = cf.ClosedFormLinear(6, 3, loss=cf.OneHotSquared(), dtype=torch.float64)
    rows = torch.nn.functional.one_hot(labels, 3).double()
    assert cf.diagnose_batch(one, phi, labels).error == pytest.approx(cf.diagnose_batch(one, phi, rows).error)
    other = cf.ClosedFormLinear(6, 3, loss=cf.CrossEntropy(), dtype=torch.float64)
    with pytest.raises(ValueError, match="a diagnosis is about the squared loss; this head has CrossEntropy"):
        cf.diagnose_batch(other, phi, labels)
