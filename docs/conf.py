"""The site: `make docs` writes it to build/docs. Nothing in it is loaded from elsewhere, so it can be read offline."""

from __future__ import annotations

import importlib.resources
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml

import closedform

sys.path.insert(0, str(Path(__file__).parent))
import docstrings  # beside this file

project = "closedform"
author = "The closedform developers"
copyright = author
version = release = closedform.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["figures/**"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 3  # as GitHub has them, so that links work in both places
myst_enable_extensions = ["dollarmath", "colon_fence"]
html_math_renderer = "mathml"  # browsers have it built in: no script. The font, which not every system has, is below

default_role = "literal"  # docstrings write code in single backticks
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # a hook of somebody else's class is listed where we say something about it
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"closedform {release}"
# STIX Two Math (SIL Open Font License, which stands in the file itself), as the package ziamath brings it: without a font
# that has a table for mathematics, browsers put indices and exponents at the wrong height
MATH = importlib.resources.files("ziamath.fonts") / "STIXTwoMath-Regular.ttf"
html_static_path = ["_static", str(MATH)]
html_css_files = ["style.css"]
html_js_files = ["copy.js"]
html_copy_source = False
html_show_sphinx = False


def _inline(self: Any, node: Any) -> None:
    self.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(self: Any, node: Any) -> None:
    self.body.append(f"<p>{latex2mathml.tex2mathml(node.astext(), as_block=True)}</p>")
    raise nodes.SkipNode


def _small_figures(app: Any, doctree: Any) -> None:
    """Figures of one or two panels fit on a telephone; the class tells the style sheet."""
    for image in doctree.findall(nodes.image):
        path = Path(app.srcdir, image["uri"])
        width = (
            re.search(r'<svg[^>]* width="([\d.]+)pt"', path.read_text(encoding="utf-8"))
            if path.suffix == ".svg"
            else None
        )
        if width and float(width[1]) < 450:
            image["classes"].append("small")


def setup(app: Any) -> None:
    app.connect("doctree-read", _small_figures)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-process-docstring", docstrings.convert)
