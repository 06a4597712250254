"""Networks of other people on fields: their last layer becomes a solved one. Small twins stand in where `neuraloperator` is
not installed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import closedform as cf

SIDE = 16


class Twin(nn.Module):
    """What neuraloperator's networks look like to a search for the last layer: the projection is registered before the
    lifting, its layers stand in a list, fields are put in a row, and the code looks at shapes."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.projection = nn.ModuleList([nn.Conv1d(width, 8, 1), nn.Conv1d(8, 1, 1)])
        self.spectral = nn.Parameter(0.1 * torch.randn(width, width, 3, 3, dtype=torch.cfloat))
        self.skip = nn.Conv1d(width, width, 1, bias=False)
        self.lifting = nn.Conv1d(1, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        if list(x.shape)[1] != 1:
            raise ValueError("one channel")
        u = self.lifting(x.flatten(2)).reshape(len(x), -1, *x.shape[2:])
        modes = torch.zeros_like(torch.fft.rfft2(u))
        modes[:, :, :3, :3] = torch.einsum("bchw,dchw->bdhw", torch.fft.rfft2(u)[:, :, :3, :3], self.spectral)
        u = F.gelu(torch.fft.irfft2(modes, s=x.shape[2:]).flatten(2) + self.skip(u.flatten(2)))
        return self.projection[1](F.gelu(self.projection[0](u))).reshape(len(x), 1, *x.shape[2:])


class UNet(nn.Module):
    """Two levels, and a 1x1 convolution at the end that is registered first."""

    def __init__(self):
        super().__init__()
        self.out = nn.Conv2d(8, 1, 1)
        self.first, self.deep = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.first(x))
        b = F.relu(self.deep(F.max_pool2d(a, 2)))
        return self.out(F.relu(self.last(torch.cat([a, self.up(b)], 1))))


def _neuralop(name: str) -> nn.Module:
    models = pytest.importorskip("neuralop.models")
    if name == "FNO":
        return models.FNO(n_modes=(6, 6), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)
    if name == "TFNO":
        return models.TFNO(n_modes=(6, 6), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2, rank=0.5)
    return models.UNO(
        in_channels=1, out_channels=1, hidden_channels=8, lifting_channels=8, projection_channels=8, n_layers=3,
        uno_out_channels=[8, 8, 8], uno_n_modes=[[4, 4]] * 3, uno_scalings=[[1, 1], [0.5, 0.5], [2, 2]],
        channel_mlp_skip="linear",
    )  # fmt: skip


NETWORKS = {
    "twin": (Twin, "projection.1"),
    "u-net": (UNet, "out"),
    "FNO": (lambda: _neuralop("FNO"), "projection.fcs.1"),
    "TFNO": (lambda: _neuralop("TFNO"), "projection.fcs.1"),
    "UNO": (lambda: _neuralop("UNO"), "projection.fcs.1"),
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:neuralop")


@pytest.fixture(params=NETWORKS)
def network(request) -> tuple[nn.Module, str]:
    torch.manual_seed(0)
    make, path = NETWORKS[request.param]
    return make(), path


def fields(samples: int = 6) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    grid = 2 * torch.pi * torch.arange(SIDE) / SIDE
    a, b = torch.randn(2, samples, 1, 1, 1, generator=g)
    x = a * torch.sin(grid)[:, None] + b * torch.cos(grid)
    return x, (1 + a.square()) * (x.square() - 0.5 * x.roll(1, 2))


def test_the_layer_at_the_end_becomes_a_solved_one(network):
    model, path = network
    x, y = fields()
    before = model(x)
    head = cf.replace_last_linear(model, example=x, rule=cf.Ridge(1e-6))
    assert isinstance(head, cf.ClosedFormConv1x1)
    assert model.get_submodule(path) is head
    assert torch.allclose(model.eval()(x), before, atol=1e-6)
    assert not any(p is head.weight for p in model.parameters() if p.requires_grad)
    model.train()
    head.observe(y)
    assert F.mse_loss(model(x), y) < 0.9 * F.mse_loss(before, y)


def test_solved_as_the_weighted_least_squares_of_its_features(network):
    """The targets are fields as the model returns them, and the weights one a field: that of the relative error."""
    model, _ = network
    x, y = fields()
    head = cf.replace_last_linear(model, example=x, rule=cf.Ridge(1e-3))
    kept: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, args: kept.append(args[0].detach()))
    weight = 1 / y.square().flatten(1).sum(1)
    head.observe(y, weight / weight.mean())
    model(x)
    handle.remove()
    phi = kept[0].flatten(2).mT.double()
    rows = torch.cat([phi, torch.ones_like(phi[..., :1])], 2) * (weight / weight.mean()).sqrt()[:, None, None]
    targets = y.flatten(2).mT.double() * (weight / weight.mean()).sqrt()[:, None, None]
    A, b = rows.flatten(0, 1), targets.flatten(0, 1)
    exact = torch.linalg.solve(A.T @ A + 1e-3 * torch.eye(A.shape[1], dtype=A.dtype), A.T @ b)
    solved = torch.cat([head.weight, head.bias[:, None]], 1).double().T
    assert (A @ (solved - exact)).norm() < 1e-3 * b.norm()


def test_the_swapped_network_trains(network):
    model, _ = network
    x, y = fields()
    head = cf.replace_last_linear(model, example=x)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    errors = []
    for _ in range(20):
        head.observe(y)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(float(loss.detach()))
    assert errors[-1] < 0.8 * errors[0]
    assert int(head.rejected) == 0
