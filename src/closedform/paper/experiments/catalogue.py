"""Every figure and table of the paper, and the command that makes it here."""

from __future__ import annotations

from typing import NamedTuple


class PaperItem(NamedTuple):
    what: str  # as the paper names it
    shows: str
    command: str


PAPER = (
    PaperItem("Figure, section 1", "loss landscape of W relu(theta x), and two descents", "closedform paper landscape"),
    PaperItem("Section 5 (no figure)", "the theorems as computations, with figures of ours", "closedform paper theory"),
    PaperItem("Figure, section 6: QM9 results", "test error by method, batch size, optimizer", "closedform paper qm9"),
    PaperItem("Figure, section 6: QM9, impact of lambda", "final error against lambda", "closedform paper qm9"),
    PaperItem(
        "Figure, section 6: FNO results", "Burgers' equation by a Fourier neural operator", "closedform paper fno"
    ),
    PaperItem("Figure, section 6: DFIV results", "instrumental variables on dSprites", "closedform paper dfiv"),
    PaperItem(
        "Figure, appendix: CIFAR-100 results", "accuracy by method, batch size, optimizer", "closedform paper cifar100"
    ),
    PaperItem(
        "Figure, appendix: CIFAR-100, hyperparameters",
        "accuracy against lambda, beta, learning rate",
        "closedform paper cifar100",
    ),
    PaperItem("Table, appendix: maximum probabilities", "confidence by method", "closedform paper cifar100"),
    PaperItem("Figure, appendix: ImageNet results", "accuracy by method", "closedform paper imagenet"),
    PaperItem("Figure, appendix: QM9, initialization", "four initial last layers", "closedform paper qm9"),
    PaperItem(
        "Figure, appendix: CIFAR-100, initialization",
        "four initial last layers",
        "closedform paper cifar100",
    ),
    PaperItem("Figure, appendix: CIFAR-100, bias", "with and without a bias", "closedform paper cifar100"),
    PaperItem("Figure, appendix: QM9, algorithms", "Algorithm 1 against Algorithm 2", "closedform paper qm9"),
    PaperItem(
        "Figure, appendix: CIFAR-100, algorithms",
        "Algorithm 1 against Algorithm 2",
        "closedform paper cifar100",
    ),
    PaperItem("Tables, appendix: wall-clock time", "ResNet-18 and ResNet-50 steps", "closedform paper timing"),
)
