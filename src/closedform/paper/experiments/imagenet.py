"""The paper's ImageNet experiment: an NFNet-F0, its last layer learned or solved, with the recipe of Brock et al. (2021).

The images are a folder of class folders, or Tiny ImageNet-200 held on the device. Every run is a JSON file in the folder of
the results. Nothing is searched for: rates and settings are the paper's, scaled to the batch size, or what the caller says.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...distributed import place
from ..data import imagefolder, tinyimagenet
from ..sweeps import grid
from ..sweeps.records import Records
from ..sweeps.work import Work
from .batches import Batches, DeviceBatches, DeviceImages, FolderBatches
from .cifar100_model import default_name
from .classifier import trained
from .imagenet_model import TWIN, TWIN_FEATURES, classifier, mix_of, timm, transforms_of

OPENING = (
    "ImageNet by a network without normalisers. Every method trains the same network with the same recipe; its last layer\n"
    "is learned (cross-entropy, l2) or solved at every step (the others). Ctrl-C stops the work, and the same command\n"
    "continues it."
)
# most wanted first: the peak rate at batch size 4096, and the other settings
METHODS: dict[str, tuple[float, dict[str, float]]] = {
    "cross-entropy": (1.6, {}),
    "kalman cross-entropy": (1.6, {"forget": 0.99}),
    "proximal": (1.6, {"lam": 1e4}),
    "auto cross-entropy": (1.6, {}),
    "l2": (1.0, {}),
    "ridge": (1.6, {"beta": 0.01}),
}
SETTINGS = ("lam", "beta", "ratio", "forget")
RATIO = 10.0  # lambda over the mean diagonal of the Gram matrix, where a batch has fewer rows than features
FEATURES = {"nfnet_f0": 3072, TWIN: TWIN_FEATURES}
MARKS = 40  # at most
EVERY_S = 600.0  # between checkpoints: network, optimizer and memory are half a gigabyte


@dataclass(frozen=True)
class Recipe:
    """What all methods have in common; the defaults are those of ImageNet.

    warm_up: in epochs. clip: the factor of adaptive gradient clipping. average: the decay of an average of the weights; 0 is
    none, as for `mixup`, `cutmix`, `clip` and `randaugment`.
    """

    source: str = "imagenet"
    net: str = "nfnet_f0"
    batch_size: int = 4096
    epochs: int = 360
    warm_up: float = 5.0
    weight_decay: float = 2e-5
    clip: float = 0.01
    smoothing: float = 0.1
    mixup: float = 0.2
    cutmix: float = 1.0
    randaugment: str = "rand-n4-m5"
    dropout: float = 0.2
    drop_path: float = 0.25
    average: float = 0.99999
    size: int = 192
    test_size: int = 256
    precision: str = "bf16"
    images: int = 0  # to train on
    classes: int = 0

    def config(self, method: str, seed: int, lr: float | None = None) -> dict[str, Any]:
        """The configuration of one run. Rates are proportional to the batch size, as the recipe has it. A run of the default
        has the name of its rule, so that one by an earlier default is another run."""
        if method not in METHODS:
            raise ValueError(f"there is no method {method!r}; expected {', '.join(METHODS)}")
        peak, settings = METHODS[method]
        if method == "proximal" and self.batch_size < FEATURES.get(self.net, 0):
            settings = {"ratio": RATIO}  # any fixed lambda interpolates such a batch, or holds the layer fast
        rate = float(f"{peak * self.batch_size / 4096:.6g}") if lr is None else lr
        shared = asdict(self) | {"warm_up": min(self.warm_up, self.epochs / 2)}
        if (rule := default_name(method)) is not None:
            shared["rule"] = rule
        return shared | dict.fromkeys(SETTINGS) | settings | {"method": method, "lr": rate, "seed": seed}


def tiny(parts: int = tinyimagenet.PARTS, **changed: Any) -> Recipe:
    """The recipe for few epochs of Tiny ImageNet: no mixing, no dropout and no average, which pay in long training."""
    short = Recipe(
        source="tinyimagenet",
        batch_size=1024,
        epochs=9,
        warm_up=1.0,
        mixup=0.0,
        cutmix=0.0,
        randaugment="",
        dropout=0.0,
        drop_path=0.0,
        average=0.0,
        size=tinyimagenet.SIZE,
        test_size=tinyimagenet.SIZE,
        images=parts * tinyimagenet.PART,
        classes=tinyimagenet.CLASSES,
    )
    return replace(short, **changed)


def of_folder(folder: imagefolder.ImageFolder, **changed: Any) -> Recipe:
    """The recipe for a folder of images."""
    return replace(Recipe(images=len(folder.train), classes=len(folder.classes)), **changed)


def small(recipe: Recipe) -> Recipe:
    """The same with a twin of the network that is small enough for a CPU, and without what needs timm."""
    return replace(
        recipe,
        net=TWIN,
        clip=0.0,
        mixup=0.0,
        cutmix=0.0,
        randaugment="",
        precision="fp32",
        size=min(recipe.size, 32),
        test_size=min(recipe.test_size, 32),
    )


def needs(recipe: Recipe) -> None:
    """An ImportError where timm is missing and the recipe needs it."""
    if recipe.net != TWIN or recipe.clip or recipe.mixup or recipe.cutmix or recipe.randaugment:
        timm()


def configs(
    recipe: Recipe, methods: Sequence[str] | None = None, rates: Sequence[float] | None = None, seeds: int = 1
) -> list[dict[str, Any]]:
    """All runs, most wanted first: a seed of every method before the next seed."""
    return [
        recipe.config(method, seed, lr)
        for seed in range(seeds)
        for lr in rates or [None]
        for method in methods or METHODS
    ]


def name(config: dict[str, Any]) -> str:
    """A configuration in a few words."""
    words = f"{config['method']}, batch size {config['batch_size']}, rate {config['lr']:g}"
    words += "".join(f", {key} {config[key]:g}" for key in SETTINGS if config[key] is not None)
    return f"{words}, {config['epochs']} epoch{'s' * (config['epochs'] > 1)}, seed {config['seed']}"


# ---- One run -------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _on_device(parts: int, device: str) -> DeviceImages:
    return DeviceImages(tinyimagenet.load(parts), torch.device(device))


listed = lru_cache(maxsize=1)(imagefolder.load)  # a million files take a while


def batches_of(config: dict[str, Any], device: str, images: Path | None, workers: int) -> Batches:
    """The images of a configuration: those of the folder `images`, else Tiny ImageNet."""
    mix, size, seed = mix_of(config, config["classes"]), config["batch_size"], config["seed"]
    if images is None:
        return DeviceBatches(_on_device(config["images"] // tinyimagenet.PART, device), size, seed, mix)
    return FolderBatches(listed(images), torch.device(device), size, seed, transforms_of(config), workers, mix)


def train(
    config: dict[str, Any],
    *,
    device: str,
    images: Path | None = None,
    workers: int = 0,
    captured: bool = True,
    folder: Path | None = None,
    deadline: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train one configuration, see `classifier.trained`."""
    model = classifier(config, batches_of(config, device, images, workers), captured)
    noted = trained(
        model,
        grid.digest(config),
        marks=min(config["epochs"], MARKS),
        folder=folder,
        every_s=EVERY_S,
        deadline=deadline,
        progress=progress,
    )
    return noted | {"captured": model.captured, "processes": place()[1]}


