"""What does a training step cost with a solved last layer, against a step with cross-entropy?

    python benchmarks/step_overhead.py [--device cuda] [--quick] [--nfnet] [--default]

The paper's two wall-clock tables: ResNet-18 and ResNet-50 on 32 x 32 images, one more layer that sets the dimension of
the last, 100 outputs, SGD with Nesterov momentum, torch's default precision. Both steps see the same images; ours solves
the head on one-hot targets and descends the squared loss, the other learns a linear head by cross-entropy. Eager and, on a
GPU, as captured CUDA graphs; steps alternate.

With --nfnet: the step of `closedform paper imagenet` instead, an NFNet-F0 with its recipe on generated 48 x 48 images in 200
classes, each solved layer against learned cross-entropy.

With --default: the library's default layer (`Auto`) against a learned one with the same loss: cross-entropy behind the
ResNet-18 of CIFAR-100, the squared loss behind the MLP of QM9.
"""

from __future__ import annotations

import argparse
import gc
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

import closedform as cf
from closedform.paper.experiments import imagenet
from closedform.paper.experiments.batches import DeviceBatches, DeviceImages
from closedform.paper.experiments.imagenet_model import classifier
from closedform.paper.models.resnet import resnet18, resnet50
from closedform.stack.networks import mlp
from common import arguments, captured, interleaved, save

CLASSES = 100
DIMS = (128, 256, 512, 1024, 2048, 4096)
# the paper's rTime, on an A100, in the order of DIMS
PAPER = {
    ("resnet18", 32): (0.92, 0.92, 1.02, 1.13, 1.44, 2.37),
    ("resnet18", 128): (1.01, 1.03, 1.04, 1.10, 1.26, 1.65),
    ("resnet18", 1024): (1.09, 1.07, 1.09, 1.08, 1.11, 1.18),
    ("resnet18", 4096): (1.12, 1.13, 1.15, 1.12, 1.13, 1.14),
    ("resnet50", 32): (1.66, 1.05, 1.40, 1.23, 1.31, 1.84),
    ("resnet50", 128): (1.11, 1.11, 1.11, 1.16, 1.25, 1.44),
    ("resnet50", 1024): (1.15, 1.15, 1.15, 1.16, 1.17, 1.20),
}
NETS = {"resnet18": resnet18, "resnet50": resnet50}
SOLVED = ("proximal", "kalman cross-entropy", "auto cross-entropy")  # of the NFNet


def sides(net: str, batch: int, dim: int, device: str) -> dict:
    """The two steps, each with its own model and optimizer, on the same images."""
    torch.manual_seed(0)
    x = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(0, CLASSES, (batch,), device=device)
    targets = F.one_hot(labels, CLASSES).float()

    def optimizer(*modules: nn.Module) -> torch.optim.Optimizer:
        parameters = [p for module in modules for p in module.parameters()]
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, nesterov=True)

    plain, linear = NETS[net](dim).to(device), nn.Linear(dim, CLASSES, device=device)
    solved, head = NETS[net](dim).to(device), cf.ClosedFormLinear(dim, CLASSES, rule=cf.Proximal(1e3), device=device)
    plain_opt, solved_opt = optimizer(plain, linear), optimizer(solved)
    return {
        "ours": lambda: cf.training.algorithm1(solved, head, solved_opt, x, targets),
        "cross_entropy": lambda: cf.training.cross_entropy(plain, linear, plain_opt, x, labels),
    }


