"""Which templates there are, and what they escape."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from celery_delayq.web.formatting import Formatter, escaped
from celery_delayq.web.loader import alone_loader, flower_loader

NOW = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)
HOSTILE = {
    "<script>alert(1)</script>": "&lt;script&gt;",
    "\x1b[2J": "\\x1b[2J",
    "\u202etxt.exe": "\\u202etxt.exe",
    "\"'": "&quot;",
    "\udcff": "\\xff",
}


def test_all_templates_can_be_read() -> None:
    folder = Path(__file__).parents[3] / "celery_delayq" / "web" / "templates"
    names = [each.name for each in folder.glob("*.html")]

    for loader in (alone_loader(), flower_loader()):
        for name in names:
            if not name.startswith("delayed-frame"):
                loader.load(name)
        assert loader.load("delayed-frame.html")


@pytest.mark.parametrize("text", HOSTILE)
def test_each_expression_of_a_template_is_escaped(text: str) -> None:
    formatter = Formatter("/delayed", timezone.utc, NOW, "", "")
    view = SimpleNamespace(status=SimpleNamespace(phrase=formatter.cut(text)), text=text)
    template = alone_loader().load("delayed-error.html")

    page = template.generate(p=formatter, view=vars(view)).decode()

    assert page.count(HOSTILE[text]) == 2
    assert text not in page


@pytest.mark.parametrize(("text", "expected"), HOSTILE.items())
def test_what_others_have_named_is_shown_as_text(text: str, expected: str) -> None:
    formatter = Formatter("/delayed", timezone.utc, NOW, "", "")
    link = formatter.link(text, "task", text)

    for found in (escaped(text), formatter.lines(text), link.partition(">")[2]):
        assert expected in found
    assert "<" not in escaped(text)
    assert link.startswith('<a href="/delayed/task/%')


def test_an_endless_name_is_no_link() -> None:
    formatter = Formatter("/delayed", timezone.utc, NOW, "", "")

    assert len(formatter.link("x" * 1_000_000, "task", "x" * 1_000_000)) < 200
