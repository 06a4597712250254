"""Each sentence of advice appears where it should, none contradicts another, and a healthy run gets none."""

import pytest
import torch
from torch import nn

import closedform as cf
from closedform.diagnosis import text

from .diagnosis_cases import healthy, whole
from .helpers import features, head


def said(diagnosis, words):
    return sum(words in text for text in diagnosis.advice)


def test_a_healthy_run_needs_no_advice():
    phi, y, layer = healthy()
    result = cf.diagnose_batch(layer, phi, y)
    assert [text for text in result.advice if "steep spectrum" not in text] == []
    layer = head(20, 2, cf.Ridge(0.0))
    layer.solve(phi, y)
    assert cf.diagnose_batch(layer, phi, y).advice == []
    assert "Nothing stands out" in str(cf.diagnose_batch(layer, phi, y))


def test_advice_on_lambda():
    phi, y, layer = healthy()
    mean = float(phi.square().sum() / 20)
    layer.rule = cf.Proximal(1e5 * mean)
    frozen = cf.diagnose_batch(layer, phi, y)
    assert said(frozen, "lambda is 1e5 times the Gram of a batch: the head hardly moves") == 1
    assert said(frozen, f"lambda = {10 * mean:.3g} here") == 1
    layer.rule = cf.Proximal(0.01 * mean)
    assert said(cf.diagnose_batch(layer, phi[:15], y[:15]), "every solve fits its own batch") == 1
    assert said(cf.diagnose_batch(layer, phi, y), "every solve fits its own batch") == 0
    layer.rule = cf.Ridge(100 * mean)
    assert said(cf.diagnose_batch(layer, phi, y), "beta is 100 times") == 1


def test_advice_on_the_features():
    phi, y, layer = healthy()
    assert said(cf.diagnose_batch(layer, phi[:10], y[:10]), "There are 10 samples for 21 features") == 1
    broken = phi.clone()
    broken[:, :3] = 0
    broken[:, 3:6] = 0.7
    result = cf.diagnose_batch(layer, broken, y)
    assert (result.dead, result.constant) == (3, 3)
    assert said(result, "3 of 20 features are zero") == 1
    assert said(result, "3 of 20 features are constant") == 1
    few = cf.diagnose(layer, nn.Identity(), whole(broken, y))
    assert (few.dead, few.constant) == (3, 3)
    flat = head(20, 2, cf.Proximal("auto"), bias=False)
    one = torch.randn(400, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ phi[:1]
    assert said(cf.diagnose_batch(flat, one, y), "they have collapsed") == 1
    noise = torch.randn(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert said(cf.diagnose_batch(layer, phi, noise), "No last layer can express more than") == 1


def test_advice_on_the_head():
    phi, y, layer = healthy()
    assert said(cf.diagnose_batch(head(20, 2, cf.Proximal("auto")), phi, y), "not been solved yet") == 1
    layer.attempts += 2
    assert said(cf.diagnose_batch(layer, phi, y), "2 of 42 solves were rejected") == 1


def test_advice_on_the_gradient_step():
    layer = cf.ClosedFormLinear(20, 50, False, dtype=torch.float64)
    y = torch.randn(200, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for condition, steep, flat in ((1e5, 1, 0), (1.0, 0, 1)):
        result = cf.diagnose_batch(layer, features(200, 20, condition=condition), y)
        assert said(result, "a steep spectrum") == steep
        assert said(result, "a flat spectrum") == flat


# rule, solves, rows of a batch -> the checks that speak, and what is said of the memory, if anything; beta and lambda are in
# units of the mean diagonal of a batch's Gram
TABLE = [
    (lambda one: cf.Proximal("auto"), 0, 50, ["_unsolved", "_lagging"], None),
    (lambda one: cf.Proximal(1e9 * one), 0, 50, ["_unsolved", "_frozen", "_lagging"], None),
    (lambda one: cf.Ridge(1e6 * one), 0, 50, ["_unsolved", "_frozen", "_lagging"], None),
    (lambda one: cf.Proximal("auto"), 200, 50, ["_lagging"], "a longer memory helps, a larger lambda, or Kalman()"),
    (lambda one: cf.Proximal("auto"), 3, 50, ["_lagging"], "too slowly: a smaller lambda helps"),
    (lambda one: cf.Proximal(1e5 * one), 40, 50, ["_frozen", "_lagging"], None),
    (lambda one: cf.Proximal(1e-3 * one), 40, 50, ["_chasing"], None),
    (lambda one: cf.Proximal(1e-3 * one), 40, 200, [], None),
    (lambda one: cf.Ridge(1e-3 * one), 40, 50, ["_chasing"], None),
    (lambda one: cf.Ridge(0.0), 40, 200, [], None),
    (lambda one: cf.Ridge(5 * one), 40, 50, ["_lagging"], "a longer memory helps, Proximal('auto'), or Kalman()"),
    (lambda one: cf.Ridge(1e6 * one), 40, 50, ["_frozen", "_lagging"], None),
    (lambda one: cf.Ema(1e6 * one), 40, 50, ["_frozen", "_lagging"], None),
    (lambda one: cf.Ema(1e-2 * one, 0.99), 40, 50, ["_lagging"], "too slowly: a smaller momentum helps"),
    (lambda one: cf.Kalman(), 40, 50, ["_lagging"], "too slowly: a smaller forget helps"),
    (lambda one: cf.Kalman(lam=1e9 * one), 0, 50, ["_unsolved", "_frozen", "_lagging"], None),
    (lambda one: cf.Kalman(lam=1e9 * one), 1, 50, ["_frozen", "_lagging"], None),
    (lambda one: cf.Kalman(1.0), 2000, 50, [], None),
    (lambda one: cf.Kalman(1.0, lam=100 * one), 40, 50, ["_lagging"], "too slowly: a smaller forget helps"),
]


@pytest.mark.parametrize(("rule", "solves", "size", "checks", "during"), TABLE)
def test_exactly_this_advice(rule, solves, size, checks, during):
    """Nothing else, and in particular nothing that says the opposite."""
    phi, y, _ = healthy()
    data = whole(phi, y, size)
    layer = head(20, 2, rule(float(phi.square().sum() / 20) * size / 400))
    for t in range(solves):
        layer.solve(*data[t % len(data)])
    result = cf.diagnose(layer, nn.Identity(), data)
    spoke = [check.__name__ for check in text._CHECKS if list(check(result))]
    assert [name for name in spoke if name != "_worth"] == checks
    assert said(result, "not seen") == (during is not None)
    assert during is None or said(result, during) == 1


def test_a_backbone_that_moved_on_is_no_slow_head():
    """The head is one step behind the features: every solve gains, and still lambda is too small, not too large."""
    phi, y, _ = healthy()
    layer = head(20, 2, cf.Proximal(0.1 * float(phi.square().sum() / 20) / 8))
    for batch in whole(phi, y, 50):
        layer.solve(*batch)
    result = cf.diagnose(layer, nn.Identity(), whole(1.5 * phi, y, 50))
    assert float((result.gains > 0).double().mean()) == 1
    assert said(result, "every solve fits its own batch") == 1
    assert said(result, "cf.refit_ corrects that") == 1
    assert said(result, "too slowly") == 0
