"""The value of a policy: exact on finite processes, the same as the textbook's formulas, and clear about bad input."""

import pickle
import warnings

import numpy as np
import pytest
import torch

import closedform as cf
from closedform.iv import PolicyEvaluator, two_stages
from closedform.iv.fqe import FittedQ
from closedform.iv.loop import batches
from closedform.iv.policy_features import ActionFeatures, Difference
from closedform.iv.policy_training import APART
from closedform.iv.transitions import checked, never_taken
from closedform.stack.optimizers import cosine

STATES, ACTIONS = 6, 3
SMALL = {
    "max_iter": 60,
    "batch_size": 128,
    "hidden_layer_sizes": (16,),
    "n_features": 4,
    "replicates": 60,
    "members": 2,
}


class Process:
    """A random finite Markov decision process, a policy, and its value by a linear solve."""

    def __init__(self, seed, discount, end=0.1):
        rng = self.rng = np.random.default_rng(seed)
        self.P = rng.dirichlet(np.full(STATES, 0.5), size=(STATES, ACTIONS))
        self.R = 1 + rng.normal(size=(STATES, ACTIONS))
        self.policy = rng.dirichlet(np.ones(ACTIONS), size=STATES)
        self.end = end
        pairs = STATES * ACTIONS
        moves = np.einsum("sat,tb->satb", self.P, self.policy).reshape(pairs, pairs)
        Q = np.linalg.solve(np.eye(pairs) - discount * (1 - end) * moves, self.R.ravel())
        self.Q = Q.reshape(STATES, ACTIONS)
        self.V = (self.policy * self.Q).sum(1)

    def rows(self, n, actions=ACTIONS):
        rng = self.rng
        s, a = rng.integers(0, STATES, n), rng.integers(0, actions, n)
        following = (self.P[s, a].cumsum(1) < rng.random(n)[:, None]).sum(1).clip(max=STATES - 1)
        r = self.R[s, a] + 0.5 * rng.normal(size=n)
        eye = np.eye(STATES)
        return eye[s], a, r, eye[following], self.policy[following], rng.random(n) < self.end


@pytest.mark.parametrize(("method", "tolerance"), [("iv", 0.02), ("lstd", 0.02), ("fqe", 0.05)])  # fqe sees batches
@pytest.mark.parametrize("seed", [0, 1])
def test_the_value_of_a_finite_process_is_the_linear_solve(method, tolerance, seed):
    process = Process(seed, 0.9)
    model = PolicyEvaluator(0.9, method, **{**SMALL, "max_iter": 300, "batch_size": 512}).fit(*process.rows(20_000))
    value = model.value(np.eye(STATES), process.policy)
    assert np.abs(value - process.V).max() < tolerance * np.abs(process.V).max()
    assert abs(value.mean() - process.V.mean()) < tolerance * abs(process.V.mean())
    q = np.stack([model.q(np.eye(STATES), np.full(STATES, a)) for a in range(ACTIONS)], 1)
    assert np.abs(q - process.Q).max() < 2 * tolerance * np.abs(process.Q).max()
    assert np.allclose((q * process.policy).sum(1), value, rtol=1e-5)


def test_a_long_horizon_and_none():
    process = Process(2, 0.999, end=0.0)
    model = PolicyEvaluator(0.999, "lstd", **SMALL).fit(*process.rows(20_000))
    assert abs(model.value(np.eye(STATES), process.policy).mean() / process.V.mean() - 1) < 0.02
    process = Process(3, 0.0)
    for method in ("iv", "lstd", "fqe"):
        model = PolicyEvaluator(0.0, method, **SMALL).fit(*process.rows(20_000))
        q = np.stack([model.q(np.eye(STATES), np.full(STATES, a)) for a in range(ACTIONS)], 1)
        assert np.abs(q - process.R).max() < (0.3 if method == "fqe" else 0.08)


def test_episodes_of_length_one_are_a_regression_on_rewards():
    process = Process(4, 0.9, end=1.0)
    rows = process.rows(20_000)
    model = PolicyEvaluator(0.9, **SMALL).fit(*rows, episode=np.arange(20_000))
    expected = [rows[2][(rows[0][:, s] == 1) & (rows[1] == 1)].mean() for s in range(STATES)]
    assert np.abs(model.q(np.eye(STATES), np.ones(STATES, int)) - expected).max() < 0.02


