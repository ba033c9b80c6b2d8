"""Answers of ``DelayQ`` when others act meanwhile or input is odd; nothing secret in them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, chord
from redis import Redis

from celery_delayq import DelayQ, Filter, Outcome
from celery_delayq.errors import ConfigError, InvalidCursor, InvalidETA, InvalidFilter
from celery_delayq.schedule import bulk, client, revocation
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.cli import CommandLine

pytestmark = pytest.mark.each_server


def send(delayq: DelayQ, id: str, countdown: float = 100.0, **options: Any) -> None:
    delayq.app.send_task("shop.remind", (id,), task_id=id, countdown=countdown, **options)


def test_duplicate_ids_are_moved_together_and_once(delayq: DelayQ) -> None:
    send(delayq, "a", 100)
    send(delayq, "a", 200)
    before = [each.due for each in delayq.find("a")]

    assert delayq.reschedule("a", by=3600) is Outcome.DONE

    hour = timedelta(hours=1)
    assert [each.due for each in delayq.find("a")] == [due + hour for due in before]


def test_bulk_changes_leave_what_was_moved_meanwhile(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(delayq, "moved", 100)
    send(delayq, "stays", 100)
    soon = datetime.now(timezone.utc) + timedelta(seconds=200)

    def read_and_move(*args: Any) -> Any:
        found = [*read(*args)]
        assert delayq.reschedule("moved", countdown=100_000)
        return iter(found)

    read = bulk._parts
    monkeypatch.setattr(bulk, "_parts", read_and_move)
    changed = delayq.cancel_all(Filter(due_to=soon))

    assert changed.outcomes == {Outcome.DONE: 1, Outcome.CHANGED: 1}
    assert delayq.get("moved") is not None
    assert delayq.get("stays") is None


def test_progress_is_reported_while_redis_changes_the_next_batch(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CANCEL_ID_BATCHES", 1)
    monkeypatch.setattr(client, "CHANGE_BATCH", 10)
    for n in range(25):
        send(delayq, f"e{n}")
    left: list[int] = []

    def progress(bulk: Any) -> None:
        expected = max(0, 25 - bulk.looked - 10)
        wait_until(lambda: delayq.count() == expected, what="the next batch is cancelled")
        left.append(expected)

    assert delayq.cancel_all(Filter(task="shop.remind"), progress=progress).done == 25
    assert left == [5, 0, 0]


def test_each_cancelled_task_is_reported_before_an_error_ends_the_call(
    delayq: DelayQ, delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CANCEL_ID_BATCHES", 1)
    monkeypatch.setattr(client, "CHANGE_BATCH", 10)
    delayq.app.conf.result_backend = delayq_redis.url
    ids = [f"e{n}" for n in range(45)]
    for id in ids:
        send(delayq, id)

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        delayq.cancel_all(Filter(task="shop.remind"), progress=stop)

    cancelled = {id for id in ids if delayq.get(id) is None}
    assert 10 <= len(cancelled) <= 20
    assert {id for id in ids if delayq.app.AsyncResult(id).state == "REVOKED"} == cancelled


@pytest.mark.parametrize("priority", [None, 3])
def test_progress_is_reported_while_entries_are_found_and_then_changed(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch, priority: int | None
) -> None:
    monkeypatch.setattr(bulk, "PAGE_ENTRIES", 10)
    monkeypatch.setattr(client, "CANCEL_ID_BATCHES", 1)
    monkeypatch.setattr(client, "CHANGE_BATCH", 10)
    for n in range(25):
        send(delayq, f"e{n}", priority=3)
    seen: list[tuple[int, int, int]] = []

    changed = delayq.cancel_all(
        Filter(task="shop.remind", priority=priority),
        progress=lambda bulk: seen.append((bulk.total, bulk.found, bulk.looked)),
    )

    # Nobody knows how many there are of a priority: they are found first.
    found = [] if priority is None else [(0, 10, 0), (0, 20, 0)]
    assert seen == [*found, (25, 25, 10), (25, 25, 20), (25, 25, 25)]
    assert changed.done == 25


def test_a_canvas_tells_how_many_entries_it_has_read(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation, "PROGRESS_ENTRIES", 10)
    for n in range(25):
        send(delayq, f"e{n}", root_id="a" if n == 15 else "b")
    seen: list[tuple[int, int]] = []

    delayq.cancel_canvas(root_id="a", progress=lambda bulk: seen.append((bulk.found, bulk.looked)))

    assert seen == [(10, 0), (20, 0), (25, 1)]


@pytest.mark.parametrize("size", [1, 60_000])
def test_all_that_runs_now_runs_in_order_of_due(delayq: DelayQ, redis: Redis, size: int) -> None:
    # The change of a batch of large messages takes several calls.
    number = 250 if size == 1 else 3 * bulk.CHANGE_BATCH
    ids = [f"{n:03}" for n in range(number)]
    items = ({"id": id, "args": ("x" * size,), "countdown": 100 + n} for n, id in enumerate(ids))
    delayq.schedule_many(items, task="shop.remind")

    assert delayq.run_all_now(Filter(task="shop.remind")).done == number

    waiting = redis.lrange("celery", 0, -1)
    assert [
        b'"correlation_id": "%b"' % id.encode() in item
        for id, item in zip(ids, reversed(waiting), strict=True)
    ] == [True] * number


def test_a_dry_run_counts_and_changes_nothing(delayq: DelayQ) -> None:
    for n in range(3):
        send(delayq, f"{n}")

    assert delayq.cancel_all(Filter(task="shop.remind"), dry_run=True).done == 3
    assert delayq.count() == 3


def test_what_would_lead_past_all_dates_is_not_moved(delayq: DelayQ) -> None:
    send(delayq, "near")
    delayq.app.send_task("shop.remind", task_id="far", eta="9999-12-31T23:00:00+00:00")

    changed = delayq.reschedule_all(Filter(task="shop.remind"), by=86_400)

    assert changed.outcomes == {Outcome.DONE: 1, Outcome.PAST: 1}
    with pytest.raises(InvalidETA, match="9999"):
        delayq.reschedule("far", by=86_400)
    assert [each.id for each in delayq.list()] == ["near", "far"]


@pytest.mark.parametrize("name", ["", 5, ["a"]])
def test_names_are_checked(delayq: DelayQ, name: Any) -> None:
    send(delayq, "a")
    for call in (
        lambda: Filter(task=name),
        lambda: delayq.count(queue=name),
        lambda: delayq.pause(task=name),
        lambda: delayq.pause(queue=name),
    ):
        with pytest.raises(InvalidFilter, match="expected a name"):
            call()
    assert delayq.count() == 1


def test_bad_input_is_refused_by_name(delayq: DelayQ) -> None:
    with pytest.raises(InvalidCursor, match="'nonsense'"):
        delayq.list(cursor="nonsense")
    with pytest.raises(ValueError, match="limit=0"):
        delayq.list(limit=0)
    with pytest.raises(ConfigError, match="everything=True"):
        delayq.cancel_all(Filter())
    with pytest.raises(ConfigError, match="either a queue or a task"):
        delayq.pause()
    with pytest.raises(InvalidETA, match="one of them"):
        delayq.reschedule("a", countdown=5, by=5)
    with pytest.raises(InvalidETA, match=r"^by='1h': expected a finite number of seconds"):
        delayq.reschedule("a", by="1h")  # type: ignore[arg-type]
    with pytest.raises(InvalidETA, match=r"^by='1h': expected a finite number of seconds"):
        delayq.reschedule_all(Filter(queue="mail"), by="1h")  # type: ignore[arg-type]
    with pytest.raises(InvalidFilter, match="id=5"):
        delayq.cancel(5)  # type: ignore[arg-type]


def test_moving_to_the_past_is_an_error_and_changes_nothing(delayq: DelayQ) -> None:
    send(delayq, "a")
    before = delayq.get("a")

    with pytest.raises(InvalidETA, match="run_now"):
        delayq.reschedule("a", eta="2020-01-01T00:00:00+00:00")

    assert delayq.get("a") == before


def test_a_result_stands_for_its_id(delayq: DelayQ) -> None:
    result = delayq.app.send_task("shop.remind", countdown=100)

    assert delayq.get(result) is not None
    assert delayq.cancel(result) is Outcome.DONE


def test_junk_among_pauses_and_revokes_is_passed_over(delayq: DelayQ, redis: Redis) -> None:
    delayq.pause(task="shop.remind")
    redis.hset("delayq:control", mapping={"tx": "junk", b"\xff": "1", "y": "2"})
    redis.zadd("delayq:revoked", {"s{notjson": 1, "zz": 2, "iid": 3})

    assert delayq.paused().tasks.keys() == {"shop.remind", "x"}
    assert delayq.store.control.revoked() == (["id"], [], [], 3)


def test_a_chord_fails_whose_member_was_replaced(add: Any, delayq: DelayQ) -> None:
    unique = {"countdown": 100, "unique_key": "k"}
    members = [add.s(1, 1).set(**unique), add.s(2, 2).set(countdown=100)]
    result = chord(members)(add.si(3, 3))
    add.apply_async((4, 4), **unique)
    assert delayq.count() == 2

    delayq.cancel_all(Filter(task="tasks.add"))
    assert result.state == "FAILURE"  # once all its members have ended


@pytest.mark.parametrize("kind", ["queue", "task"])
def test_paused_tells_since_when_as_an_aware_time_in_utc(
    app: Celery, delayq: DelayQ, kind: str
) -> None:
    before = delayq.store.now_ms()
    delayq.pause(**{kind: "mail"})
    after = delayq.store.now_ms()

    paused = delayq.paused()

    [since] = getattr(paused, f"{kind}s").values()
    assert paused._asdict() == {"queues": {}, "tasks": {}, f"{kind}s": {"mail": since}}
    assert before <= round(since.timestamp() * 1000) <= after
    assert since.utcoffset() == timedelta(0)
    told = CommandLine(app)("paused", "--json").json
    assert told == {"queues": {}, "tasks": {}, f"{kind}s": {"mail": since.isoformat()}}


def test_the_repr_of_an_entry_shows_what_is_needed_and_nothing_secret(
    app: Celery, delayq: DelayQ
) -> None:
    app.send_task(
        "tasks.add",
        ("s3cret", 1),
        {"token": "s3cret"},
        eta=datetime(2100, 1, 2, 3, 4, 5, 678000, timezone.utc),
        task_id="a",
        queue="mail",
        headers={"authorization": "s3cret"},
        unique_key="s3cret",
    )

    for entry in (*delayq.list(), delayq.get("a")):
        assert repr(entry) == (
            "<ScheduledTask 'a' 'tasks.add' in 'mail': "
            "scheduled, due 2100-01-02T03:04:05.678000+00:00>"
        )
