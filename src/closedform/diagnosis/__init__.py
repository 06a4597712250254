"""What the layer is doing: measures, advice, text and plot."""

from .diagnose import Diagnosis, Diagnostics, diagnose, diagnose_batch

__all__ = ["Diagnosis", "Diagnostics", "diagnose", "diagnose_batch"]