@pytest.mark.parametrize("n", [300, 40])
def test_two_stages_with_the_values_own_features_are_temporal_differences(n):
    g = torch.Generator().manual_seed(n)
    phi, psi = (torch.randn(n, 5, generator=g, dtype=torch.float64) for _ in range(2))
    psi = phi - 0.5 * psi
    r = torch.randn(n, 1, generator=g, dtype=torch.float64)
    group = torch.arange(n) % 7
    sums = two_stages.StageSums.of(phi, psi, r, group, 7)
    none = torch.full((5,), 1e-14, dtype=torch.float64)
    expected = torch.linalg.solve(phi.T @ psi, phi.T @ r)[:, 0]
    assert torch.allclose(two_stages.solve(sums, torch.ones(7, dtype=torch.float64), 1e-14, none), expected, rtol=1e-7)
    weight = torch.rand(7, generator=g, dtype=torch.float64)
    w = weight[group][:, None]
    expected = torch.linalg.solve(phi.T @ (w * psi), phi.T @ (w * r))[:, 0]
    assert torch.allclose(two_stages.solve(sums, weight, 1e-14, none), expected, rtol=1e-7)


def test_more_instruments_are_two_stage_least_squares():
    g = torch.Generator().manual_seed(0)
    phi = torch.randn(200, 9, generator=g, dtype=torch.float64)
    psi = phi[:, :4] + torch.randn(200, 4, generator=g, dtype=torch.float64)
    r = torch.randn(200, 1, generator=g, dtype=torch.float64)
    sums = two_stages.StageSums.of(phi, psi, r, torch.zeros(200, dtype=torch.long), 1)
    w = two_stages.solve(sums, torch.ones(1, dtype=torch.float64), 1e-14, torch.full((4,), 1e-14).double())
    predicted = phi @ torch.linalg.lstsq(phi, psi).solution
    assert torch.allclose(w, torch.linalg.lstsq(predicted, r).solution[:, 0], rtol=1e-8)


@pytest.mark.parametrize(("deficient", "ridge"), [(False, 1e-9), (False, 0.1), (True, 1e-9), (True, 0.1)])
def test_replicates_are_solves_with_the_weights_of_groups(deficient, ridge):
    g = torch.Generator().manual_seed(1)
    phi = torch.randn(400, 6, generator=g, dtype=torch.float64)
    psi = phi - 0.9 * torch.randn(400, 6, generator=g, dtype=torch.float64)
    if deficient:  # a feature twice, and one that is almost another
        phi[:, 1], psi[:, 1] = phi[:, 0], psi[:, 0]
        phi[:, 3], psi[:, 3] = phi[:, 2] + 1e-5 * phi[:, 3], psi[:, 2] + 1e-5 * psi[:, 3]
    r = torch.randn(400, 1, generator=g, dtype=torch.float64)
    sums = two_stages.StageSums.of(phi, psi, r, torch.arange(400) % 9, 9)
    weights = -torch.rand(two_stages.CHUNK + 3, 9, generator=g, dtype=torch.float64).log()
    beta = torch.linspace(1, 2, 6, dtype=torch.float64) * ridge
    fast = two_stages.replicates(sums, weights, 1000 * ridge, beta)
    slow = torch.stack([two_stages.solve(sums, weight, 1000 * ridge, beta) for weight in weights])
    assert torch.allclose(phi @ fast.T, phi @ slow.T, rtol=1e-5, atol=1e-6)


def test_a_replicate_that_has_no_factor_is_solved_the_slow_way(monkeypatch):
    g = torch.Generator().manual_seed(2)
    phi, psi, r = (torch.randn(50, k, generator=g, dtype=torch.float64) for k in (3, 3, 1))
    sums = two_stages.StageSums.of(phi, psi, r, torch.arange(50) % 5, 5)
    weights, beta = torch.rand(4, 5, generator=g, dtype=torch.float64), torch.full((3,), 1e-3, dtype=torch.float64)
    expected = two_stages.replicates(sums, weights, 1e-3, beta)
    factor = torch.linalg.cholesky_ex

    def failing(A):
        L, info = factor(A)
        return L.index_fill(0, torch.tensor([1]), torch.nan), info.index_fill(0, torch.tensor([1]), 1)

    with monkeypatch.context() as patch:
        patch.setattr(two_stages, "solve", lambda *_: expected[1] + 1)
        patch.setattr(torch.linalg, "cholesky_ex", failing)
        again = two_stages.replicates(sums, weights, 1e-3, beta)
    assert torch.allclose(again[[0, 2, 3]], expected[[0, 2, 3]])
    assert torch.equal(again[1], expected[1] + 1)


