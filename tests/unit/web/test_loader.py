"""Which templates there are, and what they escape."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from celery_delayq.web.loader import alone_loader, flower_loader
from celery_delayq.web.shown import Shown, escaped

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
    shown = Shown("/delayed", timezone.utc, NOW, "", "")
    view = SimpleNamespace(status=SimpleNamespace(phrase=shown.cut(text)), text=text)
    template = alone_loader().load("delayed-error.html")

    page = template.generate(p=shown, view=vars(view)).decode()

    assert page.count(HOSTILE[text]) == 2
    assert text not in page


@pytest.mark.parametrize(("text", "expected"), HOSTILE.items())
def test_what_others_have_named_is_shown_as_text(text: str, expected: str) -> None:
    shown = Shown("/delayed", timezone.utc, NOW, "", "")
    link = shown.link(text, "task", text)

    for found in (escaped(text), shown.lines(text), link.partition(">")[2]):
        assert expected in found
    assert "<" not in escaped(text)
    assert link.startswith('<a href="/delayed/task/%')


def test_an_endless_name_is_no_link() -> None:
    shown = Shown("/delayed", timezone.utc, NOW, "", "")

    assert len(shown.link("x" * 1_000_000, "task", "x" * 1_000_000)) < 200
