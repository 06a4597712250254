"""What would a gentler dose policy be worth? The value of a policy from patients who were treated by another one.

A state is a severity that drifts up; a dose lowers it and has a cost. The log has doses chosen with much chance. The
evaluated policy gives a dose only when the severity is high. Its value is estimated from the log, with an interval over
patients, and compared with what it really is, by simulation.

    python examples/policy.py [--quick]
"""

from __future__ import annotations

import argparse

import numpy as np

from closedform.iv import PolicyEvaluator

DISCOUNT, WEEKS = 0.9, 30


def probabilities(severity: np.ndarray) -> np.ndarray:
    """Of no dose and a dose, under the evaluated policy."""
    dose = np.where(severity > 0.5, 0.9, 0.1)
    return np.stack([1 - dose, dose], 1)


def moved(severity: np.ndarray, dose: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The next severity, and the reward."""
    following = 0.8 * severity + 0.3 - 0.5 * dose + 0.3 * rng.standard_normal(len(severity))
    return following, -np.square(severity) - 0.2 * dose


def logged(patients: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Every second week has a dose, by chance."""
    severity = rng.standard_normal(patients)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("states", "actions", "rewards", "next_states")}
    for _ in range(WEEKS):
        dose = rng.integers(0, 2, patients)
        following, reward = moved(severity, dose, rng)
        for name, part in zip(parts, (severity[:, None], dose, reward, following[:, None])):
            parts[name].append(part)
        severity = following
    return {name: np.concatenate(values) for name, values in parts.items()} | {
        "episode": np.tile(np.arange(patients), WEEKS)
    }


def simulated(severity: np.ndarray, rng: np.random.Generator) -> float:
    """The mean value of patients who begin with these severities."""
    total = np.zeros(len(severity))
    for week in range(200):
        dose = (rng.random(len(severity)) < probabilities(severity)[:, 1]).astype(int)
        severity, reward = moved(severity, dose, rng)
        total += DISCOUNT**week * reward
    return float(total.mean())


def main(quick: bool = False) -> dict[str, float]:
    rng = np.random.default_rng(0)
    log = logged(100 if quick else 400, rng)
    starts = rng.standard_normal(2000)
    truth = simulated(np.tile(starts, 20), rng)
    print(f"simulated: {truth:.2f}")
    values = {"truth": truth}
    for method in ("iv", "lstd", "fqe"):
        model = PolicyEvaluator(DISCOUNT, method, max_iter=200 if quick else 600, batch_size=256)
        model.fit(
            log["states"],
            log["actions"],
            log["rewards"],
            log["next_states"],
            probabilities(log["next_states"][:, 0]),
            np.zeros(len(log["rewards"]), bool),  # nobody's treatment ends: the log is only cut off
            episode=log["episode"],
        )
        policy = probabilities(starts)
        values[method] = float(model.value(starts[:, None], policy).mean())
        low, high = model.interval(starts[:, None], policy, level=0.9)
        print(f"{method:>9}: {values[method]:.2f}, 90 % interval {low:.2f} to {high:.2f}")
    print("What the methods are, and when not to trust them: docs/policy.md")
    return values


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer patients and steps")
    main(parser.parse_args().quick)