def test_features_are_linear_in_probabilities_and_differences_stop_at_the_end():
    features = ActionFeatures(4, 3, True, (8,), 5).double()
    s = torch.randn(10, 4, dtype=torch.float64)
    p = torch.rand(10, 3, dtype=torch.float64)
    p /= p.sum(1, keepdim=True)
    one = [features(torch.cat([s, torch.eye(3, dtype=torch.float64)[[a] * 10]], 1)) for a in range(3)]
    expected = sum(p[:, [a]] * one[a] for a in range(3))
    assert torch.allclose(features(torch.cat([s, p], 1)), expected)
    assert features.width == expected.shape[1] == 1 + 3 * (1 + 4 + 5)
    now, going = torch.cat([s, p], 1), torch.arange(10.0, dtype=torch.float64)[:, None] < 5
    psi = Difference(features, 0.5)(torch.cat([now, now, going.double()], 1))
    assert torch.allclose(psi, expected * torch.where(going, 0.5, 1.0))


def smooth_rows(n):
    """Of a walk in the plane, whose value no network has exactly."""
    rng = np.random.default_rng(n)
    s, a = rng.normal(size=(n, 2)), rng.integers(0, 2, n)
    following = 0.8 * s + 0.4 * (2 * a[:, None] - 1) + 0.3 * rng.normal(size=(n, 2))
    return s, a, np.sin(2 * s[:, 0]) * s[:, 1], following, np.full((n, 2), 0.5), rng.random(n) < 0.1


def test_one_member_is_one_network_and_its_fixed_point():
    s, a, r, following, policy, done = smooth_rows(1000)
    model = PolicyEvaluator(0.8, "lstd", random_state=3, **{**SMALL, "members": 1}).fit(
        s, a, r, following, policy, done
    )
    both, unit = np.concatenate([s, following]), np.sqrt(np.square(r).mean())
    now, after = ((x - both.mean(0)) / both.std(0) for x in (s, following))
    X = np.concatenate([now, np.eye(2)[a], after, policy, 1.0 - done[:, None]], 1)
    X, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(r[:, None] / unit)
    g = torch.Generator().manual_seed(3)
    features = ActionFeatures(2, 2, True, SMALL["hidden_layer_sizes"], SMALL["n_features"], g)
    fitted = FittedQ(features, 0.8, cf.Kalman(0.9), lr=1e-3, weight_decay=1e-3, refresh=4, generator=g)
    drawn = batches(torch.arange(1000), SMALL["batch_size"], 3)
    for t in range(SMALL["max_iter"]):
        rows = next(drawn)
        fitted.set_lr(1e-3 * cosine(t / SMALL["max_iter"]))
        fitted.step(X[rows], y[rows])
    with torch.no_grad():
        phi, psi = features(X[:, :4]).double(), Difference(features, 0.8)(X).double()
    w = torch.linalg.pinv(phi.T @ psi, rtol=1e-10) @ phi.T @ y
    assert np.allclose(model.q(s, a), (phi @ w)[:, 0].numpy() * unit, rtol=1e-3, atol=1e-3)


def test_targets_are_those_of_the_last_copy():
    features = ActionFeatures(2, 2, True, (4,), 3, torch.Generator().manual_seed(0))
    fitted = FittedQ(features, 0.8, cf.Kalman(0.9), lr=1e-2, weight_decay=0.0, refresh=2)
    g = torch.Generator().manual_seed(1)
    X, y = torch.randn(30, 9, generator=g), torch.randn(30, 1, generator=g)
    seen = []
    for _ in range(4):
        seen.append((features.net[0].weight.detach().clone(), fitted.head.W.clone()))
        fitted.step(X, y)
        weight, W = seen[len(seen) - 1 - (len(seen) - 1) % 2]
        assert torch.equal(fitted.target.net[0].weight, weight)
        assert torch.equal(fitted.target_W, W)


