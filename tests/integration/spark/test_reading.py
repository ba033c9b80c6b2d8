"""Spark reads the same values as the API."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery import Celery
from kombu.utils.json import loads

from celery_delayq import DelayQ
from celery_delayq.model.context import context
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.history import Run
from celery_delayq.model.scheduled import ScheduledTask
from celery_delayq.spark.session import setting
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.integration.spark.conftest import Read, pause_due
from tests.support.dead_letters import details, message
from tests.support.runs import numbered

FAR = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)

HOSTILE = ["", "\1", "%s", "a\nb", "nul", "Ä☃", "\U0001f600", '"', "{", "\\", "' or 1=1 --", "a b"]


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    app = make_app()
    app.tasks["tasks.add"].typing = False  # any arguments
    return app


def utc(time: datetime | None) -> Any:
    """Return a time as Spark gives it to Python: in this machine's zone, without a zone."""
    return None if time is None else time.astimezone().replace(tzinfo=None)


def row_of(entry: ScheduledTask) -> dict[str, Any]:
    """Return the row of a scheduled task."""
    headers, own = entry.headers, json.loads(entry.own.get("context", "{}"))
    same = ("id", "task", "queue", "state", "priority", "args", "kwargs")
    times = {"eta": entry.eta, "expires": headers["expires"]}
    return {
        **{name: getattr(entry, name) for name in same},
        **{name: headers[name] for name in ("retries", "root_id", "parent_id", "origin")},
        **{name: utc(datetime.fromisoformat(at)) if at else None for name, at in times.items()},
        "due": utc(entry.due),
        "unique_key": entry.unique_key or None,
        "group_id": headers["group"],
        "headers": {name: headers[name] for name in ("tenant", "level") if name in headers},
        "context": {n: x if isinstance(x, str) else json.dumps(x) for n, x in own.items()},
        "raw": None,
    }


def told(rows: list[Any], *left_out: str) -> list[dict[str, Any]]:
    """Return rows by id, their arguments decoded."""
    found = []
    for row in rows:
        fields = row.asDict()
        for name in ("args", "kwargs"):
            fields[name] = fields[name] and loads(fields[name])
        for name in left_out:
            del fields[name]
        found.append(fields)
    return sorted(found, key=lambda fields: fields["id"])


def fill(app: Celery) -> None:
    """Schedule tasks that differ in all columns."""
    add = app.tasks["tasks.add"]
    for n in range(20):
        add.apply_async((n, "x"), {"y": [n, None]}, task_id=f"plain-{n:02}", eta=later(n))
    with context(user="ada", order=17):
        add.apply_async((1,), task_id="context", eta=later(1))
    add.apply_async((1,), task_id="headers", eta=later(2), headers={"tenant": "1", "level": "hi"})
    add.apply_async((1,), task_id="unique", eta=later(3), unique_key="one two")
    add.apply_async((1,), task_id="expires", eta=later(4), expires=later(5), priority=7)
    add.apply_async((datetime(2026, 1, 1), b"x"), task_id="types", eta=later(6))
    add.apply_async((1,), task_id="yaml", eta=later(7), serializer="yaml")
    add.apply_async((1,), task_id="packed", eta=later(7), compression="zlib")
    for id in HOSTILE[1:]:
        add.apply_async((id,), task_id=id, eta=later(8), queue="a\nb" if id == "{" else "other")


def later(days: int) -> datetime:
    return FAR + timedelta(days=days, microseconds=days)


