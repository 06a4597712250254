"""Claims are judged by the figures: each holds on a table that bears it out and fails on one that does not."""

import math

import pandas as pd
import pytest

from closedform.paper import claims
from closedform.paper.claims import cifar100 as cifar_claims
from closedform.paper.claims import qm9 as qm9_claims
from closedform.paper.claims import thresholds
from closedform.paper.experiments import cifar100, qm9
from closedform.paper.sweeps import results


def test_a_word_has_one_number_in_a_unit_except_where_the_reason_says_so():
    """ "comparable" is stricter on QM9, whose intervals over the seeds are narrower."""
    numbers = {}
    for threshold in thresholds.THRESHOLDS.values():
        assert threshold.reason
        assert set(threshold.experiments) <= set(claims.EXPERIMENTS)
        for word in threshold.words.split(", "):
            numbers.setdefault((word, threshold.unit), set()).add(threshold.value)
    assert [key for key, values in numbers.items() if len(values) > 1] == [("comparable", "ratio of two errors")]


# ---- QM9 -----------------------------------------------------------------------------------------


class Setting(dict):
    """Settings as part of a key."""

    def __hash__(self):
        return hash(tuple(self.items()))


def errors_table(errors, study="methods", **more):
    """A results table with one step, from (optimizer, batch size, method, setting) to an error."""
    rows = []
    for (optimizer, size, method, setting), error in errors.items():
        row = {"study": study, "optimizer": optimizer, "batch_size": size, "method": method, "init": "zeros", "seed": 0}
        row |= {"algorithm": 1, "bias": True, "step": 1, "validation": error, "test": error}
        rows.append(row | dict.fromkeys(qm9.SETTINGS, math.nan) | {"lr": 0.1} | setting | more)
    return pd.DataFrame(rows)


def test_claims_are_judged_by_the_figures():
    def proximal(errors):
        return qm9_claims._proximal(qm9_claims.QM9Errors(errors_table(errors)))

    good = {
        ("sgd", 32, "l2"): 0.2,
        ("sgd", 32, "proximal"): 0.1,
        ("adam", 32, "l2"): 0.1,
        ("adam", 32, "proximal"): 0.105,
    }
    holds = proximal({(*key, Setting()): value for key, value in good.items()})
    assert [check.holds for check in holds] == [True, True]
    assert "32: 0.50" in holds[0].figures
    bad = good | {("sgd", 32, "proximal"): 0.21, ("adam", 32, "proximal"): 0.2}
    assert [check.holds for check in proximal({(*key, Setting()): v for key, v in bad.items()})] == [False, False]


def test_lambda_claims():
    def checks(small, large):
        errors = {}
        for optimizer in qm9.OPTIMIZERS:
            for size, row in ((32, small), (2048, large)):
                for lam, error in zip((10.0, 1e3, 1e5), row):
                    errors[optimizer, size, "proximal", Setting(lam=lam)] = error
        return [check.holds for check in qm9_claims._lambda(qm9_claims.QM9Errors(errors_table(errors)))]

    assert checks((9.0, 1.1, 1.0), (1.0, 1.1, 3.0)) == [True, True, True, True]
    assert checks((1.0, 1.1, 3.0), (9.0, 9.0, 1.0)) == [False, False, False, False]


def test_ridge_claims():
    def checks(*ratios):
        errors = {}
        for optimizer in qm9.OPTIMIZERS:
            for size, ratio in zip(qm9.BATCH_SIZES, ratios):
                errors[optimizer, size, "proximal", Setting()] = 0.1
                errors[optimizer, size, "ridge", Setting()] = 0.1 * ratio
        return {check.holds for check in qm9_claims._ridge(qm9_claims.QM9Errors(errors_table(errors)))}

    assert checks(5.0, 2.0, 1.3, 1.05) == {True}
    assert checks(5.0, 2.0, 1.3, 1.2) == {False}, "it does not come near"
    assert checks(5.0, 2.0, 1.0, 1.0) == {False}, "not only at the largest batch"
    assert checks(1.2, 1.2, 1.2, 1.0) == {False}, "that is no failure"
    assert checks(math.inf, 2.0, 1.3, 1.05) == {True}


