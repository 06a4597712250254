"""The tasks of the swap test: data, backbone and loss of each, in a full and in a quick size.

A task's data are split into training, validation and test by the seed of a run. Where the files of a real data set are not
there, a generated twin of it takes their place, and the results say so.
"""

from __future__ import annotations

import hashlib
import sysconfig
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import swap_networks as networks
from closedform.paper.data import burgers, cifar, qm9, store, tabular
from closedform.paper.models.fno import FNO1d
from closedform.paper.models.resnet import resnet18
from closedform.stack.networks import mlp


@dataclass(frozen=True)
class Data:
    """Inputs and targets of the three parts; `source` says where they come from."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    source: str
    channels: tuple[Tensor, Tensor] | None = None  # of images: mean and standard deviation of the channels

    def to(self, device: str) -> Data:
        def moved(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return part[0].to(device), part[1].to(device)

        channels = None if self.channels is None else moved(self.channels)
        return Data(moved(self.train), moved(self.validation), moved(self.test), self.source, channels)


@dataclass(frozen=True)
class Task:
    """One task in one size.

    loss: "squared" (the error is the mean square over samples and outputs), "cross-entropy" (the error is the share of wrong
        labels) or "likelihood" (cross-entropy too, and the error is its mean).
    epochs: for each batch size. rates: the middle of the grid for each optimizer.
    """

    name: str
    loss: str
    load: Callable[[int], Data]  # from the seed of a run
    backbone: Callable[[Data], nn.Module]
    features: int
    outputs: Callable[[Data], int]
    epochs: dict[int, int]
    rates: dict[str, float]
    weight_decay: float = 0.0  # of SGD, added to the gradient
    decoupled_decay: float = 0.01  # of the other optimizers, times the rate
    warm_up: float = 0.0  # share of the steps over which the rate rises
    augmented: bool = False  # crops and flips of images
    bf16: bool = False  # on a GPU
    seconds: dict[str, float] = field(default_factory=dict)  # a step, for the estimate of `--plan`

    def classes(self) -> int:
        """About how many classes there are: the default layer has its own way with few. Only tables have few, and they are
        quickly loaded."""
        return self.outputs(self.load(0)) if self.name.startswith("table ") else MANY


RATES = {"sgd": 0.1, "adamw": 3e-3, "muon": 3e-3, "soap": 3e-3}


MANY = 100  # classes


# ---- Tables --------------------------------------------------------------------------------------

TABLES = ("kin8nm", "naval", "wine", "house_8L", "fried")
# the other tables of a thousand rows or more: with numbers, which chose nothing about the default, and with classes, of
# which a middle rate's validation errors chose its two memories (`shortest_memory.py`)
OTHER_NUMBERS = (
    "2dplanes", "mv", "house_16H", "cpu_act", "puma8NH", "wind", "BNG_echoMonths", "fri_c0_1000_10", "fri_c1_1000_50",
    "fri_c4_1000_100", "GeographicalOriginalofMusic", "concrete", "power", "protein",
)  # fmt: skip
OTHER_CLASSES = (
    "adult", "letter", "phoneme", "spambase", "pendigits", "ann_thyroid", "page_blocks", "waveform_40", "credit_g",
    "mfeat_fourier", "wine_quality_white", "nursery", "krkopt",
)  # fmt: skip
OTHER_ROWS = 4000
PMLB = "pmlb26.npz"


def table(name: str, limit: int | None, seed: int) -> Data:
    """A table standardised by its training rows, of which there are at most `limit` with those for validation, an eighth.
    Classes are numbered."""
    x, y, test, source = _rows(name, seed)
    order = np.random.RandomState(seed).permutation(np.flatnonzero(~test))[:limit]
    cut = len(order) // 8
    parts = order[cut:], order[:cut], np.flatnonzero(test)
    mean, std = x[parts[0]].mean(0), x[parts[0]].std(0)
    x = (x - mean) / np.where(std > 1e-9, std, 1.0)
    if name in OTHER_CLASSES:
        target = torch.tensor(np.unique(y, return_inverse=True)[1])
    else:
        target = torch.tensor((y - y[parts[0]].mean()) / y[parts[0]].std())[:, None].float()
    return Data(*((torch.tensor(x[part]).float(), target[part]) for part in parts), source=source)


def _rows(name: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Inputs, targets, which rows are for the test, and where they come from."""
    if name in tabular.NAMES.values() and store.data_file(tabular.FILE):
        whole = tabular.load(name)
        return whole.x, whole.y, whole.tests[seed % len(whole.tests)], tabular.FILE
    if (path := store.data_file(PMLB)) is not None:
        with np.load(path, allow_pickle=False) as file:
            if f"{name}/x" in file.files:
                x, y = (file[f"{name}/{part}"].astype(np.float64) for part in "xy")
                return x, y.reshape(-1), file[f"{name}/test"].astype(bool), PMLB
    random = np.random.RandomState(zlib.crc32(name.encode()))
    x = random.randn(2000, 8)
    y = np.tanh(x @ random.randn(8, 16)) @ random.randn(16) / 4 + 0.1 * random.randn(2000)
    y = np.digitize(y, np.quantile(y, [0.2, 0.5])) if name in OTHER_CLASSES else y
    return x, y, np.random.RandomState(1000 + seed).rand(2000) < 0.1, "generated"


