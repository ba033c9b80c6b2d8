"""A stream from the history into the queue: each run comes to one task, whatever is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import TIMEOUT

pytest.importorskip("pyspark")

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark.driver import Driver
from tests.integration.spark.jobs import follow
from tests.support.runs import finished
from tests.support.skips import need_java

#: In PySpark 4.1 `availableNow` is one batch: after a kill the one that was begun.
IS_ONE_BATCH = find_spec("pyspark.sql.streaming.datasource") is None

BEGIN = datetime(2031, 1, 1, tzinfo=timezone.utc)

Drive = Callable[[], Driver]


@pytest.fixture
def driver(tmp_path: Path) -> Iterable[Drive]:
    """Start drivers, one after the other."""
    need_java()
    drivers: list[Driver] = []

    def start() -> Driver:
        folder = tmp_path / f"driver-{len(drivers)}"
        drivers.append(Driver(folder, "local[2]", {"spark.sql.ansi.enabled": "true"}))
        return drivers[-1].start()

    yield start
    for each in drivers:
        each.kill()


def ended_at(run: int) -> datetime:
    return BEGIN + timedelta(minutes=run)


def add_runs(delayq: DelayQ, runs: Iterable[int], call: int) -> None:
    """Let runs end, as workers tell the history of them."""
    records = [finished(f"run {run}", int(ended_at(run).timestamp() * 1000)) for run in runs]
    delayq.store.history.add("me", call, 100_000, records)


def scheduled(delayq: DelayQ) -> list[tuple[str, datetime]]:
    """Return, by its run, when each task is due."""
    return sorted(((each.kwargs or {})["run"], each.due) for each in delayq.entries())


def expected(runs: Iterable[int]) -> list[tuple[str, datetime]]:
    # A hundred years later, by the calendar.
    return sorted((f"run {run}", ended_at(run).replace(year=BEGIN.year + 100)) for run in runs)


def test_a_stream_that_was_killed_misses_nothing_and_schedules_nothing_twice(
    driver: Drive,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    delayq_broker_url: str,
    tmp_path: Path,
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    first = driver()

    # Given a stream that has read all there was, and what has come later in part.
    add_runs(delayq, range(1000, 1200), call=1)
    first.do(follow, delayq_broker_url, checkpoint)
    assert scheduled(delayq) == expected(range(1000, 1200))
    add_runs(delayq, range(1200, 1700), call=2)
    first.begin(follow, delayq_broker_url, checkpoint, {"ratelimit": "100"})
    wait_until(lambda: delayq.count() >= 300, TIMEOUT, "a part of the second batch")

    # When its driver is killed, and the history has runs that ended earlier, by workers' clocks.
    first.kill()
    assert 300 <= delayq.count() < 700
    add_runs(delayq, range(500, 600), call=3)

    # Then another one goes on where it was: one task for each run.
    second = driver()
    second.do(follow, delayq_broker_url, checkpoint)
    if IS_ONE_BATCH:
        assert scheduled(delayq) == expected(range(1000, 1700))
        second.do(follow, delayq_broker_url, checkpoint)
    assert scheduled(delayq) == expected([*range(500, 600), *range(1000, 1700)])

    # When it goes on without anything new, nothing changes.
    before = delayq_redis.client.hgetall("{celery}:entries")
    second.do(follow, delayq_broker_url, checkpoint)
    assert delayq_redis.client.hgetall("{celery}:entries") == before
    commits = [each.name for each in Path(checkpoint, "commits").iterdir()]
    batches = {int(each) for each in commits if each.isdigit()}
    assert batches >= {0, 1, 2}
