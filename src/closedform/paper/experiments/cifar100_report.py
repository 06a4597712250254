"""What the report has to know of the CIFAR-100 experiment: its methods, its figures, its table of confidences."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from ...state import INITS
from ..data import cifar
from ..report import text as words
from ..report.spec import Curves, Experiment, Method, Sensitivity, environment, load
from ..sweeps import results

if TYPE_CHECKING:
    import pandas as pd

OPTIMIZERS = ("sgd", "adam")
CONFIDENCE = {32: (0.99, 0.63), 128: (0.99, 0.62), 1024: (0.99, 0.73), 4096: (0.99, 0.76)}  # the paper's table

METHODS = (
    Method("cross-entropy", "cross-entropy", "#6b7280"),
    Method("l2", "l2", "#9ca3af"),
    Method("ridge", "ridge", "#c2410c"),
    Method("proximal", "proximal", "#1d4ed8"),
    Method("generalized", "generalised squared", "#7c3aed", ours=True),
    Method("closed-form cross-entropy", "closed-form cross-entropy", "#ca8a04", ours=True),
    Method("kalman", "Kalman", "#059669", ours=True),
    Method("kalman cross-entropy", "Kalman cross-entropy", "#db2777", ours=True),
)
SETTINGS = ("lr", "lam", "beta", "ratio", "forget")


def confidence(table: pd.DataFrame, optimizer: str = "sgd", metric: str = "confidence") -> dict[int, dict[str, float]]:
    """The mean largest probability (or another metric) at the end of training, by batch size and method, each at its best
    setting."""
    rows = table.loc[(table["study"] == "methods") & (table["optimizer"] == optimizer)]
    by = ["batch_size", "method"]
    runs = results.finished(rows, [*by, *SETTINGS], select="validation", metric=metric)
    best = results.best(runs.loc[runs["score"] > -math.inf], by, SETTINGS, lower=False)
    by_size: dict[int, dict[str, float]] = {}
    for row in best.to_dict("records"):
        by_size.setdefault(int(row["batch_size"]), {})[str(row["method"])] = float(row["final"])
    return by_size


def sections(folder: Path) -> list[str]:
    """The table of largest probabilities for the report, where the folder holds this experiment."""
    if load(folder).name != "cifar100":
        return []
    by_size = confidence(results.load(folder))
    named = {method.key: method.label for method in METHODS}
    head = "".join(f"<th>batch size {size}</th>" for size in by_size)
    rows = {
        named[key]: [row.get(key) for row in by_size.values()]
        for key in named
        if any(key in row for row in by_size.values())
    }
    for at, name in enumerate(("cross-entropy", "proximal")):
        rows[f"the paper: {name}"] = [CONFIDENCE[size][at] if size in CONFIDENCE else None for size in by_size]
    body = "".join(
        f"<tr><td>{name}</td>"
        + "".join(f"<td>{words.MISSING if v is None else f'{v:.2f}'}</td>" for v in values)
        + "</tr>"
        for name, values in rows.items()
    )
    return [
        '<section aria-labelledby="confidence"><h2 id="confidence">Largest probabilities</h2><div class="scroll">'
        f"<table><thead><tr><th>method</th>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        "<p>The mean over the test images of the largest probability, under SGD, at each method's best setting: softmax for "
        "cross-entropy, for the squared losses outputs shifted by their minimum and normalised. The paper does not say "
        "which images its numbers are taken over, nor whether they are means.</p></section>"
    ]


def experiment(table: pd.DataFrame) -> Experiment:
    """What the report has to know of a table."""
    first, shown = table.iloc[0], {"study": ["methods"], "optimizer": list(OPTIMIZERS)}
    count = cifar.TRAINING if first["limit"] is None or first["limit"] != first["limit"] else int(first["limit"])
    accuracy = (
        "Final test accuracy of the {} rule against {} (in sum units), at the best learning rate tried with each."
    )
    figures: list[Curves | Sensitivity] = [
        Curves("Learning curves", "Test accuracy at the best setting of each method.", shown),
        Sensitivity(
            "How much lambda matters", accuracy.format("proximal", "λ"), "lam", shown | {"method": ["proximal"]}
        ),
        Sensitivity("How much beta matters", accuracy.format("ridge", "β"), "beta", shown | {"method": ["ridge"]}),
    ]
    for optimizer in sorted(set(table["optimizer"]), reverse=True):
        title, caption = f"Learning rates, {optimizer}", "Final test accuracy at each learning rate, best of λ and β."
        figures.append(Sensitivity(title, caption, "lr", shown | {"optimizer": [optimizer]}, "method", "batch_size"))
    ablations = {
        "initialisation": ("init", "Initialisation of the last layer", "The proximal rule from four initial layers."),
        "algorithms": ("algorithm", "Algorithm 1 and Algorithm 2", "Solve, then step (1); step, then solve (2)."),
        "bias": ("bias", "With and without a bias", "The proximal rule with a bias solved, and without one."),
    }
    for study, (column, title, caption) in ablations.items():
        if study in set(table["study"]):
            where: dict[str, list] = {"study": [study], "optimizer": list(OPTIMIZERS)}
            figures.append(Curves(title, caption, where | ({"init": list(INITS)} if column == "init" else {}), column))
    keys, generated = set(table["method"]), "" if first["source"] == "cifar100" else " generated"
    text = (
        f"{count:,}{generated} images, 80/20 training and validation, cropped and mirrored at random; {first['net']}; "
        f"{int(table['epochs'].max())} epochs; SGD with Nesterov momentum 0.9 from a last layer of zeros, Adam from a LeCun "
        "one; learning rates fall along a cosine and refer to the mean over samples of the loss summed over classes; "
        f"{first['precision']}."
    )
    return Experiment(
        name="cifar100",
        title="CIFAR-100: a hundred classes of small images",
        text=text,
        metric="test",
        select="validation",
        label="test accuracy",
        methods=tuple(method for method in METHODS if method.key in keys),
        by=("optimizer", "batch_size"),
        settings=SETTINGS,
        figures=tuple(figures),
        where=shown,
        lower=False,
        log=False,
        environment=environment(table),
    )
