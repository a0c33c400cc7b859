"""How the documentation is built: `make docs`."""

from __future__ import annotations

import re

from difformer import __version__

project = "difformer"
author = "the authors of difformer"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["notebooks/*.ipynb"]

html_theme = "alabaster"
html_title = f"difformer {__version__}"
html_static_path: list[str] = []
html_theme_options = {
    "description": "Learning by energy-constrained diffusion",
    "fixed_sidebar": True,
    "page_width": "1080px",
    "sidebar_width": "240px",
}
html_sidebars = {"**": ["about.html", "navigation.html", "searchbox.html"]}

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shapes"]

# Docstrings are written to be read as they are: ||z|| is a norm and *_ is a name, not markup.
_MARKUP = re.compile(r"(``[^`]*``|:math:`[^`]*`|`[^`]*`)")


def _plain_norms(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Escapes bars and stars outside of mathematics, literals and indented blocks."""
    inside = False
    for place, line in enumerate(lines):
        if line.strip() and not line.startswith((" ", "\t")):
            inside = False
        if line.startswith(".. "):
            inside = True
        if inside or line.lstrip().startswith((":math:", ">>>", "...")):
            continue
        parts = _MARKUP.split(line)
        parts[::2] = [
            re.sub(r"(?<!\\)([|*])", r"\\\1", part) if not part.startswith("*") else part for part in parts[::2]
        ]
        lines[place] = "".join(parts)


def _tables_of_results(app: object, document: str, source: list[str]) -> None:
    """Links to tables outside of the documentation become downloads."""
    source[0] = re.sub(r"(?<!!)\[([^]]*)\]\((\.\./results/[^)]*\.md)\)", r"[\1](path:\2)", source[0])


def setup(app: object) -> None:
    app.connect("source-read", _tables_of_results)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", _plain_norms, priority=400)  # type: ignore[attr-defined]
