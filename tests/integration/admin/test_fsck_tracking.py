"""Paused and due entries, second messages with one id, and held messages."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_delayq.settings import Limits
from celery_delayq.store.keys import Layout
from celery_delayq.store.repair_tracking import RepairTracking, Tracked
from celery_delayq.store.store import Store
from tests.support.drift import FAR, labelled, look, numbers, pause_due, put, repaired, schedule
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.each_server


def make_ready(store: Store, *ids: str, unique: str = "", message_id: str = "") -> None:
    """Publish messages with a label that are due; *unique* and the id are their unique keys."""
    put(store, *(labelled(id, message_id, unique=unique and unique + id, due=5) for id in ids))
    store.register("q")


def acquire(store: Store, message_id: str, number: int, worker_id: str = "me") -> None:
    assert len(store.leases.acquire("q", worker_id, 30.0, message_id, number).messages) == number


def test_nothing_is_wrong_with_what_our_scripts_leave(store: Store, redis: Redis) -> None:
    pause_due(store, "p1", "p2", task="paused")
    put(store, labelled("s", unique="sk1"), labelled("s", "second", unique="sk2"))
    make_ready(store, "a", "b", "c", unique="d")
    make_ready(store, "a", message_id="again")
    acquire(store, "1", 2)
    store.control.cancel("q", Layout(), ["c"])

    assert repaired(store) == snapshot(redis)
    found = snapshot(redis)
    for name in ("duplicate_ids", "paused_due", "leased_index", "ready_index"):
        assert len(found[f"{{q}}:{name}"]) == 2, name
    assert len(found["{q}:unique"]) == 4


# -- what is paused


def test_a_paused_due_entry_that_is_not_listed_comes_back_again(store: Store, redis: Redis) -> None:
    pause_due(store, *(f"id-{n}" for n in range(250)))
    healthy = snapshot(redis)
    redis.zremrangebyrank("{q}:paused_due", 0, 199)

    assert repaired(store, lost_paused_due=200) == healthy

    store.control.pause(["q"], task="t", resume=True)
    assert store.promote("q", Layout(), 1000).moved == 250


def test_what_is_listed_as_paused_due_and_is_not_is_removed(store: Store, redis: Redis) -> None:
    pause_due(store, "a", task="paused")
    schedule(store, "b")
    healthy = snapshot(redis)
    misplaced = [f"t\0{FAR:015}\0b", f"t\0{5:015}\0b", f"paused\0{6:015}\0a"]
    redis.zadd("{q}:paused_due", dict.fromkeys(misplaced, 0))

    assert repaired(store, misplaced_paused=3) == healthy


def test_a_paused_due_entry_that_has_lost_its_due_is_paused_due_again(
    store: Store, redis: Redis
) -> None:
    pause_due(store, "a", "b")
    healthy = snapshot(redis)
    redis.zrem("{q}:due", "a")

    assert numbers(look(store)) == {"unscheduled": 1}
    look(store, repair=True)
    store.promote("q", Layout(), 1000)

    assert snapshot(redis) == healthy


def test_a_paused_due_entry_without_a_record_is_a_dead_letter_with_its_due(
    store: Store, redis: Redis
) -> None:
    pause_due(store, "a")
    redis.hdel("{q}:entries", "a")

    look(store, repair=True)

    [dead_letter] = store.dead_letters.all("q")
    assert dead_letter.due_ms == 5
    assert numbers(look(store)) == {}


def test_a_paused_queue_is_not_late(store: Store, redis: Redis) -> None:
    schedule(store, "a")
    store.control.pause(["q"], queue="q")
    # Nobody has looked at it yet, and it is in the next-due index until then.
    repaired(store)
    redis.zadd("{q}:due", {"a": 5})
    redis.delete("{q}:tasks")
    redis.zadd("{q}:tasks", {f"t\0{5:015}\0a": 0})
    store.promote("q", Layout(), 100)
    assert not redis.exists("delayq:next_due")

    repaired(store)

    redis.hdel("delayq:control", "qq")
    assert numbers(look(store)) == {"next_due_late": 1}


def test_what_is_ready_in_a_paused_queue_is_to_wake_nobody(store: Store, redis: Redis) -> None:
    make_ready(store, "a")
    redis.delete("{q}:wake")
    store.control.pause(["q"], queue="q")

    repaired(store)

    store.control.pause(["q"], queue="q", resume=True)
    store.promote("q", Layout(), 100)
    assert redis.exists("{q}:wake")
    repaired(store)


def test_what_is_paused_due_and_goes_on_is_looked_at(store: Store, redis: Redis) -> None:
    pause_due(store, "a", task="a")
    pause_due(store, "b", "c", task="b")
    schedule(store, "later")
    redis.zadd("{q}:paused_due", {f"b\0{5:015}\0gone": 0})
    redis.hdel("delayq:control", "tb")
    now = store.now_ms()

    state = repaired(store, next_due_late=1)

    assert now <= state["delayq:next_due"][b"q"] <= store.now_ms()
    assert store.promote("q", Layout(), 100).moved == 2


def test_a_queue_with_a_low_rate_is_looked_at_as_rarely(store: Store, redis: Redis) -> None:
    schedule(store, "a", "b", "c")
    redis.zadd("{q}:due", {"a": 4, "b": 5})
    redis.delete("{q}:tasks")
    look(store, repair=True)
    layout = Layout(limits=Limits(promote_rate=0.1))
    store.register("q")
    redis.hset("delayq:queues", "q", layout.text)

    assert store.promote("q", layout, 100).moved == 1
    assert redis.zscore("delayq:next_due", "q") > store.now_ms() + 5_000

    repaired(store)


# -- second messages with the same id


def test_second_messages_that_are_not_listed_are_found_again(store: Store, redis: Redis) -> None:
    message_ids = ("first", "second", "third")
    put(store, *(labelled("s", message_id) for message_id in message_ids))
    for id in ("held", "ready"):
        for message_id in message_ids:
            make_ready(store, id, message_id=message_id)
    acquire(store, "1", 3)
    healthy = snapshot(redis)
    redis.delete("{q}:duplicate_ids")

    assert len(healthy["{q}:duplicate_ids"]) == 2 + 2 + 2
    assert repaired(store, unlisted_duplicate=6) == healthy


# -- what is ready or held


def test_what_no_process_holds_is_running_no_more(store: Store, redis: Redis) -> None:
    make_ready(store, "gone", unique="d")
    make_ready(store, "gone", message_id="second")
    acquire(store, "1", 2, "other")
    healthy = snapshot(redis)
    make_ready(store, *(f"id-{n}" for n in range(250)), unique="d")
    acquire(store, "1", 250)
    redis.delete("{q}:leased:me")
    redis.zrem("{q}:leases", "me")
    redis.hdel("{q}:request_numbers", "me")
    redis.hset("{q}:leased_index", mapping={"garbage": "x", "gone\0third": "third 5 - t other"})
    redis.zadd("{q}:duplicate_ids", {"gone\0third": 0})
    redis.delete("{q}:totals")  # they would tell of lost messages

    assert look(store).unrepaired == 252
    state = repaired(store, gone_running=252)

    for key in ("{q}:leased_index", "{q}:unique", "{q}:duplicate_ids", "{q}:leased:other"):
        assert state[key] == healthy[key]
    assert "{q}:ready_index" not in state


def test_what_has_moved_while_it_was_looked_for_is_not_gone(
    store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_ready(store, *(f"id-{n}" for n in range(250)), unique="d")
    acquire(store, "1", 250)
    monkeypatch.setattr(RepairTracking, "leased", lambda *_: [])

    repaired(store)

    def another_value(*_: Any) -> list[Tracked]:
        found = redis.hgetall("{q}:leased_index")
        return [Tracked(name, value.replace(b" 5 ", b" 6 ")) for name, value in found.items()]

    redis.delete("{q}:leased:me")
    redis.delete("{q}:totals")  # they would tell of lost messages
    monkeypatch.setattr(RepairTracking, "tracked", another_value)
    assert numbers(look(store, repair=True)) == {}


def test_more_bytes_than_may_be_read_at_once_are_reported(
    store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_delayq.store.repair_tracking.MAX_READ_BYTES", 1000)
    make_ready(store, *(f"id-{n}" for n in range(9)))
    acquire(store, "1", 9)
    redis.hdel("{q}:leased:me", "1:1")
    redis.delete("{q}:totals")  # they would tell of lost messages

    report = look(store, repair=True)

    assert numbers(report) == {}
    [note] = report.notes
    assert "1 messages that count as running were not found" in note


# -- where things are not as usual


def test_keys_of_another_type_are_reported(store: Store, redis: Redis) -> None:
    make_ready(store, "a")
    names = ("paused_due", "unique", "duplicate_ids", "ready_index", "leased_index", "pace")
    for name in names:
        redis.delete(f"{{q}}:{name}")
        redis.set(f"{{q}}:{name}", "mine")
    redis.set("delayq:control", "mine")
    redis.set("delayq:revoked", "mine")
    schedule(store, "b", queue="other")
    redis.delete("{other}:tasks")
    before = snapshot(redis)

    report = look(store, repair=True)

    assert numbers(report) == {"wrong_type": 8, "unindexed": 1}
    shared = [each for each in report.findings if each.queue == ""]
    assert [each.examples for each in shared] == [
        [
            "delayq:control is a string, expected a hash",
            "delayq:revoked is a string, expected a zset",
        ]
    ]
    after = snapshot(redis)
    after.pop("{other}:tasks")
    # Without its pauses dispatching stops; what has gone with it is in no index.
    del before["delayq:control"]
    indexes = "delayq:next_due", "delayq:lease_ends"
    assert after | dict.fromkeys(indexes) == before | dict.fromkeys(indexes)
    assert [each.repaired for each in shared] == [1]


def test_a_full_server_lets_all_of_it_be_repaired(store: Store, redis: Redis) -> None:
    pause_due(store, "p")
    put(store, labelled("s", "first", unique="sk1"), labelled("s", "second", unique="sk2"))
    make_ready(store, "h")
    acquire(store, "1", 1)
    make_ready(store, "r", unique="d")
    redis.delete("{q}:paused_due", "{q}:duplicate_ids")
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)

    report = look(store, repair=True)

    assert numbers(report) == {"lost_paused_due": 1, "unlisted_duplicate": 1}
    assert report.repaired == report.found
    redis.config_set("maxmemory", 0)
    assert numbers(look(store)) == {}
