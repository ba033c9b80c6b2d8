"""Each page has a template, and a row in the docs."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from celery_delayq.web.pages import PAGES

DOCS = Path(__file__).parents[3] / "docs" / "flower.md"
#: Paths of pages in a row of the docs, such as ``/delayed/task/ID``.
ROW = re.compile(r"^\| `/delayed(?:/(\w+))?(?:/ID)?` \|", re.MULTILINE)


def test_each_page_has_a_template() -> None:
    folder = files("celery_delayq.web").joinpath("templates")

    assert [name for name in PAGES if not folder.joinpath(f"delayed-{name}.html").is_file()] == []


def test_each_page_has_a_row_in_the_docs() -> None:
    rows = {name or "overview" for name in ROW.findall(DOCS.read_text("utf-8"))}

    assert rows == {*PAGES} - {"job"}
