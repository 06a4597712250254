"""Our Fourier neural operator beside the one of `neuraloperator`: parameters, function, accuracy, time of a step.

    pip install '.[operators]'
    python benchmarks/fno_peer.py [--device cuda]

Both have the same sizes (4 blocks, ReLU, a coordinate channel, a linear lift) and the same learned last layer in place of
neuraloperator's projection. Their blocks end without an activation in the last one; ReLU is added there. First the weights
of ours are put into theirs, and the functions compared; then both are trained on the same batches of Burgers' equation by
Adam, from their own initial weights and theirs also from ours; then steps of training are timed in turn.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from closedform import extras
from closedform.paper.data import burgers
from closedform.paper.models.fno import FNO1d
from common import arguments, interleaved, save

BLOCKS, RATE = 4, 1e-3
NAMES = ("closedform", "neuraloperator")
STARTED = "neuraloperator from our weights"


class Peer(nn.Module):
    """neuraloperator's FNO as a feature extractor of ours: fields `(B, N)` to features `(B, N, width)`."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        from neuralop.models import FNO

        self.fno = FNO(
            n_modes=(2 * (modes - 1),),  # of which it keeps n // 2 + 1
            in_channels=1,
            out_channels=1,
            hidden_channels=width,
            n_layers=BLOCKS,
            lifting_channel_ratio=0,
            non_linearity=F.relu,
            use_channel_mlp=False,
        )
        self.fno.projection = nn.Identity()

    def forward(self, u: Tensor) -> Tensor:
        return F.relu(self.fno(u.unsqueeze(1))).mT

    @torch.no_grad()
    def take_(self, own: FNO1d) -> Peer:
        """The weights of ours."""
        lift = self.fno.lifting.fcs[0]
        lift.weight.copy_(own.lift.weight.reshape(lift.weight.shape))
        lift.bias.copy_(own.lift.bias)
        blocks = self.fno.fno_blocks
        for k, (spectral, pointwise) in enumerate(zip(own.spectral, own.pointwise)):
            kernel = blocks.convs[k].weight.tensor
            kernel.copy_(torch.view_as_complex(spectral.weight).permute(1, 2, 0))
            blocks.convs[k].bias.copy_(pointwise.bias.reshape(blocks.convs[k].bias.shape))
            skip = blocks.fno_skips[k].conv.weight
            skip.copy_(pointwise.weight.reshape(skip.shape))
        return self


def parameters(module: nn.Module) -> int:
    """Real numbers: a complex one counts twice."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in module.parameters())


def stepper(net: nn.Module, head: nn.Module, x: Tensor, y: Tensor, batch: int):
    """A function that takes one training step, on the next batch of a fixed order."""
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=RATE)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    at = 0

    def step() -> None:
        nonlocal at
        rows = order[at * batch : (at + 1) * batch]
        at = (at + 1) % (len(x) // batch)
        loss = F.mse_loss(head(net(x[rows])).squeeze(2), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def model(name: str, width: int, modes: int, seed: int, device: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    own, head = FNO1d(width, modes, BLOCKS), nn.Linear(width, 1)
    net = own if name == "closedform" else Peer(width, modes)
    if name == STARTED:
        net.take_(own)
    return net.to(device), head.to(device)


def main() -> None:
    args = arguments(__doc__ or "")
    extras.require("this benchmark", "operators", "neuralop")
    small = args.quick
    rows: list[dict] = []
    for width, modes in ((8, 4),) if small else ((64, 16), (128, 16)):
        own, peer = FNO1d(width, modes, BLOCKS), Peer(width, modes)
        u = torch.randn(3, 256)
        with torch.no_grad():
            reference = own(u)
            apart = (peer.take_(own)(u) - reference).abs().max() / reference.abs().max()
        counts = {"closedform": parameters(own), "neuraloperator": parameters(peer)}
        rows.append({"what": "parameters", "width": width, "modes": modes, **counts, "difference": float(apart)})
        print(rows[-1], flush=True)
    samples, points, stride, epochs, seeds = (60, 512, 16, 1, 1) if small else (512, 1024, 8, 10, 3)
    width, modes, batch = (8, 4, 8) if small else (64, 16, 16)
    split = burgers.load(0, samples=samples, points=points, device=args.device)
    x, y = (t[:, ::stride].contiguous().to(args.device) for t in (split.x_train, split.y_train))
    x_test, y_test = split.x_test.to(args.device), split.y_test.to(args.device)
    errors: dict[str, list[float]] = {name: [] for name in (*NAMES, STARTED)}
    for seed in range(seeds):
        for name, seed_errors in errors.items():
            net, head = model(name, width, modes, seed, args.device)
            step = stepper(net, head, x, y, batch)
            for _ in range(epochs * (len(x) // batch)):
                step()
            with torch.no_grad():
                seed_errors.append(float(F.mse_loss(head(net(x_test)).squeeze(2), y_test)))
    means = {f"{name}_mean": statistics.fmean(seed_errors) for name, seed_errors in errors.items()}
    sizes = {"width": width, "epochs": epochs, "batch": batch, "samples": len(x), "points": x.shape[1]}
    rows.append({"what": "test error", **sizes, **errors, **means})
    print(rows[-1], flush=True)
    for width, modes, batch in ((8, 4, 4),) if small else ((64, 16, 16), (128, 16, 8), (128, 16, 32)):
        fields = torch.randn(2, 4 * batch, 256, device=args.device)
        sides = {name: stepper(*model(name, width, modes, 0, args.device), *fields, batch) for name in NAMES}
        times = interleaved(sides, args.device, seconds=1.0 if small else 20.0)
        ratio = times["closedform"]["median_ms"] / times["neuraloperator"]["median_ms"]
        rows.append({"what": "step", "width": width, "batch": batch, "points": 256, **times, "ratio": ratio})
        print(rows[-1], flush=True)
    save(args, "fno_peer", "our Fourier neural operator beside neuraloperator's", rows)


if __name__ == "__main__":
    main()
