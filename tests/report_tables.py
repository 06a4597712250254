"""Results of an experiment that was never run: a sweep with every method, and tables of a few rows."""

import dataclasses
import math

import numpy as np
import pandas as pd

from closedform.paper.report import panels, spec
from closedform.paper.sweeps import results

SIZES = (32, 256, 1024, 2048)
SAMPLES, EPOCHS, MARKS = 104_664, 50, 55
MISSING = "\N{EN DASH}"
HOSTILE = "</script><script>alert(1)</script>"

METHODS = (
    spec.Method("l2", "l2"),
    spec.Method("ridge", "ridge"),
    spec.Method("proximal", "proximal"),
    spec.Method("proximal-auto", "proximal, λ by rule", ours=True),
    spec.Method("proximal-follow", "proximal, β follows", ours=True),
    spec.Method("kalman", "Kalman"),
)
FLOOR = {
    "l2": 0.03,
    "ridge": 0.024,
    "proximal": 0.02,
    "proximal-auto": 0.019,
    "proximal-follow": 0.017,
    "kalman": 0.021,
}
CURVES = spec.Curves(
    "Learning curves",
    "Test error at the best setting of each method; bands are 95 % confidence intervals over three seeds.",
)
EXPERIMENT = spec.Experiment(
    name="made-up",
    title="Solved last layers on a made-up regression",
    text="Numbers drawn from a formula, in the shape of a real sweep.\n\nEvery method has the same network and data.",
    metric="test",
    select="validation",
    label="test MSE",
    methods=METHODS,
    by=("optimizer", "batch_size"),
    settings=("lr", "lam", "beta", "forget"),
    figures=(
        CURVES,
        spec.Sensitivity(
            "Sensitivity to λ", "Proximal, at the best of its other settings.", "lam", {"method": ["proximal"]}
        ),
        spec.Sensitivity(
            "Sensitivity to β", "Proximal, at the best of its other settings.", "beta", {"method": ["proximal"]}
        ),
    ),
    environment={"device": "NVIDIA H200", "torch": "2.13.0", "closedform": "0.1.0"},
)


def grid(method):
    lams = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    for lr in (1e-4, 1e-3, 1e-2):
        if method == "l2":
            yield {"lr": lr}
        elif method == "ridge":
            yield from ({"lr": lr, "lam": lam} for lam in lams[1:])
        elif method == "proximal":
            yield from ({"lr": lr, "lam": lam, "beta": beta} for lam in lams for beta in (0.01, 0.1, 1.0, 10.0))
        elif method == "kalman":
            yield from ({"lr": lr, "forget": forget} for forget in (0.9, 0.99, 0.999))
        else:
            yield from ({"lr": lr, "beta": beta} for beta in (0.01, 0.1, 1.0))


def sweep(sizes=SIZES, optimizers=("sgd", "adam"), methods=METHODS, seeds=3):
    """A table like that of a real sweep: curves that fall to a floor that depends on the setting, with noise."""
    random = np.random.default_rng(0)
    parts = []
    for optimizer in optimizers:
        for size in sizes:
            last = SAMPLES * EPOCHS // size
            steps = np.unique(np.linspace(last / MARKS, last, MARKS).astype(int))
            steps = np.concatenate([[1], steps])
            for method in methods:
                for setting in grid(method.key):
                    off = abs(math.log10(setting["lr"] / 1e-3)) + 0.3 * abs(
                        math.log10(max(setting.get("lam", 0.1), 1e-5) / 0.1)
                    )
                    off += 0.4 * abs(math.log10(setting.get("beta", 0.1) / 0.1)) + 20 * abs(
                        setting.get("forget", 0.99) - 0.99
                    )
                    floor = (
                        FLOOR[method.key] * (1 + 0.6 * off) * (1.3 if optimizer == "sgd" else 1) * (size / 256) ** 0.15
                    )
                    for seed in range(seeds):
                        done = steps / last
                        mean = floor + 0.9 * np.exp(-done * 12 / (1 + off)) / (1 + 30 * done)
                        curve = mean * np.exp(
                            random.normal(0, 0.05, len(steps)) * (1 - 0.7 * done) + random.normal(0, 0.03)
                        )
                        if method.key == "ridge" and size == 32:
                            curve = np.where(done > 0.1, np.inf, curve * np.exp(150 * done))
                        parts.append(pd.DataFrame({
                            "method": method.key, "optimizer": optimizer, "batch_size": size,
                            **{name: setting.get(name, np.nan) for name in ("lr", "lam", "beta", "forget")},
                            "seed": seed, "step": steps, "validation": curve * 0.98, "test": curve,
                            "wall_s": steps * 0.01, "device": "cuda",
                        }))  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def save(folder, table, experiment=EXPERIMENT):
    results.save(table, folder)
    experiment.save(folder)
    return folder


def small(test, *, validation=None, seeds=None, **columns):
    """A table of one row a value, all at one optimizer and batch size; what is not given is the same everywhere."""
    count = len(test)
    row = {
        "method": "l2",
        "optimizer": "sgd",
        "batch_size": 32,
        "lr": 0.1,
        "lam": np.nan,
        "beta": np.nan,
        "forget": np.nan,
    }
    row |= {"seed": seeds or [0] * count, "step": 1, "validation": validation or test, "test": test} | columns
    return pd.DataFrame({name: value if isinstance(value, list) else [value] * count for name, value in row.items()})


def read(folder, table, **changes):
    return panels.read(save(folder, table, dataclasses.replace(EXPERIMENT, **changes)))


def lines(figure, panel=0):
    return {line.key: line for line in figure.panels[panel].lines}


def falling(method, values):
    steps = list(range(1, len(values) + 1))
    return small(list(values), method=method, step=steps)


def hostile():
    method = spec.Method("l2", HOSTILE)
    figure = dataclasses.replace(CURVES, title=HOSTILE, caption=HOSTILE)
    return dataclasses.replace(
        EXPERIMENT, title=HOSTILE, text=HOSTILE, label=HOSTILE, methods=(method,), figures=(figure,),
        environment={HOSTILE: HOSTILE}, names={"lr": HOSTILE, "step": HOSTILE},
    )  # fmt: skip