def test_initialisation_claims():
    def checks(sgd, adam):
        frames = []
        for optimizer, errors in (("sgd", sgd), ("adam", adam)):
            for size in (32, 256):
                for init, error in zip(("zeros", "lecun", "he"), errors[size]):
                    row = {(optimizer, size, "proximal", Setting()): error}
                    frames.append(errors_table(row, study="initialisation", init=init))
        return [check.holds for check in qm9_claims._initialisation(qm9_claims.QM9Errors(pd.concat(frames)))]

    good = {32: (0.3, 0.2, 0.2), 256: (0.1, 0.2, 0.2)}, {32: (0.3, 0.2, 0.21), 256: (0.3, 0.2, 0.2)}
    assert checks(*good) == [True, True]
    assert checks({32: (0.1, 0.2, 0.2), 256: (0.3, 0.2, 0.2)}, good[1]) == [False, True]
    assert checks(good[0], {32: (0.3, 0.2, 0.3), 256: (0.3, 0.2, 0.2)}) == [True, False], "the others are not alike"
    assert checks(good[0], {32: (0.9, 1.0, 2.0), 256: (0.3, 0.2, 0.2)}) == [True, True], (
        "what did not train says nothing"
    )
    assert checks(good[0], {32: (0.9, 1.0, 2.0), 256: (0.9, 1.0, 1.0)}) == [True, False]


def test_algorithm_claims():
    def holds(first, second):
        rows = [
            errors_table({("sgd", 32, "proximal", Setting()): error}, "algorithms", algorithm=algorithm, epochs=10)
            for algorithm, error in ((1, first), (2, second))
        ]
        (check,) = qm9_claims._algorithms(qm9_claims.QM9Errors(pd.concat(rows)))
        assert "after 10 epochs" in check.figures
        return check.holds

    assert holds(0.1, 0.105)
    assert not holds(0.1, 0.12)
    assert not holds(0.12, 0.1)


def test_claims_beyond_the_paper():
    def checks(ours, learned):
        errors = {}
        for size in (32, 256):
            errors |= {("sgd", size, m.key, Setting()): ours for m in qm9.METHODS if m.ours}
            errors |= {("sgd", size, "proximal", Setting()): 1.0, ("adam", size, "l2", Setting()): 9.0}
            errors[("adam", size, "l2 cosine", Setting())] = learned
        return [check.holds for check in qm9_claims._beyond(qm9_claims.QM9Errors(errors_table(errors)))]

    assert checks(0.6, 0.6) == [True, True, True, True]
    assert checks(0.8, 0.8) == [False, True, True, True]
    assert checks(0.6, 0.5) == [True, False, True, False]


# ---- CIFAR-100 -----------------------------------------------------------------------------------


def accuracies_table(accuracies, optimizer="sgd", **extra):
    """A table with these final accuracies: {(batch size, method): (accuracy, confidence)} or with (setting, value) too."""
    rows = []
    for (size, method, *setting), (accuracy, confidence) in accuracies.items():
        row = {"study": "methods", "optimizer": optimizer, "batch_size": size, "method": method, "seed": 0, "lr": 0.1}
        row |= {"init": "zeros", "bias": True, "algorithm": 1} | dict.fromkeys(cifar100.SETTINGS[1:], math.nan)
        row |= dict([setting]) if setting else {}
        row |= {"validation": accuracy, "test": accuracy, "confidence": confidence} | extra
        rows += [row | {"step": step} for step in (5, 10)]
    return pd.DataFrame(rows)


