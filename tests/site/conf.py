"""Configuration of Sphinx."""

from typing import Any

from celery_delayq import __version__

project = "celery_delayq"
author = "The celery_delayq authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
html_theme = "furo"
html_title = f"celery_delayq {release}"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["versions.css"]
html_js_files = [("versions.js", {"defer": "defer"})]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
# Links inside of pages are those of a forge: by the text of a heading.
myst_heading_anchors = 4
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_member_order = "alphabetical"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
suppress_warnings = [
    "misc.highlighting_failure",  # examples leave parts out as "…"
    "ref.python",  # a class has several public names
]


def setup(app: Any) -> None:
    """Connect what changes texts before Sphinx reads them."""
    app.connect("sphinx-click-process-description", show_examples_as_code)


def show_examples_as_code(_app: Any, _context: Any, lines: list[str]) -> None:
    """Make a literal block of each part of a help text that click does not wrap."""
    changed: list[str] = []
    is_code = False
    for line in lines:
        if line.startswith("|"):
            changed += [] if is_code else ["", "::", ""]
            changed.append(f"    {line[2:]}")
        else:
            changed += [""] if is_code else []
            changed.append(line.replace("*", r"\*"))
        is_code = line.startswith("|")
    lines[:] = changed
