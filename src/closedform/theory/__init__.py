"""The paper's theory, runnable: every statement is a small function that a test checks and a figure shows.

| paper | here |
|---|---|
| Figure 1, `f(x) = W relu(theta x)` and the curve `W*(theta)` | `landscape.Landscape` |
| Propositions 3.1 and 4.1, no gradient through the solution; second derivatives differ | `envelope_gap`, `hessians` |
| Theorem 5.1, the loss as a functional of the features (eq. 38 to 43) | `critical_points` |
| Theorem 5.2, kernels of wide networks and the flow of eq. 46 and 47 | `ntk`, `flow`, `finite` |
| Theorem 5.3, what a gradient step loses against the closed form | `one_step` |
| Appendix B, the Kalman reading | `kalman` |

Rows are samples: `phi (n, d)`, `Y (n, o)`, `W (o, d)`, no bias unless the caller adds a column of ones. Everything is
computed in float64, whatever comes in. Only the flows need scipy (`pip install 'closedform[theory]'`), and only when they
are called.
"""

from . import critical_points, finite, flow, kalman, landscape, ntk
from .envelope import EnvelopeGap, envelope_gap, hessians
from .one_step import OneStep, one_step

__all__ = [
    "EnvelopeGap",
    "OneStep",
    "critical_points",
    "envelope_gap",
    "finite",
    "flow",
    "hessians",
    "kalman",
    "landscape",
    "ntk",
    "one_step",
]
