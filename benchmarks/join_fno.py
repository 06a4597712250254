"""Add runs on Burgers' equation to the committed ones, and rebuild their page.

    python benchmarks/join_fno.py runs/fno-2 runs/fno-wider

The folders are of `closedform paper fno`: other batch sizes, or `--wider`. A model that is there already is replaced.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from closedform.paper.experiments import fno
from closedform.paper.report import static
from closedform.paper.report.thin import thin

ROOT = Path(__file__).parents[1]


def main(folders: list[Path], results: Path = ROOT / "results" / "fno") -> None:
    with tempfile.TemporaryDirectory() as scratch:
        whole, small = Path(scratch) / "whole", Path(scratch) / "small"
        fno.join([results, *folders], whole)
        thin(whole, small)
        for path in small.iterdir():
            shutil.copyfile(path, results / path.name)
        if (whole / fno.fno_samples.FILE).is_file():
            shutil.copyfile(whole / fno.fno_samples.FILE, results / fno.fno_samples.FILE)
        curves = static(results, Path(scratch) / "figures")[0]
        shutil.copyfile(curves, ROOT / "docs" / "figures" / "fno" / curves.name)


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
    subprocess.run([sys.executable, ROOT / "benchmarks" / "rebuild.py", ROOT / "docs" / "fno.md"], check=True)