@pytest.mark.parametrize("method", ["iv", "lstd", "fqe"])
@pytest.mark.parametrize("rule", [None, cf.Proximal(10.0)])
def test_members_are_fits_of_their_own(method, rule):
    rows = smooth_rows(1000)
    settings = {**SMALL, "max_iter": 20, "rule": rule}
    model = PolicyEvaluator(0.8, method, random_state=5, **{**settings, "members": 3}).fit(*rows)
    seeds = [5 + k * APART for k in range(3)]
    alone = [PolicyEvaluator(0.8, method, random_state=s, **{**settings, "members": 1}).fit(*rows) for s in seeds]
    own = np.stack([phi @ w for phi, w in zip(model._phi(rows[0], rows[1]), model.weights_)])
    expected = np.stack([one.q(rows[0], rows[1]) for one in alone])
    assert np.allclose(own, expected, rtol=1e-3, atol=1e-3)
    assert np.ptp(expected, axis=0).max() > 0.02  # they differ
    share = model.member_weights_.numpy()
    assert np.allclose(model.q(rows[0], rows[1]), share @ own)
    assert share.sum() == pytest.approx(1)
    assert model.gradient_steps_ == sum(one.gradient_steps_ for one in alone)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.value(rows[0], rows[1]), model.value(rows[0], rows[1]))
    assert again.interval(rows[0], rows[1]) == model.interval(rows[0], rows[1])


def test_rules_that_cannot_stand_side_by_side_train_one_by_one():
    rule = cf.Kalman(lambda step: 1 - 0.1 / (1 + step))
    rows = smooth_rows(1000)
    model = PolicyEvaluator(0.5, "lstd", rule=rule, **SMALL).fit(*rows)
    second = PolicyEvaluator(0.5, "lstd", rule=rule, random_state=APART, **{**SMALL, "members": 1}).fit(*rows)
    assert torch.allclose(model.weights_[1], second.weights_[0], rtol=1e-6)


def test_an_uncertain_member_counts_for_less_and_spread_widens_the_interval():
    process = Process(12, 0.8)
    rows = process.rows(2000)
    start = np.eye(STATES), process.policy
    model = PolicyEvaluator(0.8, "lstd", **{**SMALL, "members": 3}).fit(*rows)
    value, (low, high) = model.value(*start).mean(), model.interval(*start)
    data = checked(*rows, None, None)
    following = model._rows(data.next_states, data.next_actions)
    deviation = model._replicates - model._replicates.mean(1, keepdim=True)
    model._replicates[2] += 9 * deviation[2]
    share = model._shares(following, data)
    assert share[2] < 0.05 < share[:2].min()
    # members that lie apart by a deviation of s: the interval is that of sqrt(boot^2 + 4/3 s^2)
    model._replicates[2] -= 9 * deviation[2]
    model.member_weights_ = torch.full((3,), 1 / 3, dtype=torch.float64)
    boot = (high - low) / (2 * 1.645)
    for k, shift in enumerate((-10 * boot, 0.0, 10 * boot)):
        model.weights_[k, 0] += shift  # the constant
    low, high = model.interval(*start)
    assert (high - low) / (2 * 1.645) == pytest.approx(boot * (1 + 400 / 3) ** 0.5, rel=0.1)
    assert low < value < high


