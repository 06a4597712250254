"""One self-contained HTML page from any results folder, and the same figures as SVG files.

`write(folder)` makes the page, `static(folder, out_folder)` the pictures. A results folder holds `results.parquet` (see
`closedform.paper.sweeps.results`) and `experiment.json` (see `closedform.paper.report.spec`).
"""

from .figures import static
from .page import write

__all__ = ["static", "write"]
