"""Neural networks whose last, linear layer is solved in closed form at every step.

In a loop:

    import closedform as cf

    head = cf.ClosedFormLinear(512, 12)       # was nn.Linear(512, 12)
    for x, y in loader:
        phi = backbone(x)
        head.solve(phi, y)                    # the one new line
        loss = F.mse_loss(head(phi), y)
        opt.zero_grad(); loss.backward(); opt.step()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import probabilities, theory, training
    from .conv import ClosedFormConv1x1
    from .diagnosis.diagnose import Diagnosis, Diagnostics, diagnose, diagnose_batch
    from .head import ClosedFormLinear, replace_last_linear
    from .refit import refit_
    from .solver import lambdas, losses
    from .solver.auto import Auto
    from .solver.lambdas import per_sample
    from .solver.losses import CrossEntropy, GeneralizedSquared, Huber, Logistic, OneHotSquared, Squared
    from .solver.rules import Ema, Kalman, Proximal, Ridge
    from .solver.statistics import Statistics

__version__ = "0.1.0"

__all__ = [
    "Auto",
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

_MODULES = {
    "lambdas": "solver.lambdas",
    "losses": "solver.losses",
    "probabilities": "probabilities",
    "theory": "theory",
    "training": "training",
}
_NAMES = {
    "conv": ("ClosedFormConv1x1",),
    "diagnosis.diagnose": ("Diagnosis", "Diagnostics", "diagnose", "diagnose_batch"),
    "head": ("ClosedFormLinear", "replace_last_linear"),
    "refit": ("refit_",),
    "solver.auto": ("Auto",),
    "solver.lambdas": ("per_sample",),
    "solver.losses": ("CrossEntropy", "GeneralizedSquared", "Huber", "Logistic", "OneHotSquared", "Squared"),
    "solver.rules": ("Ema", "Kalman", "Proximal", "Ridge"),
    "solver.statistics": ("Statistics",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A name is imported when it is first used, so that the command line answers before torch is there."""
    if name in _MODULES:
        value = import_module(f".{_MODULES[name]}", __name__)
    elif name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
