"""What may start only for so long after it was due is a dead letter when it is later."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import (
    LAYOUT,
    LEASE,
    QUEUE,
    become_due,
    bodies,
    fill,
    labelled,
    make_ready,
    member,
    message_of,
    put,
    reserve,
    state,
)
from tests.support.keyspace import snapshot
from tests.support.model_clock import pass_time

pytestmark = pytest.mark.usefixtures("watched")


def scheduled(store: Store, skip_after: int, *, late: int, unique: str = "-") -> None:
    """Store an entry that was due so many ms ago."""
    put(store, labelled("a", skip_after=skip_after, unique=unique))
    become_due(store, "a", store.now_ms() - late)


def make_late(store: Store, name: str, due_ms: int = 5) -> None:
    """Make it as if a ready message had been due long ago."""
    message_id, _, rest = (store.client.hget("{q}:ready_index", name) or b"").split(b" ", 2)
    store.client.hset("{q}:ready_index", name, b"%b %d %b" % (message_id, due_ms, rest))


@pytest.mark.parametrize(("skip_after", "late"), [(0, 10**9), (60_000, 0), (60_000, 50_000)])
def test_what_is_in_time_runs(store: Store, skip_after: int, late: int) -> None:
    scheduled(store, skip_after, late=late)

    assert store.promote(QUEUE, Layout(), 100).moved == 1
    assert len(reserve(store).messages) == 1


def test_what_is_late_in_the_schedule_is_dead(store: Store) -> None:
    scheduled(store, 1000, late=5000, unique="dk")
    due = int(store.client.zscore("{q}:due", "a") or 0)

    promoted = store.promote(QUEUE, Layout(), 100)

    assert (promoted.moved, promoted.dead_lettered, promoted.look.queue) == (0, 1, None)
    [dead_letter] = store.dead_letters.all(QUEUE)
    assert (dead_letter.id, dead_letter.due_ms) == ("a", due)
    assert dead_letter.message == message_of(labelled("a", skip_after=1000, unique="dk"))
    assert dead_letter.reason.startswith("skipped: 50")
    assert dead_letter.reason.endswith(" ms after it was due, at most 1000 allowed")
    assert state(store).keys() == {"delayq:queues", "{q}:dead", "{q}:dead_at"}


def test_others_beside_it_are_promoted(store: Store) -> None:
    scheduled(store, 1000, late=5000)
    put(store, labelled("b"), labelled("a", message_id="duplicate", skip_after=1000))
    become_due(store, "b")
    become_due(store, "a\0duplicate")

    promoted = store.promote(QUEUE, Layout(), 100)

    assert (promoted.moved, promoted.dead_lettered) == (1, 2)
    assert bodies(reserve(store)) == [message_of(labelled("b"))]
    assert len({dead_letter.id for dead_letter in store.dead_letters.all(QUEUE)}) == 2
    assert {"{q}:due", "{q}:entries", "{q}:tasks", "{q}:duplicate_ids"}.isdisjoint(state(store))


def test_what_is_late_in_the_ready_list_is_dead(store: Store) -> None:
    late, other = labelled("a", skip_after=1000, unique="dk"), labelled("b", skip_after=1000)
    make_ready(store, late, other, due_ms=store.now_ms())
    make_late(store, "a")

    reserved = reserve(store)

    assert bodies(reserved) == [message_of(other)]
    [dead_letter] = store.dead_letters.all(QUEUE)
    assert (dead_letter.id, dead_letter.due_ms, dead_letter.message) == ("a", 5, message_of(late))
    store.leases.ack(QUEUE, "me", ["1:1"])
    found = state(store)
    assert found.keys() - {"{q}:dead", "{q}:dead_at", "delayq:lease_ends", "{q}:leases"} == {
        "delayq:queues"
    }


def test_what_was_cancelled_is_not_dead_for_being_late(store: Store) -> None:
    make_ready(store, labelled("a", skip_after=1000), due_ms=store.now_ms())
    make_late(store, "a")
    store.control.cancel(QUEUE, Layout(), ["a"])

    assert reserve(store).messages == []
    assert state(store) == {"delayq:queues": {b"q": LAYOUT}}


def test_what_came_back_late_is_dead(store: Store) -> None:
    make_ready(store, labelled("a", skip_after=1000), due_ms=store.now_ms())
    reserve(store)
    pass_time(store.client, LEASE + 60)
    store.leases.reclaim_expired(QUEUE, Layout(), "me", 100, 5)
    make_late(store, "a")

    assert reserve(store, "2").messages == []
    assert [dead_letter.id for dead_letter in store.dead_letters.all(QUEUE)] == ["a"]
    assert "{q}:deliveries" not in state(store)


def test_what_is_to_be_delivered_alone_may_be_late_too(store: Store) -> None:
    make_ready(store, labelled("a", skip_after=1000), due_ms=store.now_ms())
    reserve(store)
    pass_time(store.client, LEASE + 60)
    assert store.leases.reclaim_expired(QUEUE, Layout(), "me", 100, 1).quarantined == 1
    make_late(store, "a")

    assert reserve(store, "2").messages == []
    assert {"{q}:quarantined", "{q}:deliveries", "{q}:ready_index"}.isdisjoint(state(store))


def test_what_stock_workers_gave_back_has_no_due_and_runs(store: Store) -> None:
    make_ready(store, labelled("a", skip_after=1000), due_ms=store.now_ms())
    message = store.client.rpop("q")
    reserve(store)  # nothing is ready, so nothing is known to be waiting
    store.client.rpush("q", message)

    assert bodies(reserve(store, "2")) == [message]
    assert state(store)["{q}:leased_index"] == {b"a": b"n-a 0 -  me"}


def test_what_is_run_manual_is_due_then(store: Store) -> None:
    scheduled(store, 1000, late=5000)

    assert store.control.run_now(QUEUE, Layout(), ["a"]) == ["d"]
    assert len(reserve(store).messages) == 1


def test_one_that_is_sent_to_run_at_once_counts_from_then(store: Store) -> None:
    put(store, labelled("a", 0, skip_after=60_000))

    assert len(reserve(store).messages) == 1


def test_a_late_one_keeps_its_index_right_when_it_was_paused_due(store: Store) -> None:
    scheduled(store, 1000, late=5000)
    due = int(store.client.zscore("{q}:due", "a") or 0)
    store.control.pause([], task="tasks.t")
    store.promote(QUEUE, Layout(), 100)
    assert state(store)["{q}:paused_due"] == {member("tasks.t", due, "a"): 0}
    store.control.pause([QUEUE], task="tasks.t", resume=True)

    assert store.promote(QUEUE, Layout(), 100).dead_lettered == 1
    assert {"{q}:due", "{q}:paused_due", "{q}:tasks"}.isdisjoint(state(store))


def test_it_goes_on_when_the_server_is_full(store: Store) -> None:
    scheduled(store, 1000, late=5000)
    make_ready(store, labelled("b", skip_after=1000), due_ms=store.now_ms())
    make_late(store, "b")
    fill(store)

    store.promote(QUEUE, Layout(), 100)
    assert reserve(store).messages == []
    assert sorted(dead_letter.id for dead_letter in store.dead_letters.all(QUEUE)) == ["a", "b"]


@pytest.mark.parametrize("key", ["{q}:dead", "{q}:dead_at", "{q}:unique", "{q}:duplicate_ids"])
def test_a_key_of_another_type_leaves_it_ready(store: Store, key: str) -> None:
    make_ready(store, labelled("a", skip_after=1000, unique="dk"), due_ms=store.now_ms())
    make_late(store, "a")
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        reserve(store)

    assert snapshot(store.client) == before