def default_sides(net: str, batch: int, device: str) -> dict:
    """Steps that differ in the last layer alone: the default of the library, and a learned one."""
    torch.manual_seed(0)
    if net == "mlp":
        width, outputs = 256, 12
        x, y = torch.randn(batch, 435, device=device), torch.randn(batch, outputs, device=device)
        backbones = [mlp([x.shape[1], width, width, width]).to(device) for _ in range(2)]
    else:
        width, outputs = 512, CLASSES
        x, y = torch.randn(batch, 3, 32, 32, device=device), torch.randint(0, CLASSES, (batch,), device=device)
        backbones = [NETS[net]().to(device) for _ in range(2)]
    loss, plain_step = (
        (cf.Squared(), cf.training.l2) if net == "mlp" else (cf.CrossEntropy(), cf.training.cross_entropy)
    )
    linear = nn.Linear(width, outputs, device=device)
    head = cf.ClosedFormLinear(width, outputs, loss=loss, device=device)
    solved_opt = torch.optim.SGD(backbones[0].parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    learned = [*backbones[1].parameters(), *linear.parameters()]
    learned_opt = torch.optim.SGD(learned, lr=1e-3, momentum=0.9, nesterov=True)
    return {
        "default": lambda: cf.training.algorithm1(backbones[0], head, solved_opt, x, y),
        "learned": lambda: plain_step(backbones[1], linear, learned_opt, x, y),
    }


def default(args: argparse.Namespace) -> None:
    """The default layer against a learned one, with the same loss."""
    cells = [("mlp", batch) for batch in (32, 256)] + [("resnet18", batch) for batch in (32, 128, 1024, 4096)]
    if args.device != "cuda" or args.quick:
        cells = [("mlp", 32), ("resnet18", 8)]
    rows = []
    for net, batch in cells:
        functions = default_sides(net, batch, args.device)
        row: dict = {"net": net, "batch": batch, "eager": interleaved(functions, args.device, 1.5)}
        if args.device == "cuda":
            row["captured"] = interleaved({name: captured(f) for name, f in functions.items()}, args.device, 1.5)
        for kind in ("eager", "captured"):
            if kind in row:
                ours, plain = (row[kind][side]["median_ms"] for side in ("default", "learned"))
                row[f"{kind}_ratio"] = ours / plain
                print(
                    f"{net}, batch {batch}, {kind}: {ours:.3f} ms, {ours / plain:.3f} of the learned step", flush=True
                )
        rows.append(row)
        del functions
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    save(
        args, "step_overhead_default", "milliseconds of a training step, the default layer against a learned one", rows
    )


def nfnet(args: argparse.Namespace) -> None:
    """Steps of the ImageNet experiment; the small twin of its network with --quick."""
    torch.manual_seed(0)
    recipe = imagenet.small(imagenet.tiny(batch_size=64)) if args.quick else imagenet.tiny()
    x = torch.randint(0, 256, (4 * recipe.batch_size, 3, recipe.size, recipe.size), dtype=torch.uint8)
    y = torch.arange(len(x)) % recipe.classes
    shade = torch.full((3,), 0.5)
    split = SimpleNamespace(x_train=x, y_train=y, mean=shade, std=shade, classes=recipe.classes)
    data, rows = DeviceImages(split, torch.device(args.device)), []
    kinds = {"eager": False, "captured": True} if args.device == "cuda" else {"eager": False}
    for method in SOLVED:
        row: dict = {"net": recipe.net, "batch": recipe.batch_size, "method": method}
        for kind, graph in kinds.items():
            configs = {name: recipe.config(name, 0, lr=1e-3) for name in (method, "cross-entropy")}
            models = {
                name: classifier(config, DeviceBatches(data, recipe.batch_size, 0), graph)
                for name, config in configs.items()
            }
            row[kind] = interleaved({name: model.advance for name, model in models.items()}, args.device, 3.0)
            ours, plain = (row[kind][name]["median_ms"] for name in models)
            row[f"{kind}_ratio"] = ours / plain
            print(
                f"{recipe.net}, batch {recipe.batch_size}, {method}, {kind}: {ours:.2f} ms, {ours / plain:.3f}",
                flush=True,
            )
            del models
            gc.collect()
            if args.device == "cuda":
                torch.cuda.empty_cache()
        rows.append(row)
    save(args, "step_overhead_nfnet", "milliseconds of a training step, solved layers against cross-entropy", rows)


def main() -> None:
    args = arguments(
        __doc__ or "",
        nfnet="an NFNet-F0 with the recipe of ImageNet, instead of ResNets",
        default="the default layer against a learned one with the same loss",
    )
    if args.nfnet or args.default:
        nfnet(args) if args.nfnet else default(args)
        return
    gpu = args.device == "cuda"
    cells = [(net, batch, dim) for net, batch in PAPER for dim in DIMS]
    if args.quick:
        cells = [("resnet18", 8, 128)] if not gpu else [c for c in cells if c[0] == "resnet18" and c[2] in (128, 4096)]
    elif not gpu:
        cells = [("resnet18", 32, dim) for dim in (128, 4096)]
    rows = []
    print(f"{'net':>9} {'B':>5} {'d':>5} | {'eager ms':>9} {'ratio':>6} | {'captured':>9} {'ratio':>6} | paper")
    for net, batch, dim in cells:
        functions = sides(net, batch, dim, args.device)
        seconds = 1.2 if batch <= 128 else 0.6
        row: dict = {"net": net, "batch": batch, "d": dim, "eager": interleaved(functions, args.device, seconds, 4)}
        paper = dict(zip(DIMS, PAPER.get((net, batch), ()))).get(dim)
        eager, plain = (row["eager"][k]["median_ms"] for k in ("ours", "cross_entropy"))
        row["eager_ratio"], row["paper"] = eager / plain, paper
        line = f"{net:>9} {batch:5d} {dim:5d} | {eager:9.3f} {eager / plain:6.3f} |"
        if gpu:
            graphs = {name: captured(function) for name, function in functions.items()}
            row["captured"] = interleaved(graphs, args.device, seconds, 4)
            ours, other = (row["captured"][k]["median_ms"] for k in ("ours", "cross_entropy"))
            row["captured_ratio"], row["captured_over_eager"] = ours / other, plain / ours
            line += f" {ours:9.3f} {ours / other:6.3f} |"
            del graphs
        print(line, paper, flush=True)
        rows.append(row)
        del functions
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()
    save(args, "step_overhead", "milliseconds of a training step, solved last layer against cross-entropy", rows)


if __name__ == "__main__":
    main()
