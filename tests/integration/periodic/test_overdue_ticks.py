"""Ticks that were scheduled ahead and whose time passed while nobody ran.

What ``catch_up``, a deadline, a removal and a deploy say of ticks that were missed holds for these
too. All cells are entries of one Redis, and one worker starts in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_delayq import DelayQ
from celery_delayq.periodic.policy import GRACE_MS
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import Diary, StartWorker, start
from tests.integration.periodic.conftest import MakeShop
from tests.integration.periodic.test_dispatchers import write_due
from tests.integration.periodic.versions import deploy
from tests.support import TIMEOUT
from tests.support.ticking import stored_ticks, ticking

pytestmark = pytest.mark.each_server

#: Seconds between ticks: with the one no later tick is missed, with the other some are.
RARE, OFTEN = 3600.0, 1.5

#: ms from the time of the ticks to the start of the worker: longer than a fleet without a
#: dispatcher may seem to have one (``dispatch/next_queue.lua``).
AWAY = 5_000

#: ms from the writing of entries to their tick, and how often another tick is tried.
LEAD, ATTEMPTS = 3_000, 10

CATCH_UPS = ("skip", "one", "all")


@dataclass
class Cell:
    """An entry, and whether its tick that was scheduled ahead runs."""

    schedule: Any
    catch_up: str
    runs: bool
    in_code: bool = False
    then: Callable[[DelayQ, str], object] = lambda _delayq, _name: None


def remove(delayq: DelayQ, name: str) -> None:
    delayq.periodic.remove(name)


def pause(delayq: DelayQ, name: str) -> None:
    delayq.periodic.pause(name)


CELLS = {
    **{f"rare {each}": Cell(RARE, each, runs=each != "skip") for each in CATCH_UPS},
    **{f"often {each}": Cell(OFTEN, each, runs=each == "all") for each in CATCH_UPS},
    **{f"cron {each}": Cell(crontab(0, 0), each, runs=False) for each in CATCH_UPS},
    **{f"removed {each}": Cell(RARE, each, runs=False, then=remove) for each in CATCH_UPS},
    **{f"paused {each}": Cell(RARE, each, runs=False, then=pause) for each in CATCH_UPS},
    **{f"gone {each}": Cell(RARE, each, runs=False, in_code=True) for each in CATCH_UPS},
}

#: The first setting has no effect, and workers say so.
CONF = {"beat_sync_every": 3, "beat_cron_starting_deadline": (AWAY - 2 * GRACE_MS) / 1000}


def test_what_was_scheduled_ahead_is_judged_as_what_was_missed(
    make_shop: MakeShop, delayq_redis: RedisUnderTest, delayq_worker: StartWorker, diary: Diary
) -> None:
    def given(cell: Cell) -> dict[str, Any]:
        return {"task": "note", "schedule": cell.schedule, "catch_up": cell.catch_up}

    in_code = {name: given(cell) for name, cell in CELLS.items() if cell.in_code}
    before = make_shop("periodic", "UTC", **in_code)
    before.conf.update(CONF)
    delayq = DelayQ.of(before)
    deploy(before)
    for name, cell in CELLS.items():
        if not cell.in_code:
            delayq.periodic.add(name, **given(cell))
    tick = schedule_ahead(before, delayq_redis)
    wait_until(lambda: delayq.store.now_ms() > tick + AWAY, TIMEOUT, "all are overdue")
    for name, cell in CELLS.items():
        cell.then(delayq, name)

    began = delayq.store.now_ms()
    worker = start(delayq_worker, conf=CONF)
    worker.wait_log("beat_sync_every: no effect")

    for name, cell in CELLS.items():
        diary.wait_ticks(name, int(cell.runs or name.startswith("often")))
    wait_until(lambda: delayq.periodic.get("gone one") is None, TIMEOUT, "the deploy")
    diary.wait_ticks("often all", 6)
    assert {name: tick in diary.ticks(name) for name in CELLS} == {
        name: cell.runs for name, cell in CELLS.items()
    }
    for name in ("rare one", "rare all"):
        assert diary.ticks(name) == [tick]
    assert min(diary.ticks("often skip")) > began - GRACE_MS
    assert min(diary.ticks("often one")) > began - GRACE_MS - OFTEN * 1000, (
        "not the last one missed"
    )


def schedule_ahead(app: Celery, delayq_redis: RedisUnderTest) -> int:
    """Have a runner schedule one tick of all entries, and return the tick.

    On a busy machine the runner may come too late and fire the tick. Then another one is tried.
    """
    delayq = DelayQ.of(app)
    for _ in range(ATTEMPTS):
        delayq.store.next_queue()  # somebody dispatches until now
        tick = delayq.store.now_ms() + LEAD
        for entry in delayq.periodic.list():
            write_due(delayq, entry, tick)
        if is_scheduled_ahead(app, delayq_redis, tick):
            return tick
        delayq.store.purge("celery")
    raise AssertionError("no tick was scheduled ahead")


def is_scheduled_ahead(app: Celery, delayq_redis: RedisUnderTest, tick: int) -> bool:
    store, client = DelayQ.of(app).store, delayq_redis.client

    def is_ahead() -> bool:
        ticks = stored_ticks(client)
        return not client.llen("celery") and all(tick in ticks.get(name, []) for name in CELLS)

    with ticking(app):
        wait_until(lambda: is_ahead() or store.now_ms() >= tick, TIMEOUT, "the ticks")
    return is_ahead()
