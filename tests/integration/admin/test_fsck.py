"""fsck finds and repairs keys that people edited; a second run finds nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from hashlib import sha1

import pytest
from celery import Celery
from redis import Redis

from celery_delayq.model.envelope import Due, Entry, Record
from celery_delayq.periodic import policy as periodic
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.entries import Periodic
from celery_delayq.store.keys import Layout
from celery_delayq.store.periodic import EntryWrite
from celery_delayq.store.store import Store
from tests.support.drift import FAR, SETTINGS, by_kind, lease, look, numbers, repaired, schedule
from tests.support.keyspace import snapshot
from tests.support.leases import ack

pytestmark = pytest.mark.each_server

#: What is no member of the index by task: another entry, another due, another task, no form.
NO_MEMBERS = (
    f"reports.daily über\0{FAR:015}\0gone",
    f"reports.daily über\0{FAR + 9:015}\0id-0",
    f"other\0{FAR:015}\0id-0",
    "no member",
)


# -- nothing wrong


def test_nothing_is_wrong_with_what_our_scripts_leave(store: Store, redis: Redis) -> None:
    schedule(store, "a", "b", "c")
    schedule(store, "d", queue="other", task="a b")
    lease(store, "x", "y")
    ack(store, "q", "me", ["1:1"])
    store.leases.dead_letter("q", "me", "1:2", "x", "why")
    store.dead_letters.add("third", "id", "why", b"{}")

    assert repaired(store) == snapshot(redis)
    assert look(store).queues == ["other", "q", "third"]


def test_an_empty_database_has_nothing_wrong(store: Store) -> None:
    report = look(store, repair=True)

    numbers = dict.fromkeys(("found", "repaired", "unrepaired"), 0)
    assert report.as_dict() == {**numbers, "queues": [], "findings": [], "notes": []}
    assert snapshot(store.client) == {}


#: What is done to keys of 500 entries, two dead letters and a lease, and what is found of it; the
#: repair brings all keys back as they were.
BROKEN: tuple[tuple[Callable[[Redis], object], dict[str, int]], ...] = (
    (lambda r: r.zrem("{q}:due", "id-0", "id-2"), {"unscheduled": 2}),
    (
        lambda r: r.delete("{q}:due", "delayq:next_due", "delayq:queues"),
        {"unscheduled": 500, "unregistered": 1},
    ),
    (lambda r: r.delete("{q}:tasks"), {"unindexed": 500}),
    (lambda r: r.zadd("{q}:tasks", dict.fromkeys(NO_MEMBERS, 0)), {"misindexed": len(NO_MEMBERS)}),
    (lambda r: r.delete("delayq:next_due"), {"next_due_late": 1}),
    (lambda r: r.zadd("delayq:next_due", {"q": FAR + 1}), {"next_due_late": 1}),
    (lambda r: r.zadd("delayq:next_due", {"q": float("inf")}), {"next_due_late": 1}),
    (lambda r: r.zrem("{q}:dead_at", "dead-1"), {"unlisted_dead_letter": 1}),
    (lambda r: r.zadd("{q}:dead_at", {"gone": 5}), {"no_dead_letter": 1}),
    (lambda r: r.delete("delayq:lease_ends"), {"unwatched": 1}),
    (lambda r: r.zadd("delayq:lease_ends", {"q": float(2 * FAR)}), {"unwatched": 1}),
)


@pytest.mark.parametrize(("damage", "found"), BROKEN)
def test_keys_out_of_step_are_as_they_were_after_a_repair(
    store: Store, redis: Redis, damage: Callable[[Redis], object], found: dict[str, int]
) -> None:
    schedule(store, *(f"id-{n}" for n in range(500)), task="reports.daily über")
    for id in ("dead-1", "dead-2"):
        store.dead_letters.add("q", id, "why", b"{}")
    lease(store, "x")
    healthy = snapshot(redis)

    damage(redis)

    assert repaired(store, **found) == healthy


# -- periodic entries


def enter(store: Store, *names: str) -> None:
    """Make periodic entries that tick once an hour."""
    now = store.now_ms()
    for name in names:
        definition = Definition.from_fields(3600, name=name, task="t")
        entry = periodic.begin(definition, now, dt.timezone.utc)
        store.periodic.write([EntryWrite(name, "", entry.pack(), entry.next_look_ms)])


def test_a_periodic_entry_that_nobody_looks_at_is_looked_at(store: Store, redis: Redis) -> None:
    enter(store, "a", "b")
    [(_, record)] = [each for each in store.periodic.all() if each[0] == "a"]
    paused = periodic.pause(Periodic.unpack("a", record))
    line = record.partition("\n")[0]
    store.periodic.write([EntryWrite("a", line, paused.pack(), paused.next_look_ms)])
    assert look(store).findings == []
    redis.delete("delayq:periodic_at")

    repaired(store, unlisted_periodic=1)

    assert [name for name, _ in store.periodic.claim_due(10, 1000).records] == ["b"]


def test_what_is_no_periodic_entry_is_reported(store: Store, redis: Redis) -> None:
    enter(store, "a")
    redis.hset("delayq:periodic", "garbage", b"\xff 1 2")

    report = look(store, repair=True)

    assert numbers(report) == {"unreadable_periodic": 1}
    assert (report.repaired, report.unrepaired) == (0, 1)
    assert look(store, queue="q").findings == []


# -- the schedule


def test_a_lost_due_without_an_index_is_the_eta_of_the_message(
    app: Celery, store: Store, redis: Redis
) -> None:
    for n in range(250):
        eta = dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(milliseconds=n)
        app.send_task("t", eta=eta, task_id=f"id-{n}")
    healthy = snapshot(redis)
    redis.delete("{celery}:due", "{celery}:tasks")

    assert repaired(store, unscheduled=250) == healthy


def test_a_lost_due_that_nothing_tells_is_now(store: Store, redis: Redis) -> None:
    schedule(store, "a", "b")
    redis.zrem("{q}:due", "a")
    redis.zrem("{q}:tasks", f"t\0{FAR:015}\0a")
    now = store.now_ms()

    state = repaired(store, unscheduled=1)

    due = state["{q}:due"][b"a"]
    assert now <= due <= store.now_ms()
    assert state["{q}:tasks"] == {b"t\0%015d\0a" % due: 0, b"t\0%015d\0b" % (FAR + 1): 0}
    assert state["delayq:next_due"] == {b"q": due}
    assert store.promote("q", Layout(), 100).moved == 1
    assert redis.lrange("q", 0, -1) == [b'{"id": "a"}']


def test_what_is_scheduled_without_a_record_becomes_a_dead_letter(
    store: Store, redis: Redis
) -> None:
    schedule(store, "a", "b")
    redis.hdel("{q}:entries", "a")

    state = repaired(store, no_record=1, misindexed=1)

    assert state["{q}:due"] == {b"b": FAR + 1}
    assert state["delayq:next_due"] == {b"q": FAR + 1}
    assert state["{q}:tasks"] == {b"t\0%015d\0b" % (FAR + 1): 0}
    [dead_letter] = store.dead_letters.all("q")
    assert (dead_letter.id, dead_letter.reason, dead_letter.due_ms) == ("a", "no record", FAR)


def test_an_unreadable_record_stays_until_it_is_due(store: Store, redis: Redis) -> None:
    schedule(store, "a", "b")
    redis.hset("{q}:entries", "a", "2 something newer")
    before = snapshot(redis)

    report = look(store, repair=True)

    assert numbers(report) == {"unreadable": 1}
    assert (report.found, report.repaired, report.unrepaired) == (1, 0, 1)
    assert by_kind(report)["unreadable"].examples == ["a"]
    assert snapshot(redis) == before


def test_an_unreadable_record_without_a_due_is_left_to_promotion(
    store: Store, redis: Redis
) -> None:
    redis.hset("{q}:entries", "a", "garbage")

    look(store, repair=True)
    store.promote("q", Layout(), 100)

    [dead_letter] = store.dead_letters.all("q")
    assert (dead_letter.reason, dead_letter.message) == ("unreadable record", b"garbage")
    assert numbers(look(store)) == {"totals_differ": 1}  # nobody has published it


# -- the index by task


def test_an_entry_with_another_due_is_indexed_again(store: Store, redis: Redis) -> None:
    schedule(store, "a")
    redis.zadd("{q}:due", {"a": FAR - 5})

    state = repaired(store, misindexed=1, unindexed=1, next_due_late=1)

    assert state["{q}:tasks"] == {b"t\0%015d\0a" % (FAR - 5): 0}
    assert state["{q}:due"] == {b"a": FAR - 5}
    assert state["delayq:next_due"] == {b"q": FAR - 5}


def test_a_second_entry_with_the_same_id_is_no_drift(store: Store) -> None:
    for message_id in ("first", "second"):
        record = Record(0, message_id, "t", b"{}")
        store.schedule("q", Entry("a", Due(FAR), 0, record.pack()))

    repaired(store)


# -- what leads to a queue


def test_a_queue_that_is_left_alone_after_an_error_is_no_drift(store: Store, redis: Redis) -> None:
    schedule(store, "a")
    redis.zadd("{q}:due", {"a": 5})
    redis.delete("{q}:tasks")
    redis.zadd("{q}:tasks", {f"t\0{5:015}\0a": 0})
    redis.zadd("delayq:next_due", {"q": 5})
    store.defer_queue("q", 1.0)

    repaired(store)


def test_a_queue_that_the_registry_lacks_is_found_by_its_keys(store: Store, redis: Redis) -> None:
    schedule(store, "a", "b", queue="a{b}:due")
    store.dead_letters.add("dead only", "id", "why", b"{}")
    redis.lpush("{quarantined only}:quarantined", "0\nx")
    healthy = snapshot(redis)
    redis.delete("delayq:queues")
    layout = Layout().text.encode()

    state = repaired(store, unregistered=1 + 1 + 1)

    queues = {b"a{b}:due": layout, b"dead only": layout, b"quarantined only": layout}
    assert state == {**healthy, "delayq:queues": queues}


def test_a_queue_that_only_ready_messages_passed_need_not_be_registered(store: Store) -> None:
    call = store.ready_call("q")
    call.add(0, b"x")
    store.run(call)

    repaired(store)


# -- leases


def test_a_process_with_messages_and_no_lease_gets_one(store: Store, redis: Redis) -> None:
    lease(store, "x", "y")
    redis.delete("{q}:leases", "delayq:lease_ends")
    now = store.now_ms()

    state = repaired(store, unleased=1)

    ends = state["{q}:leases"][b"me"]
    assert now + 30_000 <= ends <= store.now_ms() + 30_000
    assert state["delayq:lease_ends"] == {b"q": ends}
    assert len(state["{q}:leased:me"]) == 2


def test_a_new_lease_does_not_include_the_time_in_which_nobody_looked(
    store: Store, redis: Redis
) -> None:
    lease(store, "x")
    seen = store.now_ms() - 3_600_000
    redis.hset("delayq:clock", mapping={"seen": seen, "stood": 0})
    redis.delete("{q}:leases", "delayq:lease_ends")

    look(store, repair=True)

    assert (
        redis.zscore("{q}:leases", "me") == redis.zscore("delayq:lease_ends", "q") == seen + 30_000
    )
    assert store.next_queue(SETTINGS.lease / 3).reclaim_expired == ()


def test_what_was_repaired_is_reclaimed(store: Store, redis: Redis) -> None:
    lease(store, "x", "y", "z")
    redis.delete("{q}:leases", "delayq:lease_ends", "{q}:wake")

    look(store, repair=True)
    redis.zadd("{q}:leases", {"me": 5})

    assert store.leases.reclaim_expired("q", Layout(), "me", 100, 5).requeued == 3
    assert redis.lrange("q", 0, -1) == [b"z", b"y", b"x"]


# -- deliveries


def count(redis: Redis, *messages: bytes) -> None:
    """Count a delivery of each of these."""
    for message in messages:
        redis.hset("{q}:deliveries", sha1(message).hexdigest(), "1 0 0")


def test_counts_of_messages_that_are_gone_are_removed(store: Store, redis: Redis) -> None:
    lease(store, "leased")
    call = store.ready_call("q")
    call.add(0, b"ready")
    call.add(9, b"urgent")
    store.run(call)
    redis.lpush("{q}:quarantined", "0\nquarantined")
    count(redis, b"leased", b"ready", b"urgent", b"quarantined")
    healthy = snapshot(redis)
    count(redis, b"popped", b"purged")

    store.repair.forget_counts("q", Layout())

    assert snapshot(redis) == healthy
