"""`closedform paper imagenet`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from .running import checked_device, train_all


def imagenet(
    images: Annotated[
        Path | None,
        typer.Option(help="A folder with train/CLASS/*.JPEG and val/CLASS/*.JPEG. Without one: Tiny ImageNet-200."),
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="May be given more than once.")] = None,
    lr: Annotated[list[float] | None, typer.Option(help="Peak rates instead of the recipe's, for all methods.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=2, help="Of all processes together; 4096, of Tiny ImageNet 1024.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="360 for a folder, 9 for Tiny ImageNet.")] = None,
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    parts: Annotated[
        int, typer.Option(min=1, max=10, help="How many tenths of Tiny ImageNet's images to train on.")
    ] = 10,
    quick: Annotated[
        bool, typer.Option(help="A small twin of the network, which needs no timm, and 2 epochs.")
    ] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read the folder, for each that trains.")] = 8,
    device: Annotated[
        str, typer.Option(help='"auto", "cpu", "cuda" or "cuda:1"; under torchrun every process has its own GPU.')
    ] = "auto",
    at_once: Annotated[int, typer.Option(min=1, help="How many runs share the device.")] = 1,
    eager: Annotated[bool, typer.Option(help="Launch the kernels of a step one by one, without a CUDA graph.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Work for this long; again until all is done.")] = None,
    merge: Annotated[list[Path] | None, typer.Option(help="First copy the runs of another output folder.")] = None,
    status: Annotated[bool, typer.Option("--status", help="Train nothing: say what has run.")] = False,
    out: Annotated[Path, typer.Option(help="The folder of the results; a later run continues what it holds.")] = Path(
        "runs/imagenet"
    ),
) -> None:
    """ImageNet: learned and solved last layers of an NFNet-F0, with the recipe of Brock et al.

    For several GPUs: torchrun --nproc-per-node 8 --no-python closedform paper imagenet --images FOLDER. Every finished run
    is a file in the output folder. Ctrl-C stops the work, and the same command continues it.
    """
    from .experiments import imagenet as experiment
    from .sweeps.records import Records
    from .sweeps.work import RUNS

    first = os.environ.get("RANK", "0") == "0"
    changed: dict[str, Any] = {"batch_size": batch_size, "epochs": epochs or (2 if quick else None)}
    changed = {name: value for name, value in changed.items() if value is not None}
    if images is None:
        recipe = experiment.tiny(parts, **changed)
    else:
        recipe = experiment.of_folder(experiment.listed(images), **changed)
    recipe = experiment.small(recipe) if quick else recipe
    wanted = experiment.configs(recipe, method, lr, seeds)
    if first:
        print(experiment.OPENING + "\n")
        for other in merge or []:
            print(f"{Records(out / RUNS).merge(other / RUNS)} runs copied from {other}")
    if not status:
        experiment.needs(recipe)
        options = {"images": images, "workers": workers, "captured": not eager, "at_once": at_once, "seconds": seconds}
        train_all(experiment, out, wanted, device=checked_device(device), **options)
    if first:
        for line in experiment.progress(wanted, Records(out / RUNS)):
            print(line)
        print(f"The results are in {out / RUNS}, a file for each run.")
