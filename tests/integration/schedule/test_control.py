"""What ``DelayQ`` answers when replies are lost, others act at the same time, or input is odd."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, chord

from celery_delayq import DelayQ, Filter, Outcome
from celery_delayq.errors import (
    BrokerUnavailable,
    ConfigError,
    InvalidCursor,
    InvalidETA,
    InvalidFilter,
)
from celery_delayq.store.paging import listed_pages
from celery_delayq.store.schedule import Store
from celery_delayq.testing.fixtures import RedisUnderTest

# Celery's result backend, with the newest redis-py.
pytestmark = [
    pytest.mark.each_server,
]


@pytest.fixture
def delayq(delayq_redis: RedisUnderTest) -> DelayQ:
    app = Celery("shop", broker=f"delayq+{delayq_redis.url}", set_as_current=False)
    app.conf.task_ignore_result = True
    return DelayQ(app)


def send(delayq: DelayQ, id: str, countdown: float = 100.0, **options: Any) -> None:
    assert delayq.app is not None
    delayq.app.send_task("shop.remind", (id,), task_id=id, countdown=countdown, **options)


def lose_one_reply(delayq: DelayQ, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let one call of a script be done and its reply not arrive."""
    run = Store.run
    lost: list[str] = []

    def run_and_lose(store: Store, call: Any) -> Any:
        reply = run(store, call)
        if call.script.name == script and not lost:
            lost.append(script)
            raise BrokerUnavailable("the reply is lost")
        return reply

    monkeypatch.setattr(Store, "run", run_and_lose)


def test_a_cancellation_whose_reply_is_lost_is_told_as_done(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(delayq, "a")
    lose_one_reply(delayq, monkeypatch, "control/cancel")

    assert delayq.cancel("a") is Outcome.DONE
    assert delayq.cancel("a") is Outcome.UNKNOWN


def test_a_move_by_an_amount_whose_reply_is_lost_is_made_once(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(delayq, "a")
    before = delayq.get("a")
    lose_one_reply(delayq, monkeypatch, "control/reschedule")

    assert delayq.reschedule("a", by=3600) is Outcome.DONE
    after = delayq.get("a")
    assert before is not None
    assert after is not None
    assert after.due - before.due == timedelta(hours=1)


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

    def list_and_move(*args: Any, **options: Any) -> Any:
        found = [*listed_pages(*args, **options)]
        assert delayq.reschedule("moved", countdown=100_000)
        return iter(found)

    monkeypatch.setattr("celery_delayq.schedule.bulk.listed_pages", list_and_move)
    changed = delayq.cancel_all(Filter(due_to=soon))

    assert changed.outcomes == {Outcome.DONE: 1, Outcome.CHANGED: 1}
    assert delayq.get("moved") is not None
    assert delayq.get("stays") is None


def test_all_that_runs_now_runs_in_order_of_due(
    delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    ids = [f"{n:03}" for n in range(250)]
    for n, id in enumerate(ids):
        send(delayq, id, 100 + n)

    assert delayq.run_all_now(Filter(task="shop.remind")).done == 250

    waiting = delayq_redis.client.lrange("celery", 0, -1)
    assert [
        b'"correlation_id": "%b"' % id.encode() in item
        for id, item in zip(ids, reversed(waiting), strict=True)
    ] == [True] * 250


def test_a_dry_run_counts_and_changes_nothing(delayq: DelayQ) -> None:
    for n in range(3):
        send(delayq, f"{n}")

    assert delayq.cancel_all(Filter(task="shop.remind"), dry_run=True).done == 3
    assert delayq.count() == 3


def test_what_would_lead_past_all_dates_is_not_moved(delayq: DelayQ) -> None:
    send(delayq, "near")
    assert delayq.app is not None
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


@pytest.mark.parametrize(
    "id", ["two words", "line\nbreak", "{tag}", "x" * 10_000, "ä%41", "nul\0in it", "[red]"]
)
def test_hostile_ids_are_found_moved_and_cancelled(delayq: DelayQ, id: str) -> None:
    send(delayq, id)
    send(delayq, "other")

    found = delayq.get(id)
    assert found is not None
    assert found.id == id
    assert delayq.reschedule(id, by=10)
    assert delayq.cancel(id)
    assert delayq.get(id) is None
    assert [each.id for each in delayq.list()] == ["other"]


def test_a_result_stands_for_its_id(delayq: DelayQ) -> None:
    assert delayq.app is not None
    result = delayq.app.send_task("shop.remind", countdown=100)

    assert delayq.get(result) is not None
    assert delayq.cancel(result) is Outcome.DONE


def test_junk_among_pauses_and_revokes_is_passed_over(
    delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    delayq.pause(task="shop.remind")
    delayq_redis.client.hset("delayq:control", mapping={"tx": "junk", b"\xff": "1", "y": "2"})
    delayq_redis.client.zadd("delayq:revoked", {"s{notjson": 1, "zz": 2, "iid": 3})

    assert delayq.paused().tasks.keys() == {"shop.remind", "x"}
    assert delayq.store.control.revoked() == (["id"], [], [], 3)


def test_a_key_that_a_stock_worker_took_along_is_free(
    delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    """It tells nobody when it is done, and no worker of ours manages it."""
    once = {"unique_key": "k", "unique_scope": "done", "on_conflict": "keep"}
    send(delayq, "first", 100, **once)
    assert delayq.run_now("first")
    send(delayq, "second", 100, **once)
    assert delayq.get("second") is None

    assert delayq_redis.client.rpop("celery")  # as a stock worker does
    send(delayq, "third", 100, **once)

    assert delayq.get("third") is not None
    assert delayq.get("first") is None


def test_a_chord_fails_whose_member_was_replaced(delayq_redis: RedisUnderTest) -> None:
    app = Celery(
        "shop",
        broker=f"delayq+{delayq_redis.url}",
        backend=delayq_redis.url,
        set_as_current=False,
    )
    delayq = DelayQ(app)

    @app.task(name="shop.remind", shared=False)
    def remind(text: str) -> None:
        """Is never run here."""

    unique = {"countdown": 100, "unique_key": "k"}
    whole = chord([remind.s("a").set(**unique), remind.s("b").set(countdown=100)], remind.si("c"))
    result = whole.apply_async()
    remind.apply_async(("newer",), **unique)
    assert delayq.count() == 2

    delayq.cancel_all(Filter(task="shop.remind"))
    assert result.state == "FAILURE"  # once all its members have ended
    app.close()
