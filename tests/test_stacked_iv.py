"""A stacked instrumental-variable model is the same model trained alone."""

import pytest
import torch

from closedform import Kalman, Proximal, Ridge
from closedform.iv import Rules, evaluation, reestimated, train
from closedform.iv.stacked import IVCandidate, IVStack
from closedform.stack import measuring
from closedform.stack.loop import Checkpoint

from .helpers import relative as distance
from .iv_stack_cases import CANDIDATES, TOTAL, alone, problem, stack


@pytest.mark.parametrize("batch", [4, 8, 25, 30])  # below and above the features, and all rows
@pytest.mark.parametrize("pool", [1, 2])
def test_it_is_training_alone(batch, pool):
    data, split, points = problem()
    stacked = stack(batch=batch, pool=pool)
    stacked.advance(TOTAL)
    errors = stacked.measure()
    for k, candidate in enumerate(CANDIDATES):
        model = alone(candidate.rules, candidate.lr, pool)
        train(model, data, split, iterations=TOTAL, batch_size=batch, lr=candidate.lr, fresh=False, decay=False, seed=3)
        assert distance(stacked.W[k], model.first.W) < 1e-6, k
        assert distance(stacked.w[k], model.second.W) < 1e-6, k
        for net, own in ((stacked.psi, model.psi), (stacked.phi, model.phi)):
            for trained, p in zip(net.params.views, own.parameters()):
                shown = trained[k] if trained[k].shape == p.shape else trained[k][:, : p.shape[1]]
                assert distance(shown, p) < 1e-6, k
        X, f = points["test"]
        for name, layers in (
            ("test", reestimated(model, data, split)),
            ("test online", evaluation.online(model)),
        ):
            expected = (evaluation.predict(model, layers, X)[:, 0] - f).square().mean()
            assert errors[name][0, k] == pytest.approx(float(expected), rel=1e-5), (k, name)


def test_several_steps_of_stage_two():
    data, split, _ = problem()
    stacked = stack(T2=2)
    stacked.advance(5)
    model = alone(CANDIDATES[0].rules, CANDIDATES[0].lr, T2=2)
    train(model, data, split, iterations=5, batch_size=8, lr=CANDIDATES[0].lr, fresh=False, decay=False, seed=3)
    assert distance(stacked.w[0], model.second.W) < 1e-7


def test_one_that_diverges_disturbs_no_other(tmp_path):
    wild = [*CANDIDATES[:2], IVCandidate(1e30, Rules.ridge(1.0, 1.0)), *CANDIDATES[2:3]]
    stacked, calm = stack(wild, dtype=torch.float32), stack([wild[k] for k in (0, 1, 3)], dtype=torch.float32)
    history = measuring.train(stacked, IVStack.measure, at=[10, 20])
    expected = measuring.train(calm, IVStack.measure, at=[10, 20])
    assert history.alive == [0, 1, 3]
    for name, values in expected.errors.items():
        for mine, theirs in zip(history.errors[name], values):
            assert torch.isinf(mine[0, 2]) or name != "test"
            torch.testing.assert_close(mine[:, [0, 1, 3]], theirs, rtol=1e-4, atol=1e-6)


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    expected = measuring.train(stack(), IVStack.measure, at=[10, 20])

    def stop(t, total):
        if t >= 15:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        measuring.train(
            stack(), IVStack.measure, at=[10, 20], checkpoint=Checkpoint(tmp_path / "a", every_s=0), progress=stop
        )
    again = measuring.train(stack(), IVStack.measure, at=[10, 20], checkpoint=Checkpoint(tmp_path / "a"))
    assert again.steps == expected.steps
    for name, values in expected.errors.items():
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(again.errors[name], values)), name


def test_bad_requests_are_told():
    with pytest.raises(ValueError, match="takes Ridge and Proximal"):
        IVCandidate(1e-2, Rules(Kalman(), Proximal(1.0), Ridge(1.0)))
    with pytest.raises(ValueError, match="positive learning rate"):
        IVCandidate(0.0, Rules())
    data, split, points = problem()
    with pytest.raises(ValueError, match="no candidates"):
        IVStack(alone(Rules()), [], data, split, points, batch_size=4, total=3)
    with pytest.raises(ValueError, match="past the end"):
        stack().advance(TOTAL + 1)
