"""Fixtures that several tests of the command line share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing import WorkerProcess, wait_until
from tests.support.cli import CommandLine
from tests.support.dead_letters import details, message, stored

#: Characters that steer a terminal.
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e]")
#: Sets a title, clears the screen, looks like markup, and turns the direction of text.
HOSTILE = "\x1b]0;stolen\x07\x1b[2J[red]a b\r\n\x9b31m\u202e'"
#: The tasks of the app.
TASKS = ("shop.mail", "shop.bill", "shop.report", "shop.remind")


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stand for any task."""


@pytest.fixture
def cli(app: Celery) -> CommandLine:
    for name in TASKS:
        app.task(name=name, shared=False)(_nothing)
    return CommandLine(app)


@pytest.fixture
def four_dead_letters(delayq: DelayQ) -> None:
    """Four dead letters that died a day, an hour, a minute and a second ago."""
    now = delayq.store.now_ms()
    keep = delayq.store.dead_letters.restore
    kinds = (
        ("nine", "celery", "shop.mail", 86_400, "Timeout", "root-1", None),
        ("ten", "celery", "shop.mail", 3600, "Declined", "root-1", "group-1"),
        ("eleven", "bills", "shop.bill", 60, "Timeout", None, "group-1"),
        ("twelve", "bills", "shop.bill", 1, None, None, None),
    )
    for id, queue, task, ago, exception, root, group in kinds:
        died = now - ago * 1000
        reason = f"failed after 3 retries: {exception}" if exception else "killed its worker"
        told = details(exception) if exception else b""
        data = stored(died, reason, message(id, task, root_id=root, group=group), told)
        keep(queue, [(id, died, data)])


@pytest.fixture
def napper(app: Celery, delayq_worker: Callable[..., WorkerProcess]) -> Iterator[str]:
    """The id of a task that runs for a minute."""
    worker = delayq_worker("tests.apps.stock_tasks:app", pool="threads", concurrency=1)
    app.send_task("stock.nap", (60,), task_id="napper", countdown=0.01)
    wait_until(lambda: "napping" in worker.log, what="it runs")
    yield "napper"
    worker.kill()


def dead_ids(delayq: DelayQ) -> list[str]:
    return [dead_letter.id for dead_letter in delayq.dead_letters()]
