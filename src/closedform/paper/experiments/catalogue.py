"""Every figure and table of the paper, and the command that makes it here."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    what: str  # as the paper names it
    shows: str
    command: str | None  # None: not built yet


PAPER = (
    Entry("Figure, section 1", "loss landscape of W relu(theta x), and two descents", "closedform paper landscape"),
    Entry("Section 5 (no figure)", "the theorems as computations, with figures of ours", "closedform paper theory"),
    Entry("Figure, section 6: QM9 results", "test error by method, batch size, optimizer", "closedform paper qm9"),
    Entry("Figure, section 6: QM9, impact of lambda", "final error against lambda", "closedform paper qm9"),
    Entry("Figure, section 6: FNO results", "Burgers' equation by a Fourier neural operator", "closedform paper fno"),
    Entry("Figure, section 6: DFIV results", "instrumental variables on dSprites", "closedform paper dfiv"),
    Entry(
        "Figure, appendix: CIFAR-100 results", "accuracy by method, batch size, optimizer", "closedform paper cifar100"
    ),
    Entry(
        "Figure, appendix: CIFAR-100, hyperparameters",
        "accuracy against lambda, beta, learning rate",
        "closedform paper cifar100 --ablations",
    ),
    Entry("Table, appendix: maximum probabilities", "confidence by method", "closedform paper cifar100"),
    Entry("Figure, appendix: ImageNet results", "accuracy by method and batch size", None),
    Entry("Figure, appendix: QM9, initialization", "four initial last layers", "closedform paper qm9"),
    Entry(
        "Figure, appendix: CIFAR-100, initialization",
        "four initial last layers",
        "closedform paper cifar100 --ablations",
    ),
    Entry("Figure, appendix: CIFAR-100, bias", "with and without a bias", "closedform paper cifar100 --ablations"),
    Entry("Figure, appendix: QM9, algorithms", "Algorithm 1 against Algorithm 2", "closedform paper qm9"),
    Entry(
        "Figure, appendix: CIFAR-100, algorithms",
        "Algorithm 1 against Algorithm 2",
        "closedform paper cifar100 --ablations",
    ),
    Entry("Tables, appendix: wall-clock time", "ResNet-18 and ResNet-50 steps", "closedform paper timing"),
)