ACCURACIES = {
    (32, "cross-entropy"): (0.60, 0.99), (32, "l2"): (0.58, 0.6), (32, "ridge"): (0.10, 0.4), (32, "proximal"): (0.61, 0.63),
    (4096, "cross-entropy"): (0.50, 0.99), (4096, "l2"): (0.40, 0.6), (4096, "ridge"): (0.54, 0.7),
    (4096, "proximal"): (0.55, 0.76),
}  # fmt: skip
CLAIMS = {
    "proximal beats l2": ((4096, "l2"), (0.56, 0.6)),
    "gap widens": ((32, "l2"), (0.40, 0.6)),
    "surpasses cross-entropy": ((32, "cross-entropy"), (0.62, 0.99)),
    "ridge fails": ((32, "ridge"), (0.60, 0.4)),
    "less confident": ((32, "proximal"), (0.61, 1.0)),
}


def verdicts(table, tmp_path):
    results.save(table, tmp_path)
    return cifar_claims.check(tmp_path)


@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_hold_where_they_should_and_fail_where_they_should(claim, tmp_path):
    checks = [c for c in verdicts(accuracies_table(ACCURACIES), tmp_path) if claim in c.claim]
    assert [c.holds for c in checks] == [True]
    key, value = CLAIMS[claim]
    checks = [c for c in verdicts(accuracies_table(ACCURACIES | {key: value}), tmp_path) if claim in c.claim]
    assert [c.holds for c in checks] == [False]


def test_claims_about_settings(tmp_path):
    lams = {0.01: 0.2, 1.0: 0.4, 10.0: 0.55, 100.0: 0.59, 1000.0: 0.60}
    rows = {(1024, "proximal", "lam", lam): (accuracy, 0.6) for lam, accuracy in lams.items()}
    rows |= {
        (1024, "ridge", "beta", beta): (accuracy, 0.6) for beta, accuracy in ((0.01, 0.05), (0.1, 0.3), (1.0, 0.6))
    }
    rows |= {(32, "proximal", "lam", lam): (lam / 2000, 0.6) for lam in lams}  # small batches may be sensitive
    checks = {
        c.claim.split(": ")[1][:14]: c.holds for c in verdicts(accuracies_table(rows, study="settings"), tmp_path)
    }
    assert checks["proximal is ro"]
    assert checks["ridge is more "]
    rows[1024, "proximal", "lam", 1000.0] = (0.5, 0.6)
    checks = {
        c.claim.split(": ")[1][:14]: c.holds for c in verdicts(accuracies_table(rows, study="settings"), tmp_path)
    }
    assert not checks["proximal is ro"]


def test_lambdas_are_compared_at_one_learning_rate(tmp_path):
    rows = {(1024, "proximal", "lam", lam): (accuracy, 0.6) for lam, accuracy in ((100.0, 0.5), (1000.0, 0.51))}
    better = accuracies_table({(1024, "proximal", "lam", 1000.0): (0.9, 0.6)}, lr=5.0, study="settings")
    checks = verdicts(pd.concat([accuracies_table(rows, study="settings"), better]), tmp_path)
    assert [c.holds for c in checks if "robust" in c.claim] == [True]


@pytest.mark.parametrize(("behind", "holds"), [(0.004, True), (0.006, False)])
def test_our_rules_are_checked_one_by_one(behind, holds, tmp_path):
    rows = ACCURACIES | {(32, "kalman"): (0.60 - behind, 0.5), (4096, "kalman"): (0.7, 0.5)}
    rows |= {(32, "kalman cross-entropy"): (0.61, 0.5), (4096, "kalman cross-entropy"): (0.50, 0.5)}
    checks = {c.claim: c.holds for c in verdicts(accuracies_table(rows), tmp_path)}
    assert checks["sgd: kalman is 1 point ahead of cross-entropy at some batch size and never 0.5 behind"] == holds
    assert not checks["sgd: kalman is never behind cross-entropy"]
    assert checks["sgd: kalman cross-entropy is never behind cross-entropy"]
