"""A small network with a head, as a module of Lightning. The import of Lightning, which is slow, is the caller's."""

import torch
from torch.nn import functional as F

import closedform as cf

STEPS = 8


def net(rule=None, seed=0, dtype=torch.float64, **kwargs):
    torch.manual_seed(seed)
    body = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh()).to(dtype)
    rule = cf.Kalman(0.9, lam=1.0) if rule is None else rule
    return torch.nn.Sequential(body, cf.ClosedFormLinear(6, 2, rule=rule, dtype=dtype, **kwargs))


def module(L, model, **methods):
    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x)

        def training_step(self, batch, _):
            x, y = (batch["x"], batch["t"]) if isinstance(batch, dict) else batch[:2]
            return F.mse_loss(self(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return type("Module", (Module,), methods)()
