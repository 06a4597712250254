"""Neural networks whose last, linear layer is solved in closed form at every step.

import closedform as cf

head = cf.ClosedFormLinear(512, 12, rule=cf.Proximal(lam=1e3))    # was nn.Linear(512, 12)
for x, y in loader:
    phi = backbone(x)
    head.solve(phi, y)                    # the one new line
    loss = F.mse_loss(head(phi), y)
    opt.zero_grad(); loss.backward(); opt.step()
"""

from . import lambdas, theory, training
from .diagnose import Diagnosis, Diagnostics, diagnose, diagnose_batch
from .head import ClosedFormLinear, replace_last_linear
from .lambdas import per_sample
from .losses import Squared
from .rules import Ema, Kalman, Proximal, Ridge
from .statistics import Statistics, refit_

__version__ = "0.1.0"

__all__ = [
    "ClosedFormLinear",
    "Diagnosis",
    "Diagnostics",
    "Ema",
    "Kalman",
    "Proximal",
    "Ridge",
    "Squared",
    "Statistics",
    "diagnose",
    "diagnose_batch",
    "lambdas",
    "per_sample",
    "refit_",
    "replace_last_linear",
    "theory",
    "training",
]
