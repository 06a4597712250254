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
from .cifar100_model import default_name

if TYPE_CHECKING:
    import pandas as pd

OPTIMIZERS = {"sgd": "SGD with Nesterov momentum 0.9", "adamw": "AdamW", "muon": "Muon"}
CONFIDENCE = {32: (0.99, 0.63), 128: (0.99, 0.62), 1024: (0.99, 0.73), 4096: (0.99, 0.76)}  # the paper's table

METHODS = (
    Method("cross-entropy", "cross-entropy", "#6b7280"),
    Method("l2", "l2", "#9ca3af"),
    Method("etf", "cross-entropy, fixed layer", "#78716c"),
    Method("ridge", "ridge", "#c2410c"),
    Method("proximal", "proximal", "#1d4ed8"),
    Method("generalized", "generalised squared", "#7c3aed", ours=True),
    Method("closed-form cross-entropy", "closed-form cross-entropy", "#ca8a04", ours=True),
    Method("kalman", "Kalman", "#059669", ours=True),
    Method("kalman cross-entropy", "Kalman cross-entropy", "#db2777", ours=True),
    Method("auto cross-entropy", "default rule, cross-entropy", "#0891b2", ours=True),
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


def leads(table: pd.DataFrame, optimizer: str = "sgd") -> dict[int, dict[str, dict[int, float]]]:
    """Points of test accuracy ahead of learned cross-entropy at the chosen settings, by batch size, method and seed. A seed
    has the same split and order of the images for every method."""
    rows = table.loc[(table["study"] == "methods") & (table["optimizer"] == optimizer)]
    runs = results.finished(rows, ["batch_size", "method"], select="validation", metric="test")
    points: dict[int, dict[str, dict[int, float]]] = {}
    for size in sorted(set(runs["batch_size"])):
        of_size = runs[runs["batch_size"] == size]
        by_seed = 100 * of_size.pivot(index="seed", columns="method", values="final")
        if "cross-entropy" in by_seed:
            ahead = by_seed.drop(columns="cross-entropy").sub(by_seed["cross-entropy"], axis="index")
            paired = {str(method): own.dropna().to_dict() for method, own in ahead.items()}
            points[int(size)] = {method: own for method, own in paired.items() if own}
    return points


def by_an_earlier_default(table: pd.DataFrame) -> list[tuple[str, int, str]]:
    """Optimizer, batch size and method of the runs that the default rule of an earlier version has made. All rows of such a
    cell are by one version (`cifar100.by_one_default`)."""
    cells = table.drop_duplicates(["optimizer", "batch_size", "method"]).to_dict("records")
    return sorted(
        (row["optimizer"], int(row["batch_size"]), row["method"])
        for row in cells
        if (rule := default_name(row["method"])) is not None and row["rule"] != rule
    )


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
    optimizers = [name for name in OPTIMIZERS if name in set(table["optimizer"])]
    first, studies = table.iloc[0], set(table["study"])
    shown: dict[str, list] = {"study": ["methods"], "optimizer": optimizers}
    short: dict[str, list] = {"study": ["settings"], "optimizer": optimizers}
    count = cifar.TRAINING if first["limit"] is None or first["limit"] != first["limit"] else int(first["limit"])
    epochs = {stage: int(rows["epochs"].max()) for stage, rows in table.groupby("stage")}
    figures: list[Curves | Sensitivity] = []
    if "methods" in studies:
        caption = "Test accuracy at the chosen setting of each method."
        for optimizer in optimizers:
            if ((table["study"] == "methods") & (table["optimizer"] == optimizer)).any():
                where = shown | {"optimizer": [optimizer]}
                figures.append(Curves(f"Learning curves, {optimizer}", caption, where, rows=None))
    if "settings" in studies:
        figures += _short_runs(table, short, epochs["search"])
    ablations = {
        "initialisation": ("init", "Initialisation of the last layer", "From four initial layers."),
        "algorithms": ("algorithm", "Algorithm 1 and Algorithm 2", "Solve, then step (1); step, then solve (2)."),
        "bias": ("bias", "With and without a bias", "With a bias solved, and without one."),
        "smoothing": ("smoothing", "Label smoothing", "With labels as they are, and smoothed."),
    }
    for study, (column, title, caption) in ablations.items():
        for method in METHODS if study in studies else ():
            if method.key in set(table.loc[table["study"] == study, "method"]):
                where: dict[str, list] = {"study": [study], "optimizer": optimizers, "method": [method.key]}
                where |= {"init": list(INITS)} if column == "init" else {}
                figures.append(Curves(f"{title}: {method.label}", caption, where, column))
    keys, generated = set(table["method"]), "" if first["source"] == "cifar100" else " generated"
    text = (
        f"{count:,}{generated} images, 80/20 training and validation, cropped and mirrored at random; {first['net']}; "
        f"settings chosen in {epochs.get('search', 0)} epochs with one seed, then {epochs.get('final', 0)} epochs; "
        f"{' and '.join(OPTIMIZERS[name] for name in optimizers)}; weight decay on the backbone and on a learned layer; the "
        "last layer starts from zeros; the rate rises over a tenth of the steps, falls along a cosine, and refers to the "
        f"mean over samples of the loss summed over classes; {first['precision']}. {_what_has_run(table)}"
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
        where=shown if "methods" in studies else short,
        lower=False,
        log=False,
        environment=environment(table),
    )


def _what_has_run(table: pd.DataFrame) -> str:
    """How far the experiment is, in a sentence."""
    chosen = table[table["study"] == "methods"]
    seeds = chosen.groupby(["optimizer", "batch_size", "method"])["seed"].nunique()
    parts = [f"The chosen settings of {len(seeds)} combinations of method, optimizer and batch size have run"]
    for count in sorted(set(seeds), reverse=True):
        parts.append(f"{(seeds == count).sum()} with {count} seed{'s' if count > 1 else ''}")
    earlier = [f"{optimizer} at {size}" for optimizer, size, _ in by_an_earlier_default(table)]
    sentences = [f"{', '.join(parts)}."]
    if earlier:
        sentences.append(f"The runs of the default rule under {words.listed(earlier)} are by an earlier default.")
    return " ".join(sentences)


def _short_runs(table: pd.DataFrame, short: dict[str, list], epochs: int) -> list[Curves | Sensitivity]:
    """Accuracy against each setting, in the runs that choose it."""
    caption = f"Final test accuracy against {{}}, at the best learning rate tried with each; {epochs} epochs."
    figures: list[Curves | Sensitivity] = []
    for column, sign, method in (("lam", "λ (in sum units)", "proximal"), ("beta", "β (in sum units)", "ridge")):
        if table.loc[(table["study"] == "settings") & (table["method"] == method), column].notna().any():
            title = f"How much {'lambda' if column == 'lam' else 'beta'} matters"
            figures.append(Sensitivity(title, caption.format(sign), column, short | {"method": [method]}))
    for optimizer in short["optimizer"]:
        if ((table["study"] == "settings") & (table["optimizer"] == optimizer)).any():
            where, caption = short | {"optimizer": [optimizer]}, f"Final test accuracy at each rate; {epochs} epochs."
            figures.append(Sensitivity(f"Learning rates, {optimizer}", caption, "lr", where, "method", "batch_size"))
    return figures
