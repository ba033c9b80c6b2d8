"""An archive is restored byte for byte, and each row once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.spark.archive.commits import ArchiveError
from celery_delayq.spark.restore import Options, Summary
from celery_delayq.spark.restore import job as restoring
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transfer.results import Imported
from tests.integration.spark.conftest import Archive, Restore
from tests.integration.spark.flights import NOON
from tests.support.dead_letters import fill


def state(redis: RedisUnderTest, *parts: str) -> dict[str, dict[bytes, Any]]:
    """Return the content of some keys, in all queues."""
    found: dict[str, dict[bytes, Any]] = {}
    for key in sorted(redis.client.scan_iter()):
        name = key.decode()
        if name.endswith(parts):
            if redis.client.type(key) == b"hash":
                found[name] = redis.client.hgetall(key)
            else:
                found[name] = dict(redis.client.zrange(key, 0, -1, withscores=True))
    return found


SCHEDULE = (":due", ":entries", ":tasks", ":unique", ":duplicate_ids")


def test_a_snapshot_is_put_back_byte_for_byte_and_once(
    restore: Restore,
    archive: Archive,
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    tmp_path: Path,
) -> None:
    for n in range(30):
        app.send_task("tasks.add", (n, []), eta=NOON + timedelta(hours=n), priority=n % 10)
    for id in ("a b\n", "ümlaut", "x" * 300):
        app.send_task("shop.ü b", task_id=id, eta=NOON, queue="mail")
    for n in range(2):
        app.send_task("shop.duplicate", (n,), task_id="duplicate", eta=NOON, retries=n)
    app.send_task("shop.unique", (1,), eta=NOON, unique_key="key", queue="mail")
    soon = app.send_task("tasks.add", (1, 2), countdown=3600).id
    before = state(delayq_redis, *SCHEDULE)
    snapshot = archive("scheduled").snapshot
    delayq_redis.client.flushall()

    looked = restore(dry_run=True)
    assert looked.outcomes == {"scheduled": 37}
    assert list(delayq_redis.client.scan_iter("*:due")) == []
    told = restore(snapshot=snapshot)
    assert told == Summary({"scheduled": 37}, snapshot)
    assert state(delayq_redis, *SCHEDULE) == before

    delayq.cancel(soon)
    only = restore(queue="mail", since="2031-01-01")
    assert only.outcomes == {"duplicate": 4, "filtered": 33}
    with pytest.raises(ArchiveError, match="snapshot='yesterday': no snapshot has this name"):
        restore(snapshot="yesterday")
    file = min((tmp_path / "archive" / "scheduled").glob("snapshot=*/*.parquet"))
    file.unlink()
    told = restore()
    assert told.missing == told.failed == 37 - sum(told.outcomes.values()) > 0


@pytest.mark.nightly
def test_dead_letters_are_put_back_and_are_known_by_the_archive(
    restore: Restore, archive: Archive, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    fill(delayq, 4, queue="mail", task="shop.ship")
    fill(delayq, 3)
    before = state(delayq_redis, ":dead", ":dead_at")
    assert archive("dead_letters", remove=True).removed == 7
    assert delayq.count_dead() == 0

    assert restore(table="dead_letters", task="shop.ship").outcomes == {
        "filtered": 3,
        "restored": 4,
    }
    assert delayq.count_dead() == delayq.count_dead(queue="mail") == 4
    assert restore(table="dead_letters").outcomes == {"duplicate": 4, "restored": 3}
    assert state(delayq_redis, ":dead", ":dead_at") == before
    told = archive("dead_letters")
    assert (told.dead_letters, told.removed) == (0, None)


def test_rows_that_are_damaged_are_refused(delayq: DelayQ) -> None:
    entry = {"queue": "mail", "id": "a", "task": "t", "due_ms": 1, "step": 0, "message_id": "n"}
    entries = [
        {**entry, "message": "{", "problem": None},
        {**entry, "message": None, "problem": "unreadable record"},
        {**entry, "message": None, "due_ms": None, "problem": None},
    ]
    dead_letter = {"queue": "mail", "id": "a", "digest": "0" * 64, "data": b"1 2 0 why\n{}"}
    for put, rows in (
        (restoring._put_entries, entries),
        (restoring._put_dead_letters, [dead_letter]),
    ):
        report = Imported()
        put(delayq, rows, Options(), report)
        assert report.outcomes == {"refused": len(rows)}
        assert all("'a'" in refusal.reason for refusal in report.refusals)
    assert (delayq.count(), delayq.count_dead()) == (0, 0)


@pytest.mark.nightly
def test_what_is_of_another_queue_is_not_put_back(
    restore: Restore, archive: Archive, app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    # Given an archive of two queues
    for source in ("north", "south"):
        delayq_redis.client.flushall()
        app.send_task("tasks.add", (1, 2), eta=NOON, task_id=source)
        fill(delayq, 1, task=f"shop.{source}")
        archive("scheduled", "dead_letters", source=source)
    delayq_redis.client.flushall()

    # When it is not said which is meant, nothing comes back
    for table in ("scheduled", "dead_letters"):
        with pytest.raises(ArchiveError, match="but of: north, south; name one"):
            restore(table=table)
    assert delayq.count() == delayq.count_dead() == 0

    # And then what is of that one
    assert restore(source="north").outcomes == {"scheduled": 1}
    assert restore(source="north", table="dead_letters").outcomes == {"restored": 1}
    assert [each.id for each in delayq.list()] == ["north"]
    assert [each.task for each in delayq.dead_letters()] == ["shop.north"]