# ---- All of them ---------------------------------------------------------------------------------


@contextmanager
def processes(device: str) -> Iterator[str]:
    """The device of this process. Under torchrun it joins the others meanwhile, each with a GPU of its own."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    gpu = device.startswith("cuda")
    if gpu:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def run(
    out: Path,
    wanted: list[dict[str, Any]],
    *,
    device: str = "cpu",
    images: Path | None = None,
    workers: int = 0,
    captured: bool = True,
    at_once: int = 1,
    seconds: float | None = None,
    say: Callable[[str], object] = print,
) -> Records:
    """Do the runs that are not done, in this order, and return all that have been done in the folder.

    images: a folder with class folders in `train` and `val`; Tiny ImageNet where there is none.
    workers: processes that read it, for each process that trains.
    captured: False launches the kernels of a step one by one.
    at_once: how many processes share the device, each with a run of its own.
    seconds: how long; what is under way then is put aside, and goes on in a later call on the same machine.
    """
    deadline = None if seconds is None else time.time() + seconds
    with processes(device) as own:
        if images is None and place()[1] > 1:
            raise ValueError("Tiny ImageNet is held by one process; several of torchrun need a folder of images")
        return Work(
            out,
            sys.modules[__name__],
            lambda records: [config for config in wanted if records.get(config) is None],
            alike=("source", "net", "batch_size", "images"),
            deadline=deadline,
            say=say if place()[0] == 0 else lambda line: None,
            device=own,
            images=images,
            workers=workers,
            captured=captured,
        ).do(at_once)


def progress(wanted: list[dict[str, Any]], records: Records) -> list[str]:
    """A line for each run: the accuracy along the way, or that it has not been done."""
    lines = []
    for config in wanted:
        record = records.get(config)
        if record is None:
            lines.append(f"{name(config)}: not finished")
            continue
        rows = record["rows"]
        along = " ".join(f"{100 * row['validation']:.1f}" for row in rows)
        lines.append(f"{name(config)}: validation {along} %, {rows[-1]['wall_s']:.0f} s")
    return lines
