"""The tables of an export: their rows, versions and limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import TransferError
from celery_delayq.model.scheduled import Filter
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, query
from tests.support.postgres import PostgresServer
from tests.support.schedules import FAR

# -- databases


def test_the_table_tells_people_what_is_scheduled(
    app: Celery, delayq: DelayQ, database: str
) -> None:
    app.send_task("shop.remind", task_id="id-1", eta=FAR, priority=4)
    made = delayq.export_to(database).made

    [row] = query(database, "SELECT queue, id, task, due_ms, step, message FROM delayq_entries")
    assert row[:5] == ("celery", "id-1", "shop.remind", int(FAR.timestamp() * 1000), 3)
    assert json.loads(row[5])["headers"]["id"] == "id-1"
    [[due, exported_at]] = query(database, "SELECT due, exported_at FROM delayq_entries")
    if database.startswith("postgresql"):
        assert (due, exported_at) == (FAR, datetime.fromisoformat(made))
    else:
        assert due == "2100-01-01 00:00:00.000000"
    assert query(database, "SELECT version, entries, left_out FROM delayq_exports") == [(1, 1, 0)]


def test_rows_follow_what_was_moved_and_go_only_when_pruned(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, database: str
) -> None:
    for n in range(4):
        app.send_task("t", task_id=f"id-{n}", queue="ab"[n % 2], eta=FAR)
    delayq.export_to(database)
    assert elsewhere.app is not None
    elsewhere.app.send_task("t", task_id="of-another-server", queue="a", eta=FAR)
    elsewhere.export_to(database)
    delayq.reschedule("id-0", by=60)
    delayq.cancel("id-2")
    delayq.cancel("id-3")

    def rows() -> dict[str, int]:
        return dict(query(database, "SELECT id, due_ms FROM delayq_entries"))

    far = int(FAR.timestamp() * 1000)
    delayq.export_to(database)
    every = {"id-0": far + 60_000, "of-another-server": far}
    every |= {f"id-{n}": far for n in range(1, 4)}
    assert rows() == every

    assert delayq.export_to(database, Filter(queue="a"), prune=True).pruned == 1
    del every["id-2"]
    assert rows() == every
    assert delayq.export_to(database, prune=True).pruned == 1
    del every["id-3"]
    assert rows() == every


def test_a_row_that_was_spoiled_is_refused_by_its_id(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, database: str
) -> None:
    for n in range(3):
        app.send_task("t", task_id=f"id-{n}", countdown=3600 + n)
    delayq.export_to(database)
    query(database, "UPDATE delayq_entries SET message = '{}' WHERE id = 'id-1'")

    report = elsewhere.import_from(database)

    assert report.outcomes == {"scheduled": 2, "refused": 1}
    [refusal] = report.refusals
    assert refusal.line == 2
    assert refusal.reason.startswith("id 'id-1': ")


def test_the_last_moments_that_can_be_stored_come_back(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, elsewhere: DelayQ, place: str
) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc)
    app.send_task("t", task_id="last", eta=last)
    app.send_task("t", task_id="later", eta=last)
    delayq_redis.client.zadd("{celery}:due", {"later": 253_402_300_800_000})

    delayq.export_to(place)
    assert elsewhere.import_from(place).outcomes == {"scheduled": 2}

    page = elsewhere.store.control.page("celery", Filter().where(), 10)
    assert {each.id: each.due_ms for each in page.entries} == {
        "last": 253_402_300_799_999,
        "later": 253_402_300_800_000,
    }


def test_a_database_of_a_later_version_is_left_alone(
    app: Celery, delayq: DelayQ, database: str
) -> None:
    app.send_task("t", countdown=3600)
    delayq.export_to(database)
    query(database, "UPDATE delayq_exports SET version = 2")

    with pytest.raises(TransferError, match="version 2 of the format"):
        delayq.export_to(database)
    with pytest.raises(TransferError, match="version 2 of the format"):
        delayq.import_from(database)


def test_a_source_that_is_not_there_is_reported_and_not_made(
    delayq: DelayQ, postgres: PostgresServer, tmp_path: Path
) -> None:
    for source, reason in (
        (str(tmp_path / "none.jsonl"), "No such file"),
        (f"sqlite:///{tmp_path}/none.db", "no such file"),
        (postgres.new_database(), "no table delayq_entries"),
    ):
        with pytest.raises(TransferError, match=reason):
            delayq.import_from(source)
    assert [*tmp_path.iterdir()] == []


def test_the_password_of_redis_is_not_in_an_export(
    make_app: MakeApp, delayq_redis_factory: Callable[..., EmbeddedRedis], file: Path
) -> None:
    server = delayq_redis_factory(password="hunter2")
    app = make_app(broker=server.url_for("delayq+redis"))
    app.send_task("t", countdown=3600)

    DelayQ.of(app).export_to(file)

    header = json.loads(file.read_bytes().splitlines()[0])
    assert header["server"] == f"127.0.0.1:{server.port}/0"
    assert b"hunter2" not in file.read_bytes()
