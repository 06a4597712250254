"""The default rule: its memories against a slow reference, what it chooses, and that nothing of it is lost."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import closedform as cf
from closedform.solver import auto, filters, route
from closedform.solver.auto import BOUNDED_BATCHES, BOUNDED_ROWS, BOUNDED_STEPS, DECAY, SCARCE, SHARPNESS

from .helpers import matrix, problem, relative

D, OUTPUTS = 5, 2


def stream(steps, n=7, seed=0, noise=0.1, change=0.0):
    """Batches of a linear truth that moves by `change` a step."""
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(OUTPUTS, D, generator=g, dtype=torch.float64)
    for _ in range(steps):
        phi = torch.randn(n, D, generator=g, dtype=torch.float64)
        truth = truth + change * torch.randn(OUTPUTS, D, generator=g, dtype=torch.float64)
        yield phi, phi @ truth.T + noise * torch.randn(n, OUTPUTS, generator=g, dtype=torch.float64)


def layer(**options):
    return cf.ClosedFormLinear(D, OUTPUTS, dtype=torch.float64, **options)


def slowly(rule, batches):
    """The rule letter by letter: filters one by one, explicit inverses."""
    K, size = len(rule.forget), D + 1
    W, A, s = [torch.zeros(OUTPUTS, size, dtype=torch.float64)] * K, [None] * K, torch.zeros(K, dtype=torch.float64)
    for t, (phi, y) in enumerate(batches):
        X = torch.cat([phi, torch.ones(len(phi), 1, dtype=phi.dtype)], 1)
        G = X.T @ X
        units = torch.cat([G.diagonal()[:D].mean().expand(D), G.diagonal()[D:]])
        W, A = list(W), list(A)
        for k, (gamma, hold) in enumerate(zip(rule.forget, rule.hold)):
            E = y - X @ W[k].T
            s[k] = 0.0 if t == 0 else rule.discount * s[k] + E.square().mean()
            if t == 0:
                prior = 10 * units
                A[k] = torch.diag(prior) + G
            else:
                at = (t * min(filters.LEAKING, size) + torch.arange(min(filters.LEAKING, size))) % size
                leak = torch.maximum(filters.LEAK * (1 - gamma) * prior, filters.TOLD_APART * G.diagonal())[at]
                A[k] = gamma * A[k] + G + torch.diag(hold * (1 - gamma) * units)
                A[k][at, at] += leak * size / min(filters.LEAKING, size)
            W[k] = W[k] + (torch.linalg.inv(A[k]) @ X.T @ E).T
        gamma = torch.tensor(rule.forget, dtype=torch.float64)
        handicapped = s * (1 + rule.handicap * (1 - gamma).sqrt() * min(1.0, SCARCE * size / len(phi)) ** 2)
        w = (handicapped / handicapped.min()) ** -SHARPNESS if t else torch.ones(K, dtype=torch.float64)
        w = w / w.sum()
    return sum(share * one for share, one in zip(w, W)), w, torch.stack(W)


@pytest.mark.parametrize(("n", "many"), [(3, 4096), (6, 4096), (20, 4096), (20, 1)])
def test_it_is_the_formula(n, many, monkeypatch):
    monkeypatch.setattr(route, "MANY_ROWS", many)
    batches = list(stream(25, n, change=0.02))
    head = layer()
    for phi, y in batches:
        head.solve(phi, y)
    expected, weights, layers = slowly(head.rule, batches)
    assert relative(matrix(head), expected) < 1e-8
    assert relative(head.memory_.weight, weights) < 1e-6
    for own, slow in zip(head._memory()["layers"], layers):  # those without weight in the layer too
        assert relative(own, slow) < 1e-8


def slowly_of_labels(batches, W, rule, drawn):
    """The same under cross-entropy among few classes, whose steps are those of the bound, from the layer `W`; drawn to zero
    by the evidence, or not."""
    size, again, guess = D + 1, min(rule.handicap, 1.0), math.log(len(W))
    W, A, gammas, s, prior = [W] * 2, [None] * 2, None, torch.zeros(2, dtype=W.dtype), None
    for t, (phi, y) in enumerate(batches):
        X = torch.cat([phi, torch.ones(len(phi), 1, dtype=phi.dtype)], 1)
        G = X.T @ X / 4  # half the curvature of softmax
        units = G.diagonal()[:D].mean()
        prior = 10 * torch.cat([units.expand(D), G.diagonal()[D:]]) if t == 0 else prior
        few, many = (rows * size / len(phi) for rows in BOUNDED_ROWS)
        longest = max(100, many)
        short = min(max(t / auto.BOUNDED_STEPS[0], many), 20) if many < 20 else min(max(few, 20), 100)
        short = max(short, min(again * t / auto.BOUNDED_STEPS[1], longest))
        before, gammas = gammas, [1 - 1 / max(short, 2), 1 - 1 / longest]
        W, A = list(W), list(A)
        for k, gamma in enumerate(gammas):
            mean = s[k] * (1 - rule.discount) / (1 - rule.discount ** (t - 1)) if t > 1 else guess
            if t > 0:
                W[k] = torch.cat([W[k][:, :D] * (1 - again * DECAY * (1 - before[k])), W[k][:, D:]], 1)
            Z = X @ W[k].T
            s[k] = 0.0 if t == 0 else rule.discount * s[k] + F.cross_entropy(Z, y)
            A[k] = torch.diag(prior) + G if t == 0 else gamma * A[k] + G
            C = X.T @ (F.one_hot(y, len(Z.T)) - Z.softmax(1)) / 2
            if t > 0:  # the leak, of all features where they are few
                leak = torch.maximum(filters.LEAK * (1 - gamma) * prior, filters.TOLD_APART * G.diagonal())
                A[k] = A[k] + torch.diag(leak)
            if t > 0 and drawn:
                weights = torch.cat([W[k][:, :D], torch.zeros(len(W[k]), 1)], 1)
                share = min(float(mean) / guess, 1.0)
                h = min(share**2 * D * (len(weights) - 1) / (2 * float(weights.square().sum())), 10 * float(units))
                zero = again * (1 - gamma) * h
                A[k] = A[k] + zero * torch.diag(torch.cat([torch.ones(D), torch.zeros(1)]).double())
                C = C - zero * weights.T
            W[k] = W[k] + (torch.linalg.inv(A[k]) @ C).T
        w = (s / s.min()) ** -SHARPNESS if t else torch.ones(2, dtype=s.dtype)
        w = w / w.sum()
    return sum(share * one for share, one in zip(w, W)), torch.tensor(gammas, dtype=s.dtype), torch.stack(W)


@pytest.mark.parametrize("form", ["information", "covariance"])
@pytest.mark.parametrize("handicap", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("n", [3, 7, 40, 200])
def test_of_labels_it_is_the_formula(n, handicap, form, monkeypatch):
    """A covariance cannot be drawn to zero in all features at once."""
    monkeypatch.setattr(auto, "BOUNDED_STEPS", (3, 2))  # so that memories grow within the test
    monkeypatch.setattr(route, "INFORMATION", {"information": 512, "covariance": 0}[form])
    batches = [(phi, y.argmax(1)) for phi, y in stream(250, n, change=0.02, noise=1.0)]
    head = layer(rule=cf.Auto(handicap=handicap), loss=cf.CrossEntropy())
    start = torch.randn(OUTPUTS, D + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    head.set_weights_(start)
    for phi, y in batches:
        head.solve(phi, y)
    expected, forget, layers = slowly_of_labels(batches, start, head.rule, drawn=form == "information")
    assert torch.allclose(head.memory_.forget, forget, rtol=1e-9)
    assert relative(head._memory()["layers"], layers) < 1e-8
    assert relative(matrix(head), expected) < 1e-6


def test_labels_learned_by_heart_do_not_let_the_layer_grow_without_end(monkeypatch):
    """Rows that a layer separates have no finite minimum of cross-entropy."""
    phi = torch.randn(40, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def grown():
        """By how much the layer grows in the second half of many steps."""
        head = layer(loss=cf.CrossEntropy())
        sizes = []
        for _ in range(2):
            for _ in range(3000):
                head.solve(phi, (phi[:, 0] > 0).long())
            sizes.append(float(head.weight.norm()))
        return sizes[1] / sizes[0]

    assert grown() < 1.02
    monkeypatch.setattr(auto, "DECAY", 0.0)
    assert grown() > 1.05


@pytest.mark.parametrize("loss", [cf.CrossEntropy(), cf.Logistic()], ids=["cross-entropy", "logistic"])
@pytest.mark.parametrize("relu", [False, True], ids=["centred", "relu"])
def test_rare_labels_stay_as_rare_as_they_are(loss, relu):
    """Layers are drawn to zero, but their biases are not."""
    g = torch.Generator().manual_seed(0)
    head = cf.ClosedFormLinear(D, 2 if loss.labels else 1, loss=loss, dtype=torch.float64)
    shown, predicted = [], []
    for t in range(1200):
        phi = torch.randn(300, D, generator=g, dtype=torch.float64)
        phi = phi.relu() if relu else phi
        y = torch.rand(300, generator=g, dtype=torch.float64) < 0.01
        head.solve(phi, y.long() if loss.labels else y.double()[:, None])
        if t >= 800:
            z = head(phi).detach()
            shown.append(float(y.double().mean()))
            predicted.append(float((z.softmax(1)[:, 1] if loss.labels else z.sigmoid()).mean()))
    assert sum(predicted) == pytest.approx(sum(shown), rel=0.15)


@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_residuals_of_one_layer_are_enough(filtered, weighted, monkeypatch):
    monkeypatch.setattr(route, "MANY_FEATURES", 1024 if filtered else 1)
    weight = torch.rand(40, dtype=torch.float64) if weighted else None
    heads = []
    for many in (4096, 1):
        monkeypatch.setattr(route, "MANY_ROWS", many)
        heads.append(layer())
        for phi, y in stream(20, 40, change=0.02):
            heads[-1].solve(phi, y, weight)
    apart, once = heads
    assert relative(matrix(once), matrix(apart)) < 1e-10
    assert relative(once.memory_.error, apart.memory_.error) < 1e-10


def test_the_memory_is_as_long_as_the_truth_is_still():
    lengths = []
    for change in (0.0, 0.5):
        head = layer()
        for phi, y in stream(300, noise=0.5, change=change):
            head.solve(phi, y)
        lengths.append(head.memory_.length)
    assert lengths[0] > 10
    assert lengths[1] < 3


def test_it_predicts_a_stream_about_as_well_as_the_best_of_its_memories():
    for change in (0.0, 0.01, 0.3):
        heads = {"auto": layer(rule=cf.Auto(handicap=0.0))} | {
            g: layer(rule=cf.Kalman(g)) for g in (0.5, 0.9, 0.99, 0.999)
        }
        errors = dict.fromkeys(heads, 0.0)
        for t, (phi, y) in enumerate(stream(400, noise=0.5, change=change)):
            for name, head in heads.items():
                errors[name] += float((head(phi) - y).square().mean()) if t > 100 else 0.0
                head.solve(phi, y)
        assert errors["auto"] < 1.08 * min(errors.values())


def test_a_short_memory_must_be_clearly_better_where_rows_are_few():
    """The truth moves so slowly that a memory of ten batches predicts them better than a long one, but by less than its
    handicap; with ten times as many rows a batch has enough for its features, and little of the handicap is left."""

    def length(n, change, handicap):
        head = layer(rule=cf.Auto(handicap=handicap))
        for phi, y in stream(400, n, noise=0.5, change=change):
            head.solve(phi, y)
        return head.memory_.length

    assert length(7, 0.005, 1.0) > 50 * length(7, 0.005, 0.0)
    assert length(7, 0.02, 1.0) < 11  # by more than its handicap
    assert length(100, 0.01, 1.0) < 11


def test_the_handicap_counts_weights_alike_and_is_for_numbers():
    """Batches that are added up first choose as one large batch does, whatever their weights; the choice among memories of
    labels knows no handicap."""
    weight = 0.05 + torch.rand(40, dtype=torch.float64)
    for scale in (1e-3, 1.0, 10.0):
        heads = [layer(), layer()]
        for phi, y in stream(30, 40, change=0.02):
            heads[0].solve(phi, y, scale * weight)
            for part in (slice(0, 15), slice(15, 40)):
                heads[1].accumulate(phi[part], y[part], scale * weight[part])
            heads[1].commit()
        assert relative(heads[0].memory_.weight, heads[1].memory_.weight) < 1e-6
    for loss, same in ((cf.Huber(), False), (cf.CrossEntropy(), True), (cf.Logistic(), True)):
        chosen = []
        for handicap in (1.0, 5.0):
            head = layer(rule=cf.Auto(handicap=handicap), loss=loss)
            for phi, y in stream(60, change=0.02):
                head.solve(phi, y if loss.numbers else y.argmax(1) if loss.labels else (y > 0).double())
            chosen.append(head.memory_.weight)
        assert bool((chosen[0] == chosen[1]).all()) is same


def test_labels_have_two_memories():
    assert cf.Auto().under(cf.Huber()) == cf.Auto()
    assert cf.Auto().under(cf.OneHotSquared()) == cf.Auto()
    for loss in (cf.CrossEntropy(), cf.Logistic()):
        assert cf.Auto(handicap=0.5).under(loss) == cf.Auto((0.5, 0.99), (0.0, 0.0), handicap=0.5)
        own = cf.Auto((0.9, 0.99, 0.999), (0.0, 0.0, 1.0))
        assert own.under(loss) == own
        head = cf.ClosedFormLinear(4, 3, loss=loss)
        assert head.rule == cf.Auto()  # as it was asked for
        assert len(head.memory_.weight) == 2


OWN = cf.Auto((0.8, 0.99), (0.0, 0.0), discount=0.9)


@pytest.mark.parametrize("n", [6, 40])
@pytest.mark.parametrize("loss", [cf.Squared(), cf.CrossEntropy(), cf.Huber()], ids=repr)
def test_few_memories_of_many_features_keep_the_covariance(n, loss, monkeypatch):
    """The same filters in the other form, their longer steps under cross-entropy too."""
    heads, o = [], 12
    for many in (512, 3):
        monkeypatch.setattr(route, "INFORMATION", many)
        heads.append(cf.ClosedFormLinear(D, o, rule=OWN, loss=loss, dtype=torch.float64))
        for seed in range(15):
            g = torch.Generator().manual_seed(seed)
            phi = torch.randn(n, D, generator=g, dtype=torch.float64)
            z = phi @ torch.linspace(-1, 1, D * o, dtype=torch.float64).reshape(D, o)
            y = z + torch.randn(n, o, generator=g, dtype=torch.float64)
            heads[-1].solve(phi, y.argmax(1) if loss.labels else y)
    information, covariance = heads
    assert "memory_covariance" in covariance.state_dict()
    assert int(covariance.rejected) == 0
    assert relative(matrix(covariance), matrix(information)) < 1e-5
    assert relative(covariance.memory_.weight, information.memory_.weight) < 1e-4
    assert relative(covariance._memory()["noise"], information._memory()["noise"]) < 1e-5
    if isinstance(loss, cf.Squared):
        phi, seen = torch.randn(5, D, dtype=torch.float64), []
        for many, head in zip((512, 3), heads):
            monkeypatch.setattr(route, "INFORMATION", many)
            seen.append((head.variance(phi), head.sample(4000, torch.Generator().manual_seed(0)).var(0)))
        assert relative(seen[1][0], seen[0][0]) < 1e-5
        assert relative(seen[1][1], seen[0][1]) < 0.1


def test_what_holds_a_memory_is_not_lost_among_many_features(monkeypatch):
    monkeypatch.setattr(route, "INFORMATION", 3)
    assert "memory_information" in layer(rule=cf.Auto((0.9, 0.99), (10.0, 0.0))).state_dict()


def test_the_choice_can_be_read():
    head = layer()
    for phi, y in stream(300):
        head.solve(phi, y)
    choice = head.memory_
    assert choice.history.shape == (256, len(head.rule.forget))
    assert torch.allclose(choice.history[-1], choice.weight)
    assert float(choice.weight.sum()) == pytest.approx(1.0)
    assert float(choice.share.sum()) == pytest.approx(1.0)
    assert (choice.error > 0).all()
    with pytest.raises(ValueError, match="memory_ is what the rule Auto has chosen"):
        _ = layer(rule=cf.Proximal(1.0)).memory_


def test_a_saved_head_goes_on_to_the_same_bits():
    batches = list(stream(40))
    head = layer()
    for phi, y in batches[:20]:
        head.solve(phi, y)
    again = layer()
    again.load_state_dict(copy.deepcopy(head.state_dict()))
    for phi, y in batches[20:]:
        head.solve(phi, y)
        again.solve(phi, y)
    assert all(torch.equal(a, b) for a, b in zip(head.state_dict().values(), again.state_dict().values()))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("d", [4, 1500])
def test_a_state_with_other_memories_loads_the_layer(d, assign):
    """An earlier version had seven memories under cross-entropy, and no filters above 1,024 features."""
    phi, labels = torch.randn(6, d), torch.tensor([0, 1, 2, 0, 1, 2])
    before = cf.ClosedFormLinear(d, 3, rule=cf.Auto(discount=0.98), loss=cf.CrossEntropy())
    before._acting, before._rule = cf.Auto(), cf.Auto()
    for name in before._names:
        del before._buffers[f"memory_{name}"]
    before._names = tuple(memory := cf.Auto().memory(before.features, 3))
    for name, tensor in memory.items():
        before.register_buffer(f"memory_{name}", tensor)
    before.solve(phi, labels)
    state = torch.nn.Sequential(before).state_dict()
    with torch.device("meta" if assign else "cpu"):
        model = torch.nn.Sequential(cf.ClosedFormLinear(d, 3, loss=cf.CrossEntropy()))
    with pytest.warns(UserWarning, match="memory is that of another version of the rule, and starts afresh"):
        model.load_state_dict(state, assign=assign)
    head = model[0]
    assert torch.equal(matrix(head), matrix(before))
    assert (int(head.step), int(before.step)) == (0, 1)
    assert len(head.memory_.weight) == 2
    head.solve(phi, labels)
    assert int(head.step) == 1
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        cf.ClosedFormLinear(d, 5, loss=cf.CrossEntropy()).load_state_dict(before.state_dict())
    plain = cf.ClosedFormLinear(d, 3, bias=False, loss=cf.CrossEntropy())
    with pytest.raises(RuntimeError, match="bias"):
        plain.load_state_dict(before.state_dict())


def test_a_pickle_of_an_earlier_version_goes_on():
    head = cf.ClosedFormLinear(4, 3)
    state = head.__dict__ | {"loss": head.loss}
    old = cf.ClosedFormLinear.__new__(cf.ClosedFormLinear)
    old.__setstate__({name: value for name, value in state.items() if name not in ("_acting", "_loss")})
    assert old.acting == cf.Auto()
    old.solve(torch.randn(6, 4), torch.randn(6, 3))
    assert int(old.step) == 1
    # two memories above 1,024 features were proximal ones
    head = cf.ClosedFormLinear(1500, 3, rule=cf.Auto((0.5, 0.99), (0.0, 0.0)))
    head._names = tuple(name for name in head._names if name not in ("covariance", "prior", "noise", "forget"))
    head._buffers = {k: v for k, v in head._buffers.items() if k.removeprefix("memory_") not in ("covariance", "prior")}
    with pytest.warns(UserWarning, match="memory is that of another version of the rule"):
        old.__setstate__({name: value for name, value in head.__dict__.items() if name != "_acting"})
    old.solve(torch.randn(6, 1500), torch.randn(6, 3))
    assert int(old.step) == 1


@pytest.mark.parametrize("pickled", [False, True])
def test_memories_that_were_kept_in_the_other_form_start_afresh(pickled, monkeypatch):
    """With 513 to 1,024 features the two memories of classes were inverses of covariances: other names, the same shapes."""
    phi, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    before, fresh = (cf.ClosedFormLinear(4, 3, loss=cf.CrossEntropy()) for _ in range(2))
    before.solve(phi, labels)
    assert "memory_information" in before.state_dict()
    monkeypatch.setattr(route, "INFORMATION", 3)
    after = cf.ClosedFormLinear(4, 3, loss=cf.CrossEntropy())
    with pytest.warns(UserWarning, match="memory is that of another version of the rule, and starts afresh"):
        after.__setstate__(copy.deepcopy(before.__dict__)) if pickled else after.load_state_dict(before.state_dict())
    assert torch.equal(matrix(after), matrix(before))
    assert (int(after.step), "memory_covariance" in after.state_dict()) == (0, True)
    fresh.rule = fresh.rule  # in the form of now
    fresh.set_weights_(matrix(before))
    for head in (after, fresh):
        head.solve(phi, labels)
    assert torch.equal(matrix(after), matrix(fresh))
    after.append_outputs(2)
    after.solve(phi, labels)
    assert int(after.rejected) == 0


def test_a_state_that_lacks_a_part_of_its_memory_is_refused():
    state = cf.ClosedFormLinear(4, 3, loss=cf.CrossEntropy()).state_dict()
    del state["memory_history"]
    with pytest.raises(RuntimeError, match="memory_history"):
        cf.ClosedFormLinear(4, 3, loss=cf.CrossEntropy()).load_state_dict(state)


def test_a_state_from_before_the_forgetting_was_kept_starts_afresh():
    state = cf.ClosedFormLinear(4, 3).state_dict()
    del state["memory_forget"]
    with pytest.warns(UserWarning, match="memory is that of another version of the rule, and starts afresh"):
        cf.ClosedFormLinear(4, 3).load_state_dict(state)


@pytest.mark.parametrize("rules", [(cf.Kalman(), cf.Auto()), (cf.Auto(), cf.Kalman())])
def test_the_memory_of_another_rule_is_refused(rules):
    one, other = (layer(rule=rule) for rule in rules)
    with pytest.raises(RuntimeError, match="memory_"):
        other.load_state_dict(one.state_dict())


def test_another_loss_brings_its_memories():
    head = cf.ClosedFormLinear(4, 3)
    head.solve(torch.randn(6, 4), torch.randn(6, 3))
    head.loss = cf.Huber()
    assert (int(head.step), len(head.memory_.weight)) == (1, 7)  # the same ones
    head.loss = cf.CrossEntropy()
    assert (int(head.step), len(head.memory_.weight)) == (0, 2)
    head.solve(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    with pytest.raises(ValueError, match="loss must be a closedform loss"):
        head.loss = torch.nn.CrossEntropyLoss()
    head.accumulate(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    with pytest.raises(ValueError, match="accumulated batches wait"):
        head.loss = cf.Squared()
    assert isinstance(head.loss, cf.CrossEntropy)
    head.commit()
    assert int(head.step) == 2


def test_a_loss_whose_memories_have_no_room_changes_nothing(monkeypatch):
    head = cf.ClosedFormLinear(4, 3)
    monkeypatch.setattr(cf.Auto, "memory", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        head.loss = cf.CrossEntropy()
    assert isinstance(head.loss, cf.Squared)
    assert head.acting == cf.Auto()


def test_a_layer_that_was_set_moves_all_memories():
    head = layer()
    for phi, y in stream(20):
        head.solve(phi, y)
    before = head._memory()["layers"].clone()
    W = matrix(head) + 1.0
    head.set_weights_(W)
    phi, y = next(stream(1, seed=9))
    X = torch.cat([phi, torch.ones(len(phi), 1, dtype=phi.dtype)], 1)
    head.solve(phi, X @ W.T)  # targets that the layer as it was set meets
    assert float((head._memory()["layers"] - before - 1.0).abs().max()) < 0.2
    assert relative(matrix(head), W) < 0.05


@pytest.mark.parametrize("loss", [cf.CrossEntropy(), cf.CrossEntropy(inner_steps=3), cf.Logistic(), cf.Huber(0.5)])
def test_other_losses_go_down(loss):
    g = torch.Generator().manual_seed(0)
    truth = torch.randn(3, D, generator=g, dtype=torch.float64)
    head = cf.ClosedFormLinear(D, 3, loss=loss, dtype=torch.float64)
    values = []
    for _ in range(60):
        phi = torch.randn(20, D, generator=g, dtype=torch.float64)
        z = 3 * phi @ truth.T
        y = z.argmax(1) if loss.labels else z if isinstance(loss, cf.Huber) else (z > 0).double()
        values.append(float(loss(head(phi), y).detach()))
        head.solve(phi, y)
    assert sum(values[-10:]) < 0.8 * 5 * sum(values[:2])
    assert int(head.rejected) == 0


def test_memories_of_few_batches_are_for_the_squared_loss():
    """Nor of few rows, if nothing holds a memory."""
    like = torch.zeros(3, 50, dtype=torch.float64)

    def shortest(rows, step=0):
        gamma, hold = cf.Auto()._forgetting(rows, torch.tensor(step), like)
        assert gamma[hold > 0].tolist() == [0.9, 0.99]
        return float(gamma[hold == 0].min())

    assert shortest(None) == 0.5
    assert (BOUNDED_ROWS, BOUNDED_BATCHES, BOUNDED_STEPS) == ((10, 100), (20, 100), (10, 40))
    for step in (0, 800):  # 100 batches; 10 rows a feature; 20 batches
        assert shortest(2, step) == shortest(5, step) == pytest.approx(0.99)
        assert shortest(10, step) == pytest.approx(0.98)
        assert shortest(25, step) == shortest(250, step) == pytest.approx(0.95)
    # a fortieth of the steps, up to 100 rows a feature and 100 batches
    assert shortest(10, 2400) == shortest(25, 2400) == pytest.approx(1 - 1 / 60)
    assert shortest(10, 10**6) == pytest.approx(1 - 1 / 500)
    assert shortest(25, 10**6) == pytest.approx(1 - 1 / 200)
    assert shortest(100, 10**6) == shortest(500, 10**6) == pytest.approx(0.99)
    # 100 rows a feature, a tenth of the steps, 20 batches
    assert shortest(500) == shortest(500, 100) == pytest.approx(0.9)
    assert shortest(500, 150) == pytest.approx(1 - 1 / 15)
    assert shortest(500, 200) == shortest(500, 800) == pytest.approx(0.95)
    assert shortest(10_000) == shortest(10_000, 20) == 0.5


def test_long_memories_of_labels_have_many_rows_a_feature():
    like = torch.zeros(3, 50, dtype=torch.float64)

    def gammas(rule, rows):
        return rule._forgetting(rows, torch.tensor(7), like)[0].tolist()

    two = cf.Auto((0.5, 0.99), (0.0, 0.0))
    assert gammas(two, None) == [0.5, 0.99]
    assert gammas(two, 2) == pytest.approx([0.99, 1 - 1 / 2500])
    assert gammas(two, 10) == pytest.approx([0.98, 1 - 1 / 500])
    assert gammas(two, 50) == gammas(two, 200) == pytest.approx([0.95, 0.99])
    assert gammas(cf.Auto((0.5, 0.9999), (0.0, 10.0)), 2) == pytest.approx([0.99, 0.9999])  # what is held stays
    assert gammas(cf.Auto((0.99, 0.9999), (10.0, 0.0)), 2) == pytest.approx([0.99, 0.9999])


def _classes_learned(solved: bool, seed: int) -> float:
    """The loss on held-out rows after ten epochs with batches of about as many rows as features."""
    torch.manual_seed(seed)
    x = torch.randn(4000, 8)
    y = (torch.tanh(2 * x @ torch.randn(8, 48)) @ torch.randn(48, 10)).argmax(1)
    net = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    learned = nn.Linear(256, 10)
    head = cf.ClosedFormLinear(256, 10, loss=cf.CrossEntropy()) if solved else learned
    opt = torch.optim.AdamW([*net.parameters(), *([] if solved else learned.parameters())], lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 120)
    for _ in range(10):
        for rows in torch.randperm(3000).split(250):
            phi = net(x[rows])
            if solved:
                head.solve(phi, y[rows])
            opt.zero_grad()
            F.cross_entropy(head(phi), y[rows]).backward()
            opt.step()
            schedule.step()
    with torch.no_grad():
        return float(F.cross_entropy(head(net(x[3000:])), y[3000:]))


def test_labels_in_large_batches_are_learned_better_than_by_a_learned_layer(monkeypatch):
    """Memories of at least 100 rows a feature follow the features too slowly."""
    learned, solved = (sum(_classes_learned(kind, seed) for seed in (0, 1)) for kind in (False, True))
    assert solved < 0.95 * learned
    monkeypatch.setattr(auto, "BOUNDED_BATCHES", (1, 100))
    monkeypatch.setattr(auto, "BOUNDED_ROWS", (100, float("inf")))
    assert solved < 0.985 * sum(_classes_learned(True, seed) for seed in (0, 1))


def test_the_choice_names_the_forgetting_in_use():
    head = cf.ClosedFormLinear(4, 3, loss=cf.CrossEntropy())
    assert head.memory_.forget.tolist() == [0.5, 0.99]
    head.solve(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    assert head.memory_.forget.tolist() == pytest.approx([0.95, 0.99])
    assert head.memory_.length > 10


@pytest.mark.parametrize("n", [4, 30])
def test_many_features_have_proximal_memories(n, monkeypatch):
    monkeypatch.setattr(route, "MANY_FEATURES", 3)
    head, rule = layer(), cf.Auto()
    alone = [layer(rule=cf.Proximal(cf.lambdas.relative(ratio))) for ratio in rule.ratios]
    for phi, y in stream(10, n):
        for one in (head, *alone):
            one.solve(phi, y)
    for k, one in enumerate(alone):
        assert relative(head._memory()["layers"][k], matrix(one)) < 1e-9
    assert "information" not in head._memory()


def test_the_variance_covers():
    inside, count = 0, 0
    head = layer()
    for t, (phi, y) in enumerate(stream(400, n=10, noise=0.3)):
        if t > 100:
            deviation = head.variance(phi).sqrt()
            inside += int(((head(phi) - y).abs() < 1.645 * deviation).sum())
            count += y.numel()
        head.solve(phi, y)
    assert 0.87 < inside / count < 0.93


@pytest.mark.parametrize("memories", [1, 2, 7, 9])
def test_generalized_squared_is_solved_too(memories):
    """By as many proximal steps as there are memories, whatever the number of ratios."""
    rule = cf.Auto() if memories == 7 else cf.Auto((0.9,) * memories, (0.0,) * memories)
    head = cf.ClosedFormLinear(D, 3, rule=rule, loss=cf.GeneralizedSquared(5.0, 2.0), dtype=torch.float64)
    for seed in range(5):
        phi, _ = problem(12, D, 3, seed=seed)
        head.solve(phi, torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(seed)))
    assert int(head.step) == 5
    assert head.memory_.weight.shape == (memories,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cf.Auto(forget=(0.9,)), "one value for each memory"),
        (lambda: cf.Auto(discount=1.0), r"discount must be in \[0, 1\)"),
        (lambda: cf.Auto(handicap=-1.0), "handicap must be zero or positive"),
        (lambda: cf.Auto((0.0,), (0.0,), (1.0,)), r"forget must be in \(0, 1\]"),
        (lambda: cf.Auto((0.9,), (-1.0,), (1.0,)), "hold must be zero or positive"),
        (lambda: cf.Auto((0.9,), (0.0,), (0.0,)), "a ratio must be positive"),
        (lambda: cf.Auto((0.9,), (0.0,), ()), "ratios need at least one value"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("seed", range(3))
def test_a_change_of_regime_is_followed_within_the_memory(seed):
    """Over as many batches as the layer remembered before the change, the rule comes back to its error."""
    draw = torch.Generator().manual_seed(seed)
    layer, errors, length = cf.ClosedFormLinear(20, 1, rule=cf.Auto(handicap=0.0)).eval(), [], 0.0
    for t in range(340):
        if t in (0, 300):
            w = torch.randn(20, 1, generator=draw)
            length = layer.memory_.length if t else length
        x = torch.randn(16, 20, generator=draw)
        y = x @ w + 0.3 * torch.randn(16, 1, generator=draw)
        errors.append(float((layer(x) - y).square().mean()))
        layer.solve(x, y)
    assert 5 < length < 11
    before, change = sum(errors[250:300]) / 50, errors[300]
    after = errors[300 + round(length) :][:20]
    assert change > 50 * before
    assert sum(after) / len(after) < 2 * before
