"""What `DFIVRegressor` chooses between, and on which rows: the sieve, cross-validation, the last solve with all rows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
from closedform.iv import Data, DFIVRegressor, Split, choice, evaluation, fitting, networks, reestimated
from closedform.solver.lambdas import per_sample


def curve(f, n, seed=0):
    rng = np.random.default_rng(seed)
    z, u, e = rng.standard_normal((3, n))
    x = z + u / 2
    return x[:, None], f(x) + 2 * u + e / 10, z[:, None]


def drawn(n=120, seed=0):
    """Standardised rows, a split and held-out rows."""
    X, y, Z = curve(np.sin, n, seed)
    data = Data(*(torch.from_numpy(part).float() for part in (X, Z, y[:, None])))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return data, Split(order[:50], order[50:100]), order[100:]


def small(treatment):
    settings = DFIVRegressor(max_iter=3, hidden_layer_sizes=(8,), n_features=(2, 3, 2), batch_size=32)
    data, _, _ = drawn()
    base = fitting.base_design(settings, data, 50)
    return choice.candidates(base, treatment, 0.01)[0]


@pytest.mark.parametrize("bumps", [networks.NARROW, networks.WIDE, None])
@pytest.mark.parametrize("columns", [1, 3, 4])
def test_the_width_of_a_sieve(columns, bumps):
    x = torch.randn(5, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    features = networks.Sieve(bumps)(x)
    assert features.shape == (5, networks.sieve_width(columns, bumps))
    assert torch.equal(features[:, :columns], x)
    if bumps is None or columns > networks.BUMPED:
        assert features.shape[1] == 3 * columns
    else:
        first = np.exp(-np.square((x[:, 0].numpy() + bumps.reach) / bumps.width) / 2)
        assert np.allclose(features[:, columns], first)


@pytest.mark.parametrize("treatment", ["linear", "sieve"])
def test_cross_validation_is_that_of_a_loop_by_hand(treatment):
    data, split, held = drawn()
    (contender,) = choice.fitted([small(treatment)], data, [split], held, None)
    design, first = contender.member.design, per_sample(contender.member.first)
    unseen = torch.cat([held, split.second])
    assert contender.crossed is not None
    for losses, ridge in zip(contender.crossed, choice.RIDGES):
        for k, row in enumerate(unseen.tolist()):
            others = unseen[[i for i in range(len(unseen)) if i % choice.FOLDS != k % choice.FOLDS]]
            if k % 17 == 0:
                part = Split(split.first, others)
                layers = reestimated(
                    contender.member, data, part, first, per_sample(ridge), design.unpenalised, calibrated=True
                )
                own = data.rows(torch.tensor([row]))
                phi = evaluation.outputs(contender.member.phi, own.Z)
                assert torch.allclose(losses[k], (layers.expected(phi, None) - own.y.double()).square()[0, 0])


def test_features_that_saw_outcomes_are_not_cross_validated():
    data, split, held = drawn()
    assert choice.fitted([small("deep")], data, [split], held, None)[0].crossed is None


def test_candidates_of_one_treatment_and_of_more():
    data, _, _ = drawn()
    base = fitting.base_design(DFIVRegressor(), data, 50)

    def kinds(**changes):
        designs = choice.candidates(choice.replace(base, **changes), "auto", "auto")
        return [(design.treatment, design.inner) for design in designs]

    sieves = [("sieve", 0.01), ("wide sieve", 0.01)]
    assert kinds() == [("linear", 0.01), *sieves]
    deep = [("deep", 0.01), ("deep", 1.0)]
    assert kinds(inputs=2) == [("linear", 0.01), *sieves, *deep]
    assert kinds(inputs=4) == [("linear", 0.01), ("sieve", 0.01), *deep]
    assert kinds(controls=1) == [("linear", 0.01), ("linear", 1.0), ("sieve", 0.01), *deep]
    assert kinds(inputs=11) == [("linear", 0.01), *deep]


def test_a_wave_is_told_from_a_line_and_a_line_from_a_wave():
    at = np.linspace(-1.5, 1.5, 41)
    for f, worst in ((lambda x: np.sin(2 * x), 0.2), (lambda x: 2 * x, 1.2)):
        X, y, Z = curve(f, 2000, seed=5)
        model = DFIVRegressor(random_state=0, max_iter=30).fit(X, y, Z=Z)
        line = DFIVRegressor("linear").fit(X, y, Z=Z)
        errors = [np.square(m.predict(at[:, None]) - f(at)).mean() for m in (model, line)]
        assert errors[0] < worst * errors[1]


def test_the_summary_has_the_losses_that_have_decided():
    X, y, Z = curve(lambda x: np.sin(2 * x), 1000, seed=5)
    summary = DFIVRegressor(random_state=0, max_iter=3).fit(X, y, Z=Z).summary()
    names, losses = zip(*summary.tried)
    assert all(name.endswith(", cross-validated") for name in names)
    assert summary.used.startswith(names[int(np.argmin(losses))].removesuffix(", cross-validated"))
    assert summary.gap is None
    assert "layers of training" not in str(summary)
    two = np.column_stack([X, X**2])
    summary = DFIVRegressor(random_state=0, max_iter=3).fit(two, y, Z=np.column_stack([Z, Z**2])).summary()
    behind = [name for name, _ in summary.tried if name.endswith(", behind in cross-validation")]
    assert len(behind) == 3  # of the line, the linear candidate and two sieves one goes on
    assert not any("deep" in name for name in behind)


def test_the_last_solve_has_all_rows_and_keeps_groups_in_one_stage():
    groups = np.repeat(np.arange(40), 3)
    held, first = fitting._rows_of(groups, np.arange(10)), fitting._rows_of(groups, np.arange(10, 25))
    second = fitting._rows_of(groups, np.arange(25, 40))
    for swap in (False, True):
        split = fitting._with_held(Split(first, second), held, groups, swap=swap)
        assert sorted([*split.first.tolist(), *split.second.tolist()]) == list(range(120))
        assert not set(groups[split.first.numpy()]) & set(groups[split.second.numpy()])
    pair = [
        fitting._with_held(Split(*halves), held, groups, swap=s)
        for halves, s in (((first, second), False), ((second, first), True))
    ]
    assert set(pair[0].first.tolist()) == set(pair[1].second.tolist())


@pytest.mark.parametrize(("behind", "taken"), [(0.7, 0), (1.3, 1)])
def test_of_learned_models_the_simpler_may_be_behind_by_a_standard_error(behind, taken, monkeypatch):
    noise = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gap = (noise - noise.mean()) / noise.std() + behind / 10  # whose mean is so many standard errors
    best = torch.full((100,), 5.0, dtype=torch.float64)
    contenders = [SimpleNamespace(crossed=None, member=SimpleNamespace(design=k)) for k in range(2)]
    losses = {id(contenders[0]): best + gap, id(contenders[1]): best}
    monkeypatch.setattr(choice, "fitted", lambda *parts: contenders)
    monkeypatch.setattr(choice, "pooled", lambda some, ridge: [SimpleNamespace(losses=losses[id(some[0])])])
    data, split, held = drawn()
    winner, trials = choice.chosen([None, None], data, split, held, None)
    assert winner is contenders[taken]
    assert [trial.design for trial in trials] == [0, 1]