def _table(name: str, quick: bool, limit: int | None = None) -> Task:
    width, classes = 64 if quick else 128, name in OTHER_CLASSES
    return Task(
        name=f"table {name}",
        loss="likelihood" if classes else "squared",
        load=partial(table, name, 4000 if quick else limit),
        backbone=lambda data: mlp([data.train[0].shape[1], width, width]),
        features=width,
        outputs=lambda data: 1 + max(int(y.max()) for _, y in (data.train, data.test)) if classes else 1,
        epochs={32: 8, 256: 16} if quick else {32: 40, 256: 100},
        rates=RATES,
        seconds={"cpu": 6e-4, "cuda": 3e-4},
    )


# ---- QM9 and Burgers -----------------------------------------------------------------------------


def _molecules(limit: int | None, seed: int) -> Data:
    try:
        split, source = qm9.load(seed, limit), "qm9"
    except (FileNotFoundError, ImportError):
        split, source = qm9.load(seed, limit or 20_000, source="synthetic"), "generated"
    return Data(
        (split.x_train, split.y_train), (split.x_validation, split.y_validation), (split.x_test, split.y_test), source
    )


def _qm9(quick: bool) -> Task:
    width = 128 if quick else 256
    return Task(
        name="qm9",
        loss="squared",
        load=partial(_molecules, 8000 if quick else None),
        backbone=lambda data: mlp([data.train[0].shape[1], width, width, width]),
        features=width,
        outputs=lambda data: data.train[1].shape[1],
        epochs={32: 4, 256: 12} if quick else {32: 6, 256: 20},
        rates=RATES | {"adamw": 1e-3},
        seconds={"cpu": 1.5e-3, "cuda": 4e-4},
    )


def _fields(samples: int, points: int, stride: int, seed: int) -> Data:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    split = burgers.load(seed, samples=samples, points=points, device=device)

    def part(name: str) -> tuple[Tensor, Tensor]:
        x, y = (getattr(split, f"{side}_{name}")[:, ::stride].contiguous() for side in "xy")
        return x, y.unsqueeze(2)

    return Data(part("train"), part("validation"), part("test"), "computed")


def _burgers(quick: bool) -> Task:
    width, modes = (32, 12) if quick else (128, 16)
    return Task(
        name="burgers",
        loss="squared",
        load=partial(_fields, 320, 1024, 16) if quick else partial(_fields, burgers.SAMPLES, burgers.POINTS, 32),
        backbone=lambda data: FNO1d(width, modes, 4),
        features=width,
        outputs=lambda data: 1,
        epochs={8: 12, 32: 24} if quick else {8: 25, 32: 50},
        rates=RATES,
        seconds={"cpu": 8e-3, "cuda": 2e-3},
    )


# ---- Images --------------------------------------------------------------------------------------


def _images(limit: int | None, seed: int) -> Data:
    try:
        split, source = cifar.load(seed, limit), "cifar100"
    except (FileNotFoundError, ImportError, OSError):
        split, source = cifar.load(seed, limit or 4000, source="synthetic"), "generated"
    return Data(
        (split.x_train, split.y_train),
        (split.x_validation, split.y_validation),
        (split.x_test[:limit], split.y_test[:limit]),
        source,
        (split.mean, split.std),
    )


def _cifar100(quick: bool) -> Task:
    return Task(
        name="cifar100",
        loss="cross-entropy",
        load=partial(_images, 1000 if quick else None),
        backbone=lambda data: networks.SmallConvolutions(32) if quick else resnet18(),
        features=64 if quick else 512,
        outputs=lambda data: int(data.train[1].max()) + 1,
        epochs={32: 2} if quick else {128: 12, 1024: 12},
        rates={"sgd": 0.2, "adamw": 1e-3, "muon": 3e-3, "soap": 3e-3},
        weight_decay=5e-4,
        decoupled_decay=0.05,
        warm_up=0.1,
        augmented=True,
        bf16=not quick,
        seconds={"cpu": 2e-2, "cuda": 5e-3},
    )


