"""The task of a tick is like any other: it is retried, cancelled, paused, and has options."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from itertools import groupby
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.model.scheduled import Outcome
from celery_delayq.periodic.definition import Overlap
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.policy import upcoming
from celery_delayq.periodic.wall_clock import datetime_of_ms
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.apps.periodic_tasks import Diary, StartWorker, start
from tests.apps.ticking_tasks import again  # noqa: F401, a task of all apps
from tests.support import TIMEOUT
from tests.support.ticking import stored_ticks, ticking


def count(delayq: DelayQ) -> int:
    """Return how often the only entry was fired."""
    [entry] = delayq.periodic.list()
    return entry.total_run_count


def status(delayq: DelayQ, name: str) -> str:
    entry = delayq.periodic.get(name)
    assert entry is not None
    return entry.status


def ticks_until(entry: Periodic, tick: int) -> list[int]:
    """Return all ticks of an entry, as it was, until that one."""
    return [each for each in upcoming(entry, 1000, timezone.utc) if each <= tick]


def test_a_tick_that_retries_holds_back_those_after_it_until_it_has_ended(
    delayq: DelayQ, diary: Diary, travel: TimeTravel
) -> None:
    delayq.periodic.add("again", 0.3, "again", overlap="skip")

    travel.travel(seconds=5)

    runs = diary.runs("id", "retries")[:6]
    attempts = [[retries for _, retries in some] for _, some in groupby(runs, key=lambda r: r[0])]
    assert attempts == [[0, 1]] * 3


def test_ticks_that_retry_do_so_beside_each_other(
    delayq: DelayQ, diary: Diary, travel: TimeTravel
) -> None:
    entry = delayq.periodic.add("again", 0.3, "again", catch_up="all", max_runs=6)

    assert travel.travel(minutes=1) == 12

    ids = [f"again:{tick}" for tick in upcoming(entry, 6, timezone.utc)]
    runs = diary.runs("id", "retries")
    assert sorted(runs) == sorted((id, n) for id in ids for n in (0, 1))
    assert [retries for _, retries in runs[:5]] == [0, 0, 0, 0, 1]


def test_a_tick_that_is_cancelled_before_it_is_due_does_not_run_nor_come_again(
    delayq: DelayQ, diary: Diary, delayq_redis: RedisUnderTest, travel: TimeTravel
) -> None:
    entry = delayq.periodic.add("often", 0.5, "note", catch_up="all")
    travel.drain()
    assert count(delayq) == 4
    gone = stored_ticks(delayq_redis.client)["often"][-2]

    assert delayq.cancel(f"often:{gone}") is Outcome.DONE
    travel.travel(seconds=10)

    ran = diary.ticks("often")
    assert ran == [tick for tick in ticks_until(entry, ran[-1]) if tick != gone]
    assert len(ran) == 19


def test_a_paused_queue_holds_ticks_until_it_is_resumed(
    delayq: DelayQ, diary: Diary, travel: TimeTravel
) -> None:
    entry = delayq.periodic.add("held", 0.3, "note", queue="aside", catch_up="all")
    delayq.pause(queue="aside")
    delayq.periodic.add("other", 0.3, "note", catch_up="all")

    travel.travel(seconds=3)

    assert diary.ticks("held") == []
    held = ticks_until(entry, diary.ticks("other")[-1])
    assert len(held) == 10
    delayq.resume(queue="aside")
    travel.drain()
    assert diary.ticks("held") == held


def test_what_an_entry_says_of_its_message_is_so_in_what_runs(
    delayq: DelayQ, diary: Diary, travel: TimeTravel
) -> None:
    delayq.periodic.add(
        *("told", 0.4, "tell"), catch_up="all",
        queue="aside", priority=3, headers={"x-who": "me"}, expires=90.5,
    )  # fmt: skip

    assert travel.travel(seconds=1.3) == 3

    found = diary.runs("id", "queue", "priority", "headers", "expires", "eta")
    for id, queue, priority, headers, expires, eta in found:
        at = datetime_of_ms(int(id.partition(":")[2]))
        assert (queue, priority, headers) == ("aside", 3, {"x-who": "me"})
        assert datetime.fromisoformat(eta) == at
        assert datetime.fromisoformat(expires) == at + timedelta(seconds=90.5)


def test_what_has_expired_is_not_caught_up(
    app: Celery, delayq: DelayQ, diary: Diary, delayq_worker: StartWorker
) -> None:
    entry = delayq.periodic.add("brief", 0.5, "note", expires=1, catch_up="all")
    with ticking(app):
        wait_until(lambda: count(delayq) >= 4, TIMEOUT, "four are scheduled")
    (first,) = upcoming(entry, 1, timezone.utc)
    diary.wait_past(first / 1000 + 1)
    started = diary.now() * 1000
    start(delayq_worker)

    wait_until(lambda: diary.ticks("brief"), TIMEOUT, "one is in time")

    assert diary.ticks("brief")[0] > started - 1000


def test_a_run_manual_does_not_use_up_the_number_of_runs(
    delayq: DelayQ, diary: Diary, travel: TimeTravel
) -> None:
    entry = delayq.periodic.add("thrice", 0.5, "note", max_runs=3, catch_up="all")
    manual = [delayq.periodic.run_now("thrice") for _ in range(2)]

    assert travel.travel(seconds=5) == 5

    ticks = [f"thrice:{tick}" for tick in upcoming(entry, 5, timezone.utc)]
    assert len(ticks) == 3
    assert sorted(diary.runs("id")) == sorted([*ticks, *map(str, manual)])
    [ended] = delayq.periodic.list()
    assert (ended.status, ended.total_run_count) == ("ended", 5)


@pytest.mark.parametrize(("overlap", "ran"), [("skip", [0]), ("queue_one", [0, 3])])
def test_while_one_runs_no_other_does(
    overlap: Overlap, ran: list[int], delayq: DelayQ, diary: Diary, delayq_worker: StartWorker
) -> None:
    """There are four ticks, and the task of the first one runs until all of them have passed."""
    periodic = delayq.periodic
    periodic.add("clock", 0.3, "note")
    start(delayq_worker, concurrency=4)
    wait_until(lambda: diary.ticks("clock"), TIMEOUT, "the worker runs ticks")
    begins = datetime.fromtimestamp(math.ceil(diary.now()), timezone.utc)
    ends = begins + timedelta(seconds=4)
    periodic.add("slow", 1, "note", kwargs={"do": "wait"}, overlap=overlap, start=begins, end=ends)
    ticks = [round(begins.timestamp() * 1000) + 1000 * n for n in range(1, 5)]

    # Beside it others run.
    wait_until(lambda: diary.ticks("clock")[-1] > ticks[-1] + 1000, TIMEOUT, "all have passed")
    assert diary.ticks("slow") == ticks[:1]
    assert status(delayq, "slow") == ("ended" if overlap == "skip" else "on")

    for _ in ran:
        diary.client.rpush("go", "")
    wait_until(lambda: len(diary.ticks("slow")) == len(ran), TIMEOUT, f"{len(ran)} have run")
    wait_until(lambda: status(delayq, "slow") == "ended", TIMEOUT, "it is over")
    periodic.remove("clock")
    diary.wait_empty()

    assert diary.ticks("slow") == [ticks[n] for n in ran]


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ({"catch_up": "skip"}, 0),
        ({"catch_up": "one"}, 1),
        ({"catch_up": "all"}, 20),
        ({"catch_up": "all", "catch_up_max": 3}, 3),
    ],
)
def test_ticks_that_were_missed_while_no_worker_was_there(
    options: dict[str, Any], last: int, delayq: DelayQ, diary: Diary, delayq_worker: StartWorker
) -> None:
    periodic = delayq.periodic
    begins = datetime.fromtimestamp(math.ceil(diary.now()) + 1, timezone.utc)
    ends = begins + timedelta(seconds=2)
    periodic.add("a", 0.1, "note", start=begins, end=ends, **options)
    missed = [round(begins.timestamp() * 1000) + 100 * n for n in range(1, 21)]
    diary.wait_past(ends.timestamp() + 1.1)

    start(delayq_worker)
    wait_until(lambda: status(delayq, "a") == "ended", TIMEOUT, "all is looked at")
    diary.wait_empty()

    assert diary.ticks("a") == missed[20 - last :]
