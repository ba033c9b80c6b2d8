"""Parked entries, unique keys, second messages with one id, and what is ready or held."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_delayq.admin import repair
from celery_delayq.admin.findings import Report
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.repair import Batch
from celery_delayq.store.repair_tracking import RepairTracking, Tracked
from celery_delayq.store.schedule import Store
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.drift import (
    FAR,
    by_kind,
    labelled,
    lease,
    look,
    numbers,
    pause_due,
    put,
    repaired,
    schedule,
)
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.each_server


@pytest.fixture
def redis(delayq_redis: RedisUnderTest) -> Redis:
    return delayq_redis.client


@pytest.fixture
def store(redis: Redis) -> Store:
    return Store(redis, Keys(), Layout())


def make_ready(store: Store, *ids: str, unique: str = "", message_id: str = "") -> None:
    """Publish messages with a label that are due; *unique* and the id are their unique keys."""
    put(store, *(labelled(id, message_id, unique=unique and unique + id, due=5) for id in ids))
    store.register("q")


def reserve(store: Store, message_id: str, number: int, worker_id: str = "me") -> None:
    assert len(store.leases.reserve("q", worker_id, 30.0, message_id, number).messages) == number


def left(report: Report) -> dict[str, int]:
    """Return what is wrong, what is harmless not included."""
    return {each.kind: each.left for each in report.findings if not each.harmless}


def test_nothing_is_wrong_with_what_our_scripts_leave(store: Store, redis: Redis) -> None:
    pause_due(store, "p1", "p2", task="paused")
    put(store, labelled("s", unique="sk1"), labelled("s", "second", unique="sk2"))
    make_ready(store, "a", "b", "c", unique="d")
    make_ready(store, "a", message_id="again")
    reserve(store, "1", 2)
    store.control.cancel("q", Layout(), ["c"])

    assert repaired(store) == snapshot(redis)
    assert redis.zcard("{q}:duplicate_ids") == 2
    assert redis.zcard("{q}:paused_due") == 2
    assert redis.hlen("{q}:running") == 2
    assert redis.hlen("{q}:waiting") == 2
    assert redis.hlen("{q}:unique") == 4


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
    misplaced_paused = [
        f"t\0{FAR:015}\0b",
        f"t\0{5:015}\0b",
        f"paused\0{6:015}\0a",
    ]
    idle = [f"t\0{FAR:015}\0gone", "no member"]
    redis.zadd("{q}:paused_due", dict.fromkeys([*misplaced_paused, *idle], 0))

    report = look(store)
    assert by_kind(report)["idle_paused_due"].harmless
    assert not by_kind(report)["misplaced_paused"].harmless
    assert repaired(store, misplaced_paused=3, idle_paused_due=2) == healthy


def test_a_paused_due_entry_that_has_lost_its_due_is_paused_due_anew(
    store: Store, redis: Redis
) -> None:
    pause_due(store, "a", "b")
    healthy = snapshot(redis)
    redis.zrem("{q}:due", "a")

    assert numbers(look(store)) == {"unscheduled": 1, "idle_paused_due": 1}
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


def test_what_is_paused_due_makes_no_queue_late(store: Store, redis: Redis) -> None:
    pause_due(store, "a")
    assert not redis.exists("delayq:next_due")

    repaired(store)


def test_what_is_paused_due_and_goes_on_is_looked_at(store: Store, redis: Redis) -> None:
    pause_due(store, "a", task="a")
    pause_due(store, "b", "c", task="b")
    schedule(store, "later")
    redis.zadd("{q}:paused_due", {f"b\0{5:015}\0gone": 0})
    assert numbers(look(store, repair=True)) == {"idle_paused_due": 1}
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
    layout = Layout(rate=0.1)
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
    reserve(store, "1", 3)
    healthy = snapshot(redis)
    redis.delete("{q}:duplicate_ids")

    assert len(healthy["{q}:duplicate_ids"]) == 2 + 2 + 2
    assert repaired(store, unlisted_duplicate=6) == healthy


def test_names_of_second_messages_that_are_gone_are_removed(store: Store, redis: Redis) -> None:
    for message_id in ("first", "second"):
        put(store, labelled("s", message_id))
        make_ready(store, "r", message_id=message_id)
    healthy = snapshot(redis)
    redis.zadd("{q}:duplicate_ids", {"s\0third": 0, "r\0third": 0, "gone\0x": 0, "no name": 0})

    assert by_kind(look(store))["idle_duplicate"].harmless
    assert repaired(store, idle_duplicate=4) == healthy


def test_a_second_message_that_is_the_first_for_now_may_be_listed(
    store: Store, redis: Redis
) -> None:
    for message_id in ("first", "second"):
        make_ready(store, "a", message_id=message_id)
    reserve(store, "1", 1)
    store.leases.ack("q", "me", ["1:1"])
    reserve(store, "2", 1)
    assert redis.hkeys("{q}:running") == [b"a"]
    redis.zadd("{q}:duplicate_ids", {"a\0second": 0})

    repaired(store)


# -- unique keys

#: Owners that say less than the id and the message id of a message.
UNREADABLE = {
    "no owner": "x",
    "no message id": "=a",
    "empty message id": "=a\0",
    "no number": "-=a\0n-a",
}


def test_unique_keys_of_what_is_gone_are_removed(store: Store, redis: Redis) -> None:
    put(store, labelled("s", unique="skey"))
    make_ready(store, "r", unique="d")
    healthy = snapshot(redis)
    wrong = {
        "gone": "=gone\0n",
        "of another key": "=s\0n-s",
        "when": "5=r\0n-r",
        "of another message": "=s\0n",
        **UNREADABLE,
    }
    redis.hset("{q}:unique", mapping=wrong)

    assert by_kind(look(store))["idle_key"].harmless
    assert repaired(store, idle_key=len(wrong)) == healthy


def test_a_unique_key_that_nobody_has_is_given_to_its_task(store: Store, redis: Redis) -> None:
    put(store, *(labelled(f"s-{n}", unique=f"sk{n}") for n in range(150)))
    make_ready(store, *(f"h-{n}" for n in range(150)), unique="d")
    reserve(store, "1", 150)
    make_ready(store, *(f"r-{n}" for n in range(150)), unique="d")
    store.control.cancel("q", Layout(), ["r-149"])
    healthy = snapshot(redis)
    assert len(healthy["{q}:unique"]) == 150 + 150 + 149
    redis.delete("{q}:unique")

    assert by_kind(look(store))["keyless"].harmless
    assert repaired(store, keyless=449) == healthy


@pytest.mark.parametrize("owner", ["=gone\0n", "=a\0other", *UNREADABLE.values()])
def test_a_unique_key_that_is_lost_with_its_owner_is_given_once(
    store: Store, redis: Redis, owner: str
) -> None:
    put(store, labelled("a", unique="skey"))
    redis.hset("{q}:unique", "key", owner)

    state = repaired(store, idle_key=1, keyless=1)

    assert state["{q}:unique"] == {b"key": b"=a\0n-a"}


def test_what_stands_beside_the_owner_of_its_key_is_no_drift(store: Store, redis: Redis) -> None:
    put(store, labelled("a", unique="skey"))
    beside = labelled("b", unique="skey")
    put(store, beside._replace(policy="k 0 1"))
    assert redis.zcard("{q}:due") == 2

    repaired(store)


def test_a_scope_that_is_over_needs_no_key(store: Store) -> None:
    make_ready(store, "r", "h", unique="s")
    reserve(store, "1", 1)

    repaired(store)


# -- what is ready or held


def test_what_no_process_holds_is_running_no_more(store: Store, redis: Redis) -> None:
    make_ready(store, "gone", unique="d")
    make_ready(store, "gone", message_id="second")
    reserve(store, "1", 2, "other")
    healthy = snapshot(redis)
    make_ready(store, *(f"id-{n}" for n in range(250)), unique="d")
    reserve(store, "1", 250)
    redis.delete("{q}:leased:me")
    redis.zrem("{q}:leases", "me")
    redis.hdel("{q}:request_numbers", "me")
    redis.hset("{q}:running", mapping={"garbage": "x", "gone\0third": "third 5 - t other"})
    redis.zadd("{q}:duplicate_ids", {"gone\0third": 0})

    report = look(store)
    assert not by_kind(report)["gone_running"].harmless
    assert report.left == 252
    state = repaired(store, gone_running=252)

    for key in ("{q}:running", "{q}:unique", "{q}:duplicate_ids", "{q}:leased:other"):
        assert state[key] == healthy[key]
    assert "{q}:waiting" not in state


def test_what_a_stock_worker_took_is_ready_no_more(store: Store, redis: Redis) -> None:
    make_ready(store, "taken", "left", unique="d")
    redis.rpush("{q}:quarantined", b"0\n" + redis.lindex("q", -1))
    make_ready(store, "quarantined", unique="d")
    redis.lset("{q}:quarantined", 0, b"0\n" + redis.lpop("q"))
    store.control.cancel("q", Layout(), ["taken"])
    redis.rpop("q")
    redis.hset("{q}:waiting", "garbage", "x")

    assert by_kind(look(store))["gone_waiting"].harmless
    state = repaired(store, gone_waiting=2)

    assert set(state["{q}:waiting"]) == {b"left", b"quarantined"}
    assert set(state["{q}:unique"]) == {b"left", b"quarantined"}


def test_a_key_that_another_has_now_stays_with_it(store: Store, redis: Redis) -> None:
    put(store, labelled("first", unique="dkey", due=5))
    redis.rpop("q")
    redis.hset("{q}:waiting", "first", b"!" + redis.hget("{q}:waiting", "first"))
    make_ready(store, "other")  # else nothing is known to be waiting any more
    put(store, labelled("second", unique="dkey"))

    state = repaired(store, gone_waiting=1)

    assert state["{q}:unique"] == {b"key": b"=second\0n-second"}


@pytest.mark.parametrize("index", ["waiting", "running"])
def test_what_has_moved_while_it_was_looked_for_is_not_gone(
    store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    make_ready(store, *(f"id-{n}" for n in range(250)), unique="d")
    if index == "running":
        reserve(store, "1", 250)

    def passed_over(*_: Any, **__: Any) -> tuple[Batch, list[bytes]]:
        return Batch(0, 0, []), []

    monkeypatch.setattr(RepairTracking, "messages", passed_over)

    repaired(store)

    def another_value(*_: Any) -> list[Tracked]:
        found = redis.hgetall(f"{{q}}:{index}")
        return [Tracked(name, value.replace(b" 5 ", b" 6 ")) for name, value in found.items()]

    redis.delete("q", "{q}:leased:me")
    monkeypatch.setattr(RepairTracking, "sample", another_value)
    assert numbers(look(store, repair=True)) == {}


def test_what_cannot_be_found_by_its_id_is_tracked(store: Store, redis: Redis) -> None:
    lease(store, "w", worker_id="other")
    make_ready(store, *(f"h-{n}" for n in range(250)), unique="d")
    reserve(store, "1", 250)
    make_ready(store, *(f"r {n} ü" for n in range(250)))
    make_ready(store, "r 0 ü", message_id="second")
    store.run(_ready(store, b"without a label"))
    healthy = snapshot(redis)
    redis.delete("{q}:waiting", "{q}:running", "{q}:duplicate_ids")

    seen = look(store)
    assert seen.left == 0
    # Its messages are found again first, so that all keys keep their owners.
    assert numbers(seen) == {"untracked_held": 250, "untracked_ready": 251, "idle_key": 250}
    report = look(store, repair=True)
    assert numbers(report) == {"untracked_held": 250, "untracked_ready": 251}

    state = snapshot(redis)
    tracked = ("{q}:waiting", "{q}:running", "{q}:duplicate_ids")
    assert {**state, **dict.fromkeys(tracked)} == {**healthy, **dict.fromkeys(tracked)}
    assert [len(state[key]) for key in tracked] == [251, 250, 1]
    assert state["{q}:running"].keys() == healthy["{q}:running"].keys()
    assert state["{q}:running"][b"h-7"] == b"n-h-7 0 dh-7  me"
    assert store.control.cancel("q", Layout(), ["h-7", "r 7 ü"]) == ["r", "d"]
    assert numbers(look(store)) == {}


def _ready(store: Store, message: bytes) -> Any:
    call = store.ready_call("q")
    call.add(0, message)
    return call


def test_beside_too_many_messages_names_are_not_looked_at_and_that_is_told(
    store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "MOST_COUNTS", 3)
    make_ready(store, "a", "b", "c", "d")
    redis.rpop("q")
    assert numbers(look(store)) == {"gone_waiting": 1}
    make_ready(store, "e")

    report = look(store, repair=True)

    assert numbers(report) == {}
    [note] = report.notes
    assert "5 names of ready messages were not looked at" in note


def test_more_bytes_than_may_be_read_at_once_are_told(
    store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_delayq.store.repair_tracking.MOST_BYTES", 1000)
    make_ready(store, *(f"id-{n}" for n in range(9)))
    redis.rpop("q")

    report = look(store, repair=True)

    assert numbers(report) == {}
    [note] = report.notes
    assert "1 messages that count as waiting were not found" in note


# -- where things are not as usual


def test_keys_of_another_type_are_told(store: Store, redis: Redis) -> None:
    make_ready(store, "a")
    names = ("paused_due", "unique", "duplicate_ids", "waiting", "running", "pace")
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
    assert after == before


def test_a_full_server_lets_all_of_it_be_repaired(store: Store, redis: Redis) -> None:
    pause_due(store, "p")
    put(store, labelled("s", "first", unique="sk1"), labelled("s", "second", unique="sk2"))
    make_ready(store, "h")
    reserve(store, "1", 1)
    make_ready(store, "r", unique="d")
    redis.delete(
        *(
            f"{{q}}:{name}"
            for name in ("paused_due", "unique", "duplicate_ids", "running", "waiting")
        )
    )
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)

    report = look(store, repair=True)

    assert numbers(report) == {
        "lost_paused_due": 1,
        "unlisted_duplicate": 1,
        "keyless": 3,
        "untracked_held": 1,
        "untracked_ready": 1,
    }
    assert report.repaired == report.found
    redis.config_set("maxmemory", 0)
    assert numbers(look(store)) == {}
