"""An ETA without a time zone is UTC. A warning says so where periodic entries differ."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.model.scheduled import Filter
from celery_delayq.utils import once
from tests.integration.aio.conftest import DEAD
from tests.integration.conftest import MakeApp

NAIVE = datetime(2040, 7, 1, 9)
LATER = NAIVE.replace(tzinfo=timezone.utc)
TEXT = "An eta without a time zone is read as UTC, and not in the app's zone (Europe/Berlin)"


def replay(delayq: DelayQ, eta: Any) -> None:
    delayq.store.dead_letters.add("celery", "dead", "broken", DEAD)
    delayq.replay("dead", eta=eta)


#: Each call that takes an ETA.
CALLS: dict[str, Callable[[DelayQ, Any], Any]] = {
    "apply_async": lambda delayq, eta: delayq.app.tasks["tasks.add"].apply_async((1, 2), eta=eta),
    "send_task": lambda delayq, eta: delayq.app.send_task("tasks.add", (1, 2), eta=eta),
    "schedule_many": lambda delayq, eta: delayq.schedule_many(
        [{"args": (1, 2), "eta": each} for each in (LATER, eta)], task="tasks.add"
    ),
    "reschedule": lambda delayq, eta: delayq.reschedule("there", eta=eta),
    "reschedule_all": lambda delayq, eta: delayq.reschedule_all(Filter(), eta=eta, everything=True),
    "replay": replay,
}


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    once.warn_once.cache_clear()
    caplog.set_level(logging.WARNING)
    return lambda: [each.message for each in caplog.records if "eta" in each.message]


@pytest.mark.parametrize("eta", [NAIVE, NAIVE.isoformat()], ids=["datetime", "text"])
@pytest.mark.parametrize("name", CALLS)
def test_one_warning_where_the_zone_of_the_app_is_another(
    name: str, eta: Any, make_app: MakeApp, redis: Redis, warnings: Callable[[], list[str]]
) -> None:
    delayq = DelayQ.of(make_app(timezone="Europe/Berlin"))
    delayq.app.send_task("tasks.add", (1, 2), countdown=60, task_id="there")

    CALLS[name](delayq, LATER)
    assert warnings() == []
    for _ in range(2):
        CALLS[name](delayq, eta)

    [text] = warnings()
    assert text.startswith(TEXT)
    assert LATER in {each.due for each in delayq.entries()}


@pytest.mark.parametrize("name", CALLS)
def test_no_warning_in_an_app_of_utc(
    name: str, make_app: MakeApp, redis: Redis, warnings: Callable[[], list[str]]
) -> None:
    delayq = DelayQ.of(make_app())
    delayq.app.send_task("tasks.add", (1, 2), countdown=60, task_id="there")

    CALLS[name](delayq, NAIVE)

    assert warnings() == []


def test_these_are_all_calls_that_take_an_eta() -> None:
    taking = {
        name
        for owner in (Celery, DelayQ, AsyncDelayQ)
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_") and "eta" in inspect.signature(method).parameters
    }

    assert {"send_task", "reschedule", "reschedule_all", "replay"} == taking
    assert taking < CALLS.keys()
