"""Layers drawn to the ridge: the share by its definition, rows that were held out stay unseen, and what it is for."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.linear_model import Ridge

from closedform.tabular import ClosedFormClassifier, ClosedFormRegressor
from closedform.tabular.conformal import HeldOut
from closedform.tabular.loop import TrainingRows
from closedform.tabular.shrinking import BETAS, drawn, ridge


def problem(n=80, f=3, o=2, weighted=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(n, k, generator=g, dtype=torch.float64) for k in (f, o))
    y[:, 0] += x[:, 0]
    held = torch.zeros(4, n, dtype=torch.bool)
    held[:2, :10], held[2:, 10:25] = True, True
    weight = torch.rand(n, generator=g, dtype=torch.float64) + 0.5 if weighted else None
    rows = TrainingRows(x, y, weight, held)
    some = slice(0, 25)
    outputs = y[some] + torch.randn(25, o, generator=g, dtype=torch.float64)
    w = torch.ones(25, dtype=torch.float64) if weight is None else weight[some]
    return rows, HeldOut(outputs, y[some], w, torch.full((25, o), 0.1, dtype=torch.float64))


def slow_ridge(x, y, weight, beta):
    model = Ridge(alpha=beta).fit(x, y, sample_weight=weight)
    return np.column_stack([model.coef_, model.intercept_])


@pytest.mark.parametrize("weighted", [False, True])
def test_the_ridge_is_the_best_one_by_leaving_rows_out(weighted):
    rows, _ = problem(weighted=weighted)
    rows = TrainingRows(rows.x[:15], rows.y[:15], rows.weight[:15] if weighted else None)
    x, y = rows.x.numpy(), rows.y.numpy()
    w = np.ones(15) if rows.weight is None else rows.weight.numpy()

    def left_out(beta):
        total = 0.0
        for k in range(15):
            kept = np.arange(15) != k
            layer = slow_ridge(x[kept], y[kept], w[kept], beta)
            total += w[k] * np.square(y[k] - layer[:, :-1] @ x[k] - layer[:, -1]).sum()
        return total

    best = min((b * w.sum() for b in BETAS), key=left_out)
    layer = ridge(rows, rows.x, torch.ones(15, dtype=torch.bool))
    np.testing.assert_allclose(layer.numpy(), slow_ridge(x, y, w, best), atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_share_minimises_the_held_out_error_but_for_chance(weighted):
    rows, held = problem(weighted=weighted)
    moved, line = drawn(held, rows, rows.x)
    share = line.share
    # what each ridge says of the rows that it has not seen
    without, layers = [], []
    for low, high in ((0, 10), (10, 25)):
        used = torch.ones(80, dtype=torch.bool)
        used[low:high] = False
        one = ridge(rows, rows.x, used)
        layers.append(one)
        without.append(rows.x[low:high] @ one[:, :-1].T + one[:, -1])
    others = torch.cat(without)
    w = held.weights[:, None]

    def error(a):
        return float((w * (held.targets - torch.lerp(held.outputs, others, a)).square()).sum())

    grid = np.linspace(0, 1, 2001)
    best = grid[np.argmin([error(a) for a in grid])]
    noise = error(best) / float(w.sum()) / 2
    sure = 1 - noise / (best**2 * float((w * (others - held.outputs).square()).sum()))
    assert 0 < share < best
    assert abs(share - best * sure) < 2e-3
    torch.testing.assert_close(moved.outputs, torch.lerp(held.outputs, others, share))
    torch.testing.assert_close(moved.spare, held.spare * (1 - share) ** 2)
    torch.testing.assert_close(line.whole, ridge(rows, rows.x, torch.ones(80, dtype=torch.bool)))
    folds = torch.unique(rows.held, dim=0)
    for fold, layer in zip(folds, line.without):
        torch.testing.assert_close(layer, layers[0 if fold[0] else 1])


def test_members_that_are_right_stay_as_they_are():
    rows, held = problem()
    held = held._replace(outputs=held.targets + 1e-3)
    assert drawn(held, rows, rows.x)[1].share == 0


def test_predictions_are_drawn_by_the_share(monkeypatch):
    rng = np.random.default_rng(0)
    X, X_new = rng.normal(size=(150, 4)), rng.normal(size=(20, 4))
    y = X @ [1.0, 2.0, 0.0, -1.0] + 2 * rng.normal(size=150)

    def predicted(share, epochs=10):
        monkeypatch.setattr("closedform.tabular.shrinking.share_of", lambda left, move, weight: share)
        model = ClosedFormRegressor(max_iter=epochs, neighbours=False, random_state=0).fit(X, y)
        assert model.linear_share_ == share
        return model.predict(X_new)

    ends = predicted(0.0), predicted(1.0)
    np.testing.assert_allclose(predicted(0.4), 0.6 * ends[0] + 0.4 * ends[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        predicted(1.0, epochs=1), ends[1], rtol=1e-5, atol=1e-5
    )  # nothing of the networks is left


def test_where_there_is_only_noise_less_of_it_is_learned(monkeypatch):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(1200, 8)), rng.normal(size=1200)
    labels = (y > 0).astype(int)

    def errors():
        model = ClosedFormRegressor(max_iter=20, random_state=0).fit(X[:200], y[:200])
        probability = (
            ClosedFormClassifier(max_iter=20, random_state=0).fit(X[:200], labels[:200]).predict_proba(X[200:])
        )
        right = probability[np.arange(1000), labels[200:]]
        return np.mean((model.predict(X[200:]) - y[200:]) ** 2), -np.log(right).mean()

    now = errors()
    monkeypatch.setattr("closedform.tabular.shrinking.share_of", lambda left, move, weight: 0.0)
    before = errors()
    assert now[0] < before[0]
    assert now[1] < before[1] + 0.01