@pytest.mark.parametrize("members", [2, 5])
def test_a_log_without_chance_has_an_interval_of_one_point(members):
    states, s = np.eye(2), np.arange(40) % 2
    rows = states[s], np.zeros(40, int), 1.0 * s, states[1 - s], np.zeros(40, int), np.zeros(40, bool)
    model = PolicyEvaluator(0.5, "lstd", **{**SMALL, "members": members}).fit(*rows, episode=np.arange(40) // 2)
    low, high = model.interval(states, np.zeros(2, int))
    assert model.value(states, np.zeros(2, int)) == pytest.approx([2 / 3, 4 / 3], abs=1e-4)
    assert 1 - 1e-3 < low <= high < 1 + 1e-3


def test_intervals_are_of_episodes():
    process = Process(5, 0.9)
    rows = process.rows(4000)
    start = np.eye(STATES), process.policy
    model = PolicyEvaluator(0.9, "lstd", **SMALL).fit(*rows, episode=np.arange(4000) // 10)
    low, high = model.interval(*start)
    wide = model.interval(*start, level=0.99)
    assert wide[0] < low < model.value(*start).mean() < high < wide[1]
    assert (low, high) == model.interval(*start)
    # each row ten times over: as rows they look like more, as episodes not
    again = [np.repeat(part, 10, axis=0) for part in rows]
    episodes = PolicyEvaluator(0.9, "lstd", **SMALL).fit(*again, episode=np.arange(40_000) // 100)
    alone = PolicyEvaluator(0.9, "lstd", **SMALL).fit(*again)
    width = [np.ptp(m.interval(*start)) for m in (model, episodes, alone)]
    assert 0.6 < width[1] / width[0] < 1.7
    assert width[2] < 0.6 * width[0]
    with pytest.raises(ValueError, match="one episode; expected at least two"):
        PolicyEvaluator(0.9, "lstd", **SMALL).fit(*rows, episode=np.zeros(4000)).interval(*start)


def test_intervals_cover_the_value():
    hits = 0
    for seed in range(20):
        process = Process(100 + seed, 0.8)
        model = PolicyEvaluator(0.8, "lstd", **{**SMALL, "max_iter": 5}).fit(*process.rows(2000))
        low, high = model.interval(np.eye(STATES), process.policy)
        hits += low < process.V.mean() < high
    assert hits >= 14  # of 20 at 90 %: fewer than 14 happen once in 400 times


def test_actions_that_were_never_logged_are_told_with_their_share():
    process = Process(6, 0.9)
    rows = process.rows(2000, actions=2)
    data = checked(*rows, None, None)
    share = rows[4][~rows[5], 2].mean()
    assert abs(never_taken(data) - share) < 1e-12
    with pytest.warns(
        UserWarning, match=f"{share:.1%} of its next actions on actions that the logged policy never took"
    ):
        model = PolicyEvaluator(0.9, "lstd", **SMALL).fit(*rows)
    assert np.isfinite(model.q(np.eye(STATES), np.full(STATES, 2))).all()


def test_continuous_actions():
    """The state is a number that the action moves; the evaluated policy takes a = -s / 2."""
    rng = np.random.default_rng(0)
    s = rng.normal(size=(6000, 1)).astype(np.float32)
    a = rng.normal(size=6000)
    following = 0.5 * s[:, 0] + 0.5 * a + 0.1 * rng.normal(size=6000)
    r = s[:, 0] + a
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PolicyEvaluator(0.5, "lstd", **SMALL).fit(
            s, a, r, following[:, None], -following / 2, np.zeros(6000, bool)
        )
    # Q = s + a + b s' in the mean with V(s) = c s: c = 1/2 + c / 8
    c = 0.5 / (1 - 0.125)
    at = np.array([[-1.0], [0.0], [1.0]])
    assert np.abs(model.q(at, np.zeros(3)) - (1 + 0.25 * c) * at[:, 0]).max() < 0.05
    assert np.abs(model.value(at, -at / 2) - c * at[:, 0]).max() < 0.05
    with pytest.warns(UserWarning, match="actions outside of the logged range"):
        PolicyEvaluator(0.5, "lstd", **SMALL).fit(s, a, r, following[:, None], 9 + 0 * a, np.zeros(6000, bool))


def test_kinds_of_numbers_and_tensors_make_no_difference():
    process = Process(7, 0.9)
    s, a, r, following, policy, done = process.rows(500)
    start = np.eye(STATES), process.policy
    expected = PolicyEvaluator(0.9, **SMALL).fit(s, a, r, following, policy, done).value(*start)
    other = PolicyEvaluator(0.9, **SMALL).fit(
        s.astype(np.int8), torch.as_tensor(a, dtype=torch.int16), list(r), following.astype(np.float32),
        torch.as_tensor(policy), done.astype(np.uint8)[:, None],
    )  # fmt: skip
    assert np.allclose(other.value(*start), expected, rtol=1e-4)
    assert other.value(*start).shape == (STATES,)
    images = PolicyEvaluator(0.9, **SMALL).fit(s.reshape(-1, 2, 3), a, r, following.reshape(-1, 2, 3), policy, done)
    assert np.array_equal(images.value(np.eye(STATES).reshape(-1, 2, 3), process.policy), expected)


@pytest.mark.parametrize("rule", [cf.Proximal(10.0), cf.Kalman(0.95), cf.Ridge(1.0)])
@pytest.mark.parametrize("method", ["iv", "fqe"])
def test_any_rule_serves(rule, method):
    process = Process(8, 0.5)
    model = PolicyEvaluator(0.5, method, rule=rule, **{**SMALL, "max_iter": 200}).fit(*process.rows(3000))
    value = model.value(np.eye(STATES), process.policy).mean()
    assert abs(value / process.V.mean() - 1) < 0.1


def rows(**changes):
    rng = np.random.default_rng(0)
    parts = {
        "states": rng.normal(size=(8, 2)), "actions": np.arange(8) % 2, "rewards": np.ones(8),
        "next_states": rng.normal(size=(8, 2)), "next_actions": np.arange(8) % 2, "done": np.zeros(8, bool),
    }  # fmt: skip
    return parts | changes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"states": np.arange(8)}, r"states has shape \(8,\); expected \(n, numbers of a state\)"),
        ({"states": np.full((8, 2), np.nan)}, r"states contains NaN or infinity in row 0 \(16 such values"),
        ({"next_states": np.ones((8, 3))}, "states have 2 numbers and next_states 3"),
        ({"rewards": np.ones(7)}, "rows differ: states has 8, actions has 8, rewards has 7"),
        ({"rewards": np.ones((8, 2))}, r"rewards has shape \(8, 2\); expected \(n,\)"),
        ({"rewards": ["x"] * 8}, "rewards has the dtype .*; expected numbers"),
        ({"done": np.full(8, 0.5)}, "done holds 0.5; expected True or False"),
        ({"actions": -np.ones(8, int)}, "actions holds the action -1; expected whole numbers from 0 to"),
        ({"actions": np.ones(8)}, r"actions are floating point \(continuous\) and next_actions whole numbers"),
        ({"next_actions": np.full((8, 2), 0.6)}, r"next_actions holds \[0.6, 0.6\] in row 0 \(8 such rows"),
        ({"next_actions": np.ones((8, 1, 1))}, "next_actions has shape"),
        ({"episode": np.zeros((8, 2))}, r"episode has shape \(8, 2\)"),
    ],
)
def test_bad_rows_are_told(changes, sentence):
    model = PolicyEvaluator()
    with pytest.raises(ValueError, match=sentence):
        model.fit(**rows(**changes))
    assert not hasattr(model, "weights_")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"discount": 1.0}, "discount must be from 0 to below 1, got 1.0"),
        ({"discount": None}, "discount must be from 0 to below 1, got None"),
        ({"random_state": None}, "random_state must be a whole number from 0 on, got None"),
        ({"random_state": -1}, "random_state must be a whole number from 0 on, got -1"),
        ({"method": "dqn"}, "method must be one of iv, fqe, lstd, got 'dqn'"),
        ({"rule": 3}, "rule must be None or a rule"),
        ({"members": 0}, "members must be a positive integer, got 0"),
        ({"members": 2.0}, "members must be a positive integer, got 2.0"),
        ({"max_iter": 0}, "max_iter must be a positive integer, got 0"),
        ({"n_actions": 1}, "actions holds the action 1; expected whole numbers from 0 to 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
        ({"weight_decay": -1.0}, "weight_decay must be a number from 0 on"),
        ({"hidden_layer_sizes": 3}, "hidden_layer_sizes must be positive integers"),
    ],
)
def test_bad_settings_are_told(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        PolicyEvaluator(**settings).fit(**rows())


def test_using_a_fit_wrongly_is_told():
    with pytest.raises(ValueError, match="has not been fitted"):
        PolicyEvaluator().q(np.ones((1, 2)), np.zeros(1, int))
    model = PolicyEvaluator(0.5, **SMALL).fit(**rows())
    with pytest.raises(ValueError, match="states has 3 numbers a state; expected 2"):
        model.q(np.ones((1, 3)), np.zeros(1, int))
    with pytest.raises(ValueError, match="expected whole numbers"):
        model.q(np.ones((1, 2)), np.array([[0.5, 0.5]]))
    with pytest.raises(ValueError, match="states have 1 rows and actions 2"):
        model.value(np.ones((1, 2)), np.zeros(2, int))
    with pytest.raises(ValueError, match=r"states has shape \(0, .*\); expected at least one row"):
        model.value(np.ones((0, 2)), np.zeros(0, int))
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        model.interval(np.ones((1, 2)), np.zeros(1, int), level=90)
