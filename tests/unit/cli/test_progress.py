"""Bars of commands: how much is done, and when it ends."""

from __future__ import annotations

import io
import itertools
import re
from datetime import datetime, timedelta
from typing import Any

import click
import pytest
from rich.console import Console

from celery_delayq.cli import delayq, screen


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a command writes to a terminal, where each look at the clock takes ten seconds."""
    written = io.StringIO()
    seconds = itertools.count(step=10)

    def console(**_: Any) -> Console:
        return Console(
            file=written,
            force_terminal=True,
            width=120,
            color_system=None,
            get_time=lambda: float(next(seconds)),
        )

    monkeypatch.setattr(screen, "console", console)
    return written


def test_a_bar_tells_the_step_and_the_time_of_day_at_which_it_ends(
    terminal: io.StringIO,
) -> None:
    with click.Context(delayq), screen.progress_bar(description="cancel") as bar:
        for done in range(0, 60, 20):
            bar(100, done, "find")
        for done in range(0, 60, 20):
            bar(100, done)

    shown = terminal.getvalue()
    assert re.search(r"find .*40/100", shown)
    [*_, last] = re.findall(r"cancel .*40/100 .*ends (\d\d:\d\d:\d\d)", shown)
    end = datetime.combine(datetime.now(), datetime.strptime(last, "%H:%M:%S").time())
    ahead = (end - datetime.now()) % timedelta(days=1)
    assert timedelta(0) < ahead < timedelta(hours=2)


def test_with_json_there_is_no_bar(terminal: io.StringIO) -> None:
    with click.Context(delayq) as context:
        context.meta[screen.JSON_KEY] = True
        with screen.progress_bar() as bar:
            bar(10, 5)

    assert terminal.getvalue() == ""
