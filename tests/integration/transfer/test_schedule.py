"""The schedule to files and databases and back, between real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import TransferError
from celery_delayq.model.scheduled import Filter
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, ready, stored
from tests.support.schedules import FAR, fill, state

# -- there and back


def test_a_round_trip_between_two_servers_loses_nothing(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, place: str
) -> None:
    fill(app)
    before = state(delayq)

    exported = delayq.export_to(place)
    imported = elsewhere.import_from(place)

    assert state(delayq) == before
    assert state(elsewhere) == before
    assert (exported.entries, exported.left_out, exported.total) == (1213, 0, 1213)
    assert imported.outcomes == {"scheduled": 1213}
    assert (imported.total, imported.missing) == (1213, 0)

    again = delayq.export_to(place)
    assert again.entries == 1213
    dry = elsewhere.import_from(place, dry_run=True)
    repeated = elsewhere.import_from(place)
    back = delayq.import_from(place)

    for report in (dry, repeated, back):
        assert report.outcomes == {"duplicate": 1213}
    assert state(delayq) == state(elsewhere) == before


def test_what_is_ready_or_held_is_not_added_again(app: Celery, delayq: DelayQ, file: Path) -> None:
    for n in range(9):
        app.send_task("t", countdown=3600, task_id=f"id-{n}")
    delayq.export_to(file)
    for n in range(6):
        delayq.run_now(f"id-{n}")
    delayq.store.leases.acquire("celery", "me", 30.0, "1", 3)
    before = state(delayq)

    assert delayq.import_from(file, dry_run=True).outcomes == {"duplicate": 9}
    assert delayq.import_from(file).outcomes == {"duplicate": 9}
    assert state(delayq) == before


def test_what_has_run_since_is_added_again(app: Celery, delayq: DelayQ, file: Path) -> None:
    app.send_task("t", countdown=3600)
    before = state(delayq)
    delayq.export_to(file)
    delayq.store.purge("celery")

    assert delayq.import_from(file, dry_run=True).outcomes == {"scheduled": 1}
    assert delayq.import_from(file).outcomes == {"scheduled": 1}
    assert state(delayq) == before


def test_duplicate_ids_stay_two_though_the_first_has_run(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, elsewhere: DelayQ, file: Path
) -> None:
    for n in range(3):  # the last one comes first
        app.send_task("t", (n,), task_id="duplicate", countdown=3600 - n)
    sent = stored(delayq_redis.client)

    delayq.export_to(file)
    assert elsewhere.import_from(file).outcomes == {"scheduled": 3}
    assert elsewhere.import_from(file).outcomes == {"duplicate": 3}

    def told(which: DelayQ) -> list[Any]:
        """What of them is not a matter of names: which of them has the plain id."""
        return [(task.due, task.message) for task in which.entries()]

    assert told(elsewhere) == told(delayq)
    assert len(elsewhere.find("duplicate")) == len(sent) == 3


# -- overdue, paused


def make_due(redis: RedisUnderTest, key: str, *ids: str) -> None:
    """Let the moment of entries have passed a second ago, as if nothing had dispatched."""
    seconds, _ = redis.client.time()
    for id in ids:
        redis.client.zadd(f"{{{key}}}:due", {id: (seconds - 1) * 1000}, xx=True)


def test_what_is_overdue_is_ready_at_once_in_its_step_or_passed_over(
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    elsewhere: DelayQ,
    other: EmbeddedRedis,
    place: str,
) -> None:
    for n in range(4):
        app.send_task("t", task_id=f"id-{n}", countdown=3600 + n, priority=3 * (n % 2))
    make_due(delayq_redis, "celery", "id-0", "id-1")
    delayq.export_to(place)

    dry = elsewhere.import_from(place, dry_run=True)
    skipping = elsewhere.import_from(place, overdue="skip", dry_run=True)
    assert dry.outcomes == {"ready": 2, "scheduled": 2}
    assert skipping.outcomes == {"overdue": 2, "scheduled": 2}
    assert state(elsewhere) == {}
    assert elsewhere.import_from(place, overdue="skip").outcomes == skipping.outcomes
    assert elsewhere.import_from(place).outcomes == {"ready": 2, "duplicate": 2}
    assert elsewhere.import_from(place).outcomes == {"duplicate": 4}

    with other.client() as there:
        assert [message["headers"]["id"] for message in ready(there)] == ["id-0"]
        assert [message["headers"]["id"] for message in ready(there, "celery\x06\x163")] == ["id-1"]


def test_paused_entries_have_their_true_due(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, place: str
) -> None:
    """Paused and due is an entry that a dispatcher met while its task was paused."""
    app.send_task("t", task_id="paused_due", countdown=0.05)
    app.send_task("t", task_id="later", countdown=3600)
    delayq.pause(task="t")
    store = delayq.store
    while delayq.get("paused_due").state != "paused":  # type: ignore[union-attr]
        store.promote("celery", store.layout, 10)
    dues = {task.id: task.due for task in delayq.entries()}

    delayq.export_to(place)
    report = elsewhere.import_from(place)

    assert report.outcomes == {"ready": 1, "scheduled": 1}
    found = (*elsewhere.find("paused_due"), *elsewhere.entries())
    assert {task.id: task.due for task in found} == dues
    assert delayq.import_from(place).outcomes == {"duplicate": 2}


# -- which ones


def test_both_ways_only_what_a_filter_means(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, place: str
) -> None:
    fill(app, 120)
    which = Filter(queue="a", due_from=FAR, due_to=FAR, priority=6)
    ids = {task.id for task in delayq.entries(which)}

    exported = delayq.export_to(place, Filter(task="shop.0"))
    assert exported.entries == exported.total == 30
    assert delayq.export_to(place, which).entries == len(ids) == 12
    delayq.export_to(place)

    imported = elsewhere.import_from(place, which)
    assert imported.outcomes["scheduled"] == 12
    assert {task.id for task in elsewhere.entries()} == ids
    assert elsewhere.import_from(place, Filter(task="shop.duplicate")).outcomes["scheduled"] == 3


# -- unique keys, full queues


def test_an_import_never_replaces_what_has_the_key(app: Celery, delayq: DelayQ, file: Path) -> None:
    def send(number: int, **options: Any) -> None:
        options = {"unique_key": "key", "on_conflict": "replace", **options}
        app.send_task("t", (number,), countdown=3600 + number, task_id=f"id-{number}", **options)

    send(1)
    delayq.export_to(file)
    send(2)
    before = state(delayq)

    assert delayq.import_from(file).outcomes == {"kept": 1}
    assert state(delayq) == before
    delayq.cancel("id-2")
    assert delayq.import_from(file).outcomes == {"scheduled": 1}
    send(3)
    assert [task.id for task in delayq.entries()] == ["id-3"]


def test_a_retry_runs_beside_what_has_its_key(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, elsewhere: DelayQ, file: Path
) -> None:
    unique = {"unique_key": "key", "on_conflict": "keep", "countdown": 3600}
    app.send_task("t", task_id="first", **unique)
    first = stored(delayq_redis.client)[0]
    delayq.run_now("first")
    delayq.store.purge("celery")
    delayq_redis.client.delete("celery", "{celery}:ready_index", "{celery}:unique")
    app.send_task("t", task_id="second", **unique)
    own = {
        **first["properties"]["delayq"],
        "countdown": (3600, FAR.isoformat()),
        "message_id": "retry",
    }
    first["headers"].update(retries=1, eta=FAR.isoformat())
    first["properties"].update(delayq=own, delivery_tag="retry")
    with app.connection_for_write() as connection:
        connection.default_channel._put("celery", first)
    before = {task.id for task in delayq.entries()}
    assert before == {"first", "second"}

    delayq.export_to(file)

    assert elsewhere.import_from(file).outcomes == {"scheduled": 2}
    assert {task.id for task in elsewhere.entries()} == before
    assert elsewhere.import_from(file).outcomes == {"duplicate": 2}


def test_what_finds_its_queue_full_is_counted(
    app: Celery, delayq: DelayQ, make_app: MakeApp, other: EmbeddedRedis, file: Path
) -> None:
    for n in range(120):
        app.send_task("t", countdown=3600 + n)
    delayq.export_to(file)
    options = {"delayq": {"max_scheduled": 70}}
    small = make_app(broker=other.url_for("delayq+redis"), broker_transport_options=options)

    report = DelayQ.of(small).import_from(file)

    assert report.outcomes == {"scheduled": 70, "full": 50}
    assert report.missing == 50
    assert DelayQ.of(small).count() == 70


def test_a_full_redis_is_reported_and_the_import_may_be_repeated(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, other: EmbeddedRedis, file: Path
) -> None:
    for n in range(100):
        app.send_task("t", countdown=3600 + n)
    delayq.export_to(file)
    client = other.client()
    client.config_set("maxmemory", 1)

    with pytest.raises(TransferError, match="no memory left"):
        elsewhere.import_from(file)

    client.config_set("maxmemory", 0)
    assert elsewhere.import_from(file).outcomes == {"scheduled": 100}


# -- what cannot be read


def test_unreadable_records_are_reported_and_not_in_the_way(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, elsewhere: DelayQ, place: str
) -> None:
    for n in range(6):
        app.send_task("t", task_id=f"id-{n}", countdown=3600 + n)
    delayq_redis.client.hset("{celery}:entries", "id-1", "garbage")
    delayq_redis.client.hset("{celery}:entries", "id-2", "1 0 n t\n{not json")
    delayq_redis.client.hdel("{celery}:entries", "id-3")

    report = delayq.export_to(place)

    assert (report.entries, report.left_out) == (3, 3)
    assert [each.id for each in report.unreadable] == ["id-1", "id-2", "id-3"]
    assert "no JSON" in report.unreadable[1].reason
    assert elsewhere.import_from(place).outcomes == {"scheduled": 3}
    assert [task.id for task in elsewhere.entries()] == ["id-0", "id-4", "id-5"]


def test_a_database_takes_no_nul_in_a_name_and_a_file_does(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, place: str
) -> None:
    app.send_task("nul\0task", countdown=3600)
    app.send_task("t", countdown=3600)

    report = delayq.export_to(place)

    in_file = "://" not in place
    assert (report.entries, report.left_out) == ((2, 0) if in_file else (1, 1))
    assert elsewhere.import_from(place).outcomes["scheduled"] == report.entries
