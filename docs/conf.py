"""The site: `make docs` writes it to build/docs. Nothing in it is loaded from elsewhere, so it can be read offline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
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
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"  # browsers have it built in: no script, no fonts

default_role = "literal"  # docstrings write code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"closedform {release}"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False


def _inline(self: Any, node: Any) -> None:
    self.body.append(latex2mathml.tex2mathml(node.astext()))
    raise SkipNode


def _block(self: Any, node: Any) -> None:
    self.body.append(f"<p>{latex2mathml.tex2mathml(node.astext(), as_block=True)}</p>")
    raise SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-process-docstring", docstrings.convert)
