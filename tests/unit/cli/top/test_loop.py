"""The loop of `top`: what is read again, without a terminal and a server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from rich.text import Text

from celery_delayq.cli.top.frame import Frame, Request
from celery_delayq.cli.top.loop import Top
from celery_delayq.model.scheduled import ScheduledTask
from celery_delayq.web.pages.scheduled import Row, Scheduled
from celery_delayq.web.site import Texts

NOW = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)
#: The pages of a search by their cursors: the cursor of the next one.
NEXT: dict[str | None, str | None] = {None: "a", "a": "b", "b": None}


class FakeTerminal:
    """Presses keys, each after a text is shown; ends when all were pressed."""

    size = (80, 24)

    def __init__(self, *steps: tuple[str, Any]) -> None:
        self._steps = [*steps]
        self._has_news = threading.Event()
        self.text = ""

    def keys(self, seconds: float) -> Sequence[str]:
        self._has_news.wait(min(seconds, 0.05))
        self._has_news.clear()
        if not self._steps:
            return ["q"]
        shown, act = self._steps[0]
        if shown not in self.text:
            return []
        del self._steps[0]
        return (act() or []) if callable(act) else [*act]

    def wake(self) -> None:
        self._has_news.set()

    def show(self, lines: Sequence[Text]) -> None:
        self.text = "\n".join(line.plain for line in lines)


def row(id: str) -> Row:
    task = ScheduledTask(id, "shop.mail", "celery", "scheduled", NOW, 0, "", "", {}, id)
    return Row(task, Texts("('ada',)", "{}"))


def test_a_search_that_has_moved_on_begins_again_at_each_refresh() -> None:
    """A match on an earlier page appears, and what was found stays meanwhile."""
    found: dict[str | None, list[Row]] = {"b": [row("later")]}

    def read(request: Request) -> Frame:
        cursor = request.place.cursor
        fields = {"argument": "ada"} if request.place.filter else {}
        rows = found.get(cursor, []) if fields else []
        view = Scheduled(NOW, fields, fields, rows, 3, NEXT[cursor] if fields else None, 1)
        return Frame(request, 0.0, NOW, tasks=view)

    def add() -> None:
        found[None] = [row("earlier")]

    terminal = FakeTerminal(
        ("delayq top", "t"),
        ("all queues", ["/", *"ada", "enter"]),
        ("later", add),
        ("earlier", ""),
    )
    top = Top(terminal, read, 0.01, "redis://host/0", threading.Event())  # type: ignore[arg-type]
    top.run()

    assert "earlier" in terminal.text
