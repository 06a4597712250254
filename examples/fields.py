"""Field-to-field regression: a small U-Net whose last 1x1 convolution is solved at every step, shared over space.

    python examples/fields.py [--quick]

The input is the temperature of a plate (random bumps on a periodic 32 x 32 grid), the two outputs are the heat that has
flowed after a while (linear in the input) and the size of the flow, |grad u|^2 (not linear). The same network is trained
with its last layer learned by Adam and solved in closed form; then the solved layer becomes a plain convolution.
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import closedform as cf


def plates(samples: int, seed: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """Fields `(samples, 1, size, size)` and targets `(samples, 2, size, size)`, of variance about 1."""
    g = torch.Generator().manual_seed(seed)
    k = torch.fft.fftfreq(size, 1 / size)
    squares = k[:, None] ** 2 + k[None, : size // 2 + 1] ** 2
    noise = torch.fft.rfft2(torch.randn(samples, size, size, generator=g))
    u = noise / (1 + squares / 9) ** 1.5
    u[:, 0, 0] = 0
    flowed = torch.fft.irfft2(u * (1 - torch.exp(-0.1 * squares)))
    down = torch.fft.irfft2(1j * k[:, None] * u)
    across = torch.fft.irfft2(1j * k[None, : size // 2 + 1] * u)
    x, flow = torch.fft.irfft2(u), down.square() + across.square()
    y = torch.stack([flowed / flowed.std(), (flow - flow.mean()) / flow.std()], 1)
    return (x / x.std()).unsqueeze(1), y


class UNet(nn.Module):
    """Features `(B, width, H, W)`: down twice, up twice, with a bridge at every level."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.first = _convolution(1, width)
        self.down = nn.ModuleList(_convolution(width, width) for _ in range(2))
        self.up = nn.ModuleList(_convolution(2 * width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.first(x)]
        for layer in self.down:
            levels.append(layer(F.avg_pool2d(levels[-1], 2)))
        h = levels.pop()
        for layer in self.up:
            h = layer(torch.cat([F.interpolate(h, scale_factor=2), levels.pop()], 1))
        return h


def _convolution(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="circular"), nn.GELU())


def train(solved: bool, steps: int, batch: int = 8) -> tuple[nn.Module, nn.Module, float]:
    """The network, its last layer and the test error after so many steps."""
    torch.manual_seed(0)
    (x, y), (x_test, y_test) = plates(256, seed=1), plates(64, seed=2)
    net = UNet()
    head = cf.ClosedFormConv1x1(16, 2, rule=cf.Proximal(cf.per_sample(0.01))) if solved else nn.Conv2d(16, 2, 1)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=3e-3)  # a solved layer has no gradient
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % len(x)
        phi = net(x[rows])
        if isinstance(head, cf.ClosedFormConv1x1):
            head.solve(phi, y[rows])  # the one new line
        loss = F.mse_loss(head(phi), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return net, head, float(F.mse_loss(head(net(x_test)), y_test))


def main(quick: bool = False) -> dict[str, float]:
    steps = 40 if quick else 150
    errors = {}
    for name, solved in (("learned", False), ("solved", True)):
        net, head, errors[name] = train(solved, steps)
        print(f"last layer {name:8} test MSE {errors[name]:.4f} after {steps} steps")
    plain = nn.Conv2d(16, 2, kernel_size=1)
    plain.load_state_dict(head.state_dict(), strict=False)  # the rule's memory is extra
    x, _ = plates(4, seed=3)
    with torch.no_grad():
        assert torch.allclose(plain(net(x)), head(net(x)), atol=1e-4)
    return errors


if __name__ == "__main__":
    main("--quick" in sys.argv)
