"""Parts that Spark reads side by side: each entry once, and nothing left behind."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

import pytest

pytest.importorskip("pyspark")

from celery import Celery

from celery_delayq import DelayQ, Filter
from celery_delayq.spark.read.filters import RowFilter
from celery_delayq.spark.read.partitions import plan
from celery_delayq.spark.read.table_rows import TableRows
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark.conftest import Read

FAR = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)


def later(days: int) -> datetime:
    return FAR + timedelta(days=days, microseconds=days)


def test_what_stays_is_read_exactly_once_while_others_come_and_go(
    app: Celery, delayq: DelayQ, read: Read
) -> None:
    number = 50_000
    items = ({"id": f"e{n}", "args": (n, n), "eta": later(n % 1000)} for n in range(number))
    delayq.schedule_many(items, task=app.tasks["tasks.add"])
    stays = {f"e{n}" for n in range(number) if n % 10}
    done = threading.Event()

    def disturb() -> None:
        going = iter(range(0, number, 10))
        added = 0
        while not done.is_set():
            delayq.cancel_ids([f"e{n}" for n, _ in zip(going, range(100), strict=False)])
            more = ({"id": f"n{added + n}", "args": (1, 1), "eta": later(n)} for n in range(100))
            delayq.schedule_many(more, task=app.tasks["tasks.add"])
            added += 100

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        found = read("scheduled", schema="id STRING", partitions=7)
        ids = [row.id for row in found.collect()]
    finally:
        done.set()
        thread.join()

    assert found.rdd.getNumPartitions() in (7, 8)
    assert len(ids) == len(set(ids))
    assert stays <= set(ids)


@pytest.mark.parametrize("task", [None, "tasks.add"])
@pytest.mark.parametrize("by", [10, 3600, -3600, 86_400 * 10])
def test_what_is_moved_while_parts_are_read_is_in_one_of_them(
    app: Celery, delayq: DelayQ, by: int, task: str | None
) -> None:
    ids = [f"e{n:03}" for n in range(300)]
    items = ({"id": id, "args": (1, 1), "eta": later(n)} for n, id in enumerate(ids))
    delayq.schedule_many(items, task=app.tasks["tasks.add"])
    stores = delayq.session.stores
    tasks = None if task is None else frozenset({task})
    parts = plan(stores, RowFilter("scheduled", tasks=tasks), 6, 1)
    rows = TableRows({"id": "STRING"})

    found: list[str] = []
    for part in parts:
        for each in part.value:
            for page in each.pages(stores, rows, 20):
                found += [row["id"] for row in page]
                delayq.reschedule_all(Filter(task="tasks.add"), by=by)

    assert len(parts) == 6
    assert sorted(found) == ids


def test_many_entries_of_one_moment_are_cut_as_well(
    app: Celery, delayq: DelayQ, read: Read
) -> None:
    items = ({"id": f"e{n}", "args": (n, n), "eta": FAR} for n in range(5_000))
    delayq.schedule_many(items, task=app.tasks["tasks.add"])

    by_due = read("scheduled", schema="id STRING", partitions=5, batchsize=100)
    by_task = read("scheduled", schema="id STRING", partitions=5, batchsize=100, task="tasks.add")

    for found in (by_due, by_task):
        assert found.rdd.getNumPartitions() == 5
        assert sorted(row.id for row in found.collect()) == sorted(f"e{n}" for n in range(5_000))


def test_plans_hold_no_entries(app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest) -> None:
    items = ({"id": f"e{n}", "args": (n, n), "eta": later(n)} for n in range(3_000))
    delayq.schedule_many(items, task=app.tasks["tasks.add"])
    delayq_redis.client.config_resetstat()

    parts = plan(delayq.session.stores, RowFilter("scheduled"), 8, 1)

    assert len(parts) == 8
    stats = delayq_redis.client.info("commandstats")
    assert stats["cmdstat_zrange"]["calls"] == 7
    assert not {"cmdstat_hmget", "cmdstat_evalsha", "cmdstat_eval"} & stats.keys()


def test_an_empty_redis_is_read_as_no_rows(read: Read) -> None:
    for table in ("scheduled", "ready", "leased", "dead_letters", "periodic", "history"):
        assert read(table).collect() == []
