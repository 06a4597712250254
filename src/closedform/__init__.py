"""Neural networks whose last, linear layer is solved in closed form at every step.

In a loop:

    import closedform as cf

    head = cf.ClosedFormLinear(512, 12, rule=cf.Proximal(lam=1e3))    # was nn.Linear(512, 12)
    for x, y in loader:
        phi = backbone(x)
        head.solve(phi, y)                    # the one new line
        loss = F.mse_loss(head(phi), y)
        opt.zero_grad(); loss.backward(); opt.step()
"""

from . import probabilities, theory, training
from .conv import ClosedFormConv1x1
from .diagnosis.diagnose import Diagnosis, Diagnostics, diagnose, diagnose_batch
from .head import ClosedFormLinear, replace_last_linear
from .refit import refit_
from .solver import lambdas, losses
from .solver.lambdas import per_sample
from .solver.losses import CrossEntropy, GeneralizedSquared, Huber, Logistic, OneHotSquared, Squared
from .solver.rules import Ema, Kalman, Proximal, Ridge
from .solver.statistics import Statistics

__version__ = "0.1.0"

__all__ = [
    "ClosedFormConv1x1",
    "ClosedFormLinear",
    "CrossEntropy",
    "Diagnosis",
    "Diagnostics",
    "Ema",
    "GeneralizedSquared",
    "Huber",
    "Kalman",
    "Logistic",
    "OneHotSquared",
    "Proximal",
    "Ridge",
    "Squared",
    "Statistics",
    "diagnose",
    "diagnose_batch",
    "lambdas",
    "losses",
    "per_sample",
    "probabilities",
    "refit_",
    "replace_last_linear",
    "theory",
    "training",
]
