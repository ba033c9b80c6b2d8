"""Which rows Spark reads: by filters, handed over or not, and by options."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark.conftest import Read
from tests.support.dead_letters import message
from tests.support.runs import numbered

pytestmark = pytest.mark.nightly

FAR = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)


def nothing() -> None:
    """Stand for another task."""


@pytest.fixture
def several(app: Celery, delayq: DelayQ) -> DelayQ:
    add = app.tasks["tasks.add"]
    other = app.task(name="tasks.other", shared=False, typing=False)(nothing)
    for n in range(40):
        task = other if n % 4 == 0 else add
        task.apply_async((n, n), task_id=f"{n:02}", eta=FAR + timedelta(hours=n), queue=f"q{n % 3}")
    return delayq


FILTERS = [
    "due >= timestamp'2030-01-31 12:00:00 UTC'",
    "due > timestamp'2030-01-31 12:00:00 UTC'",
    "due < timestamp'2030-01-31 12:00:00 UTC'",
    "due <= timestamp'2030-01-31 12:00:00 UTC'",
    "due = timestamp'2030-01-31 12:00:00 UTC'",
    "due between timestamp'2030-01-31 12:00:00 UTC' and timestamp'2030-02-01 00:00:00 UTC'",
    "due > timestamp'2030-01-31 12:00:00.0001' and due < timestamp'2030-01-31 14:00:00.000001'",
    "due >= timestamp'2030-01-31 12:00:00 UTC' and task = 'tasks.other' and queue = 'q1'",
    "task = 'tasks.other'",
    "queue = 'q1'",
    "queue in ('q1', 'q2', 'none')",
    "queue = 'q1' and queue = 'q2'",
    "task = 'tasks.add' and task = 'tasks.other'",
]
LEFT = [
    "due < timestamp'1960-01-01 00:00:00 UTC'",
    "due <= timestamp'9999-12-31 23:59:59.999 UTC'",
    "task <> 'tasks.other'",
    "queue like 'q%'",
    "priority = 0",
    "id = '07'",
    "queue is null",
]


def ids_of(frame: Any) -> list[str]:
    return sorted(row.id for row in frame.collect())


@pytest.mark.parametrize("condition", [*FILTERS, *LEFT])
def test_filters_give_the_same_rows_handed_over_or_not(
    spark: Any, several: DelayQ, read: Read, condition: str, request: pytest.FixtureRequest
) -> None:
    plain = ids_of(read("scheduled").where(condition))

    request.getfixturevalue("pushdown")
    pushed = read("scheduled").where(condition)

    assert ids_of(pushed) == plain
    physical = pushed._jdf.queryExecution().executedPlan().toString()
    filters = [line for line in physical.splitlines() if "Filter" in line]
    # Of the filters that are taken only "is not null" is left.
    compared = any(sign in line for line in filters for sign in (" = ", "<", ">", " IN ", "With"))
    if condition in FILTERS:
        assert not compared, physical


@pytest.mark.usefixtures("pushdown")
def test_filters_that_are_handed_over_spare_redis_the_rest(
    several: DelayQ, read: Read, delayq_redis: RedisUnderTest
) -> None:
    def told(condition: str) -> int:
        delayq_redis.client.config_resetstat()
        read("scheduled").where(condition).collect()
        stats = delayq_redis.client.info("commandstats")
        return int(stats["cmdstat_hmget"]["calls"]) if "cmdstat_hmget" in stats else 0

    # One record is read first, then twice as many each time: four times for each queue.
    assert told("priority = 0") == 4 * 3
    assert told("queue = 'q1'") == 4
    assert told("due = timestamp'2030-01-31 12:00:00 UTC'") == 1
    assert told("due < timestamp'2029-01-01 00:00:00 UTC'") == 0
    assert told("task = 'tasks.none'") == 0


def test_options_choose_as_filters_do(several: DelayQ, read: Read) -> None:
    since, until = "2030-01-31T12:00:00", "2030-02-01T02:00:00+02:00"
    chosen = read("scheduled", since=since, until=until, task="tasks.other")
    assert ids_of(chosen) == ["04", "08", "12"]
    assert ids_of(read("scheduled", queue="q1", task="tasks.other")) == ["04", "16", "28"]
    assert ids_of(read("scheduled", schema="id STRING", queue="none")) == []


@pytest.mark.parametrize(
    ("table", "options", "problem"),
    [
        ("none", {}, "'none' is not one of 'scheduled', 'ready', 'leased'"),
        ("scheduled", {"since": "soon"}, "since='soon': expected a datetime"),
        ("scheduled", {"until": "2030-13-01"}, "until='2030-13-01'"),
        ("ready", {"since": "2030-01-01"}, "the table ready is in no order of time"),
        ("periodic", {"queue": "q"}, "the table periodic has no queue"),
        ("scheduled", {"schema": "id INT"}, "id int is no column of the table scheduled"),
        ("scheduled", {"colour": "red"}, "unknown option.*colour"),
    ],
)
def test_wrong_options_say_what_would_be_right(
    delayq: DelayQ, read: Read, table: str, options: dict[str, str], problem: str
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=problem):
        read(table, **options).collect()


def test_where_no_row_is_meant_there_is_none(
    delayq: DelayQ, read: Read, app: Celery, delayq_redis: RedisUnderTest
) -> None:
    delayq.store.history.add("me", 1, 1000, numbered(3))
    delayq.store.dead_letters.add("other", "plain", "late", message("plain", task="other"))
    app.send_task("tasks.add", (1, 2), eta=FAR)
    delayq.run_now(app.send_task("tasks.add", (1, 2), eta=FAR).id)
    delayq_redis.client.lpush("celery", message("not to be run"))

    for table in ("scheduled", "ready", "dead_letters", "history"):
        assert read(table).count() == {"history": 3, "ready": 2}.get(table, 1)
        assert read(table, task="nobody's").collect() == []
    assert read("history", since="2100-01-01").collect() == []