@lru_cache(maxsize=2)
def _bumps(samples: int, size: int) -> tuple[Tensor, Tensor]:
    """Noisy pictures `(n, 1, size, size)` of bumps; the clean picture and its two slopes `(n, size, size, 3)`."""
    random = np.random.RandomState(0)
    grid = np.arange(size) / size
    clean, slopes = np.zeros((samples, size, size)), np.zeros((2, samples, size, size))
    for _ in range(6):
        centre, width = random.rand(2, samples, 1, 1), 0.05 + 0.15 * random.rand(samples, 1, 1)
        height = random.randn(samples, 1, 1)
        dx, dy = grid[:, None] - centre[0], grid - centre[1]
        bump = height * np.exp(-(dx**2 + dy**2) / (2 * width**2))
        clean += bump
        slopes += np.stack([-dx / width**2 * bump, -dy / width**2 * bump])
    y = np.stack([clean, *slopes / slopes.std()], -1)
    x = clean + 0.3 * random.randn(*clean.shape)
    return torch.tensor(x[:, None]).float(), torch.tensor(y).float()


def _pictures(samples: int, size: int, seed: int) -> Data:
    x, y = _bumps(samples, size)
    order = torch.from_numpy(np.random.RandomState(seed).permutation(samples))
    train, validation, test = order.tensor_split([samples * 7 // 10, samples * 8 // 10])
    return Data((x[train], y[train]), (x[validation], y[validation]), (x[test], y[test]), "generated")


def _unet(quick: bool) -> Task:
    width = 8 if quick else 32
    return Task(
        name="unet",
        loss="squared",
        load=partial(_pictures, 300, 32) if quick else partial(_pictures, 5000, 64),
        backbone=lambda data: networks.UNet(width),
        features=width,
        outputs=lambda data: data.train[1].shape[-1],
        epochs={16: 3} if quick else {16: 15, 64: 30},
        rates=RATES,
        seconds={"cpu": 1.5e-2, "cuda": 3e-3},
    )


# ---- Text ----------------------------------------------------------------------------------------

ALPHABET = 96  # the printable characters and the end of a line; all others are left out


@lru_cache(maxsize=2)
def text(characters: int) -> tuple[np.ndarray, str]:
    """Numbers of characters, and what they are: source text of Python's standard library, whose modules follow each other
    in an order drawn once; where it is not installed as text, sentences of random words."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    order = np.random.RandomState(0).permutation(len(modules))
    content = b"".join(modules[k].read_bytes() for k in order)
    source = "standard library"
    if len(content) < 1.2 * characters:
        random = np.random.RandomState(0)
        words = ["".join(chr(97 + k) for k in random.randint(0, 26, random.randint(2, 9))) for _ in range(300)]
        share = 1 / np.arange(1, 301)
        content = " ".join(np.array(words)[random.choice(300, characters, p=share / share.sum())]).encode()
        source = "generated"
    codes = np.frombuffer(content, np.uint8)
    codes = np.where(codes == 10, 127, codes)
    codes = codes[(codes >= 32) & (codes < 128)][:characters] - 32
    return codes.astype(np.int64), f"{source} {hashlib.sha256(codes.tobytes()).hexdigest()[:12]}"


def _windows(characters: int, length: int, seed: int) -> Data:
    """Pieces of the text, each with the same piece one character on. The first eight tenths are for training; the seed
    draws only the network and the batches."""
    codes, source = text(characters)
    count = (len(codes) - 1) // length
    x = torch.from_numpy(codes[: count * length].reshape(count, length))
    y = torch.from_numpy(codes[1 : count * length + 1].reshape(count, length))
    cuts = [count * 8 // 10, count * 9 // 10]
    return Data(*zip(x.tensor_split(cuts), y.tensor_split(cuts)), source=source)  # pyright: ignore[reportCallIssue]


def _language(quick: bool) -> Task:
    width, length, blocks = (32, 32, 1) if quick else (128, 128, 4)
    return Task(
        name="language",
        loss="likelihood",
        load=partial(_windows, 60_000 if quick else 2_000_000, length),
        backbone=lambda data: networks.Transformer(ALPHABET, width, blocks, length),
        features=width,
        outputs=lambda data: ALPHABET,
        epochs={16: 3} if quick else {16: 3, 64: 6},
        rates={"sgd": 0.3, "adamw": 1e-3, "muon": 3e-3, "soap": 3e-3},
        warm_up=0.1,
        seconds={"cpu": 1.5e-2, "cuda": 2.5e-3},
    )


def tasks(quick: bool) -> dict[str, Task]:
    """All tasks by name."""
    every = [_qm9(quick), _burgers(quick), _cifar100(quick), _language(quick), _unet(quick)]
    every += [_table(name, quick) for name in TABLES]
    every += [_table(name, quick, OTHER_ROWS) for name in (*OTHER_NUMBERS, *OTHER_CLASSES)]
    return {task.name: task for task in every}


def _named(tables: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"table {name}" for name in tables)


# by one word
GROUPS = {"tables": _named(TABLES), "others": _named(OTHER_NUMBERS), "classes": _named(OTHER_CLASSES)}
QUICK = ("qm9", "burgers", *GROUPS["tables"])  # what `--quick` runs
FULL = ("qm9", "burgers", "cifar100", "language", "unet", *GROUPS["tables"])  # what is run without it
