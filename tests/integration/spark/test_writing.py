"""Each row of Spark becomes one task, however often it is written."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery_delayq import DelayQ
from celery_delayq.spark.session import setting
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark.conftest import Write
from tests.integration.spark.flights import NOON, OPTIONS, SCHEMA, calls, expected, flight, flights
from tests.support.scene import Scene, StartWorker, start_worker


def said(new: int = 0, kept: int = 0, replaced: int = 0, refused: int = 0) -> dict[str, Any]:
    sums = {"new": new, "kept": kept, "replaced": replaced, "refused": refused}
    return {"task": "mail.remind", "state": "committed", **sums}


# -- one row, one task


def test_each_row_is_a_scheduled_task_once(
    write: Write, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    rows = flights(1200)
    assert write(rows[::2]) == said(new=600)

    assert write(rows) == said(new=600, kept=600)
    assert calls(delayq) == expected(*rows)
    before = delayq_redis.client.hgetall("{celery}:entries")
    assert write(rows) == said(kept=1200)
    assert delayq_redis.client.hgetall("{celery}:entries") == before


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_the_zone_of_the_session_plays_no_part(
    write: Write, spark: Any, delayq: DelayQ, delayq_redis: RedisUnderTest, zone: str
) -> None:
    noon = int(NOON.timestamp())
    rows = spark.range(40).selectExpr(
        f"timestamp_seconds({noon} - id) AS flight",
        f"timestamp_seconds({noon} + id) AS remind_at",
        f"array(timestamp_seconds({noon} + 2 * id)) AS gate",
    )
    assert write(rows, onconflict="replace") == said(new=40)
    before = delayq_redis.client.hgetall("{celery}:entries")
    assert {each.due for each in delayq.entries()} == {
        NOON + timedelta(seconds=n) for n in range(40)
    }

    # Neither ids nor what tells whether a row has changed are others.
    with setting(spark, "spark.sql.session.timeZone", zone):
        assert write(rows, onconflict="replace") == said(kept=40)
    assert delayq_redis.client.hgetall("{celery}:entries") == before


@pytest.mark.parametrize(
    ("onconflict", "told", "gate"),
    [("keep", said(kept=40), "B7"), ("replace", said(replaced=40), "C1")],
)
def test_a_row_that_has_changed_is_kept_or_replaced(
    write: Write, delayq: DelayQ, onconflict: str, told: dict[str, Any], gate: str
) -> None:
    write(flights(40))

    assert write(flights(40, gate="C1"), onconflict=onconflict) == told
    assert calls(delayq) == expected(*flights(40, gate=gate))


def test_a_row_that_is_there_later_goes_to_the_later_time(write: Write, delayq: DelayQ) -> None:
    write([("UA1", NOON, "B7", 1), ("UA2", NOON, "B7", 1)])
    later, earlier = NOON + timedelta(hours=1), NOON - timedelta(hours=1)

    write([("UA1", later, "B7", 1), ("UA2", earlier, "B7", 1)], onconflict="later")
    assert calls(delayq) == expected(("UA1", later, "B7", 1), ("UA2", NOON, "B7", 1))


def test_a_row_that_is_there_may_be_an_error(write: Write, delayq: DelayQ) -> None:
    write(flights(3))

    with pytest.raises(Exception, match=r"\d row\(s\) cannot be scheduled: .*mail.remind:UA"):
        write(flights(3, gate="C1"), onconflict="error")
    assert calls(delayq) == expected(*flights(3))


@pytest.mark.nightly
def test_one_key_twice_in_a_frame_is_one_task(write: Write, delayq: DelayQ) -> None:
    row = flight(0)

    assert write([row, row, row]) == said(new=1, kept=2)
    assert calls(delayq) == expected(row)


def test_queue_and_priority_are_those_of_the_options(write: Write, delayq: DelayQ) -> None:
    write(flights(3), queue="mail", priority="3")

    [entry, *_] = delayq.list(queue="mail")
    assert (delayq.count(queue="mail"), entry.priority) == (3, 3)


def test_a_delay_counts_from_the_writing_by_redis_clock(write: Write, delayq: DelayQ) -> None:
    write([("UA1", 3600.5)], "flight string, wait double", etacolumn=None, delaycolumn="wait")

    [entry] = delayq.list()
    left = (entry.due - datetime.now(timezone.utc)).total_seconds()
    assert 3540 < left <= 3600.5


def test_what_is_written_runs_once(
    write: Write, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    scene = Scene(delayq_redis)
    options = {"task": "work", "idcolumn": "nr", "etacolumn": None, "delaycolumn": "wait"}
    for _ in "12":
        write([(n, 0.5, f"k{n}") for n in range(60)], "nr int, wait double, key string", **options)
    start_worker(delayq_worker, "control_tasks", "threads", concurrency=4)

    scene.wait_empty()
    assert sorted(scene.runs("id")) == sorted(f"work:{n}" for n in range(60))


# -- rows that are wrong


def test_rows_that_are_wrong_go_to_a_table_of_their_own_where_that_is_asked(
    write: Write, spark: Any, delayq: DelayQ, tmp_path: Path
) -> None:
    folder = tmp_path / "refused"
    rows = [
        flight(0),
        (None, NOON, "B7", 1),
        ("UA2", None, "B7", 2),
        ("UA3", datetime(1965, 1, 1, tzinfo=timezone.utc), "B7", 3),
    ]

    why = "flight is None: nothing identifies the row"
    assert write(rows, refused=str(folder)) == {**said(new=1, refused=3), "why": why}
    assert calls(delayq) == expected(flight(0))
    found = spark.read.parquet(str(folder)).collect()
    assert {(row.flight, row.pax): row._error for row in found} == {
        (None, 1): "flight is None: nothing identifies the row",
        ("UA2", 2): "remind_at is null: nothing says when",
        ("UA3", 3): "remind_at lies outside the years 1970 to 9999",
    }
    assert [path.name for path in folder.iterdir() if path.name.startswith("_")] == []


def test_rows_that_redis_refuses_go_there_too(
    write: Write, spark: Any, delayq: DelayQ, tmp_path: Path
) -> None:
    write(flights(5))
    folder = tmp_path / "refused"

    told = write(flights(6, gate="C1"), onconflict="error", refused=str(folder))
    assert told["why"].startswith("task mail.remind:UA000 has the same unique key")
    assert told == {**said(new=1, refused=5), "why": told["why"]}
    reasons = [row._error for row in spark.read.parquet(str(folder)).collect()]
    assert len(reasons) == 5
    assert all("mail.remind:UA" in reason for reason in reasons)


def test_overwriting_is_refused(spark: Any, delayq_broker_url: str) -> None:
    frame = spark.createDataFrame(flights(1), SCHEMA)
    writer = frame.write.format("celery_delayq").mode("overwrite")

    with pytest.raises(Exception, match="mode 'overwrite' would remove scheduled tasks"):
        writer.options(url=delayq_broker_url, **OPTIONS).save()