@pytest.mark.parametrize("timestamps", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_the_schedule_is_what_the_api_lists_whatever_spark_takes_for_a_timestamp(
    app: Celery, delayq: DelayQ, read: Read, spark: Any, timestamps: str
) -> None:
    fill(app)
    with setting(spark, "spark.sql.timestampType", timestamps):
        rows = read("scheduled").collect()

    assert told(rows) == sorted(map(row_of, delayq.entries()), key=lambda row: row["id"])
    assert len(rows) == 27 + len(HOSTILE) - 1


def test_headers_that_are_no_texts_are_reported_as_json(app: Celery, read: Read) -> None:
    headers = {"level": 7, "when": "2026-01-01T00:00:00Z", "tags": ["a"], "none": None}
    app.tasks["tasks.add"].apply_async((1,), task_id="a", eta=FAR, headers=headers)

    [row] = read("scheduled").collect()

    told = {name: row.headers.get(name) for name in headers}
    assert told == {"level": "7", "when": "2026-01-01T00:00:00Z", "tags": '["a"]', "none": None}


def test_paused_entries_are_reported_with_their_due(
    app: Celery, delayq: DelayQ, read: Read
) -> None:
    app.tasks["tasks.add"].apply_async((1, 2), task_id="a", countdown=0.05)
    delayq.pause(task="tasks.add")
    wait_until(lambda: pause_due(delayq, "celery"), what="an entry that is paused and due")

    [entry] = delayq.entries()
    assert entry.state == "paused"
    assert told(read("scheduled").collect()) == [row_of(entry)]
    assert read("scheduled", since=entry.due.isoformat()).count() == 1
    assert read("scheduled", until=entry.due.isoformat()).count() == 0


def test_ready_messages_are_reported_with_what_is_known_of_them(
    app: Celery, delayq: DelayQ, read: Read
) -> None:
    add = app.tasks["tasks.add"]
    add.apply_async((1, 2), task_id="at once", priority=3)
    for id in ("one", "gone"):
        add.apply_async((3,), task_id=id, eta=FAR, unique_key=id)
        delayq.run_now(id)
    [one] = delayq.find("one")
    delayq.cancel("gone")

    rows = {row.id: row for row in read("ready").collect()}

    assert rows.keys() == {"at once", "one", "gone"}
    assert {row.state for row in rows.values()} == {"ready"}
    assert [rows[id].cancelled for id in ("at once", "one", "gone")] == [False, False, True]
    assert (rows["at once"].priority, rows["at once"].due) == (3, None)
    assert (rows["one"].due, rows["one"].unique_key) == (utc(one.due), one.unique_key)
    assert (rows["one"].eta, rows["one"].args) == (utc(FAR), "[3]")


def test_what_processes_hold_is_reported_by_process(
    app: Celery, delayq: DelayQ, read: Read
) -> None:
    add = app.tasks["tasks.add"]
    for n in range(7):
        add.apply_async((n,), task_id=str(n), eta=FAR, queue="q")
        delayq.run_now(str(n))
    leases = delayq.store.leases
    leases.acquire("q", "me", 30.0, "1", 4)
    leases.acquire("q", "you", 30.0, "1", 2)

    rows = read("leased").collect()

    found = [each for n in range(7) for each in delayq.find(str(n))]
    expected = {each.id: (each.worker, each.state, utc(each.due)) for each in found if each.worker}
    assert {row.id: (row.worker, row.state, row.due) for row in rows} == expected
    assert len(rows) == 6
    assert read("ready").count() == 1


def test_dead_letters_are_what_the_api_lists(delayq: DelayQ, read: Read) -> None:
    dead_letters = delayq.store.dead_letters
    for n in range(30):
        dead_letters.add("celery", f"l{n}", f"why {n}", message(f"l{n}"), details(f"E{n}"))
    dead_letters.add("other", "plain", "late", message("plain", task="other"))
    dead_letters.add("other", "broken", "unreadable", b"\xff\xfe{")

    rows = {row.id: row for row in read("dead_letters", batchsize=7, partitions=3).collect()}

    found = [DeadLetter.of(q, each) for q in ("celery", "other") for each in dead_letters.all(q)]
    assert rows.keys() == {dead_letter.id for dead_letter in found}
    for dead_letter in found:
        row = rows[dead_letter.id]
        for name in (
            *("task_id", "task", "queue", "died", "reason", "exception", "error", "traceback"),
            *("worker", "started", "retries", "deliveries", "root_id", "group_id"),
        ):
            assert row[name] == row_value(getattr(dead_letter, name)), name
        assert (row.args and json.loads(row.args)) == dead_letter.args
    assert (
        bytes(rows["broken"].raw) == next(x for x in found if x.id == "broken").dead_lettered.data
    )
    assert rows["plain"].raw is None


def test_dead_letters_are_read_by_when_they_died(delayq: DelayQ, read: Read) -> None:
    dead_letters = [(f"l{n}", 1_000 * n, b"1 %d 0 why\n{}" % (1_000 * n)) for n in range(10)]
    delayq.store.dead_letters.restore("celery", dead_letters)

    found = read("dead_letters", since="1970-01-01T00:00:03", until="1970-01-01T00:00:06")

    assert sorted(row.id for row in found.collect()) == ["l3", "l4", "l5"]


def test_periodic_entries_are_what_the_api_lists(
    delayq: DelayQ, read: Read, delayq_redis: RedisUnderTest
) -> None:
    delayq.periodic.add("daily", 86_400, "tasks.add", (1, 2), queue="q", start=FAR, max_runs=5)
    delayq.periodic.add("often", 60, "tasks.add", (1, 2))
    delayq_redis.client.hset("delayq:periodic", "odd", "none\n{")

    rows = {row.name: row for row in read("periodic").collect()}

    assert rows.keys() == {"daily", "often", "odd"}
    for name in ("daily", "often"):
        entry = delayq.periodic.get(name)
        assert entry is not None
        row, expected = rows[name], entry.as_dict()
        assert [row.task, row.source, row.status, row.when, row.overlap or "allow"] == [
            expected[each] for each in ("task", "source", "status", "when")
        ] + [entry.definition.overlap]
        assert row.next == utc(entry.next)
        assert row.start == utc(entry.definition.start)
        assert json.loads(row.args) == [*entry.definition.args]
    assert rows["daily"].options == {"queue": "q"}
    assert rows["daily"].max_runs == 5
    assert (rows["odd"].status, bytes(rows["odd"].raw)) == ("unreadable", b"none\n{")


def test_the_history_is_what_the_api_yields(
    delayq: DelayQ, read: Read, delayq_redis: RedisUnderTest
) -> None:
    delayq.store.history.add("me", 1, 1000, numbered(50))
    delayq_redis.client.xadd("delayq:history", {"r": b"7 odd"})

    rows = {row.offset: row for row in read("history", batchsize=10, partitions=4).collect()}

    expected = {run.offset: run for run in delayq.history()}
    assert len(rows) == len(expected) + 1 == 51
    for offset, run in expected.items():
        fields = rows[offset].asDict()
        assert fields.pop("raw") is None
        assert fields == {n: row_value(getattr(run, n)) for n in Run.__dataclass_fields__}
    assert [bytes(row.raw) for row in rows.values() if row.raw] == [b"7 odd"]
    some = read("history", since="1970-01-01T00:00:10", until="1970-01-01T00:00:20", queue="q")
    assert sorted(row.id for row in some.collect()) == [f"id {n}" for n in (11, 13, 15, 17, 19)]


def row_value(value: Any) -> Any:
    return utc(value) if isinstance(value, datetime) else value


# -- what cannot be read


def test_what_cannot_be_read_is_a_row_with_what_is_there(
    app: Celery, delayq: DelayQ, read: Read, delayq_redis: RedisUnderTest
) -> None:
    app.tasks["tasks.add"].apply_async((1, 2), task_id="good", eta=FAR)
    client = delayq_redis.client
    good = client.hget("{celery}:entries", "good")
    broken = {
        b"none": b"no record",
        b"bytes \xff": b"1 0 message id task\n{\xff",
        b"cut": good[:200],
        b"other": b"1 0 message id task\n[1, 2]",
        b"deep": b"1 0 message id task\n" + b"[" * 200_000,
        b"nested": b'1 0 message id task\n{"headers": '
        + b'{"a":' * 200_000
        + b"1"
        + b"}" * 200_000,
        b"two": b'1 0 message id task\n{"a": 1}{"b": 2}',
        b"lines": b'1 0 message id task\n{"a":\n1}',
        b"id": good.replace(b'"id": "good"', b'"id": null'),
    }
    for name, data in broken.items():
        client.hset("{celery}:entries", name, data)
        client.zadd("{celery}:due", {name: 5_000})

    rows = {row.id: row for row in read("scheduled").collect()}

    assert rows.pop("good").args == "[1, 2]"
    assert {id: bytes(row.raw) for id, row in rows.items()} == {
        name.decode("utf-8", "backslashreplace"): data for name, data in broken.items()
    }
    for row in rows.values():
        fields = row.asDict()
        there = {name for name, value in fields.items() if value is not None}
        assert there == {"id", "queue", "state", "due", "raw"}
        assert row.due == utc(datetime.fromtimestamp(5, timezone.utc))


def test_messages_of_other_producers_are_read_as_they_are(
    delayq: DelayQ, read: Read, delayq_redis: RedisUnderTest
) -> None:
    odd = {
        "number": message("7")
        .replace(b'"id": "7"', b'"id": 7')
        .replace(b'"root_id": "7"', b'"root_id": 8'),
        "surrogate": message("\ud800", tenant="\ud800"),
        "spaces": message("spaces").replace(b'"body": "[[', b'"body":   "[   ['),
        "retries": message("retries", retries=10**30),
    }
    for data in odd.values():
        delayq_redis.client.lpush("celery", data)
    delayq.store.register("celery")

    rows = {row.id: row for row in read("ready").collect()}

    assert rows.keys() == {"7", "\\ud800", "spaces", "retries"}
    assert rows["7"].root_id == "8"
    assert rows["\\ud800"].headers == {"tenant": "\\ud800"}
    assert json.loads(rows["spaces"].args) == ["spaces", ""]
    assert rows["retries"].retries is None
    assert all(row.raw is None for row in rows.values())
