"""The history, read as a stream."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")


from celery_delayq import DelayQ
from celery_delayq.spark.read.history import START_OFFSET, RunsLost
from celery_delayq.spark.read.partitions import plan_runs
from celery_delayq.spark.read.table_rows import TableRows
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.runs import numbered


def test_a_stream_goes_on_where_it_was(delayq: DelayQ, stream: Any) -> None:
    history = delayq.store.history
    history.add("me", 1, 1000, numbered(20))
    assert sorted(stream(batchsize="5")) == sorted(f"id {n}" for n in range(20))
    assert stream() == []

    history.add("me", 2, 1000, numbered(5, start=20))
    assert sorted(stream()) == [f"id {n}" for n in range(20, 25)]


@pytest.mark.nightly
def test_a_stream_begins_after_an_offset(delayq: DelayQ, stream: Any) -> None:
    history = delayq.store.history
    history.add("me", 1, 1000, numbered(3))
    after = history.newest_offset()
    history.add("me", 2, 1000, numbered(3, start=3))

    assert sorted(stream(after=after)) == ["id 3", "id 4", "id 5"]


@pytest.mark.parametrize("onloss", ["warn", pytest.param("fail", marks=pytest.mark.nightly)])
def test_what_was_forgotten_before_it_was_read_is_reported(
    delayq: DelayQ, stream: Any, delayq_redis: RedisUnderTest, onloss: str
) -> None:
    history = delayq.store.history
    history.add("me", 1, 1000, numbered(3))
    stream(onloss=onloss)
    history.add("me", 2, 1000, numbered(5, start=3))
    delayq_redis.client.xtrim("delayq:history", maxlen=2, approximate=False)

    if onloss == "warn":
        assert stream(onloss=onloss) == ["id 6", "id 7"]
    else:
        with pytest.raises(Exception, match="may be lost"):
            stream(onloss=onloss)


@pytest.mark.parametrize("left", [1, 0])
def test_runs_that_are_forgotten_while_they_are_read_are_reported(
    delayq: DelayQ, delayq_redis: RedisUnderTest, left: int
) -> None:
    stores, store, rows = delayq.session.stores, delayq.store, TableRows({"id": "STRING"})
    for n in range(60):
        store.history.add("me", n + 1, 1000, numbered(1, start=n))
        began = store.now_ms()
        while store.now_ms() == began:  # so that parts can be of several ms
            pass
    last = store.history.newest_offset()
    assert last is not None
    parts = plan_runs(stores, {"": START_OFFSET}, {"": last}, 4, 10, "fail")
    assert len(parts) == 4
    found = []

    def read_all() -> None:
        for part in parts:
            for page in part.value[0].pages(stores, rows, 10):
                found.extend(page)
            delayq_redis.client.xtrim("delayq:history", maxlen=left, approximate=False)

    with pytest.raises(RunsLost, match="runs after that may be lost"):
        read_all()
    assert 0 < len(found) < 60


@pytest.mark.nightly
def test_other_tables_are_no_streams(stream: Any) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="cannot be read as a stream"):
        stream(table="scheduled")
